// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The key of a rectangle.
//!
//! ```text
//! class (1 byte) | corner, by Z-order (0 to 12 bytes)
//! ```
//!
//! The *class* c of a rectangle is even, and says how many places it extends over: fewer than 2^c
//! in each direction, and not fewer than 2^(c−2) in one of them. A point has class 0. What has no
//! point at all has [`NOWHERE`] and no corner.
//!
//! The *corner* is the place of the least x and the least y. Of each, the highest bits
//! count, until the rest is less than a 64th of what the class allows. Those of x and y come by
//! turns, x first, filled up with zeros to whole bytes. So a class says how long its keys are, keys
//! compare as numbers do, and each square of a power of two that lies at a multiple of its side is
//! one range of keys.
//!
//! Here a key is a number, its [`Code`]: the class, and the corner as if all 96 bits counted.

use super::grid::{PLACE_BITS, place};
use super::rectangle::Rectangle;

/// The key as a number.
pub type Code = u128;

/// The class of what has no point.
pub const NOWHERE: u32 = PLACE_BITS + 1;
/// How many classes there are.
pub const CLASSES: usize = NOWHERE as usize + 1;
/// Bits of a corner.
const CORNER_BITS: u32 = 2 * PLACE_BITS;
/// Longest key of a rectangle, in bytes.
pub const KEY_MAX: usize = 1 + CORNER_BITS as usize / 8;
/// Bits of a place that count beyond those that tell corners apart by what a class allows.
const FINER_BITS: u32 = 6;

/// A rectangle as the index sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How large it is.
    pub class: u32,
    /// The places of its sides.
    pub x: (u64, u64),
    /// The same.
    pub y: (u64, u64),
}

impl Cell {
    /// The cell of a rectangle.
    pub fn of(rectangle: &Rectangle) -> Cell {
        let places = |sides: (f64, f64)| (place(sides.0), place(sides.1));
        let (x, y) = (places(rectangle.x), places(rectangle.y));
        if !rectangle.is_valid() {
            return Cell { class: NOWHERE, x, y };
        }
        let extent = (x.1 - x.0).max(y.1 - y.0);
        let bits = u64::BITS - extent.leading_zeros();
        Cell { class: bits.next_multiple_of(2), x, y }
    }

    /// Its key.
    pub fn code(&self) -> Code {
        let start = start_of(self.class);
        match self.class {
            NOWHERE => start,
            class => start + interleave(kept(class, self.x.0), kept(class, self.y.0)),
        }
    }
}

/// Bits of a place that count in a class.
pub fn place_bits(class: u32) -> u32 {
    match class {
        NOWHERE => 0,
        class => PLACE_BITS.min(PLACE_BITS + FINER_BITS - class),
    }
}

/// A place without the bits that do not count.
fn kept(class: u32, place: u64) -> u64 {
    let dropped = PLACE_BITS - place_bits(class);
    place >> dropped << dropped
}

/// The first key of a class.
pub fn start_of(class: u32) -> Code {
    Code::from(class) << CORNER_BITS
}

/// The class of a key.
pub fn class_of(code: Code) -> u32 {
    (code >> CORNER_BITS) as u32
}

/// The first class from this one on that rectangles have: those are even.
pub fn class_from(class: u32) -> Option<u32> {
    match class {
        0..NOWHERE => Some(class.next_multiple_of(2)),
        _ => (class == NOWHERE).then_some(NOWHERE),
    }
}

/// Length of the keys of a class, in bytes; none if there is no such class.
pub fn key_len(class: u8) -> Option<usize> {
    let class = u32::from(class);
    (class <= NOWHERE).then(|| 1 + (2 * place_bits(class)).div_ceil(8) as usize)
}

/// The bytes of a key, and how many there are.
pub fn to_bytes(code: Code) -> ([u8; KEY_MAX], usize) {
    let mut bytes = [0; KEY_MAX];
    bytes.copy_from_slice(&code.to_be_bytes()[size_of::<Code>() - KEY_MAX..]);
    (bytes, key_len(bytes[0]).unwrap_or(KEY_MAX))
}

/// The key that an entry's begins with; none if it is no such key.
pub fn from_bytes(entry_key: &[u8]) -> Option<Code> {
    let key = entry_key.get(..key_len(*entry_key.first()?)?)?;
    let mut bytes = [0; size_of::<Code>()];
    let start = bytes.len() - KEY_MAX;
    bytes[start..start + key.len()].copy_from_slice(key);
    Some(Code::from_be_bytes(bytes))
}

/// The bits of x and y by turns, x first.
pub fn interleave(x: u64, y: u64) -> Code {
    (spread(x) << 1) | spread(y)
}

/// Puts a zero before each of the bits.
fn spread(bits: u64) -> Code {
    let half = |bits: u64| {
        let mut bits = bits & 0xFF_FFFF;
        bits = (bits | bits << 16) & 0x0000_FFFF_0000_FFFF;
        bits = (bits | bits << 8) & 0x00FF_00FF_00FF_00FF;
        bits = (bits | bits << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
        (bits | bits << 1) & 0x5555_5555_5555_5555
    };
    Code::from(half(bits >> 24)) << 48 | Code::from(half(bits))
}

/// What [`interleave`] made one of.
pub fn separate(both: Code) -> (u64, u64) {
    (gather(both >> 1), gather(both))
}

/// Takes every other bit: what [`spread`] has put apart.
fn gather(bits: Code) -> u64 {
    let half = |bits: u64| {
        let mut bits = bits & 0x5555_5555_5555_5555;
        bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
        bits = (bits | bits >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
        bits = (bits | bits >> 4) & 0x00FF_00FF_00FF_00FF;
        bits = (bits | bits >> 8) & 0x0000_FFFF_0000_FFFF;
        (bits | bits >> 16) & 0xFFFF_FFFF
    };
    half((bits >> 64) as u64) << 32 | half(bits as u64)
}
