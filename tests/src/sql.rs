//! What many tests ask of a connection; each ends the test if the server refuses.

use mysql::Conn;
use mysql::prelude::Queryable;

/// Runs statements one after the other.
pub fn run(conn: &mut Conn, statements: &[&str]) {
    for statement in statements {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

/// The number that a query gives, of its first row.
pub fn number(conn: &mut Conn, query: &str) -> i64 {
    conn.query_first(query).unwrap_or_else(|error| panic!("{query}: {error}")).expect("a row")
}
