//! Read-ahead: pages asked for before they are wanted, read in batches.
//!
//! A request is a hint. It is dropped when the queue is full, when no frame can be had without
//! waiting, when the page came in meanwhile, and when reading it fails (whoever really wants the
//! page will read it again and get the error). Pages being read are exclusively latched, so a query
//! that comes too early waits for the batch rather than reading twice.
//!
//! Pages next to each other in their file come with one read, through a buffer. A volume that allows
//! so many reads a second counts that as one or a few, and what it saves goes to the queries: with a
//! read for each page, one of them would stand behind up to 63 others each time that it misses.
//!
//! What queries will want goes before what scans will, and scans keep to a [pace](crate::pace).
//!
//! Locking: the buffer's mutex comes before all latches; the queue's is innermost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use crate::latch::PageWord;
use crate::page::{self, PageId, PageType};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::count;
use crate::step::survive;
use crate::storage::{AlignedBuf, IoOp};

/// Requests kept, of queries and of scans; older ones win, being wanted sooner.
const QUEUE_MAX: usize = 4096;

/// Pages read at once, and for a scan while queries wait for reads.
const BATCH_PAGES: usize = 64;
const CONTENDED_PAGES: usize = 8;

/// Bytes that a read of [`Pool::warm`] asks of the device at once, a multiple of every page size.
const WARM_PART_BYTES: usize = 256 << 10;

/// A page to be read, and [`Access::Prefetch`] or [`Access::PrefetchForScan`].
pub(crate) type Wanted = (PageId, Access);

#[derive(Default)]
pub(crate) struct ReadAhead {
    queues: Mutex<Queues>,
    /// Room for a batch.
    buffer: Mutex<Option<AlignedBuf>>,
}

#[derive(Default)]
struct Queues {
    queries: VecDeque<Wanted>,
    scans: VecDeque<Wanted>,
}

impl ReadAhead {
    /// Takes requests, all on behalf of a scan or none.
    pub(crate) fn request(&self, pages: &[Wanted]) {
        let Some((_, access)) = pages.first() else { return };
        let mut queues = self.queues.lock();
        let queue = match access.is_for_scan() {
            true => &mut queues.scans,
            false => &mut queues.queries,
        };
        let room = QUEUE_MAX.saturating_sub(queue.len());
        queue.extend(pages.iter().take(room));
    }

    /// The next batch, all of queries or all of scans; of the latter up to `scan_pages`.
    fn take(&self, scan_pages: usize) -> Vec<Wanted> {
        let Queues { queries, scans } = &mut *self.queues.lock();
        let (queue, max) =
            if queries.is_empty() { (scans, scan_pages) } else { (queries, BATCH_PAGES) };
        let count = queue.len().min(max);
        queue.drain(..count).collect()
    }
}

/// What [`Pool::warm`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Pages that came in.
    pub pages: u64,
    /// How many of the pages asked for were dealt with, in whatever way. Less than all: there was no room for the next.
    pub tried: usize,
}

/// A page being read: its frame, and where its word is.
struct Reading {
    id: PageId,
    access: Access,
    frame: u32,
    space: Arc<Space>,
}

impl Reading {
    fn word(&self) -> &PageWord {
        self.space.existing_word(self.id.no).expect("the page was installed in its word")
    }
}

impl Pool {
    /// Reads the pages that [`Pool::prefetch`] asked for. Returns how many came in.
    pub fn run_read_ahead_step(&self) -> usize {
        let mut read = 0;
        while !self.background.is_stopping() {
            let contended = self.background.runs() && self.pace.is_contended(Instant::now());
            let wanted =
                self.read_ahead.take(if contended { CONTENDED_PAGES } else { BATCH_PAGES });
            let Some((_, access)) = wanted.first() else { break };
            let began = Instant::now();
            read += self.read_batch(&wanted);
            if access.is_for_scan() {
                self.let_queries_read(|pace, now| pace.rest_after(now - began, now));
            }
        }
        read
    }

    /// Whether a page may come in that nobody has asked for: not while memory is to be given back, nor into the frames
    /// that are kept free.
    pub fn has_room_to_warm(&self) -> bool {
        self.frames().debt() == 0 && self.frames().available() > self.reserve()
    }

    /// Reads pages of `space` that were hot in an earlier life, with one read, in parts, that goes from the first to the last of them,
    /// and tells the replacement policy how hot they were: `pages` are their numbers, rising, and heats; `buffer` has room for all from the first to the
    /// last; it is aligned for direct I/O.
    ///
    /// Nobody is displaced: it ends when [`Pool::has_room_to_warm`] says no. Pages that are here already, beyond the end of the
    /// file, free, never written or damaged are passed over without a word, and so are those of a part that can't be read.
    pub fn warm(&self, space: &Arc<Space>, pages: &[(u32, u8)], buffer: &mut [u8]) -> Warmed {
        let mut warmed = Warmed { pages: 0, tried: pages.len() };
        let mut batch: Vec<(Reading, u8)> = Vec::with_capacity(pages.len());
        let in_file = pages.iter().take_while(|page| page.0 < space.page_count());
        for (at, &(no, heat)) in in_file.enumerate() {
            let Ok(word) = space.word(no) else { continue };
            if word.load().frame().is_some() {
                continue;
            }
            let room = self.has_room_to_warm().then(|| self.frames().take()).flatten();
            let Some(frame) = room else {
                warmed.tried = at;
                break;
            };
            match self.install(space, word, no, frame) {
                Ok(true) => {
                    let id = PageId::new(space.id(), no);
                    let access = Access::Prefetch;
                    batch.push((Reading { id, access, frame, space: space.clone() }, heat));
                }
                Ok(false) => {}
                Err(_) => break,
            }
        }
        let Some(((first, _), (last, _))) = batch.first().zip(batch.last()) else { return warmed };
        let (size, first) = (self.page_size().bytes(), first.id.no);
        let span = (last.id.no - first + 1) as usize * size;
        let offset = self.page_size().offset_of(first);
        // In parts that go side by side: as one, it would stand in the device's queue as one.
        let parts =
            buffer[..span].chunks_mut(WARM_PART_BYTES).zip((offset..).step_by(WARM_PART_BYTES));
        let ops: Vec<IoOp<'_>> =
            parts.map(|(part, offset)| IoOp::read(&**space.file(), part, offset)).collect();
        let arrived = self.run_reads(ops);
        for (page, heat) in &batch {
            let at = (page.id.no - first) as usize * size;
            let read = &buffer[at..at + size];
            let usable = page::page_type(read) != PageType::FREE
                && self.verify(space, page.id.no, read).is_ok();
            if !arrived[at / WARM_PART_BYTES] || !usable {
                self.abandon(page.word(), page.frame);
                continue;
            }
            #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
            // SAFETY: `install` latched the page exclusively, and nothing else refers to its frame.
            unsafe { self.frames().bytes_mut(page.frame) }.copy_from_slice(read);
            self.replacement().insert(page.frame, page.id, page.access);
            self.replacement().warm(page.frame, *heat);
            count(&self.counters.pages_data);
            page.word().unlock_exclusive(true);
            warmed.pages += 1;
        }
        self.counters.read_ahead.fetch_add(warmed.pages, Ordering::Relaxed);
        warmed
    }

    /// Which of the reads succeeded; none after a panic.
    fn run_reads(&self, mut ops: Vec<IoOp<'_>>) -> Vec<bool> {
        let ran = survive("a read of pages", || self.storage.run_batch(&mut ops)).is_some();
        ops.into_iter().map(|op| ran && op.result.is_ok()).collect()
    }

    fn read_batch(&self, wanted: &[Wanted]) -> usize {
        let mut buffer = self.read_ahead.buffer.lock();
        let mut batch: Vec<Reading> = Vec::with_capacity(wanted.len());
        for &(id, access) in wanted {
            let Some(space) = self.space(id.space) else { continue };
            let Ok(word) = space.word(id.no) else { continue };
            if word.load().frame().is_some() || space.is_closed() {
                continue;
            }
            let Some(frame) = self.take_frame_at_once(64) else { break };
            if let Ok(true) = self.install(&space, word, id.no, frame) {
                batch.push(Reading { id, access, frame, space });
            }
        }
        batch.sort_unstable_by_key(|page| (page.id.space, page.id.no));
        let size = self.page_size().bytes();
        let mut room =
            &mut buffer.get_or_insert_with(|| AlignedBuf::zeroed(BATCH_PAGES * size))[..];
        let runs = batch
            .chunk_by(|page, next| (page.id.space, page.id.no + 1) == (next.id.space, next.id.no));
        let mut ops: Vec<IoOp<'_>> = Vec::new();
        for run in runs.clone() {
            let first = &run[0];
            let bytes = if run.len() > 1 {
                let (bytes, rest) = std::mem::take(&mut room).split_at_mut(run.len() * size);
                room = rest;
                bytes
            } else {
                #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
                // SAFETY: `install` latched the page exclusively, and each frame is there once.
                unsafe {
                    self.frames().bytes_mut(first.frame)
                }
            };
            let offset = self.page_size().offset_of(first.id.no);
            ops.push(IoOp::read(&**first.space.file(), bytes, offset));
        }
        let arrived = self.run_reads(ops);
        let mut read = 0;
        let mut buffered = buffer.as_deref().unwrap_or_default();
        for (run, arrived) in runs.zip(arrived) {
            for page in run {
                #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
                // SAFETY: still exclusively latched, and the operation that wrote it is gone.
                let frame = unsafe { self.frames().bytes_mut(page.frame) };
                if run.len() > 1 {
                    let (bytes, rest) = buffered.split_at(size);
                    buffered = rest;
                    if arrived {
                        frame.copy_from_slice(bytes);
                    }
                }
                if !arrived || self.verify(&page.space, page.id.no, frame).is_err() {
                    count(&self.counters.read_errors);
                    self.abandon(page.word(), page.frame);
                    continue;
                }
                self.replacement().insert(page.frame, page.id, page.access);
                count(&self.counters.pages_data);
                page.word().unlock_exclusive(true);
                read += 1;
            }
        }
        self.counters.read_ahead.fetch_add(read as u64, Ordering::Relaxed);
        read
    }
}
