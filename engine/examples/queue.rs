//! A queue with several workers: each takes the oldest job that no other has locked. A job whose
//! worker fails is in the queue again.
//!
//! `cargo run --example queue`

use std::sync::Arc;
use tidepool::{Db, LockMode, LockWait, Options, Result, Table, TableDef};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::default())?;
    let jobs = db.open_or_create_table("jobs", &TableDef::map())?;
    for job in 0..20 {
        push(&db, &jobs, format!("job {job}").as_bytes())?;
    }

    let worker = || -> Result<u32> {
        let mut done = 0;
        while let Some(job) = work(&db, &jobs, |_job| Ok(()))? {
            println!("{:?} did {}", std::thread::current().id(), String::from_utf8_lossy(&job));
            done += 1;
        }
        Ok(done)
    };
    let done = std::thread::scope(|scope| {
        let workers = [(); 3].map(|()| scope.spawn(worker));
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<Result<u32>>()
    })?;
    assert_eq!(done, 20);
    db.close()
}

/// The keys are numbers in the order of their bytes.
fn push(db: &Db, jobs: &Arc<Table>, job: &[u8]) -> Result<()> {
    let number = jobs.reserve_auto_increment(1)?;
    db.write(|trx| trx.put(jobs, &number.to_be_bytes(), job))
}

/// Takes a job, and removes it if the work on it succeeds, in one transaction.
fn work(
    db: &Db,
    jobs: &Arc<Table>,
    mut act: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Option<Vec<u8>>> {
    db.write(|trx| {
        let mut free =
            trx.range::<&[u8]>(jobs, ..).locked(LockMode::Exclusive, LockWait::SkipLocked);
        let Some((number, job)) = free.next_owned()? else { return Ok(None) };
        act(&job)?;
        trx.remove(jobs, &number)?;
        Ok(Some(job))
    })
}
