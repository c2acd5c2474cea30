-- A row that an UPDATE would move to another partition meets its duplicate there: the error names the key.
CREATE TABLE t (a INT, b INT, c INT, PRIMARY KEY (a), UNIQUE KEY (b, a)) PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO t VALUES (1, 1, 1), (11, 1, 1);
UPDATE t SET a = 11 WHERE a = 1;
INSERT INTO t VALUES (1, 5, 5) ON DUPLICATE KEY UPDATE a = 11;
UPDATE IGNORE t SET a = 11 WHERE a = 1;
/*any_order*/ SELECT * FROM t;
CHECK TABLE t EXTENDED;
