-- Rows of a table without a primary key are numbered on, after a new name, a copy, or a restart.
CREATE TABLE t (c0 INT, c1 VARBINARY(255) NOT NULL);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
RENAME TABLE t TO u;
INSERT INTO u VALUES (3, 'c') ON DUPLICATE KEY UPDATE c1 = 'wrong';
ALTER TABLE u ADD COLUMN c2 INT, ALGORITHM=COPY;
INSERT INTO u VALUES (4, 'd', 4), (5, 'e', 5);
/*any_order*/ SELECT * FROM u;
CREATE TABLE v (c0 DECIMAL(38,4) NOT NULL, c2 BIT(16) NOT NULL, PRIMARY KEY (c2));
INSERT INTO v VALUES (1.5, b'11');
/*no_count*/ ALTER TABLE v DROP PRIMARY KEY;
INSERT INTO v VALUES (2.5, b'0'), (2.5, b'0');
/*any_order*/ SELECT * FROM v;
/*kill*/ ;
INSERT INTO u VALUES (6, 'f', 6);
INSERT INTO v VALUES (3.5, b'1');
/*any_order*/ SELECT * FROM u;
/*any_order*/ SELECT * FROM v;
CHECK TABLE u, v EXTENDED;
