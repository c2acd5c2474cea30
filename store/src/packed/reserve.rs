//! Room for what is still to be written.
//!
//! Idle segments are kept for three purposes, and each leaves room for those that come first:
//! 1. a checkpoint, which gives room back, takes what it finds;
//! 2. runs that only free pages leave room for the next checkpoint, the cleaner leaves it also for
//!    the pages that [`PackedFile::reserve`] was asked for;
//! 3. pages leave room for the next checkpoint and for the cleaner.
//!
//! So on a full disk a batch fails, and a checkpoint and the cleaner still make room for it.
//!
//! Room is counted in blocks that a segment holds for sure: see
//! [`Geometry::sure_blocks_of`](super::geometry::Geometry::sure_blocks_of). Pages, frees and
//! checkpoints also find it at the end of the segment that their stream fills.

use super::entry::ENTRY_BYTES;
use super::error::{Remedy, Result};
use super::file::{PackedFile, Writer};
use super::geometry::{BLOCK, UNIT};
use super::map::Cost;
use super::segments::Segments;
use super::write::Appender;

/// Header of a checkpoint's run, and blocks that are filled in part.
const SPARE_BLOCKS: u64 = 2;
/// An object and an entry in the header of a run, or in a table.
const ROW_BYTES: u64 = 12 + ENTRY_BYTES as u64;

/// Blocks of room that a batch leaves to others.
#[derive(Clone, Copy, Default)]
pub(super) struct Left {
    /// In idle segments.
    pub idle: u64,
    /// In those, and in the segment that the first stream fills.
    pub all: u64,
}

/// What room is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Runs with images of pages.
    Pages,
    /// Runs that only free pages.
    Frees,
    /// Images that the cleaner moves.
    Cleaner,
}

impl PackedFile {
    /// Makes sure that the file has room for batches with `pages` pages that do not shrink: the
    /// file grows if need be, and its space on the disk is allocated. The number takes the place of
    /// that of the last call. Pages that are flushed (written to the first stream) count down from
    /// it. A checkpoint cuts the file no shorter than what is left of it; so the surplus goes with
    /// the next checkpoint after the pages were written, or after `reserve(0)`.
    ///
    /// Cheap if there is room already: then it waits for no batch. Else the calling thread must not
    /// hold one. A checkpoint and the cleaner have room apart from this.
    ///
    /// # Errors
    /// The disk is full: the file and what was reserved are as before.
    pub fn reserve(&self, pages: u32) -> Result<()> {
        let blocks = u64::from(pages) * self.geometry.page_blocks();
        {
            let mut totals = self.totals.lock();
            if totals.page_room >= blocks {
                totals.promised = blocks;
                return Ok(());
            }
        }
        let mut writer = self.writer_for_change()?;
        let mut left = self.left_by(&writer, Purpose::Pages, self.map.read().cost());
        left.all += blocks;
        let appender = Appender::new(self, &writer, left);
        appender.make_room(&mut writer, None, &appender.chain.tails)?;
        self.totals.lock().promised = blocks;
        self.note_totals(&writer);
        Ok(())
    }

    /// Lets the file grow to `count` segments.
    ///
    /// # Errors
    /// The disk is full, or the file would be longer than any can be.
    pub(super) fn grow(&self, writer: &mut Writer, count: u32) -> Result<()> {
        if count <= writer.segments.count() {
            return Ok(());
        }
        if count > self.geometry.segments_max() {
            return Err(self.refused("it can't grow beyond 64 TiB", Remedy::DivideTable));
        }
        self.file.set_len(self.geometry.offset_of(count))?;
        writer.segments.grow(count);
        assert_eq!(writer.segments.count(), count, "the table has the file's segments");
        Ok(())
    }

    /// Blocks that a batch leaves, if `map` is what a checkpoint has to write after it.
    pub(super) fn left_by(&self, writer: &Writer, purpose: Purpose, map: Cost) -> Left {
        let (checkpoint, cleaner) =
            (self.checkpoint_blocks(writer, map), self.cleaner_blocks(writer));
        match purpose {
            Purpose::Pages => Left { idle: cleaner, all: checkpoint + cleaner },
            Purpose::Frees => Left { idle: 0, all: checkpoint },
            Purpose::Cleaner => Left { idle: 0, all: checkpoint + self.totals.lock().promised },
        }
    }

    /// Blocks of room that pages have.
    pub(super) fn page_room(&self, writer: &Writer) -> u64 {
        let (segments, tails) = (&writer.segments, &writer.chain.tails);
        let left = self.left_by(writer, Purpose::Pages, self.map.read().cost());
        let idle = segments.room(tails, &[]);
        match idle >= left.idle {
            true => (idle + segments.room_ahead(tails)).saturating_sub(left.all),
            false => 0,
        }
    }

    /// Blocks that the next checkpoint takes at most.
    pub(super) fn spare_blocks(&self, writer: &Writer) -> u64 {
        self.checkpoint_blocks(writer, self.map.read().cost())
    }

    /// Blocks that a checkpoint takes at most, if `map` is what it has to write of the map.
    pub(super) fn checkpoint_blocks(&self, writer: &Writer, map: Cost) -> u64 {
        let (mut images, mut bytes) = (map.images, map.bytes);
        // The table may get a part more while the file grows.
        for len in Segments::part_lens(writer.segments.count() + 1) {
            (images, bytes) = (images + 1, bytes + (len + UNIT) as u64);
        }
        // Each image has a row in the header of its run, and one in the top or the list below it.
        (bytes + 2 * images * ROW_BYTES).div_ceil(BLOCK as u64) + SPARE_BLOCKS
    }

    /// Blocks that emptying a segment takes: a segment of the same size has room for what is in use
    /// in one.
    pub(super) fn cleaner_blocks(&self, writer: &Writer) -> u64 {
        self.geometry.sure_blocks_of(writer.segments.count().saturating_sub(1))
    }
}
