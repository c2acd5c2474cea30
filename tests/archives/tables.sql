-- The tables of an archived directory. A statement ends with a semicolon at the end of a line.
CREATE DATABASE a;
USE a;
CREATE TABLE kinds (id INT PRIMARY KEY AUTO_INCREMENT, tiny TINYINT, big BIGINT UNSIGNED, d
    DOUBLE, f FLOAT, n DECIMAL(20, 6), y YEAR, day DATE, t TIME(3), dt DATETIME(6), ts
    TIMESTAMP(2) NULL, c CHAR(9), text VARCHAR(300) COLLATE utf8mb4_general_ci, bin VARBINARY(60),
    bits BIT(11), e ENUM('x', 'y', 'z'), s SET('p', 'q', 'r'), j JSON, ip INET6, u UUID, twice
    BIGINT AS (tiny * 2) VIRTUAL, kept VARCHAR(20) AS (CONCAT('#', COALESCE(tiny, 0) % 7)) STORED,
    KEY by_text (text), UNIQUE by_bin (bin, id), KEY by_two (twice, kept), KEY downwards (d DESC));
INSERT INTO kinds (tiny, big, d, f, n, y, day, t, dt, ts, c, text, bin, bits, e, s, j, ip, u)
    SELECT CAST(seq AS SIGNED) % 100 - 50, 18446744073709551615 - seq, seq / 7, -CAST(seq AS
    SIGNED) / 3, seq * 1.000001, 1990 + seq % 50, DATE_ADD('1999-12-31', INTERVAL seq DAY),
    SEC_TO_TIME(seq * 13.125), DATE_ADD('2020-01-01', INTERVAL seq * 1000001 MICROSECOND),
    FROM_UNIXTIME(1000000000 + seq), CONCAT('c', seq), IF(seq % 11, CONCAT('text ', seq * 7919 %
    1000, 'ä'), NULL), UNHEX(MD5(seq)), seq % 2048, 1 + seq % 3, seq % 8, JSON_OBJECT('n', seq),
    CONCAT('::', HEX(seq % 65536)), CONCAT('123e4567-e89b-12d3-a456-', LPAD(HEX(seq), 12, '0'))
    FROM seq_1_to_600;
CREATE TABLE parent (id INT PRIMARY KEY, v INT NOT NULL);
CREATE TABLE child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id) ON
    DELETE CASCADE);
INSERT INTO parent SELECT seq, seq FROM seq_1_to_200;
INSERT INTO child SELECT seq, 1 + seq % 200 FROM seq_1_to_1000;
DELETE FROM parent WHERE id % 10 = 0;
CREATE TABLE longs (id INT PRIMARY KEY, v LONGBLOB, w LONGTEXT, UNIQUE (w));
INSERT INTO longs SELECT seq, REPEAT(UNHEX(MD5(seq)), seq * 400), REPEAT(CONCAT(seq, ' '), 3000)
    FROM seq_1_to_12;
CREATE TABLE without_key (v INT, KEY (v));
INSERT INTO without_key SELECT seq % 50 FROM seq_1_to_500;
CREATE TABLE parts (id INT PRIMARY KEY, v VARCHAR(40)) PARTITION BY RANGE (id) (PARTITION low
    VALUES LESS THAN (300), PARTITION high VALUES LESS THAN MAXVALUE);
INSERT INTO parts SELECT seq, CONCAT('part ', seq) FROM seq_1_to_600;
-- Rows of several versions of the definition.
CREATE TABLE versions (id INT PRIMARY KEY, a INT, b VARCHAR(20));
INSERT INTO versions SELECT seq, seq, CONCAT('b', seq) FROM seq_1_to_300;
ALTER TABLE versions ADD COLUMN c INT NOT NULL DEFAULT 7 FIRST, ALGORITHM=INSTANT;
INSERT INTO versions (id, a, b, c) SELECT seq, seq, 'new', 8 FROM seq_301_to_400;
ALTER TABLE versions DROP COLUMN a, ALGORITHM=INSTANT;
UPDATE versions SET b = 'changed' WHERE id % 9 = 0;
CREATE TABLE words (id INT PRIMARY KEY, text TEXT, FULLTEXT (text));
INSERT INTO words SELECT seq, CONCAT('word', seq % 20, ' and word', seq % 33) FROM seq_1_to_400;
CREATE TABLE shapes (id INT PRIMARY KEY, shape GEOMETRY NOT NULL, SPATIAL KEY (shape));
INSERT INTO shapes SELECT seq, IF(seq % 2, POINT(seq % 97, seq % 89), LINESTRING(POINT(seq % 97,
    0), POINT(0, seq % 89))) FROM seq_1_to_400;
CREATE TABLE system_versioned (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING;
SET @@timestamp = 1700000000;
INSERT INTO system_versioned VALUES (1, 1), (2, 2);
SET @@timestamp = 1700000100;
UPDATE system_versioned SET v = 20 WHERE id = 2;
SET @@timestamp = DEFAULT;
CREATE SEQUENCE numbers START WITH 100;
DO NEXTVAL(numbers);
CREATE TABLE packed_off (id INT PRIMARY KEY, v VARCHAR(200)) COMPRESSION=OFF;
INSERT INTO packed_off SELECT seq, REPEAT(CONCAT(seq, '/'), 20) FROM seq_1_to_500;
CREATE TABLE packed_lz4 (id INT PRIMARY KEY, v VARCHAR(200)) COMPRESSION=LZ4;
INSERT INTO packed_lz4 SELECT seq, REPEAT(CONCAT(seq, '/'), 20) FROM seq_1_to_500;
CREATE TABLE packed_zstd (id INT PRIMARY KEY, v VARCHAR(200)) COMPRESSION=ZSTD;
INSERT INTO packed_zstd SELECT seq, REPEAT(CONCAT(seq, '/'), 20) FROM seq_1_to_500;
CREATE TABLE packed_secret (id INT PRIMARY KEY, v VARCHAR(200)) ENCRYPTED=YES ENCRYPTION_KEY_ID=2;
INSERT INTO packed_secret SELECT seq, REPEAT(CONCAT(seq, '/'), 20) FROM seq_1_to_500;
