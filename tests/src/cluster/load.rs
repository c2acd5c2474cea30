//! Writers that know what they have been promised.
//!
//! Each writer numbers its transactions, and everything that transaction `n` of writer `w` writes
//! follows from `w` and `n`. So the number of the last one says what all of the writer's rows must
//! be. When the server goes away at a COMMIT, the writer looks on the next primary which number is
//! the last: it must be the last acknowledged one, or the one without an answer.
//!
//! A [`Route`] stands for the proxy in front of the servers: it leads to the primary, and to none
//! while there is none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Error, OptsBuilder};

use super::node::Node;
use crate::sql::run;

/// Sessions that write.
pub const WRITERS: u64 = 6;
/// The database that they write to.
pub const DATABASE: &str = "shop";
/// Accounts of a writer.
const SLOTS: u64 = 20;
/// Rows that all writers change.
const HOT_ROWS: u64 = 4;
/// Entries of the ledger that a writer keeps, the last ones.
const KEPT: u64 = 60;
/// Refused because the server is read-only.
const OPTION_PREVENTS: u16 = 1290;

/// Where the primary is.
#[derive(Debug, Default)]
pub struct Route {
    state: Mutex<RouteState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RouteState {
    primary: Option<PathBuf>,
    /// Writers between the begin and the end of a transaction.
    busy: u32,
}

impl Route {
    /// Leads to `primary` from now on.
    pub fn open(&self, primary: &Node) {
        self.lock().primary = Some(primary.server.socket().to_path_buf());
        self.changed.notify_all();
    }

    /// Leads nowhere, and waits until each writer has ended its transaction, or lost its server.
    pub fn close(&self) {
        let mut state = self.lock();
        state.primary = None;
        while state.busy > 0 {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// The primary's socket, for one transaction, which [`leave`](Self::leave) ends; `None` if
    /// the load is over.
    fn enter(&self, stop: &AtomicBool) -> Option<PathBuf> {
        let mut state = self.lock();
        loop {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(primary) = state.primary.clone() {
                state.busy += 1;
                return Some(primary);
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn leave(&self) {
        self.lock().busy -= 1;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RouteState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What all writers share with the one who watches them.
#[derive(Debug, Default)]
pub struct Progress {
    stop: AtomicBool,
    pub route: Route,
    /// Commits that were acknowledged.
    pub commits: AtomicU64,
    /// COMMITs without an answer, and how many of them the next primary had.
    pub in_doubt: AtomicU64,
    pub in_doubt_found: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Progress {
    fn violation(&self, what: String) {
        self.violations.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(what);
    }

    /// What was wrong so far.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// The sessions.
#[derive(Debug)]
pub struct Load {
    pub progress: Arc<Progress>,
    writers: Vec<JoinHandle<()>>,
    /// The number of the last acknowledged transaction, of each writer.
    acknowledged: Vec<Arc<AtomicU64>>,
}

impl Load {
    /// Makes the tables on the primary, and begins to write.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn begin(primary: &Node) -> Load {
        create_tables(&mut primary.connect());
        let progress = Arc::new(Progress::default());
        progress.route.open(primary);
        let acknowledged: Vec<_> = (0..WRITERS).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let begin = |(number, acknowledged): (usize, &Arc<AtomicU64>)| {
            let writer = Writer {
                number: number as u64,
                acknowledged: Arc::clone(acknowledged),
                progress: Arc::clone(&progress),
            };
            thread::spawn(move || writer.run())
        };
        let writers = acknowledged.iter().enumerate().map(begin).collect();
        Load { progress, writers, acknowledged }
    }

    /// Commits so far.
    pub fn commits(&self) -> u64 {
        self.progress.commits.load(Ordering::Relaxed)
    }

    /// Waits until there are `more` commits, or something is wrong. False if that takes longer
    /// than `patience`.
    pub fn wait_for_commits(&self, more: u64, patience: Duration) -> bool {
        let (until, since) = (self.commits() + more, std::time::Instant::now());
        while self.commits() < until && self.progress.violations().is_empty() {
            if since.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// What is wrong with the rows on a node while no writer is busy: each writer's must be those
    /// of its last acknowledged transaction, which it has looked up after each failure.
    ///
    /// # Panics
    /// If the server refuses a query.
    pub fn violations_on(&self, node: &Node) -> Vec<String> {
        let mut conn = node.connect();
        run(&mut conn, &[&format!("USE {DATABASE}")]);
        let (mut wrong, mut all) = (Vec::new(), 0);
        for (writer, acknowledged) in self.acknowledged.iter().enumerate() {
            let (writer, acknowledged) = (writer as u64, acknowledged.load(Ordering::Relaxed));
            let last = last_of(&mut conn, writer).expect("a number");
            if last < acknowledged || last > acknowledged + 1 {
                wrong.push(format!(
                    "node {}: writer {writer} was acknowledged {acknowledged}, and there is {last}",
                    node.id()
                ));
            }
            all += last;
            wrong.extend(
                differences(&mut conn, writer, last).map(|d| format!("node {}: {d}", node.id())),
            );
        }
        let sum: Option<u64> =
            conn.query_first("SELECT CAST(SUM(n) AS UNSIGNED) FROM hot").expect("a sum");
        if sum != Some(all) {
            wrong.push(format!("node {}: hot rows sum up to {sum:?}, not {all}", node.id()));
        }
        wrong
    }

    /// Ends the sessions.
    ///
    /// # Panics
    /// If a writer panicked.
    pub fn end(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            writer.join().expect("a writer doesn't panic");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
    }
}

/// Makes the account that writers use, on one node. It is in no backup of Tidepool's tables.
///
/// # Panics
/// If the server refuses.
pub fn create_account(node: &Node) {
    run(
        &mut node.connect(),
        &[
            "SET sql_log_bin = 0",
            "CREATE USER IF NOT EXISTS app@localhost",
            &format!("GRANT ALL ON {DATABASE}.* TO app@localhost"),
        ],
    );
}

fn create_tables(conn: &mut Conn) {
    let accounts = WRITERS * SLOTS - 1;
    run(
        conn,
        &[
            &format!("CREATE DATABASE {DATABASE}"),
            &format!("USE {DATABASE}"),
            "CREATE TABLE ledger (writer INT, n BIGINT, slot INT NOT NULL, amount INT NOT NULL,
                 pad MEDIUMBLOB NOT NULL, PRIMARY KEY (writer, n), KEY (amount),
                 UNIQUE (n, writer))",
            "CREATE TABLE account (writer INT, slot INT, balance BIGINT NOT NULL,
                 last BIGINT NOT NULL, PRIMARY KEY (writer, slot), KEY (balance))
                 PARTITION BY HASH (slot)
                 PARTITIONS 3",
            "CREATE TABLE hot (id INT PRIMARY KEY, n BIGINT NOT NULL, KEY (n))",
            &format!(
                "INSERT INTO account
                 SELECT seq DIV {SLOTS}, seq % {SLOTS}, 0, 0 FROM seq_0_to_{accounts}"
            ),
            &format!("INSERT INTO hot SELECT seq, 0 FROM seq_0_to_{}", HOT_ROWS - 1),
        ],
    );
}

/// What transaction `n` of a writer books.
struct Booking {
    slot: u64,
    amount: i64,
    pad_bytes: u64,
    hot: u64,
}

impl Booking {
    fn of(writer: u64, n: u64) -> Booking {
        // SplitMix64: any number follows from the two, without a generator's state.
        let mut x = (writer << 48) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let large = x.is_multiple_of(31);
        Booking {
            slot: (x >> 8) % SLOTS,
            amount: ((x >> 16) % 2001) as i64 - 1000,
            pad_bytes: if large { 40_000 } else { (x >> 32) % 300 },
            hot: (x >> 40) % HOT_ROWS,
        }
    }

    fn statements(&self, writer: u64, n: u64) -> Vec<String> {
        let Booking { slot, amount, pad_bytes, hot } = self;
        let mut statements = vec![
            "BEGIN".to_owned(),
            format!(
                "INSERT INTO ledger
                 VALUES ({writer}, {n}, {slot}, {amount}, REPEAT('{}', {pad_bytes}))",
                n % 10
            ),
            format!(
                "UPDATE account SET balance = balance + {amount}, last = {n}
                 WHERE writer = {writer} AND slot = {slot}"
            ),
            // One hot row, after all others: no deadlock.
            format!("UPDATE hot SET n = n + 1 WHERE id = {hot}"),
        ];
        if let Some(old) = n.checked_sub(KEPT) {
            let delete = format!("DELETE FROM ledger WHERE writer = {writer} AND n = {old}");
            statements.insert(1, delete);
        }
        statements
    }
}

/// The number of a writer's last transaction on the server.
fn last_of(conn: &mut Conn, writer: u64) -> mysql::Result<u64> {
    let query =
        format!("SELECT COALESCE(MAX(n), 0) FROM {DATABASE}.ledger WHERE writer = {writer}");
    Ok(conn.query_first(query)?.expect("a row"))
}

/// How a writer's rows differ from those that its first `last` transactions leave.
fn differences(conn: &mut Conn, writer: u64, last: u64) -> impl Iterator<Item = String> {
    let mut accounts: BTreeMap<u64, (i64, u64)> = (0..SLOTS).map(|slot| (slot, (0, 0))).collect();
    let mut ledger = Vec::new();
    for n in 1..=last {
        let booking = Booking::of(writer, n);
        let account = accounts.get_mut(&booking.slot).expect("a slot");
        *account = (account.0 + booking.amount, n);
        if n + KEPT > last {
            ledger.push((n, booking.slot, booking.amount, booking.pad_bytes));
        }
    }
    let query = format!(
        "SELECT n, slot, amount, LENGTH(pad) FROM ledger
         WHERE writer = {writer} AND pad = REPEAT(n % 10, LENGTH(pad)) ORDER BY n"
    );
    let found: Vec<(u64, u64, i64, u64)> = conn.query(query).expect("a ledger");
    let query = format!("SELECT slot, balance, last FROM account WHERE writer = {writer}");
    let rows: Vec<(u64, i64, u64)> = conn.query(query).expect("accounts");
    let found_accounts: BTreeMap<_, _> =
        rows.into_iter().map(|(slot, balance, n)| (slot, (balance, n))).collect();
    let ledger = (found != ledger).then(|| {
        format!("ledger of writer {writer} up to {last}: {found:?} instead of {ledger:?}")
    });
    let accounts = (found_accounts != accounts).then(|| {
        format!(
            "accounts of writer {writer} up to {last}: {found_accounts:?} instead of {accounts:?}"
        )
    });
    ledger.into_iter().chain(accounts)
}

/// One session.
struct Writer {
    number: u64,
    acknowledged: Arc<AtomicU64>,
    progress: Arc<Progress>,
}

impl Writer {
    fn run(self) {
        let mut session: Option<(PathBuf, Conn)> = None;
        while let Some(primary) = self.progress.route.enter(&self.progress.stop) {
            let went_well = self.transaction(&mut session, &primary);
            self.progress.route.leave();
            if let Err(violation) = went_well {
                self.progress.violation(violation);
                return;
            }
            if session.is_none() {
                // The server is gone, and the route will say what comes next.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Does the next transaction. The session is gone if the server is; an error is a violation.
    fn transaction(
        &self,
        session: &mut Option<(PathBuf, Conn)>,
        primary: &Path,
    ) -> Result<(), String> {
        if session.as_ref().is_some_and(|(socket, _)| socket != primary) {
            *session = None;
        }
        if session.is_none() {
            let Ok(mut conn) = connect(primary) else { return Ok(()) };
            let Ok(last) = last_of(&mut conn, self.number) else { return Ok(()) };
            self.look_up(last)?;
            *session = Some((primary.to_path_buf(), conn));
        }
        let (_, conn) = session.as_mut().expect("was made");
        let n = self.acknowledged.load(Ordering::Relaxed) + 1;
        if n.is_multiple_of(13) && self.rolled_back(conn, n)? {
            *session = None;
            return Ok(());
        }
        for statement in Booking::of(self.number, n).statements(self.number, n) {
            if self.is_gone(conn.query_drop(&statement), &statement)? {
                *session = None;
                return Ok(());
            }
        }
        if self.is_gone(conn.query_drop("COMMIT"), "COMMIT")? {
            self.progress.in_doubt.fetch_add(1, Ordering::Relaxed);
            *session = None;
            return Ok(());
        }
        self.acknowledged.store(n, Ordering::Relaxed);
        self.progress.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Compares what a new session finds with what was acknowledged.
    fn look_up(&self, last: u64) -> Result<(), String> {
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        if last == acknowledged + 1 {
            self.acknowledged.store(last, Ordering::Relaxed);
            self.progress.in_doubt_found.fetch_add(1, Ordering::Relaxed);
        } else if last != acknowledged {
            return Err(format!(
                "writer {}: {acknowledged} transactions were acknowledged, and there are {last}",
                self.number
            ));
        }
        Ok(())
    }

    /// Does a transaction and takes it back. Whether the server is gone.
    fn rolled_back(&self, conn: &mut Conn, n: u64) -> Result<bool, String> {
        let statements = Booking::of(self.number, n + 7).statements(self.number, n);
        for statement in statements.iter().map(String::as_str).chain(["ROLLBACK"]) {
            if self.is_gone(conn.query_drop(statement), statement)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an error says that the server is gone, or is not the primary any more.
    fn is_gone(&self, result: mysql::Result<()>, statement: &str) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(false),
            Err(Error::MySqlError(error)) if error.code == OPTION_PREVENTS => Ok(true),
            Err(Error::MySqlError(error)) => {
                Err(format!("writer {}: {statement}: {error}", self.number))
            }
            Err(_) => Ok(true),
        }
    }
}

/// A session of the account that a read-only server refuses to write for.
fn connect(socket: &Path) -> mysql::Result<Conn> {
    Conn::new(
        OptsBuilder::new()
            .socket(Some(socket.to_string_lossy().into_owned()))
            .user(Some("app"))
            .db_name(Some(DATABASE)),
    )
}
