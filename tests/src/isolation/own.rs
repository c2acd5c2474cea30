//! What a transaction has written itself, statement by statement: what it must see, and what it
//! leaves when it commits.

use std::collections::BTreeMap;

use super::history::{Follows, Key, Kind, Step, Write, WriteId};

/// A row as its transaction has left it so far.
#[derive(Clone, Debug)]
pub struct Own {
    /// The first write that is not undone, and its step.
    pub first: (Write, usize),
    /// The writes at the end of the list that are the transaction's.
    pub tail: Vec<WriteId>,
    /// Whether these are the whole list.
    pub fresh: bool,
    /// The bucket; none: the row is deleted.
    pub bucket: Option<u8>,
}

impl Own {
    /// The last write of the list, if there is a row.
    pub fn last(&self) -> Option<WriteId> {
        self.bucket.and(self.tail.last().copied())
    }

    /// Whether the row was not there before and is not there now: no other can know.
    pub fn is_nothing(&self) -> bool {
        self.bucket.is_none() && self.first.0.follows == Follows::Nothing
    }
}

/// All rows that a transaction has written.
#[derive(Clone, Debug, Default)]
pub struct OwnRows {
    rows: BTreeMap<Key, Own>,
    saved: Option<BTreeMap<Key, Own>>,
}

impl OwnRows {
    /// The row at `key`, if it was written.
    pub fn get(&self, key: Key) -> Option<&Own> {
        self.rows.get(&key)
    }

    /// All of them.
    pub fn into_rows(self) -> BTreeMap<Key, Own> {
        self.rows
    }

    /// Goes on over a step, whose number is given.
    pub fn pass(&mut self, number: usize, step: &Step) {
        match step.kind {
            Kind::Done => step.writes.iter().for_each(|write| self.write(number, write)),
            Kind::Savepoint => self.saved = Some(self.rows.clone()),
            Kind::BackToSavepoint => self.rows = self.saved.clone().unwrap_or_default(),
            Kind::Failed | Kind::Snapshot => {}
        }
    }

    fn write(&mut self, step: usize, write: &Write) {
        let own = self.rows.entry(write.key).or_insert_with(|| Own {
            first: (*write, step),
            tail: Vec::new(),
            fresh: false,
            bucket: None,
        });
        if write.fresh || write.bucket.is_none() {
            own.tail.clear();
            own.fresh = true;
        }
        if write.bucket.is_some() {
            own.tail.push(write.id);
        }
        own.bucket = write.bucket;
    }
}
