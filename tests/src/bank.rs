//! Money that is moved between accounts by many sessions: whatever is read of one moment has the
//! same sum.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mysql::prelude::Queryable;

use crate::server::{Server, connect_to_socket};
use crate::sql::run;

const WRITERS: i64 = 8;
const ACCOUNTS: i64 = 2000;
const BALANCE: i64 = 1000;
/// What all accounts hold together.
pub const TOTAL: i64 = 2 * ACCOUNTS * BALANCE;

/// Sessions that write to the database `bank`.
pub struct Bank {
    stop: Arc<AtomicBool>,
    commits: Arc<AtomicU64>,
    writers: Vec<JoinHandle<mysql::Result<()>>>,
}

impl Bank {
    /// Makes the database and has sessions write to it. `partitions`: what the definition of one of
    /// its two tables ends with.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn open(server: &Server, partitions: &str) -> Bank {
        let mut conn = server.connect();
        run(&mut conn, &["CREATE DATABASE bank", "USE bank"]);
        for (table, partitions) in [("checking", ""), ("saving", partitions)] {
            let columns = "id BIGINT PRIMARY KEY, balance BIGINT, pad TEXT, KEY (balance)";
            let last = ACCOUNTS - 1;
            run(
                &mut conn,
                &[
                    &format!("CREATE TABLE {table} ({columns}) {partitions}"),
                    &format!(
                        "INSERT INTO {table} SELECT seq, {BALANCE}, REPEAT('z', 500) FROM seq_0_to_{last}"
                    ),
                ],
            );
        }
        assert_eq!(total(server, "bank"), TOTAL);
        let (stop, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begin = |writer| {
            let (socket, stop, commits) =
                (server.socket().to_path_buf(), Arc::clone(&stop), Arc::clone(&commits));
            thread::spawn(move || write(&socket, writer, &stop, &commits))
        };
        let bank = Bank { writers: (0..WRITERS).map(begin).collect(), stop, commits };
        bank.wait_for_commits(100);
        bank
    }

    /// How many transactions have been committed.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Waits for `more` more commits.
    ///
    /// # Panics
    /// If no writer is left.
    pub fn wait_for_commits(&self, more: u64) {
        let until = self.commits() + more;
        while self.commits() < until {
            thread::sleep(Duration::from_millis(10));
            assert!(!self.writers.iter().all(JoinHandle::is_finished), "the writers ended");
        }
    }

    /// Ends the sessions.
    ///
    /// # Panics
    /// If one of them met an error.
    pub fn close(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            writer.join().expect("a writer doesn't panic").expect("a writer gets no error");
        }
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Moves money between accounts of two tables, adds and removes pairs of rows: the sum over both
/// never changes.
fn write(socket: &Path, writer: i64, stop: &AtomicBool, commits: &AtomicU64) -> mysql::Result<()> {
    let mut conn = connect_to_socket(socket, "bank")?;
    let mut step = writer;
    while !stop.load(Ordering::Relaxed) {
        step += 1;
        // Each writer keeps to its accounts, so none waits for another.
        let account = |n: i64| n * 7919 % (ACCOUNTS / WRITERS) * WRITERS + writer;
        let extra = ACCOUNTS + step * WRITERS + writer;
        conn.query_drop("START TRANSACTION")?;
        conn.exec_drop("UPDATE checking SET balance = balance - 5 WHERE id = ?", (account(step),))?;
        conn.exec_drop(
            "UPDATE saving SET balance = balance + 5 WHERE id = ?",
            (account(step * 3),),
        )?;
        conn.exec_drop("INSERT INTO checking VALUES (?, 17, REPEAT('x', 500))", (extra,))?;
        conn.exec_drop("INSERT INTO saving VALUES (?, -17, REPEAT('y', 500))", (extra,))?;
        if step % 3 == 0 {
            let old = extra - 20 * WRITERS;
            if old >= ACCOUNTS {
                conn.exec_drop("DELETE FROM checking WHERE id = ?", (old,))?;
                conn.exec_drop("DELETE FROM saving WHERE id = ?", (old,))?;
            }
        }
        conn.query_drop("COMMIT")?;
        commits.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The sum of all accounts in `database`.
///
/// # Panics
/// If it can't be had.
pub fn total(server: &Server, database: &str) -> i64 {
    let sums = "(SELECT SUM(balance) FROM checking) + (SELECT SUM(balance) FROM saving)";
    let query = format!("SELECT CAST({sums} AS SIGNED)");
    server.connect_to(database).query_first(query).expect("the sum can be computed").expect("a row")
}
