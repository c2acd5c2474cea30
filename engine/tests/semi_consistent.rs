//! Scans that wait for no row before they know that they want it: what they are shown, and that
//! what they change is right.

use std::sync::Arc;
use std::time::Duration;

use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, ReadRequest, Result,
    Table, TableDef, Transaction, TransactionOptions,
};

fn open() -> (Db, Arc<Table>) {
    let options = Options {
        page_size: 4096,
        buffer_pool_size_bytes: 4 << 20,
        memory_guard: false,
        background: false,
        lock_wait_timeout: Duration::from_secs(50),
        ..Options::default()
    };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    (db, table)
}

fn begin(db: &Db, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions { isolation, ..TransactionOptions::default() })
}

fn scan(table: &Arc<Table>) -> Cursor {
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::Exclusive, LockWait::Wait);
    cursor.set_semi_consistent(true);
    cursor
}

#[test]
fn a_locked_row_is_shown_as_it_was_committed_last() {
    for isolation in [Isolation::ReadCommitted, Isolation::ReadUncommitted] {
        let (db, table) = open();
        let long = vec![7; 9000];
        let mut setup = begin(&db, isolation);
        for key in [b"b", b"d", b"f", b"h"] {
            setup.insert(&table, 0, key, &long).unwrap();
        }
        setup.commit().unwrap();
        let mut holder = begin(&db, isolation);
        holder.update(&table, 0, b"b", b"changed").unwrap();
        holder.update(&table, 0, b"b", b"changed again").unwrap();
        holder.insert(&table, 0, b"c", b"inserted").unwrap();
        holder.delete(&table, 0, b"d").unwrap();
        let mut value = Vec::new();
        let (lock, wait) = (LockMode::Shared, LockWait::Wait);
        assert!(
            holder.read(&table, 0, ReadRequest::new(b"f", &mut value).locked(lock, wait)).unwrap()
        );

        for forward in [true, false] {
            let mut trx = begin(&db, isolation);
            trx.begin_statement();
            let mut cursor = scan(&table);
            let mut seen = Vec::new();
            let mut more =
                if forward { cursor.first(&mut trx) } else { cursor.last(&mut trx) }.unwrap();
            while more {
                assert_eq!(cursor.value(), long);
                seen.push((cursor.key()[0], cursor.is_peeked()));
                more = if forward { cursor.next(&mut trx) } else { cursor.prev(&mut trx) }.unwrap();
            }
            let mut expected = vec![(b'b', true), (b'd', true), (b'f', true), (b'h', false)];
            if !forward {
                expected.reverse();
            }
            assert_eq!(seen, expected);
            trx.rollback().unwrap();
        }

        // Who wants such a row waits for it, and gets it as it is then: itself, or the next if it
        // is gone.
        let mut trx = begin(&db, isolation);
        trx.set_lock_wait_timeout(Duration::from_millis(20));
        let mut cursor = scan(&table);
        assert!(cursor.first(&mut trx).unwrap());
        assert_eq!(cursor.lock_current(&mut trx), Err(Error::LockWaitTimeout));
        assert!(cursor.first(&mut trx).unwrap() && cursor.is_peeked());
        let mut second = scan(&table);
        assert!(second.seek(&mut trx, b"d", tidepool::Seek::AtOrAfter).unwrap());
        assert!(second.is_peeked());
        holder.commit().unwrap();
        assert!(cursor.lock_current(&mut trx).unwrap() && !cursor.is_peeked());
        assert_eq!((cursor.key(), cursor.value()), (&b"b"[..], &b"changed again"[..]));
        assert!(second.lock_current(&mut trx).unwrap() && !second.is_peeked());
        assert_eq!(second.key(), b"f");
        trx.commit().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn levels_above_read_committed_do_not_peek() {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let (db, table) = open();
        let mut holder = begin(&db, isolation);
        holder.insert(&table, 0, b"a", b"").unwrap();
        let mut trx = begin(&db, isolation);
        trx.set_lock_wait_timeout(Duration::from_millis(20));
        assert_eq!(scan(&table).first(&mut trx), Err(Error::LockWaitTimeout));
    }
}

/// Adds one to the rows whose first byte is `tag`, and gives them the tag `next`. Returns how many.
fn update(db: &Db, table: &Arc<Table>, tag: u8, next: u8) -> Result<u64> {
    let mut trx = begin(db, Isolation::ReadCommitted);
    trx.begin_statement();
    let mut cursor = scan(table);
    let (mut changed, mut more) = (0, cursor.first(&mut trx)?);
    while more {
        if cursor.value()[0] != tag {
            let key = cursor.key().to_vec();
            if !cursor.is_peeked() {
                trx.unlock(table, 0, &key);
            }
        } else if cursor.is_peeked() {
            more = cursor.lock_current(&mut trx)?;
            continue;
        } else {
            let (key, mut value) = (cursor.key().to_vec(), cursor.value().to_vec());
            let count = u32::from_be_bytes(value[1..].try_into().unwrap()) + 1;
            value[0] = next;
            value[1..].copy_from_slice(&count.to_be_bytes());
            trx.update(table, 0, &key, &value)?;
            changed += 1;
        }
        more = cursor.next(&mut trx)?;
    }
    trx.end_statement();
    trx.commit()?;
    Ok(changed)
}

#[test]
fn concurrent_updates_are_neither_lost_nor_done_on_rows_that_do_not_match() {
    let (db, table) = open();
    let mut trx = begin(&db, Isolation::ReadCommitted);
    for key in 0..60u8 {
        trx.insert(&table, 0, &[key], &[key % 5, 0, 0, 0, 0]).unwrap();
    }
    trx.commit().unwrap();
    let changed: u64 = std::thread::scope(|scope| {
        let work = |thread: u32| {
            let (db, table) = (&db, &table);
            move || {
                let mut changed = 0;
                for round in 0..150 {
                    let tag = ((thread + round) % 5) as u8;
                    match update(db, table, tag, ((thread + 3 * round) % 5) as u8) {
                        Ok(rows) => changed += rows,
                        Err(Error::Deadlock) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                changed
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    let mut trx = begin(&db, Isolation::ReadCommitted);
    let (mut rows, mut sum, mut more) = (0, 0, cursor.first(&mut trx).unwrap());
    while more {
        sum += u64::from(u32::from_be_bytes(cursor.value()[1..].try_into().unwrap()));
        rows += 1;
        more = cursor.next(&mut trx).unwrap();
    }
    assert_eq!((rows, sum), (60, changed));
    assert_eq!(db.status().get("lock_keys"), Some(0));
}
