//! What updates write, and what the engine's own two files take on the disk.
//!
//! `cargo bench -p tidepool-engine --bench undo_volume -- <directory> [transactions]`
//!
//! Each of four threads updates rows at random, one a transaction. First with no session that reads
//! old versions, then beside a transaction that keeps all of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool::{Db, IndexDef, Options, Result, Table, TableDef, TransactionOptions};

const ROWS: u32 = 50_000;
const VALUE_BYTES: usize = 200;
const THREADS: u64 = 4;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let dir = args.next().expect("the first argument names a directory");
    let transactions = args.next().map_or(2_000_000, |count| count.parse().expect("a number"));
    let dir = Path::new(&dir);
    let options = Options {
        buffer_pool_size_bytes: 16 << 20,
        redo_capacity_bytes: 16 << 20,
        flush_log_at_trx_commit: 0,
        scrub_days: 0,
        memory_guard: false,
        ..Options::default()
    };
    let db = Db::open(dir, options.clone())?;
    db.close()?;
    drop(db);
    println!("an empty directory, closed:");
    print_files(dir);

    let db = Db::open(dir, options)?;
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")]))?;
    let mut random = 1;
    for part in (0..ROWS).collect::<Vec<_>>().chunks(1000) {
        let mut trx = db.begin(TransactionOptions::default());
        for n in part {
            trx.insert(&table, 0, &n.to_be_bytes(), &value(&mut random))?;
        }
        trx.commit()?;
    }
    std::thread::sleep(Duration::from_secs(5));

    update(&db, &table, dir, ("no reader", transactions))?;
    let mut reader = db.begin(TransactionOptions::default());
    reader.ensure_view();
    update(&db, &table, dir, ("beside an old snapshot", transactions))?;
    reader.commit()?;
    drop(reader);
    let since = Instant::now();
    while db.status().get("history_list_length").unwrap_or(0) > 0 && since.elapsed().as_secs() < 120
    {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("purge took {:.1} s", since.elapsed().as_secs_f64());
    for seconds in [0, 15, 30] {
        std::thread::sleep(Duration::from_secs(seconds));
        println!("{seconds} s later: undo.tpd {} KiB", bytes(dir, "undo.tpd") >> 10);
    }
    drop(table);
    db.close()?;
    println!("closed:");
    print_files(dir);
    Ok(())
}

fn update(db: &Db, table: &Arc<Table>, dir: &Path, (what, count): (&str, u64)) -> Result<()> {
    let get = |name: &str| db.status().get(name).unwrap_or(0);
    let before = (get("data_written"), get("pages_written"));
    let (began, longest) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, table, longest) = (&db, &table, &longest);
            scope.spawn(move || {
                let mut random = thread + 7;
                for n in 0..count / THREADS {
                    let key = (next(&mut random) % u64::from(ROWS)) as u32;
                    let mut trx = db.begin(TransactionOptions::default());
                    let updated = trx.update(table, 0, &key.to_be_bytes(), &value(&mut random));
                    // Two threads may want the same row.
                    match updated.is_ok() {
                        true => trx.commit().expect("a commit"),
                        false => trx.rollback().expect("a rollback"),
                    }
                    if n % 1000 == 0 {
                        longest.fetch_max(bytes(dir, "undo.tpd"), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let after = (get("data_written"), get("pages_written"));
    println!(
        "{what}: {:.0} transactions/s; {:.2} KB and {:.3} pages written a transaction; \
         undo.tpd {} KiB at most",
        count as f64 / seconds,
        (after.0 - before.0) as f64 / 1000.0 / count as f64,
        (after.1 - before.1) as f64 / count as f64,
        longest.into_inner() >> 10,
    );
    Ok(())
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Digits at random: they shrink to less than a half.
fn value(random: &mut u64) -> Vec<u8> {
    (0..VALUE_BYTES).map(|_| b'0' + (next(random) % 10) as u8).collect()
}

fn bytes(dir: &Path, name: &str) -> u64 {
    std::fs::metadata(dir.join(name)).map_or(0, |file| file.len())
}

fn print_files(dir: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .expect("the directory can be read")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| bytes(dir, name) > 0 && !dir.join(name).is_dir())
        .collect();
    names.sort();
    for name in names {
        println!("  {name}: {} KiB", bytes(dir, &name) >> 10);
    }
}
