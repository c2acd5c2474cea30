//! Readers that walk through the undo records of an unfinished transaction without a latch, and
//! learn whether what they came by was taken back.
//!
//! Such a reader names one record. As long as that one is in the log, so are all before it, for a
//! rollback cuts a log from its end. So the reader may go on from that record whatever was cut off
//! behind it, and what it has read since then is what the transaction once wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::entry::RollPointer;

/// The records of one stream that readers have named.
#[derive(Default)]
pub(super) struct Watches {
    /// How many there are. Most streams have none, and a rollback asks for each record.
    count: AtomicUsize,
    list: Mutex<Vec<Watched>>,
}

struct Watched {
    number: u64,
    at: RollPointer,
    is_cut: bool,
}

impl Watches {
    /// A record is about to be cut off.
    pub(super) fn note_cut(&self, at: RollPointer) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = self.list.lock();
            list.iter_mut().filter(|it| it.at == at).for_each(|it| it.is_cut = true);
        }
    }
}

/// A record that a reader has named, until this goes.
pub(crate) struct Watch {
    watches: Arc<Watches>,
    number: u64,
}

impl Watch {
    /// Names a record that can't be cut off at this moment: the entry that it is about is latched.
    pub(super) fn new(watches: &Arc<Watches>, at: RollPointer) -> Watch {
        let mut list = watches.list.lock();
        let number = list.iter().map(|it| it.number + 1).max().unwrap_or(0);
        list.push(Watched { number, at, is_cut: false });
        watches.count.store(list.len(), Ordering::SeqCst);
        Watch { watches: Arc::clone(watches), number }
    }

    fn with<R>(&self, look: impl FnOnce(&mut Watched) -> R) -> R {
        let mut list = self.watches.list.lock();
        look(
            list.iter_mut().find(|it| it.number == self.number).expect("it is there until it goes"),
        )
    }

    /// Whether the record has been cut off: then what was read since it was named may be anything.
    pub(crate) fn is_cut(&self) -> bool {
        self.with(|it| it.is_cut)
    }

    /// Names an earlier record in place of this one; false if this one has been cut off.
    pub(crate) fn move_to(&mut self, at: RollPointer) -> bool {
        self.with(|it| {
            it.at = at;
            !it.is_cut
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut list = self.watches.list.lock();
        list.retain(|it| it.number != self.number);
        self.watches.count.store(list.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_learns_of_the_record_that_it_has_named() {
        let watches = Arc::<Watches>::default();
        let at = |offset| RollPointer { page: 7, offset };
        let (mut first, second) = (Watch::new(&watches, at(50)), Watch::new(&watches, at(50)));
        let mut third = Watch::new(&watches, at(90));
        watches.note_cut(at(90));
        assert_eq!([&first, &second, &third].map(Watch::is_cut), [false, false, true]);
        assert!(first.move_to(at(20)) && !third.move_to(at(20)));
        watches.note_cut(at(50));
        assert!(!first.is_cut() && second.is_cut());
        drop((second, third));
        assert_eq!(watches.count.load(Ordering::SeqCst), 1);
        watches.note_cut(at(20));
        assert!(first.is_cut() && !first.move_to(at(10)));
        drop(first);
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
    }
}
