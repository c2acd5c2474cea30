//! `FLUSH TABLES … FOR EXPORT`, `DISCARD TABLESPACE` and `IMPORT TABLESPACE`: one table moves from
//! a server to another one, and nothing of another definition, damaged or half done becomes a
//! table.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::keys::with_keys;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, rows, run};

const GET_ERRMSG: u16 = 1296;
const QUERY_INTERRUPTED: u16 = 1317;
const ROW_IS_REFERENCED: u16 = 1451;
const SCHEMA_MISMATCH: u16 = 1808;
const TABLESPACE_MISSING: u16 = 1812;
const TABLESPACE_EXISTS: u16 = 1813;
const TABLESPACE_DISCARDED: u16 = 1814;
const ILLEGAL_HA: u16 = 1031;
const TABLE_DEF_CHANGED: u16 = 1412;
const DISCARD_TEMPORARY: u16 = 3007;

/// A server with an empty database `shop`.
fn start(options: Options) -> (Server, Conn) {
    let server = Server::start(options);
    let mut conn = server.connect();
    run(&mut conn, &["CREATE DATABASE shop", "USE shop"]);
    (server, conn)
}

fn file_of(server: &Server, table: &str) -> PathBuf {
    server.data_dir().join("shop").join(format!("{table}.tpx"))
}

/// Exports a table, copies its file to another server under another name, and unlocks.
fn export(from: (&Server, &mut Conn), table: &str, to: &Server, name: &str) {
    let (server, conn) = from;
    run(conn, &[&format!("FLUSH TABLES {table} FOR EXPORT")]);
    fs::copy(file_of(server, table), file_of(to, name)).expect("the export can be copied");
    run(conn, &["UNLOCK TABLES"]);
    assert!(!file_of(server, table).exists(), "UNLOCK TABLES removes the file");
}

/// Runs a statement that fails: its code, and the texts of its warnings.
fn failed(conn: &mut Conn, statement: &str) -> (u16, String) {
    let code = code_of(conn, statement);
    let all: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
    (code, all.into_iter().map(|(_, _, text)| text).collect::<Vec<_>>().join("; "))
}

fn refused(conn: &mut Conn, statement: &str, code: u16, text: &str) {
    let (found, texts) = failed(conn, statement);
    assert_eq!(found, code, "{statement}: {texts}");
    assert!(texts.contains(text), "{statement}: {texts}");
}

const ALL_TYPES: &str = "CREATE TABLE every (
    id BIGINT PRIMARY KEY AUTO_INCREMENT, ti TINYINT, su SMALLINT UNSIGNED, me MEDIUMINT, i INT,
    f FLOAT, d DOUBLE, de DECIMAL(20,6), bi BIT(11), y YEAR, da DATE, t TIME(3), dt DATETIME(6),
    ts TIMESTAMP(2) NULL, c CHAR(10), vc VARCHAR(300), bn BINARY(8), vb VARBINARY(50), tt TINYTEXT,
    tx TEXT, mt MEDIUMTEXT, lb LONGBLOB, e ENUM('a','b','ü'), s SET('x','y','z'), j JSON,
    ip4 INET4, ip6 INET6, u UUID, la VARCHAR(40) COLLATE latin1_german2_ci,
    co TEXT COMPRESSED, p POINT NOT NULL, g GEOMETRY,
    st INT AS (i * 2) STORED, vi VARCHAR(20) AS (CONCAT('v', i)) VIRTUAL,
    UNIQUE KEY (u), KEY (vc(20), i DESC), KEY (la), KEY (vi), KEY (de), KEY (tx(30)),
    UNIQUE KEY (mt), FULLTEXT KEY words (tx, vc), SPATIAL KEY (p)
) DEFAULT CHARSET utf8mb4";

const FILL_ALL_TYPES: &str =
    "INSERT INTO every (ti, su, me, i, f, d, de, bi, y, da, t, dt, ts, c, vc,
    bn, vb, tt, tx, mt, lb, e, s, j, ip4, ip6, u, la, co, p, g)
    SELECT CAST(seq % 100 AS SIGNED) - 50, seq, seq * 7, IF(seq % 11 = 0, NULL, seq % 500), seq / 7,
    seq / 13,
    seq * 1.000001, seq % 2048, 2000 + seq % 50, '2020-01-01' + INTERVAL seq DAY,
    SEC_TO_TIME(seq), '2020-01-01' + INTERVAL seq MINUTE, '2021-01-01' + INTERVAL seq HOUR,
    CONCAT('c', seq % 90), REPEAT(CONCAT('wört', seq % 77, ' '), seq % 9), seq, seq * 3,
    CONCAT('tiny', seq), CONCAT('text of word', seq % 50, ' and more'),
    CONCAT(seq, REPEAT('m', seq % 3000)),
    REPEAT(CHAR(seq % 256), IF(seq % 100 = 0, 200000, seq % 40)),
    1 + seq % 3, seq % 8, JSON_OBJECT('n', seq), INET_NTOA(seq), CONCAT('::', HEX(seq % 60000)),
    CONCAT('00000000-0000-4000-8000-', LPAD(HEX(seq), 12, '0')), CONCAT('ä', seq % 40),
    REPEAT('compressed ', seq % 60), POINT(seq % 100, seq / 3),
    LINESTRING(POINT(0, 0), POINT(seq, seq)) FROM seq_1_to_3000";

fn checksum(conn: &mut Conn, table: &str) -> Vec<String> {
    rows(conn, &format!("CHECKSUM TABLE {table} EXTENDED"))
        .iter()
        .map(|row| row.replace(table, "t"))
        .collect()
}

#[test]
fn a_table_of_all_types_and_indexes_moves_to_another_server() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (from, mut here) = start(Options::new("export_from"));
    // Pages of another size.
    let (to, mut there) = start(Options::new("export_to").arg("--tidepool-page-size=8192"));
    run(&mut here, &[ALL_TYPES, FILL_ALL_TYPES, "DELETE FROM every WHERE id % 7 = 0"]);
    run(&mut here, &["UPDATE every SET vc = CONCAT(vc, ' changed') WHERE id % 5 = 0"]);
    run(&mut there, &[ALL_TYPES, "INSERT INTO every (p) VALUES (POINT(1, 1))"]);

    refused(&mut there, "ALTER TABLE every IMPORT TABLESPACE", TABLESPACE_EXISTS, "DISCARD");
    run(&mut there, &["ALTER TABLE every DISCARD TABLESPACE"]);
    refused(
        &mut there,
        "ALTER TABLE every IMPORT TABLESPACE",
        TABLESPACE_MISSING,
        "shop/every.tpx",
    );
    export((&from, &mut here), "every", &to, "every");
    run(&mut there, &["ALTER TABLE every IMPORT TABLESPACE"]);
    assert!(!file_of(&to, "every").exists(), "IMPORT removes the file");

    check(&mut there, "every");
    assert_eq!(checksum(&mut there, "every"), checksum(&mut here, "every"));
    for query in [
        "SELECT id FROM every ORDER BY vc, i DESC, id",
        "SELECT id, vi FROM every WHERE vi > 'v2' ORDER BY vi, id",
        "SELECT id FROM every FORCE INDEX (la) WHERE la = 'ae17' ORDER BY la, id",
        "SELECT id, MATCH (tx, vc) AGAINST ('word17') FROM every \
         WHERE MATCH (tx, vc) AGAINST ('word17') ORDER BY id",
        "SELECT id FROM every WHERE MBRContains(ST_GeomFromText(\
         'POLYGON((3 3, 3 40, 50 40, 50 3, 3 3))'), p) ORDER BY id",
        "SELECT COUNT(*), SUM(LENGTH(lb)), SUM(LENGTH(co)) FROM every",
    ] {
        let expected = rows(&mut here, query);
        assert!(!expected.is_empty(), "{query}");
        assert_eq!(rows(&mut there, query), expected, "{query}");
    }
    // The next number is the one that it would have been, and all indexes take writes.
    for conn in [&mut here, &mut there] {
        run(conn, &["INSERT INTO every (tx, p) VALUES ('a new word', POINT(2, 2))"]);
    }
    let last = "SELECT MAX(id) FROM every";
    assert_eq!(number(&mut there, last), number(&mut here, last));
    run(&mut there, &["UPDATE every SET p = POINT(9, 9), vc = 'other' WHERE id < 100"]);
    check(&mut there, "every");
    drop((from, to));
}

#[test]
fn rows_of_older_versions_are_read_where_the_table_never_had_those() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (from, mut here) = start(Options::new("export_instant_from"));
    let (to, mut there) = start(Options::new("export_instant_to"));
    run(
        &mut here,
        &[
            "CREATE TABLE t (gone VARCHAR(20), a INT, b VARCHAR(20), KEY (b))",
            "INSERT INTO t SELECT 'gone', seq, CONCAT('b', seq) FROM seq_1_to_1000",
            "ALTER TABLE t ADD c INT DEFAULT 7 FIRST, ALGORITHM=INSTANT",
            "INSERT INTO t SELECT 8, 'gone', seq, 'newer' FROM seq_1001_to_1500",
            "ALTER TABLE t DROP gone, ALGORITHM=INSTANT",
            "ALTER TABLE t ADD KEY later (a)",
            "INSERT INTO t VALUES (9, 5000, 'newest')",
        ],
    );
    // Its keys are in another order than they were made in there.
    run(
        &mut there,
        &[
            "CREATE TABLE t (c INT DEFAULT 7, a INT, b VARCHAR(20), KEY later (a), KEY (b))",
            "INSERT INTO t VALUES (1, 1, 'away')",
            // The same table is locked, discarded, imported and used.
            "LOCK TABLES t WRITE",
            "ALTER TABLE t DISCARD TABLESPACE",
        ],
    );
    export((&from, &mut here), "t", &to, "t");
    run(&mut there, &["ALTER TABLE t IMPORT TABLESPACE", "INSERT INTO t VALUES (9, 5001, 'mine')"]);
    assert_eq!(number(&mut there, "SELECT COUNT(*) FROM t"), 1502);
    run(&mut there, &["UNLOCK TABLES", "DELETE FROM t WHERE b = 'mine'"]);
    check(&mut there, "t");
    let all = "SELECT * FROM t ORDER BY a, b";
    assert_eq!(rows(&mut there, all), rows(&mut here, all));
    assert_eq!(
        rows(&mut there, "SELECT c, a FROM t WHERE b = 'b17'"),
        ["[Bytes(\"7\"), Bytes(\"17\")]"]
    );
    // It is a table like others: exported in turn, rebuilt, truncated.
    let (third, mut last) = start(Options::new("export_instant_last"));
    run(
        &mut last,
        &["CREATE TABLE t (c INT DEFAULT 7, a INT, b VARCHAR(20), KEY (b), KEY later (a))"],
    );
    run(&mut last, &["ALTER TABLE t DISCARD TABLESPACE"]);
    export((&to, &mut there), "t", &third, "t");
    run(&mut last, &["ALTER TABLE t IMPORT TABLESPACE", "ALTER TABLE t FORCE"]);
    check(&mut last, "t");
    assert_eq!(rows(&mut last, all), rows(&mut here, all));
    let mut to = to;
    to.restart();
    let mut there = to.connect_to("shop");
    check(&mut there, "t");
    assert_eq!(rows(&mut there, all), rows(&mut here, all));
}

#[test]
fn another_definition_is_refused_and_the_difference_named() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (from, mut here) = start(Options::new("export_mismatch_from"));
    let (to, mut there) = start(Options::new("export_mismatch_to"));
    let definition = "id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, \
                      n INT AS (id + 1) VIRTUAL, low INT AS (id * 2) VIRTUAL, \
                      high INT AS (low + 1) VIRTUAL, KEY k (v), KEY (n), KEY (high)";
    run(&mut here, &[&format!("CREATE TABLE t ({definition})")]);
    run(&mut here, &["INSERT INTO t (id, v) SELECT seq, seq FROM seq_1_to_100"]);
    for (other, difference) in [
        (definition.replace("id INT", "id BIGINT"), "column 1 is `id` bigint(20)"),
        (definition.replace("(20)", "(21)"), "column 2 is `v` varchar(21)"),
        (definition.replace("general_ci", "unicode_ci"), "COLLATE utf8mb4_unicode_ci"),
        (definition.replace("general_ci", "general_ci NOT NULL"), "NOT NULL, and in the export"),
        (definition.replace("id + 1", "id + 2"), "+ 2"),
        // No index has it, but one has what is computed from it.
        (definition.replace("id * 2", "id * 3"), "* 3"),
        (definition.replace(" v VAR", " w VAR").replace("(v)", "(w)"), "column 2 is `w`"),
        (definition.replace("KEY k (v)", "KEY k (v(5))"), "key `k` is"),
        (definition.replace("KEY k (v)", "UNIQUE KEY k (v)"), "key `k` is UNIQUE"),
        (definition.replace("KEY k (v), ", ""), "key `k` of the export is missing here"),
        (format!("{definition}, KEY more (id, v)"), "key `more` is not in the export"),
        (format!("{definition}, more INT"), "column 6 is not in the export: `more` int(11)"),
        (definition.replace("PRIMARY KEY", "NOT NULL"), "key `PRIMARY` of the export is missing"),
    ] {
        run(&mut there, &[&format!("CREATE OR REPLACE TABLE t ({other})")]);
        run(&mut there, &["ALTER TABLE t DISCARD TABLESPACE"]);
        export((&from, &mut here), "t", &to, "t");
        refused(&mut there, "ALTER TABLE t IMPORT TABLESPACE", SCHEMA_MISMATCH, difference);
        assert!(file_of(&to, "t").exists());
    }
    // Options of the file, comments and defaults are each server's own.
    let own = definition.replace("VIRTUAL", "VIRTUAL COMMENT 'x'");
    run(
        &mut there,
        &[&format!("CREATE OR REPLACE TABLE t ({own}) COMPRESSION=ZSTD COMMENT='mine'")],
    );
    run(&mut there, &["ALTER TABLE t DISCARD TABLESPACE", "ALTER TABLE t IMPORT TABLESPACE"]);
    check(&mut there, "t");
    assert_eq!(number(&mut there, "SELECT COUNT(*) FROM t"), 100);
    drop((from, to));
}

/// The other server would have rows that this one has lost.
#[test]
fn rows_of_an_export_survive_a_crash_where_they_came_from() {
    let options = Options::new("export_then_crash").engine(Engine::Tidepool);
    let (mut server, mut conn) = start(options.arg("--tidepool-flush-log-at-trx-commit=0"));
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    for id in 2..6 {
        let insert = format!("INSERT INTO shop.t VALUES ({id})");
        run(&mut conn, &[&insert, "FLUSH TABLES shop.t FOR EXPORT"]);
        server.kill9();
        server.restart();
        conn = server.connect();
        assert_eq!(number(&mut conn, "SELECT MAX(id) FROM shop.t"), id);
    }
}

/// The blocks of an export with another key in the place of the first entry's; the checksums fit.
fn with_first_key(export: &[u8], key: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(export[at..at + 4].try_into().expect("4 bytes"));
    let header = 40 + u32_at(12) as usize;
    let stored = u32_at(header + 16) as usize;
    let (head, entries) = (&export[header..header + 24], &export[header + 24..][..stored]);
    assert_eq!(head[9], 0, "a short block is not compressed");
    let old_key = usize::from(u16::from_le_bytes([entries[0], entries[1]]));
    let mut changed = (key.len() as u16).to_le_bytes().to_vec();
    changed.extend(&entries[2..10]);
    changed.extend(key);
    changed.extend(&entries[10 + old_key..]);
    let mut block = head[..12].to_vec();
    block.extend((changed.len() as u32).to_le_bytes());
    block.extend((changed.len() as u32).to_le_bytes());
    let checksum = [&export[16..32], &block, &changed].concat();
    block.extend(crc32c::crc32c(&checksum).to_le_bytes());
    [&export[..header], &block, &changed, &export[header + 24 + stored..]].concat()
}

/// Such a file can be written by a user who has FILE and ALTER. Nothing is written past the room
/// that keys of the table have.
#[test]
fn keys_that_no_row_of_the_table_has_are_damage() {
    let (server, mut conn) = start(Options::new("export_crafted").engine(Engine::Tidepool));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
            "INSERT INTO t VALUES (1, 10)",
            "CREATE TABLE u (a VARCHAR(9), b VARCHAR(9), PRIMARY KEY (a, b), KEY (b, a))",
            "INSERT INTO u VALUES ('1', '2')",
        ],
    );
    for table in ["t", "u"] {
        run(&mut conn, &[&format!("FLUSH TABLES {table} FOR EXPORT")]);
        let export = fs::read(file_of(&server, table)).expect("an export");
        run(&mut conn, &["UNLOCK TABLES"]);
        for key in [vec![b'x'; 3000], Vec::new()] {
            run(&mut conn, &[&format!("ALTER TABLE {table} DISCARD TABLESPACE")]);
            let file = file_of(&server, table);
            fs::write(&file, with_first_key(&export, &key)).expect("the file can be written");
            run(&mut conn, &[&format!("ALTER TABLE {table} IMPORT TABLESPACE")]);
            // An error behind the columns' names: only who reads the rows meets it.
            let query = format!("SELECT * FROM {table} FORCE INDEX (PRIMARY)");
            let read = conn.query::<mysql::Row, _>(query);
            // The shorter one may have all that this row needs of it.
            assert!(
                read.is_err() || key.is_empty(),
                "{table}: a key of {} bytes was read",
                key.len()
            );
            let found: Vec<(String, String, String, String)> =
                conn.query(format!("CHECK TABLE {table}")).expect("an answer");
            assert!(found.last().is_some_and(|line| line.3 != "OK"), "{found:?}");
        }
    }
}

#[test]
fn a_damaged_or_foreign_file_is_refused_and_the_table_stays_discarded() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (server, mut conn) = start(Options::new("export_damage"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200), KEY (v))",
            "INSERT INTO t SELECT seq, MD5(seq) FROM seq_1_to_20000",
            "CREATE TABLE u LIKE t",
            "ALTER TABLE u DISCARD TABLESPACE",
            "FLUSH TABLES t FOR EXPORT",
        ],
    );
    let whole = fs::read(file_of(&server, "t")).expect("the export can be read");
    run(&mut conn, &["UNLOCK TABLES"]);
    let file = file_of(&server, "u");
    let import = "ALTER TABLE u IMPORT TABLESPACE";
    for place in [whole.len() / 3, whole.len() - 30] {
        let mut damaged = whole.clone();
        damaged[place] ^= 4;
        fs::write(&file, &damaged).unwrap();
        refused(&mut conn, import, GET_ERRMSG, "shop/u.tpx: block");
        refused(&mut conn, "SELECT * FROM u", TABLESPACE_DISCARDED, "discarded");
    }
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused(&mut conn, import, GET_ERRMSG, "is not complete: copy the file again");
    fs::write(&file, b"").unwrap();
    refused(&mut conn, import, GET_ERRMSG, "no table that Tidepool has exported");
    fs::copy(server.data_dir().join("ibdata1"), &file).unwrap();
    refused(&mut conn, import, GET_ERRMSG, "no table that Tidepool has exported");
    // What is no file of the directory is not read.
    fs::remove_file(&file).unwrap();
    let outside = server.dir().join("outside.tpx");
    fs::write(&outside, &whole).unwrap();
    std::os::unix::fs::symlink(&outside, &file).unwrap();
    refused(&mut conn, import, GET_ERRMSG, "can't be opened");
    assert!(outside.exists());
    fs::remove_file(&file).unwrap();
    fs::write(&file, &whole).unwrap();
    run(&mut conn, &[import]);
    check(&mut conn, "u");
    assert_eq!(checksum(&mut conn, "u"), checksum(&mut conn, "t"));
    // An export does not follow a link, either.
    fs::write(&outside, "precious").unwrap();
    std::os::unix::fs::symlink(&outside, &file).unwrap();
    run(&mut conn, &["FLUSH TABLES u FOR EXPORT", "UNLOCK TABLES"]);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "precious");
    // What a crash leaves does not keep the database.
    fs::write(&file, &whole).unwrap();
    run(&mut conn, &["DROP DATABASE shop"]);
    assert!(!file.exists());
}

#[test]
fn what_can_be_done_with_a_discarded_table() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (mut server, mut conn) = start(Options::new("export_discarded"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, KEY (v))",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_1000",
        ],
    );
    let mut reader = server.connect_to("shop");
    run(&mut reader, &["CREATE TABLE other (id INT PRIMARY KEY)", "BEGIN"]);
    run(&mut reader, &["SELECT COUNT(*) FROM other"]);
    run(&mut conn, &["FLUSH TABLES t FOR EXPORT"]);
    let whole = fs::read(file_of(&server, "t")).unwrap();
    run(&mut conn, &["UNLOCK TABLES", "ALTER TABLE t DISCARD TABLESPACE"]);
    // A snapshot from before has lost the rows, as with TRUNCATE, and says so.
    let code = code_of(&mut reader, "SELECT COUNT(*) FROM t");
    assert!([TABLE_DEF_CHANGED, TABLESPACE_DISCARDED].contains(&code), "{code}");
    run(&mut reader, &["ROLLBACK"]);
    for _ in 0..2 {
        for statement in [
            "SELECT * FROM t",
            "SELECT COUNT(*) FROM t WHERE v = 3",
            "INSERT INTO t VALUES (1, 1)",
            "UPDATE t SET v = 1",
            "DELETE FROM t",
            "TRUNCATE TABLE t",
            "ALTER TABLE t ADD KEY (v, id)",
            "ALTER TABLE t ADD w INT",
            "ALTER TABLE t FORCE",
            "ALTER TABLE t ENGINE=InnoDB",
            "FLUSH TABLES t FOR EXPORT",
        ] {
            refused(&mut conn, statement, TABLESPACE_DISCARDED, "discarded");
        }
        let said = rows(&mut conn, "CHECK TABLE t EXTENDED").join("\n");
        assert!(said.contains("has been discarded"), "{said}");
        assert!(rows(&mut conn, "SHOW CREATE TABLE t")[0].contains("`v` int(11)"));
        run(&mut conn, &["ALTER TABLE t DISCARD TABLESPACE"]);
        assert!(rows(&mut conn, "SHOW WARNINGS")[0].contains("1814"));
        // It stays so when the server is killed.
        server.kill9();
        server.restart();
        conn = server.connect_to("shop");
    }
    run(
        &mut conn,
        &["RENAME TABLE t TO u", "CREATE TABLE t LIKE u", "INSERT INTO t VALUES (1, 1)"],
    );
    fs::write(file_of(&server, "u"), &whole).unwrap();
    run(&mut conn, &["ALTER TABLE u IMPORT TABLESPACE"]);
    check(&mut conn, "u");
    assert_eq!(number(&mut conn, "SELECT SUM(v) FROM u"), 500_500);
    server.kill9();
    server.restart();
    conn = server.connect_to("shop");
    check(&mut conn, "u");
    assert_eq!(number(&mut conn, "SELECT SUM(v) FROM u"), 500_500);
    run(&mut conn, &["ALTER TABLE t DISCARD TABLESPACE", "DROP TABLE t"]);

    // What can't be moved says so.
    run(&mut conn, &["CREATE TEMPORARY TABLE tt (id INT PRIMARY KEY)"]);
    refused(&mut conn, "ALTER TABLE tt DISCARD TABLESPACE", DISCARD_TEMPORARY, "temporary");
    run(
        &mut conn,
        &["CREATE TABLE parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2"],
    );
    assert_eq!(code_of(&mut conn, "ALTER TABLE parts DISCARD TABLESPACE"), ILLEGAL_HA);
}

#[test]
fn a_partition_moves_by_exchange() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (server, mut conn) = start(Options::new("export_partition"));
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) \
             (PARTITION low VALUES LESS THAN (1000), PARTITION high VALUES LESS THAN MAXVALUE)",
            "INSERT INTO p SELECT seq, seq FROM seq_1_to_3000",
            "CREATE TABLE q (id INT PRIMARY KEY, v INT)",
            "ALTER TABLE q DISCARD TABLESPACE",
            "FLUSH TABLES p FOR EXPORT",
        ],
    );
    fs::copy(file_of(&server, "p#P#high"), file_of(&server, "q")).unwrap();
    assert!(file_of(&server, "p#P#low").exists());
    run(&mut conn, &["UNLOCK TABLES", "ALTER TABLE q IMPORT TABLESPACE"]);
    assert!(!file_of(&server, "p#P#low").exists() && !file_of(&server, "p#P#high").exists());
    check(&mut conn, "q");
    run(
        &mut conn,
        &["DELETE FROM p WHERE id >= 1000", "ALTER TABLE p EXCHANGE PARTITION high WITH TABLE q"],
    );
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM p"), 3000 * 3001 / 2);
    check(&mut conn, "p");
}

#[test]
fn foreign_keys_stay_those_of_the_importing_table() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (server, mut conn) = start(Options::new("export_foreign"));
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, KEY (p), \
             FOREIGN KEY (p) REFERENCES parent (id))",
            "INSERT INTO parent SELECT seq FROM seq_1_to_10",
            "INSERT INTO child SELECT seq, 1 + seq % 10 FROM seq_1_to_500",
            "CREATE TABLE copy (id INT PRIMARY KEY, p INT, KEY (p))",
            "ALTER TABLE copy DISCARD TABLESPACE",
            "FLUSH TABLES child, parent FOR EXPORT",
        ],
    );
    fs::copy(file_of(&server, "child"), file_of(&server, "copy")).unwrap();
    let parent = fs::read(file_of(&server, "parent")).unwrap();
    run(&mut conn, &["UNLOCK TABLES", "ALTER TABLE copy IMPORT TABLESPACE"]);
    run(&mut conn, &["INSERT INTO copy VALUES (1000, 77)"]);
    assert!(!rows(&mut conn, "SHOW CREATE TABLE copy")[0].contains("FOREIGN KEY"));

    let discard = "ALTER TABLE parent DISCARD TABLESPACE";
    refused(&mut conn, discard, ROW_IS_REFERENCED, "child");
    run(&mut conn, &["SET foreign_key_checks = 0", discard, "SET foreign_key_checks = 1"]);
    refused(&mut conn, "INSERT INTO child VALUES (2000, 3)", TABLESPACE_DISCARDED, "shop/parent");
    fs::write(file_of(&server, "parent"), parent).unwrap();
    run(&mut conn, &["ALTER TABLE parent IMPORT TABLESPACE", "INSERT INTO child VALUES (2000, 3)"]);
    assert_eq!(code_of(&mut conn, "INSERT INTO child VALUES (2001, 11)"), 1452);
    assert_eq!(code_of(&mut conn, "DELETE FROM parent WHERE id = 3"), ROW_IS_REFERENCED);
    check(&mut conn, "child");
}

#[test]
fn an_encrypted_table_needs_its_key_at_the_other_server() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (options, _keys) = with_keys("export_encrypted", &[1, 4]);
    let (from, mut here) = start(options);
    let (options, _other_keys) = with_keys("export_encrypted_to", &[1, 4]);
    let (to, mut there) = start(options);
    let (without, mut nowhere) = start(Options::new("export_encrypted_without"));
    let secret = "what only the owner may read";
    let create = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))";
    run(&mut here, &[&format!("{create} ENCRYPTED=YES ENCRYPTION_KEY_ID=4 COMPRESSION=OFF")]);
    run(&mut here, &[&format!("INSERT INTO t SELECT seq, '{secret}' FROM seq_1_to_5000")]);
    for conn in [&mut there, &mut nowhere] {
        run(conn, &[create, "ALTER TABLE t DISCARD TABLESPACE"]);
    }
    run(&mut here, &["FLUSH TABLES t FOR EXPORT"]);
    let bytes = fs::read(file_of(&from, "t")).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    run(&mut here, &["UNLOCK TABLES"]);
    for server in [&to, &without] {
        fs::write(file_of(server, "t"), &bytes).unwrap();
    }
    let import = "ALTER TABLE t IMPORT TABLESPACE";
    refused(
        &mut nowhere,
        import,
        GET_ERRMSG,
        "shop/t.tpx is encrypted: version 1 of encryption key 4",
    );
    run(&mut there, &[import]);
    check(&mut there, "t");
    assert_eq!(checksum(&mut there, "t"), checksum(&mut here, "t"));
    drop((from, to, without));
}

#[test]
fn other_tables_are_written_while_one_is_exported_and_a_kill_ends_an_import() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (server, mut conn) = start(Options::new("export_beside"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200), KEY (v))",
            "INSERT INTO t SELECT seq, MD5(seq) FROM seq_1_to_200000",
            "CREATE TABLE other (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE u LIKE t",
            "ALTER TABLE u DISCARD TABLESPACE",
            "FLUSH TABLES t FOR EXPORT",
        ],
    );
    let mut writer = server.connect_to("shop");
    run(
        &mut writer,
        &[
            "INSERT INTO other SELECT seq, seq FROM seq_1_to_5000",
            "UPDATE other SET v = v + 1",
            "SET lock_wait_timeout = 1",
        ],
    );
    assert_eq!(number(&mut writer, "SELECT COUNT(*) FROM t"), 200_000);
    assert_eq!(code_of(&mut writer, "INSERT INTO t VALUES (0, '')"), 1205);
    // Who holds the lock reads the table, and can't export another one.
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 200_000);
    fs::copy(file_of(&server, "t"), file_of(&server, "u")).unwrap();
    let copy = fs::read(file_of(&server, "u")).unwrap();
    // The end of the session is an UNLOCK TABLES.
    drop(conn);
    wait_until(Duration::from_secs(10), "the file is removed", || !file_of(&server, "t").exists());
    run(&mut writer, &["INSERT INTO t VALUES (0, '')"]);

    let mut conn = server.connect_to("shop");
    let id = number(&mut conn, "SELECT CONNECTION_ID()");
    let import = std::thread::spawn(move || {
        let code = code_of(&mut conn, "ALTER TABLE u IMPORT TABLESPACE");
        (conn, code)
    });
    let importing = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {id} \
         AND STATE = 'Importing a table of Tidepool' AND PROGRESS > 0"
    );
    wait_until(Duration::from_secs(60), "the import shows its progress", || {
        number(&mut writer, &importing) == 1
    });
    run(&mut writer, &[&format!("KILL QUERY {id}")]);
    let (mut conn, code) = import.join().unwrap();
    assert_eq!(code, QUERY_INTERRUPTED);
    refused(&mut conn, "SELECT * FROM u", TABLESPACE_DISCARDED, "discarded");
    assert_eq!(fs::read(file_of(&server, "u")).unwrap(), copy);
    run(&mut conn, &["ALTER TABLE u IMPORT TABLESPACE"]);
    check(&mut conn, "u");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM u"), 200_000);
}

#[test]
fn a_prepared_transaction_without_a_session_is_in_the_way() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (mut server, mut conn) = start(Options::new("export_prepared"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "XA START 'x'",
            "INSERT INTO t VALUES (1)",
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
    );
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("shop");
    refused(&mut conn, "FLUSH TABLES t FOR EXPORT", GET_ERRMSG, "in use by an unfinished");
    assert!(!file_of(&server, "t").exists());
    assert_ne!(code_of(&mut conn, "ALTER TABLE t DISCARD TABLESPACE"), 0);
    run(&mut conn, &["XA COMMIT 'x'", "FLUSH TABLES t FOR EXPORT", "UNLOCK TABLES"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 1);
}
