//! An ordered map that outlives the program: put, get, ranges, prefixes.
//!
//! `cargo run --example map`

use tidepool::{Db, Options, Result, TableDef};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let cities = db.open_or_create_table("cities", &TableDef::map())?;

    db.write(|trx| {
        trx.put(&cities, b"de/berlin", b"3878100")?;
        trx.put(&cities, b"de/hamburg", b"1910160")?;
        trx.put(&cities, b"fr/paris", b"2102650")
    })?;

    db.read(|trx| {
        assert_eq!(trx.get(&cities, b"fr/paris")?.as_deref(), Some(&b"2102650"[..]));
        assert_eq!(trx.get(&cities, b"fr/lyon")?, None);

        let mut german = trx.prefix(&cities, "de/");
        while let Some((name, people)) = german.next()? {
            println!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(people));
        }
        // The last of all.
        let mut all = trx.range::<&str>(&cities, ..);
        assert_eq!(all.next_back()?.map(|(name, _)| name), Some(&b"fr/paris"[..]));
        Ok(())
    })?;

    assert!(db.write(|trx| trx.remove(&cities, b"fr/paris"))?);
    assert_eq!(db.write(|trx| trx.remove_range(&cities, "de/".."de0"))?, 2);
    db.close()
}
