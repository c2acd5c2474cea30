// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! From a coordinate to one of 2^48 places, so that a greater coordinate has no lesser place.
//!
//! ```text
//! coordinate   −∞ ······ −2^25 ────────── 0 ────────── 2^25 ······ ∞
//! places        2^46, by exponent │ 2^46, even │ 2^46, even │ 2^46, by exponent
//! ```
//!
//! Within ±2^25, where degrees and metres on the earth are, a place is 2^-21 wide: rectangles of
//! one size extend over equally many places wherever they are, also across 0. Farther out places
//! follow the bits of the number, as wide as its exponent makes them.

/// Bits of a place.
pub const PLACE_BITS: u32 = 48;

/// Where the even part ends.
const EVEN_MAX: f64 = 33_554_432.0;
/// Places in one unit of the even part.
const PLACES_PER_UNIT: f64 = 2_097_152.0;
/// Bits of a number that are not kept beyond the even part.
const DROPPED_BITS: u32 = 16;
/// The place of 0.
const MIDDLE: u64 = 1 << (PLACE_BITS - 1);
/// Places of the even part on one side of 0.
const EVEN_PLACES: u64 = 1 << (PLACE_BITS - 2);

/// The place of a coordinate.
pub fn place(coordinate: f64) -> u64 {
    let size = coordinate.abs();
    let distance = if size < EVEN_MAX {
        (size * PLACES_PER_UNIT) as u64
    } else {
        EVEN_PLACES + ((size.to_bits() - EVEN_MAX.to_bits()) >> DROPPED_BITS)
    };
    if coordinate < 0.0 { MIDDLE - 1 - distance } else { MIDDLE + distance }
}
