//! Sealing anew: images that are not encrypted as the file encrypts now are written again.
//!
//! The map says of each image whether it is encrypted and with which version (modulo 15), so only
//! images that are to change are read. They are decrypted and encrypted past the pool: the page
//! stays as it is.

use super::entry::{Entry, IMAGE_MAX, Object, Seal};
use super::error::{Error, Result};
use super::file::PackedFile;
use super::geometry::BLOCK;
use super::run::Stream;
use super::write::{Image, Prepared};
use crate::encryption::PageKey;

/// Pages at most that one call looks at: 256 KiB of the map.
const LOOKED_AT_MAX: u32 = 1 << 14;

/// How far [`PackedFile::reseal`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resealing {
    /// Images are sealed anew if at least this number of newer versions of their key exists; 0:
    /// only where an image is encrypted and should not be, or the other way round.
    pub age: u32,
    /// Images at most that one call writes.
    pub images_max: usize,
}

/// What a call of [`PackedFile::reseal`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Images that were written again.
    pub images: u32,
    /// Images that are to change and could not be read: a key of theirs is missing, or they are
    /// spoilt.
    pub failed: u32,
    /// How many newer versions of its key the oldest encrypted image has that was looked at and not
    /// written again. `None`: no image was.
    pub oldest: Option<u32>,
    /// Where to go on; `None`: that was all.
    pub next: Option<u32>,
}

impl Resealing {
    /// Whether an image must be written again in a file that encrypts with this key.
    fn concerns(self, seal: Seal, key: Option<&PageKey>) -> bool {
        match key.map(|key| seal.age(key.version())) {
            None => seal.is_sealed(),
            Some(None) => true,
            Some(Some(age)) => self.age > 0 && age >= self.age,
        }
    }
}

impl PackedFile {
    /// Seals images of `space` anew from page `from` on. Batches for the file wait while it reads
    /// and writes.
    ///
    /// # Errors
    /// Of the disk, or of the map. What was written by then is durable.
    pub fn reseal(&self, space: u32, from: u32, resealing: Resealing) -> Result<Resealed> {
        let key = self.encrypts_with();
        let writer = self.writer_for_change()?;
        let (mut resealed, mut next) = (Resealed::default(), Some(from));
        let (mut images, mut looked_at) = (Vec::new(), 0);
        while let Some(at) = next
            && images.len() < resealing.images_max
            && looked_at < LOOKED_AT_MAX
        {
            let Some((no, entry)) = self.next_image(space, at)? else {
                next = None;
                break;
            };
            next = no.checked_add(1);
            looked_at += 1;
            if !resealing.concerns(entry.seal, key.as_deref()) {
                let age = key.as_ref().and_then(|key| entry.seal.age(key.version()));
                resealed.oldest = [resealed.oldest, age].into_iter().flatten().max();
            } else {
                match self.opened_image((space, no), entry) {
                    Ok(image) => images.push(image),
                    Err(Error::Storage(error)) => return Err(error.into()),
                    Err(_) => resealed.failed += 1,
                }
            }
        }
        resealed.next = next;
        resealed.images = images.len() as u32;
        if !images.is_empty() {
            let sealed = self.sealed(&images)?;
            let prepared = self.prepare_with(writer, Stream::Moved, &sealed);
            prepared.and_then(Prepared::write)?;
        }
        Ok(resealed)
    }

    /// An image as it was before it was encrypted. No other call gives the page another place: the
    /// caller holds the writer.
    fn opened_image(&self, (space, no): (u32, u32), entry: Entry) -> Result<Image> {
        let object = Object::Page { space, no };
        let codec = entry.codec;
        let opened = self.with_image(object, entry, |image| {
            self.with_opened((object, &entry), image, <[u8]>::to_vec)
        })?;
        let bytes = opened.unwrap_or_else(|| Err(self.corrupt(object, self.spoilt(&entry))))?;
        Ok(Image { space, no, codec, seal: Seal::NONE, bytes })
    }
}

const _: () = assert!(IMAGE_MAX + BLOCK < 1 << 17, "the length of an image has 17 bits");
