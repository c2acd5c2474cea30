// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The smallest rectangle around a geometry, with sides along the axes.

/// Bytes of a rectangle as the server gives it.
pub const IMAGE_LEN: usize = 32;
/// Most bytes of a rectangle in the value of an entry.
pub const VALUE_MAX: usize = 1 + IMAGE_LEN;

/// First byte in a value: that of a point has two numbers, that of a rectangle four.
const POINT: u8 = 0;
const SIDES: u8 = 1;

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
    /// The rectangle that the server gives by these bytes: x from and to, y from and to.
    pub fn of_image(image: &[u8]) -> Option<Rectangle> {
        let [x, to_x, y, to_y] = numbers(image)?;
        (image.len() == IMAGE_LEN).then_some(Rectangle { x: (x, to_x), y: (y, to_y) })
    }

    /// The rectangle that the value of an entry begins with.
    pub fn of_value(value: &[u8]) -> Option<Rectangle> {
        let (kind, rest) = value.split_first()?;
        match *kind {
            POINT => {
                let [x, y] = numbers(rest)?;
                Some(Rectangle { x: (x, x), y: (y, y) })
            }
            SIDES => Self::of_image(rest.get(..IMAGE_LEN)?),
            _ => None,
        }
    }

    /// Writes what [`of_value`](Self::of_value) understands, and gives its length.
    pub fn put_value(&self, to: &mut [u8; VALUE_MAX]) -> usize {
        let is_point =
            self.x.0.to_bits() == self.x.1.to_bits() && self.y.0.to_bits() == self.y.1.to_bits();
        let point = [self.x.0, self.y.0];
        let sides = [self.x.0, self.x.1, self.y.0, self.y.1];
        let (kind, numbers) = if is_point { (POINT, &point[..]) } else { (SIDES, &sides[..]) };
        to[0] = kind;
        for (place, number) in to[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        value_len(kind).unwrap_or(VALUE_MAX)
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

/// How long a rectangle is in a value whose first byte this is.
pub fn value_len(kind: u8) -> Option<usize> {
    match kind {
        POINT => Some(17),
        SIDES => Some(VALUE_MAX),
        _ => None,
    }
}

/// The numbers that the bytes begin with.
fn numbers<const COUNT: usize>(bytes: &[u8]) -> Option<[f64; COUNT]> {
    let mut numbers = [0.0; COUNT];
    for (number, eight) in numbers.iter_mut().zip(bytes.get(..8 * COUNT)?.chunks_exact(8)) {
        *number = f64::from_le_bytes(eight.try_into().ok()?);
    }
    Some(numbers)
}
