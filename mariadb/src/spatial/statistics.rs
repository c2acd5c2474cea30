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
use super::window::Window;

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
    /// Its side is 2^`height` places.
    height: u32,
    x: u64,
    y: u64,
    entries: u64,
}

impl Square {
    fn range(&self) -> Range<Code> {
        let start = start_of(self.class) + interleave(self.x, self.y);
        start..start + (1 << (2 * self.height))
    }

    /// Which part of it is in a rectangle of corners.
    fn part_in(&self, (x, y): ((u64, u64), (u64, u64))) -> f64 {
        let side = 1u64 << self.height;
        let part = |own: u64, (from, to): (u64, u64)| {
            let (low, high) = (own.max(from), (own + side).min(to.saturating_add(1)));
            high.saturating_sub(low) as f64 / side as f64
        };
        part(self.x, x) * part(self.y, y)
    }
}

/// Where the entries of an index are.
#[derive(Debug, Default)]
pub struct Statistics {
    squares: Vec<Square>,
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
                squares.push(Square { class, height: PLACE_BITS, x: 0, y: 0, entries: found });
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
                let quarter =
                    Square { height, x: whole.x + x, y: whole.y + y, entries: 0, ..whole };
                let entries = entries_in(&quarter.range())?;
                if entries > 0 {
                    squares.push(Square { entries, ..quarter });
                }
            }
        }
        Ok(Statistics { squares, entries })
    }

    /// About how many of `rows` entries a search will find. Since they were counted, others may
    /// have come: they are taken to be where these are.
    pub fn estimate(&self, window: &Window, rows: u64) -> u64 {
        if window.is_everywhere() || self.entries == 0 {
            return rows;
        }
        let found = |square: &Square| {
            let corners = window.corners(square.class)?;
            // Rectangles extend over about half of what their class allows.
            let spare = match window.relation() {
                Relation::Intersects => (1u64 << square.class) / 2,
                _ => 0,
            };
            let nearer = |(from, to): (u64, u64)| ((from + spare).min(to), to);
            let corners = (nearer(corners.0), nearer(corners.1));
            Some(square.entries as f64 * square.part_in(corners))
        };
        let found: f64 = self.squares.iter().filter_map(found).sum();
        (found * rows as f64 / self.entries as f64).round() as u64
    }
}
