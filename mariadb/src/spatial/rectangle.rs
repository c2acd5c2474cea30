// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The smallest rectangle around a geometry, with sides along the axes.

/// Bytes of a rectangle as the server gives it, and in the value of an entry.
pub const RECTANGLE_LEN: usize = 32;
/// Bytes of a point in the value of an entry.
pub const POINT_LEN: usize = 16;

/// A rectangle, its sides included. That of a geometry without a point has no inside: its least
/// coordinates are greater than its greatest ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rectangle {
    /// The least and the greatest x.
    pub x: (f64, f64),
    /// The least and the greatest y.
    pub y: (f64, f64),
}

/// How the rectangle of an entry lies to the window of a search. The server checks its own
/// condition afterwards; these are what it asks an index for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They have a point in common, be it on their sides.
    Intersects,
    /// No point of the entry is outside of the window.
    Inside,
    /// No point of the window is outside of the entry.
    Around,
    /// They have no point in common.
    Disjoint,
    /// They are the same.
    Equal,
}

impl Rectangle {
    /// The rectangle that these bytes are: x from and to, y from and to, or a point.
    pub fn read(bytes: &[u8]) -> Option<Rectangle> {
        let number = |at: usize| {
            let eight = bytes.get(at..at + 8)?;
            Some(f64::from_le_bytes(eight.try_into().ok()?))
        };
        match bytes.len() {
            RECTANGLE_LEN => {
                Some(Rectangle { x: (number(0)?, number(8)?), y: (number(16)?, number(24)?) })
            }
            POINT_LEN => {
                let (x, y) = (number(0)?, number(8)?);
                Some(Rectangle { x: (x, x), y: (y, y) })
            }
            _ => None,
        }
    }

    /// Writes the bytes that [`read`](Self::read) understands, and gives their number.
    pub fn write(&self, to: &mut [u8; RECTANGLE_LEN]) -> usize {
        let is_point =
            self.x.0.to_bits() == self.x.1.to_bits() && self.y.0.to_bits() == self.y.1.to_bits();
        if is_point {
            to[..8].copy_from_slice(&self.x.0.to_le_bytes());
            to[8..16].copy_from_slice(&self.y.0.to_le_bytes());
            return POINT_LEN;
        }
        let numbers = [self.x.0, self.x.1, self.y.0, self.y.1];
        for (place, number) in to.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        RECTANGLE_LEN
    }

    /// Whether it has a point.
    pub fn is_valid(&self) -> bool {
        self.x.0 <= self.x.1 && self.y.0 <= self.y.1
    }

    /// Whether it lies so to the window. Of rectangles without a point this is what InnoDB's index
    /// finds, too.
    pub fn lies(&self, relation: Relation, window: &Rectangle) -> bool {
        let sides = [(self.x, window.x), (self.y, window.y)];
        match relation {
            Relation::Intersects => sides.iter().all(|(a, b)| a.0 <= b.1 && b.0 <= a.1),
            Relation::Inside => sides.iter().all(|(a, b)| b.0 <= a.0 && a.1 <= b.1),
            Relation::Around => sides.iter().all(|(a, b)| a.0 <= b.0 && b.1 <= a.1),
            Relation::Disjoint => sides.iter().any(|(a, b)| a.0 > b.1 || b.0 > a.1),
            Relation::Equal => sides.iter().all(|(a, b)| a == b),
        }
    }
}
