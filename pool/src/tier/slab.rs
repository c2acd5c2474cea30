//! A slab: the images of several pages in one frame. An image may have its second part, its *tail*,
//! in another slab.
//!
//! ```text
//!   0              16                     16 + 20 × images            lowest              end
//!   ┌──────────────┬───────┬───────┬─────┬───────────────────────────┬──────────┬─────────┐
//!   │ header       │ entry │ entry │ …   │ free                      │ image    │ image … │
//!   └──────────────┴───────┴───────┴─────┴───────────────────────────┴──────────┴─────────┘
//! ```
//!
//! | header | bytes | |
//! |---|---|---|
//! | `position` | 0–3 | where the frame is in the list of its shard |
//! | `images` | 4–7 | how many there are |
//! | `lowest` | 8–11 | offset of the lowest image |
//! | `image_bytes` | 12–15 | bytes of all images |
//!
//! | entry | bytes | |
//! |---|---|---|
//! | key | 0–7 | whose image it is |
//! | `offset` | 8–9 | where it is |
//! | `len` | 10–11 | its bytes |
//! | `codec` | 12 | how the page is made of it |
//! | `flags` | 13 | [`RESIDENT`], [`REFERENCED`], [`TAIL`] |
//! | `tail` | 16–19 | the frame that has the tail, or [`NO_TAIL`] |
//!
//! Integers are little-endian, as on disk, though a slab is never written there. An image that goes
//! leaves a hole; when the free bytes lie in holes, the images move to the end.
//!
//! # Invariant
//! Images lie between `lowest` and the end, each byte belongs to one image at most, and no two
//! entries have the same key, unless one is a tail.

use tidepool_store::packed::Codec;

/// The page has a frame as well: its image is of use when it leaves that.
pub(super) const RESIDENT: u8 = 1;
/// The page was wanted, or left its frame, since the hand of the clock came by.
pub(super) const REFERENCED: u8 = 2;

/// The bytes are the second part of the page's image. The other flags are those of the first.
pub(super) const TAIL: u8 = 4;

const HEADER: usize = 16;
const ENTRY: usize = 20;

/// Of an image that is whole, and of a tail.
pub(super) const NO_TAIL: u32 = u32::MAX;

const POSITION: usize = 0;
const IMAGES: usize = 4;
const LOWEST: usize = 8;
const IMAGE_BYTES: usize = 12;

/// The longest image that an entry can describe.
pub(super) const IMAGE_MAX: usize = u16::MAX as usize;

/// Whose image it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The space's [`incarnation`](crate::space::Space::incarnation).
    pub(crate) incarnation: u32,
    /// The page's number.
    pub(crate) no: u32,
}

impl Key {
    pub(super) fn to_u64(self) -> u64 {
        u64::from(self.incarnation) << 32 | u64::from(self.no)
    }
}

/// An image, or a part of one, on its way into a slab.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) key: Key,
    pub(super) codec: Codec,
    pub(super) flags: u8,
    pub(super) bytes: &'a [u8],
    /// The frame that has the rest.
    pub(super) tail: u32,
}

/// What an entry says of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    key: Key,
    offset: usize,
    len: usize,
    codec: Codec,
    flags: u8,
    tail: u32,
}

/// The bytes of a frame as a slab.
pub(super) struct Slab<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Slab<'a> {
    /// Makes an empty slab.
    pub(super) fn format(bytes: &'a mut [u8], position: usize) -> Slab<'a> {
        let mut slab = Slab { bytes };
        let end = slab.bytes.len();
        slab.set_position(position);
        slab.set(IMAGES, 0);
        slab.set(LOWEST, end);
        slab.set(IMAGE_BYTES, 0);
        slab
    }

    /// The slab that these bytes are.
    pub(super) fn of(bytes: &'a mut [u8]) -> Slab<'a> {
        Slab { bytes }
    }

    fn get(&self, at: usize) -> usize {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")) as usize
    }

    fn set(&mut self, at: usize, value: usize) {
        self.bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    }

    pub(super) fn position(&self) -> usize {
        self.get(POSITION)
    }

    pub(super) fn set_position(&mut self, position: usize) {
        self.set(POSITION, position);
    }

    pub(super) fn images(&self) -> usize {
        self.get(IMAGES)
    }

    /// Bytes of all images.
    pub(super) fn image_bytes(&self) -> usize {
        self.get(IMAGE_BYTES)
    }

    /// The longest image that there is room for.
    pub(super) fn room(&self) -> usize {
        let taken = HEADER + ENTRY * (self.images() + 1) + self.image_bytes();
        self.bytes.len().saturating_sub(taken).min(IMAGE_MAX)
    }

    fn entry(&self, at: usize) -> Entry {
        debug_assert!(at < self.images());
        let start = HEADER + ENTRY * at;
        let entry: &[u8; ENTRY] = self.bytes[start..start + ENTRY].try_into().expect("its length");
        let word =
            |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        let half = |at: usize| usize::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
        Entry {
            key: Key { incarnation: word(0), no: word(4) },
            offset: half(8),
            len: half(10),
            codec: Codec::from_id(entry[12]).expect("written by `set_entry`"),
            flags: entry[13],
            tail: word(16),
        }
    }

    fn set_entry(&mut self, at: usize, entry: Entry) {
        let start = HEADER + ENTRY * at;
        let bytes = &mut self.bytes[start..start + ENTRY];
        bytes[0..4].copy_from_slice(&entry.key.incarnation.to_le_bytes());
        bytes[4..8].copy_from_slice(&entry.key.no.to_le_bytes());
        bytes[8..10].copy_from_slice(&(entry.offset as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&(entry.len as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&[entry.codec.id(), entry.flags, 0, 0]);
        bytes[16..20].copy_from_slice(&entry.tail.to_le_bytes());
    }

    /// Adds an image, for which there is [`room`](Slab::room).
    pub(super) fn insert(&mut self, part: Part<'_>) {
        let Part { key, codec, flags, bytes: image, tail } = part;
        assert!(image.len() <= self.room(), "the caller has looked for room");
        let images = self.images();
        let entries_end = HEADER + ENTRY * (images + 1);
        if self.get(LOWEST) < entries_end + image.len() {
            self.close_holes();
        }
        let offset = self.get(LOWEST) - image.len();
        assert!(entries_end <= offset, "holes were closed, so there is room");
        debug_assert!(flags & TAIL != 0 || self.find(key).is_none(), "a page has one image");
        self.bytes[offset..offset + image.len()].copy_from_slice(image);
        self.set_entry(images, Entry { key, offset, len: image.len(), codec, flags, tail });
        self.set(IMAGES, images + 1);
        self.set(LOWEST, offset);
        self.set(IMAGE_BYTES, self.image_bytes() + image.len());
    }

    /// Moves the images to the end, side by side.
    fn close_holes(&mut self) {
        let mut order: Vec<usize> = (0..self.images()).collect();
        order.sort_unstable_by_key(|&at| std::cmp::Reverse(self.entry(at).offset));
        let mut end = self.bytes.len();
        for at in order {
            let entry = self.entry(at);
            let offset = end - entry.len;
            self.bytes.copy_within(entry.offset..entry.offset + entry.len, offset);
            self.set_entry(at, Entry { offset, ..entry });
            end = offset;
        }
        self.set(LOWEST, end);
        assert_eq!(self.bytes.len() - end, self.image_bytes(), "no hole is left, no image lost");
    }

    /// Which image is that of the page, or the first part of it.
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        (0..self.images()).find(|&at| self.key(at) == key && self.flags(at) & TAIL == 0)
    }

    /// Which is the second part of the page's image.
    pub(super) fn find_tail(&self, key: Key) -> Option<usize> {
        (0..self.images()).find(|&at| self.key(at) == key && self.flags(at) & TAIL != 0)
    }

    /// Whose image this is.
    pub(super) fn key(&self, at: usize) -> Key {
        self.entry(at).key
    }

    /// An image, and how the page is made of it.
    pub(super) fn image(&self, at: usize) -> (Codec, &[u8]) {
        let entry = self.entry(at);
        debug_assert!(entry.offset >= self.get(LOWEST), "no image is below the lowest");
        (entry.codec, &self.bytes[entry.offset..entry.offset + entry.len])
    }

    /// The frame that has the image's tail, or [`NO_TAIL`].
    pub(super) fn tail(&self, at: usize) -> u32 {
        self.entry(at).tail
    }

    pub(super) fn flags(&self, at: usize) -> u8 {
        self.entry(at).flags
    }

    pub(super) fn set_flags(&mut self, at: usize, flags: u8) {
        let entry = self.entry(at);
        self.set_entry(at, Entry { flags, ..entry });
    }

    /// Removes an image; the last one takes its number. Returns its bytes.
    pub(super) fn remove(&mut self, at: usize) -> usize {
        assert!(at < self.images(), "the image is there");
        let entry = self.entry(at);
        assert!(entry.len <= self.image_bytes(), "its bytes were counted");
        let last = self.images() - 1;
        if at != last {
            self.set_entry(at, self.entry(last));
        }
        self.set(IMAGES, last);
        self.set(IMAGE_BYTES, self.image_bytes() - entry.len);
        if last == 0 {
            self.set(LOWEST, self.bytes.len());
        } else if entry.offset == self.get(LOWEST) {
            self.set(LOWEST, entry.offset + entry.len);
        }
        entry.len
    }
}

/// Where the entries end, and what is behind is images or free.
#[cfg(test)]
pub(super) fn entries_end(bytes: &mut [u8]) -> usize {
    HEADER + ENTRY * Slab::of(bytes).images()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(no: u32) -> Key {
        Key { incarnation: 7, no }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, usize, u8),
        Remove(u32),
        Flag(u32, u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..30u32, 0..6000usize, any::<u8>())
                .prop_map(|(no, len, fill)| Op::Insert(no, len, fill)),
            2 => (0..30u32).prop_map(Op::Remove),
            1 => (0..30u32, 0..4u8).prop_map(|(no, flags)| Op::Flag(no, flags)),
        ]
    }

    proptest! {
        #[test]
        fn a_slab_holds_what_a_map_holds(
            ops in proptest::collection::vec(op(), 1..200),
            size in prop_oneof![Just(4096usize), Just(16384), Just(65536)],
        ) {
            let mut bytes = vec![0xAA; size];
            let mut slab = Slab::format(&mut bytes, 3);
            let mut model: BTreeMap<u32, (Vec<u8>, u8)> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Insert(no, len, fill) => {
                        if slab.find(key(no)).is_none() && len <= slab.room() {
                            let image: Vec<u8> = (0..len).map(|at| fill ^ at as u8).collect();
                            slab.insert(Part {
                                key: key(no),
                                codec: Codec::Zstd,
                                flags: RESIDENT,
                                bytes: &image,
                                tail: NO_TAIL,
                            });
                            model.insert(no, (image, RESIDENT));
                        }
                    }
                    Op::Remove(no) => {
                        let at = slab.find(key(no));
                        prop_assert_eq!(at.is_some(), model.contains_key(&no));
                        if let Some(at) = at {
                            prop_assert_eq!(slab.remove(at), model.remove(&no).unwrap().0.len());
                        }
                    }
                    Op::Flag(no, flags) => {
                        if let Some(at) = slab.find(key(no)) {
                            slab.set_flags(at, flags);
                            model.get_mut(&no).unwrap().1 = flags;
                        }
                    }
                }
                prop_assert_eq!(slab.images(), model.len());
                let bytes: usize = model.values().map(|(image, _)| image.len()).sum();
                prop_assert_eq!(slab.image_bytes(), bytes);
                let taken = bytes + ENTRY * (model.len() + 1) + HEADER;
                prop_assert_eq!(slab.room(), size.saturating_sub(taken).min(IMAGE_MAX));
            }
            for (no, (image, flags)) in model {
                let at = slab.find(key(no)).unwrap();
                prop_assert_eq!(slab.image(at), (Codec::Zstd, &image[..]));
                prop_assert_eq!(slab.flags(at), flags);
            }
            prop_assert_eq!(slab.position(), 3);
        }
    }
}
