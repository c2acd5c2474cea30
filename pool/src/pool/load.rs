//! Pages loaded: put into a frame, read from their file, verified; and taken out again.
//!
//! A page being loaded is exclusively latched from [`Pool::install`] on, so no thread sees it half
//! read; who fails to fill it, be it by a panic, takes it out again with [`Pool::abandon`].

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::background_task::catch_panic;
use crate::error::{Error, Result};
use crate::latch::PageWord;
use crate::page::{self, PageId};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::scan_throttle::ScanThrottle;
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
    /// Makes the absent page resident in `frame`, exclusively latched, not yet known to the
    /// replacement policy. False (and the frame is given back): it is not absent any more.
    pub(crate) fn install(
        &self,
        space: &Space,
        word: &PageWord,
        no: u32,
        frame: u32,
    ) -> Result<bool> {
        if let Err(error) = space.note_resident(no) {
            self.frames.give(frame);
            return Err(error);
        }
        let descriptor = self.frames.descriptor(frame);
        if !word.install(frame, descriptor.version()) {
            self.frames.give(frame);
            return Ok(false);
        }
        descriptor.set_page(Some(PageId::new(space.id(), no)));
        // Pairs with the fence in `close_space`.
        fence(Ordering::SeqCst);
        if space.is_closed() {
            self.abandon(word, frame);
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        Ok(true)
    }

    /// Undoes [`Pool::install`].
    pub(crate) fn abandon(&self, word: &PageWord, frame: u32) {
        let descriptor = self.frames.descriptor(frame);
        descriptor.set_page(None);
        descriptor.set_version(word.evict());
        self.frames.give(frame);
    }

    /// Takes the page out of `frame`; the caller has it exclusively latched, clean, and off the
    /// policy's lists, and has the frame in transit afterwards.
    pub(super) fn vacate(&self, word: &PageWord, frame: u32) {
        let descriptor = self.frames.descriptor(frame);
        descriptor.set_page(None);
        descriptor.set_version(word.evict());
        self.counters.pages_data.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reads an absent page from its file.
    #[cold]
    pub(super) fn load(
        &self,
        space: &Space,
        word: &PageWord,
        no: u32,
        hint: Access,
    ) -> Result<Load> {
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        if hint.is_for_scan() {
            self.let_queries_read(|pace, now| pace.rest_before_read(now));
            if word.load().frame().is_some() {
                return Ok(Load::Raced);
            }
        }
        let frame = self.take_frame()?;
        if !self.install(space, word, no, frame)? {
            return Ok(Load::Raced);
        }
        #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
        // SAFETY: the page is exclusively latched by `install`.
        let bytes = unsafe { self.frames.bytes_mut(frame) };
        let began = Instant::now();
        const READ: &str = "a read of a page";
        let mut is_in_tier = false;
        let read = || {
            if self.read_from_tier(space, no, bytes) {
                is_in_tier = true;
                return Ok(());
            }
            let read = self.read_file(space, no, bytes, hint);
            let read = read.and_then(|()| self.verify(space, no, bytes));
            if (read.is_err() || page::is_zero(bytes)) && self.read_mirrored(space, no, bytes) {
                return Ok(());
            }
            read
        };
        if let Err(error) = catch_panic(READ, read).unwrap_or(Err(Error::Panicked(READ))) {
            count(&self.counters.read_errors);
            self.forget_image(space, no);
            self.abandon(word, frame);
            return Err(error);
        }
        if !is_in_tier {
            let took = began.elapsed();
            match hint.is_for_scan() {
                true => self.scan_throttle.scan_read(took),
                false => self.scan_throttle.query_waited(took),
            }
            count(&self.counters.reads);
            count_time(&self.counters.reads_us, took);
            note_read(took);
        }
        count(&self.counters.pages_data);
        self.replacement.insert(frame, PageId::new(space.id(), no), hint);
        Ok(Load::Done(frame))
    }

    /// Reads a page from its file, and keeps the image if a query wants the page.
    fn read_file(&self, space: &Space, no: u32, bytes: &mut [u8], hint: Access) -> Result<()> {
        let (key, cpu) = (space.tier_key(no), self.tier.reads_cpu.begin());
        let read =
            space.read_with_image(no, bytes, |codec, image| match self.keeps_images_of(hint) {
                true => self.keep_image(key, codec, image, Origin::Read),
                false => self.note_image(image),
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
        if self.verify(space, no, &copy).is_err() {
            return false;
        }
        bytes.copy_from_slice(&copy);
        let (file, mirror) = (space.name(), mirror.file().name());
        tracing::error!(
            "{file}: page {no} is broken, and was read from its copy in {mirror}; check the disk"
        );
        // If that fails, the next read finds the copy again.
        if let Err(error) = self.write_home(space, no, &copy) {
            tracing::warn!(%error, "the page could not be written home");
        }
        true
    }

    /// Rests as a scan does that has worked for `work` until now, while queries wait for the disk:
    /// on behalf of a thread that reads files past the pool.
    pub fn let_queries_read_after(&self, work: Duration) {
        self.let_queries_read(|pace, now| pace.rest_after(work, now));
    }

    /// Rests as long as the [`ScanThrottle`] says, on behalf of a scan. Without threads no other
    /// could read meanwhile.
    pub(crate) fn let_queries_read(&self, rest: impl Fn(&ScanThrottle, Instant) -> Duration) {
        if !self.background.runs() || self.background.is_stopping() {
            return;
        }
        let rest = rest(&self.scan_throttle, Instant::now());
        if rest > Duration::ZERO {
            self.counters.scan_rests_us.fetch_add(rest.as_micros() as u64, Ordering::Relaxed);
            std::thread::sleep(rest);
        }
    }

    /// Checks a page as it came from its file.
    pub(crate) fn verify(&self, space: &Space, no: u32, bytes: &[u8]) -> Result<()> {
        let id = PageId::new(space.id(), no);
        let corrupt = |why| Error::Corrupt { file: space.name().to_owned(), page: id, why };
        page::verify(bytes, id).map_err(|defect| corrupt(defect.to_string()))?;
        (self.check_page)(bytes).map_err(|why| corrupt(why.to_owned()))?;
        let lsn = page::page_lsn(bytes);
        match self.write_ahead.read().as_ref().and_then(|log| log.end_lsn()) {
            Some(end) if lsn > end => Err(corrupt(format!(
                "it was written at LSN {lsn}, but the redo log ends at LSN {end}: the file is of a later time than the log, \
                 or the log was damaged"
            ))),
            _ => Ok(()),
        }
    }
}
