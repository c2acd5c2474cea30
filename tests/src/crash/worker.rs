//! A worker: one thread, one connection, its rows, and a journal of what became of them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Value, params};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::WORKERS;
use super::content::content;
use super::expected::{Change, Journal, OwnTable, State};
use super::schema::{ACCOUNTS, DATABASE, is_noted_elsewhere, own_table, xa_name};
use crate::server::{Engine, connect_to_socket};

/// Rows that a worker may have in `record`, and in `loose`.
const RECORDS: u32 = 400;
const LOOSE: u32 = 60;

/// A deadlock, a lock wait timeout, a row changed since the snapshot: the transaction is rolled
/// back.
const CONFLICTS: [u16; 3] = [1213, 1205, 1020];
/// The duplicate key that some statements provoke.
const DUPLICATE_KEY: u16 = 1062;

/// What workers did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Transactions (and single statements) that were acknowledged.
    pub committed: u64,
    /// Transactions rolled back on purpose.
    pub rolled_back: u64,
    /// Transactions that met a deadlock or the like.
    pub conflicts: u64,
    /// DDL statements that were acknowledged.
    pub ddl: u64,
    /// Times that a worker read all its rows back in the middle of the load.
    pub read_back: u64,
}

impl Tally {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Tally) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.conflicts += other.conflicts;
        self.ddl += other.ddl;
        self.read_back += other.read_back;
    }
}

/// Why a transaction did not end with COMMIT's answer.
enum Trouble {
    /// The server is gone.
    Gone,
    /// Rolled back by the server.
    Conflict,
    /// What should never be.
    Wrong(String),
}

impl From<mysql::Error> for Trouble {
    fn from(error: mysql::Error) -> Trouble {
        match error {
            mysql::Error::MySqlError(e) if CONFLICTS.contains(&e.code) => Trouble::Conflict,
            // 1927 and 1053: the server stops, in order.
            mysql::Error::MySqlError(e) if [1927, 1053].contains(&e.code) => Trouble::Gone,
            mysql::Error::MySqlError(e) => Trouble::Wrong(e.to_string()),
            _ => Trouble::Gone,
        }
    }
}

/// A worker. See the [module](self).
#[derive(Debug)]
pub struct Worker {
    number: u32,
    engine: Engine,
    rng: StdRng,
    journal: Journal,
    tally: Tally,
}

/// A transaction in the making: its statements have run, its changes are not yet certain.
struct Making {
    state: State,
    changes: Vec<Change>,
}

impl Making {
    fn add(&mut self, change: Change) {
        self.state.apply(&change);
        self.changes.push(change);
    }
}

impl Worker {
    /// A worker that goes on where its journal ends.
    pub fn new(number: u32, engine: Engine, seed: u64, journal: Journal) -> Worker {
        Worker {
            number,
            engine,
            rng: StdRng::seed_from_u64(seed),
            journal,
            tally: Tally::default(),
        }
    }

    /// Works until asked to stop or until the server is gone; returns what should never be, as
    /// well.
    pub fn run(mut self, socket: &Path, stop: &AtomicBool) -> (Tally, Journal, Vec<String>) {
        let mut errors = Vec::new();
        if let Ok(mut conn) = connect_to_socket(socket, DATABASE) {
            let level =
                ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][self.rng.random_range(0..3)];
            let mut going =
                conn.query_drop(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).is_ok();
            while going && !stop.load(Ordering::Relaxed) {
                match self.step(&mut conn) {
                    Ok(()) => {}
                    Err(Trouble::Conflict) => {
                        self.tally.conflicts += 1;
                        going = self.roll_back(&mut conn);
                    }
                    Err(Trouble::Gone) => going = false,
                    Err(Trouble::Wrong(error)) => {
                        errors.push(format!("worker {} ({level}): {error}", self.number));
                        going = false;
                    }
                }
            }
        }
        (self.tally, self.journal, errors)
    }

    fn step(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        match self.rng.random_range(0..100) {
            0..4 => self.own_table_statement(conn),
            4..6 => self.read_back(conn),
            6..20 => self.single_statement(conn),
            20..30 => self.xa_transaction(conn),
            _ => self.transaction(conn),
        }
    }

    /// One statement that commits by itself.
    fn single_statement(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        let id = self.record_id();
        let version = self.rng.random_range(1..u64::from(u32::MAX));
        self.journal.sending(vec![Change::Record(id, Some(version))]);
        let result = write_record(conn, "REPLACE INTO", self.number, id, version);
        self.end(result)
    }

    /// Writes to the journal what became of what was sent.
    fn end(&mut self, result: mysql::Result<()>) -> Result<(), Trouble> {
        match result {
            Ok(()) => {
                self.journal.answered(true);
                self.tally.committed += 1;
                Ok(())
            }
            Err(mysql::Error::MySqlError(error)) if ![1927, 1053].contains(&error.code) => {
                self.journal.answered(false);
                Err(mysql::Error::MySqlError(error).into())
            }
            Err(_) => Err(Trouble::Gone),
        }
    }

    /// Rolls back, whichever kind of transaction it is; whether the server is there.
    fn roll_back(&self, conn: &mut Conn) -> bool {
        let name = xa_name(self.number);
        [format!("XA END '{name}'"), format!("XA ROLLBACK '{name}'"), "ROLLBACK".into()].iter().all(
            |sql| {
                // What does not fit the kind is refused.
                matches!(conn.query_drop(sql), Ok(()) | Err(mysql::Error::MySqlError(_)))
            },
        )
    }

    /// Statements in the transaction that has begun.
    fn statements(&mut self, conn: &mut Conn) -> Result<Making, Trouble> {
        let mut making = Making { state: self.journal.state.clone(), changes: Vec::new() };
        for _ in 0..self.rng.random_range(1..=6) {
            if self.rng.random_range(0..10) == 0 {
                self.savepoint(conn, &mut making)?;
            } else {
                self.statement(conn, &mut making)?;
            }
        }
        Ok(making)
    }

    /// A transaction that is prepared before it is committed. What was prepared outlives a crash,
    /// and then the verification ends it.
    fn xa_transaction(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        let name = xa_name(self.number);
        conn.query_drop(format!("XA START '{name}'"))?;
        let making = self.statements(conn)?;
        conn.query_drop(format!("XA END '{name}'"))?;
        self.journal.sending(making.changes);
        if let Err(error) = conn.query_drop(format!("XA PREPARE '{name}'")) {
            return self.end(Err(error));
        }
        if self.rng.random_range(0..6) == 0 {
            conn.query_drop(format!("XA ROLLBACK '{name}'"))?;
            self.journal.answered(false);
            self.tally.rolled_back += 1;
            return Ok(());
        }
        self.journal.prepared();
        if self.rng.random_bool(0.3) {
            // So that more crashes find one.
            thread::sleep(Duration::from_millis(self.rng.random_range(0..50)));
        }
        let result = conn.query_drop(format!("XA COMMIT '{name}'"));
        self.end(result)
    }

    fn transaction(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        conn.query_drop("START TRANSACTION")?;
        let making = self.statements(conn)?;
        if self.rng.random_range(0..12) == 0 {
            conn.query_drop("ROLLBACK")?;
            self.tally.rolled_back += 1;
            return Ok(());
        }
        self.journal.sending(making.changes);
        let result = conn.query_drop("COMMIT");
        self.end(result)
    }

    /// Statements after a savepoint, which is then rolled back to or released.
    fn savepoint(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        conn.query_drop("SAVEPOINT s")?;
        let mut inner = Making { state: making.state.clone(), changes: making.changes.clone() };
        for _ in 0..self.rng.random_range(1..=3) {
            self.statement(conn, &mut inner)?;
        }
        if self.rng.random_bool(0.5) {
            conn.query_drop("ROLLBACK TO SAVEPOINT s")?;
        } else {
            conn.query_drop("RELEASE SAVEPOINT s")?;
            *making = inner;
        }
        Ok(())
    }

    fn statement(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        match self.rng.random_range(0..100) {
            0..30 => self.insert(conn, making),
            30..55 => self.update(conn, making),
            55..70 => self.delete(conn, making),
            70..78 => self.upsert(conn, making),
            78..83 => self.failing_insert(conn, making),
            83..93 => self.loose(conn, making),
            _ => self.transfer(conn, making),
        }
    }

    /// A key of this worker's, of a row that may exist or not.
    fn record_id(&mut self) -> u32 {
        self.rng.random_range(0..RECORDS) * WORKERS + self.number
    }

    fn version(&mut self) -> u64 {
        self.rng.random_range(1..u64::from(u32::MAX))
    }

    /// Several new rows by one statement.
    fn insert(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let count = self.rng.random_range(1..=5);
        let mut rows = Vec::new();
        for _ in 0..count {
            let (id, version) = (self.record_id(), self.version());
            if !making.state.records.contains_key(&id) {
                making.add(Change::Record(id, Some(version)));
                rows.push((id, version));
            }
        }
        insert_records(conn, self.number, &rows)?;
        Ok(())
    }

    /// An INSERT whose last row exists already: none of its rows may stay.
    fn failing_insert(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let Some(existing) = making.state.records.keys().next().copied() else { return Ok(()) };
        let mut rows: Vec<(u32, u64)> = Vec::new();
        for _ in 0..3 {
            let (id, version) = (self.record_id(), self.version());
            if !making.state.records.contains_key(&id) {
                rows.push((id, version));
            }
        }
        rows.push((existing, 1));
        match insert_records(conn, self.number, &rows) {
            Err(mysql::Error::MySqlError(e)) if e.code == DUPLICATE_KEY => Ok(()),
            Err(e) => Err(e.into()),
            Ok(()) => Err(Trouble::Wrong(format!("key {existing} was inserted twice"))),
        }
    }

    /// A row gets another version; every column changes, so every index does.
    fn update(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let (id, version) = (self.record_id(), self.version());
        let new = content(id, version);
        conn.exec_drop(
            "UPDATE record SET version = :version, small = :small, name = :name, tag = :tag, data = :data
             WHERE id = :id",
            params! { "version" => version, "small" => new.small, "name" => new.name, "tag" => new.tag,
            "data" => new.data, "id" => id },
        )?;
        self.expect_affected(conn, id, making)?;
        if making.state.records.contains_key(&id) {
            making.add(Change::Record(id, Some(version)));
        }
        Ok(())
    }

    fn delete(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let id = self.record_id();
        conn.exec_drop("DELETE FROM record WHERE id = ?", (id,))?;
        self.expect_affected(conn, id, making)?;
        making.add(Change::Record(id, None));
        Ok(())
    }

    /// A statement for one key found a row if and only if there is one.
    fn expect_affected(&self, conn: &Conn, id: u32, making: &Making) -> Result<(), Trouble> {
        let expected = u64::from(making.state.records.contains_key(&id));
        if conn.affected_rows() == expected {
            return Ok(());
        }
        Err(Trouble::Wrong(format!(
            "key {id}: {} rows affected, expected {expected}",
            conn.affected_rows()
        )))
    }

    fn upsert(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let (id, version) = (self.record_id(), self.version());
        if self.rng.random_bool(0.5) {
            write_record(conn, "REPLACE INTO", self.number, id, version)?;
        } else {
            let new = content(id, version);
            conn.exec_drop(
                "INSERT INTO record VALUES (:id, :owner, :version, :small, :name, :tag, :data)
                 ON DUPLICATE KEY UPDATE version = VALUES(version), small = VALUES(small), name = VALUES(name),
                 tag = VALUES(tag), data = VALUES(data)",
                params! { "id" => id, "owner" => self.number, "version" => version, "small" => new.small,
                "name" => new.name, "tag" => new.tag, "data" => new.data },
            )?;
        }
        making.add(Change::Record(id, Some(version)));
        Ok(())
    }

    /// The table without a primary key.
    fn loose(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let (id, version) = (self.rng.random_range(0..LOOSE), self.version());
        let note = content(id, version).tag;
        if !making.state.loose.contains_key(&id) {
            conn.exec_drop(
                "INSERT INTO loose VALUES (?, ?, ?, ?)",
                (self.number, id, version, note),
            )?;
            making.add(Change::Loose(id, Some(version)));
        } else if self.rng.random_bool(0.5) {
            conn.exec_drop(
                "UPDATE loose SET version = ?, note = ? WHERE owner = ? AND id = ?",
                (version, note, self.number, id),
            )?;
            making.add(Change::Loose(id, Some(version)));
        } else {
            conn.exec_drop("DELETE FROM loose WHERE owner = ? AND id = ?", (self.number, id))?;
            making.add(Change::Loose(id, None));
        }
        Ok(())
    }

    /// Money goes from one account to another: rows that all workers want, in no fixed order, so
    /// there are deadlocks.
    fn transfer(&mut self, conn: &mut Conn, making: &mut Making) -> Result<(), Trouble> {
        let (from, to) = (self.rng.random_range(0..ACCOUNTS), self.rng.random_range(0..ACCOUNTS));
        let amount = self.rng.random_range(1..100i64);
        let number = making.state.transfers.last_key_value().map_or(1, |(last, _)| last + 1);
        conn.exec_drop("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, from))?;
        conn.exec_drop("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, to))?;
        conn.exec_drop(
            "INSERT INTO transfer VALUES (?, ?, ?, ?, ?)",
            (self.number, number, from, to, amount),
        )?;
        if is_noted_elsewhere(number) {
            conn.exec_drop(
                "INSERT INTO transfer_elsewhere VALUES (?, ?, ?, ?, ?)",
                (self.number, number, from, to, amount),
            )?;
        }
        making.add(Change::Transfer(number, (from, to, amount)));
        Ok(())
    }

    /// DDL (and inserts) on the worker's own table.
    fn own_table_statement(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        let Some(own) = self.journal.state.own.clone() else {
            let name = own_table(self.number, false);
            let new = OwnTable { renamed: false, wide: false, rows: 0 };
            let ddl = format!(
                "CREATE TABLE {name} (id INT PRIMARY KEY, v INT, pad VARCHAR(100), KEY (v))"
            );
            return self.own_statement(conn, &ddl, Some(new));
        };
        let name = own_table(self.number, own.renamed);
        match self.rng.random_range(0..10) {
            0 => self.own_statement(conn, &format!("DROP TABLE {name}"), None),
            1 => self.own_statement(
                conn,
                &format!("TRUNCATE TABLE {name}"),
                Some(OwnTable { rows: 0, ..own }),
            ),
            2 | 3 => {
                let new_name = own_table(self.number, !own.renamed);
                let new = OwnTable { renamed: !own.renamed, ..own };
                self.own_statement(conn, &format!("RENAME TABLE {name} TO {new_name}"), Some(new))
            }
            4 | 5 => {
                let change = if own.wide {
                    "DROP COLUMN extra"
                } else {
                    "ADD COLUMN extra INT NOT NULL DEFAULT 7"
                };
                let new = OwnTable { wide: !own.wide, ..own };
                let algorithm = self.algorithm();
                self.own_statement(
                    conn,
                    &format!("ALTER TABLE {name} {change}, ALGORITHM={algorithm}"),
                    Some(new),
                )
            }
            6 => {
                let change =
                    ["ADD KEY IF NOT EXISTS more (pad, v)", "DROP KEY IF EXISTS more", "FORCE"]
                        [self.rng.random_range(0..3)];
                let algorithm = self.algorithm();
                self.own_statement(
                    conn,
                    &format!("ALTER TABLE {name} {change}, ALGORITHM={algorithm}"),
                    Some(own),
                )
            }
            _ => {
                let count = self.rng.random_range(1..=50);
                let rows: Vec<String> = (own.rows + 1..=own.rows + count)
                    .map(|id| format!("({id}, {}, REPEAT('x', {}))", id * 3, id % 100))
                    .collect();
                let insert = format!("INSERT INTO {name} (id, v, pad) VALUES {}", rows.join(", "));
                self.own_statement(conn, &insert, Some(OwnTable { rows: own.rows + count, ..own }))
            }
        }
    }

    /// How ALTER TABLE is done. By copy with InnoDB: its instant ALTER does not always survive this
    /// loop (10.11.18: "contains unrecognizable instant ALTER metadata" after a crash, and the
    /// table cannot be opened any more).
    fn algorithm(&mut self) -> &'static str {
        let in_place = self.engine == Engine::Tidepool && self.rng.random_bool(0.6);
        if in_place { "DEFAULT" } else { "COPY" }
    }

    fn own_statement(
        &mut self,
        conn: &mut Conn,
        statement: &str,
        new: Option<OwnTable>,
    ) -> Result<(), Trouble> {
        self.journal.sending(vec![Change::Own(new)]);
        let result = conn.query_drop(statement);
        self.end(result)?;
        self.tally.ddl += u64::from(!statement.starts_with("INSERT"));
        Ok(())
    }

    /// Reads all own rows by a secondary index in the middle of the load.
    fn read_back(&mut self, conn: &mut Conn) -> Result<(), Trouble> {
        let rows: Vec<(u32, u64)> = conn.exec(
            "SELECT id, version FROM record FORCE INDEX (by_owner) WHERE owner = ?",
            (self.number,),
        )?;
        let actual = State { records: rows.into_iter().collect(), ..self.journal.state.clone() };
        let differences = self.journal.state.differences(&actual);
        if !differences.is_empty() {
            return Err(Trouble::Wrong(format!("read back: {}", differences.join("; "))));
        }
        self.tally.read_back += 1;
        Ok(())
    }
}

/// Writes one row of `record` by INSERT or REPLACE.
fn write_record(
    conn: &mut Conn,
    verb: &str,
    owner: u32,
    id: u32,
    version: u64,
) -> mysql::Result<()> {
    let new = content(id, version);
    conn.exec_drop(
        format!("{verb} record VALUES (?, ?, ?, ?, ?, ?, ?)"),
        (id, owner, version, new.small, new.name, new.tag, new.data),
    )
}

/// Inserts rows of `record` by one statement.
fn insert_records(conn: &mut Conn, owner: u32, rows: &[(u32, u64)]) -> mysql::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let places = vec!["(?, ?, ?, ?, ?, ?, ?)"; rows.len()].join(", ");
    let mut values: Vec<Value> = Vec::new();
    for (id, version) in rows {
        let new = content(*id, *version);
        values.extend([id.into(), owner.into(), version.into(), new.small.into(), new.name.into()]);
        values.extend([new.tag.into(), new.data.into()]);
    }
    conn.exec_drop(format!("INSERT INTO record VALUES {places}"), values)
}
