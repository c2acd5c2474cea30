//! Streams: lists of undo pages that transactions take turns to append to, and the directory that
//! leads to them.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidepool_pool::page::page_type;
use tidepool_pool::{Access, PageType, SharedGuard, Space};

use super::damage::is_damage;
use super::page::{
    DATA_AT, DIRECTORY_PAGE, DirectoryEntry, ENDED_BELOW_AT, PageHeader, STREAMS_AT,
    TRX_ID_LIMIT_AT, page_end, write,
};
use super::record::{Body, LogRecord, LogState, Record};
use super::trail::Trail;
use super::watch::{Watch, Watches};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::files::UNDO_FILE;
use crate::format::entry::RollPointer;
use crate::mtr::{Mtr, PageHandle};
use crate::padded::Padded;
use crate::page_op::PageOp;
use crate::space::Allocation;

thread_local! {
    static READ_BY_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// How many undo records the calling thread has read, for older versions or to roll back.
pub(crate) fn records_read_by_thread() -> u64 {
    READ_BY_THREAD.get()
}

/// Where purge stands in a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// What the directory says.
    pub(super) stored: DirectoryEntry,
    /// The oldest log to be purged; at or behind `stored.head`, and on the same page unless it is
    /// just moving.
    pub(super) at: RollPointer,
}

/// A stream's state in memory.
pub(super) struct Stream {
    /// A transaction has it, or it can't be had.
    is_used: AtomicBool,
    /// Where the next log begins. Meaningful while no log is open.
    pub(super) tail: Mutex<RollPointer>,
    pub(super) head: Mutex<Head>,
    /// Committed logs not yet purged.
    pub(super) committed: AtomicU64,
    /// CSN of the oldest of these, if known; else 0.
    pub(super) head_csn: AtomicU64,
    /// Purge cannot do the oldest of these.
    stuck: AtomicBool,
    /// Records that rollbacks have cut off.
    cuts: AtomicU64,
    watches: Arc<Watches>,
}

impl Stream {
    /// One that nothing is known of yet, and no transaction gets.
    pub(super) fn unknown() -> Stream {
        let (head, has_lost_pages) = (RollPointer::NONE, false);
        let stored = DirectoryEntry { first: 0, head, has_lost_pages };
        Stream {
            is_used: AtomicBool::new(true),
            tail: Mutex::new(RollPointer::NONE),
            head: Mutex::new(Head { stored, at: head }),
            committed: AtomicU64::new(0),
            head_csn: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            watches: Arc::default(),
        }
    }

    /// Takes it, unless another has it.
    pub(super) fn take(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::Acquire)
    }

    /// Lets others take it.
    pub(super) fn give_back(&self) {
        debug_assert!(self.is_used.load(Ordering::Relaxed), "given back by the one that has it");
        self.is_used.store(false, Ordering::Release);
    }
}

/// The undo log of an engine.
pub struct Undo {
    pub(super) env: Arc<Env>,
    pub(super) space: Arc<Space>,
    pub(super) streams: Box<[Padded<Stream>]>,
    /// Streams that exist.
    pub(super) count: AtomicU32,
    pub(super) creating: Mutex<()>,
    pub(super) history: Padded<AtomicU64>,
    /// From pages that could not be read at the open to where their streams go on.
    pub(super) detours: HashMap<u32, RollPointer>,
}

impl Undo {
    /// Makes the directory, in the mini-transaction that makes the space.
    pub fn create<'a>(mtr: &mut Mtr<'a>, space: &'a Space) -> Result<()> {
        let mut allocation = Allocation::reserve(mtr, space, DIRECTORY_PAGE, 1)?;
        let (no, page) = allocation.take(mtr);
        assert_eq!(no, DIRECTORY_PAGE, "the directory is the undo space's first page");
        mtr.apply(page, &PageOp::Format { page_type: PageType::UNDO_DIRECTORY, tree_id: 0 });
        mtr.apply(page, &write(TRX_ID_LIMIT_AT, &1u64.to_le_bytes()));
        mtr.apply(page, &write(ENDED_BELOW_AT, &1u64.to_le_bytes()));
        Ok(())
    }

    /// The environment.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// The undo space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Where records of a page must end.
    pub fn page_end(&self) -> usize {
        page_end(self.env.page_size())
    }

    /// Committed logs not yet purged.
    pub fn history_len(&self) -> u64 {
        self.history.load(Ordering::Relaxed)
    }

    /// Memory of the streams' states; fixed.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.streams) as u64
    }

    /// Streams that exist.
    pub fn stream_count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Stores a new transaction id limit.
    pub fn raise_trx_id_limit(&self, limit: u64) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let page = mtr.exclusive(&self.space, DIRECTORY_PAGE)?;
        assert!(limit > u64_at(mtr.page(page), TRX_ID_LIMIT_AT), "no id is handed out twice");
        mtr.apply(page, &write(TRX_ID_LIMIT_AT, &limit.to_le_bytes()));
        mtr.commit();
        Ok(())
    }

    /// Stores that every transaction with an id below this one has ended.
    pub fn store_ended_below(&self, id: u64) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let page = mtr.exclusive(&self.space, DIRECTORY_PAGE)?;
        let directory = mtr.page(page);
        assert!(id >= u64_at(directory, ENDED_BELOW_AT), "what has ended has ended for good");
        assert!(id <= u64_at(directory, TRX_ID_LIMIT_AT), "an id ends after it was handed out");
        mtr.apply(page, &write(ENDED_BELOW_AT, &id.to_le_bytes()));
        mtr.commit();
        Ok(())
    }

    /// Takes a stream for a transaction; says where its log begins. `used_before` if it is free:
    /// sessions that each have their stream do not meet. One that is stuck only if there can't be
    /// another: the log would wait for its purge as long as those before it.
    pub fn acquire(&self, used_before: Option<u32>) -> Result<(u32, RollPointer)> {
        let stream = used_before.filter(|&stream| self.take_unless_stuck(stream));
        let stream = match stream.or_else(|| self.find_free()) {
            Some(stream) => stream,
            None => self.create_stream().or_else(|error| {
                let even_stuck = (0..self.stream_count()).find(|&no| self.stream(no).take());
                even_stuck.ok_or(error)
            })?,
        };
        Ok((stream, *self.stream(stream).tail.lock()))
    }

    fn stream(&self, stream: u32) -> &Stream {
        &self.streams[stream as usize]
    }

    fn take_unless_stuck(&self, stream: u32) -> bool {
        let stream = self.stream(stream);
        !stream.stuck.load(Ordering::Relaxed) && stream.take()
    }

    /// The first free one, so that few are used.
    fn find_free(&self) -> Option<u32> {
        (0..self.stream_count()).find(|&stream| self.take_unless_stuck(stream))
    }

    fn create_stream(&self) -> Result<u32> {
        let _one_at_a_time = self.creating.lock();
        // While it looked for one, or waited, another may have become free.
        if let Some(stream) = self.find_free() {
            return Ok(stream);
        }
        let stream = self.count.load(Ordering::Relaxed);
        if stream as usize == self.streams.len() {
            return Err(Error::TooManyTransactions(self.streams.len()));
        }
        let mut mtr = Mtr::begin(&self.env)?;
        let directory = mtr.exclusive(&self.space, DIRECTORY_PAGE)?;
        let mut allocation = Allocation::reserve(&mut mtr, &self.space, DIRECTORY_PAGE + 1, 1)?;
        let (no, page) = allocation.take(&mut mtr);
        self.format_page(&mut mtr, page, stream, 0);
        let head = RollPointer { page: no, offset: DATA_AT as u16 };
        let entry = DirectoryEntry { first: no, head, has_lost_pages: false };
        mtr.apply(directory, &write(DirectoryEntry::offset(stream), &entry.bytes()));
        mtr.apply(directory, &write(STREAMS_AT, &(stream + 1).to_le_bytes()));
        mtr.commit();
        let state = &self.streams[stream as usize];
        *state.head.lock() = Head { stored: entry, at: head };
        *state.tail.lock() = head;
        self.count.store(stream + 1, Ordering::Release);
        Ok(stream)
    }

    fn format_page(&self, mtr: &mut Mtr<'_>, page: PageHandle, stream: u32, prev: u32) {
        let header = PageHeader { stream, prev, next: 0, used: DATA_AT };
        mtr.apply(page, &PageOp::Format { page_type: PageType::UNDO, tree_id: stream });
        mtr.apply(page, &write(super::page::STREAM_AT, &header.bytes()));
    }

    /// Appends an empty page behind `last`, the stream's last one.
    pub(super) fn append_page(&self, stream: u32, last: u32) -> Result<u32> {
        let mut mtr = Mtr::begin(&self.env)?;
        let before = self.exclusive(&mut mtr, last, stream)?;
        let allocation = Allocation::reserve(&mut mtr, &self.space, last, 1)?;
        Ok(self.append_taken(mtr, stream, (last, before), allocation))
    }

    /// The same, with the page that was set aside; `before` is the last one, latched.
    pub(super) fn append_taken(
        &self,
        mut mtr: Mtr<'_>,
        stream: u32,
        (last, before): (u32, PageHandle),
        mut allocation: Allocation,
    ) -> u32 {
        let end = PageHeader::read(mtr.page(before)).expect("checked when it was latched");
        assert_eq!(end.next, 0, "page {last} is the last of undo stream {stream}");
        let (no, page) = allocation.take(&mut mtr);
        self.format_page(&mut mtr, page, stream, last);
        mtr.apply(before, &write(super::page::NEXT_AT, &no.to_le_bytes()));
        mtr.commit();
        no
    }

    /// Frees the stream's last page, which holds no record. Returns the new end of the stream.
    pub(super) fn drop_last_page(&self, stream: u32, last: u32) -> Result<RollPointer> {
        let dropped = PageHeader::read(&self.page(last, stream)?).expect("checked");
        assert!(dropped.used == DATA_AT && dropped.next == 0, "page {last} holds no record");
        let prev = dropped.prev;
        let mut mtr = Mtr::begin(&self.env)?;
        let before = self.exclusive(&mut mtr, prev, stream)?;
        let header = PageHeader::read(mtr.page(before)).expect("checked");
        if header.next != last {
            return Err(self.corrupt(prev, "undo page that does not lead to its successor"));
        }
        let mut allocation = Allocation::holding(&mut mtr, &self.space, &[last])?;
        mtr.apply(before, &write(super::page::NEXT_AT, &0u32.to_le_bytes()));
        allocation.free_emptied(&mut mtr, &self.space, last);
        mtr.commit();
        Ok(RollPointer { page: prev, offset: header.used as u16 })
    }

    /// Gives a stream back, its log having ended at `tail` (which is also where the next one
    /// begins). `keep`: it is committed, and purge must look at it.
    pub(super) fn release(&self, stream: u32, tail: RollPointer, keep: bool) {
        let state = &self.streams[stream as usize];
        *state.tail.lock() = tail;
        if keep {
            self.history.fetch_add(1, Ordering::Relaxed);
            state.committed.fetch_add(1, Ordering::Release);
        }
        state.give_back();
    }

    /// Latches an undo page for reading and checks that it is one, of that stream.
    pub fn page(&self, no: u32, stream: u32) -> Result<SharedGuard<'_>> {
        let page = self.env.pool().shared(&self.space, no, Access::Normal);
        let page = page.map_err(|error| self.unreadable(no, error))?;
        self.check(&page, no, stream)?;
        Ok(page)
    }

    /// Latches an undo page for changing and checks that it is one, of that stream.
    pub fn exclusive<'a>(&'a self, mtr: &mut Mtr<'a>, no: u32, stream: u32) -> Result<PageHandle> {
        // Where there is no latch, the error is had again with what to do about it.
        let page = mtr
            .exclusive(&self.space, no)
            .map_err(|error| self.page(no, stream).err().unwrap_or(error));
        let latched = page.and_then(|page| {
            self.check(mtr.page(page), no, stream)?;
            Ok(page)
        });
        latched.inspect_err(|error| {
            if is_damage(error) {
                // Others are to take another stream if they can.
                self.set_stuck(stream, true);
            }
        })
    }

    fn check(&self, page: &[u8], no: u32, stream: u32) -> Result<()> {
        self.env.check_whole()?;
        let kind = page_type(page);
        match PageHeader::read(page) {
            Some(header) if kind == PageType::UNDO && header.stream == stream => Ok(()),
            _ => Err(self.corrupt(no, format!("not a page of undo stream {stream}"))),
        }
    }

    pub(super) fn log_record(&self, page: &[u8], at: RollPointer) -> Result<LogRecord> {
        let used = PageHeader::read(page).expect("checked").used;
        match Record::decode(page, at.offset.into(), used).map(|record| record.body) {
            Ok(Body::Log(record)) => Ok(record),
            Ok(_) => Err(self.corrupt(at.page, "an undo log does not begin where it should")),
            Err(why) => Err(self.corrupt(at.page, why)),
        }
    }

    /// A page, to be read, whichever stream it is in.
    fn shared(&self, no: u32) -> Result<SharedGuard<'_>> {
        let page = self.env.pool().shared(&self.space, no, Access::Normal);
        let page = page.map_err(|error| self.unreadable(no, error))?;
        self.env.check_whole()?;
        Ok(page)
    }

    /// Reads the record at `at`, whichever stream it is in.
    pub fn read<R>(&self, at: RollPointer, f: impl FnOnce(Record<'_>) -> Result<R>) -> Result<R> {
        READ_BY_THREAD.set(READ_BY_THREAD.get() + 1);
        let page = self.shared(at.page)?;
        let header = PageHeader::read(&page)
            .filter(|_| page_type(&page) == PageType::UNDO)
            .ok_or_else(|| self.corrupt(at.page, "not a page of undo records"))?;
        let record = Record::decode(&page, at.offset.into(), header.used);
        f(record.map_err(|why| self.corrupt(at.page, why))?)
    }

    /// Reads the record at `at`, if one begins there: for those whose `at` may be of a record that
    /// is no more.
    pub fn read_if_there<R>(
        &self,
        at: RollPointer,
        f: impl FnOnce(Record<'_>) -> R,
    ) -> Result<Option<R>> {
        let page = self.shared(at.page)?;
        let header = PageHeader::read(&page).filter(|_| page_type(&page) == PageType::UNDO);
        let (mut start, used) = (DATA_AT, header.map_or(0, |header| header.used));
        while start < used {
            let record = Record::decode(&page, start, used);
            let record = record.map_err(|why| self.corrupt(at.page, why))?;
            if start == usize::from(at.offset) {
                return Ok(Some(f(record)));
            }
            start += record.len;
        }
        Ok(None)
    }

    /// The stream of the record at `at`.
    pub fn stream_of(&self, at: RollPointer) -> Result<u32> {
        let page = self.shared(at.page)?;
        match PageHeader::read(&page) {
            Some(header) if header.stream < self.stream_count() => Ok(header.stream),
            _ => Err(self.corrupt(at.page, "not a page of an undo stream")),
        }
    }

    /// How many records rollbacks have cut off a stream. Who has read records there, each under its
    /// page's latch, finds that the number has changed if one of them was not there any more.
    pub fn cuts(&self, stream: u32) -> u64 {
        self.streams[stream as usize].cuts.load(Ordering::Acquire)
    }

    /// A record is about to be cut off, under the latches of its page and, if it is about an entry,
    /// of that one's leaf.
    pub(super) fn note_cut(&self, stream: u32, at: RollPointer) {
        let stream = &self.streams[stream as usize];
        stream.watches.note_cut(at);
        stream.cuts.fetch_add(1, Ordering::Release);
    }

    /// Names a record, to learn later whether it has been cut off. The caller has the leaf of its
    /// entry latched.
    pub(crate) fn watch(&self, at: RollPointer) -> Result<Watch> {
        let stream = self.stream_of(at)?;
        Ok(Watch::new(&self.streams[stream as usize].watches, at))
    }

    /// An error about a page of the undo space.
    pub fn corrupt(&self, page: u32, why: impl std::fmt::Display) -> Error {
        Error::corrupt(self.space.name(), page, why)
    }

    /// Whether the page that an error is about can be read after all.
    pub(crate) fn can_be_read_now(&self, error: &Error) -> bool {
        matches!(error, Error::Corrupt { page, .. } if self
            .shared(*page)
            .is_ok_and(|page| page_type(&page) == PageType::UNDO))
    }

    /// The error of the pool, which could not read a page of the undo space.
    fn unreadable(&self, page: u32, error: tidepool_pool::Error) -> Error {
        match error {
            tidepool_pool::Error::Corrupt { why, .. } => self.corrupt(page, why),
            tidepool_pool::Error::Storage(error) if error.is_unexpected_eof() => {
                self.corrupt(page, "the file ends before it")
            }
            error => error.into(),
        }
    }
}

/// A number of the directory page.
fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + size_of::<u64>()].try_into().expect("8 bytes"))
}

/// A committed log at the head of its stream.
#[derive(Debug, Clone, Copy)]
pub struct HeadLog {
    pub stream: u32,
    /// Where it begins.
    pub start: RollPointer,
    /// Whose it is, its CSN, its end.
    pub record: LogRecord,
}

/// Purge's side. One thread at a time.
impl Undo {
    /// The oldest committed log with a CSN up to `horizon`, in a stream that is not among `stuck`.
    /// An error comes with the stream whose oldest log can't be read.
    pub fn oldest_committed(
        &self,
        horizon: u64,
        stuck: &[u32],
    ) -> Result<Option<HeadLog>, (u32, Error)> {
        let head_log = |stream: u32| self.head_log(stream).map_err(|error| (stream, error));
        let mut oldest = None;
        for stream in 0..self.stream_count() {
            let state = &self.streams[stream as usize];
            if state.committed.load(Ordering::Acquire) == 0 || stuck.contains(&stream) {
                continue;
            }
            let mut csn = state.head_csn.load(Ordering::Relaxed);
            if csn == 0 {
                csn = head_log(stream)?.record.csn;
                state.head_csn.store(csn, Ordering::Relaxed);
            }
            if csn <= horizon && oldest.is_none_or(|(other, _)| csn < other) {
                oldest = Some((csn, stream));
            }
        }
        oldest.map(|(_, stream)| head_log(stream)).transpose()
    }

    fn head_log(&self, stream: u32) -> Result<HeadLog> {
        let mut head = self.streams[stream as usize].head.lock();
        loop {
            if let Some(&on) = self.detours.get(&head.at.page) {
                head.at = on;
            }
            let page = self.page(head.at.page, stream)?;
            let header = PageHeader::read(&page).expect("checked");
            if usize::from(head.at.offset) == header.used && header.next != 0 {
                head.at = RollPointer { page: header.next, offset: DATA_AT as u16 };
                continue;
            }
            let record = self.log_record(&page, head.at)?;
            if record.state != LogState::Committed {
                return Err(self.corrupt(head.at.page, "the oldest undo log is not committed"));
            }
            return Ok(HeadLog { stream, start: head.at, record });
        }
    }

    /// Records that a head log has been purged, and frees the pages it leaves empty.
    pub fn purged(&self, log: &HeadLog) -> Result<()> {
        let state = &self.streams[log.stream as usize];
        debug_assert_eq!(state.head.lock().at, log.start);
        self.move_head(log.stream, log.record.end)?;
        state.head_csn.store(0, Ordering::Relaxed);
        let of_stream = state.committed.fetch_sub(1, Ordering::Release);
        let of_all = self.history.fetch_sub(1, Ordering::Relaxed);
        assert!(of_stream > 0 && of_all > 0, "a log is purged once");
        self.free_before_head(log.stream)
    }

    /// Whether a log, found by [`Self::oldest_committed`], is still to be purged.
    pub fn is_oldest(&self, log: &HeadLog) -> bool {
        self.streams[log.stream as usize].head.lock().at == log.start
    }

    /// Notes whether the oldest log of a stream can't be purged at present.
    pub fn set_stuck(&self, stream: u32, stuck: bool) {
        self.stream(stream).stuck.store(stuck, Ordering::Relaxed);
    }

    /// Purge has nothing to do in a stream before `to`.
    pub(super) fn move_head(&self, stream: u32, to: RollPointer) -> Result<()> {
        assert!(to != RollPointer::NONE, "purge goes on somewhere");
        let mut head = self.streams[stream as usize].head.lock();
        // Within a page the directory may lag behind: purging twice does no harm.
        if to.page != head.stored.head.page {
            let entry = DirectoryEntry { head: to, ..head.stored };
            self.store_entry(stream, entry)?;
            head.stored = entry;
        }
        head.at = to;
        Ok(())
    }

    fn store_entry(&self, stream: u32, entry: DirectoryEntry) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let directory = mtr.exclusive(&self.space, DIRECTORY_PAGE)?;
        mtr.apply(directory, &write(DirectoryEntry::offset(stream), &entry.bytes()));
        mtr.commit();
        Ok(())
    }

    /// Frees the pages before the one that the stored head is on, one mini-transaction each.
    pub(super) fn free_before_head(&self, stream: u32) -> Result<()> {
        let mut head = self.streams[stream as usize].head.lock();
        while head.stored.first != head.stored.head.page {
            let no = head.stored.first;
            let page = match self.page(no, stream) {
                // Once more, lest the bytes were spoilt on their way here.
                Err(error) if is_damage(&error) => self.page(no, stream),
                page => page,
            };
            let next = match page {
                Ok(page) => PageHeader::read(&page).expect("checked").next,
                Err(error) if is_damage(&error) => 0,
                Err(error) => return Err(error),
            };
            if next == 0 {
                tracing::error!(
                    "{UNDO_FILE}: page {no} is broken, so that the pages between it and page {} can't be found: they stay \
                     allocated, and nothing else is lost",
                    head.stored.head.page
                );
                let (first, has_lost_pages) = (head.stored.head.page, true);
                let entry = DirectoryEntry { first, has_lost_pages, ..head.stored };
                self.store_entry(stream, entry)?;
                head.stored = entry;
                return Ok(());
            }
            let entry = DirectoryEntry { first: next, ..head.stored };
            let mut mtr = Mtr::begin(&self.env)?;
            let directory = mtr.exclusive(&self.space, DIRECTORY_PAGE)?;
            let mut allocation = Allocation::holding(&mut mtr, &self.space, &[no])?;
            mtr.apply(directory, &write(DirectoryEntry::offset(stream), &entry.bytes()));
            allocation.free_emptied(&mut mtr, &self.space, no);
            mtr.commit();
            head.stored = entry;
        }
        Ok(())
    }

    /// The log that the record at `at` is in. It must be kept by a view that does not see it.
    pub fn log_around(&self, at: RollPointer) -> Result<HeadLog> {
        let stream = self.stream_of(at)?;
        let (mut no, mut last) = (at.page, Some(usize::from(at.offset)));
        let mut trail = Trail::default();
        loop {
            trail.step(self, no)?;
            let page = self.page(no, stream)?;
            let header = PageHeader::read(&page).expect("checked");
            let (mut start, mut found) = (DATA_AT, None);
            while start < header.used && last.is_none_or(|last| start <= last) {
                let record = Record::decode(&page, start, header.used)
                    .map_err(|why| self.corrupt(no, why))?;
                if let Body::Log(record) = record.body {
                    found = Some((start, record));
                }
                start += record.len;
            }
            if let Some((start, record)) = found {
                if record.state != LogState::Committed {
                    return Err(self.corrupt(no, "a log that has ended is not committed"));
                }
                let start = RollPointer { page: no, offset: start as u16 };
                return Ok(HeadLog { stream, start, record });
            }
            if header.prev == 0 {
                return Err(self.corrupt(no, "undo records of no log"));
            }
            (no, last) = (header.prev, None);
        }
    }

    /// Calls `f` with each record of a log behind its log record, oldest first, no latch held; `f`
    /// gets the page and the record. The log is the part of `stream` from `start` to `end`.
    pub fn for_each_record(
        &self,
        stream: u32,
        start: RollPointer,
        end: RollPointer,
        mut f: impl FnMut(u32, Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut no, mut at) = (start.page, usize::from(start.offset));
        let (mut copy, mut trail) = (Vec::new(), Trail::default());
        loop {
            trail.step(self, no)?;
            {
                let page = self.page(no, stream)?;
                copy.clear();
                copy.extend_from_slice(&page);
            }
            let header = PageHeader::read(&copy).expect("checked");
            let last = no == end.page;
            let used = if last { usize::from(end.offset) } else { header.used };
            while at < used {
                let record =
                    Record::decode(&copy, at, used).map_err(|why| self.corrupt(no, why))?;
                at += record.len;
                if !matches!(record.body, Body::Log(_)) {
                    f(no, record)?;
                }
            }
            if last {
                return Ok(());
            }
            if header.next == 0 {
                return Err(self.corrupt(no, "an undo log ends too early"));
            }
            (no, at) = (header.next, DATA_AT);
        }
    }

    /// Reads every page of every stream, and verifies each record in it. `see` gets the pages'
    /// numbers.
    pub fn check_pages(&self, see: &mut dyn FnMut(u32)) -> Result<()> {
        for no in self.pages()? {
            see(no);
            if no == DIRECTORY_PAGE {
                continue;
            }
            let page = self.shared(no)?;
            let header = PageHeader::read(&page).expect("checked");
            let mut at = DATA_AT;
            while at < header.used {
                let record = Record::decode(&page, at, header.used);
                at += record.map_err(|why| self.corrupt(no, why))?.len;
            }
        }
        Ok(())
    }

    /// Pages that belong to streams, ascending: for checks.
    pub fn pages(&self) -> Result<Vec<u32>> {
        let mut pages = vec![DIRECTORY_PAGE];
        let mut trail = Trail::default();
        for stream in 0..self.stream_count() {
            let mut no = self.streams[stream as usize].head.lock().stored.first;
            while no != 0 {
                trail.step(self, no)?;
                pages.push(no);
                no = PageHeader::read(&self.page(no, stream)?).expect("checked").next;
            }
        }
        pages.sort_unstable();
        Ok(pages)
    }
}
