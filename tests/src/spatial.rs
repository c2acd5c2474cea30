//! Geometries as text, of all types: near each other, so that they overlap, and extreme ones.

use rand::Rng;
use rand::rngs::StdRng;

/// The types of columns.
pub const TYPES: [&str; 8] = [
    "POINT",
    "LINESTRING",
    "POLYGON",
    "MULTIPOINT",
    "MULTILINESTRING",
    "MULTIPOLYGON",
    "GEOMETRYCOLLECTION",
    "GEOMETRY",
];

/// Which geometries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Any, also such as have no point, or are at the end of the world.
    Any,
    /// Some that are near 0 and have a point.
    Near,
}

/// A coordinate: often a small whole number, so that sides touch.
fn coordinate(dice: &mut StdRng, shape: Shape) -> String {
    match dice.random_range(0..40) {
        0 if shape == Shape::Any => "1e300".into(),
        1 if shape == Shape::Any => "-40000000.5".into(),
        2 if shape == Shape::Any => "-0.0".into(),
        3..10 => format!("{:.3}", dice.random_range(-10.0..10.0)),
        _ => dice.random_range(-10i32..10).to_string(),
    }
}

fn point(dice: &mut StdRng, shape: Shape) -> String {
    format!("{} {}", coordinate(dice, shape), coordinate(dice, shape))
}

fn line(dice: &mut StdRng, shape: Shape) -> String {
    let points: Vec<String> = (0..dice.random_range(2..5)).map(|_| point(dice, shape)).collect();
    format!("({})", points.join(","))
}

/// A rectangle, sometimes with a hole.
fn polygon(dice: &mut StdRng) -> String {
    let (x, y) = (dice.random_range(-10i32..10), dice.random_range(-10i32..10));
    let (right, top) = (x + dice.random_range(1..8), y + dice.random_range(1..8));
    let ring = |x: f64, right: f64, y: f64, top: f64| {
        format!("({x} {y},{right} {y},{right} {top},{x} {top},{x} {y})")
    };
    let [x, right, y, top] = [x, right, y, top].map(f64::from);
    let outer = ring(x, right, y, top);
    match dice.random_bool(0.2) {
        true => format!("({outer},{})", ring(x + 0.25, x + 0.5, y + 0.25, y + 0.5)),
        false => format!("({outer})"),
    }
}

/// A geometry that a column of this type can have.
pub fn geometry(dice: &mut StdRng, column_type: &str, shape: Shape) -> String {
    let some = |dice: &mut StdRng, one: &mut dyn FnMut(&mut StdRng) -> String| {
        let all: Vec<String> = (0..dice.random_range(1..4)).map(|_| one(dice)).collect();
        all.join(",")
    };
    match column_type {
        "POINT" => format!("POINT({})", point(dice, shape)),
        "LINESTRING" => format!("LINESTRING{}", line(dice, shape)),
        "POLYGON" => format!("POLYGON{}", polygon(dice)),
        "MULTIPOINT" => format!("MULTIPOINT({})", some(dice, &mut |dice| point(dice, shape))),
        "MULTILINESTRING" => {
            format!("MULTILINESTRING({})", some(dice, &mut |dice| line(dice, shape)))
        }
        "MULTIPOLYGON" => format!("MULTIPOLYGON({})", some(dice, &mut polygon)),
        "GEOMETRYCOLLECTION" if shape == Shape::Any && dice.random_bool(0.1) => {
            "GEOMETRYCOLLECTION EMPTY".into()
        }
        "GEOMETRYCOLLECTION" => {
            let mut one = |dice: &mut StdRng| {
                let kind = TYPES[dice.random_range(0..6)];
                geometry(dice, kind, shape)
            };
            format!("GEOMETRYCOLLECTION({})", some(dice, &mut one))
        }
        _ => {
            let kind = TYPES[dice.random_range(0..7)];
            geometry(dice, kind, shape)
        }
    }
}
