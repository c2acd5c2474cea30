//! A reader sees one moment, whatever others write and however long it takes.
//!
//! `cargo run --example snapshot`

use tidepool::{Db, Options, Result, TableDef, TransactionOptions};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let table = db.open_or_create_table("numbers", &TableDef::map())?;
    let fill = |value: &[u8]| {
        db.write(|trx| (0..1000u32).try_for_each(|n| trx.put(&table, &n.to_be_bytes(), value)))
    };
    fill(b"old")?;

    let mut reader = db.begin(TransactionOptions::default());
    reader.ensure_view();
    fill(b"new")?;

    let mut range = reader.range::<&[u8]>(&table, ..);
    while let Some((_, value)) = range.next()? {
        assert_eq!(value, b"old");
    }
    reader.commit()?;
    assert_eq!(reader.get(&table, &7u32.to_be_bytes())?.as_deref(), Some(&b"new"[..]));
    println!("the reader saw 1,000 old values beside 1,000 new ones");
    drop(reader);
    db.close()
}
