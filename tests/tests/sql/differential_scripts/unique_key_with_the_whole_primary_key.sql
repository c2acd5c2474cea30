-- A unique index that has NULLs and the whole primary key.
/**/ CREATE TABLE t3 (id BIGINT NOT NULL AUTO_INCREMENT, c0 TINYINT, c2 DATETIME(6) DEFAULT '0000-00-00 00:00:00.000000', c3 TIME(4), PRIMARY KEY (id), UNIQUE KEY k6 (c0, id, c3));
/**/ INSERT IGNORE INTO t3 (id, c0, c2, c3) VALUES (1, 126, '2024-02-29 12:34:56.789012', '-00:00:01.4999'), (4, NULL, '2024-02-29 12:34:56.789013', '-01:00:00');
/*any_order no_warnings*/ SELECT c0, id, COUNT(*), MIN(c2), MAX(c2) FROM t3 FORCE INDEX (k6) WHERE 1 GROUP BY c0, id;
