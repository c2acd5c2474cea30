//! A table is filled in one piece, by entries in any order: they are sorted in bounded memory.
//!
//! `cargo run --release --example bulk_load`

use tidepool::{Db, Options, Result, TableDef};

const ROWS: u64 = 100_000;

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { memory_budget_bytes: 64 << 20, ..Options::default() };
    let db = Db::open(dir.path(), options)?;

    let mut load = db.load_table("squares", &TableDef::map())?;
    for n in (0..ROWS).map(|n| n * 2_654_435_761 % ROWS) {
        // Each number once, for the factor and the count have no common divisor.
        load.add(0, &n.to_be_bytes(), &n.pow(2).to_le_bytes())?;
    }
    let squares = load.commit()?;

    let square = db.read(|trx| trx.get(&squares, &777u64.to_be_bytes()))?;
    assert_eq!(square, Some(603_729u64.to_le_bytes().to_vec()));
    println!("{} rows", squares.rows());
    db.close()
}
