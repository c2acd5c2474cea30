//! The log buffer: frames on their way from mini-transactions to the writer.
//!
//! # Parts
//! Many threads append at once, so the buffer has several parts, each with a mutex. A thread
//! appends to the part that it used before, or to the next one that is free and has room. Under the
//! part's mutex it
//!
//! 1. reserves its frame's place in the log: one atomic addition to `end`, all that threads share;
//! 2. makes the frame there, checksum and encryption included, for these take the frame's LSN;
//! 3. marks the pages of its mini-transaction dirty.
//!
//! # Invariants
//! - LSNs are reserved only under the mutex of a part. When that is released, the part has the
//!   whole frame, and the pages are marked.
//! - So there are no holes for who loads `end` and then has had each part's mutex: every frame that
//!   begins before is complete, and its pages are marked. For a frame that a part gets later was
//!   reserved after the mutex had been had there, hence after `end` was loaded, and begins behind
//!   it. The writer ([`LogBuffer::take`]) and the checkpoint ([`LogBuffer::settled_end`]) rely on
//!   this.
//! - Frames of a part are in LSN order.
//! - Reserved places touch each other and do not overlap: the frames taken from `from` to `to` have
//!   `to - from` bytes, which the writer asserts.
//!
//! A thread that reserves a place and then panics leaves a hole. The writer's assertion finds it,
//! and the log fails.
//!
//! The model checker compiles this file against its own atomics and mutexes
//! (`tests/log_buffer_model/`).

use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, home, set_home};

/// Largest number of parts: the writer visits each.
const PARTS_MAX: usize = 64;
/// A part is not made smaller than this.
const PART_MIN_BYTES: usize = 16 << 10;
/// Every machine has at least this number of parts, if the buffer is large enough: a small buffer,
/// as simulations have, is the same on all.
const PARTS_EVERYWHERE: usize = 4;

/// Frames that follow each other in the log, and in a part.
struct Run {
    start: u64,
    len: usize,
}

impl Run {
    #[inline]
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }
}

#[derive(Default)]
struct Part {
    /// The frames, one behind the other.
    bytes: Vec<u8>,
    /// Where they belong. A thread that appends alone makes one run.
    runs: Vec<Run>,
    /// Frames that it ever got.
    count: u64,
}

impl Part {
    #[inline]
    fn used(&self) -> usize {
        self.bytes.len() + self.runs.len() * size_of::<Run>()
    }

    /// A frame too large for any part goes to one in which no such frame is.
    #[inline]
    fn has_room(&self, len: usize, capacity: usize) -> bool {
        let (used, len) = (self.used(), len + size_of::<Run>());
        used + len <= capacity || len > capacity && used <= capacity
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.runs.capacity() * size_of::<Run>()
    }
}

/// See the module's description.
pub(super) struct LogBuffer {
    /// LSN of the next frame.
    end: Padded<AtomicU64>,
    parts: Box<[Padded<Mutex<Part>>]>,
    /// Room in each part.
    part_bytes: usize,
}

/// A part that no other thread can use.
pub(super) struct OwnPart<'a> {
    buffer: &'a LogBuffer,
    part: MutexGuard<'a, Part>,
}

impl LogBuffer {
    /// An empty buffer of about `bytes`, for a log that goes on at `end`, and for as many threads
    /// at once as there are `cpus`.
    pub fn new(end: u64, bytes: usize, cpus: usize) -> LogBuffer {
        // Twice as many as can run, so that one is free.
        let useful = (2 * cpus.next_power_of_two()).clamp(PARTS_EVERYWHERE, PARTS_MAX);
        let most = (bytes / PART_MIN_BYTES).max(1);
        // A power of two, all of them: a number becomes that of a part by a mask.
        let count = useful.min(1 << most.ilog2());
        LogBuffer {
            end: Padded(AtomicU64::new(end)),
            parts: (0..count).map(|_| Padded(Mutex::new(Part::default()))).collect(),
            part_bytes: bytes / count,
        }
    }

    /// Where the next frame will begin; frames before it may still be on their way into their
    /// parts.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// A part with room for a frame of `len` bytes. None: all are full.
    #[inline]
    pub fn part_with_room(&self, len: usize) -> Option<OwnPart<'_>> {
        // A statement by itself: a part without room is let go of before the others are tried.
        let home = self.parts[self.home()].try_lock();
        let home = home.filter(|part| part.has_room(len, self.part_bytes));
        let part = home.or_else(|| self.other_with_room(len))?;
        Some(OwnPart { buffer: self, part })
    }

    /// The next part that is free and has room, or that has room once it is free. The thread stays
    /// with it.
    #[cold]
    fn other_with_room(&self, len: usize) -> Option<MutexGuard<'_, Part>> {
        let (home, count) = (self.home(), self.parts.len());
        let others = || (home + 1..=home + count).map(|part| part & (count - 1));
        let has_room = |part: &MutexGuard<'_, Part>| part.has_room(len, self.part_bytes);
        let free = |no: usize| Some((no, self.parts[no].try_lock().filter(has_room)?));
        let waited_for = |no: usize| Some((no, Some(self.parts[no].lock()).filter(has_room)?));
        let (no, part) = others().find_map(free).or_else(|| others().find_map(waited_for))?;
        set_home(no);
        Some(part)
    }

    /// A part, whether it has room or not: it grows.
    pub fn any_part(&self) -> OwnPart<'_> {
        OwnPart { buffer: self, part: self.parts[self.home()].lock() }
    }

    /// The part that the calling thread tries first.
    #[inline]
    fn home(&self) -> usize {
        home() & (self.parts.len() - 1)
    }

    /// Waits until the frames before the present end are in their parts, and their pages marked
    /// dirty; returns that end.
    pub fn settled_end(&self) -> u64 {
        let end = self.end();
        self.parts.iter().for_each(|part| drop(part.lock()));
        end
    }

    /// Takes the frames from `from`, where the last call ended, up to `to`, at most the present
    /// end, and copies them into `out`, which has just their length.
    pub fn take(&self, from: u64, to: u64, out: &mut [u8]) {
        assert_eq!(out.len() as u64, to - from, "a frame has one place in the log");
        let mut taken = 0;
        for part in &self.parts {
            let part = &mut *part.lock();
            let (mut at, mut whole) = (0, 0);
            for run in part.runs.iter_mut().take_while(|run| run.start < to) {
                let len = (run.end().min(to) - run.start) as usize;
                let place = (run.start - from) as usize;
                out[place..place + len].copy_from_slice(&part.bytes[at..at + len]);
                at += len;
                // Of the last one, frames that were appended a moment ago may stay.
                (run.start, run.len) = (run.start + len as u64, run.len - len);
                whole += usize::from(run.len == 0);
            }
            part.runs.drain(..whole);
            taken += at;
            part.bytes.drain(..at);
            if part.bytes.is_empty() && part.bytes.capacity() > self.part_bytes {
                part.bytes = Vec::new();
            }
        }
        assert_eq!(taken as u64, to - from, "the log has a hole between {from} and {to}");
    }

    /// Frames that were ever appended.
    pub fn frames(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().count).sum()
    }

    /// Memory that it takes when all parts are full, and that which it takes beyond, bytes.
    pub fn memory_bytes(&self) -> usize {
        let beyond =
            |part: &Padded<Mutex<Part>>| part.lock().memory_bytes().saturating_sub(self.part_bytes);
        self.parts.len() * self.part_bytes + self.parts.iter().map(beyond).sum::<usize>()
    }
}

impl OwnPart<'_> {
    /// Reserves the place of a frame of `len` bytes: its first LSN. [`OwnPart::put`] follows, with
    /// the same length.
    #[inline]
    pub fn reserve(&self, len: usize) -> u64 {
        // What else is known of the frame is under the part's mutex.
        self.buffer.end.fetch_add(len as u64, Ordering::AcqRel)
    }

    /// Has `make` append the frame whose place was reserved, `len` bytes.
    #[inline]
    pub fn put(&mut self, start: u64, len: usize, make: impl FnOnce(&mut Vec<u8>)) {
        let part = &mut *self.part;
        let at = part.bytes.len();
        if at == 0 {
            // Memory that no frame gets to is not touched.
            part.bytes.reserve_exact(len.max(self.buffer.part_bytes));
        }
        make(&mut part.bytes);
        assert_eq!(part.bytes.len(), at + len, "a frame is as long as its place");
        match part.runs.last_mut() {
            Some(last) if last.end() == start => last.len += len,
            last => {
                debug_assert!(last.is_none_or(|last| last.end() < start), "in LSN order");
                part.runs.push(Run { start, len });
            }
        }
        part.count += 1;
    }
}
