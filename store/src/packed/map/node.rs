//! Nodes of the map: in memory, and as images.
//!
//! ```text
//!  0  level    u8    0: the entries are those of pages
//!  2  first    u16   number of the first entry
//!  4  entries  u16
//!  8  …              16 bytes each; the entries before and behind are empty
//! ```

use std::sync::atomic::AtomicBool;

use super::super::entry::{ENTRY_BYTES, Entry, LEVELS_MAX};
use super::{FANOUT, FANOUT_BITS, Malformed};

/// Level, first entry, number of entries.
pub(super) const NODE_HEADER: usize = 8;

pub(super) type Bytes = [u8; ENTRY_BYTES];
pub(super) const EMPTY: Bytes = [0; ENTRY_BYTES];

/// A node in memory.
pub(super) struct Node {
    pub level: u8,
    pub stored: Option<Entry>,
    pub dirty: bool,
    /// Whether a lookup passed it since the last trim.
    pub used: AtomicBool,
    pub body: Body,
}

pub(super) enum Body {
    /// Entries of pages, as in the image. Those behind the last are empty.
    Leaf(Vec<Bytes>),
    Inner(Vec<Child>),
}

pub(super) enum Child {
    Empty,
    Stored(Entry),
    Loaded(Box<Node>),
}

impl Child {
    /// Its image, if that is not to be written again.
    pub fn stored(&self) -> Option<Entry> {
        match self {
            Child::Empty => None,
            Child::Stored(entry) => Some(*entry),
            Child::Loaded(node) => node.stored.filter(|_| !node.dirty),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Child::Empty => true,
            Child::Stored(_) => false,
            Child::Loaded(node) => node.dirty && node.is_empty(),
        }
    }
}

impl Node {
    pub fn new(level: u8) -> Node {
        let body = if level == 0 { Body::Leaf(Vec::new()) } else { Body::Inner(Vec::new()) };
        let used = AtomicBool::new(true);
        Node { level, stored: None, dirty: false, used, body }
    }

    /// Whether nothing below it has an image.
    pub fn is_empty(&self) -> bool {
        self.extent().is_empty()
    }

    /// From the first entry that is not empty to behind the last.
    pub fn extent(&self) -> std::ops::Range<usize> {
        let (first, last) = match &self.body {
            Body::Leaf(entries) => {
                let has = |entry: &Bytes| *entry != EMPTY;
                (entries.iter().position(has), entries.iter().rposition(has))
            }
            Body::Inner(children) => {
                let has = |child: &Child| !child.is_empty();
                (children.iter().position(has), children.iter().rposition(has))
            }
        };
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }

    /// The image. `image_of` gives that of the child at a position, if the child is dirty.
    pub fn encode(&self, image_of: impl Fn(usize) -> Option<Entry>) -> Vec<u8> {
        let extent = self.extent();
        let mut image = Vec::with_capacity(self.image_len());
        image.extend([self.level, 0]);
        image.extend((extent.start as u16).to_le_bytes());
        image.extend((extent.len() as u16).to_le_bytes());
        image.extend([0; 2]);
        assert_eq!(image.len(), NODE_HEADER);
        match &self.body {
            Body::Leaf(entries) => image.extend(entries[extent].as_flattened()),
            Body::Inner(children) => {
                for (at, child) in extent.clone().zip(&children[extent]) {
                    let entry = child.stored().or_else(|| image_of(at));
                    assert!(
                        entry.is_some() || child.is_empty(),
                        "a child with entries has an image, or its pages would be lost"
                    );
                    image.extend(Entry::encode(entry));
                }
            }
        }
        assert_eq!(image.len(), self.image_len(), "a node has the length that was placed");
        image
    }

    pub fn image_len(&self) -> usize {
        NODE_HEADER + self.extent().len() * ENTRY_BYTES
    }

    /// Entries, the empty ones before the last among them.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(entries) => entries.len(),
            Body::Inner(children) => children.len(),
        }
    }

    pub fn decode(image: &[u8], stored: Entry) -> Result<Node, Malformed> {
        let (header, body) = image.split_at_checked(NODE_HEADER).ok_or("a node has no header")?;
        let number = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (level, first, count) = (header[0], number(2), number(4));
        let (rows, rest) = body.as_chunks::<ENTRY_BYTES>();
        if rows.len() != count || !rest.is_empty() || first + count > FANOUT || level >= LEVELS_MAX
        {
            return Err("a node's header does not fit its length");
        }
        let mut entries = vec![EMPTY; first];
        entries.extend_from_slice(rows);
        let body = if level == 0 {
            for entry in &entries {
                Entry::decode(entry)?;
            }
            Body::Leaf(entries)
        } else {
            let child =
                |entry: &Bytes| Ok(Entry::decode(entry)?.map_or(Child::Empty, Child::Stored));
            Body::Inner(entries.iter().map(child).collect::<Result<_, Malformed>>()?)
        };
        let (stored, used) = (Some(stored), AtomicBool::new(true));
        Ok(Node { level, stored, dirty: false, used, body })
    }

    /// The entries of a node whose children are not in memory.
    pub fn each_entry(&self) -> impl Iterator<Item = Entry> {
        let (leaf, inner): (&[Bytes], &[Child]) = match &self.body {
            Body::Leaf(entries) => (entries, &[]),
            Body::Inner(children) => (&[], children),
        };
        let entries = leaf.iter().filter_map(|bytes| Entry::decode(bytes).ok().flatten());
        entries.chain(inner.iter().filter_map(Child::stored))
    }

    /// The position of page `no` in this node.
    pub fn slot_of(&self, no: u32) -> usize {
        (no >> (FANOUT_BITS * u32::from(self.level))) as usize % FANOUT
    }
}
