//! The graph: what must have been before what.
//!
//! Elle's graph has one node a transaction and looks for the cycles that a level forbids. Here a
//! transaction has several moments, and a level says at which of them it reads; then every cycle is
//! forbidden, at any level, and also among transactions of different levels.
//!
//! ```text
//!                         ┌ plain reads ┐
//! READ COMMITTED     statement ─▶ statement ─▶ … ─▶ end      each statement reads at another moment
//! REPEATABLE READ       snapshot ─────────────────▶ end      all plain reads are at the snapshot
//! SERIALIZABLE                                      end      all reads lock, and last to the end
//! ```
//!
//! A transaction's writes appear at its end, together. So, if w wrote the version that was read and
//! n the next one:
//!
//! | what | edges |
//! |---|---|
//! | a plain read at moment m | end(w) → m → end(n): read dependency wr, anti-dependency rw |
//! | a locking read by statement s | end(w) → s, and end(reader) → end(n), for no other writes what is locked |
//! | a write by statement s | end(w) → s: write dependency ww |
//! | either, at REPEATABLE READ with a snapshot | end(w) → snapshot, or else error 1020 |
//! | a row that was not found | as above, with the versions that it may have been |
//! | time | a → b if a was over before b was begun, by way of nodes of a clock |
//!
//! A locking read below SERIALIZABLE does not lock what it does not find; it only says that at a
//! moment of the statement there was none, which holds if the row has one place in the index by
//! which it is read.

use std::collections::HashMap;

use super::anomaly::{Anomaly, Name};
use super::history::{History, Key, Kind, Level, Span};
use super::order::{Version, Versions};
use super::reads::{Observation, Readings, Seen};

/// Why one moment is before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Both are of one transaction.
    Own,
    /// The second overwrites what the first left.
    Ww,
    /// The second reads what the first left.
    Wr,
    /// The second overwrites what the first reads.
    Rw,
    /// The second makes a row that the first did not find, or finds no more.
    RwAbsent,
    /// The first was over before the second began.
    Time,
}

#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Whose; none: of the clock.
    pub transaction: Option<usize>,
    /// When it was.
    pub span: Span,
}

/// Moments and what is known of their order.
#[derive(Default)]
pub struct Graph {
    /// All of them.
    pub moments: Vec<Moment>,
    /// From, to.
    pub edges: Vec<(u32, u32)>,
    /// Of each edge.
    pub why: Vec<(Why, Option<Key>)>,
    /// What is wrong without any cycle.
    pub anomalies: Vec<Anomaly>,
}

/// The moments of a transaction.
struct Own {
    end: u32,
    /// That of the plain reads at REPEATABLE READ, and the step that opens it.
    snapshot: Option<(u32, usize)>,
    /// Of each step that has one: that of plain reads, or of getting the last lock.
    steps: HashMap<usize, u32>,
}

/// Makes the graph.
pub fn graph(history: &History, readings: &Readings, versions: &Versions) -> Graph {
    let mut building = Building { history, versions, graph: Graph::default(), own: Vec::new() };
    for number in 0..history.transactions.len() {
        building.transaction(number);
    }
    for observation in &readings.observations {
        building.observation(observation);
    }
    for (number, effects) in readings.effects.iter().enumerate() {
        if !readings.committed[number] {
            continue;
        }
        for (key, own) in effects {
            building.write(number, *key, own.first.1);
        }
    }
    building.graph.tick();
    building.graph
}

struct Building<'a> {
    history: &'a History,
    versions: &'a Versions,
    graph: Graph,
    own: Vec<Own>,
}

impl Building<'_> {
    /// The moments of a transaction, in their order.
    fn transaction(&mut self, number: usize) {
        let transaction = &self.history.transactions[number];
        let graph = &mut self.graph;
        let end = graph.moment(Some(number), transaction.end);
        let mut own = Own { end, snapshot: None, steps: HashMap::new() };
        let mut before: Option<u32> = None;
        // When a statement began that may have taken the snapshot, though it failed.
        let mut failed: Option<u64> = None;
        for (at, step) in transaction.steps.iter().enumerate() {
            let plain = step.reads.iter().any(|read| !read.locking);
            let moment = match step.kind {
                Kind::Done | Kind::Snapshot => graph.moment(Some(number), step.span),
                Kind::Failed => {
                    failed = failed.or(Some(step.span.from));
                    continue;
                }
                _ => continue,
            };
            if let Some(before) = before {
                graph.edge(before, moment, Why::Own, None);
            }
            let opens = plain || step.kind == Kind::Snapshot;
            if opens && transaction.level == Level::RepeatableRead && own.snapshot.is_none() {
                let mut snapshot = moment;
                if let Some(from) = failed {
                    snapshot = graph.moment(Some(number), Span { from, ..step.span });
                    graph.edge(snapshot, moment, Why::Own, None);
                }
                own.snapshot = Some((snapshot, at));
            }
            own.steps.insert(at, moment);
            before = Some(moment);
        }
        if let Some(before) = before {
            graph.edge(before, end, Why::Own, None);
        }
        self.own.push(own);
    }

    fn end_of(&self, version: &Version) -> Option<u32> {
        version.writer.map(|number| self.own[number].end)
    }

    fn observation(&mut self, seen: &Observation) {
        let transaction = &self.history.transactions[seen.transaction];
        let own = &self.own[seen.transaction];
        let (end, statement) = (own.end, own.steps[&seen.step]);
        let snapshot = own.snapshot;
        let locking = seen.locking || transaction.level == Level::Serializable;
        if !locking || (transaction.level == Level::Serializable && transaction.autocommit) {
            let moment = match (transaction.level, snapshot) {
                (Level::RepeatableRead, Some((moment, _))) => moment,
                _ => statement,
            };
            return self.read_at(seen, moment, moment);
        }
        let lasts = matches!(seen.seen, Seen::Row(_)) || transaction.level == Level::Serializable;
        if lasts {
            self.read_at(seen, statement, end);
        } else {
            // At an unknown moment of the statement, and another for each key.
            let moment =
                self.graph.moment(Some(seen.transaction), transaction.steps[seen.step].span);
            self.graph.edge(moment, end, Why::Own, None);
            self.read_at(seen, moment, moment);
        }
        match snapshot {
            Some((moment, _)) if lasts => self.read_at(seen, moment, end),
            Some((moment, opened)) if opened < seen.step => self.read_at(seen, moment, moment),
            _ => {}
        }
    }

    /// What was seen lasted from the moment `from`, or from before it, at least until `to`.
    fn read_at(&mut self, seen: &Observation, from: u32, to: u32) {
        let (key, reader) = (seen.key, seen.transaction);
        let versions = self.versions.of(key);
        let (first, last, why) = match seen.seen {
            Seen::Row(id) => match self.versions.place(key, id) {
                Some(place) => (place, place, Why::Rw),
                // It follows no other, and so is no version: that is reported already.
                None => return,
            },
            Seen::NoRowIn(buckets) => {
                let Some((first, last)) = self.possible(key, buckets, from) else {
                    let what = format!(
                        "T{reader} did not find {key}, which was in a bucket that it asked for all the time"
                    );
                    let anomaly = Anomaly::of(Name::MissedRow, key, &[reader], what);
                    if !self.graph.anomalies.contains(&anomaly) {
                        self.graph.anomalies.push(anomaly);
                    }
                    return;
                };
                (first, last, Why::RwAbsent)
            }
        };
        let before = self.end_of(&versions[first]);
        let next = versions.get(last + 1);
        let after = next.filter(|next| next.writer != Some(reader)).and_then(|v| self.end_of(v));
        if let Some(before) = before {
            self.graph.edge(before, from, Why::Wr, Some(key));
        }
        if let Some(after) = after {
            self.graph.edge(to, after, why, Some(key));
        }
    }

    /// The first of the versions that have no row in these buckets and may have been there at a
    /// moment, and the last of those that may have been there then or followed such a one. If the
    /// times allow none, the next one to that moment, for the cycle that comes of it says more;
    /// none if there is one on either side.
    fn possible(&self, key: Key, buckets: u32, moment: u32) -> Option<(usize, usize)> {
        let versions = self.versions.of(key);
        let hidden = |place: &usize| {
            versions[*place].row.is_none_or(|(_, bucket)| buckets >> bucket & 1 == 0)
        };
        let then = self.versions.possible(key, self.graph.moments[moment as usize].span);
        let until = |last: usize| (last..versions.len()).take_while(hidden).last().unwrap_or(last);
        let mut places = then.clone().filter(hidden);
        if let Some(first) = places.next() {
            return Some((first, until(places.next_back().unwrap_or(first))));
        }
        let earlier = (0..then.start).rev().find(hidden);
        let later = (then.end..versions.len()).find(hidden);
        match (earlier, later) {
            (Some(place), None) => Some((place, place)),
            (None, Some(place)) => Some((place, until(place))),
            _ => None,
        }
    }

    /// A write, by a step, of a transaction that committed.
    fn write(&mut self, number: usize, key: Key, step: usize) {
        let versions = self.versions.of(key);
        let Some(place) = self.versions.place_of_writer(key, number) else { return };
        let Some(before) = place.checked_sub(1).and_then(|before| self.end_of(&versions[before]))
        else {
            return;
        };
        let own = &self.own[number];
        let (statement, snapshot) = (own.steps[&step], own.snapshot);
        self.graph.edge(before, statement, Why::Ww, Some(key));
        if let Some((moment, _)) = snapshot {
            self.graph.edge(before, moment, Why::Ww, Some(key));
        }
    }
}

impl Graph {
    fn moment(&mut self, transaction: Option<usize>, span: Span) -> u32 {
        self.moments.push(Moment { transaction, span });
        self.moments.len() as u32 - 1
    }

    fn edge(&mut self, from: u32, to: u32, why: Why, key: Option<Key>) {
        if from != to {
            self.edges.push((from, to));
            self.why.push((why, key));
        }
    }

    /// Adds the clock: a node for each time at which a moment was over, each before the next one.
    fn tick(&mut self) {
        let mut over: Vec<(u64, u32)> = (0..self.moments.len() as u32)
            .map(|moment| (self.moments[moment as usize].span.to, moment))
            .filter(|(to, _)| *to != u64::MAX)
            .collect();
        over.sort_unstable();
        let mut begun: Vec<(u64, u32)> = (0..self.moments.len() as u32)
            .map(|moment| (self.moments[moment as usize].span.from, moment))
            .collect();
        begun.sort_unstable();
        let mut next = over.into_iter().peekable();
        let mut now: Option<u32> = None;
        for (from, moment) in begun {
            while let Some((to, ended)) = next.next_if(|(to, _)| *to < from) {
                let tick = self.moment(None, Span { from: to, to });
                if let Some(now) = now {
                    self.edge(now, tick, Why::Time, None);
                }
                self.edge(ended, tick, Why::Time, None);
                now = Some(tick);
            }
            if let Some(now) = now {
                self.edge(now, moment, Why::Time, None);
            }
        }
    }
}
