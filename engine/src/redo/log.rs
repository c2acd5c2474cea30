//! The log's writer and group commit.
//!
//! # Writing
//! Mini-transactions leave their frames in the [log buffer](super::buffer), each thread in a part
//! that no other uses at that moment. The writer, who has the `io` mutex, looks where the log ends,
//! takes all frames before that from the parts, and so has the log up to there without a hole. It
//! puts them together in a buffer that begins at a block boundary, so blocks go to the file as they
//! are.
//!
//! The last block of a write is mostly partial; it is padded with zeroes and written again, longer,
//! by the next write. Every sector of it that was synced before keeps its bytes, so a torn rewrite
//! harms nothing.
//!
//! # Waiting
//! An append waits only if the buffer is full, and then just for a write. A commit waits for a sync
//! (see [`super::group`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_pool::encryption::NumberedKey;
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Lsn, catch_panic};

use super::buffer::LogBuffer;
use super::control::LostLog;
use super::full_disk::FullDisk;
use super::group::{Group, Role};
use super::mark::{self, MARK_LEN};
use super::pending_spaces::PendingSpaces;
use super::reader::{Frame, Reader};
use super::record::{DurableMark, LogRecord, Writer};
use super::ring::LiveFile;
use super::{BLOCK_SIZE, Failure, Ring, block_ceil, block_floor};
use crate::error::{Error, Remedy, Result};

/// Figures of the redo log. Counters are totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RedoStats {
    /// End of the log.
    pub next_lsn: u64,
    /// Written to the files up to here.
    pub written_lsn: u64,
    /// Durable up to here.
    pub flushed_lsn: u64,
    /// Recovery would start here.
    pub checkpoint_lsn: u64,
    /// Configured capacity, bytes.
    pub capacity_bytes: u64,
    /// Bytes of log that the present files hold.
    pub files_bytes: u64,
    /// Frames appended, durable marks not counted.
    pub frames: u64,
    /// Writes to redo files.
    pub writes: u64,
    /// Bytes written to redo files, padding included.
    pub written_bytes: u64,
    /// Syncs of redo files.
    pub syncs: u64,
    /// How long these took in all, microseconds.
    pub syncs_us: u64,
    /// Calls of `flush_to` that had to wait for a sync, their own or another's.
    pub flush_requests: u64,
    /// Appends that found the log buffer full.
    pub buffer_waits: u64,
    /// Mini-transactions that waited at their beginning for room in the ring.
    pub capacity_waits: u64,
    /// How long these waits took in all, microseconds.
    pub capacity_waits_us: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub syncs_us: AtomicU64,
    pub flush_requests: AtomicU64,
    pub buffer_waits: AtomicU64,
    pub capacity_waits: AtomicU64,
    pub capacity_waits_us: AtomicU64,
    pub checkpoints: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Adds a time to a counter of microseconds.
pub(super) fn count_time(counter: &AtomicU64, time: Duration) {
    count(counter, time.as_micros() as u64);
}

/// What belongs to the writing thread.
struct Io {
    /// What the log has from the last block boundary before `written` on: the bytes before
    /// `written`, and room for what is written next.
    blocks: AlignedBuf,
    /// Everything before this is written.
    written: u64,
    /// How far the log was durable by its last mark.
    marked: u64,
    /// The file being written.
    current: LiveFile,
    /// Files written since they were last synced.
    unsynced: Vec<Arc<dyn StorageFile>>,
}

/// What capacity waits wait for.
#[derive(Default)]
pub(super) struct Room {
    pub mutex: Mutex<()>,
    /// Signalled when the ring has more room, or the log has failed.
    pub changed: Condvar,
}

/// The redo log of an open data directory.
pub struct RedoLog {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) failure: Arc<Failure>,
    pub(super) buffer: LogBuffer,
    io: Mutex<Io>,
    /// Length of `Io::blocks`.
    blocks_bytes: AtomicUsize,
    /// Bytes of all durable marks of this life.
    marks_bytes: AtomicU64,
    pub(super) ring: Mutex<Ring>,
    group: Group,
    written: AtomicU64,
    flushed: AtomicU64,
    pub(super) checkpoint: AtomicU64,
    /// Whether the checkpoint must stay where it is.
    pub(super) checkpoint_held: AtomicBool,
    /// No more files are made ahead.
    pub(super) stops_preparing: AtomicBool,
    /// The disk is full, and its space is needed for what is in the log.
    pub(super) leaves_disk: AtomicBool,
    /// Whether all that the pages lack of the log has been applied to them.
    is_applied: AtomicBool,
    pub(super) capacity: AtomicU64,
    /// Whether the capacity follows the pool.
    pub(super) automatic_capacity: AtomicBool,
    /// A mini-transaction may begin while the log ends before this.
    pub(super) begin_limit: AtomicU64,
    pub(super) room: Room,
    pub(super) full_disk: FullDisk,
    /// Where each epoch that may still be in front of a checkpoint begins.
    pub(super) epochs: Mutex<Vec<(Lsn, u32)>>,
    /// Log that is lost, whose pages are refused.
    lost: Box<[LostLog]>,
    /// What the log must go on to say.
    pub(super) pending_spaces: Mutex<PendingSpaces>,
    /// The epoch of all that is appended.
    pub(super) epoch: u32,
    /// What frames are encrypted with.
    pub(super) key: Option<NumberedKey>,
    pub(super) counters: Counters,
}

/// Why a page with this LSN is not of the log that ends at `end` and has lost what `lost` says, if
/// it is not.
pub(crate) fn contradiction(page_lsn: Lsn, end: Lsn, lost: &[LostLog]) -> Option<String> {
    if lost.iter().any(|lost| lost.has_changed(page_lsn)) {
        return Some(format!("it was written at LSN {page_lsn}, in redo log that is lost"));
    }
    (page_lsn > end).then(|| {
        format!(
            "it was written at LSN {page_lsn}, but the redo log ends at LSN {end}: the file is of \
             a later time than the log, or the log was damaged"
        )
    })
}

/// Where the log goes on, and how.
pub(crate) struct LogStart {
    /// End of the log that was found, or of what is lost behind it.
    pub end: Lsn,
    /// What is lost of the log that was found.
    pub lost: Option<LostLog>,
    /// Where each epoch before it begins, as far as the log is still needed.
    pub epochs: Vec<(Lsn, u32)>,
    /// Bytes of log that may be in front of the checkpoint.
    pub capacity_bytes: u64,
    /// Size in bytes of the log buffer, and of the writer's.
    pub buffer_bytes: usize,
    /// Whether what is appended is encrypted.
    pub is_encrypted: bool,
    /// Whether anything will be appended.
    pub access: LogAccess,
}

/// What an opened log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogAccess {
    /// It is appended to.
    Append,
    /// Nothing is appended, and nothing is written at its opening.
    ReadOnly,
}

impl RedoLog {
    /// Opens the log in a new epoch, unless it is only read.
    pub(crate) fn start(mut ring: Ring, start: LogStart, failure: Arc<Failure>) -> Result<Self> {
        let LogStart { end, lost, mut epochs, capacity_bytes, buffer_bytes, is_encrypted, access } =
            start;
        let read_only = access == LogAccess::ReadOnly;
        let seen = epochs.last().map_or(0, |(_, epoch)| *epoch);
        let epoch = if read_only { seen } else { ring.begin_epoch(seen, end, lost)? };
        epochs.push((end, epoch));
        let key = (is_encrypted && !read_only).then(|| ring.encrypt_epoch()).transpose()?;
        let current = if read_only {
            let last = ring.find_or_last(end);
            last.ok_or_else(|| {
                let remedy = Remedy::RestoreDirectory;
                Error::format(super::CONTROL_FILE, "it lists no redo file", remedy)
            })?
        } else {
            ring.find_or_extend(end)?
        };
        let base = block_floor(end.0);
        let buffer_len = block_ceil(buffer_bytes as u64).max(4 * BLOCK_SIZE as u64) as usize;
        let mut blocks = AlignedBuf::zeroed(buffer_len);
        if base < end.0 && !read_only {
            current.file.read_at(&mut blocks[..BLOCK_SIZE], current.offset(base))?;
        }
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let checkpoint = ring.control().checkpoint;
        let lost = ring.control().lost.as_slice().into();
        let mut log = Self {
            storage: ring.storage().clone(),
            failure,
            buffer: LogBuffer::new(end.0, buffer_len, cpus),
            blocks_bytes: AtomicUsize::new(blocks.len()),
            marks_bytes: AtomicU64::new(0),
            io: Mutex::new(Io { blocks, written: end.0, marked: 0, current, unsynced: Vec::new() }),
            ring: Mutex::new(ring),
            group: Group::default(),
            written: AtomicU64::new(end.0),
            flushed: AtomicU64::new(end.0),
            checkpoint: AtomicU64::new(checkpoint.0),
            checkpoint_held: AtomicBool::new(false),
            stops_preparing: AtomicBool::new(false),
            leaves_disk: AtomicBool::new(false),
            is_applied: AtomicBool::new(false),
            capacity: AtomicU64::new(capacity_bytes),
            automatic_capacity: AtomicBool::new(false),
            begin_limit: AtomicU64::new(0),
            room: Room::default(),
            full_disk: FullDisk::default(),
            epochs: Mutex::new(epochs),
            lost,
            pending_spaces: Mutex::default(),
            epoch,
            key: None,
            counters: Counters::default(),
        };
        log.update_begin_limit(&log.ring.lock());
        if !read_only {
            let mut first = Writer::default();
            first.log(LogRecord::Epoch(epoch));
            log.append(first.bytes(), |_, _| {});
        }
        // The frame that says which epoch it is was the last that is not encrypted.
        log.key = key;
        Ok(log)
    }

    /// A reader of the log from the checkpoint on, for recovery.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(&self.ring.lock())
    }

    /// The reader's next frame.
    pub(crate) fn read_frame<'r>(&self, reader: &'r mut Reader) -> Result<Option<Frame<'r>>> {
        reader.next(&mut self.ring.lock())
    }

    /// How far the log says that it was durable.
    #[cfg(test)]
    pub(super) fn marked(&self) -> Lsn {
        Lsn(self.io.lock().marked)
    }

    /// The end of the log less its durable marks: two answers are the same only if nothing else was
    /// appended in between. A mark that is being written counts at first.
    pub(super) fn end_without_marks(&self) -> u64 {
        let marks = self.marks_bytes();
        self.buffer.end() - marks
    }

    pub(super) fn marks_bytes(&self) -> u64 {
        self.marks_bytes.load(Ordering::Acquire)
    }

    /// Whether a page with this LSN holds changes whose log is lost.
    pub(crate) fn has_lost(&self, page_lsn: Lsn) -> bool {
        self.lost.iter().any(|lost| lost.has_changed(page_lsn))
    }

    /// What is lost of it.
    pub(crate) fn lost(&self) -> &[LostLog] {
        &self.lost
    }

    /// Why a page with this LSN is not of this log, if it is not.
    pub(crate) fn contradiction(&self, page_lsn: Lsn) -> Option<String> {
        contradiction(page_lsn, self.next_lsn(), &self.lost)
    }

    /// Recovery, which looks at the pages itself, is over.
    pub(crate) fn set_applied(&self) {
        self.is_applied.store(true, Ordering::Release);
    }

    pub(crate) fn is_applied(&self) -> bool {
        self.is_applied.load(Ordering::Acquire)
    }

    /// End of the log.
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.buffer.end())
    }

    /// Everything before this survives a power cut.
    pub fn flushed_lsn(&self) -> Lsn {
        Lsn(self.flushed.load(Ordering::Acquire))
    }

    /// Everything before this survives the death of the process.
    pub fn written_lsn(&self) -> Lsn {
        Lsn(self.written.load(Ordering::Acquire))
    }

    /// Recovery would start here.
    pub fn checkpoint_lsn(&self) -> Lsn {
        Lsn(self.checkpoint.load(Ordering::Acquire))
    }

    /// Makes the log durable up to `lsn`, together with everyone else who asks at this moment.
    ///
    /// After a failure it fails even for what is durable: the caller's pages may not be what it
    /// thinks.
    pub fn flush_to(&self, lsn: Lsn) -> Result<()> {
        self.failure.check()?;
        if self.flushed_lsn() >= lsn {
            return Ok(());
        }
        debug_assert!(lsn <= self.next_lsn(), "flush of LSN {} that was never appended", lsn.0);
        count(&self.counters.flush_requests, 1);
        let done = || self.flushed_lsn() >= lsn || self.failure.is_set();
        while !done() {
            if self.group.enter(lsn, done) == Role::Leader {
                // Whatever becomes of it, the group must hear of it: all others wait for that.
                let result = self.or_fail(|| self.flush_once());
                self.group.finish(self.flushed_lsn(), result.is_err());
            }
        }
        if self.flushed_lsn() >= lsn { Ok(()) } else { self.failure.check() }
    }

    /// Writes the log up to `lsn` to its file, without a sync.
    pub fn write_to(&self, lsn: Lsn) -> Result<()> {
        self.failure.check()?;
        if self.written_lsn() >= lsn {
            return Ok(());
        }
        let mut io = self.io.lock();
        if io.written < lsn.0 {
            self.write_out(&mut io)?;
        }
        Ok(())
    }

    /// Makes everything appended so far durable. The once-a-second step of
    /// `flush_log_at_trx_commit` 0 and 2.
    pub fn flush(&self) -> Result<()> {
        self.flush_to(self.next_lsn())
    }

    /// The regular flush. The control file notes how far the log is durable then, if it does not
    /// know, so that damage to what was flushed last is distinguished from a write that never
    /// ended.
    pub(crate) fn flush_regularly(&self) -> Result<()> {
        self.flush()?;
        let flushed = self.flushed_lsn();
        let mut ring = self.ring.lock();
        if ring.control().durable >= flushed {
            return Ok(());
        }
        self.failure.check()?;
        self.or_fail_unless_full(|| ring.set_durable(flushed))
    }

    /// One sync for everything appended so far. Only the group's leader calls this.
    fn flush_once(&self) -> Result<()> {
        let (end, files) = {
            let mut io = self.io.lock();
            self.write_out(&mut io)?;
            (io.written, std::mem::take(&mut io.unsynced))
        };
        // Without the io mutex, so that others can write meanwhile.
        for file in files {
            count(&self.counters.syncs, 1);
            let began = Instant::now();
            let synced = file.sync_data();
            count_time(&self.counters.syncs_us, began.elapsed());
            synced.map_err(|error| self.failure.set(error.to_string()))?;
        }
        let before = self.flushed.swap(end, Ordering::Release);
        assert!(before <= end, "what is durable stays durable");
        Ok(())
    }

    pub(super) fn write_buffer(&self) -> Result<()> {
        let mut io = self.io.lock();
        self.write_out(&mut io)
    }

    /// Waits for what is being written to the log's files. After a failure nothing else comes.
    pub(crate) fn wait_for_writes(&self) {
        drop(self.io.lock());
        drop(self.ring.lock());
    }

    /// Takes what is in the log buffer and writes it.
    fn write_out(&self, io: &mut Io) -> Result<()> {
        self.failure.check()?;
        self.or_fail(|| {
            if self.buffer.end() == io.written {
                return Ok(());
            }
            let end = self.append_mark(io);
            assert!(end > io.written, "there is something to be written");
            self.take_frames(io, end);
            self.write_blocks(io, end)?;
            let base = block_floor(io.written);
            let tail = (block_floor(end) - base) as usize..(end - base) as usize;
            io.blocks.copy_within(tail, 0);
            io.written = end;
            self.written.store(end, Ordering::Release);
            Ok(())
        })
    }

    /// Has the log say how far it is durable, unless it has said so. Returns the end of that, or of
    /// the log.
    fn append_mark(&self, io: &mut Io) -> u64 {
        let flushed = self.flushed_lsn();
        if flushed.0 <= io.marked {
            return self.buffer.end();
        }
        assert!(flushed.0 <= io.written, "what is durable was written");
        let mut part = self.buffer.any_part();
        let start = part.reserve(MARK_LEN);
        let mark = DurableMark { epoch: self.epoch, lsn: flushed };
        part.put(start, MARK_LEN, |out| out.extend_from_slice(&mark::encode(mark, Lsn(start))));
        drop(part);
        self.marks_bytes.fetch_add(MARK_LEN as u64, Ordering::AcqRel);
        io.marked = flushed.0;
        start + MARK_LEN as u64
    }

    /// Puts the frames up to `end` behind what is written.
    fn take_frames(&self, io: &mut Io, end: u64) {
        let base = block_floor(io.written);
        let (from, to) = ((io.written - base) as usize, (end - base) as usize);
        let needed = block_ceil(to as u64) as usize;
        if needed > io.blocks.len() {
            // By a quarter at least, for it may go on so.
            let mut larger = AlignedBuf::zeroed(needed.max(io.blocks.len() / 4 * 5));
            larger[..from].copy_from_slice(&io.blocks[..from]);
            io.blocks = larger;
            self.blocks_bytes.store(io.blocks.len(), Ordering::Relaxed);
        }
        self.buffer.take(io.written, end, &mut io.blocks[from..to]);
        io.blocks[to..needed].fill(0);
    }

    /// Writes the blocks up to `end`.
    fn write_blocks(&self, io: &mut Io, end: u64) -> Result<()> {
        let (base, stop) = (block_floor(io.written), block_ceil(end));
        let mut at = base;
        while at < stop {
            if at >= io.current.end.0 {
                io.current = self.once_there_is_space(|| {
                    let mut ring = self.ring.lock();
                    ring.note_durable(self.flushed_lsn());
                    let file = ring.find_or_extend(Lsn(at));
                    self.update_begin_limit(&ring);
                    file
                })?;
            }
            let current = &io.current;
            if io.unsynced.last().is_none_or(|last| !Arc::ptr_eq(last, &current.file)) {
                io.unsynced.push(current.file.clone());
            }
            let piece_end = stop.min(current.end.0);
            let piece = &io.blocks[(at - base) as usize..(piece_end - base) as usize];
            assert!(current.start.0 <= at && at < piece_end, "the file holds this part of the log");
            assert!(piece.len().is_multiple_of(BLOCK_SIZE), "whole blocks are written");
            // What was synced before in the first of these blocks is in them again, so a write that
            // stops half-way harms nothing, and can be done again.
            let write = || Ok(current.file.write_at(piece, current.offset(at))?);
            self.once_there_is_space(write)?;
            count(&self.counters.writes, 1);
            count(&self.counters.written_bytes, piece.len() as u64);
            at = piece_end;
        }
        Ok(())
    }

    /// Runs a change of the log's books of its files. If that fails for another reason than a full
    /// disk, writing has stopped for good.
    pub(super) fn or_fail_unless_full<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut full = None;
        let done = self.or_fail(|| match body() {
            Err(error @ Error::NoSpace(_)) => {
                full = Some(error);
                Ok(None)
            }
            other => other.map(Some),
        })?;
        done.ok_or_else(|| full.expect("there is no result because the disk is full"))
    }

    /// Runs what writes the log's files, unless writing has stopped. If that fails, writing has
    /// stopped for good; so it has after a panic, for then it is unknown what was written, and the
    /// next write might leave a hole behind it.
    pub(super) fn or_fail<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        // With the mutex that the close takes once it has stopped all writing: behind that, the
        // files may be another process's.
        self.failure.check()?;
        const WHAT: &str = "a write of the redo log";
        let bug = || Err(Error::Storage(format!("{WHAT} panicked")));
        catch_panic(WHAT, body).unwrap_or_else(bug).map_err(|error| self.fail(error))
    }

    /// Makes `error` the reason why writing has stopped, and wakes who waits for room.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let error = match error {
            Error::Crashed(_) | Error::Closed => error,
            // By itself, this one says that the statement can be run again.
            Error::NoSpace(what) => self.failure.set(format!(
                "no space left for {what}, and the engine was being closed: free disk space"
            )),
            other => self.failure.set(other.to_string()),
        };
        self.wake_room();
        error
    }

    /// Present figures.
    pub fn stats(&self) -> RedoStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedoStats {
            checkpoint_lsn: load(&self.checkpoint),
            flushed_lsn: load(&self.flushed),
            written_lsn: load(&self.written),
            next_lsn: self.buffer.end(),
            capacity_bytes: load(&self.capacity),
            files_bytes: self.ring.lock().total_size(),
            frames: self.buffer.frames() - self.marks_bytes() / MARK_LEN as u64,
            writes: load(&self.counters.writes),
            written_bytes: load(&self.counters.written_bytes),
            syncs: load(&self.counters.syncs),
            syncs_us: load(&self.counters.syncs_us),
            flush_requests: load(&self.counters.flush_requests),
            buffer_waits: load(&self.counters.buffer_waits),
            capacity_waits: load(&self.counters.capacity_waits),
            capacity_waits_us: load(&self.counters.capacity_waits_us),
            checkpoints: load(&self.counters.checkpoints),
        }
    }
}

impl RedoLog {
    /// Memory of the log buffer and of the writer's blocks, bytes.
    pub fn buffer_bytes(&self) -> u64 {
        (self.buffer.memory_bytes() + self.blocks_bytes.load(Ordering::Relaxed)) as u64
    }
}
