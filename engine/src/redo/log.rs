//! The log buffer, its writer, and group commit.
//!
//! # The buffer
//! Two buffers take turns. Mini-transactions append to one under the `append` mutex; the writer
//! takes it away whole, leaving the other in its place (with the last, partly filled block copied
//! over), and then owns what it writes: no byte is shared between an appender and a write under
//! way. A buffer begins at a block boundary, so its blocks go to the file as they are.
//!
//! The last block of a write is mostly partial; it is padded with zeroes and written again, longer,
//! by the next write. Every sector of it that was synced before keeps its bytes, so a torn rewrite
//! harms nothing.
//!
//! # Waiting
//! An append waits only if both buffers are full, and then just for a write. A commit waits for a
//! sync (see [`super::group`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_pool::encryption::NumberedKey;
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Lsn, catch_panic};

use super::full_disk::FullDisk;
use super::group::{Group, Role};
use super::keys::{SEALED, SEALED_EXTRA};
use super::mark::{self, MARK_LEN};
use super::pending_spaces::PendingSpaces;
use super::reader::{Frame, Reader};
use super::record::{DurableMark, LogRecord, Writer};
use super::ring::LiveFile;
use super::{BLOCK_SIZE, Failure, Ring, block_ceil, block_floor, frame};
use crate::error::{Error, Result};

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
    /// Frames appended.
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
    pub frames: AtomicU64,
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

/// The buffer that mini-transactions append to.
struct Append {
    buf: AlignedBuf,
    /// LSN of the buffer's first byte; a block boundary.
    base: u64,
    /// LSN of the next frame.
    end: u64,
    /// End of the last frame that is no durable mark.
    said_end: u64,
    /// How far the log was durable by its last mark.
    marked: u64,
    epoch: u32,
}

/// What belongs to the writing thread.
struct Io {
    /// The buffer that will take the other's place.
    spare: AlignedBuf,
    /// Everything before this is written.
    written: u64,
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
    append: Mutex<Append>,
    io: Mutex<Io>,
    pub(super) ring: Mutex<Ring>,
    group: Group,
    /// Mirror of `Append::end`, for looking without the mutex.
    next: AtomicU64,
    written: AtomicU64,
    flushed: AtomicU64,
    pub(super) checkpoint: AtomicU64,
    /// Whether the checkpoint must stay where it is.
    pub(super) checkpoint_held: AtomicBool,
    /// No more files are made ahead.
    pub(super) stops_preparing: AtomicBool,
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
    /// What the log must go on to say.
    pub(super) pending_spaces: Mutex<PendingSpaces>,
    /// What frames are encrypted with.
    key: Option<NumberedKey>,
    pub(super) counters: Counters,
}

/// The records of a frame on their way into the log buffer.
enum Payload<'a> {
    /// As they are, and their checksum, which is made outside the log's mutex.
    Plain(&'a [u8], u32),
    /// To be encrypted: that takes the frame's LSN.
    Sealed(&'a [u8], &'a NumberedKey),
}

impl<'a> Payload<'a> {
    fn of(records: &'a [u8], key: Option<&'a NumberedKey>) -> Payload<'a> {
        match key {
            None => Payload::Plain(records, frame::payload_crc(records)),
            Some(key) => Payload::Sealed(records, key),
        }
    }

    fn len(&self) -> usize {
        match self {
            Payload::Plain(records, _) => records.len(),
            Payload::Sealed(records, _) => records.len() + SEALED_EXTRA,
        }
    }

    /// Makes the frame in `out`, which has its length.
    fn put(&self, start: Lsn, epoch: u32, out: &mut [u8]) {
        let header_len = out.len() - self.len();
        let (header, payload) = out.split_at_mut(header_len);
        let crc = match self {
            Payload::Plain(records, crc) => {
                payload.copy_from_slice(records);
                *crc
            }
            Payload::Sealed(records, key) => {
                payload[0] = SEALED;
                let (sealed, tag) = payload[1..].split_at_mut(records.len());
                sealed.copy_from_slice(records);
                tag.copy_from_slice(&key.seal(start.0, sealed));
                frame::payload_crc(payload)
            }
        };
        let (made, made_len) = frame::header(self.len(), crc, start, epoch);
        debug_assert_eq!(made_len, header_len, "the length says how long the header is");
        header.copy_from_slice(&made[..made_len]);
    }
}

/// Where the log goes on, and how.
pub(crate) struct LogStart {
    /// End of the log that was found.
    pub end: Lsn,
    /// Where each epoch before it begins, as far as the log is still needed.
    pub epochs: Vec<(Lsn, u32)>,
    /// Bytes of log that may be in front of the checkpoint.
    pub capacity_bytes: u64,
    /// Size of each of the two log buffers in bytes.
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
        let LogStart { end, mut epochs, capacity_bytes, buffer_bytes, is_encrypted, access } =
            start;
        let read_only = access == LogAccess::ReadOnly;
        let seen = epochs.last().map_or(0, |(_, epoch)| *epoch);
        let epoch = if read_only { seen } else { ring.begin_epoch(seen, end)? };
        epochs.push((end, epoch));
        let key = (is_encrypted && !read_only).then(|| ring.encrypt_epoch()).transpose()?;
        let current = if read_only {
            let last = ring.find_or_last(end);
            last.ok_or_else(|| Error::format(super::CONTROL_FILE, "lists no redo file"))?
        } else {
            ring.find_or_extend(end)?
        };
        let base = block_floor(end.0);
        let buffer_len = block_ceil(buffer_bytes as u64).max(4 * BLOCK_SIZE as u64) as usize;
        let mut buf = AlignedBuf::zeroed(buffer_len);
        if base < end.0 && !read_only {
            current.file.read_at(&mut buf[..BLOCK_SIZE], current.offset(base))?;
        }
        let checkpoint = ring.control().checkpoint;
        let mut log = Self {
            storage: ring.storage().clone(),
            failure,
            append: Mutex::new(Append { buf, base, end: end.0, said_end: end.0, marked: 0, epoch }),
            io: Mutex::new(Io {
                spare: AlignedBuf::zeroed(buffer_len),
                written: end.0,
                current,
                unsynced: Vec::new(),
            }),
            ring: Mutex::new(ring),
            group: Group::default(),
            next: AtomicU64::new(end.0),
            written: AtomicU64::new(end.0),
            flushed: AtomicU64::new(end.0),
            checkpoint: AtomicU64::new(checkpoint.0),
            checkpoint_held: AtomicBool::new(false),
            stops_preparing: AtomicBool::new(false),
            is_applied: AtomicBool::new(false),
            capacity: AtomicU64::new(capacity_bytes),
            automatic_capacity: AtomicBool::new(false),
            begin_limit: AtomicU64::new(0),
            room: Room::default(),
            full_disk: FullDisk::default(),
            epochs: Mutex::new(epochs),
            pending_spaces: Mutex::default(),
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

    /// Appends a frame and returns its end LSN. `stamp(start, end)` runs inside the append mutex,
    /// hence in LSN order: it marks the pages of the mini-transaction dirty.
    ///
    /// Can't fail, for the pages are changed already. After a failure of the log it appends
    /// nothing: no later flush succeeds, and no page will be written.
    pub(crate) fn append(&self, payload: &[u8], stamp: impl FnOnce(Lsn, Lsn)) -> Lsn {
        let payload = Payload::of(payload, self.key.as_ref());
        let len = frame::frame_len(payload.len());
        let mut append = self.append.lock();
        loop {
            // Room or not: a write that began before the failure would take the frame to the file,
            // and it may build on what an abandoned mini-transaction has left in its pages, of
            // which no frame says.
            if self.failure.is_set() {
                // Beyond all that will ever be durable: who compares must not find the pages, or a
                // commit, safe. For all the same, as one may change a page after the other.
                const BEYOND: u64 = frame::frame_len(frame::MAX_PAYLOAD_LEN as usize) as u64;
                let (start, end) = (Lsn(append.end), Lsn(append.end + BEYOND));
                stamp(start, end);
                return end;
            }
            if append.has_room(len) {
                break;
            }
            // Who appends holds latches: not to be waited with for space on a disk.
            if len + 2 * BLOCK_SIZE > append.buf.len() || self.full_disk.is_full() {
                append.grow(len);
                continue;
            }
            drop(append);
            count(&self.counters.buffer_waits, 1);
            // A failure is remembered, and seen above.
            let _ = self.write_buffer();
            append = self.append.lock();
        }
        let start = Lsn(append.end);
        let (at, epoch) = ((append.end - append.base) as usize, append.epoch);
        payload.put(start, epoch, &mut append.buf[at..at + len]);
        append.end += len as u64;
        append.said_end = append.end;
        let end = Lsn(append.end);
        stamp(start, end);
        self.next.store(end.0, Ordering::Release);
        drop(append);
        count(&self.counters.frames, 1);
        end
    }

    /// A reader of the log from the checkpoint on, for recovery.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(&self.ring.lock())
    }

    /// The reader's next frame.
    pub(crate) fn read_frame<'r>(&self, reader: &'r mut Reader) -> Result<Option<Frame<'r>>> {
        reader.next(&mut self.ring.lock())
    }

    /// Runs `look` with the end of the log while nothing can be appended.
    pub(super) fn with_end<T>(&self, look: impl FnOnce(Lsn) -> T) -> T {
        let append = self.append.lock();
        look(Lsn(append.end))
    }

    /// How far the log says that it was durable.
    #[cfg(test)]
    pub(super) fn marked(&self) -> Lsn {
        Lsn(self.append.lock().marked)
    }

    /// End of the last frame that is no durable mark.
    pub(super) fn said_end(&self) -> Lsn {
        Lsn(self.append.lock().said_end)
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
        Lsn(self.next.load(Ordering::Acquire))
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
        self.flushed.store(end, Ordering::Release);
        Ok(())
    }

    fn write_buffer(&self) -> Result<()> {
        let mut io = self.io.lock();
        self.write_out(&mut io)
    }

    /// Waits for what is being written to the log's files. After a failure nothing else comes.
    pub(crate) fn wait_for_writes(&self) {
        drop(self.io.lock());
        drop(self.ring.lock());
    }

    /// Takes the log buffer away and writes it.
    fn write_out(&self, io: &mut Io) -> Result<()> {
        self.failure.check()?;
        self.or_fail(|| {
            let (base, end) = {
                let mut append = self.append.lock();
                if append.end == io.written {
                    return Ok(());
                }
                append.mark_durable(self.flushed_lsn());
                self.next.store(append.end, Ordering::Release);
                append.swap(&mut io.spare)
            };
            self.write_blocks(io, base, end)?;
            io.written = end;
            self.written.store(end, Ordering::Release);
            Ok(())
        })
    }

    /// Writes the blocks of `io.spare`, which begins at `base`, up to `end`.
    fn write_blocks(&self, io: &mut Io, base: u64, end: u64) -> Result<()> {
        let stop = block_ceil(end);
        io.spare[(end - base) as usize..(stop - base) as usize].fill(0);
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
            let piece = &io.spare[(at - base) as usize..(piece_end - base) as usize];
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

    /// Runs what writes the log's files. If that fails, writing has stopped for good; so it has
    /// after a panic, for then it is unknown what was written, and the next write might leave a
    /// hole behind it.
    pub(super) fn or_fail<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        const WHAT: &str = "a write of the redo log";
        let bug = || Err(Error::Storage(format!("{WHAT} panicked")));
        catch_panic(WHAT, body).unwrap_or_else(bug).map_err(|error| self.fail(error))
    }

    /// Makes `error` the reason why writing has stopped, and wakes who waits for room.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let error = match error {
            Error::Crashed(_) => error,
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
            next_lsn: load(&self.next),
            capacity_bytes: load(&self.capacity),
            files_bytes: self.ring.lock().total_size(),
            frames: load(&self.counters.frames),
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
    /// Memory of both log buffers, bytes.
    pub fn buffer_bytes(&self) -> u64 {
        // The other one follows when this one has grown.
        2 * self.append.lock().buf.len() as u64
    }
}

impl Append {
    fn has_room(&self, len: usize) -> bool {
        (self.end - self.base) as usize + len + MARK_LEN <= self.buf.len()
    }

    /// Has the log say that it is durable up to `flushed`, unless it has said so. There is room for
    /// it.
    fn mark_durable(&mut self, flushed: Lsn) {
        if flushed.0 <= self.marked {
            return;
        }
        let frame = mark::encode(DurableMark { epoch: self.epoch, lsn: flushed }, Lsn(self.end));
        let at = (self.end - self.base) as usize;
        self.buf[at..at + MARK_LEN].copy_from_slice(&frame);
        self.end += MARK_LEN as u64;
        self.marked = flushed.0;
    }

    /// Makes room for a frame that is larger than the buffer. The other buffer follows when its
    /// turn comes.
    fn grow(&mut self, len: usize) {
        let used = (self.end - self.base) as usize;
        let needed = block_ceil((used + len + 2 * BLOCK_SIZE) as u64) as usize;
        // By a quarter at least, for there may be many small ones.
        let mut larger = AlignedBuf::zeroed(needed.max(self.buf.len() / 4 * 5));
        larger[..used].copy_from_slice(&self.buf[..used]);
        self.buf = larger;
    }

    /// Puts `other` in the buffer's place. `other` becomes what was appended: the bytes from the
    /// first to the second LSN returned.
    fn swap(&mut self, other: &mut AlignedBuf) -> (u64, u64) {
        let base = self.base;
        let next_base = block_floor(self.end);
        let tail = (next_base - base) as usize..(self.end - base) as usize;
        other[..tail.len()].copy_from_slice(&self.buf[tail]);
        std::mem::swap(&mut self.buf, other);
        self.base = next_base;
        (base, self.end)
    }
}
