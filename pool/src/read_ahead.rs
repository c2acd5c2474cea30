//! Read-ahead: pages asked for before they are wanted, read in batches.
//!
//! A request is a hint. It is dropped when the queue is full, when no frame can be had without
//! waiting, when the page has come in already, and when reading it fails (the query that really wants
//! the page will read it again and get the error). Pages being read are exclusively latched, so a
//! query that comes too early waits for the batch rather than reading twice.
//!
//! Images that lie close together in their file come with one read, through a buffer. A volume that
//! allows a number of reads a second counts that as one or a few, and what it saves goes to the
//! queries: with a read for each page, one of them would stand behind up to 63 others each time
//! that it misses.
//!
//! What queries will want goes before what scans will, and scans keep to a
//! [pace](crate::scan_throttle).
//!
//! Locking: the buffer's mutex comes before all latches; the queue's is innermost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use tidepool_store::packed::{Merging, PackedFile};

use crate::background_task::catch_panic;
use crate::error::Result;
use crate::eviction::{Evictor, NEAR_DEPTH};
use crate::latch::PageWord;
use crate::page::{self, PageId, PageType};
use crate::pool_core::{Loading, PoolCore};
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::{count, note_prefetched};
use crate::storage::{AlignedBuf, IoOp};
use crate::tier::Tier;

/// Requests kept, of queries and of scans; older ones win, being wanted sooner.
const QUEUE_MAX: usize = 4096;

/// The most page numbers in one prefetch that are looked at.
const PREFETCH_MAX: usize = 1024;

/// Pages read at once, and for a scan while queries wait for reads.
const BATCH_PAGES: usize = 64;
const CONTENDED_PAGES: usize = 8;

/// Which images of a file come with one read.
const MERGING: Merging = Merging { gap_max: 64 << 10, len_max: 256 << 10 };

/// A page to be read, and [`Access::Prefetch`] or [`Access::PrefetchForScan`].
type Wanted = (PageId, Access);

/// See the head of this module.
pub(crate) struct ReadAhead {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    evictor: Arc<Evictor>,
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
    pub(crate) fn new(core: Arc<PoolCore>, tier: Arc<Tier>, evictor: Arc<Evictor>) -> ReadAhead {
        ReadAhead { core, tier, evictor, queues: Mutex::default(), buffer: Mutex::new(None) }
    }

    /// Asks for pages that will be wanted soon, in the background. Those already there, beyond the
    /// end of the file, or too many are passed over. `access` is how they will be wanted.
    pub(crate) fn prefetch(&self, space: &Space, pages: &[u32], access: Access) {
        let end = space.page_count();
        let absent =
            |no: u32| space.existing_word(no).is_none_or(|word| word.load().frame().is_none());
        let access = match access {
            Access::Scan | Access::PrefetchForScan => Access::PrefetchForScan,
            Access::Normal | Access::Prefetch => Access::Prefetch,
        };
        let wanted: Vec<_> = pages
            .iter()
            .take(PREFETCH_MAX)
            .filter(|&&no| no < end && absent(no))
            .map(|&no| (PageId::new(space.id(), no), access))
            .collect();
        if wanted.is_empty() {
            return;
        }
        note_prefetched(wanted.len());
        self.request(&wanted);
        match self.core.background.runs() {
            true => self.core.background.wake_read_ahead(),
            false => {
                self.run_step();
            }
        }
    }

    /// Takes requests, all on behalf of a scan or none.
    fn request(&self, pages: &[Wanted]) {
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

/// What [`Pool::warm`](crate::Pool::warm) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Pages that came in.
    pub pages: u64,
    /// How many of the pages asked for were dealt with, in whatever way. Less than all: there was
    /// no room for the next.
    pub tried: usize,
}

/// A page being read. If this goes before [`ReadAhead::finish_read`], the page is absent again.
struct Reading<'a> {
    id: PageId,
    access: Access,
    space: &'a Space,
    loading: Loading<'a>,
    /// Its bytes came from the compressed tier, not from its file.
    was_in_tier: bool,
}

impl Reading<'_> {
    /// The bytes of the page's frame, to be filled.
    fn bytes<'a>(&'a mut self, core: &'a PoolCore) -> &'a mut [u8] {
        #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
        // SAFETY: the page is exclusively latched on behalf of this value, which is borrowed
        // mutably.
        unsafe {
            core.frames.bytes_mut(self.loading.frame())
        }
    }
}

impl ReadAhead {
    /// Reads the pages that [`ReadAhead::prefetch`] asked for. Returns how many came in.
    pub(crate) fn run_step(&self) -> usize {
        let mut read = 0;
        while !self.core.background.is_stopping() {
            let contended =
                self.core.background.runs() && self.core.scan_throttle.is_contended(Instant::now());
            let wanted = self.take(if contended { CONTENDED_PAGES } else { BATCH_PAGES });
            let Some((_, access)) = wanted.first() else { break };
            let began = Instant::now();
            read += self.read_batch(&wanted);
            if access.is_for_scan() {
                self.core.let_queries_read(|pace, now| pace.rest_after(now - began, now));
            }
        }
        read
    }

    /// Whether a page may come in that no query has asked for: not while memory must be given back,
    /// nor into the frames that are kept free.
    pub(crate) fn has_room_to_warm(&self) -> bool {
        self.core.frames.debt() == 0 && self.core.frames.available() > self.core.reserve()
    }

    /// Reads pages of `space` that were hot before the last restart, and informs the replacement
    /// policy how hot they were. `pages` are their numbers, ascending, and heats. Their images are
    /// read through `buffer`, which is aligned for direct I/O.
    ///
    /// No page is displaced: it ends when [`ReadAhead::has_room_to_warm`] says no. Passed over,
    /// without an error, are pages that are resident already, beyond the end of the file, free,
    /// never written or damaged, and those of a part that can't be read.
    pub(crate) fn warm(
        &self,
        space: &Arc<Space>,
        pages: &[(u32, u8)],
        buffer: &mut [u8],
    ) -> Warmed {
        let mut warmed = Warmed { pages: 0, tried: pages.len() };
        let mut batch: Vec<(Reading<'_>, u8)> = Vec::with_capacity(pages.len());
        let in_file = pages.iter().take_while(|page| page.0 < space.page_count());
        for (at, &(no, heat)) in in_file.enumerate() {
            let Ok(word) = space.word(no) else { continue };
            if word.load().frame().is_some() {
                continue;
            }
            let room = self.has_room_to_warm().then(|| self.core.frames.take()).flatten();
            let Some(frame) = room else {
                warmed.tried = at;
                break;
            };
            match self.begin_read(space, word, no, Access::Prefetch, frame) {
                Ok(page) => batch.extend(page.map(|page| (page, heat))),
                Err(_) => break,
            }
        }
        let mut reading: Vec<&mut Reading<'_>> = batch.iter_mut().map(|(page, _)| page).collect();
        let arrived = self.read_pages(space.file(), &mut reading, buffer);
        for ((mut page, heat), arrived) in batch.into_iter().zip(arrived) {
            let bytes = page.bytes(&self.core);
            let is_usable = arrived && page::page_type(bytes) != PageType::FREE;
            if is_usable && self.is_sound(&mut page) {
                self.finish_read(page, Some(heat));
                warmed.pages += 1;
            }
        }
        self.core.counters.read_ahead.fetch_add(warmed.pages, Ordering::Relaxed);
        warmed
    }

    /// Reads pages of a file into their frames, through the buffer; images that lie close together
    /// with one read. Says which came.
    fn read_pages(
        &self,
        file: &PackedFile,
        pages: &mut [&mut Reading<'_>],
        buffer: &mut [u8],
    ) -> Vec<bool> {
        let count = pages.len();
        const READ: &str = "a read of pages";
        let read = || {
            for page in pages.iter_mut() {
                let space = page.space;
                page.was_in_tier = self.tier.read(space, page.id.no, page.bytes(&self.core));
            }
            let mut in_file: Vec<&mut Reading<'_>> =
                pages.iter_mut().map(|page| &mut **page).filter(|page| !page.was_in_tier).collect();
            let arrived = self.read_images(file, &mut in_file, buffer);
            let mut arrived = arrived.into_iter();
            let came =
                |page: &&mut Reading<'_>| page.was_in_tier || arrived.next().unwrap_or(false);
            pages.iter().map(came).collect()
        };
        catch_panic(READ, read).unwrap_or_else(|| vec![false; count])
    }

    fn read_images(
        &self,
        file: &PackedFile,
        pages: &mut [&mut Reading<'_>],
        buffer: &mut [u8],
    ) -> Vec<bool> {
        let mut arrived = vec![false; pages.len()];
        let wanted: Vec<(u32, u32)> =
            pages.iter().map(|page| (page.id.space, page.id.no)).collect();
        // A hint: who wants the pages reads them again and gets the error.
        let Ok((windows, absent)) = file.windows(&wanted, MERGING) else { return arrived };
        for at in absent {
            pages[at].bytes(&self.core).fill(0);
            arrived[at] = true;
        }
        let mut rest = &windows[..];
        while !rest.is_empty() {
            let (mut parts, mut room) = (Vec::new(), &mut *buffer);
            while let Some(window) = rest.get(parts.len())
                && window.len <= room.len()
            {
                let (bytes, behind) = room.split_at_mut(window.len);
                parts.push((window, bytes));
                room = behind;
            }
            let ops = parts.iter_mut().map(|(window, bytes)| file.read_op(window, bytes)).collect();
            let read = self.run_reads(ops);
            for ((window, bytes), is_read) in parts.iter().zip(read) {
                for (at, wanted) in window.pages.iter().enumerate().filter(|_| is_read) {
                    let page = pages[wanted.index].bytes(&self.core);
                    arrived[wanted.index] = match file.decode_in(window, bytes, at, page) {
                        Ok(true) => true,
                        // It has another place by now, or is spoilt.
                        Ok(false) => file.read(wanted.space, wanted.no, page).is_ok(),
                        Err(_) => false,
                    };
                }
            }
            rest = &rest[parts.len()..];
            if parts.is_empty()
                && let Some((window, later)) = rest.split_first()
            {
                // It is longer than the buffer.
                for wanted in &window.pages {
                    let page = pages[wanted.index].bytes(&self.core);
                    arrived[wanted.index] = file.read(wanted.space, wanted.no, page).is_ok();
                }
                rest = later;
            }
        }
        arrived
    }

    /// Which of the reads succeeded; none after a panic.
    fn run_reads(&self, mut ops: Vec<IoOp<'_>>) -> Vec<bool> {
        let ran =
            catch_panic("a read of pages", || self.core.storage.run_batch(&mut ops)).is_some();
        ops.into_iter().map(|op| ran && op.result.is_ok()).collect()
    }

    /// Makes an absent page resident in `frame`, exclusively latched, to be read. `None` (and the
    /// frame is given back): it is not absent any more.
    fn begin_read<'a>(
        &'a self,
        space: &'a Space,
        word: &'a PageWord,
        no: u32,
        access: Access,
        frame: u32,
    ) -> Result<Option<Reading<'a>>> {
        let loading = self.core.install(space, word, no, frame)?;
        let id = PageId::new(space.id(), no);
        Ok(loading.map(|loading| Reading { id, access, space, loading, was_in_tier: false }))
    }

    /// Whether a page that came is as it was written. No query has asked for it: where the check
    /// itself fails, the page is read again, by the query that wants it.
    fn is_sound(&self, page: &mut Reading<'_>) -> bool {
        let (space, no) = (page.space, page.id.no);
        let verify = || self.core.verify(space, no, page.bytes(&self.core)).is_ok();
        catch_panic("a check of a page", verify).unwrap_or(false)
    }

    /// Lets others have a page whose bytes have come and are verified; `heat` is what it had in an
    /// earlier life, if that is known.
    fn finish_read(&self, mut page: Reading<'_>, heat: Option<u8>) {
        let (frame, id, access) = (page.loading.frame(), page.id, page.access);
        self.core.assert_readable(frame, id, page.bytes(&self.core));
        page.loading.admit(id, access);
        if let Some(heat) = heat {
            self.core.replacement.warm(frame, heat);
        }
        page.loading.finish().unlock_exclusive(true);
    }

    /// Takes frames for the pages that are still absent, in file order. `spaces` are theirs.
    fn begin_batch<'a>(
        &'a self,
        wanted: &[Wanted],
        spaces: &'a [Option<Arc<Space>>],
    ) -> Vec<Reading<'a>> {
        let mut batch: Vec<Reading<'_>> = Vec::with_capacity(wanted.len());
        for (&(id, access), space) in wanted.iter().zip(spaces) {
            let Some(space) = space else { continue };
            let Ok(word) = space.word(id.no) else { continue };
            if word.load().frame().is_some() || space.is_closed() {
                continue;
            }
            let Some(frame) = self.evictor.take_frame_at_once(NEAR_DEPTH) else { break };
            let page = self.begin_read(space, word, id.no, access, frame);
            batch.extend(page.ok().flatten());
        }
        batch.sort_unstable_by_key(|page| (page.id.space, page.id.no));
        batch
    }

    fn read_batch(&self, wanted: &[Wanted]) -> usize {
        let mut buffer = self.buffer.lock();
        let spaces: Vec<_> = wanted.iter().map(|(id, _)| self.core.space(id.space)).collect();
        let mut batch = VecDeque::from(self.begin_batch(wanted, &spaces));
        let (mut came, mut read) = (0, 0);
        while let Some(first) = batch.front() {
            let space = first.space;
            let of_space = batch.iter().take_while(|page| page.id.space == space.id()).count();
            let mut pages: Vec<Reading<'_>> = batch.drain(..of_space).collect();
            let size = self.core.page_size().bytes();
            let room = buffer.get_or_insert_with(|| AlignedBuf::zeroed(BATCH_PAGES * size));
            let mut reading: Vec<&mut Reading<'_>> = pages.iter_mut().collect();
            let arrived = self.read_pages(space.file(), &mut reading, room);
            for (mut page, arrived) in pages.into_iter().zip(arrived) {
                if !arrived || !self.is_sound(&mut page) {
                    count(&self.core.counters.read_errors);
                    continue;
                }
                came += 1;
                read += u64::from(!page.was_in_tier);
                self.finish_read(page, None);
            }
        }
        self.core.counters.read_ahead.fetch_add(read, Ordering::Relaxed);
        came
    }
}
