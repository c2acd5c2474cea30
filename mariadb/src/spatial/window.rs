// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! In which ranges of keys a search must look.
//!
//! Of a class it is known how far a rectangle may extend, so the corners of those that lie to a
//! window as is asked for are in a rectangle of the grid: for [`Relation::Intersects`] the window,
//! extended to the left and down by what the class allows. That is covered by squares of the grid,
//! at most [`SQUARES_MOST`] in a row, and those of the curve that are within are the ranges. Each
//! range may have entries that do not lie so: their own rectangles tell.
//!
//! The classes come one after the other, and no range is looked for before the search has come to
//! an entry: [`Ranges::next_from`] is asked with its key, and finds the range from that by a few
//! comparisons. So a class in which the window has no entry costs two questions.

use std::ops::Range;

use super::cell::{self, CLASSES, Cell, Code, NOWHERE, class_of, interleave, separate, start_of};
use super::grid::PLACE_BITS;
use super::rectangle::{Rectangle, Relation};

/// Squares in a row of those that cover the corners of a class.
pub const SQUARES_MOST: u64 = 8;

/// What is searched for.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    relation: Relation,
    rectangle: Rectangle,
    cell: Cell,
}

/// A rectangle of the grid, its sides included: of x and of y.
pub(super) type Places = ((u64, u64), (u64, u64));

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

    /// Where the search must look in a class, if anywhere.
    fn cover(&self, class: u32) -> Option<Cover> {
        match class {
            // Nothing is outside of a window that has no point.
            NOWHERE => (self.relation == Relation::Inside).then(Cover::nowhere),
            class => Some(Cover::new(class, self.corners(class)?)),
        }
    }
}

/// Squares of the grid that cover the corners of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    /// The first key of the class.
    start: Code,
    /// Their sides are 2^`side` places.
    side: u32,
    /// From which to which, of those in a row, and in a column.
    x: (u64, u64),
    /// The same.
    y: (u64, u64),
    /// The first and the last of them on the curve.
    ends: (Code, Code),
}

impl Cover {
    /// Covers these corners.
    pub(super) fn new(class: u32, (x, y): Places) -> Cover {
        let mut side = PLACE_BITS - cell::place_bits(class);
        let is_too_many =
            |(from, to): (u64, u64), side: u32| (to >> side) - (from >> side) >= SQUARES_MOST;
        while is_too_many(x, side) || is_too_many(y, side) {
            side += 1;
        }
        let in_squares = |(from, to): (u64, u64)| (from >> side, to >> side);
        Self::of_squares(start_of(class), side, in_squares(x), in_squares(y))
    }

    /// Covers what has no point.
    fn nowhere() -> Cover {
        Self::of_squares(start_of(NOWHERE), PLACE_BITS, (0, 0), (0, 0))
    }

    fn of_squares(start: Code, side: u32, x: (u64, u64), y: (u64, u64)) -> Cover {
        Cover { start, side, x, y, ends: (interleave(x.0, y.0), interleave(x.1, y.1)) }
    }

    /// The first range that does not end before this key, which is of the same class or one before.
    pub(super) fn next_from(&self, code: Code) -> Option<Range<Code>> {
        let on_curve = code.saturating_sub(self.start) >> (2 * self.side);
        let first = if on_curve <= self.ends.0 {
            (self.x.0, self.y.0)
        } else if on_curve > self.ends.1 {
            return None;
        } else {
            let at = separate(on_curve);
            if self.has(at) { at } else { self.next_after(at)? }
        };
        let mut height = 0;
        while self.has_square(height + 1, first) {
            height += 1;
        }
        let bits = 2 * (self.side + height);
        let (x, y) = (first.0 >> height, first.1 >> height);
        let start = self.start + (interleave(x, y) << bits);
        Some(start..start + (1 << bits))
    }

    fn has(&self, (x, y): (u64, u64)) -> bool {
        (self.x.0..=self.x.1).contains(&x) && (self.y.0..=self.y.1).contains(&y)
    }

    /// Whether all of the square of 2^`height` squares in a row that this one is in are in here.
    fn has_square(&self, height: u32, (x, y): (u64, u64)) -> bool {
        let (x, y) = (x >> height << height, y >> height << height);
        let last = (1 << height) - 1;
        self.has((x, y)) && self.has((x + last, y + last))
    }

    /// The first after a square that is not in here. On the curve it has the same bits as that up
    /// to one, which is 0 there and 1 here. The least such bit counts with which there are any: of
    /// what has these bits, a rectangle, the first is the one with the least x and the least y.
    fn next_after(&self, (x, y): (u64, u64)) -> Option<(u64, u64)> {
        let first_from = |from: (u64, u64), bits: (u32, u32)| {
            let first = (from.0.max(self.x.0), from.1.max(self.y.0));
            let has_bits =
                first.0 >> bits.0 == from.0 >> bits.0 && first.1 >> bits.1 == from.1 >> bits.1;
            (has_bits && self.has(first)).then_some(first)
        };
        (0..PLACE_BITS).find_map(|bit| {
            let (above, same) = (bit + 1, |place: u64, bit: u32| place >> bit << bit);
            let with_bit = |place: u64| ((place >> bit) | 1) << bit;
            let in_column = (y >> bit & 1 == 0)
                .then(|| first_from((same(x, bit), with_bit(y)), (bit, bit)))
                .flatten();
            in_column.or_else(|| {
                (x >> bit & 1 == 0)
                    .then(|| first_from((with_bit(x), same(y, above)), (bit, above)))
                    .flatten()
            })
        })
    }
}

/// The ranges of a search, from the first to the last.
#[derive(Debug)]
pub struct Ranges {
    window: Window,
    /// The class that was asked for last, and where the search must look in it.
    class: Option<u32>,
    cover: Option<Cover>,
}

impl Ranges {
    /// The ranges of a window.
    pub fn of(window: Window) -> Ranges {
        Ranges { window, class: None, cover: None }
    }

    /// What is searched for.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The first range that does not end before this key; none if there is none.
    pub fn next_from(&mut self, code: Code) -> Option<Range<Code>> {
        if self.window.is_everywhere() {
            return Some(0..start_of(CLASSES as u32)).filter(|all| code < all.end);
        }
        let mut class = class_of(code);
        while let Some(known) = cell::class_from(class) {
            if self.class != Some(known) {
                (self.class, self.cover) = (Some(known), self.window.cover(known));
            }
            let range = self.cover.as_ref().and_then(|cover| cover.next_from(code));
            if range.is_some() {
                return range;
            }
            class = known + 1;
        }
        None
    }
}
