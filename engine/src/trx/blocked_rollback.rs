//! Blocked rollbacks: a file of a table stands in the way, with a page that is broken or can't be
//! read, because it is missing, or because its key is.
//!
//! Rollback runs newest-first, so one unreadable page would block every older record and hold all
//! locks of the transaction. Instead, the rollback undoes the other records where they are and
//! marks them ([`MARK_UNDONE`](crate::undo::record::MARK_UNDONE)). It passes over records about the
//! tables in the way, in each from the newest that can't be undone. Every key's records are still
//! undone from the newest to the oldest, for a key is in one table.
//!
//! Then the rollback is *blocked*. It releases all locks but those on what it could not undo, and a
//! request that meets one of these fails at once with the reason: nothing says when the wait would
//! end. The background goes on trying. When the file is back, or the table is dropped, it cuts off
//! the marked records and undoes the rest, in this life of the process or another.
//!
//! A broken page of the undo log itself blocks a rollback, too: the rollback has undone the records
//! behind that page, and none before it.
//!
//! An error that passes by itself blocks nothing: see [`super::retry`].

use std::collections::HashSet;

use super::rollback::{STEPS_A_TURN, Step, Trees, Undone, step_of};
use super::system::{Orphan, TrxSystem};
use crate::error::{Error, Result};
use crate::files::{FIRST_TABLE_SPACE, space_file_name};
use crate::undo::damage::is_damage;

impl TrxSystem {
    /// What becomes of a rollback that ended with `error`, which is given back; or false, if it was
    /// to stop.
    pub(super) fn block_if_it_lasts(
        &self,
        orphan: &mut Orphan,
        error: Error,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        if orphan.owner.blocked().is_some() || !orphan.retries.gives_up_on(&error) {
            return Err(error);
        }
        let around = match is_damage(&error) {
            // What is behind the broken page of undo is undone, and how to undo what is before it
            // may hang on it.
            true => Err(error.clone()),
            false => self.undo_around(orphan, stop),
        };
        let passed_over = match around {
            Err(Error::Interrupted) => return Ok(false),
            Err(broken) if is_damage(&broken) && self.undo.can_be_read_now(&broken) => {
                return Err(error);
            }
            Err(broken) if is_damage(&broken) => {
                tracing::error!(
                    "a rollback can't be finished; the rows that it has still to undo can't be changed: {broken}"
                );
                orphan.owner.set_blocked(broken);
                self.locks.release_all(&orphan.owner);
                return Err(error);
            }
            passed_over => passed_over?,
        };
        if !passed_over.is_empty() {
            let files: Vec<_> = passed_over.into_iter().map(space_file_name).collect();
            tracing::error!(
                "a rollback can't be finished, and is tried again; the rows that it has changed in {} can't be changed until then: {error}",
                files.join(", ")
            );
            // In this order: who finds it ended finds out why.
            orphan.owner.set_blocked(error.clone());
            self.locks.release_all(&orphan.owner);
        }
        Err(error)
    }

    /// Undoes all records but those about tables that stand in the way; says in which spaces these
    /// are.
    fn undo_around(&self, orphan: &mut Orphan, stop: &dyn Fn() -> bool) -> Result<HashSet<u32>> {
        let Orphan { log, retries, .. } = orphan;
        // As long as the log says that it is prepared, a crash would leave a transaction that can
        // be committed, without what is marked.
        log.begin_rollback(&self.undo)?;
        let (mut passed_over, mut end) = (HashSet::new(), log.tail());
        loop {
            let _tables = self.enter_tables();
            let mut trees = Trees::default();
            for _ in 0..STEPS_A_TURN {
                let found = log
                    .before(&self.undo, end, |at, record| (at, record.space(), step_of(&record)))?;
                let Some((at, space, step)) = found else { return Ok(passed_over) };
                if let (Some(space), Some(step)) = (space, step)
                    && !passed_over.contains(&space)
                    && !matches!(step, Step::Nothing)
                {
                    let record = Undone { at, stays: true };
                    match self.undo_step(log, record, &step, &mut trees, None) {
                        // All of it, or a part: to be looked at again.
                        Ok(()) => {
                            retries.succeeded();
                            continue;
                        }
                        Err(error) if retries.gives_up_on(&error) && is_of_table(&error, space) => {
                            passed_over.insert(space);
                        }
                        Err(error) => return Err(error),
                    }
                }
                end = at;
            }
            if stop() {
                return Err(Error::Interrupted);
            }
        }
    }
}

/// Whether an error is about the file of this space, and that is a table's: not about a full disk,
/// or the log.
fn is_of_table(error: &Error, space: u32) -> bool {
    space >= FIRST_TABLE_SPACE && error.file() == Some(&*space_file_name(space))
}
