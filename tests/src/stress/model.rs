//! A writer's rows, as it knows them, and random values for them.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Words of the FULLTEXT column. None is part of another.
pub const WORDS: [&str; 8] =
    ["alpha", "bravo", "delta", "omega", "sigma", "kappa", "lambda", "theta"];

/// The columns of a row, as [`ROW_COLUMNS`] reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub n: Option<i64>,
    pub v: Option<String>,
    pub u: Option<i64>,
    /// Eight letters that the value repeats, and its length.
    pub b: String,
    pub t: String,
    /// A point.
    pub p: String,
}

/// The values of [`ROW_COLUMNS`].
pub type Columns = (u64, Option<i64>, Option<String>, Option<i64>, String, String, String);

impl Row {
    /// The row, behind its id.
    pub fn from_columns((id, n, v, u, b, t, p): Columns) -> (u64, Row) {
        (id, Row { n, v, u, b, t, p })
    }
}

/// What gives a [`Row`] behind its id.
pub const ROW_COLUMNS: &str = "id, n, v, u, IF(b = REPEAT(LEFT(b, 8), LENGTH(b) DIV 8), \
     CONCAT(LEFT(b, 8), LENGTH(b)), 'not a repetition'), t, ST_AsText(p)";

/// Rows by id.
pub type Rows = BTreeMap<u64, Row>;

/// Short or long, with letters that collations take for one another.
pub fn text(rng: &mut StdRng) -> String {
    let letter = *["a", "A", "ä", "b", "B", "x7"].choose(rng).expect("there are some");
    letter.repeat(*[1, 3, 140].choose(rng).expect("there are some"))
}

/// Up to four of [`WORDS`], or none.
pub fn words(rng: &mut StdRng) -> String {
    let count = rng.random_range(0..5);
    let words: Vec<&str> =
        (0..count).map(|_| *WORDS.choose(rng).expect("there are some")).collect();
    words.join(" ")
}

/// The expression of a value within the row or beside it, and how a [`Row`] has it.
pub fn blob(rng: &mut StdRng) -> (String, String) {
    let repetitions = *[1, 1, 2, 50, 1200, 5000].choose(rng).expect("there are some");
    let b = format!("{:08x}{}", rng.random::<u32>(), repetitions * 8);
    (blob_sql(&b), b)
}

/// The expression of a value that a [`Row`] has so.
pub fn blob_sql(b: &str) -> String {
    let (letters, length) = b.split_at(8);
    let length: u64 = length.parse().expect("a length follows the letters");
    format!("REPEAT('{letters}', {})", length / 8)
}

/// The expression of a point, and how a [`Row`] has it.
pub fn point(rng: &mut StdRng) -> (String, String) {
    let p = format!("POINT({} {})", rng.random_range(-20..20), rng.random_range(-20..20));
    (format!("ST_GeomFromText('{p}')"), p)
}

/// The first rows in which two sets differ, for a report.
pub fn difference(found: &Rows, expected: &Rows) -> String {
    let ids: BTreeSet<u64> = found.keys().chain(expected.keys()).copied().collect();
    let differing: Vec<u64> =
        ids.into_iter().filter(|id| found.get(id) != expected.get(id)).collect();
    let show =
        |id: &u64| format!("{id}: found {:?}, expected {:?}", found.get(id), expected.get(id));
    let shown: Vec<String> = differing.iter().take(3).map(show).collect();
    format!("{} rows differ: {}", differing.len(), shown.join("; "))
}
