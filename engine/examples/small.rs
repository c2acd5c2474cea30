//! A queue, a counter, and a table with an index of two columns.
//!
//! `cargo run --example small`

use tidepool::{Db, Index, LockMode, LockWait, Options, Result, TypedTable};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;

    // A queue: each worker takes the oldest job that no other has locked. A job whose worker fails
    // is in the queue again.
    let jobs = TypedTable::<u64, String>::open_or_create(&db, "jobs", &[])?;
    for job in ["wash", "dry", "fold"] {
        let number = jobs.table().reserve_auto_increment(1)?;
        db.write(|trx| jobs.put(trx, &number, &job.to_string()))?;
    }
    let take = || {
        db.write(|trx| {
            let mut free = jobs.iter(trx).locked(LockMode::Exclusive, LockWait::SkipLocked);
            let Some((number, job)) = free.next().transpose()? else { return Ok(None) };
            jobs.remove(trx, &number)?;
            Ok(Some(job))
        })
    };
    assert_eq!(take()?.as_deref(), Some("wash"));

    // A counter: threads that change it wait for each other.
    let counters = TypedTable::<String, u64>::open_or_create(&db, "counters", &[])?;
    let count = || db.write(|trx| counters.modify(trx, "visits", |old| old.unwrap_or(0) + 1));
    std::thread::scope(|scope| {
        let threads =
            [(); 4].map(|()| scope.spawn(|| (0..100).try_for_each(|_| count().map(drop))));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    assert_eq!(db.read(|trx| counters.get(trx, "visits"))?, Some(400));

    // People by city, then name. The engine keeps the index.
    let by_city = Index::new("city", |_: &u64, person: &(String, String)| person.clone());
    let people = TypedTable::open_or_create(&db, "people", &[&by_city])?;
    let rows = [("Oslo", "Nora"), ("Bergen", "Emil"), ("Oslo", "Aksel")];
    db.write(|trx| {
        let mut rows = (1..).zip(rows);
        rows.try_for_each(|(id, (city, name))| people.put(trx, &id, &(city.into(), name.into())))
    })?;
    let in_oslo = db.read(|trx| {
        let rows = people.prefix_by(trx, &by_city, &("Oslo",));
        rows.map(|row| Ok(row?.1.1)).collect::<Result<Vec<_>>>()
    })?;
    assert_eq!(in_oslo, ["Aksel", "Nora"]);
    println!("in Oslo: {in_oslo:?}");
    db.close()
}
