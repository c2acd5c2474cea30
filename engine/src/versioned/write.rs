//! Insert, update, put, delete: each one mini-transaction of undo record and leaf change.
//!
//! ```text
//! loop {
//!     mini-transaction, leaf exclusively
//!     what must be waited for?           let go, wait, again
//!     may the operation be done?         if not: let go, fail
//!     no room in leaf or undo log?       let go, make room, again
//!     undo record + leaf; commit
//! }
//! ```
//! Room in a leaf is made by settling entries of it, if that does, or else by a split. A
//! delete-mark may need some too, for the header of a settled entry is shorter than its own.
//!
//! A value too long for the leaf goes into an overflow chain first, whose head is allocated
//! together with a separate undo record: a rollback frees it, whether the entry came to name it
//! or not.

use tidepool_pool::{Access, PageId};

use super::VersionedTree;
use super::locking::{Obstacle, ReadLock, WaitDeadline};
use super::read::ReadRequest;
use super::settle::settle;
use super::skip::skip_pointer;
use crate::btree::{LeafMut, Seek, max_key_len};
use crate::error::{Error, Result};
use crate::format::entry::RollPointer;
use crate::format::entry::{
    DELETED, ENTRY_HEADER_SIZE, Entry, OVERFLOW, OverflowReference, SETTLED, corrupt_entry,
};
use crate::lock::{LockMode, LockWait};
use crate::mtr::Mtr;
use crate::overflow;
use crate::pause::{self, PausePoint};
use crate::space::{Allocation, AutoIncrement};
use crate::trx::TransactionCore;
use crate::undo::record::{Place, Writer};

/// Undo bytes of a change beyond key and value, at most.
const UNDO_OVERHEAD: usize = 64;

/// An entry to insert.
#[derive(Debug, Clone, Copy)]
pub struct Insertion<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// The lock on an entry that has the key already.
    pub on_duplicate: LockMode,
    /// What its mini-transaction raises the table's counter to.
    pub numbered: Option<(&'a AutoIncrement, u64)>,
}

/// What a write does to the entry it finds.
#[derive(Clone, Copy)]
enum Change<'a> {
    Insert(Insertion<'a>),
    Update(&'a [u8]),
    /// An insert if there is none, an update if there is one.
    Put(&'a [u8]),
    Delete,
    /// A delete, of an entry whose row goes on under another key.
    MoveAway,
}

impl<'a> Change<'a> {
    /// The value that it writes; none of a delete.
    fn value(self) -> Option<&'a [u8]> {
        match self {
            Change::Insert(Insertion { value, .. })
            | Change::Update(value)
            | Change::Put(value) => Some(value),
            Change::Delete | Change::MoveAway => None,
        }
    }

    /// Whether it makes an entry where there is none.
    fn is_of_new(self) -> bool {
        matches!(self, Change::Insert(_) | Change::Put(_))
    }
}

/// What a write that is done has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// There was no entry, or a deleted one.
    New,
    Existing,
}

/// What one attempt at a write came to.
enum Attempt {
    Done(Written),
    /// Something was in the way, and is no more.
    Again,
    /// As before, and the waiting has given the transaction the key's exclusive lock.
    Locked,
    /// The leaf needs room for a payload of this length.
    LeafFull(usize),
    /// The undo log needs another page.
    UndoFull,
    /// The value must go to an overflow chain first.
    StoreValue,
    /// The entry exists: a duplicate. It may have to be locked.
    Duplicate,
    /// There is no entry to change.
    Absent,
}

/// A value as the entry holds it.
struct Stored {
    flags: u8,
    bytes: Vec<u8>,
}

impl VersionedTree {
    /// Inserts an entry. If there is one with this key, the error is [`Error::DuplicateKey`] with
    /// its value, and it is left locked with `on_duplicate`.
    pub fn insert(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        value: &[u8],
        on_duplicate: LockMode,
    ) -> Result<()> {
        self.insert_numbered(trx, key, Insertion { value, on_duplicate, numbered: None })
    }

    /// The same, and raises the counter of the table, whose tree this is.
    pub fn insert_numbered(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        insertion: Insertion<'_>,
    ) -> Result<()> {
        self.write(trx, key, Change::Insert(insertion)).map(drop)
    }

    /// Replaces an entry's value; [`Error::NotFound`] if there is none.
    pub fn update(&self, trx: &mut TransactionCore, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(trx, key, Change::Update(value)).map(drop)
    }

    /// Replaces an entry's value, or inserts the entry if there is none.
    pub fn put(&self, trx: &mut TransactionCore, key: &[u8], value: &[u8]) -> Result<Written> {
        self.write(trx, key, Change::Put(value))
    }

    /// Deletes an entry; [`Error::NotFound`] if there is none.
    pub fn delete(&self, trx: &mut TransactionCore, key: &[u8]) -> Result<()> {
        self.write(trx, key, Change::Delete).map(drop)
    }

    /// Deletes an entry whose row goes on under another key of the tree, which the transaction
    /// inserts as well: who scans the tree at the same time is not to miss the row.
    /// [`Error::NotFound`] if there is none.
    pub fn move_away(&self, trx: &mut TransactionCore, key: &[u8]) -> Result<()> {
        self.write(trx, key, Change::MoveAway).map(drop)
    }

    fn write(&self, trx: &mut TransactionCore, key: &[u8], change: Change<'_>) -> Result<Written> {
        let max = max_key_len(trx.system.env.page_size());
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        trx.begin_write()?;
        let before = trx.position();
        let outcome = self.write_in_attempts(trx, key, change);
        outcome.map_err(|error| {
            // Only a chain can have been written by now.
            if trx.position() != before && trx.undo_to(before).is_err() {
                return error;
            }
            trx.note(error)
        })
    }

    fn write_in_attempts(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        change: Change<'_>,
    ) -> Result<Written> {
        let mut stored = None;
        // Whether this operation has locked the key, by waiting for it.
        let mut locked = false;
        let mut deadline = WaitDeadline::default();
        loop {
            match self.attempt(trx, key, change, stored.as_ref(), &mut deadline)? {
                Attempt::Done(written) => {
                    // The lock is the write's now, and stays to the end, whatever the read that
                    // took it thinks of the row.
                    trx.fresh_locks.clear();
                    trx.count_undo();
                    return Ok(written);
                }
                Attempt::Again => {}
                Attempt::Locked => locked = true,
                Attempt::LeafFull(payload_len) => self.tree.make_room(key, payload_len)?,
                Attempt::UndoFull => {
                    let log = trx.log.as_mut().expect("writing");
                    log.add_page(&trx.system.undo)?;
                }
                Attempt::StoreValue => {
                    let value = change.value().expect("a delete stores no value");
                    stored = Some(self.store_long_value(trx, value)?);
                }
                Attempt::Absent => {
                    // That there is none is an answer: at SERIALIZABLE it stays true.
                    let absence =
                        ReadRequest::presence(key).locked(LockMode::Shared, LockWait::Wait);
                    if !trx.locks_gaps() || !self.locking_read(trx, absence)? {
                        return Err(Error::NotFound);
                    }
                }
                Attempt::Duplicate => {
                    let Change::Insert(Insertion { on_duplicate: mode, .. }) = change else {
                        unreachable!("only an insert finds a duplicate");
                    };
                    if let Some(value) = self.duplicate(trx, key, mode, &mut deadline)? {
                        if locked && mode != LockMode::Exclusive {
                            // Others may have waited for the same.
                            trx.system.locks.keys.weaken(&trx.owner, self.id(), key, mode);
                        }
                        return Err(Error::DuplicateKey { index: self.index, value });
                    }
                }
            }
        }
    }

    fn attempt(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        change: Change<'_>,
        stored: Option<&Stored>,
        deadline: &mut WaitDeadline,
    ) -> Result<Attempt> {
        let system = &*trx.system;
        let mut mtr = Mtr::begin(&system.env)?;
        let insert = matches!(change, Change::Insert(..));
        // The newest locking read knows where the entry is that will be changed.
        let near = trx.near.take_if(|near| !insert && near.is_of(&self.tree));
        let (leaf, found) = match near.and_then(|near| self.tree.hinted_exclusive(near, key)) {
            Some(hinted) => hinted,
            None => {
                let leaf = self.tree.leaf_exclusive(key)?;
                let found = leaf.find_covered(key);
                (leaf, found)
            }
        };
        let entry = match found {
            Ok(slot) => Some(decode(&leaf, slot)?),
            Err(_) => None,
        };
        let live = entry.is_some_and(|entry| !entry.is_deleted());
        if insert && live && entry.is_some_and(|entry| !trx.is_written_by_other(&entry)) {
            // Certain already; the lock on the duplicate is another matter.
            return Ok(Attempt::Duplicate);
        }
        if let Some(obstacle) = self.obstacle_to_write(trx, key, entry.as_ref())? {
            let queued = matches!(obstacle, Obstacle::Queue);
            let held =
                queued && system.locks.keys.holds(&trx.owner, self.id(), key, LockMode::Shared);
            drop((leaf, mtr));
            self.wait(trx, key, obstacle, deadline)?;
            return Ok(if queued && !held { Attempt::Locked } else { Attempt::Again });
        }
        if let Some(entry) = &entry {
            if insert && live {
                return Ok(Attempt::Duplicate);
            }
            if trx.conflicts_with_view(entry.trx_id) {
                return Err(Error::RecordChanged);
            }
        }
        if !live && !change.is_of_new() {
            return Ok(Attempt::Absent);
        }
        let (flags, value) = match (change, &entry) {
            (Change::Delete | Change::MoveAway, Some(entry)) => {
                (entry.flags & !SETTLED | DELETED, entry.value)
            }
            _ => match (stored, change.value().expect("a deleted entry was found, above")) {
                (Some(stored), _) => (stored.flags, &stored.bytes[..]),
                (None, value) if value.len() > self.inline_max(key.len()) => {
                    return Ok(Attempt::StoreValue);
                }
                (None, value) => (0, value),
            },
        };
        let entry_was_there = entry.is_some();
        let payload_len = ENTRY_HEADER_SIZE + value.len();
        let fits = match found {
            Ok(slot) => leaf.fits_replaced(slot, payload_len),
            Err(_) => leaf.fits(key.len(), payload_len),
        };
        if !fits {
            return Ok(match settle(system, mtr, leaf, key, payload_len)? {
                true => Attempt::Again,
                false => Attempt::LeafFull(payload_len),
            });
        }
        debug_assert!(
            entry.is_none_or(|entry| entry.trx_id == trx.id()
                || !system.csn.is_active(entry.trx_id)),
            "no other transaction that still runs has written the entry"
        );
        let log = trx.log.as_mut().expect("writing");
        let undo_len = UNDO_OVERHEAD + key.len() + entry.map_or(0, |entry| entry.value.len());
        if !log.has_room(&system.undo, undo_len) {
            return Ok(Attempt::UndoFull);
        }
        let skip = match (change, &entry) {
            (Change::Insert(..) | Change::Update(_) | Change::Put(_), Some(entry)) => {
                skip_pointer(system, (self.id(), key), entry, log.next())
            }
            _ => None,
        };
        let (undo_page, undo_at) = (log.latch_tail(&system.undo, &mut mtr)?, log.next());
        let raise = match change {
            Change::Insert(Insertion { numbered: Some((counter, next)), .. }) => {
                counter.latch(&mut mtr, self.tree.space(), next)?
            }
            _ => None,
        };
        // Nothing fails from here on.
        let place =
            Place { tree: self.id(), space: self.tree.space().id(), root: self.tree.root(), key };
        let roll = if entry.is_some() { log.next() } else { RollPointer::NONE };
        trx.payload.clear();
        Entry { flags, trx_id: log.trx_id(), roll, value }.encode(&mut trx.payload);
        log.append(&mut mtr, undo_page, entry.is_some(), |writer: &mut Writer<'_>| match &entry {
            None => writer.insert(&place),
            Some(entry) if matches!(change, Change::Delete) => writer.delete(&place, entry),
            Some(entry) if matches!(change, Change::MoveAway) => writer.move_away(&place, entry),
            Some(entry) => writer.update(&place, entry, value, skip),
        });
        match found {
            Ok(slot) => leaf.replace(&mut mtr, slot, &trx.payload),
            Err(slot) => leaf.insert(&mut mtr, slot, key, &trx.payload),
        };
        if let Some(raise) = raise {
            raise.apply(&mut mtr);
        }
        debug_assert_eq!(log.tail().page, undo_at.page, "the record fits the page that had room");
        if entry_was_there {
            // Under the latch: the next thread that asks for the key sees the implicit lock, not a
            // queue that is about to go.
            system.locks.keys.make_implicit(&trx.owner, self.id(), key);
        }
        mtr.commit();
        pause::reach(PausePoint::WriteCommitted);
        Ok(Attempt::Done(if live { Written::Existing } else { Written::New }))
    }

    /// Locks the duplicate as asked, and reads it. None if it is gone by now.
    fn duplicate(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        mode: LockMode,
        deadline: &mut WaitDeadline,
    ) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        loop {
            let leaf = self.tree.leaf_shared(Seek::Key(key), Access::Normal)?;
            let Ok(slot) = leaf.find(key) else { return Ok(None) };
            let payload = leaf.payload_at(slot);
            let entry =
                Entry::decode(payload).ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
            if mode != LockMode::None {
                let wait = LockWait::Wait;
                if let ReadLock::Wait(obstacle) = self.lock_entry(trx, key, &entry, mode, wait)? {
                    drop(leaf);
                    self.wait(trx, key, obstacle, deadline)?;
                    continue;
                }
            }
            if entry.is_deleted() {
                return Ok(None);
            }
            let flags = entry.flags;
            value.extend_from_slice(entry.value);
            // A lock keeps the chain, which may take a while to read. Without one, the version
            // could be replaced and its chain freed.
            let latched = (mode == LockMode::None).then_some(leaf);
            self.complete(flags, &mut value)?;
            drop(latched);
            return Ok(Some(value));
        }
    }

    /// Writes a long value to a chain; gives what the entry will hold.
    fn store_long_value(&self, trx: &mut TransactionCore, value: &[u8]) -> Result<Stored> {
        let system = &*trx.system;
        let (head, rest) = value.split_at(self.overflow_head_len());
        let space = self.tree.space();
        let log = trx.log.as_mut().expect("writing");
        if !log.has_room(&system.undo, UNDO_OVERHEAD) {
            log.add_page(&system.undo)?;
        }
        let (first_page, stored) = {
            let mut mtr = Mtr::begin(&system.env)?;
            let undo_page = log.latch_tail(&system.undo, &mut mtr)?;
            let mut allocation = Allocation::reserve(&mut mtr, space, self.tree.root(), 1)?;
            let (first, stored) = overflow::start(&mut mtr, &mut allocation, self.id(), rest);
            log.append(&mut mtr, undo_page, false, |writer| {
                writer.chain(space.id(), self.id(), first);
            });
            mtr.commit();
            (first, stored)
        };
        trx.count_undo();
        overflow::extend(&system.env, space, self.id(), first_page, &rest[stored..])?;
        let mut bytes = Vec::new();
        OverflowReference { total_len: value.len() as u64, first_page, head }.encode(&mut bytes);
        Ok(Stored { flags: OVERFLOW, bytes })
    }
}

fn decode<'l>(leaf: &'l LeafMut<'_>, slot: usize) -> Result<Entry<'l>> {
    let page: PageId = leaf.page_id();
    Entry::decode(leaf.payload_at(slot)).ok_or_else(|| corrupt_entry(page, slot))
}
