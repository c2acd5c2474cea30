//! The order of the versions of each key.
//!
//! A version is what a committed transaction leaves at a key: a list, or no row. A list shows which
//! list it continues, and who begins a new one knows what it ends; so versions follow each other
//! one by one, except those that begin where there was no row. These begin segments:
//!
//! ```text
//! initial ── w ── w ── none     none ── w ── w ── none     none ── w ── w
//!           a segment                  a segment            the last one
//! ```
//!
//! Each segment but the last is ended by a deletion. A deletion holds the row's lock from its
//! answer until its COMMIT, so the times of the COMMITs give the order of the segments. (The graph
//! checks the times anyway.)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::anomaly::{Anomaly, Name};
use super::history::{Follows, History, Key, Outcome, Span, WriteId};
use super::own::Own;
use super::reads::Readings;

/// What a transaction left at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Who; none: it was so from the beginning.
    pub writer: Option<usize>,
    /// The last write of the list and the bucket; none: there is no row.
    pub row: Option<(WriteId, u8)>,
}

/// The versions of all keys, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    keys: HashMap<Key, Vec<Version>>,
    by_list: HashMap<(Key, WriteId), usize>,
    by_writer: HashMap<(Key, usize), usize>,
    /// Of each version: not earlier than, and not later than. Both ascend.
    times: HashMap<Key, Vec<Span>>,
}

impl Versions {
    /// The versions of a key. A key that was never written has one: no row.
    pub fn of(&self, key: Key) -> &[Version] {
        const NEVER: &[Version] = &[Version { writer: None, row: None }];
        self.keys.get(&key).map_or(NEVER, Vec::as_slice)
    }

    /// The place of the version whose list ends with `id`.
    pub fn place(&self, key: Key, id: WriteId) -> Option<usize> {
        self.by_list.get(&(key, id)).copied()
    }

    /// The place of a transaction's version.
    pub fn place_of_writer(&self, key: Key, writer: usize) -> Option<usize> {
        self.by_writer.get(&(key, writer)).copied()
    }

    /// All keys that were ever there.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.keys.keys().copied()
    }

    /// The places of the versions that may have been there at a moment, given when it can have
    /// been.
    pub fn possible(&self, key: Key, moment: Span) -> Range<usize> {
        let Some(times) = self.times.get(&key) else { return 0..1 };
        let end = times.partition_point(|time| time.from <= moment.to);
        // The last one that was there before is the first that may still be.
        let begun = times.partition_point(|time| time.to < moment.from);
        begun.saturating_sub(1)..end
    }

    fn put(&mut self, key: Key, versions: Vec<Version>, history: &History) {
        let end = |version: &Version| {
            version.writer.map_or(Span { from: 0, to: 0 }, |n| history.transactions[n].end)
        };
        let mut times: Vec<Span> = versions.iter().map(end).collect();
        for at in 1..times.len() {
            times[at].from = times[at].from.max(times[at - 1].from);
        }
        for at in (1..times.len()).rev() {
            times[at - 1].to = times[at - 1].to.min(times[at].to);
        }
        for (place, version) in versions.iter().enumerate() {
            if let Some((id, _)) = version.row {
                self.by_list.insert((key, id), place);
            }
            if let Some(writer) = version.writer {
                self.by_writer.insert((key, writer), place);
            }
        }
        self.times.insert(key, times);
        self.keys.insert(key, versions);
    }
}

/// Puts the versions in order.
pub fn order(history: &History, readings: &mut Readings) -> Versions {
    let mut keys: BTreeMap<Key, Versioning<'_>> = BTreeMap::new();
    for row in &history.initial {
        let id = *row.list.last().expect("a row has a list");
        keys.entry(row.key).or_default().initial = Some((id, row.bucket));
    }
    let mut wrong = Vec::new();
    let is_marked = |number: usize| {
        history.after_crash.as_ref().is_some_and(|after| after.marked.contains(&number))
    };
    for (number, effects) in readings.effects.iter().enumerate() {
        let outcome = history.transactions[number].outcome;
        let committed = readings.committed[number];
        if !committed && outcome != Outcome::Unknown {
            continue;
        }
        for (key, own) in effects.iter().filter(|(_, own)| !own.is_nothing()) {
            let versioning = keys.entry(*key).or_default();
            let first = &own.first.0;
            let follows = match first.follows {
                Follows::Unseen => match readings.before.get(&(*key, first.id)) {
                    Some(Some(id)) => Follows::List(*id),
                    Some(None) => Follows::Nothing,
                    None => Follows::Unseen,
                },
                known => known,
            };
            match follows {
                Follows::Nothing => versioning.beginning.push((number, own)),
                Follows::List(id) => {
                    versioning.after.entry(id).or_default().push((number, own));
                }
                // One in doubt that no reader saw may not have happened; one that others saw
                // elsewhere was the last here before the crash.
                Follows::Unseen if outcome == Outcome::Unknown && !is_marked(number) => {
                    if committed {
                        versioning.last = Some((number, own));
                    }
                }
                Follows::Unseen => {
                    let what =
                        format!("no list shows the write {} of T{number} on {key}", first.id);
                    let crashed = history.after_crash.is_some();
                    let name = if crashed { Name::NotDurable } else { Name::LostWrite };
                    wrong.push(Anomaly::of(name, *key, &[number], what));
                }
            }
        }
    }
    let mut versions = Versions::default();
    for (key, versioning) in keys {
        let list = versioning.versions(key, history, &mut wrong);
        versions.put(key, list, history);
    }
    readings.anomalies.append(&mut wrong);
    versions
}

/// The writers of a key.
#[derive(Default)]
struct Versioning<'a> {
    initial: Option<(WriteId, u8)>,
    /// Writers that found no row.
    beginning: Vec<(usize, &'a Own)>,
    /// Writers by the list that they found.
    after: HashMap<WriteId, Vec<(usize, &'a Own)>>,
    /// Who wrote after all of these, if no reader saw it.
    last: Option<(usize, &'a Own)>,
}

impl Versioning<'_> {
    fn versions(mut self, key: Key, history: &History, wrong: &mut Vec<Anomaly>) -> Vec<Version> {
        let first = Version { writer: None, row: self.initial };
        let mut all = self.segment(first, key, wrong);
        let mut segments: Vec<Vec<Version>> = Vec::new();
        for (number, own) in std::mem::take(&mut self.beginning) {
            let first = version(number, own);
            segments.push(self.segment(first, key, wrong));
        }
        let ended = |segment: &Vec<Version>| {
            let last = segment.last().expect("no segment is empty");
            let writer = last.writer.filter(|_| last.row.is_none());
            writer.map_or(u64::MAX, |number| history.transactions[number].end.from)
        };
        segments.sort_by_key(ended);
        for segment in segments {
            let last = all.last().expect("begins with the initial version");
            if last.row.is_some() {
                let both: Vec<usize> = last.writer.into_iter().chain(segment[0].writer).collect();
                let what = format!("{key}: {both:?} found no row, but one had left its own there");
                wrong.push(Anomaly::of(Name::LostUpdate, key, &both, what));
            }
            all.extend(segment);
        }
        all.extend(self.last.map(|(number, own)| version(number, own)));
        let left: BTreeSet<usize> =
            self.after.values().flatten().map(|(number, _)| *number).collect();
        for number in left {
            let what = format!("T{number} wrote {key} after a list that no session left");
            wrong.push(Anomaly::of(Name::IncompatibleOrder, key, &[number], what));
        }
        all
    }

    /// The versions from `first` until the row is deleted, or no write follows.
    fn segment(&mut self, first: Version, key: Key, wrong: &mut Vec<Anomaly>) -> Vec<Version> {
        let mut segment = vec![first];
        while let Some((id, _)) = segment.last().and_then(|version| version.row) {
            let Some(mut next) = self.after.remove(&id) else { break };
            if next.len() > 1 {
                next.sort_by_key(|(number, _)| *number);
                let all: Vec<usize> = next.iter().map(|(number, _)| *number).collect();
                let what = format!("{key}: {all:?} all follow the list that ends with {id}");
                wrong.push(Anomaly::of(Name::LostUpdate, key, &all, what));
            }
            // Of several, the one that others go on from.
            let goes_on = |own: &Own| own.last().is_some_and(|last| self.after.contains_key(&last));
            let (number, own) = next.iter().find(|(_, own)| goes_on(own)).unwrap_or(&next[0]);
            segment.push(version(*number, own));
        }
        segment
    }
}

fn version(number: usize, own: &Own) -> Version {
    Version { writer: Some(number), row: own.last().zip(own.bucket) }
}
