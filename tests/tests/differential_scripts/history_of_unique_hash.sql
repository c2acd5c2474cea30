-- A row that would be history of the same moment and hash as another one is deleted instead, after the server has refused to keep it.
CREATE TABLE v (id INT PRIMARY KEY, b TEXT, UNIQUE (b)) WITH SYSTEM VERSIONING;
INSERT INTO v VALUES (5, 'x'), (6, 'y');
REPLACE INTO v VALUES (1, 'x'), (2, 'x');
SELECT id, b FROM v ORDER BY id;
SELECT id, b FROM v FOR SYSTEM_TIME ALL ORDER BY id, b;
SET timestamp = 1700000000;
INSERT INTO v VALUES (7, 't');
DELETE FROM v WHERE id = 7;
INSERT INTO v VALUES (8, 't');
DELETE FROM v WHERE id = 8;
SET timestamp = DEFAULT;
SELECT id, b FROM v FOR SYSTEM_TIME ALL ORDER BY id, b;
CREATE TABLE w (n INT, b TEXT, UNIQUE (b)) WITH SYSTEM VERSIONING;
INSERT INTO w VALUES (5, 'x'), (6, 'y');
REPLACE INTO w VALUES (1, 'x'), (2, 'x');
SELECT n, b FROM w FOR SYSTEM_TIME ALL ORDER BY n, b;
CHECK TABLE v EXTENDED;
CHECK TABLE w EXTENDED;
