CREATE DATABASE shop CHARACTER SET utf8mb4;
CREATE DATABASE `we``ird.db` CHARACTER SET latin1;
CREATE TABLE shop.customers (id INT UNSIGNED PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40) NOT NULL
  COMMENT 'it''s ''ENGINE=InnoDB''', up VARCHAR(40) AS (UPPER(name)) VIRTUAL, born DATE DEFAULT '2000-01-01',
  length INT AS (LENGTH(name)) STORED, seen TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE
  CURRENT_TIMESTAMP, hidden INT INVISIBLE DEFAULT 7, UNIQUE (name), KEY (up), CHECK (name <> 'no'));
CREATE TABLE shop.regions (id INT PRIMARY KEY);
CREATE TABLE shop.orders (id BIGINT PRIMARY KEY AUTO_INCREMENT, customer INT UNSIGNED, previous BIGINT,
  region INT, CONSTRAINT `in` FOREIGN KEY (region) REFERENCES shop.regions (id), note TEXT, KEY (previous), CONSTRAINT `of` FOREIGN KEY (customer) REFERENCES shop.customers (id)
  ON DELETE CASCADE ON UPDATE SET NULL, CONSTRAINT self FOREIGN KEY (previous) REFERENCES shop.orders
  (id) ON DELETE NO ACTION) AUTO_INCREMENT=5000;
CREATE TABLE `we``ird.db`.`a ``b.c` (`i d` INT PRIMARY KEY, `c``d` BIGINT, `é` ENUM('x','ß'),
  CONSTRAINT `f k` FOREIGN KEY (`c``d`) REFERENCES shop.orders (id) ON DELETE SET NULL);
CREATE TABLE shop.heads (id INT PRIMARY KEY, body INT, KEY (body));
CREATE TABLE shop.bodies (id INT PRIMARY KEY, head INT,
  CONSTRAINT body_head FOREIGN KEY (head) REFERENCES shop.heads (id) ON UPDATE CASCADE);
ALTER TABLE shop.heads ADD CONSTRAINT head_body FOREIGN KEY (body) REFERENCES shop.bodies (id);
CREATE TABLE shop.pairs (a INT, b INT, PRIMARY KEY (a, b));
CREATE TABLE shop.of_pairs (x INT, y INT, KEY (x, y),
  CONSTRAINT two FOREIGN KEY (x, y) REFERENCES shop.pairs (a, b) ON DELETE CASCADE);
CREATE TABLE shop.parts (id INT, year INT, v VARCHAR(20), PRIMARY KEY (id, year)) PARTITION BY RANGE
  (year) (PARTITION p0 VALUES LESS THAN (2020), PARTITION p1 VALUES LESS THAN MAXVALUE);
CREATE TABLE shop.odd (v DOUBLE, j JSON, b BIT(9), z DATETIME(6) NULL, bin BLOB, FULLTEXT (t), t TEXT)
  ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8 COMMENT='`odd`';
CREATE TRIGGER shop.tr BEFORE INSERT ON shop.orders FOR EACH ROW SET NEW.note = IFNULL(NEW.note, 'none');
CREATE VIEW shop.seen AS SELECT name, up FROM shop.customers;
USE shop;
INSERT INTO shop.customers (id, name, hidden) SELECT seq, CONCAT('name ', seq), seq FROM seq_100_to_2000;
SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO';
INSERT INTO shop.customers (id, name, born) VALUES (0, 'zero', '0000-00-00');
SET check_constraint_checks = 0;
INSERT INTO shop.customers (id, name) VALUES (13, 'no');
INSERT INTO shop.regions VALUES (1), (2);
INSERT INTO shop.orders (id, customer, region) SELECT seq, 100 + seq % 1900, 1 + seq % 2 FROM seq_1_to_3000;
UPDATE shop.orders SET previous = id + 1 WHERE id < 3000;
INSERT INTO `we``ird.db`.`a ``b.c` SELECT seq, seq, 1 + seq % 2 FROM seq_1_to_500;
INSERT INTO shop.heads SELECT seq, NULL FROM seq_1_to_100;
INSERT INTO shop.bodies SELECT seq, seq FROM seq_1_to_100;
UPDATE shop.heads SET body = 101 - id;
INSERT INTO shop.pairs SELECT seq, seq FROM seq_1_to_50;
INSERT INTO shop.of_pairs SELECT seq, seq FROM seq_1_to_50;
INSERT INTO shop.parts SELECT seq, 2000 + seq % 40, 'v' FROM seq_1_to_1000;
INSERT INTO shop.odd VALUES (0.1, '{}', b'101', NULL, 0x00FF, 'a word'), (-0.0, NULL, NULL, '1000-01-01', '', NULL);
