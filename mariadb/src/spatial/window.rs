// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! In which ranges of keys a search must look.
//!
//! Of a class it is known how far a rectangle may extend, so the corners of those that lie to a
//! window as is asked for are in a rectangle of the grid: for [`Relation::Intersects`] the window,
//! extended to the left and down by what the class allows. That is covered by squares of the curve,
//! at most [`CELLS_MOST`] in a row, and squares that follow each other are one range. Each range
//! may have entries that do not lie so: their own rectangles tell.
//!
//! The classes come one after the other, and none is divided into ranges before the search knows of
//! an entry in it: [`Ranges::next_from`] is asked with the key that the search has come to.

use std::ops::Range;

use super::cell::{self, CLASSES, Cell, Code, NOWHERE, class_of, interleave, start_of};
use super::grid::PLACE_BITS;
use super::rectangle::{Rectangle, Relation};

/// Squares in a row of those that cover the corners of a class.
pub const CELLS_MOST: u64 = 8;

/// What is searched for.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    relation: Relation,
    rectangle: Rectangle,
    cell: Cell,
}

/// A rectangle of the grid, its sides included: of x and of y.
type Places = ((u64, u64), (u64, u64));

impl Window {
    /// Rectangles that lie so to this one.
    pub fn new(relation: Relation, rectangle: Rectangle) -> Window {
        Window { relation, rectangle, cell: Cell::of(&rectangle) }
    }

    /// How they lie.
    pub fn relation(&self) -> Relation {
        self.relation
    }

    /// Whether this is one of them.
    pub fn takes(&self, entry: &Rectangle) -> bool {
        entry.lies(self.relation, &self.rectangle)
    }

    /// Whether entries of all classes may be among them, wherever they are.
    pub fn is_everywhere(&self) -> bool {
        self.relation == Relation::Disjoint || self.cell.class == NOWHERE
    }

    /// Where the corners of such rectangles of a class are, if there can be any.
    pub fn corners(&self, class: u32) -> Option<Places> {
        let Cell { x, y, class: own } = self.cell;
        let reach = (1u64 << class) - 1;
        match self.relation {
            Relation::Intersects => {
                let extended = |(from, to): (u64, u64)| (from.saturating_sub(reach), to);
                Some((extended(x), extended(y)))
            }
            Relation::Inside if class <= own => Some((x, y)),
            Relation::Around if class >= own => {
                let around = |(from, to): (u64, u64)| (to.saturating_sub(reach), from);
                let (x, y) = (around(x), around(y));
                (x.0 <= x.1 && y.0 <= y.1).then_some((x, y))
            }
            Relation::Equal if class == own => Some(((x.0, x.0), (y.0, y.0))),
            _ => None,
        }
    }

    /// Adds the ranges of a class that the search must look in, in order.
    pub fn ranges_of(&self, class: u32, ranges: &mut Vec<Range<Code>>) {
        if class == NOWHERE {
            // Nothing is outside of a window that has no point.
            if self.relation == Relation::Inside {
                ranges.push(start_of(NOWHERE)..start_of(NOWHERE + 1));
            }
            return;
        }
        if let Some(corners) = self.corners(class) {
            cover(class, corners, ranges);
        }
    }
}

/// Covers a rectangle of corners by squares, and adds the ranges that they are.
pub(super) fn cover(class: u32, (x, y): Places, ranges: &mut Vec<Range<Code>>) {
    let mut side = PLACE_BITS - cell::place_bits(class);
    let is_too_many =
        |(from, to): (u64, u64), side: u32| (to >> side) - (from >> side) >= CELLS_MOST;
    while is_too_many(x, side) || is_too_many(y, side) {
        side += 1;
    }
    let in_cells = |(from, to): (u64, u64)| (from >> side, to >> side);
    let (x, y) = (in_cells(x), in_cells(y));
    let height = u64::BITS - ((x.0 ^ x.1) | (y.0 ^ y.1)).leading_zeros();
    let corner = (x.0 >> height << height, y.0 >> height << height);
    let start = start_of(class) + interleave(corner.0 << side, corner.1 << side);
    Cover { side, x, y, ranges }.square(height, corner, start);
}

/// A rectangle of squares with sides of 2^`side` places.
struct Cover<'a> {
    side: u32,
    x: (u64, u64),
    y: (u64, u64),
    ranges: &'a mut Vec<Range<Code>>,
}

impl Cover<'_> {
    /// Adds what there is of a square of 2^`height` squares in a row that begins at (x, y), with
    /// the key `start`.
    fn square(&mut self, height: u32, (x, y): (u64, u64), start: Code) {
        let last = (1u64 << height) - 1;
        let (right, top) = (x + last, y + last);
        if x > self.x.1 || right < self.x.0 || y > self.y.1 || top < self.y.0 {
            return;
        }
        if x >= self.x.0 && right <= self.x.1 && y >= self.y.0 && top <= self.y.1 {
            let end = start + (1 << (2 * (height + self.side)));
            match self.ranges.last_mut() {
                Some(before) if before.end == start => before.end = end,
                _ => self.ranges.push(start..end),
            }
            return;
        }
        let half = 1 << (height - 1);
        let quarter: Code = 1 << (2 * (height - 1 + self.side));
        self.square(height - 1, (x, y), start);
        self.square(height - 1, (x, y + half), start + quarter);
        self.square(height - 1, (x + half, y), start + 2 * quarter);
        self.square(height - 1, (x + half, y + half), start + 3 * quarter);
    }
}

/// The ranges of a search, from the first to the last.
#[derive(Debug)]
pub struct Ranges {
    window: Window,
    /// Those of one class.
    ranges: Vec<Range<Code>>,
    at: usize,
    /// The class after it.
    next_class: u32,
}

impl Ranges {
    /// The ranges of a window.
    pub fn of(window: Window) -> Ranges {
        let mut ranges = Ranges { window, ranges: Vec::new(), at: 0, next_class: 0 };
        if window.is_everywhere() {
            ranges.ranges.push(0..start_of(CLASSES as u32));
            ranges.next_class = CLASSES as u32;
        }
        ranges
    }

    /// What is searched for.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The first range that does not end before this key, which is no less than that of the call
    /// before; none if there is none.
    pub fn next_from(&mut self, code: Code) -> Option<Range<Code>> {
        loop {
            while let Some(range) = self.ranges.get(self.at) {
                if code < range.end {
                    return Some(range.clone());
                }
                self.at += 1;
            }
            let class = self.next_class.max(class_of(code));
            if class >= CLASSES as u32 {
                return None;
            }
            self.ranges.clear();
            self.at = 0;
            self.window.ranges_of(class, &mut self.ranges);
            self.next_class = class + 1;
        }
    }
}
