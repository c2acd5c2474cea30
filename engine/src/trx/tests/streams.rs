//! Which undo stream a transaction gets.

use super::*;

/// A session, by its transaction.
struct Session<'a> {
    engine: &'a Engine,
    trx: TransactionCore,
    key: u8,
}

impl<'a> Session<'a> {
    fn new(engine: &'a Engine, key: u8) -> Self {
        Session { engine, trx: engine.begin(ReadCommitted), key }
    }

    /// Writes, and gives the stream.
    fn write(&mut self) -> u32 {
        let tree = &self.engine.trees[0];
        match tree.insert(&mut self.trx, &[self.key], b"1", LockMode::None) {
            Err(Error::DuplicateKey { .. }) => tree.update(&mut self.trx, &[self.key], b"2"),
            inserted => inserted,
        }
        .unwrap();
        self.trx.log.as_ref().unwrap().stream()
    }

    fn commit(&mut self) {
        self.trx.commit().unwrap();
        let interrupt = self.trx.interrupt_handle();
        self.trx.renew(TransactionOptions::default(), &interrupt);
    }

    fn write_and_commit(&mut self) -> u32 {
        let stream = self.write();
        self.commit();
        stream
    }
}

#[test]
fn a_session_gets_the_stream_that_it_had() {
    let engine = engine();
    let [mut a, mut b, mut c] = [1, 2, 3].map(|key| Session::new(&engine, key));
    let (of_a, of_b) = (a.write(), b.write());
    assert_ne!(of_a, of_b);
    a.commit();
    b.commit();
    for _ in 0..3 {
        assert_eq!((b.write_and_commit(), a.write_and_commit()), (of_b, of_a));
    }
    // One that had none gets one that is free, and no further one is made.
    let of_c = c.write();
    assert_eq!(of_c, of_a.min(of_b));
    let displaced = if of_c == of_a { &mut a } else { &mut b };
    assert_eq!(displaced.write_and_commit(), of_a.max(of_b));
    c.commit();
    assert_eq!(engine.system.status().undo_streams, 2);
}

#[test]
fn a_stream_that_is_stuck_is_taken_only_when_there_can_be_no_other() {
    let engine = engine();
    let undo = &engine.system.undo;
    let mut session = Session::new(&engine, 1);
    let first = session.write_and_commit();
    undo.set_stuck(first, true);
    let second = session.write_and_commit();
    assert_ne!(first, second);
    undo.set_stuck(second, true);
    // The log has failed: no third one can be made.
    engine.env.crash("a test".into());
    let (stream, _) = undo.acquire(Some(second)).unwrap();
    assert_eq!(stream, first.min(second));
}
