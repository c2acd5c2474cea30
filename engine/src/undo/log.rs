//! One transaction's undo log: append, walk backward, cut, end.

use std::collections::{HashMap, HashSet};

use tidepool_pool::Lsn;

use super::open::FoundLog;
use super::page::{DATA_AT, PageHeader, USED_AT, write};
use super::record::{
    Body, CHAIN_AT, LOG_RECORD_SIZE, LOG_STATE_AT, LogRecord, LogState, MARKS_AT, Record, Writer,
};
use super::stream::Undo;
use crate::csn::{Csn, CsnTable, TrxId};
use crate::error::Result;
use crate::format::entry::{DELETED, RollPointer};
use crate::mtr::{Mtr, PageHandle};

/// A transaction's log, in the stream that it has to itself until the log ends.
///
/// Its record goes in with the first change, so that a transaction which changes nothing writes
/// nothing.
#[derive(Debug)]
pub struct UndoLog {
    stream: u32,
    trx_id: TrxId,
    /// The log record, once `begun`.
    start: RollPointer,
    begun: bool,
    /// End of the stream: where the next record goes.
    tail: RollPointer,
    /// Records written and not cut, the log record not counted.
    records: u64,
    /// State PREPARED is on disk.
    prepared: bool,
    /// There was a record that purge or an older view may want.
    lasting: bool,
    /// Memory for records, reused.
    buffer: Vec<u8>,
}

/// A point in a log to roll back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoPosition {
    tail: RollPointer,
    records: u64,
}

impl UndoPosition {
    /// Before the first record.
    pub const START: UndoPosition = UndoPosition { tail: RollPointer::NONE, records: 0 };

    /// Records before it.
    pub fn records(self) -> u64 {
        self.records
    }
}

impl UndoLog {
    /// Takes a stream, `used_before` if it can. The transaction's id must be set before the first
    /// record.
    pub fn new(undo: &Undo, used_before: Option<u32>) -> Result<UndoLog> {
        let (stream, tail) = undo.acquire(used_before)?;
        Ok(UndoLog {
            stream,
            trx_id: TrxId::NONE,
            start: tail,
            begun: false,
            tail,
            records: 0,
            prepared: false,
            lasting: false,
            buffer: Vec::new(),
        })
    }

    /// The log of a transaction that recovery found unfinished.
    pub fn recovered(found: &FoundLog) -> UndoLog {
        UndoLog {
            stream: found.stream,
            trx_id: found.record.trx_id,
            start: found.start,
            begun: true,
            tail: found.tail,
            // Not counted: a recovered log is rolled back whole, or committed.
            records: u64::MAX / 2,
            prepared: found.record.state == LogState::Prepared,
            lasting: true,
            buffer: Vec::new(),
        }
    }

    /// The spaces that its records are about. Reads all of it.
    pub fn spaces(&self, undo: &Undo) -> Result<HashSet<u32>> {
        let mut spaces = HashSet::new();
        undo.for_each_record(self.stream, self.start, self.tail, |_, record| {
            spaces.extend(record.space());
            Ok(())
        })?;
        Ok(spaces)
    }

    /// What its records add to each tree: entries, less those deleted. Reads all of it.
    pub fn entries_added(&self, undo: &Undo) -> Result<HashMap<u32, i64>> {
        let mut added = HashMap::new();
        undo.for_each_record(self.stream, self.start, self.tail, |_, record| {
            let change = match record.body {
                Body::Insert(_) => 1,
                Body::Update(_, prior) if prior.flags & DELETED != 0 => 1,
                Body::Delete(..) => -1,
                _ => return Ok(()),
            };
            *added.entry(record.tree().expect("it is about an entry")).or_default() += change;
            Ok(())
        })?;
        Ok(added)
    }

    /// The stream that it is in.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Sets whose log it is.
    pub fn set_trx_id(&mut self, id: TrxId) {
        assert!(!self.begun && id != TrxId::NONE, "the log's first record names its transaction");
        self.trx_id = id;
    }

    /// Its transaction.
    pub fn trx_id(&self) -> TrxId {
        self.trx_id
    }

    /// Records written and not cut.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether anything is on disk.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// The present end, to roll back to.
    pub fn position(&self) -> UndoPosition {
        match self.records {
            0 => UndoPosition::START,
            records => UndoPosition { tail: self.tail, records },
        }
    }

    /// Whether a record of `len` bytes fits the last page.
    pub fn has_room(&self, undo: &Undo, len: usize) -> bool {
        let log_record = if self.begun { 0 } else { LOG_RECORD_SIZE };
        usize::from(self.tail.offset) + log_record + len <= undo.page_end()
    }

    /// Appends an empty page to the stream. The caller holds no latch.
    pub fn add_page(&mut self, undo: &Undo) -> Result<()> {
        let no = undo.append_page(self.stream, self.tail.page)?;
        self.tail = RollPointer { page: no, offset: DATA_AT as u16 };
        if !self.begun {
            self.start = self.tail;
        }
        Ok(())
    }

    /// Latches the page that the next record goes to: what can fail comes before the first change.
    pub fn latch_tail<'a>(&self, undo: &'a Undo, mtr: &mut Mtr<'a>) -> Result<PageHandle> {
        undo.exclusive(mtr, self.tail.page, self.stream)
    }

    /// Where the next record will be.
    pub fn next(&self) -> RollPointer {
        let log_record = if self.begun { 0 } else { LOG_RECORD_SIZE };
        RollPointer { page: self.tail.page, offset: self.tail.offset + log_record as u16 }
    }

    /// Appends one record to the page from [`UndoLog::latch_tail`]. `lasting`: purge or older views
    /// may want it.
    pub fn append(
        &mut self,
        mtr: &mut Mtr<'_>,
        page: PageHandle,
        lasting: bool,
        record: impl FnOnce(&mut Writer<'_>),
    ) {
        assert!(self.trx_id != TrxId::NONE, "a record belongs to a transaction");
        self.buffer.clear();
        let base = usize::from(self.tail.offset);
        debug_assert_eq!(self.page_of_tail(mtr, page).used, base, "the page ends at the tail");
        let mut writer = Writer::new(&mut self.buffer, base);
        if !self.begun {
            writer.log(&LogRecord {
                state: LogState::Active,
                trx_id: self.trx_id,
                csn: 0,
                end: RollPointer::NONE,
            });
        }
        record(&mut writer);
        let used = writer.position() as u16;
        assert!(usize::from(used) <= mtr.page(page).len(), "a record fits its page");
        mtr.apply(page, &write(base, &self.buffer));
        mtr.apply(page, &write(USED_AT, &used.to_le_bytes()));
        self.begun = true;
        self.tail.offset = used;
        self.records += 1;
        self.lasting |= lasting;
        debug_assert!(
            Record::decode_before(mtr.page(page), used.into()).is_ok(),
            "a rollback finds the record before the tail"
        );
    }

    /// The header of the last page, which is latched.
    fn page_of_tail(&self, mtr: &Mtr<'_>, page: PageHandle) -> PageHeader {
        assert_eq!(mtr.page_id(page).no, self.tail.page, "the page is the stream's last one");
        PageHeader::read(mtr.page(page)).expect("checked when it was latched")
    }

    /// Whether the log holds nothing behind `to`.
    pub fn is_at(&self, to: UndoPosition) -> bool {
        if to == UndoPosition::START { self.is_empty() } else { self.tail == to.tail }
    }

    fn is_empty(&self) -> bool {
        let first = usize::from(self.start.offset) + LOG_RECORD_SIZE;
        !self.begun || self.tail.page == self.start.page && usize::from(self.tail.offset) == first
    }

    /// Reads the newest record, which must exist; frees empty pages on the way. `f` runs with the
    /// page latched.
    pub fn newest<R>(
        &mut self,
        undo: &Undo,
        f: impl FnOnce(RollPointer, Record<'_>) -> R,
    ) -> Result<R> {
        debug_assert!(!self.is_empty());
        while usize::from(self.tail.offset) == DATA_AT {
            self.tail = undo.drop_last_page(self.stream, self.tail.page)?;
        }
        self.newest_shared(undo, f)
    }

    /// Reads the newest record without changing anything; the last page must hold it.
    pub fn newest_shared<R>(
        &self,
        undo: &Undo,
        f: impl FnOnce(RollPointer, Record<'_>) -> R,
    ) -> Result<R> {
        let page = undo.page(self.tail.page, self.stream)?;
        let record = Record::decode_before(&page, self.tail.offset.into())
            .map_err(|why| undo.corrupt(self.tail.page, why))?;
        Ok(f(RollPointer { page: self.tail.page, offset: record.start as u16 }, record))
    }

    /// Where the newest record ends.
    pub fn tail(&self) -> RollPointer {
        self.tail
    }

    /// Reads the record that ends at `end`, without changing anything; none if the log begins
    /// there. `f` runs with the page latched.
    pub fn before<R>(
        &self,
        undo: &Undo,
        mut end: RollPointer,
        f: impl FnOnce(RollPointer, Record<'_>) -> R,
    ) -> Result<Option<R>> {
        let first = usize::from(self.start.offset) + LOG_RECORD_SIZE;
        while end.page != self.start.page || usize::from(end.offset) != first {
            let page = undo.page(end.page, self.stream)?;
            if usize::from(end.offset) == DATA_AT {
                let prev = PageHeader::read(&page).expect("checked").prev;
                drop(page);
                let used = PageHeader::read(&undo.page(prev, self.stream)?).expect("checked").used;
                end = RollPointer { page: prev, offset: used as u16 };
                continue;
            }
            let record = Record::decode_before(&page, end.offset.into())
                .map_err(|why| undo.corrupt(end.page, why))?;
            let at = RollPointer { page: end.page, offset: record.start as u16 };
            return Ok(Some(f(at, record)));
        }
        Ok(None)
    }

    /// Latches the page of one of its records.
    pub fn latch<'a>(
        &self,
        undo: &'a Undo,
        mtr: &mut Mtr<'a>,
        at: RollPointer,
    ) -> Result<PageHandle> {
        undo.exclusive(mtr, at.page, self.stream)
    }

    /// Frees empty pages at the end until `to`, or a record, is the end.
    pub fn trim(&mut self, undo: &Undo, to: UndoPosition) -> Result<()> {
        while !self.is_at(to) && usize::from(self.tail.offset) == DATA_AT {
            self.tail = undo.drop_last_page(self.stream, self.tail.page)?;
        }
        Ok(())
    }

    /// Cuts the newest record off, which begins at `at`, on the page from [`UndoLog::latch_tail`].
    pub fn cut(&mut self, undo: &Undo, mtr: &mut Mtr<'_>, page: PageHandle, at: RollPointer) {
        assert!(at.page == self.tail.page && at.offset < self.tail.offset, "the newest is cut");
        assert!(self.records > 0, "there is a record to be cut");
        debug_assert_eq!(self.page_of_tail(mtr, page).used, usize::from(self.tail.offset));
        undo.note_cut(self.stream, at);
        mtr.apply(page, &write(USED_AT, &at.offset.to_le_bytes()));
        self.tail.offset = at.offset;
        self.records -= 1;
    }

    /// Writes state PREPARED and the XID. The tail page must have room for it.
    pub fn prepare(&mut self, undo: &Undo, xid: &[u8]) -> Result<Lsn> {
        assert!(!self.prepared, "a log is prepared once");
        if !self.has_room(undo, xid.len() + 6) {
            self.add_page(undo)?;
        }
        let mut mtr = Mtr::begin(undo.env())?;
        let first = if self.begun { self.start.page } else { self.tail.page };
        let first = undo.exclusive(&mut mtr, first, self.stream)?;
        let tail = self.latch_tail(undo, &mut mtr)?;
        self.append(&mut mtr, tail, false, |writer| writer.xid(xid));
        let state = usize::from(self.start.offset) + LOG_STATE_AT;
        mtr.apply(first, &write(state, &[LogState::Prepared as u8]));
        self.prepared = true;
        Ok(mtr.commit())
    }

    /// Turns a prepared log into an active one, before anything is cut off it.
    pub fn begin_rollback(&mut self, undo: &Undo) -> Result<()> {
        if !self.prepared {
            return Ok(());
        }
        let mut mtr = Mtr::begin(undo.env())?;
        let first = undo.exclusive(&mut mtr, self.start.page, self.stream)?;
        let state = usize::from(self.start.offset) + LOG_STATE_AT;
        mtr.apply(first, &write(state, &[LogState::Active as u8]));
        mtr.commit();
        self.prepared = false;
        Ok(())
    }

    /// Commits: writes the commit and publishes it in `csn`. Returns the LSN that makes it durable,
    /// and gives the stream back.
    pub fn commit(&mut self, undo: &Undo, csn: &CsnTable) -> Result<Lsn> {
        assert!(self.begun, "nothing to commit");
        let mut mtr = match Mtr::begin(undo.env()) {
            // That it can commit was promised at its prepare, and the others may have done so by
            // now: if there is no room, the redo log's reserve has some for these few bytes.
            Err(_) if self.prepared => Mtr::begin_nested(undo.env())?,
            begun => begun?,
        };
        let first = undo.exclusive(&mut mtr, self.start.page, self.stream)?;
        debug_assert!(
            undo.log_record(mtr.page(first), self.start).is_ok_and(|record| {
                record.trx_id == self.trx_id && record.state != LogState::Committed
            }),
            "the log record says that transaction {} has not ended",
            self.trx_id.0
        );
        let keep = self.lasting || self.tail.page != self.start.page;
        let end = if keep { self.tail } else { self.start };
        if keep {
            let mut fields = vec![LogState::Committed as u8];
            fields.extend_from_slice(&self.trx_id.0.to_le_bytes()[..6]);
            let csn_at = fields.len();
            fields.extend_from_slice(&[0; size_of::<Csn>()]);
            end.write(&mut fields);
            let at = usize::from(self.start.offset) + LOG_STATE_AT;
            mtr.apply_numbered(first, at, &fields, csn_at);
        } else {
            mtr.apply(first, &write(USED_AT, &self.start.offset.to_le_bytes()));
        }
        let lsn = mtr.commit_numbered(|reserve| csn.commit(self.trx_id, reserve).0);
        undo.release(self.stream, end, keep);
        Ok(lsn)
    }

    /// Ends a log from which everything has been cut: cuts the log record too, and gives the stream
    /// back.
    pub fn finish_rollback(&mut self, undo: &Undo) -> Result<()> {
        debug_assert!(self.is_empty());
        if self.begun {
            let mut mtr = Mtr::begin(undo.env())?;
            let first = undo.exclusive(&mut mtr, self.start.page, self.stream)?;
            mtr.apply(first, &write(USED_AT, &self.start.offset.to_le_bytes()));
            mtr.commit();
            self.begun = false;
            self.tail = self.start;
        }
        undo.release(self.stream, self.tail, false);
        Ok(())
    }

    /// Gives back a stream to which nothing was written.
    pub fn abandon(&mut self, undo: &Undo) {
        assert!(!self.begun);
        undo.release(self.stream, self.tail, false);
    }
}

/// The marks of a record on a latched page.
pub fn marks_of(mtr: &Mtr<'_>, page: PageHandle, at: RollPointer) -> u8 {
    mtr.page(page)[usize::from(at.offset) + MARKS_AT]
}

/// Sets the marks of a record on a latched page.
pub fn set_marks(mtr: &mut Mtr<'_>, page: PageHandle, at: RollPointer, marks: u8) {
    debug_assert!(begins_at(mtr, page, at), "the record is there");
    mtr.apply(page, &write(usize::from(at.offset) + MARKS_AT, &[marks]));
}

/// Sets the chain field of a record on a latched page.
pub fn set_chain(mtr: &mut Mtr<'_>, page: PageHandle, at: RollPointer, chain: u32) {
    debug_assert!(begins_at(mtr, page, at), "the record is there");
    mtr.apply(page, &write(usize::from(at.offset) + CHAIN_AT, &chain.to_le_bytes()));
}

/// Whether a record begins there.
fn begins_at(mtr: &Mtr<'_>, page: PageHandle, at: RollPointer) -> bool {
    let header = PageHeader::read(mtr.page(page));
    mtr.page_id(page).no == at.page
        && header.is_some_and(|header| {
            Record::decode(mtr.page(page), at.offset.into(), header.used).is_ok()
        })
}
