//! What an open finds in the undo space: each stream is walked, log by log, from its head to its
//! end.
//!
//! Bytes that a program spoilt may have a right checksum and lead in a circle. So a walk comes to
//! no page twice (`Trail`), and within a page it goes ahead only: a page that leads elsewhere
//! counts as broken.
//!
//! A page that can't be read does not end the walk ([`super::damage`]): it goes on where the stream
//! does behind it, if that can be found, and notes what is lost.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidepool_pool::page::page_type;
use tidepool_pool::{Access, PageType, Space};

use super::damage::{Doubt, is_damage};
use super::page::{
    DATA_AT, DIRECTORY_PAGE, DirectoryEntry, ENDED_BELOW_AT, PageHeader, STREAMS_AT,
    TRX_ID_LIMIT_AT, max_streams, u32_at, u64_at,
};
use super::record::{Body, LogRecord, LogState, Record};
use super::stream::{Head, Stream, Undo};
use super::trail::{CIRCLE, Trail};
use crate::csn::TrxId;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::entry::RollPointer;
use crate::padded::Padded;
use crate::space;

/// A log found when the undo space was opened.
#[derive(Debug, Clone)]
pub struct FoundLog {
    pub stream: u32,
    /// What it says.
    pub record: LogRecord,
    /// Where it begins.
    pub start: RollPointer,
    /// Where its stream ends; the beginning of a page that can't be read if what is behind that is
    /// not known.
    pub tail: RollPointer,
}

/// What was found when the undo space was opened.
#[derive(Debug, Default)]
pub struct Found {
    /// Logs of transactions that have not ended.
    pub open: Vec<FoundLog>,
    /// Newest CSN in any log.
    pub newest_csn: u64,
    /// Below this, ids may have been used.
    pub trx_id_limit: u64,
    /// Below this, all transactions have ended; what the directory says.
    pub ended_below: u64,
    /// What broken pages leave unknown.
    pub doubt: Doubt,
}

impl Undo {
    /// Opens the undo space, after redo recovery, and looks through all logs.
    pub fn open(env: &Arc<Env>, space: &Arc<Space>) -> Result<(Undo, Found)> {
        let mut undo = Undo::empty(env, space);
        let mut found = Found::default();
        let entries: Vec<DirectoryEntry> = {
            let page = undo.env.pool().shared(&undo.space, DIRECTORY_PAGE, Access::Normal)?;
            let count = u32_at(&page, STREAMS_AT);
            if page_type(&page) != PageType::UNDO_DIRECTORY || count as usize > undo.streams.len() {
                return Err(undo.corrupt(DIRECTORY_PAGE, "not a directory of undo streams"));
            }
            found.trx_id_limit = u64_at(&page, TRX_ID_LIMIT_AT).max(1);
            found.ended_below = u64_at(&page, ENDED_BELOW_AT).max(1);
            (0..count).map(|stream| DirectoryEntry::read(&page, stream)).collect()
        };
        found.doubt.from = TrxId(found.ended_below);
        found.doubt.to = TrxId(found.trx_id_limit);
        undo.count.store(entries.len() as u32, Ordering::Relaxed);
        let mut walk = Walk {
            undo: &undo,
            found,
            detours: HashMap::new(),
            visited: HashSet::new(),
            pages: OnceCell::new(),
        };
        for (stream, entry) in entries.into_iter().enumerate().rev() {
            walk.stream(stream as u32, entry)?;
        }
        let Walk { found, detours, .. } = walk;
        undo.detours = detours;
        // Purge may have been stopped between moving a head and freeing what is before it.
        let count = if env.is_read_only() { 0 } else { undo.count.load(Ordering::Relaxed) };
        for stream in 0..count {
            undo.free_before_head(stream)?;
        }
        Ok((undo, found))
    }

    /// One without any stream.
    pub(crate) fn empty(env: &Arc<Env>, space: &Arc<Space>) -> Undo {
        Undo {
            env: Arc::clone(env),
            space: Arc::clone(space),
            streams: (0..max_streams(env.page_size())).map(|_| Padded(Stream::unknown())).collect(),
            count: AtomicU32::new(0),
            creating: Mutex::default(),
            history: Padded(AtomicU64::new(0)),
            detours: HashMap::new(),
        }
    }
}

/// The walk over all streams.
struct Walk<'a> {
    undo: &'a Undo,
    found: Found,
    detours: HashMap<u32, RollPointer>,
    /// Pages of the stream that is walked that were read.
    visited: HashSet<u32>,
    /// Read when the first broken page is met.
    pages: OnceCell<Pages>,
}

/// All pages of records, as far as they can be read.
#[derive(Default)]
struct Pages {
    /// By stream.
    of: HashMap<u32, Vec<u32>>,
    /// By stream and the page that they name before them.
    links: HashMap<(u32, u32), Vec<u32>>,
    unreadable: Vec<u32>,
}

impl Walk<'_> {
    /// Walks the logs of one stream.
    fn stream(&mut self, stream: u32, entry: DirectoryEntry) -> Result<()> {
        let undo = self.undo;
        let state = &undo.streams[stream as usize];
        *state.head.lock() = Head { stored: entry, at: entry.head };
        self.visited.clear();
        let mut at = entry.head;
        loop {
            let log = match self.log_at(stream, &mut at) {
                Err(error) if is_damage(&error) => {
                    let Some(on) = self.pass(stream, at.page, &error) else { return Ok(()) };
                    self.detours.insert(at.page, on);
                    at = on;
                    continue;
                }
                log => log?,
            };
            let Some(record) = log else { break };
            self.found.newest_csn = self.found.newest_csn.max(record.csn);
            if record.trx_id.0 >= self.found.ended_below {
                self.found.doubt.known.insert(record.trx_id);
            }
            if record.state != LogState::Committed {
                let tail = self.end_of(stream, at)?;
                self.found.open.push(FoundLog { stream, record, start: at, tail });
                return Ok(());
            }
            if state.committed.fetch_add(1, Ordering::Relaxed) == 0 {
                state.head_csn.store(record.csn, Ordering::Relaxed);
            }
            undo.history.fetch_add(1, Ordering::Relaxed);
            at = record.end;
        }
        *state.tail.lock() = at;
        state.give_back();
        Ok(())
    }

    /// The log that begins at `at`, or at the beginning of the next page, where `at` goes then;
    /// none at the stream's end.
    fn log_at(&mut self, stream: u32, at: &mut RollPointer) -> Result<Option<LogRecord>> {
        loop {
            let page = self.undo.page(at.page, stream)?;
            self.visited.insert(at.page);
            let header = PageHeader::read(&page).expect("checked");
            if usize::from(at.offset) != header.used {
                let record = self.undo.log_record(&page, *at)?;
                if record.state == LogState::Committed && !self.is_ahead(*at, record.end) {
                    return Err(self.undo.corrupt(at.page, "an undo log ends before it begins"));
                }
                return Ok(Some(record));
            }
            if header.next == 0 {
                return Ok(None);
            }
            if self.visited.contains(&header.next) {
                return Err(self.undo.corrupt(at.page, CIRCLE));
            }
            *at = RollPointer { page: header.next, offset: DATA_AT as u16 };
        }
    }

    /// Whether the walk has not been at `end` yet, if it is at `at`.
    fn is_ahead(&self, at: RollPointer, end: RollPointer) -> bool {
        match end.page == at.page {
            true => end.offset > at.offset,
            false => !self.visited.contains(&end.page),
        }
    }

    /// Where the stream ends, whose last log begins at `start`. An unfinished log in a circle is an
    /// error: which of its records are
    /// the last, where its rollback has to begin, is not known.
    fn end_of(&self, stream: u32, start: RollPointer) -> Result<RollPointer> {
        let (mut tail, mut trail) = (start, Trail::default());
        loop {
            trail.step(self.undo, tail.page)?;
            let next = match self.undo.page(tail.page, stream) {
                Ok(page) => {
                    let header = PageHeader::read(&page).expect("checked");
                    tail.offset = header.used as u16;
                    header.next
                }
                Err(error) if is_damage(&error) => {
                    tracing::error!(
                        "{error}; a transaction that is unfinished has written there, and can't be rolled back"
                    );
                    tail.offset = DATA_AT as u16;
                    self.next_of_broken(stream, tail.page).unwrap_or(0)
                }
                Err(error) => return Err(error),
            };
            if next == 0 {
                return Ok(tail);
            }
            tail = RollPointer { page: next, offset: DATA_AT as u16 };
        }
    }

    /// Where the first log behind a broken page begins. None: no other does, and what was on the
    /// page, or began there, is in doubt.
    fn pass(&mut self, stream: u32, broken: u32, error: &Error) -> Option<RollPointer> {
        self.visited.remove(&broken);
        let (mut no, mut unknown) = (Some(broken), vec![broken]);
        while let Some(next) = no.and_then(|no| self.next_of(stream, no)) {
            if unknown.contains(&next) || self.visited.contains(&next) {
                break;
            }
            if let Some(on) = self.first_log_on(stream, next) {
                tracing::error!(
                    "{error}; only committed transactions have written there: purge passes over what they deleted"
                );
                return Some(on);
            }
            unknown.push(next);
            no = Some(next);
        }
        tracing::error!(
            "{error}; whether transactions from {} on that have written there were committed is not known: their rows can be \
             neither read nor changed",
            self.found.ended_below
        );
        // With more than one broken page, what belongs to the stream is not known by the links
        // alone.
        let pages = self.pages.get_or_init(|| Pages::read(self.undo));
        let of_stream = pages.of.get(&stream).into_iter().flatten().copied();
        unknown.extend(of_stream.filter(|no| !self.visited.contains(no)));
        unknown.extend(&pages.unreadable);
        self.found.doubt.pages.extend(unknown);
        None
    }

    /// The page behind one that may be broken.
    fn next_of(&self, stream: u32, no: u32) -> Option<u32> {
        match self.undo.page(no, stream) {
            Ok(page) => Some(PageHeader::read(&page)?.next).filter(|&next| next != 0),
            Err(_) => self.next_of_broken(stream, no),
        }
    }

    /// The one page of a stream that says that it comes behind this one. What the first page says
    /// is meaningless, and so may be what pages say that were lost sight of.
    fn next_of_broken(&self, stream: u32, no: u32) -> Option<u32> {
        let stored = self.undo.streams[stream as usize].head.lock().stored;
        if stored.has_lost_pages {
            return None;
        }
        let next = self.only_link_from(stream, no)?;
        Some(next).filter(|&next| next != stored.first)
    }

    fn only_link_from(&self, stream: u32, no: u32) -> Option<u32> {
        let pages = self.pages.get_or_init(|| Pages::read(self.undo));
        match pages.links.get(&(stream, no)).map(Vec::as_slice) {
            Some(&[next]) => Some(next),
            _ => None,
        }
    }

    /// Where the first log begins on a page whose beginning may belong to an earlier one.
    fn first_log_on(&self, stream: u32, no: u32) -> Option<RollPointer> {
        let page = self.undo.page(no, stream).ok()?;
        let used = PageHeader::read(&page)?.used;
        let mut at = DATA_AT;
        while at < used {
            let record = Record::decode(&page, at, used).ok()?;
            if matches!(record.body, Body::Log(_)) {
                return Some(RollPointer { page: no, offset: at as u16 });
            }
            at += record.len;
        }
        None
    }
}

impl Pages {
    fn read(undo: &Undo) -> Pages {
        let mut pages = Pages::default();
        // Without the bitmap a page that was freed looks like one in use.
        let allocated = space::allocated_pages(&undo.env, &undo.space);
        for no in allocated.unwrap_or_else(|_| (0..undo.space.page_count()).collect()) {
            let page = undo.env.pool().shared(&undo.space, no, Access::Scan);
            let kind = page.as_ref().map(|page| page_type(page)).unwrap_or(PageType::FREE);
            match page.ok().and_then(|page| PageHeader::read(&page)) {
                Some(header) if kind == PageType::UNDO => {
                    pages.of.entry(header.stream).or_default().push(no);
                    pages.links.entry((header.stream, header.prev)).or_default().push(no);
                }
                _ if kind == PageType::UNDO || kind == PageType::FREE => pages.unreadable.push(no),
                _ => {}
            }
        }
        pages
    }
}
