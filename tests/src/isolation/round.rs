//! One round: a load in many sessions, its end, and the check of what they recorded.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;

use super::check::{check, claim};
use super::history::{
    AfterCrash, History, Kind, Level, Outcome, Read, Row, Scope, Span, Step, Transaction, WriteId,
};
use super::schema::{BULK, DATABASE, KEYS, TABLES, all_rows};
use super::session::{self, Load, Record, Shared, Tally};
use super::{Settings, Summary};
use crate::differential::dice::Dice;
use crate::server::{Engine, Server, connect_to_socket};

/// What goes on from round to round.
#[derive(Debug)]
pub struct Rounds {
    ids: Arc<AtomicU32>,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds::new()
    }
}

/// Does something again and again until the round is over, and says how often.
type Beside = fn(&Shared, Dice) -> u64;
/// Where that is counted.
type Count = fn(&mut Summary) -> &mut u64;

/// What a round is like.
struct Plan {
    load: Load,
    sessions: usize,
    kill: bool,
    /// What goes on beside the sessions.
    beside: Vec<(Count, Beside)>,
    seeds: Vec<u64>,
    length: Duration,
}

impl Plan {
    fn new(settings: &Settings, seed: u64) -> Plan {
        let mut dice = Dice::new(seed);
        let levels = match settings.level {
            Some(level) => vec![level],
            // In turn each alone, then all of them.
            None => match Level::ALL.get((seed % 4) as usize) {
                Some(level) => vec![*level],
                None => Level::ALL.to_vec(),
            },
        };
        let kill = settings.kill_every > 0 && seed.is_multiple_of(settings.kill_every);
        let alters = settings.alters && dice.percent(40);
        let load = Load {
            levels,
            keys: dice.range(2, usize::from(KEYS)) as u8,
            marks: kill,
            careless: settings.careless,
            autocommit_percent: *dice.pick(&[0, 10, 30, 60]),
            extra_index: alters,
            clustered_only: settings.engine == Engine::InnoDb,
            misses_moved_rows: settings.engine == Engine::InnoDb,
            interrupts: dice.percent(40),
            slow_permille: *dice.pick(&[0, 5, 20]),
        };
        let all: [(bool, Count, Beside); 3] = [
            (alters, |summary| &mut summary.alters, alter),
            (load.interrupts, |summary| &mut summary.interrupts, interrupt),
            (dice.percent(40), |summary| &mut summary.bulk, bulk),
        ];
        let beside =
            all.into_iter().filter(|each| each.0).map(|(_, count, body)| (count, body)).collect();
        let sessions = dice.range(3, 16);
        let seeds = (0..sessions).map(|_| dice.u64()).collect();
        let percent = if kill { dice.range(20, 100) } else { 100 } as u32;
        Plan { load, sessions, kill, beside, seeds, length: settings.round * percent / 100 }
    }
}

impl Rounds {
    /// Before the first round.
    pub fn new() -> Rounds {
        Rounds { ids: Arc::new(AtomicU32::new(1)) }
    }

    /// One round; what is found goes into the summary.
    ///
    /// # Panics
    /// If the server refuses what it must not, or does not start after a kill.
    pub fn run(
        &mut self,
        server: &mut Server,
        settings: &Settings,
        seed: u64,
        summary: &mut Summary,
    ) {
        let plan = Plan::new(settings, seed);
        let mut conn = server.connect_to(DATABASE);
        let initial = all_rows(&mut conn).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let start = Instant::now();
        let shared = Shared {
            socket: server.socket().to_path_buf(),
            stop: Arc::new(AtomicBool::new(false)),
            ids: Arc::clone(&self.ids),
            start,
            connections: Arc::default(),
        };
        let sessions: Vec<_> = (0..plan.sessions as u32)
            .map(|number| {
                let (load, shared) = (plan.load.clone(), shared.clone());
                let seed = plan.seeds[number as usize];
                thread::spawn(move || session::run(number, seed, load, shared))
            })
            .collect();
        let beside: Vec<_> = plan
            .beside
            .iter()
            .map(|(count, body)| {
                let (body, shared) = (*body, shared.clone());
                (count, thread::spawn(move || body(&shared, Dice::new(seed ^ 0xBE51DE))))
            })
            .collect();
        sleep(plan.length);
        if plan.kill {
            server.kill9();
            summary.kills += 1;
        }
        shared.stop.store(true, Ordering::Relaxed);
        let records: Vec<Record> = sessions
            .into_iter()
            .map(|thread| thread.join().expect("a session doesn't panic"))
            .collect();
        for (count, thread) in beside {
            *count(summary) += thread.join().expect("it doesn't panic");
        }
        let loaded = start.elapsed();
        let mut history = History { initial, ..History::default() };
        let (mut tally, mut errors, mut marks) = (Tally::default(), Vec::new(), Vec::new());
        for record in records {
            tally.add(&record.tally);
            errors.extend(record.errors);
            for (transaction, mark) in record.transactions {
                marks.extend(mark.map(|mark| (mark, history.transactions.len())));
                history.transactions.push(transaction);
            }
        }
        if plan.kill {
            server.restart();
        }
        let mut conn = server.connect_to(DATABASE);
        let from = start.elapsed().as_nanos() as u64;
        match all_rows(&mut conn) {
            Err(error) => errors.push(format!("after the round: {error}")),
            Ok(rows) if plan.kill => {
                history.after_crash = Some(after_crash(&mut conn, rows, &marks));
            }
            Ok(rows) => {
                let span = Span { from, to: start.elapsed().as_nanos() as u64 };
                history.transactions.push(last_look(rows, span));
            }
        }
        // An index that a kill has left.
        for table in 0..TABLES {
            let drop = format!("ALTER TABLE t{table} DROP INDEX IF EXISTS extra");
            conn.query_drop(drop).expect("an index can be dropped");
        }
        summary.tally.add(&tally);
        if let Some(level) = settings.claim {
            claim(&mut history, level);
        }
        let checking = Instant::now();
        let anomalies = check(&history);
        if settings.verbose {
            let levels: Vec<&str> = plan.load.levels.iter().map(|level| level.sql()).collect();
            println!(
                "seed {seed}: {}{}{}, {} sessions, {} keys, {:.1} s, {} transactions: {} committed, {} deadlocks, {} changed, \
                 {} timeouts, {} refused, {} in doubt; checked in {:.1} s: {} anomalies",
                levels.join(" + "),
                if plan.kill { ", killed" } else { "" },
                if plan.load.extra_index { ", altered" } else { "" },
                plan.sessions,
                plan.load.keys,
                loaded.as_secs_f64(),
                history.transactions.len(),
                tally.committed,
                tally.deadlocks,
                tally.changed,
                tally.timeouts,
                tally.refused,
                tally.in_doubt,
                checking.elapsed().as_secs_f64(),
                anomalies.len() + errors.len(),
            );
        }
        let at = |text: String| format!("seed {seed}: {text}");
        summary.failures.extend(errors.into_iter().map(at));
        summary.names.extend(anomalies.iter().map(|anomaly| anomaly.name));
        let reports = anomalies.iter().take(10).map(|anomaly| anomaly.report(&history));
        summary.failures.extend(reports.map(at));
    }
}

/// The rows at the end of a round, as a transaction that has read them all.
fn last_look(rows: Vec<Row>, span: Span) -> Transaction {
    let scope = |table| Scope { table, keys: u32::MAX, buckets: u32::MAX };
    let scopes = (0..TABLES).map(scope).collect();
    let read = Read { scopes, rows, ..Read::default() };
    let sql = "the rows at the end of the round".into();
    let step = Step { span, sql, kind: Kind::Done, reads: vec![read], writes: Vec::new() };
    Transaction {
        session: u32::MAX,
        level: Level::RepeatableRead,
        autocommit: true,
        steps: vec![step],
        end: span,
        outcome: Outcome::Committed,
    }
}

/// What is there after a kill; `marks` are those that transactions were to leave.
fn after_crash(conn: &mut mysql::Conn, rows: Vec<Row>, marks: &[(WriteId, usize)]) -> AfterCrash {
    let left: Vec<WriteId> = conn.query("SELECT id FROM mark").expect("the marks can be read");
    conn.query_drop("TRUNCATE TABLE mark").expect("the marks can be removed");
    let left: HashSet<WriteId> = left.into_iter().collect();
    let marked = marks.iter().filter(|(mark, _)| left.contains(mark)).map(|mark| mark.1).collect();
    AfterCrash { rows, marked, marking: marks.iter().map(|mark| mark.1).collect() }
}

/// Adds and drops an index.
fn alter(shared: &Shared, mut dice: Dice) -> u64 {
    let Ok(mut conn) = connect_to_socket(&shared.socket, DATABASE) else { return 0 };
    let mut done = 0;
    let mut there = [false; TABLES as usize];
    while !shared.stop.load(Ordering::Relaxed) {
        let table = dice.range(0, usize::from(TABLES) - 1);
        let change = if there[table] { "DROP INDEX extra" } else { "ADD INDEX extra (b, l)" };
        let sql = format!("SET STATEMENT lock_wait_timeout=5 FOR ALTER TABLE t{table} {change}");
        match conn.query_drop(sql) {
            Ok(()) => {
                there[table] = !there[table];
                done += 1;
            }
            Err(mysql::Error::MySqlError(_)) => {}
            Err(_) => break,
        }
        sleep(Duration::from_millis(dice.range(5, 200) as u64));
    }
    done
}

/// Kills statements, whatever they are.
fn interrupt(shared: &Shared, mut dice: Dice) -> u64 {
    let Ok(mut conn) = connect_to_socket(&shared.socket, DATABASE) else { return 0 };
    let mut done = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(dice.range(1, 10) as u64));
        let connections = shared.connections.lock().expect("no thread panics with it").clone();
        if !connections.is_empty() {
            let sql = format!("KILL QUERY {}", dice.pick(&connections));
            match conn.query_drop(sql) {
                Ok(()) => done += 1,
                // The session has ended.
                Err(mysql::Error::MySqlError(_)) => {}
                Err(_) => break,
            }
        }
    }
    done
}

/// Reads and writes a table that does not fit the pool.
fn bulk(shared: &Shared, mut dice: Dice) -> u64 {
    let Ok(mut conn) = connect_to_socket(&shared.socket, DATABASE) else { return 0 };
    let mut done = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let (from, len) = (dice.range(1, BULK), dice.range(3000, 9000));
        let sql = if dice.percent(50) {
            format!(
                "UPDATE bulk SET pad = REPEAT('=', {len}) WHERE id BETWEEN {from} AND {from} + 20"
            )
        } else {
            format!("SELECT COUNT(pad) FROM bulk WHERE id BETWEEN {from} AND {from} + 400")
        };
        match conn.query_drop(sql) {
            Ok(()) => done += 1,
            Err(mysql::Error::MySqlError(_)) => {}
            Err(_) => break,
        }
    }
    done
}
