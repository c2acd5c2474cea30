//! A model of FULLTEXT search: documents of ASCII words, queries, and which documents match.
//!
//! It knows nothing of indexes: a query is asked of each document.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use mysql::Conn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::server::wait_until;
use crate::sql::{number, run};

/// Words that documents and queries are made of. The last two are in no index: a stopword, and one
/// that is too short.
pub const WORDS: [&str; 10] =
    ["alpha", "alpine", "beta", "betamax", "gamma", "delta", "deltas", "omega", "the", "xy"];
/// How many of them indexes have.
pub const INDEXED: usize = 8;

/// The columns of a row; none: NULL.
pub type Document = [Option<String>; 2];
/// Rows by id.
pub type Documents = BTreeMap<u32, Document>;

/// A column of some words, or NULL.
pub fn text(dice: &mut StdRng) -> Option<String> {
    if dice.random_range(0..10) == 0 {
        return None;
    }
    let count = dice.random_range(0..9);
    let word = |dice: &mut StdRng| WORDS[dice.random_range(0..WORDS.len())];
    let words: Vec<&str> = (0..count).map(|_| word(dice)).collect();
    // What separates words is nothing to the index.
    let between = [" ", ", ", " - ", "\n"][dice.random_range(0..4)];
    let text = words.join(between);
    Some(if dice.random_bool(0.2) { text.to_uppercase() } else { text })
}

/// A text as a literal of SQL.
pub fn quoted(text: Option<&str>) -> String {
    text.map_or("NULL".into(), |text| format!("'{}'", text.replace('\n', "\\n")))
}

/// A query of boolean mode.
#[derive(Debug, Clone)]
pub enum Query {
    /// A word.
    Word(&'static str),
    /// What begins so.
    Beginning(&'static str),
    /// Words that follow each other.
    Phrase(Vec<&'static str>),
    /// Words that stand among this number of words.
    Near(Vec<&'static str>, usize),
    /// Some, each with its operator: `+`, `-`, or a space.
    Group(Vec<(char, Query)>),
}

/// Which queries are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All.
    Any,
    /// Those about which Tidepool and InnoDB agree: no words that are not indexed, no groups in
    /// groups, and nothing beside a phrase, where InnoDB passes over `-` and forgets rows.
    Plain,
}

impl Query {
    /// A random one.
    pub fn new(dice: &mut StdRng, shape: Shape) -> Query {
        Query::group(dice, shape, if shape == Shape::Plain { 1 } else { 2 })
    }

    fn group(dice: &mut StdRng, shape: Shape, depth: usize) -> Query {
        let count = dice.random_range(1..4);
        let mut terms = Vec::new();
        for _ in 0..count {
            let operator = ['+', '+', '-', ' ', ' '][dice.random_range(0..5)];
            terms.push((operator, Query::term(dice, shape, depth)));
        }
        let is_phrase =
            |(_, term): &&(char, Query)| matches!(term, Query::Phrase(_) | Query::Near(..));
        if shape == Shape::Plain
            && let Some((_, phrase)) = terms.iter().find(is_phrase)
        {
            terms = vec![(' ', phrase.clone())];
        }
        Query::Group(terms)
    }

    fn term(dice: &mut StdRng, shape: Shape, depth: usize) -> Query {
        let known = if shape == Shape::Plain { INDEXED } else { WORDS.len() };
        let word = |dice: &mut StdRng, of: usize| WORDS[dice.random_range(0..of)];
        match dice.random_range(0..10) {
            0 => Query::Beginning(["al", "beta", "delt", "o"][dice.random_range(0..4)]),
            1 | 2 => {
                let count = dice.random_range(2..4);
                Query::Phrase((0..count).map(|_| word(dice, known)).collect())
            }
            3 => {
                Query::Near(vec![word(dice, INDEXED), word(dice, INDEXED)], dice.random_range(2..6))
            }
            4 if depth > 0 && shape == Shape::Any => Query::group(dice, shape, depth - 1),
            _ => Query::Word(word(dice, known)),
        }
    }

    /// As `AGAINST` takes it.
    pub fn sql(&self) -> String {
        let mut sql = String::new();
        match self {
            Query::Word(word) => sql.push_str(word),
            Query::Beginning(word) => write!(sql, "{word}*").expect("a string takes it"),
            Query::Phrase(words) => {
                write!(sql, "\"{}\"", words.join(" ")).expect("a string takes it")
            }
            Query::Near(words, distance) => {
                write!(sql, "\"{}\" @{distance}", words.join(" ")).expect("a string takes it");
            }
            Query::Group(terms) => {
                for (operator, term) in terms {
                    let term_sql = term.sql();
                    match term {
                        Query::Group(_) => write!(sql, " {operator}({term_sql})"),
                        _ => write!(sql, " {operator}{term_sql}"),
                    }
                    .expect("a string takes it");
                }
            }
        }
        sql.replace("  ", " ")
    }

    /// Whether it asks for nothing: of words alone that no index has.
    fn is_nothing(&self) -> bool {
        let is_unknown = |word: &&str| !WORDS[..INDEXED].contains(word);
        match self {
            Query::Word(word) => is_unknown(word),
            Query::Beginning(_) => false,
            Query::Phrase(words) | Query::Near(words, _) => words.iter().all(is_unknown),
            Query::Group(terms) => terms.iter().all(|(_, term)| term.is_nothing()),
        }
    }

    /// Whether a document matches.
    pub fn matches(&self, document: &Document) -> bool {
        let columns: Vec<Vec<String>> =
            document.iter().flatten().map(|text| words_of(text)).collect();
        self.matches_columns(&columns)
    }

    fn matches_columns(&self, columns: &[Vec<String>]) -> bool {
        let mut words = columns.iter().flatten();
        match self {
            Query::Word(wanted) => words.any(|word| word == wanted),
            Query::Beginning(start) => words
                .any(|word| WORDS[..INDEXED].contains(&word.as_str()) && word.starts_with(start)),
            Query::Phrase(wanted) => columns.iter().any(|column| {
                column.windows(wanted.len()).any(|window| window.iter().eq(wanted.iter()))
            }),
            Query::Near(wanted, distance) => columns.iter().any(|column| {
                let at = |first: usize| &column[first..column.len().min(first + distance)];
                (0..column.len()).any(|first| {
                    wanted.iter().all(|word| at(first).iter().any(|other| other == word))
                })
            }),
            Query::Group(terms) => {
                let terms: Vec<_> = terms.iter().filter(|(_, term)| !term.is_nothing()).collect();
                let with =
                    |wanted: char| terms.iter().filter(move |(operator, _)| *operator == wanted);
                let has = |(_, term): &&&(char, Query)| term.matches_columns(columns);
                let required = with('+').count() > 0;
                with('+').all(|term| has(&term))
                    && !with('-').any(|term| has(&term))
                    && (required || with(' ').any(|term| has(&term)))
            }
        }
    }
}

/// The words of a text, as indexes and queries compare them.
pub fn words_of(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// Ids of the documents that match.
pub fn matching(documents: &Documents, is_match: impl Fn(&Document) -> bool) -> Vec<u32> {
    documents.iter().filter(|(_, document)| is_match(document)).map(|(id, _)| *id).collect()
}

/// Rows whose pending words were merged since the server's start.
pub fn merged_rows(conn: &mut Conn) -> i64 {
    number(
        conn,
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
         WHERE VARIABLE_NAME = 'TIDEPOOL_FT_MERGED_ROWS'",
    )
}

/// Waits until they are this number.
///
/// # Panics
/// If they are more, or not reached.
pub fn wait_for_merges(conn: &mut Conn, rows: i64) {
    wait_until(Duration::from_secs(120), "pending words are merged", || merged_rows(conn) >= rows);
    assert_eq!(merged_rows(conn), rows);
}

/// Words of rows of [`write_at_random`].
pub const WRITTEN_WORDS: [&str; 12] = [
    "alpha", "beta", "gamma", "delta", "omega", "kappa", "sigma", "lambda", "theta", "zeta",
    "iota", "epsilon",
];

/// Deletes and writes rows of a table `t (id INT PRIMARY KEY, a …)`; no two of three writers share
/// a row, so none waits for another.
pub fn write_at_random(conn: &mut Conn, writer: u64, steps: u32) {
    let mut dice = StdRng::seed_from_u64(writer);
    for _ in 0..steps {
        let id = 1 + 3 * dice.random_range(0..60) + writer;
        let text: Vec<&str> = (0..dice.random_range(1..30))
            .map(|_| WRITTEN_WORDS[dice.random_range(0..WRITTEN_WORDS.len())])
            .collect();
        let text = text.join(" ");
        let statement = match dice.random_range(0..4) {
            0 => format!("DELETE FROM t WHERE id = {id}"),
            1 => format!("UPDATE t SET a = '{text}' WHERE id = {id}"),
            _ => format!("REPLACE INTO t VALUES ({id}, '{text}')"),
        };
        run(conn, &[&statement]);
    }
}
