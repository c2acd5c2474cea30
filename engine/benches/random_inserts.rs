//! Inserts at random places of a table that becomes several times as large as the memory: rows/s,
//! and what a row costs in reads and waits.
//!
//! `cargo bench -p tidepool-engine --bench random_inserts -- <directory> [rows] [MiB] [one|many]`,
//! with the MiB of memory.
//!
//! Batches of 10,000 rows of 108 bytes, each batch a transaction that is synced. Once a row at a
//! time, and once with `insert_many`, each into a fresh table.

use std::path::Path;
use std::time::Instant;

use tidepool::{Db, IndexDef, Options, Result, Table, TableDef, TransactionOptions};

const BATCH: usize = 10_000;
const VALUE_BYTES: usize = 100;
/// Of which counters the growth is shown.
const COUNTERS: [&str; 9] = [
    "buffer_pool_reads",
    "buffer_pool_reads_us",
    "buffer_pool_read_ahead",
    "buffer_pool_read_ahead_evicted",
    "buffer_pool_wait_free",
    "buffer_pool_wait_free_us",
    "buffer_pool_pages_flushed",
    "pages_written",
    "data_written",
];

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let dir = args.next().expect("the first argument names a directory");
    let mut number = |default| args.next().map_or(default, |arg| arg.parse().expect("a number"));
    let (rows, memory_mib) = (number(1_000_000), number(32));
    let only = args.next();
    for (name, what, many) in [("one", "a row at a time", false), ("many", "insert_many", true)] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let dir = Path::new(&dir).join(name);
        let options = Options { memory_budget_bytes: memory_mib << 20, ..Options::default() };
        let db = Db::open(&dir, options)?;
        let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")]))?;
        let get = |name: &str| db.status().get(name).unwrap_or(0);
        let before = COUNTERS.map(get);
        let began = Instant::now();
        let mut trx = db.begin(TransactionOptions::default());
        for first in (0..rows).step_by(BATCH) {
            let batch: Vec<_> = (first..first + BATCH as u64).map(entry).collect();
            if many {
                trx.insert_many(&table, Table::CLUSTERED, &batch)?;
            } else {
                for (key, value) in &batch {
                    trx.insert(&table, Table::CLUSTERED, key, value)?;
                }
            }
            trx.commit()?;
        }
        let took = began.elapsed();
        println!("{what}: {:.0} rows/s", rows as f64 / took.as_secs_f64());
        for (name, before) in COUNTERS.iter().zip(before) {
            println!("    {name}: {:.3} a row", (get(name) - before) as f64 / rows as f64);
        }
        drop((trx, table));
        db.close()?;
    }
    Ok(())
}

/// A row whose key is far from its neighbour's, and whose bytes shrink little.
fn entry(number: u64) -> ([u8; 8], [u8; VALUE_BYTES]) {
    let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut value = [0; VALUE_BYTES];
    let mut state = key;
    for bytes in value.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.copy_from_slice(&state.to_be_bytes()[..bytes.len()]);
    }
    (key.to_be_bytes(), value)
}
