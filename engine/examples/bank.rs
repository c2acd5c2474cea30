//! A bank on the embedded engine: accounts with an index by owner, transfers by several threads,
//! deadlocks and snapshot conflicts after which a transaction runs again, and a sum that no reader ever sees
//! wrong.
//!
//! `cargo run --example bank [directory]` (default: a temporary one, removed at the end).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidepool::{Db, Error, IndexDef, Options, Result, Table, TableDef, Transaction};

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
    let def = TableDef::new([IndexDef::unique("number"), IndexDef::non_unique("owner")]);
    let accounts = db.open_or_create_table("bank/accounts", &def)?;
    if accounts.rows() == 0 {
        open_accounts(&db, &accounts)?;
    }
    let total = sum_of_balances(&db, &accounts)?;
    println!("{} accounts hold {total}", accounts.rows());

    let (done, attempts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let auditor = threads.spawn(|| audit(&db, &accounts, total, &done));
        let tellers: Vec<_> = (0..4)
            .map(|teller| {
                threads.spawn({
                    let (db, accounts, attempts) = (&db, &accounts, &attempts);
                    move || transfers(db, accounts, teller, attempts)
                })
            })
            .collect();
        let result: Result<()> = tellers.into_iter().try_for_each(|t| t.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
        let audits = auditor.join().expect("no panic")?;
        println!(
            "{audits} audits while {} transfers ran, in {attempts:?} transactions",
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
fn open_accounts(db: &Db, accounts: &Arc<Table>) -> Result<()> {
    db.write(|trx| {
        for at in 0..ACCOUNTS {
            let number = accounts.reserve_auto_increment(1)?;
            let owner = ["alice", "bob", "carol"][at as usize % 3];
            trx.insert(accounts, BY_NUMBER, &number.to_be_bytes(), &row(OPENING_BALANCE, owner))?;
            trx.insert(accounts, BY_OWNER, &owner_key(owner, number), b"")?;
        }
        Ok(())
    })
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
fn transfers(db: &Db, accounts: &Arc<Table>, teller: u64, attempts: &AtomicU64) -> Result<()> {
    let mut random = teller + 1;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for _ in 0..TRANSFERS {
        let from = 1 + next(ACCOUNTS);
        let to = 1 + (from + next(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = next(100);
        db.write(|trx| {
            attempts.fetch_add(1, Ordering::Relaxed);
            transfer(trx, accounts, (from, to), amount)
        })?;
    }
    Ok(())
}

fn transfer(
    trx: &mut Transaction,
    accounts: &Arc<Table>,
    (from, to): (u64, u64),
    amount: u64,
) -> Result<()> {
    let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
    let mut debit = trx.get_for_update(accounts, &from)?.ok_or(Error::NotFound)?;
    let mut credit = trx.get_for_update(accounts, &to)?.ok_or(Error::NotFound)?;
    let amount = amount.min(balance(&debit));
    let (debited, credited) = (balance(&debit) - amount, balance(&credit) + amount);
    debit[..8].copy_from_slice(&debited.to_le_bytes());
    credit[..8].copy_from_slice(&credited.to_le_bytes());
    trx.put(accounts, &from, &debit)?;
    trx.put(accounts, &to, &credit)
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
    db.read(|trx| {
        let (mut sum, mut all) = (0, trx.range::<&[u8]>(accounts, ..));
        while let Some((_, row)) = all.next()? {
            sum += balance(row);
        }
        Ok(sum)
    })
}

fn accounts_of(db: &Db, accounts: &Arc<Table>, owner: &str) -> Result<Vec<u64>> {
    let prefix = [owner.as_bytes(), b"\0"].concat();
    db.read(|trx| {
        let mut numbers = Vec::new();
        let mut range = trx.prefix(accounts, &prefix).of_index(BY_OWNER);
        while let Some((key, _)) = range.next()? {
            let number = key[prefix.len()..].try_into().expect("the key ends with a number");
            numbers.push(u64::from_be_bytes(number));
        }
        Ok(numbers)
    })
}
