-- A number too large to be counted from does not stop the counting.
CREATE TABLE f (id FLOAT AUTO_INCREMENT PRIMARY KEY, b INT);
INSERT INTO f (b) VALUES (1), (2);
INSERT INTO f VALUES (10.6, 3), (-3.5, 4), (1e30, 5);
INSERT INTO f (b) VALUES (6);
/*any_order*/ SELECT * FROM f;
CREATE TABLE d (id DOUBLE AUTO_INCREMENT PRIMARY KEY, b INT);
INSERT INTO d VALUES (7, 1), (1e17, 2);
INSERT INTO d (b) VALUES (3);
/*any_order*/ SELECT * FROM d;
