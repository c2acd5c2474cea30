//! What many tests ask of a connection; each ends the test if the server refuses.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use mysql::prelude::Queryable;
use mysql::{Conn, Row, Value};

/// Runs statements one after the other.
///
/// # Panics
/// If the server refuses one, also in the rows with which it answers OPTIMIZE TABLE and the like.
pub fn run(conn: &mut Conn, statements: &[&str]) {
    for statement in statements {
        let rows: Vec<Row> =
            conn.query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        let refusals: Vec<String> = rows.into_iter().filter_map(refusal).collect();
        assert!(refusals.is_empty(), "{statement}: {refusals:?}");
    }
}

/// What a row of an answer to OPTIMIZE TABLE, CHECK TABLE or the like says, if that is an error:
/// the statement as a whole succeeds.
fn refusal(row: Row) -> Option<String> {
    let columns = row.columns();
    let column = |name: &str| columns.iter().position(|column| column.name_str() == name);
    let (kind, text) = (column("Msg_type")?, column("Msg_text")?);
    let [kind, text] = [kind, text].map(|at| row.get::<String, _>(at).unwrap_or_default());
    let is_error = kind.eq_ignore_ascii_case("error")
        || ["Operation failed", "Corrupt"].contains(&text.as_str());
    is_error.then(|| row_text(row))
}

/// Runs a statement during which the server may be killed. Returns whether it was acknowledged.
///
/// # Panics
/// If the server refuses it: that is no loss of the connection.
pub fn is_acknowledged(conn: &mut Conn, statement: &str) -> bool {
    match conn.query_drop(statement) {
        Ok(()) => true,
        Err(mysql::Error::MySqlError(error)) if !SERVER_STOPS.contains(&error.code) => {
            panic!("{statement}: {error}")
        }
        Err(_) => false,
    }
}

/// The errors of statements that a server ends as it stops.
const SERVER_STOPS: [u16; 2] = [1053, 1927];

/// The number that a query gives, of its first row.
pub fn number(conn: &mut Conn, query: &str) -> i64 {
    conn.query_first(query).unwrap_or_else(|error| panic!("{query}: {error}")).expect("a row")
}

/// The number of a statement's error, or 0. (Rows are read to their end: the error may come instead
/// of one.)
pub fn code_of(conn: &mut Conn, statement: &str) -> u16 {
    match conn.query::<Row, _>(statement) {
        Ok(_) => 0,
        Err(mysql::Error::MySqlError(error)) => error.code,
        Err(error) => panic!("{statement}: {error}"),
    }
}

/// The rows that a query gives, as text, without the names of their columns.
pub fn rows(conn: &mut Conn, query: &str) -> Vec<String> {
    let rows: Vec<Row> = conn.query(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.into_iter().map(row_text).collect()
}

/// A row as text, with whole values: `Debug` of the client library cuts long ones.
pub fn row_text(row: Row) -> String {
    let text = |value: Value| match value {
        Value::Bytes(bytes) => format!("Bytes(\"{}\")", bytes.escape_ascii()),
        other => format!("{other:?}"),
    };
    let values: Vec<String> = row.unwrap().into_iter().map(text).collect();
    format!("[{}]", values.join(", "))
}

/// The same, sorted.
pub fn sorted_rows(conn: &mut Conn, query: &str) -> Vec<String> {
    let mut rows = rows(conn, query);
    rows.sort();
    rows
}

/// What `SHOW CREATE TABLE` says.
pub fn definition(conn: &mut Conn, table: &str) -> String {
    let row: Option<(String, String)> = conn
        .query_first(format!("SHOW CREATE TABLE {table}"))
        .unwrap_or_else(|error| panic!("{table}: {error}"));
    row.expect("a row").1
}

/// An answer of `CHECK TABLE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckAnswer {
    /// The database, a dot, and the table.
    pub table: String,
    /// "status", "error" or another kind.
    pub kind: String,
    pub text: String,
}

impl CheckAnswer {
    /// Whether it says that the table is good.
    pub fn is_ok(&self) -> bool {
        self.text == "OK"
    }
}

impl fmt::Display for CheckAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CHECK TABLE {}: {}: {}", self.table, self.kind, self.text)
    }
}

/// What `CHECK TABLE … EXTENDED` answers; the last of it is good if the table is.
///
/// # Errors
/// The server answers with an error, or not at all.
pub fn check_answers(conn: &mut Conn, table: &str) -> mysql::Result<Vec<CheckAnswer>> {
    conn.query_map(
        format!("CHECK TABLE {table} EXTENDED"),
        |(table, _, kind, text): (String, String, String, String)| CheckAnswer {
            table,
            kind,
            text,
        },
    )
}

/// What `CHECK TABLE … EXTENDED` says last, which is "OK" of a good one.
pub fn check_table(conn: &mut Conn, table: &str) -> String {
    let answers = check_answers(conn, table).unwrap_or_else(|error| panic!("{table}: {error}"));
    answers.last().expect("an answer").text.clone()
}

/// Asks the threads beside to stop when it is dropped, also by a panic: the end of a scope waits
/// for them.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does the work while another session runs statements: those of 1, those of 2, and so on.
///
/// # Panics
/// If the server refuses a statement.
pub fn beside_writer(
    mut writer: Conn,
    statements: impl Fn(u32) -> Vec<String> + Sync,
    work: impl FnOnce(),
) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&done);
        scope.spawn(|| {
            for number in (1..).take_while(|_| !done.load(Ordering::Relaxed)) {
                statements(number).iter().for_each(|statement| run(&mut writer, &[statement]));
            }
        });
        work();
    });
}

/// Has a table checked, which must be good.
pub fn check(conn: &mut Conn, table: &str) {
    assert_eq!(check_table(conn, table), "OK", "{table}");
}
