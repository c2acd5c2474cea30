-- An index merge reads keys alone, also of an index that holds only the beginning of a column.
CREATE TABLE t (c0 VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci, c1 TIME(5) NOT NULL, c4 TINYBLOB, UNIQUE KEY k7 (c1, c0), KEY k8 (c0(2)));
INSERT INTO t VALUES (_utf8mb4 x'61C2A0', '00:00:00.11111', x'00'), (_utf8mb4 x'612001', '12:34:56.78901', x'00'), (NULL, '23:59:59.99999', x'31'), ('zebra', '01:00:00', 'z'), ('zeal', '01:00:01', 'y');
/*any_order*/ SELECT * FROM t FORCE INDEX (k7, k8) WHERE c0 IS NULL OR c1 = '00:00:00' AND c0 = _utf8mb4 x'C3A4';
/*any_order*/ SELECT * FROM t FORCE INDEX (k7, k8) WHERE c0 BETWEEN 'zeb' AND 'zf' OR c1 = '12:34:56.78901';
/*any_order*/ SELECT c1 FROM t FORCE INDEX (k8) WHERE c0 > 'zeal' AND c0 < 'zz';
UPDATE t SET c4 = 'b' WHERE c0 IS NULL OR c1 = '00:00:00' AND c0 = _utf8mb4 x'C3A4';
DELETE FROM t WHERE c0 IS NULL OR c1 = '01:00:01' AND c0 = 'zeal';
/*any_order*/ SELECT * FROM t;
CHECK TABLE t EXTENDED;
