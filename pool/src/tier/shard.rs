//! A shard of the tier: some of its frames, and the index of the images in them.
//!
//! # Which image goes
//! A clock's hand passes over the frames. An image that it finds [`REFERENCED`] loses the mark and
//! stays; one that has none goes, and so does one whose page is [`RESIDENT`]: such a page is hot
//! enough to have kept its frame for a whole round. So an image stays for one to two rounds after
//! its page was last wanted, or left its frame.
//!
//! # Where an image goes
//! Into the fullest of a few *open* frames in which it fits. If it fits in none, what fits goes
//! into the one that has most room, and the rest, the *tail*, into another. Frames are taken from
//! the pool as long as the shard may have more; then the hand makes room.
//!
//! # Invariants
//! - The frames of the list are in transit, and the shard's: nothing but the shard touches their
//!   bytes, under its mutex. Each is a slab that has its own position in the list, and its
//!   descriptor names the shard.
//! - Each image of each slab is in the index, and nothing else is.

#![expect(unsafe_code, reason = "the bytes of the shard's frames")]

use std::sync::atomic::{Ordering, fence};

use hashbrown::HashTable;
use tidepool_store::packed::Codec;

#[cfg(test)]
use super::slab::entries_end as slab_end;
use super::slab::{Key, NO_TAIL, Part, REFERENCED, RESIDENT, Slab, TAIL};
use crate::frames::Frames;
use crate::replacement::hash;

/// Frames that are looked at for room, at most.
const OPEN_MAX: usize = 32;
/// A frame with less room than a page's bytes by this number is full.
const PARTS_MAX: usize = 16;

/// In the index: which frame has the page's image, or the first part of it.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Half of the key's hash. The slab says whether it is the page.
    fingerprint: u32,
    frame: u32,
}

impl Placed {
    /// The hash that the index goes by.
    fn hash(&self) -> u64 {
        spread(self.fingerprint)
    }
}

/// A frame that has room.
struct Open {
    frame: u32,
    room: usize,
}

/// What a shard holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings {
    pub(super) frames: u64,
    pub(super) images: u64,
    /// Bytes of the images.
    pub(super) image_bytes: u64,
    /// Memory of the index and the lists.
    pub(super) index_bytes: u64,
}

pub(super) struct Shard {
    number: u32,
    index: HashTable<Placed>,
    frames: Vec<u32>,
    hand: usize,
    open: Vec<Open>,
    /// What a frame has when the hand comes by.
    swept: Vec<(Key, u8)>,
    image_bytes: u64,
    /// Images that the hand removed.
    pub(super) dropped: u64,
    /// Images that it passed, and how many of these had a resident page.
    pub(super) passed: u64,
    pub(super) passed_resident: u64,
}

/// The slab in a frame of a shard.
///
/// # Safety
/// The frame is in the list of a shard that the caller has borrowed mutably, or is in transit and
/// the caller's; and no other reference to its bytes is in use for all of `'a`.
unsafe fn slab<'a>(frames: &Frames, frame: u32) -> Slab<'a> {
    // SAFETY: the frame is in transit and only the caller touches its bytes, by the promise.
    Slab::of(unsafe { frames.bytes_mut(frame) })
}

fn fingerprint(key: Key) -> u32 {
    hash(key.to_u64()) as u32
}

/// Spreads a fingerprint over all bits of a hash.
fn spread(fingerprint: u32) -> u64 {
    u64::from(fingerprint).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Shard {
    pub(super) fn new(number: u32) -> Shard {
        Shard {
            number,
            index: HashTable::new(),
            frames: Vec::new(),
            hand: 0,
            open: Vec::new(),
            swept: Vec::new(),
            image_bytes: 0,
            dropped: 0,
            passed: 0,
            passed_resident: 0,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn holdings(&self) -> Holdings {
        Holdings {
            frames: self.frames.len() as u64,
            images: self.index.len() as u64,
            image_bytes: self.image_bytes,
            index_bytes: (self.index.allocation_size() + self.frames.capacity() * 4) as u64,
        }
    }

    /// The frame that has the page's image, or the first part of it.
    fn frame_of(&self, frames: &Frames, key: Key) -> Option<u32> {
        let fingerprint = fingerprint(key);
        let is_it = |placed: &Placed| {
            // SAFETY: the index names frames of the list, the caller has the shard under its
            // mutex, and no slab of the frame is in use.
            placed.fingerprint == fingerprint
                && unsafe { slab(frames, placed.frame) }.find(key).is_some()
        };
        self.index.find(spread(fingerprint), is_it).map(|placed| placed.frame)
    }

    /// The slab in a frame of the list.
    fn slab<'a>(&'a mut self, frames: &Frames, frame: u32) -> Slab<'a> {
        assert_eq!(
            frames.descriptor(frame).tier_shard(),
            Some(self.number),
            "not a slab of this shard"
        );
        // SAFETY: callers name frames of the list, and `self` is borrowed mutably for as long as
        // the slab is.
        unsafe { slab(frames, frame) }
    }

    /// Calls `each` with the slab that has the page's image, or the first part of it, and the
    /// number that this has in the slab.
    fn with_image<T>(
        &mut self,
        frames: &Frames,
        key: Key,
        each: impl FnOnce(&mut Slab<'_>, usize) -> T,
    ) -> Option<T> {
        let frame = self.frame_of(frames, key)?;
        let mut slab = self.slab(frames, frame);
        let at = slab.find(key).expect("the slab was looked at");
        Some(each(&mut slab, at))
    }

    /// Appends the page's image to `out`, and notes that the page becomes resident.
    pub(super) fn copy(&mut self, frames: &Frames, key: Key, out: &mut Vec<u8>) -> Option<Codec> {
        let (codec, tail) = self.with_image(frames, key, |slab, at| {
            slab.set_flags(at, RESIDENT | REFERENCED);
            let (codec, image) = slab.image(at);
            out.extend_from_slice(image);
            (codec, slab.tail(at))
        })?;
        if tail != NO_TAIL {
            let slab = self.slab(frames, tail);
            let at = slab.find_tail(key).expect("the first part names the slab that has the tail");
            out.extend_from_slice(slab.image(at).1);
        }
        Some(codec)
    }

    /// Notes that the page left its frame; false if its image is not here.
    pub(super) fn note_evicted(&mut self, frames: &Frames, key: Key) -> bool {
        self.with_image(frames, key, |slab, at| slab.set_flags(at, REFERENCED)).is_some()
    }

    /// Takes an image in, where the page has none. `grow` gives a frame in transit, if the shard
    /// may have one more. False: there is no room for it.
    pub(super) fn insert(
        &mut self,
        frames: &Frames,
        image: Part<'_>,
        grow: impl FnOnce() -> Option<u32>,
    ) -> bool {
        debug_assert!(self.frame_of(frames, image.key).is_none(), "a page has one image");
        let page_bytes = frames.page_size().bytes();
        let need = image.bytes.len();
        let fits = self.open.iter().filter(|open| open.room >= need);
        let fitting = fits.min_by_key(|open| open.room).map(|open| open.frame);
        let roomiest = self.open.iter().max_by_key(|open| open.room);
        let (frame, tail, len) = match (fitting, roomiest) {
            (Some(frame), _) => (frame, NO_TAIL, need),
            (None, Some(open)) if open.room >= page_bytes / PARTS_MAX => {
                let (frame, len) = (open.frame, open.room);
                match self.find_room(frames, need - len, frame, grow) {
                    Some(tail) => (frame, tail, len),
                    None => return false,
                }
            }
            (None, _) => match self.find_room(frames, need, NO_TAIL, grow) {
                Some(frame) => (frame, NO_TAIL, need),
                None => return false,
            },
        };
        let (head, rest) = image.bytes.split_at(len);
        self.put(frames, frame, Part { bytes: head, tail, ..image });
        if tail != NO_TAIL {
            self.put(frames, tail, Part { bytes: rest, flags: TAIL, tail: NO_TAIL, ..image });
        }
        self.image_bytes += need as u64;
        let placed = Placed { fingerprint: fingerprint(image.key), frame };
        self.index.insert_unique(placed.hash(), placed, Placed::hash);
        true
    }

    /// A frame other than `except` that has room for `need` bytes.
    fn find_room(
        &mut self,
        frames: &Frames,
        need: usize,
        except: u32,
        grow: impl FnOnce() -> Option<u32>,
    ) -> Option<u32> {
        let others = self.open.iter().filter(|open| open.frame != except && open.room >= need);
        let fitting = others.min_by_key(|open| open.room).map(|open| open.frame);
        let found = fitting.or_else(|| grow().map(|frame| self.adopt(frames, frame)));
        let found = found.or_else(|| self.sweep(frames, need, except))?;
        (self.slab(frames, found).room() >= need).then_some(found)
    }

    /// Puts an image, or a part of one, into a frame that has room for it.
    fn put(&mut self, frames: &Frames, frame: u32, part: Part<'_>) {
        let mut slab = self.slab(frames, frame);
        slab.insert(part);
        let room = slab.room();
        self.note_room(frames, frame, room, 0);
    }

    /// Makes a frame in transit one of the shard's.
    fn adopt(&mut self, frames: &Frames, frame: u32) -> u32 {
        assert!(frames.descriptor(frame).is_vacant(), "a frame in transit holds nothing");
        // As at every first store into a frame: an optimistic reader of the page that it held
        // before must, if it sees this store, also see that page's word changed.
        fence(Ordering::Release);
        // SAFETY: the frame is in transit, and given to this shard.
        Slab::format(unsafe { frames.bytes_mut(frame) }, self.frames.len());
        self.frames.push(frame);
        frames.descriptor(frame).set_tier_shard(Some(self.number));
        frame
    }

    /// Keeps the list of open frames: those that have `least` room.
    fn note_room(&mut self, frames: &Frames, frame: u32, room: usize, least: usize) {
        let full = frames.page_size().bytes() / PARTS_MAX;
        let known = self.open.iter().position(|open| open.frame == frame);
        match known {
            Some(at) if room < full => _ = self.open.swap_remove(at),
            Some(at) => self.open[at].room = room,
            None if room < least.max(full) => {}
            None if self.open.len() < OPEN_MAX => self.open.push(Open { frame, room }),
            None => {
                let fullest = self.open.iter_mut().min_by_key(|open| open.room);
                if let Some(fullest) = fullest.filter(|open| open.room < room) {
                    *fullest = Open { frame, room };
                }
            }
        }
    }

    /// Moves the hand until a frame other than `except` has room for `need` bytes.
    fn sweep(&mut self, frames: &Frames, need: usize, except: u32) -> Option<u32> {
        // In the first round marks are taken away, in the second what has none goes.
        for _ in 0..self.frames.len() * 2 {
            self.hand = self.next_hand();
            let frame = self.frames[self.hand];
            let mut swept = std::mem::take(&mut self.swept);
            swept.clear();
            let slab = self.slab(frames, frame);
            swept.extend((0..slab.images()).map(|at| (slab.key(at), slab.flags(at))));
            for &(key, flags) in &swept {
                self.pass(frames, key, flags);
            }
            self.swept = swept;
            if frame != except && self.slab(frames, frame).room() >= need {
                return Some(frame);
            }
        }
        None
    }

    /// The hand passes an image, or a tail.
    fn pass(&mut self, frames: &Frames, key: Key, flags: u8) {
        let is_tail = flags & TAIL != 0;
        let flags = match is_tail {
            // It goes with the first part, whose flags count.
            true => self.with_image(frames, key, |slab, at| slab.flags(at)).unwrap_or(0),
            false => flags,
        };
        if !is_tail {
            self.passed += 1;
            self.passed_resident += u64::from(flags & RESIDENT != 0);
        }
        if flags & REFERENCED == 0 || flags & RESIDENT != 0 {
            self.remove(frames, key);
            self.dropped += 1;
        } else if !is_tail {
            self.with_image(frames, key, |slab, at| slab.set_flags(at, flags & !REFERENCED));
        }
    }

    /// Removes the page's image, if it is here.
    pub(super) fn remove(&mut self, frames: &Frames, key: Key) {
        let Some(frame) = self.frame_of(frames, key) else { return };
        let fingerprint = fingerprint(key);
        let is_it = |placed: &Placed| (placed.fingerprint, placed.frame) == (fingerprint, frame);
        // Of two pages of one fingerprint in one frame either entry serves.
        let entry = self.index.find_entry(spread(fingerprint), is_it);
        entry.expect("it was found just now").remove();
        let mut slab = self.slab(frames, frame);
        let at = slab.find(key).expect("the slab was looked at");
        let (tail, len, room) = (slab.tail(at), slab.remove(at), slab.room());
        self.freed(frames, frame, len, room);
        if tail != NO_TAIL {
            let mut slab = self.slab(frames, tail);
            let at = slab.find_tail(key).expect("the first part names the slab that has the tail");
            let (len, room) = (slab.remove(at), slab.room());
            self.freed(frames, tail, len, room);
        }
    }

    /// A frame has lost `len` bytes, and has `room` now.
    fn freed(&mut self, frames: &Frames, frame: u32, len: usize, room: usize) {
        assert!(self.image_bytes >= len as u64, "its bytes were counted");
        self.image_bytes -= len as u64;
        self.note_room(frames, frame, room, frames.page_size().bytes() / 4);
    }

    /// Drops what is in one of the shard's frames, and gives the frame back to the pool.
    pub(super) fn release(&mut self, frames: &Frames, frame: u32) {
        let slab = self.slab(frames, frame);
        let keys: Vec<Key> = (0..slab.images()).map(|at| slab.key(at)).collect();
        for key in keys {
            self.remove(frames, key);
            self.dropped += 1;
        }
        let slab = self.slab(frames, frame);
        assert_eq!((slab.images(), slab.image_bytes()), (0, 0), "all of it went");
        let position = slab.position();
        assert_eq!(self.frames[position], frame, "a slab has its own position");
        self.frames.swap_remove(position);
        if let Some(&moved) = self.frames.get(position) {
            self.slab(frames, moved).set_position(position);
        }
        self.open.retain(|open| open.frame != frame);
        frames.descriptor(frame).set_tier_shard(None);
        frames.give(frame);
    }

    /// Where the hand comes next.
    fn next_hand(&self) -> usize {
        if self.hand + 1 < self.frames.len() { self.hand + 1 } else { 0 }
    }

    /// Releases the frame that the hand comes to next. The shard has one.
    pub(super) fn release_next(&mut self, frames: &Frames) {
        self.release(frames, self.frames[self.next_hand()]);
    }

    /// Gives the index's memory back, as far as it needs less.
    pub(super) fn shrink_index(&mut self) {
        if self.index.capacity() > 64 && self.index.len() * 4 < self.index.capacity() {
            self.index.shrink_to_fit(Placed::hash);
        }
    }

    /// Flips bits of all images.
    #[cfg(test)]
    pub(super) fn spoil(&mut self, frames: &Frames) {
        for &frame in &self.frames {
            // SAFETY: the frame is in the list, and `self` is borrowed mutably.
            let bytes = unsafe { frames.bytes_mut(frame) };
            let taken = slab_end(bytes);
            bytes[taken..].iter_mut().for_each(|byte| *byte ^= 0x55);
        }
    }

    /// Panics unless the invariants hold.
    #[cfg(test)]
    pub(super) fn check(&mut self, frames: &Frames) {
        let (mut images, mut tails, mut tails_named, mut bytes) = (0, 0, 0, 0);
        for (position, &frame) in self.frames.clone().iter().enumerate() {
            assert_eq!(frames.descriptor(frame).tier_shard(), Some(self.number));
            assert!(frames.descriptor(frame).page().is_none());
            let slab = self.slab(frames, frame);
            assert_eq!(slab.position(), position);
            bytes += slab.image_bytes() as u64;
            let parts: Vec<(Key, u8)> =
                (0..slab.images()).map(|at| (slab.key(at), slab.flags(at))).collect();
            for (key, flags) in parts {
                let first = self.frame_of(frames, key).expect("each image is in the index");
                let named = self.with_image(frames, key, |slab, at| slab.tail(at)).unwrap();
                if flags & TAIL != 0 {
                    assert_eq!(named, frame);
                    tails += 1;
                } else {
                    assert_eq!(first, frame);
                    tails_named += usize::from(named != NO_TAIL);
                    images += 1;
                }
            }
        }
        assert_eq!((images, bytes), (self.index.len(), self.image_bytes));
        assert_eq!(tails, tails_named);
        assert!(self.open.iter().all(|open| self.frames.contains(&open.frame)));
    }
}
