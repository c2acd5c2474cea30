-- A row that stays as it was is not counted, also where NULL stays NULL and what lies under it is compared.
CREATE TABLE t (id INT PRIMARY KEY, c0 VARCHAR(20), c1 MEDIUMINT DEFAULT 2, c2 DECIMAL(5,1) DEFAULT 1.5);
INSERT INTO t VALUES (1, 'x', 1, 1), (2, NULL, NULL, NULL), (3, 'X', 3, NULL);
UPDATE t SET c1 = c1 + 1;
UPDATE t SET c2 = 1 WHERE id < 3 ORDER BY id DESC;
INSERT INTO t VALUES (2, 'new', 1, 1), (1, 'n', 1, 1), (4, NULL, 1, 1) ON DUPLICATE KEY UPDATE c0 = UPPER(c0);
INSERT INTO t VALUES (2, 'new', 1, 1), (3, 'n', 1, 1) ON DUPLICATE KEY UPDATE c1 = c1 + 1, c2 = c2;
SELECT * FROM t ORDER BY id;
