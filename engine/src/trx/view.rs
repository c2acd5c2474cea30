//! Read views: what a consistent read sees, and the registry that shows purge what is still needed.
//!
//! A view is three numbers, taken in this order (the order matters):
//!
//! ```text
//! low    every id below had ended            -> visible without a look-up
//! csn    commits up to here are visible
//! high   no id from here on had been handed out -> invisible without a look-up
//! ```
//!
//! A commit is published before `low` goes past its id, and `low` is read before `csn`, so its CSN
//! is at most `csn`. An id handed out after `csn` was read commits after it. In between,
//! [`CsnTable`] decides.
//!
//! # Registry
//! One slot a transaction, claimed when the transaction begins. Opening a view: store `PENDING`,
//! read the three numbers, store them. Purge reads `published` *before* it looks at the slots, so a
//! slot that it finds idle can only come to hold that CSN or a newer one; a pending slot makes it
//! try again later. No view waits for anything.
//!
//! A transaction may have several views: that of its consistent reads, the read point of a
//! statement's locking reads, and that of the statement's searches. Its slot holds the oldest one's
//! CSN and the newest one's `high`, and so keeps what any of them needs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::csn::{Csn, CsnTable, TrxId, TrxState, ViewBounds};

/// What a consistent read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadView {
    /// Commits up to this one are visible.
    pub csn: Csn,
    /// Ids below are visible.
    pub low: TrxId,
    /// Ids from here on are invisible.
    pub high: TrxId,
}

/// The first id that a transaction can have. Below it there is only the one that settled entries
/// are by, which every view sees.
const FIRST_ID: TrxId = TrxId(1);

impl ReadView {
    /// Sees the newest version of every entry, committed or not.
    pub const EVERYTHING: ReadView =
        ReadView { csn: Csn(u64::MAX), low: TrxId(u64::MAX), high: TrxId(u64::MAX) };

    /// Sees the version of every entry that was committed last, whenever that was.
    pub const COMMITTED: ReadView =
        ReadView { csn: Csn(u64::MAX), low: FIRST_ID, high: TrxId(u64::MAX) };

    /// Whether a version written by `id` is visible. A transaction's own versions are its own
    /// business: the caller compares with its own id first.
    #[inline]
    pub fn sees(&self, table: &CsnTable, id: TrxId) -> bool {
        id < self.low || self.sees_by_table(table, id)
    }

    fn sees_by_table(&self, table: &CsnTable, id: TrxId) -> bool {
        if id >= self.high {
            return false;
        }
        match table.state(id) {
            TrxState::Active | TrxState::RolledBack => false,
            TrxState::Committed(csn) => csn <= self.csn,
            TrxState::Ended => true,
        }
    }
}

/// A place in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewSlot(usize);

const IDLE: u64 = u64::MAX;
const PENDING: u64 = 0;
const FIRST_SEGMENT: usize = 64;
const SEGMENTS: usize = 16;

#[repr(align(64))]
struct Slot {
    csn: AtomicU64,
    high: AtomicU64,
    claimed: AtomicBool,
}

impl Slot {
    fn new() -> Self {
        Slot { csn: AtomicU64::new(IDLE), high: AtomicU64::new(0), claimed: AtomicBool::new(false) }
    }
}

/// The registry of live views.
pub struct Views {
    /// Segment n holds 64 << n slots.
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
    /// Where the next claim begins to look.
    hint: AtomicUsize,
}

impl Default for Views {
    fn default() -> Self {
        Views { segments: [const { OnceLock::new() }; SEGMENTS], hint: AtomicUsize::new(0) }
    }
}

impl Views {
    fn segment(&self, n: usize) -> &[Slot] {
        self.segments[n].get_or_init(|| (0..FIRST_SEGMENT << n).map(|_| Slot::new()).collect())
    }

    fn slot(&self, slot: ViewSlot) -> &Slot {
        let n = (slot.0 / FIRST_SEGMENT + 1).ilog2() as usize;
        &self.segment(n)[slot.0 - FIRST_SEGMENT * ((1 << n) - 1)]
    }

    /// Claims a slot. More than four million at once are a bug of the caller.
    pub fn claim(&self) -> ViewSlot {
        let mut base = 0;
        for n in 0..SEGMENTS {
            let slots = self.segment(n);
            let start = self.hint.load(Ordering::Relaxed);
            for step in 0..slots.len() {
                let at = (start + step) % slots.len();
                let slot = &slots[at];
                if !slot.claimed.load(Ordering::Relaxed)
                    && !slot.claimed.swap(true, Ordering::Acquire)
                {
                    self.hint.store(at + 1, Ordering::Relaxed);
                    return ViewSlot(base + at);
                }
            }
            base += slots.len();
        }
        panic!("more than {base} transactions at once");
    }

    /// Gives the slot back; its view ends.
    pub fn release(&self, slot: ViewSlot) {
        self.close(slot);
        let was_claimed = self.slot(slot).claimed.swap(false, Ordering::Release);
        assert!(was_claimed, "a slot is given back by the transaction that has it");
        // The slot just left is the warmest.
        self.hint.store(slot.0, Ordering::Relaxed);
    }

    /// Opens a view of everything published by now.
    pub fn open(&self, slot: ViewSlot, table: &CsnTable) -> ReadView {
        let slot = self.slot(slot);
        debug_assert_eq!(slot.csn.load(Ordering::Relaxed), IDLE, "one view a slot");
        slot.csn.store(PENDING, Ordering::SeqCst);
        let low = table.low();
        let csn = table.published();
        let high = table.next_id();
        slot.high.store(high.0, Ordering::Relaxed);
        slot.csn.store(csn.0, Ordering::Release);
        debug_assert!(low <= high, "what has ended was handed out");
        ReadView { csn, low, high }
    }

    /// A view of everything published by now, in a slot whose own view is older and stays open:
    /// both are kept.
    pub fn open_beside(&self, slot: ViewSlot, table: &CsnTable) -> ReadView {
        let slot = self.slot(slot);
        let older = slot.csn.load(Ordering::Relaxed);
        debug_assert!(older != IDLE && older != PENDING, "beside an open view");
        slot.csn.store(PENDING, Ordering::SeqCst);
        let low = table.low();
        let csn = table.published();
        let high = table.next_id();
        // Ids that are new to the older view may not be so to this one.
        slot.high.store(high.0, Ordering::Relaxed);
        slot.csn.store(older, Ordering::Release);
        debug_assert!(older <= csn.0 && low <= high, "a view opened later sees no less");
        ReadView { csn, low, high }
    }

    /// Of the views in the slot, only this one is still open.
    pub fn keep_only(&self, slot: ViewSlot, view: ReadView) {
        let csn = &self.slot(slot).csn;
        debug_assert!(csn.load(Ordering::Relaxed) <= view.csn.0, "the older of the two views goes");
        csn.store(view.csn.0, Ordering::Release);
    }

    /// Ends the slot's views, if it has any.
    pub fn close(&self, slot: ViewSlot) {
        self.slot(slot).csn.store(IDLE, Ordering::Release);
    }

    /// The newest CSN such that every live and every later view sees all commits up to it. None if
    /// a view is just being opened.
    pub fn horizon(&self, table: &CsnTable) -> Option<Csn> {
        let published = table.published();
        let mut horizon = published;
        for slot in self.slots() {
            match slot.csn.load(Ordering::SeqCst) {
                PENDING => return None,
                csn => horizon = horizon.min(Csn(csn)),
            }
        }
        Some(horizon)
    }

    /// What every live view sees, and every later one will, as a view. None if a view is just being
    /// opened or closed.
    ///
    /// An id below its `high` is one that no live view takes for younger than itself. So where the
    /// table says that it committed, or ended long ago, it says so to them all.
    pub fn common(&self, table: &CsnTable) -> Option<ReadView> {
        // Before the slots are looked at: a view opened later has at least these.
        let (published, next_id) = (table.published(), table.next_id());
        let mut common = ReadView { csn: published, low: FIRST_ID, high: next_id };
        for view in self.bounds()? {
            common.csn = common.csn.min(view.csn);
            common.high = common.high.min(view.high);
        }
        Some(common)
    }

    /// The bounds of every live view; none if a view is just being opened or closed.
    pub fn bounds(&self) -> Option<Vec<ViewBounds>> {
        let mut bounds = Vec::new();
        for slot in self.slots() {
            let csn = slot.csn.load(Ordering::SeqCst);
            if csn == PENDING {
                return None;
            }
            if csn != IDLE {
                let high = slot.high.load(Ordering::Acquire);
                if slot.csn.load(Ordering::SeqCst) != csn {
                    return None;
                }
                bounds.push(ViewBounds { csn: Csn(csn), high: TrxId(high) });
            }
        }
        Some(bounds)
    }

    /// Live views.
    pub fn count(&self) -> usize {
        self.slots().filter(|slot| slot.csn.load(Ordering::Relaxed) != IDLE).count()
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.segments.iter().filter_map(|segment| segment.get()).flat_map(|slots| slots.iter())
    }
}
