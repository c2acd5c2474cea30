//! A bank on the embedded engine: accounts with an index by owner, transfers by several threads,
//! deadlocks and snapshot conflicts answered by trying again, and a sum that no reader ever sees
//! wrong.
//!
//! `cargo run --example bank [directory]` (default: a temporary one, removed at the end).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidepool::{
    Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, ReadRequest, Result, Seek,
    Table, TableDef, Transaction, TransactionOptions,
};

const ACCOUNTS: u64 = 100;
const TRANSFERS: u64 = 500;
const OPENING_BALANCE: u64 = 1000;

/// Positions in the table's definition.
const BY_NUMBER: usize = 0;
const BY_OWNER: usize = 1;

fn main() -> Result<()> {
    let temporary = std::env::temp_dir().join(format!("tidepool-bank-{}", std::process::id()));
    let given = std::env::args().nth(1).map(std::path::PathBuf::from);
    let dir = given.clone().unwrap_or_else(|| temporary.clone());

    let db = Db::open(&dir, Options::default())?;
    let accounts = match db.open_table("bank/accounts") {
        Ok(table) => table,
        Err(Error::TableMissing(_)) => create_accounts(&db)?,
        Err(error) => return Err(error),
    };
    let total = sum_of_balances(&db, &accounts)?;
    println!("{} accounts hold {total}", accounts.rows());

    let (done, retries) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let auditor = threads.spawn(|| audit(&db, &accounts, total, &done));
        let tellers: Vec<_> = (0..4)
            .map(|teller| {
                threads.spawn({
                    let (db, accounts, retries) = (&db, &accounts, &retries);
                    move || transfers(db, accounts, teller, retries)
                })
            })
            .collect();
        let result: Result<()> = tellers.into_iter().try_for_each(|t| t.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
        let audits = auditor.join().expect("no panic")?;
        println!(
            "{audits} audits while {} transfers ran, {retries:?} of them tried again",
            4 * TRANSFERS
        );
        result
    })?;

    println!("accounts of carol: {:?}", accounts_of(&db, &accounts, "carol")?);
    assert_eq!(sum_of_balances(&db, &accounts)?, total);
    db.close()?;

    let db = Db::open(&dir, Options::default())?;
    let accounts = db.open_table("bank/accounts")?;
    assert_eq!(sum_of_balances(&db, &accounts)?, total);
    println!("the same after a restart");
    db.close()?;
    if given.is_none() {
        let _ = std::fs::remove_dir_all(temporary);
    }
    Ok(())
}

/// The clustered index holds number → balance ‖ owner; the index by owner has owner ‖ number as key
/// and no value.
fn create_accounts(db: &Db) -> Result<Arc<Table>> {
    let def = TableDef::new([IndexDef::unique("number"), IndexDef::non_unique("owner")]);
    let accounts = db.create_table("bank/accounts", &def)?;
    let mut trx = db.begin(TransactionOptions::default());
    for at in 0..ACCOUNTS {
        let number = accounts.reserve_auto_increment(1)?;
        let owner = ["alice", "bob", "carol"][at as usize % 3];
        trx.insert(&accounts, BY_NUMBER, &number.to_be_bytes(), &row(OPENING_BALANCE, owner))?;
        trx.insert(&accounts, BY_OWNER, &owner_key(owner, number), b"")?;
    }
    trx.commit()?;
    Ok(accounts)
}

fn row(balance: u64, owner: &str) -> Vec<u8> {
    [&balance.to_le_bytes(), owner.as_bytes()].concat()
}

fn balance(row: &[u8]) -> u64 {
    u64::from_le_bytes(row[..8].try_into().expect("a row begins with its balance"))
}

fn owner_key(owner: &str, number: u64) -> Vec<u8> {
    [owner.as_bytes(), b"\0", &number.to_be_bytes()].concat()
}

/// One teller: transfers between pseudo-random accounts.
fn transfers(db: &Db, accounts: &Arc<Table>, teller: u64, retries: &AtomicU64) -> Result<()> {
    let mut random = teller + 1;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let mut trx = db.begin(TransactionOptions {
        isolation: Isolation::ReadCommitted,
        ..TransactionOptions::default()
    });
    for _ in 0..TRANSFERS {
        let from = 1 + next(ACCOUNTS);
        let to = 1 + (from + next(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = next(100);
        loop {
            match transfer(&mut trx, accounts, from, to, amount) {
                Ok(()) => break,
                Err(Error::Deadlock | Error::RecordChanged | Error::LockWaitTimeout) => {
                    retries.fetch_add(1, Ordering::Relaxed);
                    trx.rollback()?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn transfer(
    trx: &mut Transaction,
    accounts: &Arc<Table>,
    from: u64,
    to: u64,
    amount: u64,
) -> Result<()> {
    let (mut debit, mut credit) = (vec![], vec![]);
    for (number, row) in [(from, &mut debit), (to, &mut credit)] {
        let key = number.to_be_bytes();
        if !trx.read(
            accounts,
            BY_NUMBER,
            ReadRequest::new(&key, row).locked(LockMode::Exclusive, LockWait::Wait),
        )? {
            return Err(Error::NotFound);
        }
    }
    let amount = amount.min(balance(&debit));
    let debited = balance(&debit) - amount;
    let credited = balance(&credit) + amount;
    debit[..8].copy_from_slice(&debited.to_le_bytes());
    credit[..8].copy_from_slice(&credited.to_le_bytes());
    trx.update(accounts, BY_NUMBER, &from.to_be_bytes(), &debit)?;
    trx.update(accounts, BY_NUMBER, &to.to_be_bytes(), &credit)?;
    trx.commit()
}

/// Sums all balances again and again; each sum is of one snapshot.
fn audit(db: &Db, accounts: &Arc<Table>, total: u64, done: &AtomicBool) -> Result<u64> {
    let mut audits = 0;
    while !done.load(Ordering::Relaxed) {
        assert_eq!(sum_of_balances(db, accounts)?, total, "a transfer was seen half done");
        audits += 1;
    }
    Ok(audits)
}

fn sum_of_balances(db: &Db, accounts: &Arc<Table>) -> Result<u64> {
    let mut trx = db.begin(TransactionOptions { read_only: true, ..TransactionOptions::default() });
    let mut cursor = Cursor::new(accounts.clone(), BY_NUMBER, LockMode::None, LockWait::Wait);
    let (mut sum, mut more) = (0, cursor.first(&mut trx)?);
    while more {
        sum += balance(cursor.value());
        more = cursor.next(&mut trx)?;
    }
    trx.commit()?;
    Ok(sum)
}

fn accounts_of(db: &Db, accounts: &Arc<Table>, owner: &str) -> Result<Vec<u64>> {
    let mut trx = db.begin(TransactionOptions { read_only: true, ..TransactionOptions::default() });
    let mut cursor = Cursor::new(accounts.clone(), BY_OWNER, LockMode::None, LockWait::Wait);
    let prefix = [owner.as_bytes(), b"\0"].concat();
    let (mut numbers, mut more) = (vec![], cursor.seek(&mut trx, &prefix, Seek::AtOrAfter)?);
    while more && cursor.key().starts_with(&prefix) {
        let number = cursor.key()[prefix.len()..].try_into().expect("the key ends with a number");
        numbers.push(u64::from_be_bytes(number));
        more = cursor.next(&mut trx)?;
    }
    Ok(numbers)
}
