-- A row is refused for its own key, and not for the hash that was in the way of an earlier one, which has remained as it was.
CREATE TABLE t (id INT PRIMARY KEY, b TEXT, n INT, UNIQUE (b), UNIQUE (n));
INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2);
INSERT INTO t VALUES (5, 'x', 9) ON DUPLICATE KEY UPDATE n = n;
INSERT INTO t VALUES (2, 'q', 9);
INSERT INTO t VALUES (5, 'x', 9), (2, 'q', 9) ON DUPLICATE KEY UPDATE n = IF(VALUES(id) = 5, n, 1);
SELECT * FROM t ORDER BY id;
-- Among partitions the row in the way is looked for by that key, too: it is another one.
CREATE TABLE p (id INT PRIMARY KEY, b TEXT, n INT, UNIQUE (b)) PARTITION BY HASH (id) PARTITIONS 2;
INSERT INTO p VALUES (1, 'x', 1), (2, 'y', 2);
INSERT INTO p VALUES (5, 'x', 9), (2, 'q', 9) ON DUPLICATE KEY UPDATE n = IF(VALUES(id) = 5, n, n + 10);
SELECT * FROM p ORDER BY id;
INSERT INTO p VALUES (6, 'x', 9) ON DUPLICATE KEY UPDATE n = n;
INSERT INTO p VALUES (2, 'q', 9) ON DUPLICATE KEY UPDATE n = n + 100;
SELECT * FROM p ORDER BY id;
