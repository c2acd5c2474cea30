//! Who waits for whom, as an embedder that prescribes an order of commits learns it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidepool::storage::SimStorage;
use tidepool::{
    Db, Error, IndexDef, Interrupt, LockMode, LockWait, Options, ReadRequest, SessionToken, Table,
    TableDef, Transaction, TransactionOptions, WaitObserver,
};

/// The waiter, and whom it waits for.
type Wait = (usize, Option<usize>);

/// Informs the test, and kills the holder if its number is higher: the order of commits is that of
/// the numbers.
struct InOrder {
    told: Mutex<Sender<Wait>>,
    interrupts: Vec<Arc<Interrupt>>,
}

impl WaitObserver for InOrder {
    fn waits_for(&self, waiter: SessionToken, holder: Option<SessionToken>) -> bool {
        let holder = holder.map(|holder| holder.0);
        self.told.lock().unwrap().send((waiter.0, holder)).unwrap();
        let kills = holder.filter(|holder| *holder > waiter.0);
        if let Some(later) = kills {
            self.interrupts[later].interrupt();
        }
        kills.is_some()
    }
}

fn setup(sessions: usize) -> (Db, Arc<Table>, Vec<Transaction>, Receiver<Wait>) {
    let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let trxs: Vec<Transaction> =
        (0..sessions).map(|_| db.begin(TransactionOptions::default())).collect();
    let (sender, told) = channel();
    let interrupts = trxs.iter().map(Transaction::interrupt_handle).collect();
    assert!(db.set_wait_observer(Box::new(InOrder { told: Mutex::new(sender), interrupts })));
    (db, table, trxs, told)
}

#[test]
fn a_later_transaction_gives_its_row_up_to_an_earlier_one() {
    let (_db, table, mut trxs, told) = setup(3);
    let [mut other, mut earlier, mut later] =
        <[Transaction; 3]>::try_from(trxs.split_off(0)).ok().unwrap();
    earlier.set_session_token(SessionToken(1));
    later.set_session_token(SessionToken(2));
    other.insert(&table, 0, b"x", b"").unwrap();
    later.insert(&table, 0, b"k", b"later").unwrap();
    let later = {
        let table = Arc::clone(&table);
        thread::spawn(move || {
            // No session gives it this one.
            let killed = later.insert(&table, 0, b"x", b"later");
            later.rollback().unwrap();
            (killed, later)
        })
    };
    assert_eq!(told.recv().unwrap(), (2, None));
    earlier.insert(&table, 0, b"k", b"earlier").unwrap();
    assert_eq!(told.recv().unwrap(), (1, Some(2)));
    earlier.commit().unwrap();
    let (killed, mut later) = later.join().unwrap();
    assert_eq!(killed, Err(Error::Interrupted));
    other.commit().unwrap();
    // Its name ended with the transaction that had it.
    let mut value = vec![];
    earlier
        .read(
            &table,
            0,
            ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::Wait),
        )
        .unwrap();
    later.interrupt_handle().clear();
    later.set_lock_wait_timeout(Duration::ZERO);
    assert_eq!(later.delete(&table, 0, b"k"), Err(Error::LockWaitTimeout));
    assert!(told.try_recv().is_err());
    // The next one has it, the one that is waited for no more.
    later.set_session_token(SessionToken(2));
    assert_eq!(later.delete(&table, 0, b"k"), Err(Error::LockWaitTimeout));
    assert_eq!(told.try_recv(), Ok((2, None)));
}

#[test]
fn a_prepared_transaction_that_leaves_its_session_has_no_name() {
    let (db, table, mut trxs, told) = setup(2);
    trxs.iter_mut().enumerate().for_each(|(n, trx)| trx.set_session_token(SessionToken(n)));
    trxs[0].insert(&table, 0, b"k", b"").unwrap();
    trxs[1].set_lock_wait_timeout(Duration::ZERO);
    trxs[0].prepare(b"xid").unwrap();
    assert_eq!(trxs[1].delete(&table, 0, b"k"), Err(Error::LockWaitTimeout));
    assert_eq!(told.try_recv(), Ok((1, Some(0))));
    trxs[0].detach();
    assert_eq!(trxs[1].delete(&table, 0, b"k"), Err(Error::LockWaitTimeout));
    assert_eq!(told.try_recv(), Ok((1, None)));
    db.rollback_prepared(b"xid").unwrap();
    assert_eq!(trxs[1].delete(&table, 0, b"k"), Err(Error::NotFound));
    assert!(told.try_recv().is_err());
}
