//! The tables of the crash loop, in the database `crash`.

use mysql::Conn;
use mysql::prelude::Queryable;

pub const DATABASE: &str = "crash";
/// The accounts that all workers transfer between.
pub const ACCOUNTS: u32 = 10;
/// What each account holds at first.
pub const OPENING_BALANCE: i64 = 1_000_000;

/// Whether a transfer is noted in `transfer_elsewhere` too, a table of InnoDB whatever the engine:
/// its transaction is of two engines, and both have it or none.
pub fn is_noted_elsewhere(number: u32) -> bool {
    number.is_multiple_of(3)
}

/// The name of a worker's XA transactions.
pub fn xa_name(worker: u32) -> String {
    format!("crash_{worker}")
}

/// The name of a worker's own table.
pub fn own_table(worker: u32, renamed: bool) -> String {
    format!("own_{worker}_{}", if renamed { "b" } else { "a" })
}

/// Creates the database and the tables that all workers share.
///
/// # Errors
/// What the server says.
pub fn create(conn: &mut Conn) -> mysql::Result<()> {
    let accounts: Vec<String> =
        (0..ACCOUNTS).map(|id| format!("({id}, {OPENING_BALANCE})")).collect();
    let statements = [
        format!("CREATE DATABASE {DATABASE}"),
        format!("USE {DATABASE}"),
        "CREATE TABLE record (id INT PRIMARY KEY, owner INT NOT NULL, version BIGINT NOT NULL, small INT NOT NULL,
         name VARCHAR(120) NOT NULL, tag VARCHAR(60) NOT NULL, data LONGBLOB,
         UNIQUE KEY by_name (name), KEY by_small (small, name), KEY by_tag (tag(10)), KEY by_owner (owner, version))
         DEFAULT CHARSET=utf8mb4"
            .into(),
        "CREATE TABLE loose (owner INT NOT NULL, id INT NOT NULL, version BIGINT NOT NULL, note VARCHAR(200),
         KEY by_owner (owner, id))"
            .into(),
        "CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL)".into(),
        "CREATE TABLE transfer (worker INT, number INT, debit INT NOT NULL, credit INT NOT NULL,
         amount BIGINT NOT NULL, PRIMARY KEY (worker, number), KEY by_debit (debit), KEY by_credit (credit))"
            .into(),
        "CREATE TABLE transfer_elsewhere (worker INT, number INT, debit INT NOT NULL, credit INT NOT NULL,
         amount BIGINT NOT NULL, PRIMARY KEY (worker, number)) ENGINE=InnoDB"
            .into(),
        format!("INSERT INTO account VALUES {}", accounts.join(", ")),
    ];
    statements.iter().try_for_each(|statement| conn.query_drop(statement))
}
