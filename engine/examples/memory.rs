//! All memory of a database in one budget, which can change while it is used.
//!
//! `cargo run --release --example memory`

use tidepool::{Db, Options, Result, TableDef};

const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { memory_budget_bytes: 64 * MIB, ..Options::default() };
    let db = Db::open(dir.path(), options)?;
    let table = db.open_or_create_table("blobs", &TableDef::map())?;
    for block in 0..20u32 {
        db.write(|trx| {
            (0..50u32).try_for_each(|n| {
                let key = (block * 50 + n).to_be_bytes();
                trx.put(&table, &key, &[n as u8; 10_000])
            })
        })?;
    }

    // Takes effect in the background; no transaction waits for it.
    db.set_memory_budget(32 * MIB)?;
    let count = db.read(|trx| trx.range::<&[u8]>(&table, ..).count())?;
    assert_eq!(count, 1000);

    for row in db.memory().rows.iter().filter(|row| row.bytes > 0) {
        println!("{:>10} KiB  {}", row.bytes >> 10, row.name);
    }
    for row in db.advice().rows {
        println!("{:>5} MiB: {:.0} reads/s", row.size_bytes / MIB, row.reads_per_second);
    }
    db.close()
}
