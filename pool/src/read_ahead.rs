//! Read-ahead: pages asked for before they are wanted, read in batches.
//!
//! A request is a hint. It is dropped when the queue is full, when no frame can be had without
//! waiting, when the page came in meanwhile, and when reading it fails (whoever really wants the
//! page will read it again and get the error). Pages being read are exclusively latched, so a query
//! that comes too early waits for the batch rather than reading twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::latch::PageWord;
use crate::page::PageId;
use crate::pool::Pool;
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::count;
use crate::storage::IoOp;

/// Requests kept; older ones win, being wanted sooner.
const QUEUE_MAX: usize = 4096;

/// Pages read at once.
const BATCH_PAGES: usize = 64;

/// A page to be read, and [`Access::Prefetch`] or [`Access::PrefetchForScan`].
pub(crate) type Wanted = (PageId, Access);

#[derive(Default)]
pub(crate) struct ReadAhead {
    queue: Mutex<VecDeque<Wanted>>,
}

impl ReadAhead {
    pub(crate) fn request(&self, pages: &[Wanted]) {
        let mut queue = self.queue.lock();
        let room = QUEUE_MAX.saturating_sub(queue.len());
        queue.extend(pages.iter().take(room));
    }

    fn take(&self) -> Vec<Wanted> {
        let mut queue = self.queue.lock();
        let count = queue.len().min(BATCH_PAGES);
        queue.drain(..count).collect()
    }
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
        loop {
            let wanted = self.read_ahead.take();
            if wanted.is_empty() {
                return read;
            }
            read += self.read_batch(&wanted);
        }
    }

    fn read_batch(&self, wanted: &[Wanted]) -> usize {
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
        let mut ops: Vec<IoOp<'_>> = batch
            .iter()
            .map(|page| {
                #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
                // SAFETY: `install` latched the page exclusively, and each frame is there once.
                let bytes = unsafe { self.frames().bytes_mut(page.frame) };
                IoOp::read(&**page.space.file(), bytes, self.page_size().offset_of(page.id.no))
            })
            .collect();
        self.storage.run_batch(&mut ops);
        let results: Vec<bool> = ops.into_iter().map(|op| op.result.is_ok()).collect();
        let mut read = 0;
        for (page, arrived) in batch.iter().zip(results) {
            #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
            // SAFETY: still exclusively latched, and the operation that wrote it is gone.
            let bytes = unsafe { self.frames().bytes(page.frame) };
            if !arrived || self.verify(&page.space, page.id.no, bytes).is_err() {
                count(&self.counters.read_errors);
                self.abandon(page.word(), page.frame);
                continue;
            }
            self.replacement().insert(page.frame, page.id, page.access);
            count(&self.counters.pages_data);
            page.word().unlock_exclusive(true);
            read += 1;
        }
        self.counters.read_ahead.fetch_add(read as u64, Ordering::Relaxed);
        read
    }
}
