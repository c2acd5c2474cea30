//! Isolation anomalies by name, as text scripts in `tests/isolation/`: what each isolation level
//! lets happen, and what it turns into an error or a wait.
//!
//! A script's sessions are the prefixes of its commands (`t1: …`), each with a separate thread. A
//! command that has to wait for another session's lock prints `waits`; the command that lets it go
//! on also prints what became of it (`t2 goes on: …`). `UPDATE_GOLDENFILES=1 cargo test --test
//! isolation` rewrites the outputs: read the diff.
//!
//! Commands: `reset k=v…` (a new database), and by session: `begin ru|rc|rr|serializable|snapshot`
//! (`snapshot` = rr with its view taken at once), `get k [shared|exclusive] [nowait|skip]`, `scan
//! [from=k] [to=k] [shared|exclusive] [nowait|skip] [reverse] [ends]` (`ends`: the cursor knows
//! where), `gets k… [shared|exclusive]` and `scans from-to… [shared|exclusive]` (several in one
//! statement), `insert k=v`, `update k=v`, `move k to=v`, `delete k`, `savepoint s`, `back_to s`,
//! `kill`, `commit`, `rollback`.

use goldenscript::{Command, Runner};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tidepool::explain::LockReport;
use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, Error, IndexDef, Interrupt, Isolation, LockMode, LockWait, Options, ReadRequest,
    Savepoint, Seek, Table, TableDef, Transaction, TransactionOptions,
};

macro_rules! scripts {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(concat!(stringify!($name), ".script")); })*
    };
}

scripts! {
    dirty_write dirty_read aborted_read intermediate_read circular_information_flow fuzzy_read phantom
    lost_update read_skew write_skew write_skew_predicate observed_transaction_vanishes
    cursor_lost_update read_only_anomaly deadlock no_wait skip_locked savepoint own_writes kill
    duplicate_key delete_and_insert range_boundary moved_row absent_key
}

fn run(script: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/isolation").join(script);
    goldenscript::run(&mut Sessions::default(), path).expect("the script runs");
}

/// How long nothing must happen before a session that has not answered is taken to wait for a lock.
/// Only sessions that the engine itself counts as waiting get that far.
const SETTLED: Duration = Duration::from_millis(40);
const STUCK: Duration = Duration::from_secs(20);

type Answer = Result<String, Error>;
type Task = Box<dyn FnOnce(&mut Session) -> Answer + Send>;

/// What a session's thread owns.
struct Session {
    table: Arc<Table>,
    trx: Transaction,
    savepoints: BTreeMap<String, Savepoint>,
}

/// The script's side of a session's thread.
struct SessionThread {
    tasks: Sender<Task>,
    answers: Receiver<Answer>,
    waits: bool,
    interrupt: Option<Arc<Interrupt>>,
}

#[derive(Default)]
struct Sessions {
    db: Option<(Db, Arc<Table>)>,
    threads: BTreeMap<String, SessionThread>,
}

impl Sessions {
    fn reset(&mut self, command: &Command) -> Result<String, Box<dyn StdError>> {
        self.end_all()?;
        let options = Options {
            buffer_pool_size_bytes: 4 << 20,
            redo_capacity_bytes: 8 << 20,
            lock_wait_timeout: STUCK * 2,
            ..Options::default()
        };
        let db = Db::open_on(Arc::new(SimStorage::new(1)), options)?;
        let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")]))?;
        let mut trx = db.begin(TransactionOptions::default());
        for arg in &command.args {
            let key = arg.key.as_deref().ok_or("reset takes k=v")?;
            trx.insert(&table, 0, key.as_bytes(), arg.value.as_bytes())?;
        }
        trx.commit()?;
        self.db = Some((db, table));
        Ok(String::new())
    }

    fn end_all(&mut self) -> Result<(), Box<dyn StdError>> {
        for (name, thread) in std::mem::take(&mut self.threads) {
            if thread.waits {
                return Err(format!("{name} still waits").into());
            }
        }
        self.db = None;
        Ok(())
    }

    fn begin(&mut self, name: &str, how: &str) -> Result<String, Box<dyn StdError>> {
        let (db, table) = self.db.as_ref().ok_or("reset comes first")?;
        let isolation = match how {
            "ru" => Isolation::ReadUncommitted,
            "rc" => Isolation::ReadCommitted,
            "rr" | "snapshot" => Isolation::RepeatableRead,
            "serializable" => Isolation::Serializable,
            other => return Err(format!("isolation {other}?").into()),
        };
        let mut trx = db.begin(TransactionOptions { isolation, ..TransactionOptions::default() });
        if how == "snapshot" {
            trx.ensure_view();
        }
        let interrupt = Some(trx.interrupt_handle());
        let mut session = Session { table: table.clone(), trx, savepoints: BTreeMap::new() };
        let (tasks, todo) = channel::<Task>();
        let (done, answers) = channel();
        std::thread::spawn(move || {
            for task in todo {
                let answer = task(&mut session);
                if done.send(answer).is_err() {
                    return;
                }
            }
        });
        let thread = SessionThread { tasks, answers, waits: false, interrupt };
        self.threads.insert(name.into(), thread);
        Ok(String::new())
    }

    /// Lets all sessions run until each has answered or waits for a lock. Gives the answer of
    /// `name` (if it must be distinguished) and the lines of those that went on.
    fn settle(&mut self, name: &str) -> Result<(Option<Answer>, Vec<String>), Box<dyn StdError>> {
        let (mut answer, mut went_on) = (None, vec![]);
        let start = Instant::now();
        let mut quiet_since = Instant::now();
        loop {
            let mut moved = false;
            for (other, thread) in &mut self.threads {
                while let Ok(result) = thread.answers.try_recv() {
                    moved = true;
                    thread.waits = false;
                    if other == name && answer.is_none() {
                        answer = Some(result);
                    } else {
                        went_on.push(format!("{other} goes on: {}", show(result)));
                    }
                }
            }
            if moved {
                quiet_since = Instant::now();
            }
            let waiting = self.threads.values().filter(|thread| thread.waits).count() as u64;
            if waiting == 0 {
                return Ok((answer, went_on));
            }
            let (db, _) = self.db.as_ref().ok_or("reset comes first")?;
            let counted = blocked_requests(db);
            if counted != waiting {
                quiet_since = Instant::now();
            }
            if quiet_since.elapsed() >= SETTLED {
                went_on.sort();
                return Ok((answer, went_on));
            }
            if start.elapsed() > STUCK {
                return Err(format!("{waiting} sessions wait, the engine counts {counted}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `task` on the thread of session `name`; the text says `what` it was and what became of
    /// it.
    fn task(&mut self, name: &str, what: &str, task: Task) -> Result<String, Box<dyn StdError>> {
        let thread = self.threads.get_mut(name).ok_or("begin comes first")?;
        if thread.waits {
            return Err(format!("{name} still waits").into());
        }
        thread.waits = true;
        thread.tasks.send(task)?;
        let (answer, mut lines) = self.settle(name)?;
        lines.insert(0, format!("{what} → {}", answer.map_or("waits".into(), show)));
        Ok(lines.join("\n"))
    }
}

/// Lock requests that a live transaction blocks. Those whose blockers have all ended go on, as soon
/// as their threads run: on a busy machine that takes a while.
fn blocked_requests(db: &Db) -> u64 {
    let live: BTreeSet<u64> = db.transactions().iter().map(|one| one.id).collect();
    let is_blocked = |lock: &&LockReport| {
        !lock.granted && lock.blocking.iter().any(|blocker| live.contains(blocker))
    };
    db.locks().locks.iter().filter(is_blocked).count() as u64
}

fn show(answer: Answer) -> String {
    match answer {
        Ok(text) => text,
        Err(Error::DuplicateKey { index, value }) => {
            format!("error: duplicate key in index {index}, there is {}", text(&value))
        }
        Err(error) => format!("error: {error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lock mode and wait of a command's words.
fn locking(command: &Command) -> (LockMode, LockWait) {
    let has = |word: &str| command.args.iter().any(|arg| arg.key.is_none() && arg.value == word);
    let mode = match () {
        () if has("shared") => LockMode::Shared,
        () if has("exclusive") => LockMode::Exclusive,
        () => LockMode::None,
    };
    let wait = match () {
        () if has("nowait") => LockWait::NoWait,
        () if has("skip") => LockWait::SkipLocked,
        () => LockWait::Wait,
    };
    (mode, wait)
}

fn scan(session: &mut Session, command: &Command) -> Answer {
    let (mode, wait) = locking(command);
    let arg = |name: &str| {
        command
            .args
            .iter()
            .find(|arg| arg.key.as_deref() == Some(name))
            .map(|arg| arg.value.clone())
    };
    let reverse = command.args.iter().any(|arg| arg.value == "reverse");
    let (from, to) = (arg("from"), arg("to"));
    let mut cursor = Cursor::new(session.table.clone(), 0, mode, wait);
    let (start, end) = if reverse { (&to, &from) } else { (&from, &to) };
    if let Some(end) = end
        && command.args.iter().any(|arg| arg.value == "ends")
    {
        cursor.set_end(Bound::Included(end.as_bytes()));
    }
    let trx = &mut session.trx;
    let mut more = match (start, reverse) {
        (Some(key), false) => cursor.seek(trx, key.as_bytes(), Seek::AtOrAfter)?,
        (Some(key), true) => cursor.seek(trx, key.as_bytes(), Seek::AtOrBefore)?,
        (None, false) => cursor.first(trx)?,
        (None, true) => cursor.last(trx)?,
    };
    let mut found = vec![];
    while more {
        let key = text(cursor.key());
        let past = end.as_ref().is_some_and(|end| if reverse { key < *end } else { key > *end });
        if past {
            break;
        }
        found.push(format!("{key}={}", text(cursor.value())));
        more = if reverse { cursor.prev(trx)? } else { cursor.next(trx)? };
    }
    Ok(if found.is_empty() { "nothing".into() } else { found.join(" ") })
}

/// One command on a session's thread. Each is a statement.
fn statement(session: &mut Session, command: &Command) -> Answer {
    session.trx.begin_statement();
    let answer = statement_body(session, command);
    session.trx.end_statement();
    answer
}

fn statement_body(session: &mut Session, command: &Command) -> Answer {
    let first = &command.args.first();
    let pair =
        || first.map(|a| (a.key.clone().unwrap_or_default(), a.value.clone())).unwrap_or_default();
    let (key, value) = pair();
    let word = value.clone();
    let (trx, table) = (&mut session.trx, &session.table);
    match command.name.as_str() {
        // `gets a b c`: one statement that looks several keys up.
        "gets" => {
            let (mode, wait) = locking(command);
            let is_key = |word: &&str| !["shared", "exclusive", "skip", "nowait"].contains(word);
            let mut found = vec![];
            for key in command.args.iter().map(|arg| &arg.value[..]).filter(is_key) {
                let mut out = vec![];
                if trx.read(
                    table,
                    0,
                    ReadRequest::new(key.as_bytes(), &mut out).locked(mode, wait),
                )? {
                    found.push(format!("{key}={}", text(&out)));
                }
            }
            return Ok(if found.is_empty() { "nothing".into() } else { found.join(" ") });
        }
        // `scans a-c m-p`: one statement that reads several ranges.
        "scans" => {
            let (mode, wait) = locking(command);
            let mut found = vec![];
            for (from, to) in command.args.iter().filter_map(|arg| arg.value.split_once('-')) {
                let mut cursor = Cursor::new(table.clone(), 0, mode, wait);
                cursor.set_end(Bound::Included(to.as_bytes()));
                let mut more = cursor.seek(trx, from.as_bytes(), Seek::AtOrAfter)?;
                while more && cursor.key() <= to.as_bytes() {
                    found.push(format!("{}={}", text(cursor.key()), text(cursor.value())));
                    more = cursor.next(trx)?;
                }
            }
            return Ok(if found.is_empty() { "nothing".into() } else { found.join(" ") });
        }
        "get" => {
            let (mode, wait) = locking(command);
            let mut out = vec![];
            let found =
                trx.read(table, 0, ReadRequest::new(word.as_bytes(), &mut out).locked(mode, wait))?;
            return Ok(if found { format!("{word}={}", text(&out)) } else { "nothing".into() });
        }
        "scan" => return scan(session, command),
        "insert" => trx.insert(table, 0, key.as_bytes(), value.as_bytes())?,
        "update" => trx.update(table, 0, key.as_bytes(), value.as_bytes())?,
        // `move k to=v`: the row of `k` goes on under the key `to`.
        "move" => {
            trx.move_away(table, 0, word.as_bytes())?;
            let to = &command.args[1];
            let key = to.key.as_deref().expect("move k to=v");
            trx.insert(table, 0, key.as_bytes(), to.value.as_bytes())?;
        }
        "delete" => trx.delete(table, 0, word.as_bytes())?,
        "savepoint" => {
            let savepoint = trx.savepoint();
            session.savepoints.insert(word, savepoint);
        }
        "back_to" => trx.rollback_to(session.savepoints[&word])?,
        "commit" => trx.commit()?,
        "rollback" => trx.rollback()?,
        other => panic!("no command '{other}'"),
    }
    Ok("ok".into())
}

/// A command as the script has it, without the session's name.
fn what(command: &Command) -> String {
    let args = command.args.iter().map(|arg| match &arg.key {
        Some(key) => format!(" {key}={}", arg.value),
        None => format!(" {}", arg.value),
    });
    std::iter::once(command.name.clone()).chain(args).collect()
}

impl Runner for Sessions {
    fn run(&mut self, command: &Command) -> Result<String, Box<dyn StdError>> {
        if command.name == "reset" {
            return self.reset(command);
        }
        let name = command.prefix.clone().ok_or("a session's command has its name before it")?;
        match command.name.as_str() {
            "begin" => self.begin(&name, &command.args[0].value),
            "kill" => {
                let thread = self.threads.get(&name).ok_or("begin comes first")?;
                thread.interrupt.as_ref().ok_or("begin comes first")?.interrupt();
                Ok(self.settle("")?.1.join("\n"))
            }
            _ => {
                let task_command = command.clone();
                self.task(
                    &name,
                    &what(command),
                    Box::new(move |session| statement(session, &task_command)),
                )
            }
        }
    }

    fn end_script(&mut self) -> Result<(), Box<dyn StdError>> {
        self.end_all()
    }
}

/// A long value's pages are freed when its writer rolls back: a dirty read must not follow them
/// into other data.
#[test]
fn dirty_reads_of_long_values_that_are_rolled_back() {
    const LEN: usize = 100_000;
    let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::default()).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"a", &vec![0; LEN]).unwrap();
    trx.commit().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=200 {
                let mut trx = db.begin(TransactionOptions::default());
                trx.update(&table, 0, b"a", &vec![round as u8; LEN]).unwrap();
                trx.insert(&table, 0, b"b", &vec![round as u8; LEN]).unwrap();
                if round % 4 == 0 {
                    trx.commit().unwrap()
                } else {
                    trx.rollback().unwrap()
                }
                if round % 4 == 0 {
                    let mut trx = db.begin(TransactionOptions::default());
                    trx.delete(&table, 0, b"b").unwrap();
                    trx.commit().unwrap();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let isolation = Isolation::ReadUncommitted;
        let mut uncommitted = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let mut trx = db.begin(TransactionOptions { isolation, read_only: false });
            trx.begin_statement();
            let mut value = Vec::new();
            let (lock, wait) = (LockMode::None, LockWait::Wait);
            assert!(
                trx.read(&table, 0, ReadRequest::new(b"a", &mut value).locked(lock, wait)).unwrap()
            );
            assert!(value.len() == LEN && value.iter().all(|&byte| byte == value[0]));
            uncommitted += u32::from(value[0] % 4 != 0);
            let mut cursor = Cursor::new(table.clone(), 0, lock, wait);
            let mut more = cursor.first(&mut trx).unwrap();
            while more {
                let value = cursor.value();
                assert!(value.len() == LEN && value.iter().all(|&byte| byte == value[0]));
                more = cursor.next(&mut trx).unwrap();
            }
            trx.end_statement();
            trx.commit().unwrap();
        }
        writer.join().unwrap();
        eprintln!("{uncommitted} dirty reads");
    });
    db.close().unwrap();
}
