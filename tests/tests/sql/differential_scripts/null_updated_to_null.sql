-- A NULL that is updated to NULL has not changed.
/**/ CREATE TABLE t1 (c0 VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, c2 YEAR NOT NULL, c3 JSON NOT NULL, PRIMARY KEY (c2, c3(2)));
/**/ INSERT IGNORE INTO t1 (c0, c2, c3) VALUES (_utf8mb4 x'E697A5E69CAC', 1901, '"text"'), (NULL, 2024, '[1,2,3]');
/**/ INSERT INTO t1 (c0, c3, c2) VALUES (NULL, '1', 2000), (_utf8mb4 x'64C5BE', '[1,2,3]', 2024) ON DUPLICATE KEY UPDATE c0 = UPPER(c0);
