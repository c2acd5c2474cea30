//! Undo records: their bytes.
//!
//! ```text
//! 0      length      u16   of the whole record
//! 2      kind        u8
//! 3      marks       u8    what was done about the record since; and 1 = there is a chain field
//! 4      body              by kind, below
//! len-2  start       u16   offset of the record in its page: leads backward
//!
//! LOG     4 state u8 | 5 trx id u48 | 11 csn u64 | 19 end page u32 | 23 end offset u16
//! INSERT  4 place
//! UPDATE  4 [chain u32] | [skip trx id u48 | skip roll pointer u32 u16] | place | prior flags u8 | prior trx id u48
//!         | prior roll pointer u32 u16 | prior value
//! DELETE  4 [chain u32] | place | prior flags u8 | prior trx id u48 | prior roll pointer u32 u16
//! CHAIN   4 chain u32 | space varint | tree id varint
//! XID     4 bytes
//! place = tree id varint | space id varint | root page varint | key length varint | key
//! ```
//!
//! A delete-mark keeps the value in the entry, so DELETE records none. UPDATE gives the prior value
//! as what differs from the new one, `common front varint | common back varint | middle`, except
//! with a chain field or a skip pointer: then the whole prior value (with a chain field, an overflow
//! reference).
//!
//! **The chain field** is the first page of the prior version's overflow chain that is still to be
//! freed when the prior version is not needed any more. Each step of freeing moves it on in the
//! same mini-transaction. For CHAIN it is the chain that this transaction began to write, to be
//! freed at rollback.
//!
//! **The skip pointer** leads to an older record of the entry that has one as well: see
//! `versioned/skip.rs`. The id is that of the transaction that made the version which the older
//! record undoes. Zeroes: there is none.
//!
//! **Marks.** `PRIOR_PURGED`: purge of the transaction that delete-marked the prior version has
//! passed by; so a rollback must remove the entry rather than restore the delete-mark that no view
//! would ever purge. `REMOVED`: the entry has been removed, what remains is the chain. `UNDONE`: a
//! rollback that had to pass over newer records has undone this one; it will be cut off after
//! those. `MOVED`, from the beginning: the entry's row goes on under another key of the tree, which
//! the same transaction inserts.

use crate::csn::TrxId;
use crate::format::entry::{Entry, RollPointer, u64_from_6};
use crate::varint;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Begins a log.
    Log = 1,
    /// An entry was inserted where there was none.
    Insert = 2,
    /// An entry's version was replaced, be it a delete-marked one.
    Update = 3,
    /// An entry was delete-marked.
    Delete = 4,
    /// An overflow chain was begun.
    Chain = 5,
    /// The transaction was prepared under this XID.
    Xid = 6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LogState {
    /// Its transaction runs, or is being rolled back.
    Active = 1,
    /// Prepared: it ends only by an explicit commit or rollback.
    Prepared = 2,
    /// Committed; purge will free it.
    Committed = 3,
}

/// The chain field is there.
pub const MARK_CHAIN: u8 = 1;
/// See the module's description.
pub const MARK_PRIOR_PURGED: u8 = 2;
/// See the module's description.
pub const MARK_REMOVED: u8 = 4;
/// See the module's description.
pub const MARK_UNDONE: u8 = 8;
/// See the module's description.
pub const MARK_MOVED: u8 = 16;

/// There is a skip pointer.
pub const MARK_SKIP: u8 = 32;

/// Offset of the marks in a record.
pub const MARKS_AT: usize = 3;
/// Offset of the chain field in a record that has one.
pub const CHAIN_AT: usize = 4;
/// Offset of the state in a log record; CSN and end follow the id.
pub const LOG_STATE_AT: usize = 4;
/// Bytes of a log record.
pub const LOG_RECORD_SIZE: usize = 27;
/// Bytes of a record around its body.
const FRAME: usize = 6;

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// Tree id.
    pub tree: u32,
    /// Space id.
    pub space: u32,
    /// Root page of the tree.
    pub root: u32,
    pub key: &'a [u8],
}

/// The version that a change replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prior<'a> {
    /// Flags of the entry.
    pub flags: u8,
    /// Who wrote it.
    pub trx_id: TrxId,
    /// The version before it.
    pub roll: RollPointer,
    pub value: PriorValue<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorValue<'a> {
    /// The same as the version that replaced it.
    Same,
    Whole(&'a [u8]),
    /// `front` bytes of the newer value, then these, then the last `back` bytes of the newer value.
    Middle {
        /// Bytes in common at the beginning.
        front: usize,
        /// Bytes in common at the end.
        back: usize,
        /// What is between.
        middle: &'a [u8],
    },
}

/// Where a chain of versions goes on, past many of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// Who made the version that the record at `roll` undoes.
    pub trx_id: TrxId,
    /// An older record of the entry, which has a skip pointer too.
    pub roll: RollPointer,
}

impl Skip {
    /// There is no older record with a skip pointer.
    pub const NONE: Skip = Skip { trx_id: TrxId::NONE, roll: RollPointer::NONE };
}

impl PriorValue<'_> {
    /// Turns `value`, the newer version's, into the prior one. None if that is impossible: a
    /// corrupt record.
    pub fn restore(&self, value: &mut Vec<u8>) -> Option<()> {
        match *self {
            PriorValue::Same => {}
            PriorValue::Whole(bytes) => {
                value.clear();
                value.extend_from_slice(bytes);
            }
            PriorValue::Middle { front, back, middle } => {
                let end = value.len().checked_sub(back)?;
                if front > end {
                    return None;
                }
                value.splice(front..end, middle.iter().copied());
            }
        }
        Some(())
    }
}

/// The state of a log and what goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord {
    pub state: LogState,
    /// Whose log it is.
    pub trx_id: TrxId,
    /// Commit sequence number, if committed.
    pub csn: u64,
    /// Where the log ends, if committed.
    pub end: RollPointer,
}

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// See [`RecordKind::Log`].
    Log(LogRecord),
    /// See [`RecordKind::Insert`].
    Insert(Place<'a>),
    /// See [`RecordKind::Update`].
    Update(Place<'a>, Prior<'a>),
    /// See [`RecordKind::Delete`].
    Delete(Place<'a>, Prior<'a>),
    /// See [`RecordKind::Chain`].
    Chain {
        /// The space the chain is in.
        space: u32,
        /// The tree it belongs to.
        tree: u32,
    },
    /// See [`RecordKind::Xid`].
    Xid(&'a [u8]),
}

/// A decoded record with its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset in the page.
    pub start: usize,
    /// Length of the whole.
    pub len: usize,
    pub marks: u8,
    /// The chain field; 0 = nothing to free, or no such field.
    pub chain: u32,
    /// The skip pointer, of an update that has one.
    pub skip: Option<Skip>,
    /// The rest.
    pub body: Body<'a>,
}

impl<'a> Record<'a> {
    /// The space and the tree that it is about; `None` if it is about none.
    fn space_and_tree(&self) -> Option<(u32, u32)> {
        match &self.body {
            Body::Insert(place) | Body::Update(place, _) | Body::Delete(place, _) => {
                Some((place.space, place.tree))
            }
            Body::Chain { space, tree } => Some((*space, *tree)),
            Body::Log(_) | Body::Xid(_) => None,
        }
    }

    /// The space that it is about; `None` if it is about none.
    pub fn space(&self) -> Option<u32> {
        self.space_and_tree().map(|(space, _)| space)
    }

    /// The tree that it is about; `None` if it is about none.
    pub fn tree(&self) -> Option<u32> {
        self.space_and_tree().map(|(_, tree)| tree)
    }

    /// Reads the record at `start` of a page whose records end at `used`.
    pub fn decode(page: &'a [u8], start: usize, used: usize) -> Result<Record<'a>, &'static str> {
        let bytes = page.get(start..used).ok_or("undo record beyond the page's end")?;
        let len = match bytes {
            [a, b, ..] => usize::from(u16::from_le_bytes([*a, *b])),
            _ => return Err("undo record cut short"),
        };
        if len < FRAME || len > bytes.len() {
            return Err("undo record of impossible length");
        }
        if u16::from_le_bytes([bytes[len - 2], bytes[len - 1]]) as usize != start {
            return Err("undo record whose end does not match its beginning");
        }
        let marks = bytes[MARKS_AT];
        let mut body = Reader(&bytes[4..len - 2]);
        let has_chain = marks & MARK_CHAIN != 0;
        let chain = if has_chain { body.u32()? } else { 0 };
        let has_skip = marks & MARK_SKIP != 0;
        if has_skip && bytes[2] != RecordKind::Update as u8 {
            return Err("undo record of a kind that has no skip pointer, with one");
        }
        let skip = match has_skip {
            true => Some(Skip { trx_id: body.trx_id()?, roll: body.roll()? }),
            false => None,
        };
        let body = match bytes[2] {
            1 => Body::Log(body.log()?),
            2 => Body::Insert(body.place()?),
            3 => Body::Update(body.place()?, body.prior(true, has_chain || has_skip)?),
            4 => Body::Delete(body.place()?, body.prior(false, has_chain)?),
            5 => Body::Chain { space: body.varint()?, tree: body.varint()? },
            6 => Body::Xid(body.0),
            _ => return Err("undo record of unknown kind"),
        };
        Ok(Record { start, len, marks, chain, skip, body })
    }

    /// Reads the record that ends at `end`.
    pub fn decode_before(page: &'a [u8], end: usize) -> Result<Record<'a>, &'static str> {
        let at = end.checked_sub(2).ok_or("no undo record before the page's beginning")?;
        let start = page.get(at..end).ok_or("undo record beyond the page's end")?;
        let start = usize::from(u16::from_le_bytes([start[0], start[1]]));
        let record = Record::decode(page, start, end)?;
        if start + record.len != end {
            return Err("undo record whose length does not match its end");
        }
        Ok(record)
    }
}

struct Reader<'a>(&'a [u8]);

const SHORT: &str = "undo record with a truncated body";

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(SHORT)?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| SHORT)?))
    }

    fn varint(&mut self) -> Result<u32, &'static str> {
        varint::take_u32(&mut self.0).ok_or("undo record with an impossible number")
    }

    fn roll(&mut self) -> Result<RollPointer, &'static str> {
        Ok(RollPointer::read(self.take(6)?))
    }

    fn trx_id(&mut self) -> Result<TrxId, &'static str> {
        Ok(TrxId(u64_from_6(self.take(6)?)))
    }

    fn log(&mut self) -> Result<LogRecord, &'static str> {
        let state = match self.u8()? {
            1 => LogState::Active,
            2 => LogState::Prepared,
            3 => LogState::Committed,
            _ => return Err("undo log in an unknown state"),
        };
        let trx_id = self.trx_id()?;
        let csn = u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| SHORT)?);
        Ok(LogRecord { state, trx_id, csn, end: self.roll()? })
    }

    fn place(&mut self) -> Result<Place<'a>, &'static str> {
        let (tree, space, root) = (self.varint()?, self.varint()?, self.varint()?);
        let len = self.varint()? as usize;
        Ok(Place { tree, space, root, key: self.take(len)? })
    }

    fn prior(&mut self, with_value: bool, whole: bool) -> Result<Prior<'a>, &'static str> {
        let (flags, trx_id, roll) = (self.u8()?, self.trx_id()?, self.roll()?);
        let value = if !with_value {
            PriorValue::Same
        } else if whole {
            PriorValue::Whole(self.0)
        } else {
            let (front, back) = (self.varint()? as usize, self.varint()? as usize);
            PriorValue::Middle { front, back, middle: self.0 }
        };
        Ok(Prior { flags, trx_id, roll, value })
    }
}

/// Appends records to a buffer that will be written at `base` of a page.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    base: usize,
}

impl<'a> Writer<'a> {
    /// A writer of what will lie at offset `base`, less what `out` holds already.
    pub fn new(out: &'a mut Vec<u8>, base: usize) -> Self {
        Writer { out, base }
    }

    /// Offset in the page of the next record.
    pub fn position(&self) -> usize {
        self.base + self.out.len()
    }

    fn record(&mut self, kind: RecordKind, marks: u8, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.position();
        let at = self.out.len();
        self.out.extend_from_slice(&[0, 0, kind as u8, marks]);
        body(self.out);
        self.out.extend_from_slice(&(start as u16).to_le_bytes());
        let len = self.out.len() - at;
        let len = u16::try_from(len).expect("an undo record fits a page");
        self.out[at..at + 2].copy_from_slice(&len.to_le_bytes());
    }

    /// A log record.
    pub fn log(&mut self, log: &LogRecord) {
        self.record(RecordKind::Log, 0, |out| {
            out.push(log.state as u8);
            out.extend_from_slice(&log.trx_id.0.to_le_bytes()[..6]);
            out.extend_from_slice(&log.csn.to_le_bytes());
            log.end.write(out);
        });
    }

    /// An insert where there was nothing.
    pub fn insert(&mut self, place: &Place<'_>) {
        self.record(RecordKind::Insert, 0, |out| put_place(out, place));
    }

    /// An update of `prior` to a version with the value `new`.
    pub fn update(&mut self, place: &Place<'_>, prior: &Entry<'_>, new: &[u8], skip: Option<Skip>) {
        let chain = prior.overflow().map(|overflow| overflow.first_page);
        let marks = chain.map_or(0, |_| MARK_CHAIN) | skip.map_or(0, |_| MARK_SKIP);
        self.record(RecordKind::Update, marks, |out| {
            put_chain(out, chain);
            if let Some(Skip { trx_id, roll }) = skip {
                out.extend_from_slice(&trx_id.0.to_le_bytes()[..6]);
                roll.write(out);
            }
            put_change(out, place, prior);
            if marks & (MARK_CHAIN | MARK_SKIP) != 0 {
                out.extend_from_slice(prior.value);
            } else {
                let (front, back) = common_ends(prior.value, new);
                varint::put_u32(out, front as u32);
                varint::put_u32(out, back as u32);
                out.extend_from_slice(&prior.value[front..prior.value.len() - back]);
            }
        });
    }

    /// A delete-mark on `prior`.
    pub fn delete(&mut self, place: &Place<'_>, prior: &Entry<'_>) {
        let chain = prior.overflow().map(|overflow| overflow.first_page);
        self.record(RecordKind::Delete, chain.map_or(0, |_| MARK_CHAIN), |out| {
            put_chain(out, chain);
            put_change(out, place, prior);
        });
    }

    /// An entry was delete-marked whose row goes on under another key.
    pub fn move_away(&mut self, place: &Place<'_>, prior: &Entry<'_>) {
        let chain = prior.overflow().map(|overflow| overflow.first_page);
        let marks = MARK_MOVED | chain.map_or(0, |_| MARK_CHAIN);
        self.record(RecordKind::Delete, marks, |out| {
            put_chain(out, chain);
            put_change(out, place, prior);
        });
    }

    /// A chain begun at `first_page` of `space` for `tree`.
    pub fn chain(&mut self, space: u32, tree: u32, first_page: u32) {
        self.record(RecordKind::Chain, MARK_CHAIN, |out| {
            out.extend_from_slice(&first_page.to_le_bytes());
            varint::put_u32(out, space);
            varint::put_u32(out, tree);
        });
    }

    /// A prepared transaction's XID.
    pub fn xid(&mut self, xid: &[u8]) {
        self.record(RecordKind::Xid, 0, |out| out.extend_from_slice(xid));
    }
}

/// Lengths of what two values have in common at the beginning and, behind that, at the end.
fn common_ends(a: &[u8], b: &[u8]) -> (usize, usize) {
    let same = |(a, b): &(&u8, &u8)| a == b;
    let front = a.iter().zip(b).take_while(same).count();
    let back = a[front..].iter().rev().zip(b[front..].iter().rev()).take_while(same).count();
    (front, back)
}

fn put_chain(out: &mut Vec<u8>, chain: Option<u32>) {
    out.extend(chain.into_iter().flat_map(u32::to_le_bytes));
}

fn put_change(out: &mut Vec<u8>, place: &Place<'_>, prior: &Entry<'_>) {
    put_place(out, place);
    out.push(prior.flags);
    out.extend_from_slice(&prior.trx_id.0.to_le_bytes()[..6]);
    prior.roll.write(out);
}

fn put_place(out: &mut Vec<u8>, place: &Place<'_>) {
    for number in [place.tree, place.space, place.root, place.key.len() as u32] {
        varint::put_u32(out, number);
    }
    out.extend_from_slice(place.key);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::entry::{DELETED, OVERFLOW};

    fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..max)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::test_cases(300)))]
        #[test]
        fn records_survive_their_encoding(
            base in 48usize..5000, tree: u32, space: u32, root: u32, key in bytes(50), flags in 0u8..4, id in 0u64..1 << 48,
            page: u32, offset: u16, mut old in bytes(60), new in bytes(60), kind in 0u8..6, csn: u64,
        ) {
            if flags & OVERFLOW != 0 {
                old.extend_from_slice(&[7; 12]);
            }
            let roll = RollPointer { page, offset };
            let prior = Entry { flags, trx_id: TrxId(id), roll, value: &old };
            let place = Place { tree, space, root, key: &key };
            let log = LogRecord { state: LogState::Committed, trx_id: TrxId(id), csn, end: roll };
            let mut out = vec![0; 10];
            let mut writer = Writer::new(&mut out, base);
            let start = writer.position();
            match kind {
                0 => writer.insert(&place),
                1 => writer.update(&place, &prior, &new, None),
                5 => writer.update(&place, &prior, &new, Some(Skip { trx_id: TrxId(csn >> 16), roll })),
                2 => writer.delete(&place, &prior),
                3 => writer.chain(space, tree, page),
                _ => writer.log(&log),
            }
            let end = writer.position();
            let mut page_bytes = vec![0; base];
            page_bytes.extend_from_slice(&out);
            let record = Record::decode(&page_bytes, start, end).unwrap();
            prop_assert_eq!(Record::decode_before(&page_bytes, end).unwrap(), record);
            prop_assert_eq!((record.start, record.len), (start, end - start));
            let first = prior.overflow().map_or(0, |o| o.first_page);
            match record.body {
                Body::Insert(at) => prop_assert_eq!(at, place),
                Body::Update(at, before) => {
                    prop_assert_eq!(at, place);
                    let skip = (kind == 5).then_some(Skip { trx_id: TrxId(csn >> 16), roll });
                    prop_assert_eq!(record.skip, skip);
                    if skip.is_some() {
                        prop_assert_eq!(before.value, PriorValue::Whole(&old));
                    }
                    prop_assert_eq!((before.flags, before.trx_id, before.roll), (flags, TrxId(id), roll));
                    let mut value = new.clone();
                    prop_assert!(before.value.restore(&mut value).is_some());
                    prop_assert_eq!(&value, &old);
                    prop_assert_eq!(record.chain, first);
                }
                Body::Delete(at, before) => {
                    prop_assert_eq!(at, place);
                    prop_assert_eq!(before.value, PriorValue::Same);
                    prop_assert_eq!(record.chain, first);
                }
                Body::Chain { space: a, tree: b } => prop_assert_eq!((a, b, record.chain), (space, tree, page)),
                Body::Log(at) => {
                    prop_assert_eq!(at, log);
                    prop_assert_eq!(record.len, LOG_RECORD_SIZE);
                }
                Body::Xid(_) => prop_assert!(false),
            }
        }

        #[test]
        fn damaged_records_are_refused_without_a_panic(page in bytes(200), start in 0usize..220, used in 0usize..220) {
            let _ = Record::decode(&page, start, used);
            let _ = Record::decode_before(&page, used);
        }

        #[test]
        fn a_flipped_byte_never_panics(at in 0usize..80, bit in 0u8..8, old in bytes(30), new in bytes(30)) {
            let prior = Entry { flags: DELETED, trx_id: TrxId(9), roll: RollPointer::NONE, value: &old };
            let mut page = Vec::new();
            let place = Place { tree: 1, space: 2, root: 3, key: b"key" };
            Writer::new(&mut page, 0).update(&place, &prior, &new, None);
            let at = at % page.len();
            page[at] ^= 1 << bit;
            if let Ok(Record { body: Body::Update(_, prior), .. }) = Record::decode(&page, 0, page.len()) {
                let _ = prior.value.restore(&mut new.clone());
            }
        }
    }
}
