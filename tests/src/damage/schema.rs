//! The tables, the transactions that are left open, and the truth.
//!
//! | table | what it has |
//! |---|---|
//! | `small` | short rows, a plain and a unique index; the prepared transaction's changes |
//! | `wide` | rows of up to 4 KB, an index by a prefix, a column added at once |
//! | `blobs` | values on separate pages |
//! | `heap` | no primary key |
//! | `parts` | three partitions |
//! | `parent`, `child` | a foreign key |
//!
//! All of them were changed while a snapshot was open, so that the undo space holds a history;
//! some of that is
//! of a transaction that did not end.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};

use super::Ending;
use crate::server::Server;
use crate::sql::row_text;

pub const DATABASE: &str = "damage";

/// The prepared transaction.
pub const XA_NAME: &str = "'damaged'";

/// What a table is asked for: its name, and a query for each of its indexes.
pub struct Asked {
    pub table: &'static str,
    /// Queries, each of which reads one index to its end.
    pub queries: &'static [&'static str],
    /// Statements that write to it.
    pub writes: &'static [&'static str],
}

/// All tables.
pub const ASKED: [Asked; 7] = [
    Asked {
        table: "small",
        queries: &[
            "SELECT * FROM small FORCE INDEX (PRIMARY)",
            "SELECT k, id FROM small FORCE INDEX (k)",
            "SELECT name, id FROM small FORCE INDEX (name)",
            "SELECT * FROM small FORCE INDEX (k) WHERE k BETWEEN 20 AND 24",
        ],
        writes: &[
            "INSERT INTO small VALUES (100001, 5, 'new', 1)",
            "UPDATE small SET v = v + 1 WHERE id BETWEEN 2000 AND 2100",
            "DELETE FROM small WHERE id BETWEEN 2200 AND 2210",
        ],
    },
    Asked {
        table: "wide",
        queries: &[
            "SELECT * FROM wide FORCE INDEX (PRIMARY)",
            "SELECT * FROM wide FORCE INDEX (a) WHERE a >= ''",
        ],
        writes: &[
            "INSERT INTO wide VALUES (100001, 'new', REPEAT('n', 1000), 1)",
            "UPDATE wide SET b = CONCAT(b, 'x') WHERE id % 17 = 0",
        ],
    },
    Asked {
        table: "blobs",
        queries: &[
            "SELECT * FROM blobs FORCE INDEX (PRIMARY)",
            "SELECT tag, id FROM blobs FORCE INDEX (tag)",
        ],
        writes: &[
            "INSERT INTO blobs VALUES (100001, 'new', REPEAT('n', 50000))",
            "UPDATE blobs SET data = CONCAT(data, 'x') WHERE id % 7 = 0",
        ],
    },
    Asked {
        table: "heap",
        queries: &["SELECT * FROM heap", "SELECT a, b FROM heap FORCE INDEX (a) WHERE a >= 0"],
        writes: &["INSERT INTO heap VALUES (100001, 'new')", "DELETE FROM heap WHERE a = 3"],
    },
    Asked {
        table: "parts",
        queries: &[
            "SELECT * FROM parts FORCE INDEX (PRIMARY)",
            "SELECT v, id FROM parts FORCE INDEX (v)",
        ],
        writes: &[
            "INSERT INTO parts VALUES (100001, 5), (100002, 5), (100003, 5)",
            "UPDATE parts SET v = v + 1 WHERE id % 29 = 0",
        ],
    },
    Asked {
        table: "parent",
        queries: &["SELECT * FROM parent FORCE INDEX (PRIMARY)"],
        writes: &["INSERT INTO parent VALUES (100001, 1)"],
    },
    Asked {
        table: "child",
        queries: &[
            "SELECT * FROM child FORCE INDEX (PRIMARY)",
            "SELECT p, id FROM child FORCE INDEX (p)",
        ],
        writes: &["INSERT INTO child VALUES (100001, 7)", "DELETE FROM parent WHERE id = 9"],
    },
];

/// The rows that a query must give, as hashes in order of their values.
pub type Rows = Vec<u64>;

/// What must be there.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// For each table and each of its queries.
    pub tables: Vec<Vec<Rows>>,
    /// The same of `small` once the prepared transaction is committed.
    pub small_committed: Vec<Rows>,
}

/// Reads a query's rows.
///
/// # Errors
/// What the server says.
pub fn rows(conn: &mut Conn, query: &str) -> mysql::Result<Rows> {
    let rows: Vec<Row> = conn.query(query)?;
    let hash = |row: Row| {
        let mut hasher = DefaultHasher::new();
        row_text(row).hash(&mut hasher);
        hasher.finish()
    };
    let mut hashes: Rows = rows.into_iter().map(hash).collect();
    hashes.sort_unstable();
    Ok(hashes)
}

fn truth_of(conn: &mut Conn, asked: &Asked) -> Vec<Rows> {
    let read = |query: &&str| rows(conn, query).unwrap_or_else(|e| panic!("{query}: {e}"));
    asked.queries.iter().map(read).collect()
}

fn run(conn: &mut Conn, statements: &[&str]) {
    crate::sql::run(conn, statements);
}

/// Fills a running server, reads the truth, and ends the server.
///
/// # Panics
/// If the server refuses any of it.
pub fn make(server: &mut Server, ending: Ending) -> Truth {
    let mut conn = server.connect();
    run(&mut conn, &[&format!("CREATE DATABASE {DATABASE}"), &format!("USE {DATABASE}")]);
    run(&mut conn, &TABLES);
    run(&mut conn, &ROWS);
    // From here on nothing is purged.
    let mut reader = server.connect_to(DATABASE);
    run(&mut reader, &["START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT COUNT(*) FROM small"]);
    if ending == Ending::Killed {
        // A checkpoint, so that the log has changes of some pages only.
        drop((conn, reader));
        server.restart();
        conn = server.connect_to(DATABASE);
        reader = server.connect_to(DATABASE);
        let snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
        run(&mut reader, &[snapshot, "SELECT COUNT(*) FROM small"]);
    }
    run(&mut conn, &CHANGES);
    let tables = ASKED.iter().map(|asked| truth_of(&mut conn, asked)).collect();
    let mut prepared = server.connect_to(DATABASE);
    run(&mut prepared, &[&format!("XA START {XA_NAME}")]);
    run(&mut prepared, &PREPARED);
    // What the transaction itself sees is what all see once it is committed.
    let small_committed = truth_of(&mut prepared, &ASKED[0]);
    let truth = Truth { tables, small_committed };
    run(&mut prepared, &[&format!("XA END {XA_NAME}"), &format!("XA PREPARE {XA_NAME}")]);
    let mut unfinished = server.connect_to(DATABASE);
    run(&mut unfinished, &["BEGIN"]);
    run(&mut unfinished, &UNFINISHED);
    // Makes the log of the unfinished one durable, too.
    run(&mut conn, &["INSERT INTO parent VALUES (5000, 1)", "DELETE FROM parent WHERE id = 5000"]);
    if ending == Ending::Stopped {
        drop((conn, reader, unfinished, prepared));
        server.stop();
    } else {
        server.kill9();
    }
    truth
}

const TABLES: [&str; 7] = [
    "CREATE TABLE small (id INT PRIMARY KEY, k INT, name VARCHAR(40), v INT, KEY k (k), UNIQUE KEY name (name))",
    "CREATE TABLE wide (id INT PRIMARY KEY, a VARCHAR(2000), b VARCHAR(2100), KEY a (a(50)))",
    "CREATE TABLE blobs (id INT PRIMARY KEY, tag VARCHAR(20), data LONGBLOB, KEY tag (tag))",
    "CREATE TABLE heap (a INT, b VARCHAR(100), KEY a (a))",
    "CREATE TABLE parts (id INT PRIMARY KEY, v INT, KEY v (v)) PARTITION BY HASH (id) PARTITIONS 3",
    "CREATE TABLE parent (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY p (p) REFERENCES parent (id) ON DELETE CASCADE)",
];

const ROWS: [&str; 8] = [
    "INSERT INTO small SELECT seq, seq % 100, CONCAT('name ', seq), seq FROM seq_1_to_3000",
    "INSERT INTO wide SELECT seq, CONCAT(MD5(seq), REPEAT('a', seq * 37 % 1900)), REPEAT(MD5(seq + 1), seq % 60) \
     FROM seq_1_to_500",
    "ALTER TABLE wide ADD COLUMN c INT DEFAULT 7, ALGORITHM=INSTANT",
    "INSERT INTO blobs SELECT seq, CONCAT('tag ', seq % 10), REPEAT(MD5(seq), seq * 53 % 1500) FROM seq_1_to_80",
    "INSERT INTO heap SELECT seq % 500, CONCAT('heap ', seq, REPEAT('h', seq % 50)) FROM seq_1_to_1500",
    "INSERT INTO parts SELECT seq, seq % 70 FROM seq_1_to_1500",
    "INSERT INTO parent SELECT seq, seq FROM seq_1_to_300",
    "INSERT INTO child SELECT seq, 1 + seq % 300 FROM seq_1_to_1200",
];

const CHANGES: [&str; 8] = [
    "UPDATE small SET v = v + 10000, k = k + 1 WHERE id BETWEEN 500 AND 1200",
    "DELETE FROM small WHERE id % 31 = 0",
    "UPDATE wide SET b = REPEAT('b', 300 + id) WHERE id BETWEEN 100 AND 250",
    "UPDATE wide SET c = id WHERE id > 450",
    "UPDATE blobs SET data = REPEAT(MD5(id + 1), 800) WHERE id % 4 = 0",
    "DELETE FROM heap WHERE a BETWEEN 100 AND 140",
    "UPDATE parts SET v = v + 1 WHERE id % 3 <> 0",
    "DELETE FROM parent WHERE id % 50 = 0",
];

const PREPARED: [&str; 3] = [
    "UPDATE small SET v = v + 77 WHERE id BETWEEN 1 AND 60",
    "INSERT INTO small SELECT seq, 50, CONCAT('prepared ', seq), 0 FROM seq_4001_to_4040",
    "DELETE FROM small WHERE id BETWEEN 70 AND 75",
];

const UNFINISHED: [&str; 5] = [
    "UPDATE small SET v = -1, k = 99 WHERE id BETWEEN 1300 AND 1800",
    "UPDATE wide SET a = CONCAT('unfinished', a) WHERE id BETWEEN 300 AND 350",
    "UPDATE blobs SET data = 'unfinished' WHERE id % 9 = 0",
    "INSERT INTO parts SELECT seq, 3 FROM seq_5001_to_5100",
    "DELETE FROM child WHERE id BETWEEN 1000 AND 1100",
];
