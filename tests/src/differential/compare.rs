//! The comparison of two outcomes, and the differences that are allowed.
//!
//! Allowed everywhere, whatever a statement's [`Strictness`]:
//!
//! - the names of engines and of the two databases in texts;
//! - ENGINE= and AUTO_INCREMENT= in SHOW CREATE TABLE: engines leave different gaps in generated
//!   numbers;
//! - the names of the temporary tables and indexes that ALTER TABLE and the optimizer make up;
//! - which BLOB type an expression has: it depends on whether the plan has a temporary table.
//!
//! Left open by SQL for some statements, which the generator says:
//!
//! - the order of rows without ORDER BY;
//! - which of several errors a statement meets first, and the texts of warnings, where rows are
//!   visited in an open order;
//! - warnings of conversions in conditions: the plan decides how often these are evaluated;
//! - affected rows of ALTER TABLE.
//!
//! Left out by the generator: CHAR with a NO PAD collation (the server compares it without its
//! padding, sorts it with it, and InnoDB's indexes do as sorting does), NULL for a NOT NULL
//! geometry without strict mode (InnoDB refuses the empty value if it is to replace another, other
//! engines store it), tables that INSERT … SELECT reads for themselves by an index (the server
//! loses rows with long texts), a column made NOT NULL in place (its NULLs become the default in
//! InnoDB, and the type's zero in a copy), multi-range reads with virtual columns (InnoDB gives
//! rows twice), `<=>` through hashed join caches (the server loses rows).
//!
//! EXPLAIN, statistics and SHOW TABLE STATUS are not compared at all.

use super::session::{Answer, Outcome, Row, Side, Warning};
use super::statement::Strictness;

/// The most bytes of a value that a report shows.
const SHOWN_BYTES_MAX: usize = 120;

/// The difference, in words; `None` if there is none.
pub fn difference(
    reference: (&Side, &Outcome),
    subject: (&Side, &Outcome),
    strictness: Strictness,
) -> Option<String> {
    let (r, s) = (normalised(reference), normalised(subject));
    answers(&r, &s, strictness).or_else(|| warnings(&r, &s, strictness)).map(|what| {
        format!("{what}\n{}:\n{}{}:\n{}", reference.0.engine, show(&r), subject.0.engine, show(&s))
    })
}

/// The outcome with the names replaced that are allowed to differ.
fn normalised((side, outcome): (&Side, &Outcome)) -> Outcome {
    let text = |text: &str| normalised_text(side, text);
    let answer = match &outcome.answer {
        Answer::Rows { types, rows } => {
            let value = |value: &Option<Vec<u8>>| {
                value.as_ref().map(|bytes| {
                    if bytes.starts_with(b"CREATE ") {
                        let text =
                            without_option(without_option(bytes, b" ENGINE="), b" AUTO_INCREMENT=");
                        without_partition_engines(text)
                    } else if bytes.starts_with(side.database.as_bytes())
                        || bytes.starts_with(b"Table '")
                    {
                        text(&String::from_utf8_lossy(bytes)).into_bytes()
                    } else {
                        bytes.clone()
                    }
                })
            };
            let rows = rows.iter().map(|row| row.iter().map(value).collect()).collect();
            Answer::Rows { types: types.clone(), rows }
        }
        Answer::Failed { code, message } => Answer::Failed { code: *code, message: text(message) },
        other => other.clone(),
    };
    let warnings = outcome
        .warnings
        .iter()
        .map(|warning| Warning { message: text(&warning.message), ..warning.clone() })
        .collect();
    Outcome { answer, warnings }
}

fn normalised_text(side: &Side, text: &str) -> String {
    let mut text = without_temporary_names(&text.replace(&side.database, "DB"));
    for engine in [side.engine.as_str(), "InnoDB", "Tidepool", "TIDEPOOL"] {
        text = text.replace(engine, "ENGINE");
    }
    text
}

/// A column's type in the protocol; all BLOB types, 249 to 252, as one.
fn family(column_type: u8) -> u8 {
    if (249..=252).contains(&column_type) { 252 } else { column_type }
}

/// The text without the numbers in the names of temporary tables' files.
fn without_temporary_names(text: &str) -> String {
    const NAME: &str = "#sql-temptable-";
    let mut parts = text.split(NAME);
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        out.push_str(NAME);
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit() || c == '-'));
    }
    out
}

/// The text without an option ` NAME=word`.
fn without_option(text: impl AsRef<[u8]>, option: &[u8]) -> Vec<u8> {
    let mut text = text.as_ref().to_vec();
    if let Some(start) = text.windows(option.len()).position(|window| window == option) {
        let value = start + option.len();
        let length = text[value..].iter().position(|byte| b" \n".contains(byte));
        text.drain(start..length.map_or(text.len(), |length| value + length));
    }
    text
}

/// The text without the engines of partitions.
fn without_partition_engines(mut text: Vec<u8>) -> Vec<u8> {
    const OPTION: &[u8] = b" ENGINE = ";
    while let Some(start) = text.windows(OPTION.len()).position(|window| window == OPTION) {
        let name = start + OPTION.len();
        let length = text[name..].iter().position(|byte| !byte.is_ascii_alphabetic());
        text.drain(start..length.map_or(text.len(), |length| name + length));
    }
    text
}

/// Whether an outcome is the subject's refusal of what the reference takes, in a way that is
/// documented: a row's key, in its ordered form, together with the primary key, has a limit of its
/// own.
pub fn is_documented_limit(outcome: &Outcome) -> bool {
    matches!(&outcome.answer, Answer::Failed { message, .. } if message.contains("longer than the limit"))
}

/// Whether a statement of the reference was given up, which the subject may finish: after
/// `max_statement_time`, or for an undo record that InnoDB has no room for.
pub fn gave_up(outcome: &Outcome) -> bool {
    matches!(outcome.answer, Answer::Failed { code: 1969 | 1713, .. })
}

fn answers(r: &Outcome, s: &Outcome, strictness: Strictness) -> Option<String> {
    match (&r.answer, &s.answer) {
        (Answer::Lost(_), _) | (_, Answer::Lost(_)) => Some("the server died or hung".into()),
        (Answer::Rows { types: a, rows: x }, Answer::Rows { types: b, rows: y }) => {
            if !a.iter().map(|t| family(*t)).eq(b.iter().map(|t| family(*t))) {
                return Some(format!("column types differ: {a:?}, {b:?}"));
            }
            rows(x, y, strictness.any_order)
        }
        (
            Answer::Done { affected: a, insert_id: i, info: x },
            Answer::Done { affected: b, insert_id: j, info: y },
        ) => {
            if a != b && !strictness.no_count {
                Some(format!("affected rows differ: {a}, {b}"))
            } else if x != y && !strictness.no_count {
                Some(format!("infos differ: {x:?}, {y:?}"))
            } else {
                (i != j).then(|| format!("last insert ids differ: {i}, {j}"))
            }
        }
        (Answer::Failed { code: a, message: x }, Answer::Failed { code: b, message: y }) => {
            if strictness.lenient {
                None
            } else if a != b {
                Some(format!("error codes differ: {a}, {b}"))
            } else {
                (x != y).then(|| "error texts differ".into())
            }
        }
        _ => Some("one succeeds, the other does not".into()),
    }
}

fn rows(x: &[Row], y: &[Row], any_order: bool) -> Option<String> {
    let (mut x, mut y): (Vec<&Row>, Vec<&Row>) = (x.iter().collect(), y.iter().collect());
    if any_order {
        x.sort();
        y.sort();
    }
    if x == y {
        return None;
    }
    let mut what = format!("rows differ ({} and {})", x.len(), y.len());
    if let Some(at) = (0..x.len().max(y.len())).find(|at| x.get(*at) != y.get(*at)) {
        let row = |rows: &[&Row]| rows.get(at).map_or("nothing".into(), |row| show_row(row));
        what.push_str(&format!("; first at {at}: {} / {}", row(&x), row(&y)));
    }
    Some(what)
}

fn warnings(r: &Outcome, s: &Outcome, strictness: Strictness) -> Option<String> {
    if strictness.no_warnings {
        return None;
    }
    let failed = !r.is_ok();
    if strictness.lenient && failed {
        return None;
    }
    let (mut x, mut y) = (r.warnings.clone(), s.warnings.clone());
    if strictness.lenient {
        for warning in x.iter_mut().chain(&mut y) {
            warning.message.clear();
        }
        x.sort();
        y.sort();
    }
    (x != y).then(|| "warnings differ".into())
}

fn show_row(row: &[Option<Vec<u8>>]) -> String {
    let value = |value: &Option<Vec<u8>>| match value {
        None => "NULL".to_string(),
        Some(bytes) if bytes.len() > SHOWN_BYTES_MAX => {
            format!("{}… ({} bytes)", bytes[..SHOWN_BYTES_MAX].escape_ascii(), bytes.len())
        }
        Some(bytes) => bytes.escape_ascii().to_string(),
    };
    let values: Vec<String> = row.iter().map(value).collect();
    format!("[{}]", values.join(" | "))
}

/// The outcome in a line.
pub fn brief(outcome: &Outcome) -> String {
    let warnings = outcome.warnings.len();
    match &outcome.answer {
        Answer::Rows { rows, .. } => format!("{} rows, {warnings} warnings", rows.len()),
        Answer::Done { affected, .. } => format!("{affected} affected, {warnings} warnings"),
        Answer::Failed { code, message } => format!("error {code}: {message}"),
        Answer::Lost(why) => format!("lost: {why}"),
    }
}

fn show(outcome: &Outcome) -> String {
    let mut text = match &outcome.answer {
        Answer::Rows { rows, .. } => {
            let lines: Vec<String> =
                rows.iter().take(20).map(|row| format!("  {}\n", show_row(row))).collect();
            let more = if rows.len() > 20 { "  …\n" } else { "" };
            format!("  {} rows\n{}{more}", rows.len(), lines.concat())
        }
        Answer::Done { affected, insert_id, info } => {
            format!("  {affected} rows affected, insert id {insert_id}, {info:?}\n")
        }
        Answer::Failed { code, message } => format!("  error {code}: {message}\n"),
        Answer::Lost(why) => format!("  lost: {why}\n"),
    };
    for Warning { level, code, message } in outcome.warnings.iter().take(8) {
        text.push_str(&format!("  {level} {code}: {message}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides() -> (Side, Side) {
        let dir = std::path::Path::new("/tmp");
        (Side::new("InnoDB", "left", dir), Side::new("Tidepool", "right", dir))
    }

    fn outcome(answer: Answer) -> Outcome {
        Outcome { answer, warnings: Vec::new() }
    }

    fn compare(x: Answer, y: Answer, strictness: Strictness) -> Option<String> {
        let (left, right) = sides();
        difference((&left, &outcome(x)), (&right, &outcome(y)), strictness)
    }

    fn one_column(values: &[&str]) -> Answer {
        let rows = values.iter().map(|value| vec![Some(value.as_bytes().to_vec())]).collect();
        Answer::Rows { types: vec![253], rows }
    }

    #[test]
    fn the_order_of_rows_matters_unless_it_is_open() {
        let (x, y) = (one_column(&["a", "b"]), one_column(&["b", "a"]));
        assert!(compare(x.clone(), y.clone(), Strictness::default()).is_some());
        let any_order = Strictness { any_order: true, ..Strictness::default() };
        assert_eq!(compare(x, y, any_order), None);
        assert!(compare(one_column(&["a", "a"]), one_column(&["a"]), any_order).is_some());
    }

    #[test]
    fn names_of_engines_and_databases_may_differ() {
        let failed = |message: &str| Answer::Failed { code: 1, message: message.into() };
        let (x, y) = (failed("left.t of InnoDB"), failed("right.t of Tidepool"));
        assert_eq!(compare(x, y, Strictness::default()), None);
        let frm = |numbers| {
            failed(&format!("Incorrect information in file: './#sql-temptable-{numbers}.frm'"))
        };
        assert_eq!(compare(frm("33be-87-16"), frm("33be-8a-9"), Strictness::default()), None);
        let x = one_column(&["CREATE TABLE t (a int) ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT x"]);
        let y = one_column(&["CREATE TABLE t (a int) ENGINE=TIDEPOOL DEFAULT x"]);
        assert_eq!(compare(x, y, Strictness::default()), None);
        let parted = |engine| {
            format!(
                "CREATE TABLE t (a int) (PARTITION p0 ENGINE = {engine},\n PARTITION p1 ENGINE = {engine})"
            )
        };
        let (x, y) = (parted("InnoDB"), parted("TIDEPOOL"));
        assert_eq!(compare(one_column(&[&x]), one_column(&[&y]), Strictness::default()), None);
    }

    #[test]
    fn blob_types_are_one() {
        let typed = |types: &[u8]| Answer::Rows { types: types.to_vec(), rows: Vec::new() };
        assert_eq!(compare(typed(&[250, 8]), typed(&[252, 8]), Strictness::default()), None);
        assert!(compare(typed(&[253, 8]), typed(&[252, 8]), Strictness::default()).is_some());
    }

    #[test]
    fn errors_must_be_the_same_unless_the_first_one_is_open() {
        let failed = |code| Answer::Failed { code, message: String::new() };
        assert!(compare(failed(1062), failed(1264), Strictness::default()).is_some());
        let lenient = Strictness { lenient: true, ..Strictness::default() };
        assert_eq!(compare(failed(1062), failed(1264), lenient), None);
        assert!(compare(failed(1062), one_column(&[]), lenient).is_some());
    }
}
