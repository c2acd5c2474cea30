//! Threads that change the same value: a transaction that meets a conflict runs again.
//!
//! `cargo run --example counter`

use tidepool::{Db, Options, Result, TableDef};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let counters = db.open_or_create_table("counters", &TableDef::map())?;

    let add = |name: &[u8]| {
        db.write(|trx| {
            // The lock makes the others wait. Without it they would run again more often. Where
            // there is no value yet, one of two that insert it runs again.
            let old = trx.get_for_update(&counters, name)?.unwrap_or(vec![0; 8]);
            let old = u64::from_le_bytes(old.try_into().expect("a counter has eight bytes"));
            trx.put(&counters, name, &(old + 1).to_le_bytes())
        })
    };
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(|| (0..100).try_for_each(|_| add(b"visits"))));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;

    let visits = db.read(|trx| trx.get(&counters, b"visits"))?;
    assert_eq!(visits, Some(400u64.to_le_bytes().to_vec()));
    println!("400 visits");
    db.close()
}
