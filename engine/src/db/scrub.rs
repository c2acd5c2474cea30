//! The scrub reads pages that no query asks for in the background and verifies them, so that a disk
//! that rots is found out while there is
//! still a backup from before.
//!
//! A *pass* reads every file that holds pages from its beginning to its end, past the buffer pool,
//! a [piece](PIECE) a step. One
//! that goes by itself is spread over [`Options::scrub_days`](crate::Options::scrub_days), and the
//! next begins when it ends, so that each page is read
//! once in that time. One that was [asked for](crate::Db::scrub) goes on at once, at the pace of
//! scans: it rests while
//! queries wait for the disk.
//!
//! Where a pass is, is noted in a small file (`scrub`) now and then, and the next life goes on from
//! there. It is a hint: without it, a
//! pass begins anew.
//!
//! # What is damage
//! A page may be read in the middle of its write. So one that is wrong is read again, a few times;
//! a page that is dirty in the
//! pool is passed over, for it is about to be written; and one that lies behind the end of its
//! space has no content yet. What is still
//! wrong is reported in the error log, once a life for each page, and counted.
//!
//! # Locking order
//! `work` is held for a step, and comes before the catalog and the pool. The counters are read
//! without it.

use super::Inner;
use super::worker::Worker;
use crate::error::{Error, Remedy, Result};
use crate::files::{FIRST_TABLE_SPACE, SCRUB_FILE, SYSTEM_SPACE, UNDO_SPACE, space_file_name};
use crate::format::space_header;
use crate::page_files;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tidepool_pool::packed::PackedFile;
use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{PageId, Pool, StepRunner, Wakeup, page};

/// Bytes read in a step.
const PIECE: usize = 1 << 20;
/// How often a page that is wrong is read again, and the pause before that.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How long the thread rests at most: clocks may be set, and options change.
const REST_MAX: Duration = Duration::from_secs(60);
/// How often it is noted where a pass is.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// Pages that the error log names.
const TOLD_MAX: usize = 1000;
const THREAD: &str = "tidepool-scrub";
const SECONDS_A_DAY: u64 = 86_400;

/// The first bytes of the file that says where a pass is.
const NOTE_MAGIC: &[u8; 8] = b"TPSCRUB1";
const NOTE_SIZE: usize = 4096;
const NOTE_CRC_AT: usize = NOTE_SIZE - 4;

/// What goes on, and what was found.
#[derive(Default)]
pub(super) struct Scrub {
    work: Mutex<Work>,
    worker: Worker,
    /// A pass was asked for.
    asked: AtomicBool,
    /// Pages read in this life.
    pages: AtomicU64,
    /// Damaged pages found in this life.
    errors: AtomicU64,
    /// Bytes read by the present pass, and bytes that it has to read; 0 if there is none.
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// When a pass ended last, seconds since 1970; 0: never.
    finished: AtomicU64,
}

#[derive(Default)]
struct Work {
    pass: Option<Pass>,
    /// What an earlier life has noted was looked for.
    is_resumed: bool,
    told: HashSet<PageId>,
    buffer: Option<AlignedBuf>,
    noted: Option<Instant>,
}

/// A pass under way.
#[derive(Clone, Copy)]
struct Pass {
    /// The next page to be read; those before it are done.
    next: PageId,
    /// Bytes read.
    done_bytes: u64,
    /// When it began, seconds since 1970.
    began: u64,
    /// It was asked for: it does not wait for its time.
    at_once: bool,
}

/// What a step has done.
#[derive(Default)]
struct Step {
    /// A piece was read.
    has_read: bool,
    /// How long it is until the next step; none: until something is asked for.
    rest: Option<Duration>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Pass {
    fn new(at_once: bool) -> Self {
        Self { next: PageId::new(SYSTEM_SPACE, 0), done_bytes: 0, began: now(), at_once }
    }

    /// How long it is until the next piece is due, in a pass that is to take `days`.
    fn rest(&self, total_bytes: u64, days: u64) -> Duration {
        if self.at_once || total_bytes == 0 {
            return Duration::ZERO;
        }
        let share = self.done_bytes.min(total_bytes) as f64 / total_bytes as f64;
        let due = self.began as f64 + (days * SECONDS_A_DAY) as f64 * share;
        Duration::from_secs_f64((due - now() as f64).max(0.0)).min(REST_MAX)
    }
}

impl Inner {
    /// The thread begins.
    pub(super) fn start_scrub(self: &Arc<Self>) -> Result<()> {
        self.scrub.worker.start(THREAD, self, run)
    }

    /// Ends the thread and waits for it, unless it is the caller; notes where the pass is.
    pub(super) fn stop_scrub(&self) {
        if !self.scrub.worker.stop() {
            return;
        }
        let work = self.scrub.work.lock();
        if let Some(pass) = work.pass
            && self.env.check_writable().is_ok()
        {
            self.note_pass(&pass);
        }
    }

    /// Adds what it has done to the status.
    pub(super) fn add_scrub(&self, status: &mut crate::status::Status) {
        let scrub = &self.scrub;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (done, total) = (load(&scrub.done_bytes), load(&scrub.total_bytes));
        status.push("scrub_pages", load(&scrub.pages));
        status.push("scrub_errors", load(&scrub.errors));
        // In per cent.
        status.push("scrub_progress", (done.min(total) * 100).checked_div(total).unwrap_or(0));
        status.push("scrub_last_finished", load(&scrub.finished));
    }

    /// Reads the next piece if it is due; with `at_once`, even if it is not.
    fn step_scrub(&self, at_once: bool) -> Result<Step> {
        let mut work = self.scrub.work.lock();
        let work = &mut *work;
        let days = self.options.read().scrub_days.into();
        if !std::mem::replace(&mut work.is_resumed, true) {
            work.pass = self.noted_pass().filter(|_| days > 0);
        }
        if self.scrub.asked.swap(false, Ordering::Relaxed) {
            work.pass = Some(Pass::new(true));
        }
        if days == 0 && work.pass.is_some_and(|pass| !pass.at_once) {
            work.pass = None;
        }
        if work.pass.is_none() && days > 0 {
            work.pass = Some(Pass::new(false));
        }
        let Some(mut pass) = work.pass else {
            self.scrub.total_bytes.store(0, Ordering::Relaxed);
            return Ok(Step::default());
        };
        let spaces = self.spaces_to_scrub();
        let total_bytes = self.bytes_of(&spaces);
        self.scrub.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.scrub.done_bytes.store(pass.done_bytes, Ordering::Relaxed);
        let rest = pass.rest(total_bytes, days);
        if rest > Duration::ZERO && !at_once {
            return Ok(Step { rest: Some(rest), ..Step::default() });
        }
        let began = Instant::now();
        let is_over = self.scrub_piece(work, &mut pass, &spaces)?;
        self.scrub.done_bytes.store(pass.done_bytes, Ordering::Relaxed);
        if is_over {
            self.scrub.finished.store(now(), Ordering::Relaxed);
            tracing::info!(
                "the scrub has read all pages, {} MiB; damaged pages found since the start: {}",
                pass.done_bytes >> 20,
                self.scrub.errors.load(Ordering::Relaxed)
            );
            work.pass = (days > 0).then(|| Pass::new(false));
            work.buffer = None;
        } else {
            work.pass = Some(pass);
        }
        if is_over || work.noted.is_none_or(|noted| noted.elapsed() >= NOTE_EVERY) {
            work.noted = Some(Instant::now());
            self.note_pass(&work.pass.unwrap_or(Pass::new(false)));
        }
        self.env.pool().let_queries_read_after(began.elapsed());
        if is_over && pass.done_bytes == 0 {
            // No file has an image yet.
            return Ok(Step { has_read: false, rest: work.pass.map(|_| REST_MAX) });
        }
        let rest = work.pass.map(|pass| pass.rest(total_bytes, days));
        Ok(Step { has_read: !is_over, rest })
    }

    /// The spaces that have files, ascending.
    fn spaces_to_scrub(&self) -> Vec<u32> {
        let tables = self.catalog.tables();
        let whole = tables.iter().filter(|(_, record)| !record.lost_changes);
        let mut spaces: Vec<u32> = [SYSTEM_SPACE, UNDO_SPACE]
            .into_iter()
            .chain(whole.map(|(_, record)| record.space))
            .collect();
        spaces.sort_unstable();
        spaces
    }

    fn bytes_of(&self, spaces: &[u32]) -> u64 {
        let storage = self.env.storage();
        let len = |id: &u32| match self.env.pool().space(*id) {
            Some(space) => space.file().io_file().len(),
            None => storage.open(&space_file_name(*id)).and_then(|file| file.len()),
        };
        // A file that is missing is found out by those who use its table.
        spaces.iter().filter_map(|id| len(id).ok()).sum()
    }

    /// Reads a piece of the next file that has one left. Whether the pass is over.
    fn scrub_piece(&self, work: &mut Work, pass: &mut Pass, spaces: &[u32]) -> Result<bool> {
        let page_size = self.env.page_size();
        let next = pass.next;
        for &id in spaces.iter().filter(|id| **id >= next.space) {
            let first = if id == next.space { next.no } else { 0 };
            let source = match self.env.source(id) {
                Ok(source) => source,
                Err(error) => {
                    self.note_unreadable(work, id, &error);
                    continue;
                }
            };
            let file = source.file();
            let mut buffer =
                work.buffer.take().unwrap_or_else(|| AlignedBuf::zeroed(PIECE.max(page_size)));
            let page_files = self.env.page_files();
            let piece =
                page_files::read_piece(file, (id, first), (page_files.page_size, &mut buffer));
            for ((no, read), bytes) in piece.pages.iter().zip(buffer.chunks_exact_mut(page_size)) {
                let id = PageId::new(id, *no);
                let is_right = read.is_ok() && self.verify_on_disk(id, bytes).is_ok();
                if !is_right && let Some(why) = self.damage_of(id, bytes) {
                    let error = Error::corrupt(space_file_name(id.space), id.no, why);
                    self.tell_damage(work, id, &error.what());
                }
            }
            work.buffer = Some(buffer);
            let looked_at = piece.pages.len() as u64 + piece.encrypted;
            self.scrub.pages.fetch_add(looked_at, Ordering::Relaxed);
            pass.done_bytes += piece.bytes + dead_bytes(file, piece.bytes);
            pass.next = match piece.next {
                Some(no) => PageId::new(id, no),
                None => PageId::new(id + 1, 0),
            };
            // Behind pages whose key can't be had there may be others, and theirs.
            if looked_at > 0 || piece.next.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn verify_on_disk(&self, id: PageId, bytes: &[u8]) -> Result<(), String> {
        page::verify(bytes, id).map_err(|why| why.to_string())?;
        self.env.redo().contradiction(page::page_lsn(bytes)).map_or(Ok(()), Err)
    }

    /// What is wrong with a page that was wrong at the first look, if that is no passing state.
    fn damage_of(&self, id: PageId, bytes: &mut [u8]) -> Option<String> {
        let read = |no: u32, bytes: &mut [u8]| -> Result<(), String> {
            // Anew each time: a space that was not open may be by now, and its file have changed.
            let source = self.env.source(id.space).map_err(|error| error.what())?;
            source.file().read(id.space, no, bytes).map(drop).map_err(page_files::why)
        };
        let mut why = String::new();
        for _ in 0..LOOKS {
            if self.scrub.worker.is_stopped() || is_dirty(self.env.pool(), id) {
                return None;
            }
            match read(id.no, bytes).and_then(|()| self.verify_on_disk(id, bytes)) {
                Ok(()) => return None,
                Err(found) => why = found,
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        // The table may have been dropped, and the page may be one that the space has grown by and
        // not used yet.
        let is_in_use = || -> Result<bool> {
            let known = self.spaces_to_scrub();
            if !known.contains(&id.space)
                || !self.env.storage().exists(&space_file_name(id.space))?
            {
                return Ok(false);
            }
            // From the file: the space may not be open, and to open one here could be in the way of
            // a DROP.
            let mut header = AlignedBuf::zeroed(bytes.len());
            read(0, &mut header).map_err(Error::Storage)?;
            let is_header = page::verify(&header, PageId::new(id.space, 0)).is_ok();
            Ok(!is_header || id.no < space_header::size_pages(&header))
        };
        // Where the header can't be read, all of its pages are.
        is_in_use().unwrap_or(true).then_some(why)
    }

    /// A file of a table can't be opened.
    fn note_unreadable(&self, work: &mut Work, space: u32, error: &Error) {
        let is_there = self.env.storage().exists(&space_file_name(space)).unwrap_or(true);
        // A file that is missing is found out by those who use its table.
        if is_there && self.spaces_to_scrub().contains(&space) {
            self.tell_damage(work, PageId::new(space, 0), &error.what());
        }
    }

    /// `what` names the file and the page.
    fn tell_damage(&self, work: &mut Work, id: PageId, what: &str) {
        if !work.told.insert(id) {
            return;
        }
        self.scrub.errors.fetch_add(1, Ordering::Relaxed);
        let table = self.catalog.tables().into_iter().find(|(_, record)| record.space == id.space);
        let of = table.map_or_else(String::new, |(name, _)| format!(" (table {name})"));
        let remedy = match id.space >= FIRST_TABLE_SPACE {
            true => Remedy::CheckThenRestore,
            false => Remedy::RestoreBeforeStart,
        };
        match work.told.len() {
            0..TOLD_MAX => {
                tracing::error!("{what}{of}; found by the scrub: {remedy}");
            }
            TOLD_MAX => {
                let file = space_file_name(id.space);
                tracing::error!("{file}: more pages are corrupt; the scrub reports no more of them")
            }
            _ => {}
        }
    }

    /// Notes where the pass is. What fails costs the next life a pass from the beginning.
    fn note_pass(&self, pass: &Pass) {
        if self.env.check_writable().is_err() {
            return;
        }
        let mut note = AlignedBuf::zeroed(NOTE_SIZE);
        let mut put = |at: usize, bytes: &[u8]| note[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, NOTE_MAGIC);
        put(8, &self.env.instance());
        put(24, &pass.next.space.to_le_bytes());
        put(28, &pass.next.no.to_le_bytes());
        put(32, &pass.done_bytes.to_le_bytes());
        put(40, &pass.began.to_le_bytes());
        put(48, &self.scrub.finished.load(Ordering::Relaxed).to_le_bytes());
        let crc = crc32c::crc32c(&note[..NOTE_CRC_AT]);
        note[NOTE_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let write = || -> Result<()> {
            let storage = self.env.storage();
            let file = match storage.exists(SCRUB_FILE)? {
                true => storage.open(SCRUB_FILE)?,
                false => storage.create(SCRUB_FILE)?,
            };
            Ok(file.write_at(&note, 0)?)
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "it is not noted where the scrub is");
        }
    }

    /// What an earlier life has noted.
    fn noted_pass(&self) -> Option<Pass> {
        let mut note = AlignedBuf::zeroed(NOTE_SIZE);
        let storage = self.env.storage();
        if !storage.exists(SCRUB_FILE).ok()? {
            return None;
        }
        storage.open(SCRUB_FILE).ok()?.read_at(&mut note, 0).ok()?;
        let crc = u32::from_le_bytes(note[NOTE_CRC_AT..].try_into().ok()?);
        let is_ours = note[..8] == *NOTE_MAGIC && note[8..24] == self.env.instance();
        if !is_ours || crc != crc32c::crc32c(&note[..NOTE_CRC_AT]) {
            return None;
        }
        let (u32_at, u64_at) = (space_header::u32_at, space_header::u64_at);
        self.scrub.finished.fetch_max(u64_at(&note, 48), Ordering::Relaxed);
        Some(Pass {
            next: PageId::new(u32_at(&note, 24), u32_at(&note, 28)),
            done_bytes: u64_at(&note, 32),
            // A clock that was set back must not hold it up.
            began: u64_at(&note, 40).min(now()),
            at_once: false,
        })
    }
}

/// Whether the page is newer in the pool than in its file. Looks at all of the pool: for pages that
/// are wrong.
fn is_dirty(pool: &Pool, id: PageId) -> bool {
    let mut is_dirty = false;
    pool.for_each_resident(|resident| is_dirty |= resident.id == id && resident.is_dirty);
    is_dirty
}

fn run(inner: &Weak<Inner>, signal: &Wakeup) {
    let mut steps = StepRunner::new(THREAD);
    let mut pause = Duration::ZERO;
    while signal.sleep(pause) {
        let Some(inner) = inner.upgrade() else { return };
        pause = match steps.run(|| inner.step_scrub(false)) {
            Ok(Ok(step)) => step.rest.unwrap_or(Duration::MAX),
            // The disk may come back; that pages can't be read is no error here.
            Ok(Err(_)) => REST_MAX,
            Err(rest) => rest,
        };
    }
}

impl super::Db {
    /// Begins a pass of the scrub, which goes on at once, at the pace of scans: in the background
    /// or by
    /// [`step_scrub`](Self::step_scrub). One that is under way begins anew.
    pub fn scrub(&self) -> Result<()> {
        self.check_open()?;
        self.inner.scrub.asked.store(true, Ordering::Relaxed);
        self.inner.scrub.worker.wake();
        Ok(())
    }

    /// Changes [`Options::scrub_days`](crate::Options::scrub_days).
    pub fn set_scrub_days(&self, days: u16) {
        self.inner.options.write().scrub_days = days;
        self.inner.scrub.worker.wake();
    }

    /// Reads and verifies the next piece of the data directory, whenever it is due; false if the
    /// pass is over, or there is none.
    pub fn step_scrub(&self) -> Result<bool> {
        self.check_open()?;
        Ok(self.inner.step_scrub(true)?.has_read)
    }
}
/// The part of a file's bytes in which nothing is, for `bytes` bytes of images: so that all parts
/// together come to the file's length.
fn dead_bytes(file: &PackedFile, bytes: u64) -> u64 {
    let usage = file.usage();
    let dead = usage.file_bytes.saturating_sub(usage.live_bytes);
    (u128::from(bytes) * u128::from(dead) / u128::from(usage.live_bytes.max(1))) as u64
}
