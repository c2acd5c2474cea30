//! The published answers at scale factor 1, and what counts as the same answer.

/// A difference that rounding to two places explains.
const ROUNDING: f64 = 0.010_001;

/// Query 17 returns a ratio. Such results may differ by a hundredth (the specification, 2.1.3.5):
/// the crate's answer is that of a database that rounds an average before it compares with it.
const RATIO: usize = 17;
const RATIO_ROUNDING: f64 = 0.01;

/// Rows as text, a cell a column.
pub type Rows = Vec<Vec<String>>;

/// Query 11 returns a part's number first, of which the crate's answer has the first digits only.
const CUT: usize = 11;

/// The columns of an answer that are compared.
pub fn compared(number: usize, mut rows: Rows) -> Rows {
    if number == CUT {
        rows.iter_mut().filter(|row| !row.is_empty()).for_each(|row| drop(row.remove(0)));
    }
    rows
}

/// The columns that are compared of the answer to a query at scale factor 1.
pub fn published(number: usize) -> Rows {
    let text = tpchgen::q_and_a::answers_sf1::answer(number as i32).expect("1 to 22");
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    // The first line names the columns.
    compared(number, lines.skip(1).map(cells).collect())
}

fn cells(line: &str) -> Vec<String> {
    line.split('|').map(|cell| cell.trim().to_string()).collect()
}

/// Says where two answers to a query differ, if they do. Numbers may differ by rounding to two
/// places, ratios by a hundredth.
pub fn difference(number: usize, found: &Rows, expected: &Rows) -> Option<String> {
    let relative = if number == RATIO { RATIO_ROUNDING } else { 0.0 };
    if found.len() != expected.len() {
        return Some(format!("{} rows in place of {}", found.len(), expected.len()));
    }
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(a, b)| is_same(a, b, relative));
        if !same {
            return Some(format!("row {}: {found:?} in place of {expected:?}", at + 1));
        }
    }
    None
}

fn is_same(found: &str, expected: &str, relative: f64) -> bool {
    let (found, expected) = (found.trim(), expected.trim());
    match (found.parse::<f64>(), expected.parse::<f64>()) {
        (Ok(found), Ok(expected)) => {
            (found - expected).abs() <= ROUNDING.max(expected.abs() * relative)
        }
        _ => found == expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_has_an_answer() {
        for number in 1..=super::super::queries::COUNT {
            let rows = published(number);
            assert!(!rows.is_empty(), "{number}");
            assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{number}");
        }
        assert_eq!(published(1)[0][..3], ["A", "F", "37734107.00"]);
        assert_eq!(published(11)[0], ["17538456.86"]);
    }

    #[test]
    fn only_rounding_is_no_difference() {
        let rows = |text: &[&str]| text.iter().map(|line| cells(line)).collect::<Rows>();
        let expected = rows(&["A|25.52", "B|3"]);
        assert_eq!(difference(1, &rows(&["A|25.522006", "B |3"]), &expected), None);
        let wrong = difference(1, &rows(&["A|25.54", "B|3"]), &expected).unwrap();
        assert!(wrong.starts_with("row 1"), "{wrong}");
        assert!(difference(1, &rows(&["A|25.52"]), &expected).unwrap().contains("1 rows"));
        assert!(difference(1, &rows(&["B|3", "A|25.52"]), &expected).is_some());
        let (yearly, rounded) = (rows(&["348406.054286"]), rows(&["348406.02"]));
        assert!(difference(1, &yearly, &rounded).is_some());
        assert_eq!(difference(RATIO, &yearly, &rounded), None);
        assert!(difference(RATIO, &rows(&["341000.0"]), &rounded).is_some());
    }
}
