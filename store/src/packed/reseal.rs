//! Sealing anew: images that are not encrypted as the file encrypts now are written again.
//!
//! The map says of each image whether it is encrypted and with which version (modulo 15), so only
//! images that are to change are read, unless images may be 15 versions apart. They are decrypted
//! and encrypted past the pool: the page stays as it is.

use super::MAP_PAGES;
use super::entry::{Entry, IMAGE_MAX, Object, Seal};
use super::error::{Error, Result};
use super::file::PackedFile;
use super::geometry::BLOCK;
use super::map::first_page_behind;
use super::run::Stream;
use super::write::{Image, Prepared};
use crate::encryption::{PageKey, key_of};

/// Pages at most that one call looks at: 256 KiB of the map.
const LOOKED_AT_MAX: u32 = 1 << 14;

/// How far [`PackedFile::reseal`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resealing {
    /// Images are sealed anew if at least this number of newer versions of their key exists; 0:
    /// only where an image is encrypted and should not be, or the other way round.
    pub age: u32,
    /// Whether every encrypted image that stays is read, since it names its key and the version.
    /// The map has the version modulo 15 alone: that is the right one only if no image is 15 or
    /// more versions behind, and all are encrypted with the key that the file has now.
    pub exact: bool,
    /// Images at most that one call reads.
    pub images_max: usize,
}

/// What a call of [`PackedFile::reseal`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Images that were written again.
    pub images: u32,
    /// Images that were read, and stay.
    pub read: u32,
    /// Pages that were passed over: a key of theirs is missing, they are spoilt, or the disk does
    /// not give them. The pages of a spoilt node of the map count as one.
    pub failed: u32,
    /// What was wrong with the first of them.
    pub failure: Option<String>,
    /// How many newer versions of its key the oldest encrypted image has that was looked at and not
    /// written again. `None`: no image was.
    pub oldest: Option<u32>,
    /// Where to go on; `None`: that was all.
    pub next: Option<u32>,
}

impl Resealed {
    fn pass_over(&mut self, error: Error) {
        self.failed += 1;
        self.failure.get_or_insert_with(|| error.to_string());
    }
}

/// How an image is encrypted, seen from how it should be.
enum State {
    /// It must be written again.
    Wrong,
    /// It is encrypted, and this number of newer versions of the key exists.
    Behind(u32),
    /// It is not encrypted, and should not be.
    Plain,
}

impl PackedFile {
    /// Seals images of `space` anew from page `from` on. Passes over what can't be read. Batches
    /// for the file wait while it reads and writes.
    ///
    /// # Errors
    /// If the images can't be written. What was written by then is durable.
    pub fn reseal(&self, space: u32, from: u32, resealing: Resealing) -> Result<Resealed> {
        let key = self.encrypts_with();
        let writer = self.writer_for_change()?;
        let mut resealed = Resealed { next: Some(from), ..Resealed::default() };
        let (mut images, mut looked_at) = (Vec::new(), 0);
        while let Some(at) = resealed.next
            && images.len() + ((resealed.read + resealed.failed) as usize) < resealing.images_max
            && looked_at < LOOKED_AT_MAX
        {
            looked_at += 1;
            let (no, entry) = match self.next_image(space, at) {
                Ok(Some(found)) => found,
                Ok(None) => {
                    resealed.next = None;
                    break;
                }
                Err(error) => {
                    resealed.next = behind_node(&error, at);
                    resealed.pass_over(error);
                    continue;
                }
            };
            resealed.next = no.checked_add(1);
            let state = self.state_of((space, no), entry, key.as_deref(), resealing);
            let taken = state.and_then(|state| match state {
                State::Wrong => self.opened_image((space, no), entry).map(|image| {
                    images.push(image);
                }),
                State::Behind(age) => {
                    resealed.read += u32::from(resealing.exact);
                    resealed.oldest = resealed.oldest.max(Some(age));
                    Ok(())
                }
                State::Plain => Ok(()),
            });
            if let Err(error) = taken {
                resealed.pass_over(error);
            }
        }
        resealed.images = images.len() as u32;
        if !images.is_empty() {
            let sealed = self.sealed(&images)?;
            let prepared = self.prepare_with(writer, Stream::Moved, &sealed);
            prepared.and_then(Prepared::write)?;
        }
        Ok(resealed)
    }

    fn state_of(
        &self,
        (space, no): (u32, u32),
        entry: Entry,
        key: Option<&PageKey>,
        resealing: Resealing,
    ) -> Result<State> {
        let is_old = |age: u32| resealing.age > 0 && age >= resealing.age;
        let Some(key) = key else {
            return Ok(if entry.seal.is_sealed() { State::Wrong } else { State::Plain });
        };
        let age = match entry.seal.age(key.version()) {
            // What the map says is the least that it can be.
            Some(age) if is_old(age) => return Ok(State::Wrong),
            Some(age) if !resealing.exact => age,
            Some(_) => {
                let object = Object::Page { space, no };
                let named = self.with_image(object, entry, key_of)?;
                let named = named.ok_or_else(|| self.corrupt(object, self.spoilt(&entry)))?;
                match named {
                    Some((id, version)) if id == key.id() => key.version().saturating_sub(version),
                    _ => return Ok(State::Wrong),
                }
            }
            None => return Ok(State::Wrong),
        };
        Ok(if is_old(age) { State::Wrong } else { State::Behind(age) })
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

/// The first page behind those of the node of the map that can't be read, or of the node that has
/// page `at`.
fn behind_node(error: &Error, at: u32) -> Option<u32> {
    let (level, index) = match error {
        Error::Corrupt { object: Object::Node { level, index, .. }, .. } => (*level, *index),
        _ => (0, at / MAP_PAGES),
    };
    first_page_behind(level, index).filter(|behind| *behind > at)
}

const _: () = assert!(IMAGE_MAX + BLOCK < 1 << 17, "the length of an image has 17 bits");
