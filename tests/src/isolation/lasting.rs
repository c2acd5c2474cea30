//! Rows that match a locking read from its beginning to its end, and do not come.
//!
//! A locking read takes the newest version of each row when it comes to it, at no one moment. Where
//! a row can move within what is read (along a secondary index, from what is still to be read to
//! what has been), that says nothing of rows that did not come: they may have been where the read
//! was not, at each moment. Unless they have matched all the time: then the statement must meet
//! them, or fail.

use std::collections::HashSet;

use super::anomaly::{Anomaly, Name};
use super::history::{History, Key, Outcome, Read, Span};
use super::order::Versions;
use super::own::OwnRows;
use super::reads::Readings;

/// What locking reads missed. Of keys that a transaction in doubt has written, nothing is known.
pub fn missed(history: &History, readings: &Readings, versions: &Versions) -> Vec<Anomaly> {
    let in_doubt = |number: &usize| history.transactions[*number].outcome == Outcome::Unknown;
    let doubtful: HashSet<Key> = (0..history.transactions.len())
        .filter(in_doubt)
        .flat_map(|number| readings.effects[number].keys().copied())
        .collect();
    let mut anomalies = Vec::new();
    for (number, transaction) in history.transactions.iter().enumerate() {
        let mut own = OwnRows::default();
        for (at, step) in transaction.steps.iter().enumerate() {
            for read in &step.reads {
                let is_anew = |key: Key, writer: Option<usize>| {
                    let own = writer.and_then(|writer| readings.effects[writer].get(&key));
                    own.is_some_and(|own| own.fresh)
                };
                let keys = missed_by(read, step.span, &own, versions, is_anew);
                for key in keys.into_iter().filter(|key| !doubtful.contains(key)) {
                    let what = format!(
                        "T{number} did not get {key}, which was what it asked for from the beginning of its statement to the end"
                    );
                    anomalies.push(Anomaly::of(Name::MissedRow, key, &[number], what));
                }
            }
            own.pass(at, step);
        }
    }
    anomalies
}

/// The keys of rows that a read must have met and has not. What the transaction has written itself
/// is checked elsewhere. A row that was deleted and inserted by one transaction is another row, as
/// `is_anew` says of its writer.
fn missed_by(
    read: &Read,
    span: Span,
    own: &OwnRows,
    versions: &Versions,
    is_anew: impl Fn(Key, Option<usize>) -> bool,
) -> Vec<Key> {
    let mut missed = Vec::new();
    for scope in &read.lasting {
        for key in scope.keys() {
            let possible = versions.possible(key, span);
            let first = possible.start;
            let matches = |place: usize| {
                let version = &versions.of(key)[place];
                let goes_on = place == first || !is_anew(key, version.writer);
                goes_on && version.row.is_some_and(|(_, bucket)| scope.admits(bucket))
            };
            let came = read.rows.iter().any(|row| row.key == key);
            if !came && own.get(key).is_none() && possible.clone().all(matches) {
                missed.push(key);
            }
        }
    }
    missed
}
