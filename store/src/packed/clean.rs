//! Emptying segments: the images that are still in use are written into a new run, as they are.
//!
//! The runs of the segment name their images; the map says which are in use. Nodes of the map are
//! marked as dirty instead of moved: the next checkpoint writes them elsewhere.
//!
//! # Bad sectors
//! The segment is read in one piece. If the disk refuses that, headers and images are read one by
//! one, so that a bad sector below dead images costs nothing. If a header can't be read or is
//! spoilt, the whole map says what is in use in the segment.
//!
//! What is in use and can't be read or is spoilt stays where it is, and the segment is *stuck*: it
//! is no victim any more until it holds nothing in use, or the file is opened again. So one such
//! image costs its segment, and no other.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use super::entry::{Entry, Identity, Object};
use super::error::{Error, Result};
use super::file::{PackedFile, Writer};
use super::geometry::{BLOCK, UNIT, units_of};
use super::map::first_page_behind;
use super::run::{Change, RunHeader, Stream};
use super::segments::is_filled;
use super::victims::Victim;
use super::write::{Image, Prepared};
use crate::page::PageId;
use crate::storage::AlignedBuf;

/// What emptying a segment did.
#[derive(Clone, Debug, Default)]
pub struct Cleaned {
    /// Bytes of images that were written again.
    pub moved_bytes: u64,
    /// Bytes of the segment that hold nothing now.
    pub freed_bytes: u64,
    /// An image in use that can't be read or is spoilt, or a part of the map that says where such
    /// images are. It stays, and the segment is no victim any more.
    pub stuck: Option<Error>,
}

/// What is in use in a segment.
#[derive(Default)]
struct InUse {
    pages: Vec<(PageId, Entry)>,
    /// Units of pages, nodes and tables.
    units: u32,
    /// A part of the map that can't be read.
    failed: Option<Error>,
}

impl PackedFile {
    /// Empties a segment that [`PackedFile::victim`] chose. It can be filled again after the next
    /// checkpoint at the latest. Does nothing if the segment is no victim any more.
    ///
    /// Batches for this file wait while the segment is read and the images are written, about as
    /// long as for another batch.
    ///
    /// # Errors
    /// The images could not be written: nothing has changed. That one could not be read is no
    /// error: see [`Cleaned::stuck`].
    pub fn clean(&self, victim: Victim) -> Result<Cleaned> {
        let mut writer = self.writer_for_change()?;
        let Victim { segment, .. } = victim;
        let segments = &mut writer.segments;
        if segment >= segments.count()
            || segments.is_pinned(segment)
            || segments.live_units(segment) == 0
            || is_filled(&writer.chain.tails, segment)
        {
            return Ok(Cleaned::default());
        }
        let bytes = self.segment(segment);
        let start = self.geometry.offset_of(segment);
        let (stream, named) = match &bytes {
            Some(bytes) => self.named(bytes),
            None => self.named_in(segment),
        };
        let is_here = |entry: &Entry| self.geometry.segment_of(entry) == Some(segment);
        let mut in_use = self.in_use(&writer, named.into_iter().filter(|(_, at)| is_here(at)));
        if in_use.units < writer.segments.live_units(segment) {
            // A run's header or a part of the map can't be read.
            in_use = self.in_use_by_map(&writer, &is_here);
        }
        // If all is found that is in use, what can't be read leads elsewhere.
        let is_all = in_use.units >= writer.segments.live_units(segment);
        let mut stuck = in_use.failed.filter(|_| !is_all);

        let mut images = Vec::new();
        for (PageId { space, no }, entry) in in_use.pages {
            let object = Object::Page { space, no };
            let image = match &bytes {
                Some(bytes) => {
                    let image = &bytes[(entry.offset() - start) as usize..][..entry.len as usize];
                    let identity = Identity { file: self.number, object, run: entry.run };
                    Ok((identity.checksum(image) == entry.crc).then(|| image.to_vec()))
                }
                None => self.with_image(object, entry, <[u8]>::to_vec),
            };
            match image {
                Ok(Some(bytes)) => images.push(Image::stored_at((space, no), &entry, bytes)),
                Ok(None) => stuck = Some(self.corrupt(object, unmovable(self.spoilt(&entry)))),
                Err(Error::Storage(error)) => {
                    stuck = Some(self.corrupt(object, unmovable(error.what())));
                }
                Err(error) => stuck = Some(error),
            }
        }
        let moved: u64 = images.iter().map(|image| u64::from(units_of(image.bytes.len()))).sum();
        writer.segments.note_cleaned(segment);
        let is_news = stuck.is_some() && writer.segments.note_stuck(segment);
        if images.is_empty() {
            // Nodes of the map are left: a checkpoint is to write them elsewhere.
            writer.since_checkpoint = writer.since_checkpoint.max(1);
            self.note_totals(&writer);
        } else {
            // Moved as they are: `reseal` encrypts them anew.
            let prepared = self.prepare_with(writer, stream.next(), &images);
            if let Err(error) = prepared.and_then(Prepared::write) {
                self.writer.lock().segments.forget_cleaned(segment);
                return Err(error);
            }
        }
        if let Some(error) = stuck.as_ref().filter(|_| is_news) {
            let bytes = self.geometry.bytes_of(segment);
            tracing::error!(%error, "{bytes} bytes of a data file can't be used again");
        }
        let freed_bytes = if stuck.is_none() { self.geometry.bytes_of(segment) } else { 0 };
        Ok(Cleaned { moved_bytes: moved * UNIT as u64, freed_bytes, stuck })
    }

    /// The bytes of a segment; `None` if the disk refuses some of them.
    fn segment(&self, segment: u32) -> Option<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(self.geometry.bytes_of(segment) as usize);
        self.traffic.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.read_at(&mut bytes, self.geometry.offset_of(segment)).ok().map(|()| bytes)
    }

    /// Moves what the last segment in use holds to idle segments before it, and cuts the file
    /// after what is left. Returns whether that made the file shorter. If not, a segment that is
    /// being filled is the last, or there is no room before it.
    ///
    /// # Errors
    /// As [`PackedFile::clean`] and [`PackedFile::checkpoint`]. What was moved by then is durable.
    pub fn shorten(&self) -> Result<bool> {
        let before = self.usage().file_bytes;
        // Streams go on in the first idle segments from here on.
        self.checkpoint()?;
        let last = {
            let writer = self.writer_for_change()?;
            writer.segments.last_victim(&writer.chain.tails)
        };
        if let Some(last) = last {
            self.clean(last)?;
            self.checkpoint()?;
        }
        Ok(self.usage().file_bytes < before)
    }

    /// Which of the images that runs name are in use. Nodes among them are written elsewhere by the
    /// next checkpoint.
    fn in_use(&self, writer: &Writer, named: impl Iterator<Item = (Object, Entry)>) -> InUse {
        let mut in_use = InUse::default();
        for (object, entry) in named {
            let is_in_use = match object {
                Object::Page { space, no } => {
                    self.find(space, no).map(|found| found == Some(entry))
                }
                Object::Node { .. } => self.with_nodes(|| self.map.write().touch(object, entry)),
                // Every checkpoint writes them.
                _ => Ok(writer.tables.contains(&(object, entry))),
            };
            match is_in_use {
                Ok(true) => {
                    in_use.units += entry.units();
                    if let Object::Page { space, no } = object {
                        in_use.pages.push((PageId::new(space, no), entry));
                    }
                }
                Ok(false) => {}
                Err(error) => in_use.failed = Some(error),
            }
        }
        in_use
    }

    /// The same of all images in a part of the file, by a look at the whole map. Parts of the map
    /// that can't be read are passed over.
    fn in_use_by_map(&self, writer: &Writer, is_here: &dyn Fn(&Entry) -> bool) -> InUse {
        let mut failed = None;
        let pages = self.pages_in(is_here, &mut failed);
        let pages = pages
            .into_iter()
            .map(|(PageId { space, no }, entry)| (Object::Page { space, no }, entry));
        let nodes = self.map.read().nodes_at(is_here);
        let tables = writer.tables.iter().copied().filter(|(_, entry)| is_here(entry));
        let mut in_use = self.in_use(writer, pages.chain(nodes).chain(tables));
        in_use.failed = in_use.failed.or(failed);
        in_use
    }

    /// The stream that filled a segment, and the images that its runs name. Behind them may lie
    /// runs of when the segment was filled before.
    pub(super) fn named(&self, segment: &[u8]) -> (Stream, Vec<(Object, Entry)>) {
        self.named_by(segment.len(), |at| RunHeader::decode(&segment[at..]))
    }

    /// The same, header by header. It ends before one that can't be read.
    fn named_in(&self, segment: u32) -> (Stream, Vec<(Object, Entry)>) {
        let start = self.geometry.offset_of(segment);
        self.named_by(self.geometry.bytes_of(segment) as usize, |at| {
            self.header_at(segment, start + at as u64).ok().flatten()
        })
    }

    fn named_by(
        &self,
        len: usize,
        header_at: impl Fn(usize) -> Option<(RunHeader, Vec<Change>, u32)>,
    ) -> (Stream, Vec<(Object, Entry)>) {
        let (mut first, mut named, mut at) = (None, Vec::new(), 0);
        let mut newest = 0;
        while at < len {
            let Some((header, changes, _)) = header_at(at) else { break };
            let is_next = header.file == self.number && header.sequence > newest;
            if !is_next || header.blocks == 0 {
                break;
            }
            newest = header.sequence;
            first.get_or_insert(header.stream);
            let images = changes.into_iter();
            named.extend(images.filter_map(|(object, entry)| Some((object, entry?))));
            at += header.blocks as usize * BLOCK;
        }
        (first.unwrap_or(Stream::Flushed), named)
    }

    /// The pages whose image is in a part of the file.
    fn pages_in(
        &self,
        is_here: &dyn Fn(&Entry) -> bool,
        failed: &mut Option<Error>,
    ) -> Vec<(PageId, Entry)> {
        let mut pages = Vec::new();
        for space in self.spaces() {
            let mut from = Some(0);
            while let Some(at) = from {
                from = match self.with_nodes_named(|| self.map.read().next_page(space, at)) {
                    Ok(None) => None,
                    Ok(Some((no, entry))) => {
                        if is_here(&entry) {
                            pages.push((PageId::new(space, no), entry));
                        }
                        no.checked_add(1)
                    }
                    Err(unread) => {
                        let (object, error) = *unread;
                        *failed = Some(error);
                        match object {
                            Object::Node { level, index, .. } => first_page_behind(level, index),
                            _ => unreachable!("only nodes are absent"),
                        }
                    }
                };
            }
        }
        pages
    }
}

fn unmovable(why: impl Display) -> String {
    format!("its image can't be moved: {why}")
}
