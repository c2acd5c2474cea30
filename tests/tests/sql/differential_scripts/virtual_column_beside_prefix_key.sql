-- A covering read of a virtual column, where the primary key holds only the beginning of a column.
CREATE TABLE t (c0 TIME(3) NOT NULL, c1 TEXT NOT NULL, g3 BIGINT GENERATED ALWAYS AS (LENGTH(c1)) VIRTUAL, PRIMARY KEY (c1(5)), KEY k4 (c0, g3), UNIQUE KEY k5 (g3 DESC));
INSERT INTO t (c0, c1) VALUES ('-12:34:56.789', REPEAT('z', 4000)), ('00:00:01', 'aaaaaaaa'), ('00:00:01', '');
SELECT c0, g3 FROM t FORCE INDEX (k4) ORDER BY c0, g3;
SELECT g3 FROM t FORCE INDEX (k5) ORDER BY g3 DESC;
SELECT COUNT(*), COUNT(DISTINCT g3) FROM t WHERE g3 >= 0;
SELECT c1 FROM t FORCE INDEX (k4) WHERE c0 = '00:00:01' AND g3 = 8;
