//! A directory is copied while it changes. The copy opens as it was when the copying ended.
//!
//! `cargo run --example backup`

use tidepool::{Db, Options, Result, TableDef};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let db = Db::open(&data, Options::default())?;
    let notes = db.open_or_create_table("notes", &TableDef::map())?;
    db.write(|trx| trx.put(&notes, b"1", b"before the backup"))?;

    let report = db.backup(&copy, &mut |_progress| true)?;
    println!("{report:?}");
    db.write(|trx| trx.put(&notes, b"1", b"after the backup"))?;
    db.close()?;

    let restored = Db::open(&copy, Options::default())?;
    let notes = restored.open_table("notes")?;
    let note = restored.read(|trx| trx.get(&notes, b"1"))?;
    assert_eq!(note.as_deref(), Some(&b"before the backup"[..]));
    restored.close()
}
