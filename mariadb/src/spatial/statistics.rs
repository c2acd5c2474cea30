// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! How many entries a search will find, by what was once counted.
//!
//! The optimizer asks before each statement, so a search is estimated from memory: squares of the
//! curve with about how many entries each has. The square with the most is divided until there are
//! `SQUARES` of them: where rectangles are many, squares are small.

use std::ops::Range;

use super::cell::{CLASSES, Code, NOWHERE, interleave, start_of};
use super::grid::PLACE_BITS;
use super::rectangle::Relation;
use super::window::{Places, Window};

/// Squares at most.
const SQUARES: usize = 160;
/// Entries of a square that is not divided.
const ENTRIES_FEW: u64 = 32;
/// Divisions at most: of a whole class, most lead to where its rectangles are.
const DIVISIONS: usize = 600;

/// Corners of a class in a square of the grid.
#[derive(Clone, Copy, Debug)]
struct Square {
    class: u32,
    /// Its first key.
    start: Code,
    /// Its side is 2^`height` places.
    height: u32,
    x: u64,
    y: u64,
    entries: u64,
}

impl Square {
    fn new(class: u32, height: u32, (x, y): (u64, u64)) -> Square {
        Square { class, start: start_of(class) + interleave(x, y), height, x, y, entries: 0 }
    }

    fn range(&self) -> Range<Code> {
        self.start..self.start + (1 << (2 * self.height))
    }

    /// About how many of its entries are in a rectangle of corners.
    fn entries_in(&self, (x, y): Places) -> f64 {
        let side = 1u64 << self.height;
        let common = |own: u64, (from, to): (u64, u64)| {
            (own + side).min(to.saturating_add(1)).saturating_sub(own.max(from))
        };
        match (common(self.x, x), common(self.y, y)) {
            (0, _) | (_, 0) => 0.0,
            (x, y) => {
                let part = |common: u64| common as f64 / side as f64;
                self.entries as f64 * part(x) * part(y)
            }
        }
    }
}

/// Where the entries of an index are.
#[derive(Debug, Default)]
pub struct Statistics {
    /// In the order of their keys.
    squares: Vec<Square>,
    /// The classes that have some, and before which square the next class begins.
    classes: Vec<(u32, usize)>,
    /// Entries in all.
    entries: u64,
}

impl Statistics {
    /// Counts, by a function that knows about how many entries a range has.
    pub fn count<E>(
        entries_in: &mut dyn FnMut(&Range<Code>) -> Result<u64, E>,
    ) -> Result<Statistics, E> {
        let mut squares = Vec::new();
        let mut entries = 0;
        for class in 0..CLASSES as u32 {
            let found = entries_in(&(start_of(class)..start_of(class + 1)))?;
            entries += found;
            if found > 0 && class != NOWHERE {
                let whole = Square::new(class, PLACE_BITS, (0, 0));
                squares.push(Square { entries: found, ..whole });
            }
        }
        for _ in 0..DIVISIONS {
            let divisible = |square: &&Square| square.height > 0 && square.entries > ENTRIES_FEW;
            let most = squares.iter().filter(divisible).map(|square| square.entries).max();
            let most = most.and_then(|most| squares.iter().position(|one| one.entries == most));
            let (Some(most), true) = (most, squares.len() < SQUARES) else { break };
            let whole = squares.swap_remove(most);
            if whole.height == 0 {
                squares.push(whole);
                break;
            }
            let (height, half) = (whole.height - 1, 1 << (whole.height - 1));
            for (x, y) in [(0, 0), (0, half), (half, 0), (half, half)] {
                let quarter = Square::new(whole.class, height, (whole.x + x, whole.y + y));
                let entries = entries_in(&quarter.range())?;
                if entries > 0 {
                    squares.push(Square { entries, ..quarter });
                }
            }
        }
        squares.sort_unstable_by_key(|square| square.start);
        let mut at = 0;
        let of_class = |of_class: &[Square]| {
            at += of_class.len();
            (of_class[0].class, at)
        };
        let classes = squares.chunk_by(|a, b| a.class == b.class).map(of_class).collect();
        Ok(Statistics { squares, classes, entries })
    }

    /// About how many of `rows` entries a search will find. Since they were counted, others may
    /// have come: they are taken to be where these are.
    pub fn estimate(&self, window: &Window, rows: u64) -> u64 {
        if window.is_everywhere() || self.entries == 0 {
            return rows;
        }
        let (mut found, mut at) = (0.0, 0);
        for &(class, end) in &self.classes {
            found += entries_of_class(class, &self.squares[at..end], window);
            at = end;
        }
        (found * rows as f64 / self.entries as f64).round() as u64
    }
}

/// About how many entries of a class, which has these squares, a search will find.
fn entries_of_class(class: u32, squares: &[Square], window: &Window) -> f64 {
    let Some((x, y)) = window.corners(class) else { return 0.0 };
    // Rectangles extend over about half of what their class allows.
    let spare = match window.relation() {
        Relation::Intersects => (1u64 << class) / 2,
        _ => 0,
    };
    let nearer = |(from, to): (u64, u64)| ((from + spare).min(to), to);
    let (x, y) = (nearer(x), nearer(y));
    // All corners are between the first and the last of them on the curve.
    let key = |x: u64, y: u64| start_of(class) + interleave(x, y);
    let (first, last) = (key(x.0, y.0), key(x.1, y.1));
    let from = squares.partition_point(|square| square.range().end <= first);
    let up_to = squares.partition_point(|square| square.start <= last);
    let found = squares[from.min(up_to)..up_to].iter();
    found.map(|square| square.entries_in((x, y))).sum()
}
