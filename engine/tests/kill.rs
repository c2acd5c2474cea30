//! `kill -9` at random moments on real files: what was acknowledged is there afterwards, nothing
//! else is, and the indexes agree.
//!
//! The test starts itself as a child that works and writes a line to its standard output for each
//! commit that was acknowledged; the parent kills it after a random time, opens the directory,
//! checks it, and starts over on the same directory. `TIDEPOOL_KILLS=n` sets the number of rounds.

mod scan;

use rand::Rng;
use scan::{Rows, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tidepool::{
    Db, Error, IndexDef, Options, ReadRequest, Result, Table, TableDef, Transaction,
    TransactionOptions,
};

const WRITERS: u64 = 3;
/// The writers, and the one that changes definitions.
const WORKERS: usize = WRITERS as usize + 1;
/// Rows of a writer that each of its transactions rewrites, all with the transaction's number.
const ROWS: u64 = 8;
/// Log entries of a writer that are kept.
const LOG_LEN: u64 = 300;
const DIR_VARIABLE: &str = "TIDEPOOL_KILL_TEST_DIR";

fn options() -> Options {
    Options { buffer_pool_size_bytes: 4 << 20, redo_capacity_bytes: 8 << 20, ..Options::default() }
}

#[test]
fn acknowledged_commits_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let rounds = std::env::var("TIDEPOOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let mut acknowledged = BTreeMap::new();
    let mut went_on = BTreeSet::new();
    let mut round = 0;
    // Everyone must go on where an earlier life ended, once at least.
    while round < rounds || went_on.len() < WORKERS {
        assert!(round < 5 * rounds, "in {round} rounds only {went_on:?} went on");
        let mut errors = tempfile::tempfile().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(DIR_VARIABLE, dir.path())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().unwrap())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut last = BTreeMap::new();
            for line in BufReader::new(out).lines().map_while(|line| line.ok()) {
                // A line cut by the kill was not acknowledged to anybody.
                if let Some((who, number)) =
                    line.strip_prefix("done ").and_then(|l| l.split_once(' '))
                    && let Some(number) = number.strip_suffix('.')
                {
                    last.insert(who.to_string(), number.parse::<u64>().unwrap());
                }
            }
            last
        });
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(50..900)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let mut said = String::new();
        errors.rewind().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!(status.signal(), Some(9), "the child ended by itself: {status}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        let before = acknowledged.clone();
        acknowledged.extend(reader.join().unwrap());
        let found = check(dir.path(), &acknowledged);
        println!("round {round}: {found:?}");
        let before = |who: &String| before.get(who).copied().unwrap_or(0);
        let ahead = found.iter().filter(|(who, number)| before(who) > 0 && **number > before(who));
        went_on.extend(ahead.map(|(who, _)| who.clone()));
        acknowledged = found;
        round += 1;
    }
}

/// Checks the directory; each worker's last number is the acknowledged one or the next. Gives the
/// numbers found.
fn check(dir: &Path, acknowledged: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let db = Db::open(dir, options()).unwrap();
    let mut found = BTreeMap::new();
    let last = |who: &str| acknowledged.get(who).copied().unwrap_or(0);
    let mut expect = |who: &str, number: u64| {
        let last = last(who);
        assert!(number == last || number == last + 1, "{who}: acknowledged {last}, found {number}");
        found.insert(who.to_string(), number);
    };
    for writer in 0..WRITERS {
        let Ok(table) = db.open_table(&format!("w{writer}")) else {
            expect(&format!("w{writer}"), 0);
            continue;
        };
        let mut trx = db.begin(TransactionOptions::default());
        let rows = scan(&mut trx, &table, 0).unwrap();
        let by_number = scan(&mut trx, &table, 1).unwrap();
        drop(trx);
        let numbers: Vec<u64> =
            rows.iter().filter(|(k, _)| k[0] == b'r').map(|(_, v)| number(v)).collect();
        assert!(
            numbers.windows(2).all(|w| w[0] == w[1]),
            "w{writer}: half a transaction: {numbers:?}"
        );
        let newest = numbers.first().copied().unwrap_or(0);
        let logged: Vec<u64> =
            rows.iter().filter(|(k, _)| k[0] == b'l').map(|(k, _)| number(&k[1..])).collect();
        let oldest = logged.first().copied().unwrap_or(1);
        assert!(
            logged.iter().copied().eq(oldest..=newest),
            "w{writer}: log {logged:?} of {newest}"
        );
        let expected: Rows = rows.iter().map(|(k, v)| ([&v[..8], k].concat(), vec![])).collect();
        assert!(by_number == expected, "w{writer}: the index and the table differ");
        expect(&format!("w{writer}"), newest);
        let report = table.check(&db, &mut |_| true).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
    let definitions: Vec<String> =
        db.table_names().unwrap().into_iter().filter(|name| name.starts_with('d')).collect();
    let steps: Vec<u64> = definitions.iter().map(|name| name[1..].parse().unwrap()).collect();
    assert!(steps.len() <= 2 && steps.windows(2).all(|w| w[0] + 1 == w[1]), "{steps:?}");
    // Step n creates d<n>, then drops d<n-1>: with both there, step n is not done.
    let done = match steps[..] {
        [] => 0,
        [only] => only,
        [first, ..] => first,
    };
    expect("d", done);
    for name in &definitions {
        db.open_table(name).unwrap();
    }
    let files = std::fs::read_dir(dir.join("tables")).unwrap().count();
    assert_eq!(files, db.table_names().unwrap().len(), "a file without a table");
    db.close().unwrap();
    found
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// The child: works until it is killed.
#[test]
#[ignore = "started by acknowledged_commits_survive_kill_9"]
fn child() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    let db = Db::open(Path::new(&dir), options()).unwrap();
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            let db = db.clone();
            threads.spawn(move || end_with(write(&db, writer)));
        }
        threads.spawn(|| end_with(define(&db)));
    });
}

/// The threads beside would go on, and the parent see nothing.
fn end_with(result: Result<()>) {
    eprintln!("a worker ended: {result:?}");
    std::process::abort();
}

fn acknowledge(who: &str, number: u64) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("done {who} {number}.\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn open_or_create(db: &Db, name: &str) -> Result<Arc<Table>> {
    match db.open_table(name) {
        Err(Error::TableMissing(_)) => {
            let indexes = [IndexDef::unique("primary"), IndexDef::non_unique("number")];
            db.create_table(name, &TableDef::new(indexes))
        }
        other => other,
    }
}

/// A row of number `n` in both indexes, in place of `old`.
fn put(
    trx: &mut Transaction,
    table: &Arc<Table>,
    key: &[u8],
    old: Option<u64>,
    n: u64,
) -> Result<()> {
    let padding = vec![b'.'; (n * 7919 % 400) as usize];
    let value = [&n.to_be_bytes()[..], &padding].concat();
    match old {
        Some(old) => {
            trx.update(table, 0, key, &value)?;
            trx.delete(table, 1, &[&old.to_be_bytes(), key].concat())?;
        }
        None => trx.insert(table, 0, key, &value)?,
    }
    trx.insert(table, 1, &[&n.to_be_bytes(), key].concat(), b"")
}

fn write(db: &Db, writer: u64) -> Result<()> {
    let table = open_or_create(db, &format!("w{writer}"))?;
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = vec![];
    let there = trx.read(&table, 0, ReadRequest::new(b"r0", &mut value))?;
    let mut last = there.then(|| number(&value));
    trx.commit()?;
    loop {
        let n = last.unwrap_or(0) + 1;
        step(&mut trx, &table, last, n)?;
        if n % 5 == 0 {
            let savepoint = trx.savepoint();
            put(&mut trx, &table, b"x", None, n)?;
            trx.rollback_to(savepoint)?;
        }
        if n % 7 == 0 {
            trx.rollback()?;
            step(&mut trx, &table, last, n)?;
        }
        trx.commit()?;
        acknowledge(&format!("w{writer}"), n);
        last = Some(n);
    }
}

/// All that transaction `n` of a writer changes: every row, a new log entry, the log's oldest.
fn step(trx: &mut Transaction, table: &Arc<Table>, last: Option<u64>, n: u64) -> Result<()> {
    for row in 0..ROWS {
        put(trx, table, format!("r{row}").as_bytes(), last, n)?;
    }
    put(trx, table, &[&b"l"[..], &n.to_be_bytes()].concat(), None, n)?;
    let Some(old) = n.checked_sub(LOG_LEN).filter(|old| *old > 0) else { return Ok(()) };
    let key = [&b"l"[..], &old.to_be_bytes()].concat();
    trx.delete(table, 0, &key)?;
    trx.delete(table, 1, &[&old.to_be_bytes(), &key[..]].concat())
}

fn define(db: &Db) -> Result<()> {
    let there = db
        .table_names()?
        .into_iter()
        .filter_map(|name| name.strip_prefix('d')?.parse::<u64>().ok());
    let mut steps: Vec<u64> = there.collect();
    if steps.len() == 2 {
        db.drop_table(&format!("d{}", steps.remove(0)))?;
        acknowledge("d", steps[0]);
    }
    let mut last = steps.first().copied().unwrap_or(0);
    if db.table_exists("new")? {
        db.drop_table("new")?;
    }
    loop {
        let n = last + 1;
        let table = open_or_create(db, "new")?;
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, b"k", &vec![b'v'; (n % 9 * 5000) as usize])?;
        trx.commit()?;
        if n % 2 == 0 {
            db.truncate_table("new")?;
        }
        db.rename_table("new", &format!("d{n}"))?;
        if last > 0 {
            db.drop_table(&format!("d{last}"))?;
        }
        acknowledge("d", n);
        last = n;
    }
}
