//! Part of a transaction is taken back, and the rest committed.
//!
//! `cargo run --example savepoint`

use tidepool::{Db, Options, Result, TableDef};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let orders = db.open_or_create_table("orders", &TableDef::map())?;

    db.write(|trx| {
        trx.put(&orders, b"1", b"two lamps")?;
        let before = trx.savepoint();
        trx.put(&orders, b"2", b"a desk")?;
        trx.put(&orders, b"1", b"three lamps")?;
        trx.rollback_to(before)?;
        trx.put(&orders, b"3", b"a chair")
    })?;

    let left = db.read(|trx| {
        let (mut left, mut range) = (Vec::new(), trx.range::<&[u8]>(&orders, ..));
        while let Some((_, what)) = range.next()? {
            left.push(String::from_utf8_lossy(what).into_owned());
        }
        Ok(left)
    })?;
    assert_eq!(left, ["two lamps", "a chair"]);
    println!("{left:?}");
    db.close()
}
