//! Absent pages that are loaded: put into a frame, read from the compressed tier, their file or its
//! mirror, and verified.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::background_task::catch_panic;
use crate::error::{Error, Result};
use crate::latch::PageWord;
use crate::page::{self, PageId};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::{count, count_time, note_read};
use crate::tier::Origin;

/// Outcome of [`Pool::load`].
pub(super) enum Load {
    /// This thread loaded the page into the frame, and has it latched exclusively.
    Done(u32),
    /// Another thread was first.
    Raced,
}

impl Pool {
    /// Reads an absent page from its file.
    #[cold]
    pub(super) fn load(
        &self,
        space: &Space,
        word: &PageWord,
        no: u32,
        hint: Access,
    ) -> Result<Load> {
        if self.core.is_shut_down.load(Ordering::Acquire) {
            return Err(Error::ShutDown);
        }
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        if hint.is_for_scan() {
            self.core.let_queries_read(|pace, now| pace.rest_before_read(now));
            if word.load().frame().is_some() {
                return Ok(Load::Raced);
            }
        }
        let frame = self.evictor.take_frame()?;
        let Some(mut loading) = self.core.install(space, word, no, frame)? else {
            return Ok(Load::Raced);
        };
        #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
        // SAFETY: the page is exclusively latched by `install`.
        let bytes = unsafe { self.core.frames.bytes_mut(frame) };
        let began = Instant::now();
        const READ: &str = "a read of a page";
        let mut is_in_tier = false;
        let read = || {
            if self.tier.read(space, no, bytes) {
                is_in_tier = true;
                return Ok(());
            }
            let read = self.read_file(space, no, bytes, hint);
            let read = read.and_then(|()| self.core.verify(space, no, bytes));
            if (read.is_err() || page::is_zero(bytes)) && self.read_mirrored(space, no, bytes) {
                return Ok(());
            }
            read
        };
        if let Err(error) = catch_panic(READ, read).unwrap_or(Err(Error::Panicked(READ))) {
            count(&self.core.counters.read_errors);
            self.tier.forget(space, no);
            return Err(error);
        }
        if !is_in_tier {
            let took = began.elapsed();
            match hint.is_for_scan() {
                true => self.core.scan_throttle.scan_read(took),
                false => self.core.scan_throttle.query_waited(took),
            }
            count(&self.core.counters.reads);
            count_time(&self.core.counters.reads_us, took);
            note_read(took);
        }
        let id = PageId::new(space.id(), no);
        self.core.assert_readable(frame, id, bytes);
        loading.admit(id, hint);
        loading.finish();
        Ok(Load::Done(frame))
    }

    /// Reads a page from its file, and keeps the image if a query wants the page.
    fn read_file(&self, space: &Space, no: u32, bytes: &mut [u8], hint: Access) -> Result<()> {
        let (key, cpu) = (space.tier_key(no), self.tier.reads_cpu.begin());
        let read = space.read_with_image(no, bytes, |codec, image| {
            match self.tier.keeps_images_of(hint) {
                true => self.tier.keep(key, codec, image, Origin::Read),
                false => self.tier.note_image(image),
            }
        });
        self.tier.reads_cpu.end(cpu);
        read
    }

    /// Reads a page that its own file does not give from the space's mirror, and writes it home
    /// again.
    #[cold]
    fn read_mirrored(&self, space: &Space, no: u32, bytes: &mut [u8]) -> bool {
        let id = PageId::new(space.id(), no);
        let copy = space.mirror().and_then(|mirror| Some((mirror, mirror.read_aligned(id)?)));
        let Some((mirror, copy)) = copy else { return false };
        if self.core.verify(space, no, &copy).is_err() {
            return false;
        }
        bytes.copy_from_slice(&copy);
        let (file, mirror) = (space.name(), mirror.file().name());
        tracing::error!(
            "{file}: page {no} is broken, and was read from its copy in {mirror}; check the disk"
        );
        // If that fails, the next read finds the copy again.
        if let Err(error) = self.flusher.write_home(space, no, &copy) {
            tracing::warn!(%error, "the page could not be written home");
        }
        true
    }

    /// Rests as a scan does that has worked for `work` until now, while queries wait for the disk:
    /// on behalf of a thread that reads files past the pool.
    pub fn let_queries_read_after(&self, work: Duration) {
        self.core.let_queries_read(|pace, now| pace.rest_after(work, now));
    }
}
