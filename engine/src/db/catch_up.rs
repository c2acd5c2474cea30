//! Rows written while indexes are built go into the new trees, in rounds.
//!
//! # A round
//! ```text
//! invariant   the new trees have what the rows ask for that the snapshot sees
//! begin       a new view, `next`; then the log of written rows is taken
//! rows        of each logged row with a writer that `next` sees: by the snapshot and by `next`
//! entries     the caller gives the entries of both: the first ones are removed, the others added
//! end         the edits, sorted by key, are made; `next` is the snapshot now
//! ```
//! The log has a row's key before the row is written, and so before that is committed
//! ([`crate::table`]). What the two views see differently was committed before `next` was opened,
//! and so is in the log that was taken after. A logged write that `next` does not see goes into the
//! next log; one that was rolled back is forgotten.
//!
//! When writes are stopped, a last round brings all there is. What is left in the log then is of
//! rollbacks that the background owes: no view will see it.
//!
//! # Edits
//! Only the change reads and writes the new trees, so entries are edited without undo and locks,
//! settled as the build's are. A key has at most one entry before the round, and one after: two are
//! a duplicate in a unique index, of two rows that are committed. A removal and an addition of one
//! key are one edit, for a key may pass from one row to another in the round.
//!
//! An edit that does not find what it is about ends the change: the trees are not what the rows ask
//! for.

use super::DuplicateEntry;
use super::index_change::{Edit, IndexChange, NewIndex};
use super::rebuild::enter;
use super::transaction::Transaction;
use crate::csn::{TrxId, TrxState};
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};
use crate::sort::{Sorted, Sorter};
use crate::table::Table;
use crate::versioned::{ReadRequest, VersionedTree};

/// Entries between two looks at whether to go on.
const ENTRIES_A_TURN: u64 = 1000;

/// A row that differs between the beginning of a round and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedRow<'a> {
    /// Its key in the clustered index.
    pub key: &'a [u8],
    /// Its value there before, as the new indexes have it; none if there was no such row.
    pub before: Option<&'a [u8]>,
    /// Its value there now; none if there is no such row any more.
    pub after: Option<&'a [u8]>,
}

/// What a round has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundReport {
    /// Rows that differed.
    pub rows: u64,
    /// Logged writes that the round has left to the next: most are of transactions that were not
    /// committed when it began.
    pub writes_open: u64,
    /// All writes that were logged and are not in the new indexes yet: these, and those that were
    /// logged since the round began.
    pub writes_left: u64,
}

/// A round under way.
pub(super) struct Round {
    /// Sees what the indexes will have at its end.
    pub next: Transaction,
    /// Writes were stopped before it began.
    is_last: bool,
    written: Sorted,
    /// The entry of `written` that comes next, if there is one: key, transaction.
    ahead: (Vec<u8>, Vec<u8>),
    is_at_end: bool,
    /// The row: its key, its value before and after.
    key: Vec<u8>,
    before: Vec<u8>,
    after: Vec<u8>,
    /// Entries of `written` so far.
    entries: u64,
    rows: u64,
    /// Entries that go into the next log.
    later: u64,
}

/// What a logged write is to a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The round sees it.
    Seen,
    /// A later one may.
    Later,
    /// It was rolled back.
    Gone,
}

impl Round {
    fn fate(&mut self, id: TrxId) -> Fate {
        let core = self.next.core();
        let view = core.read_view();
        let csn = &core.system.csn;
        if view.sees(csn, id) {
            Fate::Seen
        } else if csn.state(id) == TrxState::RolledBack {
            Fate::Gone
        } else {
            Fate::Later
        }
    }

    fn step(&mut self) -> Result<()> {
        let (key, trx) = &mut self.ahead;
        self.is_at_end = !self.written.next(key, trx)?;
        self.entries += 1;
        match self.entries % ENTRIES_A_TURN {
            0 => self.next.core().check_interrupt(),
            _ => Ok(()),
        }
    }

    /// Goes to the next row of the log that the round sees a write of; false if there is none.
    fn next_seen(&mut self, table: &Table) -> Result<bool> {
        while !self.is_at_end {
            self.key.clone_from(&self.ahead.0);
            let mut is_seen = false;
            while !self.is_at_end && self.ahead.0 == self.key {
                let trx = trx_of(&self.ahead.1)?;
                match self.fate(trx) {
                    Fate::Seen => is_seen = true,
                    Fate::Later => {
                        table.note_write(trx, &self.key);
                        self.later += 1;
                    }
                    Fate::Gone => {}
                }
                self.step()?;
            }
            if is_seen {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes to the next row that differs. Whether there was and is one; none after the last.
    fn next_changed(
        &mut self,
        table: &Table,
        snapshot: &mut Transaction,
    ) -> Result<Option<(bool, bool)>> {
        while self.next_seen(table)? {
            let Round { next, key, before, after, .. } = self;
            let request = ReadRequest::new(key, before);
            let was = snapshot.read_in_change(table, Table::CLUSTERED, request)?;
            let request = ReadRequest::new(key, after);
            let is = next.read_in_change(table, Table::CLUSTERED, request)?;
            // Else it has passed through other versions, and is what it was.
            if was != is || was && before != after {
                self.rows += 1;
                return Ok(Some((was, is)));
            }
        }
        Ok(None)
    }
}

fn trx_of(bytes: &[u8]) -> Result<TrxId> {
    let bytes =
        bytes.try_into().map_err(|_| Error::Storage("no entry of a log of writes".into()))?;
    Ok(TrxId(u64::from_le_bytes(bytes)))
}

impl IndexChange {
    /// Begins a round: what has been committed since the snapshot that the new indexes were built
    /// from, or since the last round. Then come the [changed
    /// rows](Self::next_changed_row), their entries, and [`end_round`](Self::end_round). Once the
    /// indexes are built. After an error there is nothing to be done but to drop the change.
    pub fn begin_round(&mut self) -> Result<()> {
        self.check_built()?;
        if self.new.is_empty() || self.round.is_some() {
            let why = "change of indexes: a round is under way, or there is no new index";
            return Err(Error::InvalidOption(why.into()));
        }
        let mut next = self.inner.snapshot();
        if let Some(interrupt) = &self.interrupt {
            next.set_interrupt(interrupt.clone());
        }
        // Before the log is taken: see above.
        next.ensure_view();
        pause::reach(PausePoint::RoundViewOpen);
        let log = self.new_log();
        let log = self.table.take_log(log)?;
        // Until the end, of which nothing may go missing from here on.
        for new in &mut self.new {
            new.is_built = false;
        }
        let interrupt = next.interrupt_handle();
        let mut go_on = || if interrupt.is_set() { Err(Error::Interrupted) } else { Ok(()) };
        let mut round = Round {
            next,
            is_last: self.writes_stopped,
            written: log.sorted(&mut go_on)?,
            ahead: Default::default(),
            is_at_end: false,
            key: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            entries: 0,
            rows: 0,
            later: 0,
        };
        round.step()?;
        self.round = Some(round);
        self.begin_sorts();
        Ok(())
    }

    /// The next row that differs; none after the last. The caller [removes](Self::remove) the
    /// entries that the new indexes have of it as it was before, and [adds](Self::add) those that
    /// they are to have; entries that stay need neither. [`Error::Interrupted`] if it is
    /// interrupted on the way ([`set_interrupt`](Self::set_interrupt)).
    pub fn next_changed_row(&mut self) -> Result<Option<ChangedRow<'_>>> {
        // Without an error it goes back.
        let Some(mut round) = self.round.take() else { return Err(Error::NotFound) };
        let snapshot = self.snapshot.as_mut().ok_or(Error::NotFound)?;
        let changed = round.next_changed(&self.table, snapshot)?;
        let round = self.round.insert(round);
        Ok(changed.map(|(was, is)| ChangedRow {
            key: &round.key,
            before: was.then_some(&*round.before),
            after: is.then_some(&*round.after),
        }))
    }

    /// Removes an entry from the new index at this position of the new definition, at the end of
    /// the round.
    pub fn remove(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if self.round.is_none() {
            return Err(Error::NotFound);
        }
        self.sort_entry(index, key, value, Some(Edit::Remove))
    }

    /// Ends the round: the new indexes are what the rows ask for that it has seen. `go_on` is asked
    /// now and then; if it says no, the error is [`Error::Interrupted`]. After any error there is
    /// nothing to be done but to drop the change. Of two entries with the same key the error is an
    /// [`Error::DuplicateKey`], as of [`build`](Self::build).
    pub fn end_round(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<RoundReport> {
        if !self.round.as_ref().is_some_and(|round| round.is_at_end) {
            let why = "change of indexes: the round has more rows, or there is none";
            return Err(Error::InvalidOption(why.into()));
        }
        let inner = self.inner.clone();
        let next = self.rebuild.as_ref().map(|rebuild| rebuild.table.clone());
        let _inside = next.as_ref().map(|next| enter(&inner, next)).transpose()?;
        let mut go_on = || if go_on() { inner.check_writable() } else { Err(Error::Interrupted) };
        for at in 0..self.new.len() {
            let NewIndex { index, ref tree, ref mut sorter, .. } = self.new[at];
            let sorter = sorter.take().ok_or(Error::NotFound)?;
            match edit(tree, sorter, &mut go_on)? {
                Edited::Done => self.new[at].is_built = true,
                Edited::Duplicate { key, value } => {
                    self.duplicate = Some(DuplicateEntry { index, key, value: value.clone() });
                    return Err(Error::DuplicateKey { index, value });
                }
                Edited::Unexpected => {
                    return Err(Error::Storage(format!(
                        "table {}: index {} is not built: its entries are not those of the rows; \
                         check the table",
                        self.table.name(),
                        self.new_name(index),
                    )));
                }
            }
        }
        let writes_left = self.table.logged_writes()?;
        let Some(round) = self.round.take() else { return Err(Error::NotFound) };
        self.snapshot = Some(round.next);
        self.is_caught_up = round.is_last;
        Ok(RoundReport { rows: round.rows, writes_open: round.later, writes_left })
    }
}

/// What the edits of one index have come to.
enum Edited {
    Done,
    /// A second entry was to be added under the key: its value.
    Duplicate {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// The tree did not have an entry that was to be removed.
    Unexpected,
}

#[derive(Default)]
struct KeyEdits {
    key: Vec<u8>,
    /// Payloads, if there is one to be removed, one to be added.
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

impl KeyEdits {
    fn make(&mut self, tree: &VersionedTree) -> Result<Edited> {
        let (old, new) = (self.old.take(), self.new.take());
        if old == new || tree.edit_settled(&self.key, old.as_deref(), new.as_deref())? {
            return Ok(Edited::Done);
        }
        match (old, new) {
            (None, Some(new)) => self.duplicate(tree, &new),
            _ => Ok(Edited::Unexpected),
        }
    }

    fn duplicate(&self, tree: &VersionedTree, payload: &[u8]) -> Result<Edited> {
        let value = tree.value_of_settled(payload)?;
        Ok(Edited::Duplicate { key: self.key.clone(), value })
    }
}

/// Makes the edits of a tree.
fn edit(
    tree: &VersionedTree,
    sorter: Sorter,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Edited> {
    let mut sorted = sorter.sorted(go_on)?;
    let mut edits = KeyEdits::default();
    let (mut key, mut sorted_as) = (Vec::new(), Vec::new());
    let mut entries = 0_u64;
    while sorted.next(&mut key, &mut sorted_as)? {
        if entries.is_multiple_of(ENTRIES_A_TURN) {
            go_on()?;
        }
        entries += 1;
        if key != edits.key {
            match edits.make(tree)? {
                Edited::Done => edits.key.clone_from(&key),
                other => return Ok(other),
            }
        }
        let (is_addition, payload) = match sorted_as.split_first() {
            Some((&edit, payload)) => (edit == Edit::Add as u8, payload),
            None => return Ok(Edited::Unexpected),
        };
        let place = if is_addition { &mut edits.new } else { &mut edits.old };
        if place.is_some() {
            return if is_addition {
                edits.duplicate(tree, payload)
            } else {
                Ok(Edited::Unexpected)
            };
        }
        *place = Some(payload.to_vec());
    }
    edits.make(tree)
}
