//! What can be wrong with a history, by the names of the field.
//!
//! | name | what | source |
//! |---|---|---|
//! | G0 | dirty write: a cycle of write dependencies | Adya |
//! | G1a | aborted read | Adya |
//! | G1b | intermediate read | Adya |
//! | G1c | circular information flow: a cycle of write and read dependencies | Adya |
//! | G-single | a cycle with one anti-dependency: read skew, non-repeatable read, lost update | Adya |
//! | G-nonadjacent | a cycle in which no two anti-dependencies follow each other: no snapshot isolation | Elle |
//! | G2-item | a cycle with more anti-dependencies: write skew | Adya |
//! | G2 | the same with an anti-dependency by rows that a read did not find: phantoms | Adya |
//! | …-realtime | the cycle holds only because one transaction had ended before another read: a stale read | Elle |
//!
//! (Adya, "Weak Consistency", MIT 1999; Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies
//! from Experimental Observations", VLDB 2020.) The rest is about single values: lists that no
//! session wrote, or that contradict each other.

use std::fmt::{self, Write as _};

use super::history::{History, Key, Kind, Outcome, Step, Transaction};

/// A kind of anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// Dirty write.
    G0,
    /// Aborted read.
    G1a,
    /// Intermediate read.
    G1b,
    /// Circular information flow.
    G1c,
    /// Read skew and its relatives.
    GSingle,
    /// Several anti-dependencies, none next to another.
    GNonadjacent,
    /// Write skew.
    G2Item,
    /// Write skew by phantoms.
    G2,
    /// [`Name::G0`], given who had ended before whom began.
    G0Realtime,
    /// [`Name::G1c`], the same.
    G1cRealtime,
    /// [`Name::GSingle`], the same: a stale read.
    GSingleRealtime,
    /// [`Name::GNonadjacent`], the same.
    GNonadjacentRealtime,
    /// [`Name::G2Item`], the same.
    G2ItemRealtime,
    /// [`Name::G2`], the same.
    G2Realtime,
    /// Two committed writes follow the same version.
    LostUpdate,
    /// A committed write left no trace.
    LostWrite,
    /// A transaction does not see what it wrote, or sees what it deleted.
    Internal,
    /// Two lists that can't both have been.
    IncompatibleOrder,
    /// A row that no write left like this, or twice, or unasked.
    Garbage,
    /// A predicate read missed a row that was there all the time.
    MissedRow,
    /// After a crash an acknowledged commit is not there, or one is there in part.
    NotDurable,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Name::G0 => "G0 (dirty write)",
            Name::G1a => "G1a (aborted read)",
            Name::G1b => "G1b (intermediate read)",
            Name::G1c => "G1c (circular information flow)",
            Name::GSingle => "G-single (read skew)",
            Name::GNonadjacent => "G-nonadjacent",
            Name::G2Item => "G2-item (write skew)",
            Name::G2 => "G2 (write skew by phantoms)",
            Name::G0Realtime => "G0-realtime",
            Name::G1cRealtime => "G1c-realtime",
            Name::GSingleRealtime => "G-single-realtime (stale read)",
            Name::GNonadjacentRealtime => "G-nonadjacent-realtime",
            Name::G2ItemRealtime => "G2-item-realtime",
            Name::G2Realtime => "G2-realtime",
            Name::LostUpdate => "lost update",
            Name::LostWrite => "lost write",
            Name::Internal => "internal (own writes)",
            Name::IncompatibleOrder => "incompatible order",
            Name::Garbage => "garbage",
            Name::MissedRow => "missed row",
            Name::NotDurable => "not durable",
        })
    }
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// What it is called.
    pub name: Name,
    /// What is wrong, in a few lines.
    pub what: String,
    /// The transactions that have a part in it: numbers in the history.
    pub transactions: Vec<usize>,
    /// The keys it is about.
    pub keys: Vec<Key>,
}

impl Anomaly {
    /// An anomaly of single values.
    pub fn of(name: Name, key: Key, transactions: &[usize], what: String) -> Anomaly {
        Anomaly { name, what, transactions: transactions.to_vec(), keys: vec![key] }
    }

    /// All of it, with the statements of the transactions: of long ones, those that have to do with
    /// the keys.
    pub fn report(&self, history: &History) -> String {
        let mut text = format!("{}: {}", self.name, self.what);
        let mut seen = Vec::new();
        for number in &self.transactions {
            if !seen.contains(number) {
                seen.push(*number);
                let _ = write!(text, "\n  {}", describe(*number, history));
                for step in &history.transactions[*number].steps {
                    let _ = write!(text, "\n    {}", describe_step(step, &self.keys));
                }
            }
        }
        text
    }
}

fn micros(nanos: u64) -> String {
    if nanos == u64::MAX { "?".into() } else { (nanos / 1000).to_string() }
}

fn describe(number: usize, history: &History) -> String {
    let Transaction { session, level, autocommit, end, outcome, .. } =
        &history.transactions[number];
    let how = match outcome {
        Outcome::Committed => "committed",
        Outcome::Aborted => "aborted",
        Outcome::Unknown => "in doubt",
    };
    let alone = if *autocommit { ", one statement" } else { "" };
    let (from, to) = (micros(end.from), micros(end.to));
    format!("T{number}: session {session}, {}{alone}, {how} at {from} … {to} µs", level.sql())
}

fn describe_step(step: &Step, keys: &[Key]) -> String {
    let mut text = format!("{} … {}: {}", micros(step.span.from), micros(step.span.to), step.sql);
    match step.kind {
        Kind::Failed => text.push_str(" → failed"),
        Kind::Done => {}
        Kind::Snapshot | Kind::Savepoint | Kind::BackToSavepoint => {}
    }
    for read in &step.reads {
        let asked = |key: &&Key| read.scopes.iter().any(|s| s.keys().any(|k| k == **key));
        let (rows, others): (Vec<_>, Vec<_>) =
            read.rows.iter().partition(|row| keys.contains(&row.key));
        for row in rows {
            let _ = write!(text, " → {} = {:?} in bucket {}", row.key, row.list, row.bucket);
        }
        if !others.is_empty() {
            text.push_str(" → and");
            others.iter().for_each(|row| text.push_str(&format!(" {}", row.key)));
        }
        for key in keys.iter().filter(asked) {
            if !read.rows.iter().any(|row| row.key == *key) {
                let _ = write!(text, " → no {key}");
            }
        }
    }
    for write in step.writes.iter().filter(|write| keys.contains(&write.key)) {
        let key = write.key;
        let _ = match write.bucket {
            Some(bucket) => write!(text, "; writes {} on {key}, bucket {bucket}", write.id),
            None => write!(text, "; deletes {key} (as {})", write.id),
        };
    }
    text
}
