//! A table with an index of two columns: city, then name.
//!
//! `cargo run --example index`

use std::sync::Arc;
use tidepool::{Db, IndexDef, Options, Result, Table, TableDef, Transaction};

/// Positions in the table's definition.
const BY_ID: usize = 0;
const BY_CITY_AND_NAME: usize = 1;

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let def = TableDef::new([IndexDef::unique("id"), IndexDef::non_unique("city and name")]);
    let people = db.open_or_create_table("people", &def)?;

    db.write(|trx| {
        insert(trx, &people, 1, "Oslo", "Nora")?;
        insert(trx, &people, 2, "Bergen", "Emil")?;
        insert(trx, &people, 3, "Oslo", "Aksel")
    })?;

    let in_oslo = db.read(|trx| {
        let (mut names, mut range) = (Vec::new(), trx.prefix(&people, "Oslo\0").of_index(1));
        while let Some((key, id)) = range.next()? {
            let name = key["Oslo\0".len()..].split(|byte| *byte == 0).next().unwrap_or_default();
            names.push((String::from_utf8_lossy(name).into_owned(), id.to_vec()));
        }
        Ok(names)
    })?;
    assert_eq!(in_oslo[0], ("Aksel".into(), 3u64.to_be_bytes().to_vec()));
    println!("in Oslo: {in_oslo:?}");
    db.close()
}

/// The row, and its entry in the index, whose key ends with the id and so is unique.
fn insert(
    trx: &mut Transaction,
    people: &Arc<Table>,
    id: u64,
    city: &str,
    name: &str,
) -> Result<()> {
    let id = id.to_be_bytes();
    let key = [city.as_bytes(), b"\0", name.as_bytes(), b"\0", &id].concat();
    trx.insert(people, BY_ID, &id, format!("{city}\0{name}").as_bytes())?;
    trx.insert(people, BY_CITY_AND_NAME, &key, &id)
}
