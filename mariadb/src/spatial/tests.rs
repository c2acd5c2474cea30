// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Keys and ranges against what comparing all rectangles finds.

use std::ops::Range;

use proptest::prelude::*;

use super::cell::{self, CLASSES, Cell, Code, KEY_MAX, NOWHERE, start_of};
use super::grid::{PLACE_BITS, place};
use super::rectangle::{IMAGE_LEN, Rectangle, Relation, VALUE_MAX, value_len};
use super::statistics::Statistics;
use super::window::{Cover, Ranges, Window};

const RELATIONS: [Relation; 5] =
    [Relation::Intersects, Relation::Inside, Relation::Around, Relation::Disjoint, Relation::Equal];

/// Ranges of a class at most.
const RANGES_MOST: usize = 22;

/// Coordinates near each other, of all sizes, and the extreme ones.
fn coordinate() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -8.0..8.0,
        2 => (-20i32..20).prop_map(f64::from),
        2 => -1e9..1e9,
        1 => (-300i32..300, -1.0..1.0).prop_map(|(exponent, x)| x * 10f64.powi(exponent)),
        1 => prop::sample::select(vec![
            0.0, -0.0, f64::MAX, f64::MIN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE,
            33_554_432.0, -33_554_432.0, 33_554_431.999_999, f64::EPSILON,
        ]),
    ]
}

/// The sides in one direction: often short, or none.
fn sides() -> impl Strategy<Value = (f64, f64)> {
    let sorted = |a: f64, b: f64| if a <= b { (a, b) } else { (b, a) };
    prop_oneof![
        3 => (coordinate(), coordinate()).prop_map(move |(a, b)| sorted(a, b)),
        3 => (coordinate(), 0.0..2.0).prop_map(|(a, extent)| (a, a + extent)),
        1 => coordinate().prop_map(|a| (a, a)),
    ]
}

fn rectangle() -> impl Strategy<Value = Rectangle> {
    let none = (f64::MAX, -f64::MAX);
    prop_oneof![
        20 => (sides(), sides()).prop_map(|(x, y)| Rectangle { x, y }),
        1 => Just(Rectangle { x: none, y: none }),
        1 => sides().prop_map(move |y| Rectangle { x: none, y }),
    ]
}

/// All ranges that there are; those that follow each other are one.
fn all_of(mut next_from: impl FnMut(Code) -> Option<Range<Code>>) -> Vec<Range<Code>> {
    let (mut all, mut code): (Vec<Range<Code>>, Code) = (Vec::new(), 0);
    while let Some(range) = next_from(code) {
        code = range.end;
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

fn ranges_of(window: Window) -> Vec<Range<Code>> {
    let mut ranges = Ranges::of(window);
    all_of(|code| ranges.next_from(code))
}

fn cover(class: u32, corners: ((u64, u64), (u64, u64))) -> Vec<Range<Code>> {
    let cover = Cover::new(class, corners);
    all_of(|code| (cell::class_of(code) <= class).then(|| cover.next_from(code)).flatten())
}

proptest! {
    #[test]
    fn places_are_in_the_order_of_coordinates(a in coordinate(), b in coordinate()) {
        prop_assert!(place(a) < 1 << PLACE_BITS);
        if a <= b {
            prop_assert!(place(a) <= place(b), "{a} {b}");
        }
    }

    #[test]
    fn a_rectangle_is_read_as_it_was_written(rectangle in rectangle()) {
        let mut bytes = [0; VALUE_MAX];
        let len = rectangle.put_value(&mut bytes);
        prop_assert_eq!(value_len(bytes[0]), Some(len));
        prop_assert_eq!(Rectangle::of_value(&bytes[..len]), Some(rectangle));
        prop_assert_eq!(Rectangle::of_value(&bytes), Some(rectangle));
        prop_assert_eq!(Rectangle::of_value(&bytes[..len - 1]), None);
        if len == VALUE_MAX {
            prop_assert_eq!(Rectangle::of_image(&bytes[1..]), Some(rectangle));
            prop_assert_eq!(Rectangle::of_image(&bytes[1..IMAGE_LEN]), None);
        }
    }

    #[test]
    fn keys_are_numbers(
        a in rectangle(),
        b in rectangle(),
        rest in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let (a, b) = (Cell::of(&a).code(), Cell::of(&b).code());
        let ((mut key, len), (other, other_len)) = (cell::to_bytes(a), cell::to_bytes(b));
        prop_assert_eq!(a.cmp(&b), key[..len].cmp(&other[..other_len]));
        let entry = [&key[..len], &rest].concat();
        prop_assert_eq!(cell::from_bytes(&entry), Some(a));
        prop_assert_eq!(cell::from_bytes(&entry[..len - 1]), None);
        key[0] = NOWHERE as u8 + 1;
        prop_assert_eq!(cell::from_bytes(&key), None);
    }

    #[test]
    fn bits_that_come_by_turns_are_separated(x in 0u64..1 << 48, y in 0u64..1 << 48) {
        prop_assert_eq!(cell::separate(cell::interleave(x, y)), (x, y));
    }

    #[test]
    fn a_search_goes_on_from_any_key(
        window in rectangle(),
        keys in prop::collection::vec(rectangle(), 1..20),
    ) {
        for relation in RELATIONS {
            let window = Window::new(relation, window);
            let all = ranges_of(window);
            let mut ranges = Ranges::of(window);
            for key in &keys {
                let code = Cell::of(key).code();
                let is_within = |inner: &Range<Code>| {
                    all.iter().any(|one| one.start <= inner.start && inner.end <= one.end)
                };
                let wanted = all.iter().find(|one| code < one.end);
                match (ranges.next_from(code), wanted) {
                    (None, None) => {}
                    (Some(found), Some(wanted)) => {
                        prop_assert!(code < found.end && is_within(&found));
                        prop_assert!(found.start == wanted.start || found.contains(&code));
                        prop_assert_eq!(found.contains(&code), wanted.contains(&code));
                    }
                    (found, wanted) => prop_assert!(false, "{:?} {:?}", found, wanted),
                }
            }
        }
    }

    #[test]
    fn a_search_looks_where_its_rectangles_are(
        entries in prop::collection::vec(rectangle(), 1..40),
        window in rectangle(),
        near in any::<prop::sample::Index>(),
        use_entry in any::<bool>(),
    ) {
        let window = if use_entry { *near.get(&entries) } else { window };
        for relation in RELATIONS {
            let window = Window::new(relation, window);
            let ranges = ranges_of(window);
            prop_assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
            for entry in &entries {
                let code = Cell::of(entry).code();
                let is_looked_at = ranges.iter().any(|range| range.contains(&code));
                prop_assert!(is_looked_at || !window.takes(entry), "{relation:?} {entry:?}");
            }
            for class in 0..CLASSES as u32 {
                let in_class = |range: &&Range<Code>| cell::class_of(range.start) == class;
                let count = ranges.iter().filter(in_class).count();
                prop_assert!(count <= RANGES_MOST, "{relation:?}, class {class}: {count} ranges");
            }
        }
    }

    #[test]
    fn a_search_looks_little_farther_than_its_corners(
        class in 0..=PLACE_BITS,
        corner in (any::<u64>(), any::<u64>()),
        extent in (0..48u32, 0..48u32),
    ) {
        let mask = (1u64 << PLACE_BITS) - 1;
        let side = |from: u64, extent: u32| {
            let from = from & mask;
            (from, (from + (1 << extent)).min(mask))
        };
        let corners = (side(corner.0, extent.0), side(corner.1, extent.1));
        let ranges = cover(class, corners);
        prop_assert!(ranges.len() <= RANGES_MOST);
        let unit = 1u64 << (PLACE_BITS - cell::place_bits(class));
        let longest = [corners.0, corners.1].map(|(from, to)| to - from + 1);
        // A square is no more than a third of the longer side, or the smallest that there is.
        let square = (longest[0].max(longest[1]) / 3).max(unit);
        let most = longest.map(|side| (side + 2 * square) as f64);
        let covered: f64 = ranges.iter().map(|range| (range.end - range.start) as f64).sum();
        prop_assert!(covered <= most[0] * most[1], "{covered} of {most:?}");
    }
}

#[test]
fn all_corners_of_a_rectangle_are_covered_and_each_square_is_needed() {
    for class in [0, 3, 20, 48] {
        let unit = 1u64 << (PLACE_BITS - cell::place_bits(class));
        let last = (1u64 << cell::place_bits(class)) - 1;
        for (x, y) in [((0, 0), (0, 0)), ((3, 10), (5, 9)), ((7, 8), (1, 8)), ((0, 7), (0, 7))] {
            let places = |(from, to): (u64, u64)| (from * unit, to * unit + unit - 1);
            let ranges = cover(class, (places(x), places(y)));
            for column in 0..16.min(last) {
                for row in 0..16.min(last) {
                    let code = start_of(class) + cell::interleave(column * unit, row * unit);
                    let is_inside = (x.0..=x.1).contains(&column) && (y.0..=y.1).contains(&row);
                    let is_covered = ranges.iter().any(|range| range.contains(&code));
                    assert_eq!(is_inside, is_covered, "class {class}, {column}, {row}");
                }
            }
        }
    }
}

#[test]
fn equal_rectangles_across_zero_are_of_one_class() {
    let class = |x: f64| Cell::of(&Rectangle { x: (x, x + 10.0), y: (-5.0, 5.0) }).class;
    assert_eq!([-1e6, -10.0, -5.0, 0.0, 3.0, 1e6].map(class), [26; 6]);
    let point = Rectangle { x: (1.5, 1.5), y: (-2.5, -2.5) };
    assert_eq!(Cell::of(&point).class, 0);
    assert_eq!(cell::to_bytes(Cell::of(&point).code()).1, KEY_MAX);
    let world = Rectangle { x: (f64::MIN, f64::MAX), y: (0.0, 0.0) };
    assert_eq!(Cell::of(&world).class, PLACE_BITS);
}

#[test]
fn an_estimate_is_near_what_is_found() {
    // Rectangles of several sizes, more of them on the left.
    let side = |n: u64| (n * 7919 % 10_000) as f64 / 10.0;
    let rectangle = |n: u64| {
        let (x, y) = (side(n) * side(n) / 1000.0, side(n / 3 + 7 * n));
        Rectangle { x: (x, x + (n % 50) as f64 / 10.0), y: (y, y + 1.0) }
    };
    let all: Vec<Rectangle> = (0..20_000).map(rectangle).collect();
    let mut codes: Vec<Code> = all.iter().map(|one| Cell::of(one).code()).collect();
    codes.sort_unstable();
    let below = |code: Code| codes.partition_point(|one| *one < code) as u64;
    let counted: Result<_, std::convert::Infallible> =
        Statistics::count(&mut |range| Ok(below(range.end) - below(range.start)));
    let statistics = counted.expect("no counting fails");
    for (x, y, extent) in [(10.0, 10.0, 50.0), (500.0, 300.0, 100.0), (0.0, 0.0, 1000.0)] {
        let sides = |from: f64| (from, from + extent);
        let window = Rectangle { x: sides(x), y: sides(y) };
        for relation in [Relation::Intersects, Relation::Inside, Relation::Disjoint] {
            let window = Window::new(relation, window);
            let found = all.iter().filter(|one| window.takes(one)).count() as f64;
            let estimate = statistics.estimate(&window, 20_000) as f64;
            let is_near = estimate >= found / 2.0 && estimate <= found * 2.0 + 100.0;
            let is_all = relation == Relation::Disjoint && estimate == 20_000.0;
            assert!(is_near || is_all, "{relation:?} {extent}: {estimate}, found {found}");
        }
    }
    let nowhere: Result<_, std::convert::Infallible> = Statistics::count(&mut |_| Ok(0));
    let point = Rectangle { x: (1.0, 1.0), y: (1.0, 1.0) };
    let window = Window::new(Relation::Intersects, point);
    assert_eq!(nowhere.expect("no counting fails").estimate(&window, 7), 7);
}
