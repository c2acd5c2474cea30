//! Writing batches: runs are drafted, written, synced, and then the map leads to them.
//!
//! # A place that refuses writes
//! If the disk fails a write, its segment is filled no further, and chosen no more. The next
//! attempt begins with a checkpoint, as after every batch that failed. Its runs lie elsewhere: only
//! their root leads to them, so they can be in any idle segment. The root also says where the
//! streams go on, and names no segment that has refused a write. What the failed run has left on
//! the disk is where a start looks for the successor of the run before it, as after a crash; once
//! the root is durable, no start looks there.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::codec::Codec;
use super::entry::{Entry, Identity, Object, Seal};
use super::error::{Error, Result};
use super::file::{Chain, PackedFile, Writer};
use super::geometry::{BLOCK, UNIT, units_of};
use super::reserve::{Left, Purpose};
use super::root::Tail;
use super::run::{
    Change, ENTRIES_MAX, RunHeader, RunKind, STREAMS, Stream, has_magic, header_bytes, pack,
};
use super::write_all::{synced, written};
use crate::encryption::SEAL_BYTES;
use crate::storage::{AlignedBuf, IoOp, StorageFile, StorageOp};

/// Pages that [`PackedFile::forget_from`] frees with one sync.
const FREED_MAX: usize = 4096;

/// The image of a page, made by [`Codec::encode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The space.
    pub space: u32,
    /// The page's number.
    pub no: u32,
    /// How the page became the image.
    pub codec: Codec,
    /// Whether the bytes are encrypted already. If not, a file that has a key encrypts them.
    pub seal: Seal,
    /// The image; empty: the page is free from now on.
    pub bytes: Vec<u8>,
}

impl Image {
    /// The image of a page by a codec, not encrypted.
    pub fn plain((space, no): (u32, u32), codec: Codec, bytes: Vec<u8>) -> Image {
        Image { space, no, codec, seal: Seal::NONE, bytes }
    }

    /// What says that a page is free.
    pub fn of_free(space: u32, no: u32) -> Image {
        Image::plain((space, no), Codec::Raw, Vec::new())
    }

    /// The image that an entry leads to.
    pub(super) fn stored_at((space, no): (u32, u32), entry: &Entry, bytes: Vec<u8>) -> Image {
        let Entry { codec, seal, .. } = *entry;
        Image { space, no, codec, seal, bytes }
    }

    fn stored(&self) -> Stored<'_> {
        Stored { codec: self.codec, seal: self.seal, bytes: &self.bytes }
    }
}

/// The bytes of an image as the file holds them.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub codec: Codec,
    pub seal: Seal,
    pub bytes: &'a [u8],
}

/// A run that is being made.
struct Draft {
    segment: u32,
    offset: u64,
    header: RunHeader,
    changes: Vec<Change>,
    bytes: AlignedBuf,
}

/// Where an image goes: which draft, the unit within it, and the image's length.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    draft: usize,
    unit: u32,
    len: usize,
}

/// Drafts runs behind the end of a file's chain. The file may grow; the rest of the writer changes
/// in [`Appender::commit`].
pub(super) struct Appender<'a> {
    file: &'a PackedFile,
    pub chain: Chain,
    drafts: Vec<Draft>,
    leave: Left,
}

impl<'a> Appender<'a> {
    pub fn new(file: &'a PackedFile, writer: &Writer, leave: Left) -> Appender<'a> {
        Appender { file, chain: writer.chain.clone(), drafts: Vec::new(), leave }
    }

    /// Gives images of these lengths their places. [`Appender::fill`] puts each there, in order.
    pub fn place(
        &mut self,
        writer: &mut Writer,
        (kind, stream): (RunKind, Stream),
        lens: &[usize],
    ) -> Result<Vec<Spot>> {
        let mut spots = Vec::with_capacity(lens.len());
        while spots.len() < lens.len() {
            let rest = &lens[spots.len()..];
            let Some((units, blocks)) = fit(rest, self.room(stream)) else {
                self.advance(writer, (kind, stream))?;
                continue;
            };
            let draft = self.draft(writer, (kind, stream), blocks);
            let placed = units.into_iter().zip(rest);
            spots.extend(placed.map(|(unit, len)| Spot { draft, unit, len: *len }));
        }
        // The next checkpoint may have become longer although no segment was taken.
        self.make_room(writer, None, &self.chain.tails)?;
        Ok(spots)
    }

    /// Blocks that are left in the stream's segment.
    fn room(&self, stream: Stream) -> u32 {
        let tail = &self.chain.tails[stream.index()];
        tail.segment.map_or(0, |segment| self.file.geometry.blocks_of(segment) - tail.filled)
    }

    /// Goes on in the stream's next segment. A run of the map may take another one if that is not
    /// in the file and the disk is full: a root leads to it, and no chain has to.
    fn advance(&mut self, writer: &mut Writer, (kind, stream): (RunKind, Stream)) -> Result<()> {
        let own = self.segments();
        let mut tails = self.chain.tails;
        if kind == RunKind::Map && writer.segments.refuses(tails[stream.index()].next) {
            tails[stream.index()].next = writer.segments.choose(&tails, &own);
        }
        let tail = &mut tails[stream.index()];
        let segment = tail.next;
        (tail.segment, tail.filled, tail.next) = (Some(segment), 0, tail.after);
        if let Err(error) = self.make_room(writer, Some(segment), &tails) {
            let other = match kind {
                RunKind::Map if is_full(&error) => {
                    writer.segments.choose_any(&self.chain.tails, &own)
                }
                _ => None,
            };
            let tail = &mut tails[stream.index()];
            // It may be the one that was to come next.
            (tail.segment, tail.next, tail.after) = (Some(other.ok_or(error)?), u32::MAX, u32::MAX);
            tails[stream.index()].next = writer.segments.choose(&tails, &own);
        }
        tails[stream.index()].after = writer.segments.choose(&tails, &own);
        self.chain.tails = tails;
        Ok(())
    }

    /// Segments of this batch. They count as idle until it is published, and are no choice.
    fn segments(&self) -> Vec<u32> {
        self.drafts.iter().map(|draft| draft.segment).collect()
    }

    /// Lets the file grow until it has the segment, and beside it the room that others need.
    pub fn make_room(
        &self,
        writer: &mut Writer,
        segment: Option<u32>,
        tails: &[Tail; STREAMS],
    ) -> Result<()> {
        let geometry = self.file.geometry;
        let mut idle = writer.segments.room(tails, &self.segments());
        let ahead = writer.segments.room_ahead(tails);
        let mut count = writer.segments.count();
        let is_enough = |idle: u64| idle >= self.leave.idle && idle + ahead >= self.leave.all;
        while count <= geometry.segments_max()
            && (segment.is_some_and(|segment| segment >= count) || !is_enough(idle))
        {
            idle += if segment == Some(count) { 0 } else { geometry.sure_blocks_of(count) };
            count += 1;
        }
        self.file.grow(writer, count)
    }

    fn draft(&mut self, writer: &Writer, (kind, stream): (RunKind, Stream), blocks: u32) -> usize {
        let sequence = self.chain.sequence + 1;
        let tail = &mut self.chain.tails[stream.index()];
        let segment = tail.segment.expect("there is room in it");
        let offset = self.file.geometry.offset_of(segment) + u64::from(tail.filled) * BLOCK as u64;
        if tail.filled == 0 {
            writer.segments.check_choice(segment);
        }
        tail.filled += blocks;
        assert!(blocks > 0 && tail.filled <= self.file.geometry.blocks_of(segment));
        assert!(segment < writer.segments.count(), "the file has the segment");
        let header = RunHeader {
            kind,
            stream,
            file: self.file.number,
            epoch: self.file.settings.random as u32,
            sequence,
            previous: 0,
            synced: writer.chain.synced,
            blocks,
            next: tail.next,
            after: tail.after,
        };
        self.chain.sequence = sequence;
        let bytes = AlignedBuf::zeroed(blocks as usize * BLOCK);
        self.drafts.push(Draft { segment, offset, header, changes: Vec::new(), bytes });
        self.drafts.len() - 1
    }

    /// Puts an image in its place.
    pub fn fill(&mut self, spot: Spot, object: Object, image: Stored<'_>) -> Entry {
        let Stored { codec, seal, bytes: image } = image;
        assert_eq!(spot.len, image.len(), "the image has the length that was placed");
        let run = self.drafts[spot.draft].header.sequence as u32;
        let crc = Identity { file: self.file.number, object, run }.checksum(image);
        let entry = Entry { codec, seal, crc, ..self.place_of(spot) };
        let draft = &mut self.drafts[spot.draft];
        let at = spot.unit as usize * UNIT;
        assert!(at >= header_bytes(draft.changes.len() + 1), "an image lies behind the header");
        debug_assert!(
            draft.bytes[at..at + image.len()].iter().all(|byte| *byte == 0),
            "no other image lies there"
        );
        draft.bytes[at..at + image.len()].copy_from_slice(image);
        draft.changes.push((object, Some(entry)));
        entry
    }

    /// The entry of an image that is still to be filled, without its checksum.
    pub fn place_of(&self, spot: Spot) -> Entry {
        let draft = &self.drafts[spot.draft];
        let unit = draft.offset / UNIT as u64 + u64::from(spot.unit);
        let (len, run) = (spot.len as u32, draft.header.sequence as u32);
        Entry { unit, len, codec: Codec::Raw, seal: Seal::NONE, crc: 0, run }
    }

    /// What has been placed so far.
    pub fn mark(&self) -> (usize, Chain) {
        (self.drafts.len(), self.chain.clone())
    }

    /// Takes back what was placed since, and is not filled.
    pub fn back_to(&mut self, (drafts, chain): (usize, Chain)) {
        self.drafts.truncate(drafts);
        self.chain = chain;
    }

    /// Says that a page is free.
    pub fn free(&mut self, spot: Spot, object: Object) {
        self.drafts[spot.draft].changes.push((object, None));
    }

    /// Writes the headers. Every image is in its place.
    pub fn finish(&mut self) {
        for draft in &mut self.drafts {
            let blocks = draft.header.blocks as usize;
            assert_eq!(draft.bytes.len(), blocks * BLOCK, "a run has the length that it names");
            draft.header.previous = self.chain.checksum;
            self.chain.checksum = draft.header.encode(&draft.changes, &mut draft.bytes);
        }
    }

    /// Bytes of all runs.
    pub fn bytes(&self) -> u64 {
        self.drafts.iter().map(|draft| draft.bytes.len() as u64).sum()
    }

    /// The writes that make it so.
    pub fn ops(&self) -> impl Iterator<Item = IoOp<'_>> {
        let file = &*self.file.file;
        let written = &self.file.traffic.written;
        self.drafts.iter().map(move |draft| {
            assert!(has_magic(&draft.bytes), "a run has its header before it is written");
            assert!(draft.offset.is_multiple_of(BLOCK as u64), "a run begins with a block");
            written.fetch_add(draft.bytes.len() as u64, Ordering::Relaxed);
            IoOp::write(file, &draft.bytes, draft.offset)
        })
    }

    /// Writes and syncs the runs.
    pub fn write(&self, writer: &mut Writer) -> Result<()> {
        for mut op in self.ops() {
            let outcome = written(&*self.file.file, move || {
                op.run();
                op.result
            });
            outcome.inspect_err(|error| self.file.leave_refusing(writer, error))?;
        }
        self.file.sync(writer)
    }

    /// What the runs say, in order.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.drafts.iter().flat_map(|draft| &draft.changes)
    }

    /// In which segments the runs lie, and their numbers.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u64)> {
        self.drafts.iter().map(|draft| (draft.segment, draft.header.sequence))
    }

    /// The runs are durable: the next ones follow them.
    pub fn commit(self, writer: &mut Writer) {
        assert_eq!(
            writer.chain.sequence + self.drafts.len() as u64,
            self.chain.sequence,
            "each run has the number behind the one before"
        );
        writer.since_checkpoint += self.bytes();
        writer.chain = self.chain;
    }
}

/// The longest prefix of images that fits into `room` blocks with its header: where they go, and
/// how many blocks it takes.
fn fit(lens: &[usize], room: u32) -> Option<(Vec<u32>, u32)> {
    let mut units = 0;
    let fits = lens.iter().take(ENTRIES_MAX).take_while(|len| {
        units += units_of(**len);
        units as usize <= room as usize * BLOCK / UNIT
    });
    let mut count = fits.count();
    while count > 0 && room > 0 {
        let (units, blocks) = pack(&lens[..count]);
        if blocks <= room {
            debug_assert_eq!(units.len(), count, "each image has a place");
            return Some((units, blocks));
        }
        count -= (count / 16).max(1);
    }
    None
}

/// A batch for one file that has its place, and holds the file's writer until it is published or
/// dropped.
pub struct Prepared<'a> {
    file: &'a PackedFile,
    writer: MutexGuard<'a, Writer>,
    appender: Appender<'a>,
    stream: Stream,
}

impl PackedFile {
    /// Gives the images their places. No page is in it twice. The map's nodes that lead to the
    /// pages are read if need be.
    ///
    /// # Errors
    /// [`Error::Storage`] also if the disk is full; the file is as it was.
    pub fn prepare(&self, stream: Stream, images: &[Image]) -> Result<Prepared<'_>> {
        loop {
            // Without the writer: that takes a while.
            let key = self.encrypts_with();
            let sealed = self.sealed(images)?;
            let writer = self.writer_for_change()?;
            // Who has changed the key seals anew what is in the file, and must not miss these.
            if self.encrypts_with() == key {
                return self.prepare_with(writer, stream, &sealed);
            }
        }
    }

    /// The same for images as the file is to hold them.
    pub(super) fn prepare_with<'a>(
        &'a self,
        mut writer: MutexGuard<'a, Writer>,
        stream: Stream,
        images: &[Image],
    ) -> Result<Prepared<'a>> {
        if writer.must_checkpoint {
            self.write_map(&mut writer)?;
        }
        debug_assert!(has_each_once(images), "no page is twice in a batch");
        for image in images {
            let seal = if image.seal.is_sealed() { SEAL_BYTES } else { 0 };
            let page = self.settings.page_size.bytes();
            assert!(image.bytes.len() <= page + seal, "an image is no longer than a page");
            self.find(image.space, image.no)?;
        }
        let (mut appender, spots) = match self.place(&mut writer, stream, images) {
            Err(error) if is_full(&error) && may_find_room(&writer, stream) => {
                self.write_map(&mut writer)?;
                self.place(&mut writer, stream, images)?
            }
            placed => placed?,
        };
        for (spot, image) in spots.into_iter().zip(images) {
            let object = Object::Page { space: image.space, no: image.no };
            match image.bytes.is_empty() {
                true => appender.free(spot, object),
                false => _ = appender.fill(spot, object, image.stored()),
            }
        }
        appender.finish();
        // Unless the batch is published, its runs do not count.
        writer.must_checkpoint = true;
        Ok(Prepared { file: self, writer, appender, stream })
    }

    fn place<'a>(
        &'a self,
        writer: &mut Writer,
        stream: Stream,
        images: &[Image],
    ) -> Result<(Appender<'a>, Vec<Spot>)> {
        let pages = images.iter().map(|image| (image.space, image.no));
        let map = self.map.read().cost_with(pages);
        let room = match stream {
            // They take little, and give room back.
            Stream::Flushed if images.iter().all(|image| image.bytes.is_empty()) => Purpose::Frees,
            Stream::Flushed => Purpose::Pages,
            Stream::Moved | Stream::MovedAgain => Purpose::Cleaner,
        };
        let mut appender = Appender::new(self, writer, self.left_by(writer, room, map));
        let lens: Vec<usize> = images.iter().map(|image| image.bytes.len()).collect();
        let spots = appender.place(writer, (RunKind::Pages, stream), &lens)?;
        Ok((appender, spots))
    }

    /// Writes the images, and syncs them.
    pub fn write(&self, stream: Stream, images: &[Image]) -> Result<()> {
        self.prepare(stream, images)?.write()
    }

    /// Frees all pages of `space` from number `no` on. The caller excludes writes of such pages.
    ///
    /// # Errors
    /// Some of the pages may be free by then: it can be called again.
    pub fn forget_from(&self, space: u32, no: u32) -> Result<()> {
        let (mut from, mut most) = (Some(no), FREED_MAX);
        while let Some(at) = from {
            let (mut freed, mut next) = (Vec::new(), Some(at));
            while freed.len() < most
                && let Some(at) = next
                && let Some(no) = self.next_page(space, at)?
            {
                freed.push(Image::of_free(space, no));
                next = no.checked_add(1);
            }
            if freed.is_empty() {
                break;
            }
            match self.write(Stream::Flushed, &freed) {
                Ok(()) => from = next,
                // Fewer pages have fewer nodes, for which the next checkpoint needs room.
                Err(error) if is_full(&error) && freed.len() > 1 => most = freed.len() / 2,
                Err(error) => return Err(error),
            }
            if self.wants_checkpoint() {
                self.checkpoint()?;
            }
        }
        Ok(())
    }

    /// Has what is written next go elsewhere, if this is the error of a write that the disk may
    /// refuse there for ever.
    fn leave_refusing(&self, writer: &mut Writer, error: &Error) {
        let Error::Storage(error) = error else { return };
        if error.op != StorageOp::Write || error.is_no_space() || error.is_read_only() {
            return;
        }
        // A write that panicked names no offset.
        let Some(offset) = error.offset else { return };
        let segment = self.geometry.segment_at(offset);
        writer.segments.note_refusing(segment);
        let tails = writer.chain.tails.iter_mut();
        for tail in tails.filter(|tail| tail.segment == Some(segment)) {
            tail.filled = self.geometry.blocks_of(segment);
        }
        self.note_totals(writer);
    }

    /// Syncs the file. A failure is final.
    pub(super) fn sync(&self, writer: &mut Writer) -> Result<()> {
        synced(&*self.file).inspect_err(|error| writer.refuses = Some(error.clone()))
    }
}

impl<'a> Prepared<'a> {
    /// Writes and syncs the batch, and publishes it.
    pub(super) fn write(mut self) -> Result<()> {
        self.appender.write(&mut self.writer)?;
        self.publish();
        Ok(())
    }

    /// The writes of the batch, which are to end before the sync.
    pub(super) fn ops(&self) -> impl Iterator<Item = IoOp<'_>> {
        self.appender.ops()
    }

    /// The file.
    pub(super) fn io_file(&self) -> &'a dyn StorageFile {
        &*self.file.file
    }

    /// The batch has failed.
    pub(super) fn fail(mut self, error: &Error) {
        if error.is_failed_sync() {
            self.writer.refuses = Some(error.clone());
        }
        self.file.leave_refusing(&mut self.writer, error);
    }

    /// The images are durable: the map leads to them from now on.
    pub(super) fn publish(self) {
        let Prepared { file, mut writer, appender, stream } = self;
        let segments = &mut writer.segments;
        // Pinned first, so that no segment counts as idle meanwhile.
        appender.runs().for_each(|(segment, run)| segments.pin(segment, run));
        let mut counted = Ok(());
        let mut map = file.map.write();
        for (object, entry) in appender.changes() {
            let Object::Page { space, no } = *object else { unreachable!("a run of pages") };
            let old = map.set(space, no, *entry).expect("its nodes are in memory since `prepare`");
            debug_assert!(old.is_none() || old != *entry, "an image has a place of a later run");
            let removed = old.iter().try_for_each(|old| segments.remove(old));
            let added = entry.iter().try_for_each(|entry| segments.add(entry));
            counted = counted.and(removed).and(added);
        }
        drop(map);
        if stream == Stream::Flushed {
            let pages = appender.changes().filter(|(_, entry)| entry.is_some()).count() as u64;
            let mut totals = file.totals.lock();
            let blocks = pages * file.geometry.page_blocks();
            totals.promised = totals.promised.saturating_sub(blocks);
        }
        appender.commit(&mut writer);
        writer.chain.synced = writer.chain.sequence;
        writer.must_checkpoint = false;
        if let Err(why) = counted {
            // Were the count believed, a segment with images in use could be filled again.
            writer.refuses = Some(file.damaged(why));
        }
        file.note_totals(&writer);
    }
}

fn has_each_once(images: &[Image]) -> bool {
    let pages: HashSet<(u32, u32)> = images.iter().map(|image| (image.space, image.no)).collect();
    pages.len() == images.len()
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Storage(error) if error.is_no_space())
}

/// Whether a checkpoint may find room for a stream: runs since the last one keep segments from
/// being filled, or the stream means to go on behind the end of the file although one is idle.
fn may_find_room(writer: &Writer, stream: Stream) -> bool {
    let tail = &writer.chain.tails[stream.index()];
    let is_behind = tail.next >= writer.segments.count();
    writer.since_checkpoint > 0
        || is_behind && writer.segments.choose_any(&writer.chain.tails, &[]).is_some()
}
