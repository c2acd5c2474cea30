//! Emptying segments: the images that are still in use are written into a new run, as they are.
//!
//! The runs of the segment name their images; the map says which are in use. Nodes of the map are
//! marked as dirty instead of moved: the next checkpoint writes them elsewhere.

use super::entry::{Entry, Identity, Object};
use super::error::Result;
use super::file::PackedFile;
use super::geometry::{BLOCK, UNIT, units_of};
use super::run::{RunHeader, Stream};
use super::segments::{Victim, is_filled};
use super::write::Image;
use crate::page::PageId;
use crate::storage::AlignedBuf;

/// What emptying a segment did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Bytes of images that were written again.
    pub moved_bytes: u64,
    /// Bytes of the segment that hold nothing now.
    pub freed_bytes: u64,
}

impl PackedFile {
    /// Empties a segment that [`PackedFile::victim`] chose. It can be filled again after the next
    /// checkpoint at the latest.
    ///
    /// Batches for this file wait while the images are written, about as long as for another batch.
    ///
    /// # Errors
    /// [`super::Error::Corrupt`] names an image in use that is spoilt. All others have been moved.
    pub fn clean(&self, victim: Victim) -> Result<Cleaned> {
        let mut bytes = AlignedBuf::zeroed(self.geometry.bytes_of(victim.segment) as usize);
        let start = self.geometry.offset_of(victim.segment);
        self.file.read_at(&mut bytes, start)?;
        let (stream, named) = self.named(&bytes);

        let mut writer = self.writer_for_change()?;
        if is_filled(&writer.chain.tails, victim.segment) {
            // It was emptied and is being filled again.
            return Ok(Cleaned::default());
        }
        writer.segments.note_cleaned(victim.segment);
        let is_here = |entry: &Entry| self.geometry.segment_at(entry.offset()) == victim.segment;
        let mut pages = Vec::new();
        let mut found = 0;
        for (object, entry) in named.into_iter().filter(|(_, entry)| is_here(entry)) {
            match object {
                Object::Page { space, no } if self.find(space, no)? == Some(entry) => {
                    found += entry.units();
                    pages.push((PageId::new(space, no), entry));
                }
                Object::Node { .. } => found += self.touch(object, entry)?,
                // Every checkpoint writes them.
                _ if writer.tables.contains(&(object, entry)) => found += entry.units(),
                _ => {}
            }
        }
        if found < writer.segments.live_units(victim.segment) {
            // A run's header is spoilt.
            pages = self.pages_in(&is_here)?;
        }

        let (mut images, mut spoilt) = (Vec::new(), None);
        for (PageId { space, no }, entry) in pages {
            let (object, codec) = (Object::Page { space, no }, entry.codec);
            let image = &bytes[(entry.offset() - start) as usize..][..entry.len as usize];
            let identity = Identity { file: self.number, object, run: entry.run };
            match identity.checksum(image) == entry.crc {
                true => images.push(Image { space, no, codec, bytes: image.to_vec() }),
                false => spoilt = Some(object),
            }
        }
        let moved: u64 = images.iter().map(|image| u64::from(units_of(image.bytes.len()))).sum();
        match images.is_empty() {
            // Nodes of the map are left: a checkpoint is to write them elsewhere.
            true => writer.since_checkpoint = writer.since_checkpoint.max(1),
            false => self.prepare_with(writer, stream.next(), &images)?.write()?,
        }
        match spoilt {
            None => {
                let (units, moved) = (u64::from(victim.units), moved * UNIT as u64);
                Ok(Cleaned { moved_bytes: moved, freed_bytes: units * UNIT as u64 })
            }
            Some(object) => Err(self.corrupt(object, "its image can't be moved: it is spoilt")),
        }
    }

    /// The stream that filled a segment, and the images that its runs name.
    fn named(&self, segment: &[u8]) -> (Stream, Vec<(Object, Entry)>) {
        let (mut stream, mut named, mut at) = (Stream::Flushed, Vec::new(), 0);
        while at < segment.len() {
            let Some((header, changes, _)) = RunHeader::decode(&segment[at..]) else { break };
            if header.file != self.number || header.blocks == 0 {
                break;
            }
            stream = header.stream;
            let images = changes.into_iter();
            named.extend(images.filter_map(|(object, entry)| Some((object, entry?))));
            at += header.blocks as usize * BLOCK;
        }
        (stream, named)
    }

    /// Has the next checkpoint write a node elsewhere, if this is its image: then how many units
    /// that is.
    fn touch(&self, object: Object, entry: Entry) -> Result<u32> {
        let is_its_image = self.with_nodes(|| self.map.write().touch(object, entry))?;
        Ok(if is_its_image { entry.units() } else { 0 })
    }

    /// The pages whose image is in a part of the file, by a look at the whole map.
    fn pages_in(&self, is_here: &dyn Fn(&Entry) -> bool) -> Result<Vec<(PageId, Entry)>> {
        let spaces: Vec<u32> = self.map.read().spaces().collect();
        let mut pages = Vec::new();
        for space in spaces {
            let mut from = Some(0);
            while let Some(at) = from
                && let Some((no, entry)) = self.next_image(space, at)?
            {
                if is_here(&entry) {
                    pages.push((PageId::new(space, no), entry));
                }
                from = no.checked_add(1);
            }
        }
        Ok(pages)
    }
}
