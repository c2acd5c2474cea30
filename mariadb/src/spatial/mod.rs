// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! SPATIAL indexes: rectangles as keys of an ordinary tree, and windows as ranges of such keys.
//!
//! * [`rectangle`]: the smallest rectangle around a geometry, and how two of them lie;
//! * [`grid`]: from a coordinate to one of 2^48 places, in the same order;
//! * [`cell`]: the key of a rectangle: how large it is, and where its lower left corner is;
//! * [`window`]: in which ranges of keys a search must look;
//! * [`statistics`]: how many entries a search will find;
//! * [`search`]: the C ABI, and a search with a cursor.
//!
//! All but [`search`] is arithmetic. What a geometry is the server knows; it gives its rectangle.
//! Why it is done so: `docs/decisions/0024-rectangles-are-cells.md`.

pub mod cell;
pub mod grid;
pub mod rectangle;
pub mod search;
pub mod statistics;
pub mod window;

#[cfg(test)]
mod tests;
