-- A CHAR sorts with its padding, in NO PAD collations too.
/**/ CREATE TABLE t3 (c0 CHAR(2) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_nopad_ci NOT NULL, UNIQUE KEY k6 (c0));
/**/ INSERT IGNORE INTO t3 (c0) VALUES ('10'), (_utf8mb4 x'09'), ('');
/*no_warnings*/ SELECT HEX(WEIGHT_STRING(RTRIM(c0))) FROM t3 FORCE INDEX (k6) ORDER BY c0;
