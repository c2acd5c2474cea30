//! Rollbacks that a table's file stands in the way of: a broken page, or one that can't be read, or no file at all.
//!
//! Rollback takes the newest record first, so that one would keep all the others, and the locks on what they wrote. Instead the others are
//! undone where they are, and marked ([`MARK_UNDONE`](crate::undo::record::MARK_UNDONE)); only records about the tables that stand in the
//! way are passed over, in each from the newest that can't be undone. Every key's records are still undone from the newest to the oldest,
//! for a key is in one table.
//!
//! Then the rollback is *stranded*. All its locks are let go but those on what it could not undo, and whoever meets one of these is told
//! why at once: the wait has no end that anybody could foresee. The background goes on trying; when the file is back, or the table
//! dropped, it cuts off what is marked and undoes the rest, in this life or another.
//!
//! A broken page of the undo log itself strands a rollback, too: it has undone what its log holds behind that page, and nothing
//! before it.
//!
//! That is for what does not pass by itself: see [`super::retry`].

use std::collections::HashSet;

use super::rollback::{STEPS_A_TURN, Step, Trees, Undone, step_of};
use super::system::{Orphan, TrxSystem};
use crate::error::{Error, Result};
use crate::files::{FIRST_TABLE_SPACE, space_file_name};
use crate::undo::damage::is_damage;

impl TrxSystem {
    /// What becomes of a rollback that ended with `error`, which is given back; or false, if it was to stop.
    pub(super) fn strand_if_it_lasts(
        &self,
        orphan: &mut Orphan,
        error: Error,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        if orphan.owner.stranded().is_some() || !orphan.troubles.last(&error) {
            return Err(error);
        }
        let around = match is_damage(&error) {
            // What is behind the broken page of undo is undone, and how to undo what is before it may hang on it.
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
                orphan.owner.strand(broken.to_string());
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
            orphan.owner.strand(error.to_string());
            self.locks.release_all(&orphan.owner);
        }
        Err(error)
    }

    /// Undoes all records but those about tables that stand in the way; says in which spaces these are.
    fn undo_around(&self, orphan: &mut Orphan, stop: &dyn Fn() -> bool) -> Result<HashSet<u32>> {
        let Orphan { log, troubles, .. } = orphan;
        // As long as the log says that it is prepared, a crash would leave a transaction that can be committed, without what is marked.
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
                            troubles.forget();
                            continue;
                        }
                        Err(error) if troubles.last(&error) && is_of_table(&error, space) => {
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

/// Whether an error is about the file of this space, and that is a table's: not about a full disk, or the log.
fn is_of_table(error: &Error, space: u32) -> bool {
    let name = space_file_name(space);
    space >= FIRST_TABLE_SPACE
        && match error {
            Error::Corrupt { file, .. } | Error::Format { file, .. } | Error::Lost { file, .. } => {
                *file == name
            }
            Error::Storage(what) => what.contains(&name),
            _ => false,
        }
}
