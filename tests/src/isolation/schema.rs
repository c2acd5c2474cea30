//! The tables, and how a row's list is stored in them.
//!
//! A row's `l` is its list, ids with blanks between; its `pad` depends on the last of them alone,
//! so a row that is put together from two versions shows. Pads are empty, of some length, or too
//! long for a page. Between the rows whose history is checked lie others with an empty list, which
//! only make the trees larger.

use mysql::prelude::Queryable;
use mysql::{Conn, Value};

use super::history::{Key, Row, WriteId};
use crate::differential::dice::Dice;
use crate::sql::check_answers;

pub const DATABASE: &str = "isolation";
pub const TABLES: u8 = 2;
pub const BUCKETS: u8 = 5;
/// Keys in each table, at most.
pub const KEYS: u8 = 10;
/// All keys, as bits.
pub const ALL_KEYS: u32 = (1 << KEYS) - 1;
/// Rows of a table that does not fit the pool, and pushes the others out of it.
pub const BULK: usize = 2000;
/// From one key's `k` to the next one's.
const STRIDE: u32 = 1000;

/// The column `k` of a key.
pub fn k(key: u8) -> u32 {
    (u32::from(key) + 1) * STRIDE
}

/// The `k` of a row that is only there to fill the tables.
pub fn filler(dice: &mut Dice, keys: u8) -> u32 {
    let (between, at) = (dice.range(0, usize::from(keys)), dice.range(1, 60));
    (between * STRIDE as usize + at) as u32
}

/// The expression for a row's pad.
pub fn pad_sql(id: WriteId) -> String {
    let (letter, len) = pad(id);
    format!("REPEAT('{}', {len})", char::from(letter))
}

/// A letter, and how many of it.
fn pad(id: WriteId) -> (u8, usize) {
    let scattered = id.wrapping_mul(2_654_435_761);
    let len = match scattered >> 26 {
        0..40 => 0,
        40..58 => (scattered >> 8) as usize % 300,
        58..63 => (scattered >> 8) as usize % 6000,
        _ => (scattered >> 8) as usize % 40_000,
    };
    (b'a' + (id % 26) as u8, len)
}

/// The columns of a row, with the pad or without.
pub fn columns(table: u8, with_pad: bool) -> String {
    format!("{table} t, k, b, l, {}", if with_pad { "pad" } else { "NULL pad" })
}

/// A row of [`columns`]; what is wrong with it, if it is not one.
///
/// # Errors
/// In words.
pub fn parse(row: mysql::Row) -> Result<Row, String> {
    let text = format!("{row:?}");
    let wrong = |what: &str| format!("{what}: {}", text.chars().take(400).collect::<String>());
    let (table, k, bucket, list, found): (u8, u32, u8, String, Value) =
        mysql::from_row_opt(row).map_err(|_| wrong("a row that can't be read"))?;
    if k % STRIDE != 0 || k == 0 {
        return Err(wrong("a row with another key and a list"));
    }
    let list: Result<Vec<WriteId>, _> = list.split(' ').map(str::parse).collect();
    let list = list.map_err(|_| wrong("a row whose list is none"))?;
    if let Value::Bytes(found) = found {
        let (letter, len) = pad(*list.last().expect("split gives at least one"));
        if found.len() != len || found.iter().any(|byte| *byte != letter) {
            return Err(wrong("a row whose pad is another version's"));
        }
    }
    Ok(Row { key: Key { table, key: (k / STRIDE - 1) as u8 }, list, bucket })
}

/// Creates everything, with some rows.
///
/// # Errors
/// What the server says.
pub fn create(conn: &mut Conn) -> mysql::Result<()> {
    conn.query_drop(format!("CREATE DATABASE {DATABASE}"))?;
    conn.query_drop(format!("USE {DATABASE}"))?;
    for table in 0..TABLES {
        conn.query_drop(format!(
            "CREATE TABLE t{table} (k INT PRIMARY KEY, b INT NOT NULL, l VARCHAR(600) NOT NULL, pad LONGBLOB NOT NULL,
             KEY by_bucket (b), KEY cover (b, k, l)) DEFAULT CHARSET=latin1"
        ))?;
        for between in 0..12 {
            conn.query_drop(format!(
                "INSERT INTO t{table} SELECT {between} * {STRIDE} + seq, seq % {BUCKETS}, '', REPEAT('-', seq * 20)
                 FROM seq_1_to_30"
            ))?;
        }
    }
    conn.query_drop("CREATE TABLE mark (id INT PRIMARY KEY)")?;
    conn.query_drop("CREATE TABLE bulk (id INT PRIMARY KEY, pad BLOB NOT NULL)")?;
    conn.query_drop(format!("INSERT INTO bulk SELECT seq, REPEAT('-', 6000) FROM seq_1_to_{BULK}"))
}

/// All rows with a list, read by each index; an error if these don't agree.
///
/// # Errors
/// What the server says, or what is wrong.
pub fn all_rows(conn: &mut Conn) -> Result<Vec<Row>, String> {
    let mut all = Vec::new();
    for table in 0..TABLES {
        let mut by_index = Vec::new();
        for index in ["PRIMARY", "by_bucket", "cover"] {
            let sql = format!(
                "SELECT {} FROM t{table} FORCE INDEX ({index}) WHERE b >= 0 AND l <> ''",
                columns(table, index != "cover")
            );
            let rows: Vec<mysql::Row> = conn.query(&sql).map_err(|e| format!("{sql}: {e}"))?;
            let mut rows = rows.into_iter().map(parse).collect::<Result<Vec<Row>, String>>()?;
            rows.sort_by_key(|row| row.key);
            by_index.push(rows);
        }
        if by_index[0] != by_index[1] || by_index[0] != by_index[2] {
            return Err(format!("t{table} is not the same by each index: {by_index:?}"));
        }
        all.append(&mut by_index[0]);
        // (A warning of InnoDB is no error: of an entry that purge will remove.)
        let answers = check_answers(conn, &format!("t{table}"))
            .map_err(|error| format!("CHECK TABLE t{table}: {error}"))?;
        if let Some(bad) = answers.iter().find(|answer| answer.kind != "Warning" && !answer.is_ok())
        {
            return Err(bad.to_string());
        }
    }
    Ok(all)
}
