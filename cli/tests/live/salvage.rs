//! `check` and `salvage` on the data directory of a real server: rows of every type, damaged pages,
//! and the rows that come back.

#[path = "../../../engine/tests/support/packed.rs"]
mod packed;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mysql::Conn;
use mysql::prelude::Queryable;
use serde_json::Value;
use tidepool::internals::node::Node;
use tidepool_tests::keys::with_keys;
use tidepool_tests::server::{Options, Server};

const ROWS: u32 = 10_000;
const PAGE: usize = 16384;
/// Page types: a leaf, a part of a long value.
const LEAF: u16 = 3;
const OVERFLOW: u16 = 5;

/// The columns, and what a row with the number `seq` has in them. One of eight is NULL, at another
/// place in each row.
const COLUMNS: &[(&str, &str)] = &[
    ("i1 TINYINT", "seq % 256 - 128"),
    ("u1 TINYINT UNSIGNED", "seq % 256"),
    ("i2 SMALLINT", "seq * 7 % 65536 - 32768"),
    ("i3 MEDIUMINT", "seq * 1677 % 16777216 - 8388608"),
    ("u3 MEDIUMINT UNSIGNED ZEROFILL", "seq * 1677"),
    ("i4 INT", "seq * 429496 - 2147483648"),
    ("u4 INT UNSIGNED", "seq * 429496"),
    ("i8 BIGINT", "seq * 922337203685477 - 4611686018427387904"),
    ("u8 BIGINT UNSIGNED", "18446744073709551615 ^ seq"),
    ("f4 FLOAT", "(seq - 5000) / 7"),
    ("f8 DOUBLE", "(seq - 5000) / 7e-200"),
    ("fd FLOAT(9,3)", "(seq - 5000) / 7"),
    ("d1 DECIMAL(65,30)", "(seq - 5000) * 12345678901234567890123.123456789012345678901234567891"),
    ("d2 DECIMAL(10,0)", "(5000 - seq) * 99999"),
    ("d3 DECIMAL(5,5)", "(seq - 5000) / 100000"),
    ("d4 DECIMAL(20,10) UNSIGNED", "seq / 3"),
    ("b1 BIT(1)", "seq % 2"),
    ("b2 BIT(33)", "seq * 858993"),
    ("y YEAR", "1901 + seq % 255"),
    ("da DATE", "DATE'0000-01-01' + INTERVAL seq * 365 DAY"),
    ("t0 TIME", "SEC_TO_TIME((seq - 5000) * 603)"),
    ("t1 TIME(1)", "SEC_TO_TIME((seq - 5000) * 603.7)"),
    ("t3 TIME(3)", "SEC_TO_TIME((seq - 5000) * 603.7531)"),
    ("t6 TIME(6)", "SEC_TO_TIME((seq - 5000) * 603.753123)"),
    ("dt0 DATETIME", "TIMESTAMP'1000-01-01 00:00:00' + INTERVAL seq * 28398 MINUTE"),
    ("dt2 DATETIME(2)", "TIMESTAMP'1000-01-01 00:00:00' + INTERVAL seq * 2839878.1234 SECOND"),
    ("dt6 DATETIME(6)", "TIMESTAMP'1000-01-01 00:00:00' + INTERVAL seq * 2839878.123456 SECOND"),
    ("ts0 TIMESTAMP NULL", "FROM_UNIXTIME(seq * 214748)"),
    ("ts5 TIMESTAMP(5) NULL", "FROM_UNIXTIME(seq * 214748.12345)"),
    ("e ENUM('a', 'b''c', 'ö', '4') NULL", "1 + seq % 4"),
    ("s SET('x', 'y', 'z''z', 'ü')", "seq % 16"),
    ("c1 CHAR(20)", "CONCAT(seq, ' ä€😀 ')"),
    ("c2 CHAR(20) CHARACTER SET latin1", "CONCAT(seq, ' ä€')"),
    ("c3 CHAR(10) CHARACTER SET ucs2", "CONCAT(seq, 'ж')"),
    ("c4 BINARY(7)", "UNHEX(LPAD(HEX(seq), 14, '0'))"),
    (
        "v1 VARCHAR(300)",
        "CONCAT(seq, '\\\\ it''s \"quoted\" \n\t\r', CHAR(0), ' ', REPEAT('x', seq % 200))",
    ),
    ("v2 VARCHAR(50) CHARACTER SET latin1 COLLATE latin1_german1_ci", "CONCAT(seq, 'straße  ')"),
    ("v3 VARCHAR(50) CHARACTER SET koi8r", "CONCAT(seq, 'жук')"),
    ("v4 VARCHAR(50) CHARACTER SET utf8mb3", "CONCAT(seq, 'жук')"),
    ("v5 VARCHAR(50) CHARACTER SET ascii", "CONCAT(seq, ';')"),
    ("v6 VARCHAR(40) CHARACTER SET big5", "CONCAT(seq, '一')"),
    ("v7 VARBINARY(100)", "UNHEX(MD5(seq))"),
    ("x1 TINYTEXT", "MD5(seq)"),
    ("x2 TEXT", "REPEAT(MD5(seq), seq % 5)"),
    ("x3 MEDIUMTEXT", "IF(seq % 500 = 3, REPEAT(MD5(seq), 3000), MD5(seq))"),
    ("x4 BLOB", "UNHEX(REPEAT(SHA1(seq), 3))"),
    ("x5 LONGBLOB", "UNHEX(SHA1(seq))"),
    ("j JSON", "JSON_OBJECT('n', seq, 'text', 'ä\"')"),
    ("n4 INET4", "INET_NTOA(seq * 429496)"),
    ("n6 INET6", "CONCAT('2001:db8::', HEX(seq))"),
    (
        "uu UUID",
        "CONCAT(LEFT(MD5(seq), 12), SUBSTR('0123456789abcdef', 1 + seq % 16, 1), RIGHT(MD5(seq), 19))",
    ),
    ("g GEOMETRY", "LineString(Point(seq, 1), Point(2, seq))"),
    ("p POINT", "Point(seq / 3, -seq)"),
    ("z1 VARCHAR(1000) COMPRESSED", "REPEAT(MD5(seq), seq % 31)"),
    ("z2 BLOB COMPRESSED", "UNHEX(REPEAT('ab', seq % 300))"),
];

fn name_of(column: &str) -> &str {
    column.split(' ').next().unwrap()
}

fn make_all_types(conn: &mut Conn) {
    let columns: Vec<_> = COLUMNS.iter().map(|(column, _)| *column).collect();
    let value = |(at, (_, value)): (usize, &(&str, &str))| {
        format!("IF((seq + {at}) % 8 = 0, NULL, {value})")
    };
    let values: Vec<_> = COLUMNS.iter().enumerate().map(value).collect();
    let names: Vec<_> = COLUMNS.iter().map(|(column, _)| name_of(column)).collect();
    for statement in [
        "CREATE DATABASE `the truth`".to_string(),
        "USE `the truth`".into(),
        "SET NAMES utf8mb4".into(),
        "SET time_zone = '+01:00'".into(),
        "SET sql_mode = 'ALLOW_INVALID_DATES,NO_UNSIGNED_SUBTRACTION'".into(),
        format!(
            "CREATE TABLE all_types (id INT PRIMARY KEY, {}, gv INT AS (id * 2) VIRTUAL, gs INT AS (id + 1) \
             STORED, KEY (i4), UNIQUE (u8, id), KEY (v1(20), d1), KEY (c1 DESC, f8), KEY (gv), KEY (x2(30)), KEY (dt6, uu)) \
             DEFAULT CHARACTER SET utf8mb4 COMMENT 'it''s'",
            columns.join(", ")
        ),
        format!(
            "INSERT INTO all_types (id, {}) SELECT seq, {} FROM seq_1_to_{ROWS}",
            names.join(", "),
            values.join(", ")
        ),
    ] {
        conn.query_drop(&statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
}

/// Tables of other kinds.
fn make_others(conn: &mut Conn) {
    for statement in [
        "CREATE TABLE no_key (a VARCHAR(40), b INT, KEY (b))",
        "INSERT INTO no_key SELECT MD5(seq % 50), seq FROM seq_1_to_3000",
        "CREATE TABLE text_key (a VARCHAR(40), b VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, n INT, c INT, \
         PRIMARY KEY (a, b DESC, n DESC), UNIQUE (c), UNIQUE (n, c), KEY (b))",
        "INSERT INTO text_key SELECT MD5(seq), CONCAT('b  ', seq % 7), -seq, IF(seq % 3, seq, NULL) FROM seq_1_to_3000",
        "CREATE TABLE bytes_key (a VARBINARY(20), b CHAR(10) CHARACTER SET ascii COLLATE ascii_bin, c BIT(20), d DECIMAL(9,2), \
         e DATE, PRIMARY KEY (a, b, c, d, e))",
        "INSERT INTO bytes_key SELECT CHAR(seq DIV 256, seq % 256, 0, seq % 3), CONCAT('x ', seq), seq, -seq / 4, DATE'2000-01-01' + INTERVAL seq DAY \
         FROM seq_1_to_3000",
        "CREATE TABLE `in parts` (id INT PRIMARY KEY, v INT, KEY (v)) PARTITION BY RANGE (id) (PARTITION `p-0` VALUES LESS THAN \
         (1000), PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "INSERT INTO `in parts` SELECT seq, -seq FROM seq_1_to_3000",
        // Rows of four versions.
        "CREATE TABLE altered (id INT PRIMARY KEY, a INT, gone INT NOT NULL, b VARCHAR(10) NOT NULL, \
         FULLTEXT (b))",
        "INSERT INTO altered SELECT seq, seq, 1, 'one' FROM seq_1_to_1000",
        "ALTER TABLE altered ADD COLUMN c VARCHAR(20) NOT NULL DEFAULT 'new' AFTER a, ALGORITHM=INSTANT",
        "INSERT INTO altered SELECT seq, NULL, 'two', 2, 'two' FROM seq_1001_to_2000",
        "ALTER TABLE altered DROP COLUMN gone, ADD COLUMN d INT FIRST, ALGORITHM=INSTANT",
        "INSERT INTO altered SELECT 3, seq, seq, 'three', 'three' FROM seq_2001_to_3000",
        "ALTER TABLE altered CHANGE a renamed INT DEFAULT 5, ADD COLUMN f DOUBLE DEFAULT 0.5, ALGORITHM=INSTANT",
        "INSERT INTO altered SELECT 4, seq, seq, 'four', 'four', seq / 8 FROM seq_3001_to_3500",
        "CREATE TABLE places (id VARCHAR(9) PRIMARY KEY, g GEOMETRY NOT NULL, SPATIAL (g))",
        "INSERT INTO places SELECT seq, POINT(seq, -seq) FROM seq_1_to_1000",
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "INSERT INTO parent SELECT seq FROM seq_1_to_100",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id), CHECK (id > 0))",
        "INSERT INTO child SELECT seq, 1 + seq % 100 FROM seq_1_to_1000",
        "CREATE TABLE history (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        "INSERT INTO history SELECT seq, 1 FROM seq_1_to_500",
        "UPDATE history SET v = 2 WHERE id % 5 = 0",
        "DELETE FROM history WHERE id % 7 = 0",
    ] {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
}

fn tidepool(args: &[&str], dirs: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    command.arg(args[0]).args(dirs).args(&args[1..]).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A copy of the engine's directory.
fn copy(server: &Server, name: &str) -> PathBuf {
    let to = server.dir().join(name);
    let from = server.data_dir().join("tidepool");
    let copied = Command::new("cp").arg("-a").arg(from).arg(&to).status();
    assert!(copied.is_ok_and(|status| status.success()));
    to
}

fn bytes_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(bytes_of(&path)),
            false => all.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

/// The files of a salvage, loaded into another database.
fn load(server: &Server, out: &Path) {
    let mut conn = server.connect();
    conn.query_drop("DROP DATABASE IF EXISTS saved").unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(out.join("the@0020truth"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    files.push(out.join("foreign-keys.sql"));
    for path in files {
        let sql = fs::read(&path).unwrap();
        // Under another name, so that the truth is beside it.
        let sql = replace(&sql, b"`the truth`", b"`saved`");
        let file = out.join("load.sql");
        fs::write(&file, sql).unwrap();
        let mut client = server.client("CLIENT");
        client.arg("--local-infile=1").stdin(fs::File::open(&file).unwrap());
        let loaded = client.output().unwrap();
        assert!(loaded.status.success(), "{}: {}", path.display(), text(&loaded.stderr));
    }
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// Ids of rows of `all_types` that are not the same in both databases, byte by byte; and of those
/// that are in one alone.
fn compare(conn: &mut Conn) -> (BTreeSet<i32>, BTreeSet<i32>) {
    let differs: Vec<String> = COLUMNS
        .iter()
        .map(|(column, _)| name_of(column))
        .chain(["gv", "gs"])
        .map(|name| format!("NOT (CAST(a.{name} AS BINARY) <=> CAST(b.{name} AS BINARY))"))
        .collect();
    let query = format!(
        "SELECT a.id FROM `the truth`.all_types a JOIN saved.all_types b ON a.id = b.id WHERE {}",
        differs.join(" OR ")
    );
    let different: Vec<i32> = conn.query(query).unwrap();
    let alone = |a: &str, b: &str| {
        format!("SELECT id FROM {a}.all_types WHERE id NOT IN (SELECT id FROM {b}.all_types)")
    };
    let mut missing: Vec<i32> = conn.query(alone("`the truth`", "saved")).unwrap();
    missing.extend(conn.query::<i32, _>(alone("saved", "`the truth`")).unwrap());
    (different.into_iter().collect(), missing.into_iter().collect())
}

/// A file that takes no bytes.
fn full_device() -> fs::File {
    fs::OpenOptions::new().write(true).open("/dev/full").unwrap()
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(page[at..at + 2].try_into().unwrap())
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

/// The file of a table, as `check` reports it.
fn file_of(report: &Value, table: &str) -> String {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|found| found["name"] == table).unwrap();
    table["file"].as_str().unwrap().into()
}

#[test]
fn every_row_outside_of_damaged_pages_comes_back() {
    let mut server = Server::start(Options::new("salvage"));
    let mut conn = server.connect();
    make_all_types(&mut conn);
    make_others(&mut conn);
    drop(conn);

    // Beside a running server nothing is looked at.
    let out = server.dir().join("saved");
    let running = tidepool(&["check"], &[&server.data_dir()]);
    assert_eq!(running.status.code(), Some(8), "{}", text(&running.stdout));
    assert!(text(&running.stderr).contains("has this directory open"), "{}", text(&running.stderr));
    let to = out.to_str().unwrap();
    let running = tidepool(&["salvage", "--to", to], &[&server.data_dir()]);
    assert_eq!(running.status.code(), Some(8), "{}", text(&running.stdout));
    assert!(!out.exists(), "no empty directory is left");
    // What a kill leaves is recovered aside, and nothing of it changes.
    server.kill9();
    let before = bytes_of(&server.data_dir().join("tidepool"));
    let killed = tidepool(&["check", "--format=json"], &[&server.data_dir()]);
    assert_eq!(killed.status.code(), Some(0), "{}{}", text(&killed.stdout), text(&killed.stderr));
    assert!(before == bytes_of(&server.data_dir().join("tidepool")), "the directory has changed");
    server.launch().unwrap();
    server.stop();

    let whole = tidepool(&["check", "--format=json"], &[&server.data_dir()]);
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stdout));
    let report = json(&whole);
    assert_eq!(report["damaged"], false);
    println!("check: {} bytes in {} s", report["bytes"], report["seconds"]);

    let dir = copy(&server, "damaged");
    // All of it, while nothing is damaged.
    let saved = tidepool(&["salvage", "--to", out.to_str().unwrap()], &[&dir]);
    assert_eq!(saved.status.code(), Some(0), "{}{}", text(&saved.stdout), text(&saved.stderr));
    server.launch().unwrap();
    load(&server, &out);
    let mut conn = server.connect();
    let (different, missing) = compare(&mut conn);
    assert!(different.is_empty() && missing.is_empty(), "{different:?}, {missing:?}");
    for table in
        ["no_key", "text_key", "bytes_key", "`in parts`", "altered", "places", "parent", "child"]
    {
        let differences = |a: &str, b: &str| {
            format!(
                "SELECT COUNT(*) FROM (SELECT * FROM {a}.{table} EXCEPT ALL SELECT * FROM {b}.{table}) d"
            )
        };
        for query in [differences("`the truth`", "saved"), differences("saved", "`the truth`")] {
            let count: u64 = conn.query_first(&query).unwrap().unwrap();
            assert_eq!(count, 0, "{query}");
        }
        let create = |conn: &mut Conn, db: &str| -> (String, String) {
            conn.query_first(format!("SHOW CREATE TABLE {db}.{table}")).unwrap().unwrap()
        };
        assert_eq!(create(&mut conn, "`the truth`"), create(&mut conn, "saved"));
    }
    let history = |db: &str| {
        format!(
            "SELECT id, v, row_start, row_end FROM {db}.history FOR SYSTEM_TIME ALL ORDER BY id, row_end"
        )
    };
    let truth: Vec<mysql::Row> = conn.query(history("`the truth`")).unwrap();
    let there: Vec<mysql::Row> = conn.query(history("saved")).unwrap();
    assert!(truth.len() > 500 && format!("{truth:?}") == format!("{there:?}"));
    fs::remove_dir_all(&out).unwrap();

    // Damaged pages: leaves, an inner node, pages of long values, the file's header and bitmap.
    let path = dir.join(file_of(&report, "the@0020truth/all_types"));
    let space = path.file_stem().and_then(|stem| u32::from_str_radix(stem.to_str()?, 16).ok());
    let space = space.expect("the file's name is the number of its space");
    let storage = packed::files_in(&dir);
    let file = packed::open(&storage, space, packed::Access::ReadOnly);
    let read = |no: u32| {
        let mut page = vec![0; PAGE];
        file.read(space, no, &mut page).unwrap();
        page
    };
    let pages: Vec<Vec<u8>> = (0..file.end(space).unwrap()).map(read).collect();
    let clustered = u32_at(&pages[2], 24);
    let of_type = |kind: u16| {
        let pages = &pages;
        (0..pages.len()).filter(move |no| {
            u16_at(&pages[*no], 12) == kind && u32_at(&pages[*no], 24) == clustered
        })
    };
    let mut damaged: BTreeSet<usize> = of_type(LEAF).step_by(37).collect();
    damaged.extend(of_type(OVERFLOW).step_by(11));
    damaged.extend([0, 1, 2]);
    let mut lost = BTreeSet::new();
    let id = |key: Vec<u8>| (u32::from_be_bytes(key[..4].try_into().unwrap()) ^ 0x8000_0000) as i32;
    let mut leaves = 0;
    for no in of_type(LEAF) {
        let leaf = Node::new(&pages[no]).unwrap();
        leaves += 1;
        for slot in 0..leaf.count() {
            let entry = tidepool::internals::entry::Entry::decode(leaf.payload(slot)).unwrap();
            let mut next = entry.overflow().map_or(0, |long| long.first_page as usize);
            let mut is_lost = damaged.contains(&no);
            while next != 0 {
                is_lost |= damaged.contains(&next);
                next = u32_at(&pages[next], 32) as usize;
            }
            if is_lost {
                lost.insert(id(leaf.key(slot)));
            }
        }
    }
    assert!(leaves > 100 && lost.len() > 100, "{leaves} leaves, {} rows lost", lost.len());
    let mut bytes = fs::read(&path).unwrap();
    let numbers: Vec<u32> = damaged.iter().map(|no| *no as u32).collect();
    for (no, place) in numbers.iter().zip(packed::places(&storage, space, &numbers)) {
        bytes[place.start + *no as usize % place.len()] ^= 1 << (no % 8);
    }
    drop((file, storage));
    fs::write(&path, &bytes).unwrap();

    let checked = tidepool(&["check", "--format=json"], &[&dir]);
    assert_eq!(checked.status.code(), Some(1));
    let report = json(&checked);
    let file =
        report["files"].as_array().unwrap().iter().find(|file| file["damaged_pages"] != 0).unwrap();
    let found: BTreeSet<usize> = file["damaged"]
        .as_array()
        .unwrap()
        .iter()
        .map(|page| page["page"].as_u64().unwrap() as usize)
        .collect();
    assert_eq!(found, damaged);
    // A reader that has seen enough, and a disk that is full.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for (out, code) in [(Stdio::from(writer), 1), (Stdio::from(full_device()), 8)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
        let checked = command.arg("check").arg(&dir).stdout(out).output().unwrap();
        assert_eq!(checked.status.code(), Some(code), "{}", text(&checked.stderr));
    }

    let saved = tidepool(&["salvage", "--json", "--to", out.to_str().unwrap()], &[&dir]);
    assert_eq!(saved.status.code(), Some(1), "{}", text(&saved.stderr));
    load(&server, &out);
    let (different, missing) = compare(&mut conn);
    assert!(different.is_empty(), "{different:?}");
    assert_eq!(missing, lost, "exactly the rows of the damaged pages are missing");
    // And they are listed, no others.
    let report = json(&saved);
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["name"] == "the@0020truth/all_types").unwrap();
    let number = |value: &Value| value.as_str().map(|text| text.parse::<i64>().unwrap());
    let mut listed = BTreeSet::new();
    for gap in table["gaps"].as_array().unwrap() {
        let lower = number(&gap["lower_value"]).unwrap_or(0).max(1);
        let upper = number(&gap["upper_value"]).unwrap_or(i64::from(ROWS) + 1);
        listed.extend((lower..upper).map(|id| id as i32));
    }
    for entry in table["lost"].as_array().unwrap() {
        let key = entry["key"].as_str().unwrap();
        listed.insert((u32::from_str_radix(key, 16).unwrap() ^ 0x8000_0000) as i32);
    }
    assert_eq!(listed, lost);
    println!(
        "salvage: {} of {ROWS} rows, {} on damaged pages",
        ROWS as usize - missing.len(),
        lost.len()
    );

    // As CSV, by the statements beside it: bytes, times, generated columns, and the past of rows.
    let csv = server.dir().join("csv");
    let saved = tidepool(&["salvage", "--format=csv", "--to", csv.to_str().unwrap()], &[&dir]);
    assert_eq!(saved.status.code(), Some(1), "{}{}", text(&saved.stdout), text(&saved.stderr));
    load(&server, &csv);
    let (different, missing) = compare(&mut conn);
    assert!(different.is_empty(), "{different:?}");
    assert_eq!(missing, lost);
    for table in ["no_key", "text_key", "bytes_key", "`in parts`", "altered", "places"] {
        let query = format!(
            "SELECT COUNT(*) FROM (SELECT * FROM `the truth`.{table} EXCEPT ALL SELECT * FROM \
             saved.{table}) d"
        );
        assert_eq!(conn.query_first::<u64, _>(query).unwrap(), Some(0), "{table}");
    }
    let there: Vec<mysql::Row> = conn.query(history("saved")).unwrap();
    assert!(format!("{truth:?}") == format!("{there:?}"));
}

/// Encrypted pages need the file of keys; without it, what is not encrypted is checked and saved.
#[test]
fn a_file_of_keys_opens_encrypted_tables() {
    let (options, keys) = with_keys("salvage_keys", &[1]);
    let options = options.arg("--tidepool-encrypt-log=ON");
    let mut server = Server::start(options);
    let mut conn = server.connect();
    for statement in [
        "CREATE DATABASE `the truth`",
        "USE `the truth`",
        "CREATE TABLE secret (id INT PRIMARY KEY, v VARCHAR(40)) ENCRYPTED=YES",
        "INSERT INTO secret SELECT seq, MD5(seq) FROM seq_1_to_3000",
        "CREATE TABLE open (id INT PRIMARY KEY, v VARCHAR(40))",
        "INSERT INTO open SELECT * FROM secret",
    ] {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
    drop(conn);
    server.stop();
    let dir = copy(&server, "copy");
    let key_file = format!("--key-file={}", keys.0.join("keys.txt").display());

    let without = json(&tidepool(&["check", "--format=json"], &[&dir]));
    let encrypted = |report: &Value| {
        let files = report["files"].as_array().unwrap().iter();
        files.map(|file| file["encrypted_pages"].as_u64().unwrap_or(0)).sum::<u64>()
    };
    assert!(encrypted(&without) > 0, "{without}");
    let with = tidepool(&["check", "--format=json", &key_file], &[&dir]);
    assert!(with.status.success(), "{}", text(&with.stderr));
    let with = json(&with);
    assert_eq!((encrypted(&with), &with["damaged"]), (0, &Value::Bool(false)), "{with}");

    let out = server.dir().join("saved");
    let to = format!("--to={}", out.display());
    let saved = tidepool(&["salvage", &to, &key_file], &[&dir]);
    assert!(saved.status.success(), "{}{}", text(&saved.stdout), text(&saved.stderr));
    let saved = |table: &str| {
        fs::read_to_string(out.join("the@0020truth").join(format!("{table}.sql"))).unwrap()
    };
    // The rows of both tables are the same.
    let rows = |sql: &str| sql[sql.find("INSERT").unwrap()..].replace("`open`", "`secret`");
    let (secret, open) = (saved("secret"), saved("open"));
    assert!(secret.contains("c4ca4238a0b923820dcc509a6f75849b"), "MD5 of the first id");
    assert!(rows(&secret) == rows(&open), "rows of the encrypted table are missing");

    // A file that is none, and keys that are not the right ones.
    fs::write(keys.0.join("keys.txt"), "1;abc\n").unwrap();
    let refused = tidepool(&["check", &key_file], &[&dir]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("line 1 is no key"), "{}", text(&refused.stderr));
    fs::write(keys.0.join("keys.txt"), format!("1;{}\n", "5a".repeat(32))).unwrap();
    let wrong = tidepool(&["check", &key_file], &[&dir]);
    assert!(!wrong.status.success(), "{}", text(&wrong.stdout));
}
