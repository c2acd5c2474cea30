//! The lists themselves: each must be one that committed writes can have left, and they must agree
//! with each other.
//!
//! What is found here needs no graph: aborted and intermediate reads, own writes that are not seen,
//! rows that no session wrote, lists that contradict each other. What is not an anomaly by itself
//! comes out as observations, for the order of the versions and the graph.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::anomaly::{Anomaly, Name};
use super::history::{History, Key, Kind, Outcome, Read, Row, WriteId};
use super::own::{Own, OwnRows};

/// What a read showed of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The list that ends with this write.
    Row(WriteId),
    /// That there is no row in these buckets.
    NoRowIn(u32),
}

/// A read of a key that the reader has not written itself.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// The reader.
    pub transaction: usize,
    pub step: usize,
    pub key: Key,
    pub seen: Seen,
    /// Whether the row was locked.
    pub locking: bool,
}

/// Who wrote an id on a key.
struct Writer {
    /// None: it was there from the beginning.
    transaction: Option<usize>,
    /// The bucket that the row had then.
    bucket: Option<u8>,
    /// The transaction committed, and the write is no undone one.
    stays: bool,
    /// What the transaction left.
    is_last: bool,
}

/// What the lists tell.
#[derive(Default)]
pub struct Readings {
    /// What was found.
    pub anomalies: Vec<Anomaly>,
    /// Everything that was read of others.
    pub observations: Vec<Observation>,
    /// What each transaction leaves, if it commits.
    pub effects: Vec<BTreeMap<Key, Own>>,
    /// The write before each in its list.
    pub before: HashMap<(Key, WriteId), Option<WriteId>>,
    /// Whether each transaction committed; of those in doubt, the ones that somebody saw.
    pub committed: Vec<bool>,
}

/// Reads a history.
pub fn read(history: &History) -> Readings {
    let mut reader = Reader::new(history);
    for number in 0..history.transactions.len() {
        reader.transaction(number);
    }
    if let Some(after) = &history.after_crash {
        for row in &after.rows {
            reader.foreign_list(usize::MAX, row.key, &row.list, Some(row.bucket));
        }
    }
    reader.readings
}

/// What each transaction leaves.
fn effects(history: &History) -> Vec<BTreeMap<Key, Own>> {
    let of = |transaction: &super::history::Transaction| {
        let mut own = OwnRows::default();
        transaction.steps.iter().enumerate().for_each(|(number, step)| own.pass(number, step));
        own.into_rows()
    };
    history.transactions.iter().map(of).collect()
}

/// Which transactions committed. One in doubt did if anybody else saw a write of it, or if it left
/// its mark.
fn committed(history: &History) -> Vec<bool> {
    let mut doubtful: HashMap<(Key, WriteId), usize> = HashMap::new();
    let mut committed = Vec::new();
    for (number, transaction) in history.transactions.iter().enumerate() {
        committed.push(transaction.outcome == Outcome::Committed);
        if transaction.outcome == Outcome::Unknown {
            for write in transaction.steps.iter().flat_map(|step| &step.writes) {
                doubtful.insert((write.key, write.id), number);
            }
        }
    }
    if doubtful.is_empty() {
        return committed;
    }
    let rows = |read: &Read| read.rows.clone();
    for (number, transaction) in history.transactions.iter().enumerate() {
        for row in transaction.steps.iter().flat_map(|step| &step.reads).flat_map(rows) {
            for id in row.list {
                match doubtful.get(&(row.key, id)) {
                    Some(writer) if *writer != number => committed[*writer] = true,
                    _ => {}
                }
            }
        }
    }
    if let Some(after) = &history.after_crash {
        let ids = after.rows.iter().flat_map(|row| row.list.iter().map(|id| (row.key, *id)));
        ids.filter_map(|id| doubtful.get(&id)).for_each(|writer| committed[*writer] = true);
        after.marked.iter().for_each(|writer| committed[*writer] = true);
    }
    committed
}

struct Reader<'a> {
    history: &'a History,
    writers: HashMap<(Key, WriteId), Writer>,
    /// Lists of others that were found to be sound, by their last write.
    lists: HashMap<(Key, WriteId), Vec<WriteId>>,
    readings: Readings,
}

impl<'a> Reader<'a> {
    fn new(history: &'a History) -> Reader<'a> {
        let (effects, committed) = (effects(history), committed(history));
        let mut writers = HashMap::new();
        for row in &history.initial {
            for id in &row.list {
                let is_last = row.list.last() == Some(id);
                let bucket = is_last.then_some(row.bucket);
                let writer = Writer { transaction: None, bucket, stays: true, is_last };
                writers.insert((row.key, *id), writer);
            }
        }
        for (number, transaction) in history.transactions.iter().enumerate() {
            // Writes since the savepoint, to be marked when it is gone back to.
            let mut since: Vec<(Key, WriteId)> = Vec::new();
            for step in &transaction.steps {
                match step.kind {
                    Kind::Savepoint => since.clear(),
                    Kind::BackToSavepoint => {
                        for id in since.drain(..) {
                            writers
                                .entry(id)
                                .and_modify(|writer: &mut Writer| writer.stays = false);
                        }
                    }
                    _ => {}
                }
                for write in &step.writes {
                    let last = effects[number].get(&write.key).and_then(Own::last);
                    let writer = Writer {
                        transaction: Some(number),
                        bucket: write.bucket,
                        stays: committed[number] && step.kind == Kind::Done,
                        is_last: last == Some(write.id),
                    };
                    writers.insert((write.key, write.id), writer);
                    since.push((write.key, write.id));
                }
            }
        }
        let readings = Readings { effects, committed, ..Readings::default() };
        Reader { history, writers, lists: HashMap::new(), readings }
    }

    fn wrong(&mut self, name: Name, key: Key, transactions: &[usize], what: String) {
        let known: Vec<usize> =
            transactions.iter().copied().filter(|number| *number != usize::MAX).collect();
        self.readings.anomalies.push(Anomaly::of(name, key, &known, what));
    }

    fn transaction(&mut self, number: usize) {
        let transaction = &self.history.transactions[number];
        let mut own = OwnRows::default();
        for (at, step) in transaction.steps.iter().enumerate() {
            for read in &step.reads {
                self.statement(number, at, read, &own);
            }
            own.pass(at, step);
        }
    }

    fn statement(&mut self, number: usize, step: usize, read: &Read, own: &OwnRows) {
        let mut found = HashSet::new();
        for row in &read.rows {
            let key = row.key;
            let asked = |scope: &super::history::Scope| {
                scope.table == key.table
                    && scope.keys >> key.key & 1 == 1
                    && scope.admits(row.bucket)
            };
            if !read.scopes.is_empty() && !read.scopes.iter().any(asked) {
                let what = format!("T{number} got {key} in bucket {}, unasked", row.bucket);
                self.wrong(Name::Garbage, key, &[number], what);
            }
            if !found.insert(key) {
                let what = format!("T{number} got {key} twice by one statement");
                self.wrong(Name::Garbage, key, &[number], what);
            }
            match own.get(key) {
                Some(own) => self.own_row(number, row, own),
                None => {
                    let sound = self.foreign_list(number, key, &row.list, Some(row.bucket));
                    if let (true, Some(last)) = (sound, row.list.last()) {
                        let seen = Seen::Row(*last);
                        let (transaction, locking) = (number, read.locking);
                        let seen = Observation { transaction, step, key, seen, locking };
                        self.readings.observations.push(seen);
                    }
                }
            }
        }
        for scope in &read.scopes {
            for key in scope.keys().filter(|key| !found.contains(key)) {
                match own.get(key).map(|own| own.bucket) {
                    Some(Some(bucket)) if scope.admits(bucket) => {
                        let what = format!("T{number} did not get {key}, which it has written");
                        self.wrong(Name::Internal, key, &[number], what);
                    }
                    Some(_) => {}
                    None => self.readings.observations.push(Observation {
                        transaction: number,
                        step,
                        key,
                        seen: Seen::NoRowIn(scope.buckets),
                        locking: read.locking,
                    }),
                }
            }
        }
    }

    /// A row that the reader has written.
    fn own_row(&mut self, number: usize, row: &Row, own: &Own) {
        let key = row.key;
        let base = row.list.strip_suffix(own.tail.as_slice());
        let whole = base.is_some_and(|base| base.is_empty() == own.fresh);
        let (Some(base), true) = (base, whole && own.bucket == Some(row.bucket)) else {
            let what = format!(
                "T{number} got {key} = {:?} in bucket {}, and had written {:?} in {:?} there",
                row.list, row.bucket, own.tail, own.bucket
            );
            return self.wrong(Name::Internal, key, &[number], what);
        };
        for (at, id) in own.tail.iter().enumerate() {
            let before = (at + base.len()).checked_sub(1).map(|before| row.list[before]);
            self.readings.before.entry((key, *id)).or_insert(before);
        }
        self.foreign_list(number, key, base, None);
    }

    /// Whether a list of others' writes can have been. An empty one can.
    fn foreign_list(
        &mut self,
        reader: usize,
        key: Key,
        list: &[WriteId],
        bucket: Option<u8>,
    ) -> bool {
        let Some(last) = list.last() else {
            if bucket.is_some() {
                self.wrong(Name::Garbage, key, &[reader], format!("an empty list at {key}"));
            }
            return bucket.is_none();
        };
        let known = self.lists.get(&(key, *last)).is_some_and(|known| known == list);
        let sound = known || self.new_list(reader, key, list);
        let right = |writer: &Writer| bucket.is_none() || writer.bucket == bucket;
        if sound && !right(&self.writers[&(key, *last)]) {
            let what = format!(
                "{key} = {list:?} was in bucket {bucket:?}, where its last write did not put it"
            );
            self.wrong(Name::Garbage, key, &[reader], what);
        }
        sound
    }

    /// A list that was not seen before, or not like this.
    fn new_list(&mut self, reader: usize, key: Key, list: &[WriteId]) -> bool {
        let last = list.len() - 1;
        for (at, id) in list.iter().enumerate() {
            let Some(writer) = self.writers.get(&(key, *id)) else {
                let what = format!("{key} = {list:?}: no session wrote {id} there");
                self.wrong(Name::Garbage, key, &[reader], what);
                return false;
            };
            let wrong = if !writer.stays {
                Some((Name::G1a, "was undone, or never done"))
            } else if at == last && !writer.is_last {
                Some((Name::G1b, "was not the last by its transaction"))
            } else {
                None
            };
            if let Some((name, why)) = wrong {
                let by = writer.transaction.unwrap_or(usize::MAX);
                let what = format!("{key} = {list:?}: the write {id} of T{by} {why}");
                self.wrong(name, key, &[reader, by], what);
                return false;
            }
            if list[..at].contains(id) {
                let what = format!("{key} = {list:?}: {id} is in it twice");
                self.wrong(Name::Garbage, key, &[reader], what);
                return false;
            }
        }
        for end in (1..=list.len()).rev() {
            let (part, id) = (&list[..end], list[end - 1]);
            match self.lists.get(&(key, id)) {
                Some(other) if other == part => break,
                Some(other) => {
                    let what = format!("{key} was {list:?}, and {other:?} as well");
                    let writer = self.writers[&(key, id)].transaction.unwrap_or(usize::MAX);
                    self.wrong(Name::IncompatibleOrder, key, &[reader, writer], what);
                    return false;
                }
                None => {
                    self.lists.insert((key, id), part.to_vec());
                    let before = end.checked_sub(2).map(|at| list[at]);
                    self.readings.before.insert((key, id), before);
                }
            }
        }
        true
    }
}
