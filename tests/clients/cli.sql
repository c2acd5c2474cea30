-- Read by the mariadb command-line client; its output is compared with cli.expected.
CREATE DATABASE cli CHARACTER SET utf8mb4;
USE cli;
CREATE TABLE tide (
  id INT AUTO_INCREMENT PRIMARY KEY, place VARCHAR(40) NOT NULL, height DECIMAL(5,2), seen DATETIME, note TEXT,
  UNIQUE KEY (place, seen), KEY (height)
);
INSERT INTO tide (place, height, seen, note) VALUES
  ('Büsum', 3.40, '2024-05-01 06:10:00', 'Ebbe 🌊'), ('Saint-Malo', 12.05, '2024-05-01 08:00:00', NULL),
  ('Fundy', 15.99, '2024-05-01 09:30:00', 'höchste 🦀'), ('Büsum', -0.35, '2024-05-01 12:20:00', '');
SELECT * FROM tide ORDER BY height;
SELECT place, COUNT(*), SUM(height), MAX(seen) FROM tide GROUP BY place ORDER BY place;
START TRANSACTION;
UPDATE tide SET height = height + 1;
DELETE FROM tide WHERE place = 'Fundy';
SELECT COUNT(*), SUM(height) FROM tide;
ROLLBACK;
SELECT COUNT(*), SUM(height) FROM tide;
INSERT IGNORE INTO tide (place, seen) VALUES ('Büsum', '2024-05-01 06:10:00'), ('Dover', '2024-05-01 06:10:00');
INSERT INTO tide (place, seen, height) VALUES ('Dover', '2024-05-01 06:10:00', 6.5)
  ON DUPLICATE KEY UPDATE height = VALUES(height);
REPLACE INTO tide (place, seen, height) VALUES ('Fundy', '2024-05-01 09:30:00', 16.3);
SELECT place, height, note FROM tide ORDER BY place DESC, seen DESC;
ALTER TABLE tide ADD COLUMN depth INT NOT NULL DEFAULT 3, ADD KEY (depth, place);
SELECT COUNT(*) FROM tide WHERE depth = 3 AND place LIKE 'B%';
CREATE TABLE copy LIKE tide;
INSERT INTO copy SELECT * FROM tide;
DELETE tide FROM tide JOIN copy USING (id) WHERE copy.height > 10;
SELECT (SELECT COUNT(*) FROM tide), (SELECT COUNT(*) FROM copy);
TRUNCATE TABLE copy;
SELECT COUNT(*) FROM copy;
RENAME TABLE copy TO renamed;
CHECK TABLE tide, renamed;
DROP TABLE tide, renamed;
SHOW TABLES;
DROP DATABASE cli;
