//! The generator of a case: a stream of statements, each made with the knowledge of what the ones
//! before it did.
//!
//! A case is: settings of the session; two or three tables, filled; then blocks of statements (a
//! query over several access paths, a change, a piece of a transaction, DDL, …); the full
//! comparison of every table in the middle and at the end. The seed decides everything, except one
//! thing: whether a statement succeeded on the reference decides which tables there are.

use std::collections::VecDeque;

use super::ddl::{self, Change};
use super::dice::Dice;
use super::schema::Table;
use super::statement::{Body, Statement};
use super::{dml, partition, period, query, trigger, verify};

/// The most tables at a time.
const TABLES_MAX: usize = 5;

/// What a case may contain.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of statements between the first fill and the last comparison.
    pub blocks: usize,
    /// The server may be stopped or killed in between.
    pub restarts: bool,
    /// Tables may get hundreds of rows.
    pub bulk: bool,
}

/// Whether XA PREPARE was.
type Prepared = bool;

/// See the [module](self).
#[derive(Debug)]
pub struct Case {
    dice: Dice,
    limits: Limits,
    tables: Vec<Table>,
    queue: VecDeque<(Statement, Option<Change>)>,
    /// The change that the last statement makes if it succeeds.
    pending: Option<Change>,
    blocks_left: usize,
    in_transaction: bool,
    savepoints: usize,
    /// The transaction is one of XA; prepared, if so.
    xa: Option<Prepared>,
    /// LOCK TABLES.
    locked: bool,
    /// The session's `timestamp`.
    clock: u64,
    triggers: Vec<String>,
    /// The second session has a snapshot.
    snapshot: bool,
    names_given: usize,
    verified: bool,
}

impl Case {
    /// The case of a seed.
    pub fn new(seed: u64, limits: Limits) -> Case {
        let mut case = Case {
            dice: Dice::new(seed),
            limits,
            tables: Vec::new(),
            queue: VecDeque::new(),
            pending: None,
            blocks_left: limits.blocks,
            in_transaction: false,
            savepoints: 0,
            xa: None,
            locked: false,
            clock: period::CLOCK_START,
            triggers: Vec::new(),
            snapshot: false,
            names_given: 0,
            verified: false,
        };
        case.settings();
        for _ in 0..case.dice.range(2, 3) {
            case.create_table();
        }
        case
    }

    /// The next statement; `None` at the end.
    pub fn next_statement(&mut self) -> Option<Statement> {
        while self.queue.is_empty() {
            if self.blocks_left == 0 {
                if self.verified {
                    return None;
                }
                self.verified = true;
                self.end_of_case();
            } else {
                self.blocks_left -= 1;
                self.block();
            }
        }
        let (statement, change) = self.queue.pop_front()?;
        self.pending = change;
        Some(statement)
    }

    /// Says whether the last statement succeeded on the reference.
    pub fn done(&mut self, ok: bool) {
        let Some(change) = self.pending.take().filter(|_| ok) else { return };
        match change {
            Change::Add(table) => self.tables.push(table),
            Change::Remove(name) => self.tables.retain(|table| table.name != name),
            Change::Replace(name, new) => {
                if let Some(table) = self.tables.iter_mut().find(|table| table.name == name) {
                    *table = new;
                }
            }
        }
    }

    fn push(&mut self, statement: Statement) {
        self.queue.push_back((statement, None));
    }

    fn push_all(&mut self, statements: Vec<Statement>) {
        self.queue.extend(statements.into_iter().map(|statement| (statement, None)));
    }

    fn push_change(&mut self, (statement, change): (Statement, Change)) {
        self.queue.push_back((statement, Some(change)));
    }

    fn settings(&mut self) {
        for sql in settings(&mut self.dice) {
            self.push(Statement::plain(sql));
        }
        self.push(Statement::plain(format!("SET timestamp = {}", self.clock)));
    }

    fn new_name(&mut self) -> String {
        self.names_given += 1;
        format!("t{}", self.names_given)
    }

    fn create_table(&mut self) {
        let name = self.new_name();
        let mut table = Table::random(&mut self.dice, &name);
        let create = table.create();
        let mut fill = Vec::new();
        for _ in 0..self.dice.range(2, 5) {
            let count = self.dice.range(3, 15);
            fill.push(dml::insert(&mut self.dice, &mut table, count));
        }
        let count = self.dice.range(5, 60);
        fill.push(dml::fill(&mut self.dice, &mut table, count));
        if self.limits.bulk && self.dice.percent(20) {
            let count = self.dice.range(100, 1200);
            fill.push(dml::bulk_insert(&mut self.dice, &mut table, count));
            table.bulky = true;
        }
        self.push_change((create, Change::Add(table)));
        self.push(Statement::plain(format!("SHOW CREATE TABLE {name}")));
        self.push_all(fill);
    }

    /// The place of any table.
    fn any_table(&mut self) -> Option<usize> {
        (!self.tables.is_empty()).then(|| self.dice.range(0, self.tables.len() - 1))
    }

    fn block(&mut self) {
        let Some(at) = self.any_table() else {
            self.create_table();
            return;
        };
        if self.xa == Some(true) {
            let how = if self.dice_coin() { "COMMIT" } else { "ROLLBACK" };
            self.end_transaction(how);
        }
        if self.dice.percent(30) && self.tables.iter().any(|table| table.versioned) {
            self.clock += 1;
            let sql = format!("SET timestamp = {}", self.clock);
            self.push(Statement::plain(sql));
        }
        type Block = fn(&mut Case, usize);
        let block: Block = self.dice.weighted(&[
            (22, Case::insert as Block),
            (16, Case::update),
            (9, Case::delete),
            (4, Case::multi_table),
            (3, Case::insert_own_rows),
            (22, Case::query),
            (7, Case::join),
            (3, Case::handler),
            (4, Case::prepared),
            (12, Case::transaction),
            (5, Case::snapshot),
            (9, Case::alter),
            (6, Case::table_change),
            (3, Case::feature),
            (1, Case::lock_tables),
            (1, Case::trigger),
            (2, Case::restart),
            (2, Case::verify_all),
        ]);
        block(self, at);
    }

    fn insert(&mut self, at: usize) {
        let table = &mut self.tables[at];
        if self.limits.bulk && self.dice.percent(4) {
            let count = self.dice.range(100, 1500);
            let statement = dml::bulk_insert(&mut self.dice, table, count);
            table.bulky = true;
            self.push(statement);
            return;
        }
        let count = self.dice.weighted(&[(4, 1), (3, 2), (3, 4), (2, 12), (1, 40)]);
        let statement = dml::insert(&mut self.dice, table, count);
        self.push(statement);
    }

    fn update(&mut self, at: usize) {
        if let Some(statement) = dml::update(&mut self.dice, &self.tables[at]) {
            self.push(statement);
        }
    }

    fn delete(&mut self, at: usize) {
        let statement = dml::delete(&mut self.dice, &self.tables[at]);
        self.push(statement);
    }

    fn multi_table(&mut self, at: usize) {
        let other = self.any_table().unwrap_or(at);
        let (left, right) = (&self.tables[at], &self.tables[other]);
        if let Some(statement) = dml::multi_table(&mut self.dice, left, right) {
            self.push(statement);
        }
    }

    fn insert_own_rows(&mut self, at: usize) {
        if let Some(statement) = dml::insert_own_rows(&mut self.dice, &mut self.tables[at]) {
            self.push(statement);
        }
    }

    fn query(&mut self, at: usize) {
        let statements = query::table_queries(&mut self.dice, &self.tables[at]);
        self.push_all(statements);
    }

    fn join(&mut self, at: usize) {
        let other = self.any_table().unwrap_or(at);
        let (left, right) = (&self.tables[at], &self.tables[other]);
        let statements = query::join_queries(&mut self.dice, left, right);
        self.push_all(statements);
    }

    fn handler(&mut self, at: usize) {
        let table = &self.tables[at];
        // Where the next row of a partitioned table is, after one was looked up by its key, the
        // server does not know.
        if table.primary().is_some() && table.partitions.is_none() {
            let statements = query::handler_reads(&mut self.dice, table);
            self.push_all(statements);
        }
    }

    fn prepared(&mut self, at: usize) {
        let statements = dml::prepared(&mut self.dice, &mut self.tables[at]);
        self.push_all(statements);
    }

    fn transaction(&mut self, _: usize) {
        if !self.in_transaction {
            self.in_transaction = true;
            self.savepoints = 0;
            self.locked = false;
            if self.dice.percent(15) {
                self.xa = Some(false);
                self.push(Statement::plain("UNLOCK TABLES"));
                self.push(Statement::plain("XA START '{side}'"));
            } else {
                self.push(Statement::plain("BEGIN"));
            }
            return;
        }
        let what = self.dice.range(0, 9);
        match what {
            0..=3 => {
                self.savepoints += 1;
                self.push(Statement::plain(format!("SAVEPOINT s{}", self.savepoints)));
            }
            4 | 5 if self.savepoints > 0 => {
                let savepoint = self.dice.range(1, self.savepoints);
                self.push(Statement::plain(format!("ROLLBACK TO SAVEPOINT s{savepoint}")));
                self.savepoints = savepoint;
            }
            6 if self.savepoints > 0 => {
                let savepoint = self.dice.range(1, self.savepoints);
                self.push(Statement::plain(format!("RELEASE SAVEPOINT s{savepoint}")));
                self.savepoints = savepoint - 1;
            }
            7 => self.end_transaction("ROLLBACK"),
            8 if self.xa == Some(false) => {
                self.xa = Some(true);
                self.push(Statement::plain("XA END '{side}'"));
                self.push(Statement::plain("XA PREPARE '{side}'").no_warnings());
                if self.limits.restarts && self.dice.percent(30) {
                    self.end_snapshot();
                    self.tables.retain(|table| !table.temporary);
                    let kill = self.dice_coin();
                    self.push(Statement::new(Body::Restart { kill }));
                    self.settings();
                }
            }
            _ => self.end_transaction("COMMIT"),
        }
    }

    fn dice_coin(&mut self) -> bool {
        self.dice.percent(50)
    }

    fn end_transaction(&mut self, how: &str) {
        if self.in_transaction {
            self.in_transaction = false;
            if let Some(prepared) = self.xa.take() {
                if !prepared {
                    self.push(Statement::plain("XA END '{side}'"));
                }
                let phases = if prepared || how == "ROLLBACK" { "" } else { " ONE PHASE" };
                self.push(Statement::plain(format!("XA {how} '{{side}}'{phases}")).no_warnings());
                return;
            }
            // Rows of engines without transactions can't be rolled back: a warning.
            self.push(Statement::plain(how).no_warnings());
        }
    }

    /// Reads of a second session, which sees what there was when its snapshot was taken.
    fn snapshot(&mut self, at: usize) {
        if !self.snapshot {
            if self.locked {
                return;
            }
            self.snapshot = true;
            let isolation =
                self.dice.pick(&["REPEATABLE READ", "REPEATABLE READ", "READ COMMITTED"]);
            let sql = format!("SET TRANSACTION ISOLATION LEVEL {isolation}");
            self.push(Statement::plain(sql).in_second_session());
            let sql = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
            self.push(Statement::plain(sql).no_warnings().in_second_session());
            return;
        }
        let table = &self.tables[at];
        if table.temporary {
            return;
        }
        let statements = if self.dice.percent(70) {
            query::table_queries(&mut self.dice, table)
        } else {
            verify::statements(table).split_off(3)
        };
        for statement in statements {
            let locks =
                statement.sql().contains(" FOR UPDATE") || statement.sql().contains(" LOCK IN ");
            if !locks {
                self.push(statement.in_second_session());
            }
        }
        if self.dice.percent(30) {
            self.end_snapshot();
        }
    }

    fn end_snapshot(&mut self) {
        if self.snapshot {
            self.snapshot = false;
            self.push(Statement::plain("COMMIT").in_second_session());
        }
    }

    /// DDL commits, and waits for the readers of the table.
    fn before_ddl(&mut self) {
        self.end_snapshot();
        if self.in_transaction && (self.xa.is_some() || self.dice.percent(80)) {
            let how = *self.dice.pick(&["COMMIT", "ROLLBACK"]);
            self.end_transaction(how);
        }
        self.in_transaction = false;
    }

    /// What only some tables have.
    fn feature(&mut self, at: usize) {
        let table = self.tables[at].clone();
        if table.versioned && self.dice_coin() {
            let statements = period::history(&mut self.dice, &table, self.clock);
            self.push_all(statements);
        } else if table.period.is_some() {
            if let Some(statement) = period::portion(&mut self.dice, &table) {
                self.push(statement);
            }
        } else if table.partitions.is_some() && self.dice_coin() {
            let statement = partition::query(&mut self.dice, &table);
            self.push(statement);
        } else if !table.temporary && (table.partitions.is_some() || self.dice.percent(10)) {
            self.before_ddl();
            let spare = self.new_name();
            self.queue.extend(partition::change(&mut self.dice, &table, &spare));
            self.push(Statement::plain(format!("SHOW CREATE TABLE {}", table.name)));
        }
    }

    /// Locks all tables, most of them for writing, or lets them go.
    fn lock_tables(&mut self, _: usize) {
        self.before_ddl();
        if self.locked {
            self.locked = false;
            self.push(Statement::plain("UNLOCK TABLES"));
            return;
        }
        let mut locks = Vec::new();
        for table in self.tables.iter().filter(|table| !table.temporary) {
            let how = if self.dice.percent(85) { "WRITE" } else { "READ" };
            locks.push(format!("{} {how}", table.name));
        }
        if !locks.is_empty() {
            self.locked = true;
            self.push(Statement::plain(format!("LOCK TABLES {}", locks.join(", "))).no_warnings());
        }
    }

    fn trigger(&mut self, at: usize) {
        self.before_ddl();
        if !self.triggers.is_empty() && self.dice_coin() {
            let name = self.triggers.remove(0);
            self.push(Statement::plain(format!("DROP TRIGGER {name}")));
            return;
        }
        let other = self.any_table().unwrap_or(at);
        let table = self.tables[at].clone();
        let name = format!("g{}", self.new_name());
        let other = &mut self.tables[other];
        if table.temporary || other.temporary {
            return;
        }
        if let Some(statement) = trigger::create(&mut self.dice, &table, other, &name) {
            self.push(statement);
            self.triggers.push(name);
        }
    }

    fn alter(&mut self, at: usize) {
        let Some(alteration) = ddl::alter(&mut self.dice, &self.tables[at]) else { return };
        self.before_ddl();
        let name = self.tables[at].name.clone();
        self.push_change(alteration);
        self.push(Statement::plain(format!("SHOW CREATE TABLE {name}")));
        self.push(Statement::query(format!("SELECT * FROM {name} LIMIT 0")));
    }

    fn table_change(&mut self, at: usize) {
        self.before_ddl();
        let table = self.tables[at].clone();
        let room = self.tables.len() < TABLES_MAX;
        match self.dice.range(0, 11) {
            0 => self.push_change(ddl::truncate(&table)),
            1 if self.tables.len() > 2 => self.push_change(ddl::drop_table(&table)),
            2 | 3 => {
                let name = self.new_name();
                if let Some(rename) = ddl::rename(&table, &name) {
                    self.push_change(rename);
                }
            }
            4 | 5 => {
                let name = self.new_name();
                let statements = ddl::create_select(&mut self.dice, &table, &name);
                self.push_all(statements);
            }
            6 => self.push(Statement::plain(format!("ANALYZE TABLE {}", table.name))),
            7 if room => self.create_table(),
            8 => {
                let new_settings = settings(&mut self.dice);
                let statement = self.dice.pick(&new_settings).clone();
                self.push(Statement::plain(statement));
            }
            _ if room => {
                let name = self.new_name();
                let (create, change) = ddl::create_like(&table, &name);
                let Change::Add(copy) = &change else { return };
                let statements = dml::copy_rows(&mut self.dice, &table, copy);
                self.push_change((create, change));
                self.push_all(statements);
            }
            _ => {}
        }
    }

    fn restart(&mut self, _: usize) {
        if !self.limits.restarts || !self.dice.percent(20) {
            return;
        }
        self.end_snapshot();
        self.locked = false;
        if self.dice.percent(40) {
            self.killed();
            return;
        }
        let kill = self.dice.percent(60);
        if !kill {
            self.end_transaction("COMMIT");
        }
        self.in_transaction = false;
        self.xa = None;
        self.tables.retain(|table| !table.temporary);
        self.push(Statement::new(Body::Restart { kill }));
        self.settings();
        self.verify_all(0);
    }

    /// A change that the server is killed in.
    fn killed(&mut self) {
        self.end_transaction("COMMIT");
        let Some(at) = self.any_table().filter(|at| !self.tables[*at].temporary) else { return };
        let statement = match self.dice.range(0, 2) {
            0 => Some(dml::delete(&mut self.dice, &self.tables[at])),
            1 => dml::update(&mut self.dice, &self.tables[at]),
            _ => {
                self.tables[at].bulky = true;
                let count = self.dice.range(100, 1500);
                Some(dml::bulk_insert(&mut self.dice, &mut self.tables[at], count))
            }
        };
        let Some(statement) = statement else { return };
        self.tables.retain(|table| !table.temporary);
        self.push(statement.killed());
        self.settings();
        self.verify_all(0);
    }

    fn verify_all(&mut self, _: usize) {
        for table in self.tables.clone() {
            self.push_all(verify::statements(&table));
        }
    }

    fn end_of_case(&mut self) {
        self.verify_all(0);
        let how = *self.dice.pick(&["COMMIT", "ROLLBACK"]);
        if self.in_transaction {
            self.end_transaction(how);
            self.verify_all(0);
        }
        self.end_snapshot();
    }
}

/// Settings of the session, as a batch.
fn settings(dice: &mut Dice) -> Vec<String> {
    let sql_mode = dice.pick(&[
        "STRICT_TRANS_TABLES",
        "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO",
        "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO",
        "",
        "NO_ENGINE_SUBSTITUTION",
        "PAD_CHAR_TO_FULL_LENGTH",
    ]);
    let switches = [
        "index_condition_pushdown",
        "index_merge_sort_intersection",
        "rowid_filter",
        "extended_keys",
        "join_cache_bka",
        "loosescan",
        "materialization",
        "semijoin",
        "condition_pushdown_for_derived",
    ];
    let switch = dice.pick(&switches);
    let state = dice.pick(&["on", "off"]);
    let mut settings = vec![
        format!("SET sql_mode = '{sql_mode}'"),
        format!("SET optimizer_switch = '{switch}={state}'"),
    ];
    if dice.percent(12) {
        settings.push("SET auto_increment_increment = 3, auto_increment_offset = 2".into());
    }
    settings
}
