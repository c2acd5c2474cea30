-- A multi-row INSERT that fails at a duplicate leaves none of its rows, in no index.
CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(10), UNIQUE KEY (a), KEY (b));
INSERT INTO t VALUES (1, 1, 'x'), (2, NULL, 'y'), (3, NULL, 'z');
INSERT INTO t VALUES (4, 4, 'p'), (5, 1, 'q'), (6, 6, 'r');
/*any_order*/ SELECT * FROM t;
/*any_order*/ SELECT a FROM t FORCE INDEX (a) ORDER BY a;
/*any_order*/ SELECT b FROM t FORCE INDEX (b) ORDER BY b;
BEGIN;
INSERT INTO t VALUES (7, 7, 'k');
SAVEPOINT s;
INSERT INTO t VALUES (8, 8, 'l'), (7, 9, 'm');
UPDATE t SET a = a + 1 WHERE a IS NOT NULL ORDER BY a DESC;
ROLLBACK TO SAVEPOINT s;
COMMIT;
/*any_order*/ SELECT * FROM t;
CHECK TABLE t EXTENDED;
