//! How much a checkpoint has to write of the map, at most.

use std::ops::Add;

use super::super::entry::ENTRY_BYTES;
use super::super::geometry::{UNIT, units_of};
use super::node::{NODE_HEADER, Node};
use super::{PART_ROWS, ROW_BYTES};

/// Images, and bytes of them in whole units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub images: u64,
    pub bytes: u64,
}

impl Cost {
    /// The list of `spaces` spaces.
    pub fn of_directory(spaces: usize) -> Cost {
        let images = spaces.div_ceil(PART_ROWS);
        Cost { images: images as u64, bytes: (spaces * ROW_BYTES + images * UNIT) as u64 }
    }

    /// A node with `entries` entries.
    pub(super) fn add(&mut self, entries: usize) {
        self.images += 1;
        self.bytes += bytes_of(entries);
    }

    /// A node that becomes dirty, with `entries` entries.
    pub(super) fn replace(&mut self, node: &Node, entries: usize) {
        if node.dirty {
            self.images -= 1;
            self.bytes -= bytes_of(node.len());
        }
        self.add(entries);
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { images: self.images + other.images, bytes: self.bytes + other.bytes }
    }
}

fn bytes_of(entries: usize) -> u64 {
    u64::from(units_of(NODE_HEADER + entries * ENTRY_BYTES)) * UNIT as u64
}
