//! The second pass over the log: every change that its page has not seen is applied.
//!
//! # Batches
//! Records come in the log's order, pages lie all over the files. So the log is taken in batches of
//! a bounded size; a batch is sorted by page, its pages are read ahead in file order, and each is
//! latched once and gets all of its changes. Only the order of one page's changes matters.
//!
//! # Which changes a page has seen
//! A page's LSN is the end of the last frame that changed it, so the page needs a frame iff its LSN
//! is below the frame's end. A changed page is dirty from the *batch's* first LSN on: that is early
//! enough for every change in it, should the checkpoint move while recovery runs.
//!
//! # Files
//! A file that the log creates and that is missing is made. A page that a file does not have is
//! one of zeroes: the log has all of it.
//!
//! # Damage
//! A file that the log neither creates nor deletes may be missing nonetheless, or a page of it
//! broken. If it is the engine's own, that ends the recovery. If it is a table's, the other tables
//! shall not suffer: its changes are passed over. A broken page stays broken, so no reader takes it
//! for whole later: should it turn out that it can be read after all, its table is given up; a
//! missing file, one whose pages are not those that the log has changes of (truncated, zeroed, or
//! replaced), or one that the disk fails to read, is reported to the layer above, which remembers
//! that changes of it are lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidepool_pool::storage::{Storage, StorageOp};
use tidepool_pool::{Access, ExclusiveGuard, Lsn, PageId, Pool, Space};

use super::scan::{Scan, undecodable};
use crate::error::{Error, Remedy, Result};
use crate::files::{self, FIRST_TABLE_SPACE, UNDO_SPACE, space_file_name};
use crate::format::OpError;
use crate::mirror;
use crate::options::AcceptLogLoss;
use crate::page_files::{OpenError, PageFiles};
use crate::page_op::{self, PageOp};
use crate::redo::record::Record;
use crate::redo::{RedoLog, contradiction};

/// Bytes of operations, and of what is noted of them, collected before they are applied: with a
/// memory budget, at most this part of it, as the memory of a batch grows by doubling and is
/// sorted.
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_PARTS: u64 = 32;
/// Pages read ahead at a time.
const PREFETCH_PAGES: usize = 64;
/// Reads ahead go on behind the end of a file by at least this many pages.
const EXTEND_PAGES: u64 = 64;

/// One change, its operation at `at..at + len` of the batch's bytes.
struct Change {
    page: PageId,
    end: Lsn,
    at: u32,
    len: u32,
}

struct Batch {
    /// How large it may become.
    full_bytes: usize,
    start: Option<Lsn>,
    bytes: Vec<u8>,
    changes: Vec<Change>,
}

/// What recovery may take, and what it may lose.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// The memory budget; 0: none.
    pub memory_budget_bytes: u64,
    /// Damage of spaces with an id below this one ends the recovery, of others it costs their
    /// changes.
    pub expendable_from: u32,
    /// What the files have in common.
    pub page_files: &'a PageFiles,
}

/// What applying the log has found out of tables' spaces.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Those whose file is missing, though the log holds changes of it.
    pub missing: HashSet<u32>,
    /// Those whose file was made of the log alone.
    pub made: HashSet<u32>,
}

/// Applies the log from the checkpoint to the scan's end.
pub(crate) fn apply(
    storage: &Arc<dyn Storage>,
    pool: &Pool,
    redo: &RedoLog,
    scan: &Scan,
    limits: Limits<'_>,
) -> Result<Applied> {
    let Limits { memory_budget_bytes, expendable_from, page_files } = limits;
    let mut files = Files {
        storage,
        page_files,
        pool,
        redo,
        scan,
        expendable_from,
        spaces: HashMap::new(),
        missing: HashSet::new(),
        made: HashSet::new(),
        broken: HashMap::new(),
    };
    files.finish_creations_and_deletions()?;
    let mut batch = Batch::new(memory_budget_bytes);
    let mut applied = 0;
    let mut reader = redo.reader();
    while reader.lsn() < scan.end {
        let Some(frame) = redo.read_frame(&mut reader)? else {
            return Err(Error::format(
                "redo",
                format!(
                    "the log ended at LSN {} on the second reading, but at {} on the first: the disk \
                     returns changing data",
                    reader.lsn().0,
                    scan.end.0
                ),
                Remedy::CheckDisk,
            ));
        };
        for record in frame.records() {
            let Record::Page { space, page, op } = record.map_err(|e| undecodable(&frame, e))?
            else {
                continue;
            };
            if scan.deleted.contains(&space) {
                continue;
            }
            batch.start.get_or_insert(frame.start);
            batch.push(PageId::new(space, page), frame.end, op);
        }
        if batch.is_full() {
            applied += batch.apply(&mut files)?;
        }
    }
    applied += batch.apply(&mut files)?;
    assert!(reader.lsn() == scan.end, "both readings of the log end at the same place");
    files.look_at_broken_pages_again()?;
    tracing::info!(frames = scan.frames, changes = applied, end = scan.end.0, "redo log applied");
    Ok(Applied { missing: files.missing, made: files.made })
}

fn full_bytes(memory_budget_bytes: u64) -> u64 {
    match memory_budget_bytes {
        0 => BATCH_BYTES,
        budget => BATCH_BYTES.min(budget / BATCH_PARTS),
    }
}

/// Memory that [`apply`] takes beside the pool's, with such a memory budget (0: none), about: room
/// for twice a batch, and for sorting it.
pub fn memory_bytes(memory_budget_bytes: u64) -> u64 {
    3 * full_bytes(memory_budget_bytes)
}

impl Batch {
    /// An empty one, with such a memory budget (0: none).
    fn new(memory_budget_bytes: u64) -> Batch {
        Batch {
            full_bytes: full_bytes(memory_budget_bytes) as usize,
            start: None,
            bytes: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn push(&mut self, page: PageId, end: Lsn, op: &[u8]) {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(op);
        self.changes.push(Change { page, end, at, len: op.len() as u32 });
    }

    fn is_full(&self) -> bool {
        // An operation may be smaller than what is noted of it.
        self.bytes.len() + self.changes.len() * size_of::<Change>() >= self.full_bytes
    }

    /// Applies the changes and empties the batch. Returns how many the pages had not seen.
    fn apply(&mut self, files: &mut Files<'_>) -> Result<u64> {
        let Some(start) = self.start.take() else { return Ok(0) };
        // Stable: the changes of one page stay in the log's order.
        self.changes.sort_by_key(|change| change.page);
        let mut applied = 0;
        let mut prefetched = 0;
        let mut first = 0;
        while first < self.changes.len() {
            let page = self.changes[first].page;
            let count = self.changes[first..].iter().take_while(|c| c.page == page).count();
            if first >= prefetched {
                prefetched = self.prefetch(files, first)?;
            }
            applied += self.apply_to_page(files, start, first..first + count)?;
            first += count;
        }
        self.changes.clear();
        self.bytes.clear();
        Ok(applied)
    }

    /// Reads ahead the pages from change `first` on. Returns the first change not covered.
    fn prefetch(&self, files: &mut Files<'_>, first: usize) -> Result<usize> {
        let space_id = self.changes[first].page.space;
        let mut pages = Vec::with_capacity(PREFETCH_PAGES);
        let mut next = first;
        for change in &self.changes[first..] {
            if change.page.space != space_id {
                break;
            }
            if pages.last() != Some(&change.page.no) {
                if pages.len() == PREFETCH_PAGES {
                    break;
                }
                pages.push(change.page.no);
            }
            next += 1;
        }
        if let Some(space) = files.space(space_id)? {
            files.extend(&space, *pages.last().expect("at least the first"));
            files.pool.prefetch(&space, &pages, Access::Normal);
        }
        Ok(next)
    }

    fn apply_to_page(
        &self,
        files: &mut Files<'_>,
        start: Lsn,
        changes: std::ops::Range<usize>,
    ) -> Result<u64> {
        let changes = &self.changes[changes];
        debug_assert!(changes.is_sorted_by_key(|change| change.end), "in the order of the log");
        let id = changes[0].page;
        let Some(space) = files.space(id.space)? else { return Ok(0) };
        files.extend(&space, id.no);
        let op = |change: &Change| &self.bytes[change.at as usize..][..change.len as usize];
        // A page that is set as a whole need not be read, nor be readable, whatever was changed in
        // it before.
        let whole = changes.iter().rposition(|change| sets_whole_page(op(change)));
        let changes = &changes[whole.unwrap_or(0)..];
        let newest = changes[changes.len() - 1].end;
        let mut page = if whole.is_some() {
            files.broken.remove(&id);
            files.pool.new_page(&space, id.no)?
        } else if let Some(passed_over) = files.broken.get_mut(&id) {
            // Whether or not it can be read by now, it lacks the changes before.
            *passed_over = newest;
            return Ok(0);
        } else {
            match read_page(files.pool, &space, id.no) {
                Err(error @ tidepool_pool::Error::Corrupt { .. }) if files.is_expendable(id) => {
                    tracing::error!(%error, "a broken page: its changes in the redo log are passed over");
                    files.broken.insert(id, newest);
                    return Ok(0);
                }
                // It may be readable again later, as it was before these changes, and pass for
                // whole.
                Err(tidepool_pool::Error::Storage(error))
                    if id.space >= files.expendable_from && error.op == StorageOp::Read =>
                {
                    return files.give_up(&space, id.no, changes[0].end, error);
                }
                page => page?,
            }
        };
        let seen = page.page_lsn();
        if seen == Lsn::ZERO && whole.is_none() {
            // Zeroes pass for a page that was never written, but this one was: before the
            // checkpoint, or the log would begin with all of it.
            drop(page);
            let nothing = OpError("there is nothing in it to be changed");
            if id.space == UNDO_SPACE && files.is_expendable(id) {
                tracing::error!(
                    "{}: page {} is corrupt: {nothing}; its changes in the redo log are passed over",
                    space.name(),
                    id.no
                );
                files.broken.insert(id, newest);
                return Ok(0);
            }
            return files.give_up(&space, id.no, changes[0].end, nothing);
        }
        if let Some(why) = contradiction(seen, files.scan.end, files.redo.lost()) {
            drop(page);
            return match id.space {
                // It is newer than all that the log could add.
                _ if files.expendable_from == 0 => Ok(0),
                FIRST_TABLE_SPACE.. if files.may_lose(seen) => {
                    files.give_up(&space, id.no, newest, why)
                }
                _ => Err(Error::corrupt(space.name(), id.no, why)
                    .with_remedies(Remedy::RestoreDirectory)),
            };
        }
        let mut applied = 0;
        for change in changes.iter().filter(|change| change.end > seen) {
            if let Err(error) = page_op::apply_encoded(op(change), page.bytes_mut()) {
                // Half changed in memory: no thread may see it.
                drop(page);
                return files.give_up(&space, id.no, change.end, error);
            }
            applied += 1;
        }
        if applied > 0 {
            files.pool.mark_dirty(&mut page, start, newest);
        }
        Ok(applied)
    }
}

/// The page, latched. One that is wrong is read again at once: it may have been the way from the
/// disk that was at fault.
fn read_page<'p>(
    pool: &'p Pool,
    space: &'p Space,
    no: u32,
) -> tidepool_pool::Result<ExclusiveGuard<'p>> {
    match pool.exclusive(space, no, Access::Normal) {
        Err(tidepool_pool::Error::Corrupt { .. }) => pool.exclusive(space, no, Access::Normal),
        page => page,
    }
}

/// Whether the operation leaves nothing of what the page was.
fn sets_whole_page(op: &[u8]) -> bool {
    matches!(
        PageOp::decode(op),
        Ok(PageOp::Format { .. } | PageOp::Image { .. } | PageOp::NodeInit { .. })
    )
}

struct Files<'a> {
    storage: &'a Arc<dyn Storage>,
    page_files: &'a PageFiles,
    pool: &'a Pool,
    redo: &'a RedoLog,
    scan: &'a Scan,
    spaces: HashMap<u32, Arc<Space>>,
    /// See [`Limits`].
    expendable_from: u32,
    /// Tables' spaces whose file is missing, or is not the one that the log has changes of.
    missing: HashSet<u32>,
    /// Tables' spaces whose file was made here.
    made: HashSet<u32>,
    /// Tables' pages that were broken when changes were to be made in them, each with the end of
    /// the last change that was passed over.
    broken: HashMap<PageId, Lsn>,
}

impl Files<'_> {
    /// Whether a table whose page has this LSN, one that contradicts the log, is given up: what the
    /// log lacks is known to be lost, or the user accepts that it is.
    fn may_lose(&self, page_lsn: Lsn) -> bool {
        self.redo.has_lost(page_lsn) || self.scan.accept == AcceptLogLoss::Yes
    }

    fn finish_creations_and_deletions(&mut self) -> Result<()> {
        let mut dirs = Vec::new();
        for &id in &self.scan.created {
            let name = space_file_name(id);
            if !self.scan.deleted.contains(&id) {
                if self.page_files.writes_nothing() {
                    if !self.storage.exists(&name)? {
                        self.storage.create(&name)?.sync_data()?;
                    }
                } else if self.page_files.make_missing(&**self.storage, id)? {
                    self.made.insert(id);
                }
                dirs.push(name);
            }
        }
        for &id in &self.scan.deleted {
            let name = space_file_name(id);
            if self.storage.exists(&name)?
                && let Err(error) = self.storage.remove(&name)
            {
                // It does no harm: the layer above tries again.
                tracing::warn!(%error, "the file of a dropped table stays for now");
            }
            dirs.push(name);
        }
        // The record of the deletion may lie before the checkpoint, and once such a file is found
        // to be gone, nothing speaks of it.
        dirs.extend(self.scan.unlisted.iter().map(|&id| space_file_name(id)));
        // Even if there was nothing to do: a process that was killed may have done it without this.
        let mut dirs: Vec<&str> = dirs.iter().map(|name| files::dir_of(name)).collect();
        dirs.sort_unstable();
        dirs.dedup();
        for dir in dirs {
            self.storage.sync_dir(dir)?;
        }
        Ok(())
    }

    /// The space, or `None` if it is a table's and its file is missing.
    fn space(&mut self, id: u32) -> Result<Option<Arc<Space>>> {
        if self.missing.contains(&id) {
            return Ok(None);
        }
        if let Some(space) = self.spaces.get(&id) {
            return Ok(Some(space.clone()));
        }
        let name = space_file_name(id);
        if !self.storage.exists(&name)? {
            if id < self.expendable_from {
                return Err(Error::lost(
                    &*name,
                    "missing, but the redo log holds changes of it",
                    Remedy::PutBack,
                ));
            }
            tracing::error!(file = name, "missing, but the redo log holds changes of it");
            self.missing.insert(id);
            return Ok(None);
        }
        let space = match self.page_files.open_space(&**self.storage, self.pool, id) {
            Err(OpenError::Unusable(error)) if id >= self.expendable_from => {
                tracing::error!(%error, "the table's changes in the redo log are passed over");
                self.missing.insert(id);
                return Ok(None);
            }
            space => space?,
        };
        self.spaces.insert(id, space.clone());
        Ok(Some(space))
    }

    /// Gives up the tables that have a page which was broken when changes were to be made in it,
    /// and can be read now: it lacks them, and does not show it.
    fn look_at_broken_pages_again(&mut self) -> Result<()> {
        for (id, passed_over) in std::mem::take(&mut self.broken) {
            if id.space < self.expendable_from {
                self.check_still_broken(id, passed_over)?;
                continue;
            }
            if id.space < FIRST_TABLE_SPACE {
                continue;
            }
            let Some(space) = self.space(id.space)? else { continue };
            let lacks_them = match read_page(self.pool, &space, id.no) {
                Ok(page) => page.page_lsn() < passed_over,
                Err(_) => false,
            };
            if lacks_them {
                let why = "it was broken when that was tried, and is not now";
                self.give_up(&space, id.no, passed_over, why)?;
            }
        }
        Ok(())
    }

    /// Whether a broken page costs what is on it, and not the start: a page of a table, or of undo
    /// records.
    fn is_expendable(&self, page: PageId) -> bool {
        page.space >= self.expendable_from
            || page.space == UNDO_SPACE && !mirror::covers(page, self.pool.page_size())
    }

    /// An error if a page of undo records was broken when changes were to be made in it, and can be
    /// read now.
    fn check_still_broken(&mut self, id: PageId, passed_over: Lsn) -> Result<()> {
        let Some(space) = self.space(id.space)? else { return Ok(()) };
        match read_page(self.pool, &space, id.no) {
            Ok(page) if page.page_lsn() != Lsn::ZERO && page.page_lsn() < passed_over => {
                let why = "it could not be read for a moment, and lacks changes";
                Err(Error::corrupt(space.name(), id.no, why).with_remedies(Remedy::CheckDisk))
            }
            _ => Ok(()),
        }
    }

    /// A change does not fit its page: the file was truncated, or replaced by another. Or the page
    /// cannot be read. Ends the recovery, or, if it is a table's file, only that of the table.
    fn give_up(
        &mut self,
        space: &Arc<Space>,
        no: u32,
        lsn: Lsn,
        why: impl std::fmt::Display,
    ) -> Result<u64> {
        let error = Error::corrupt(
            space.name(),
            no,
            format!("the redo log's change up to LSN {} cannot be made in it ({why})", lsn.0),
        );
        if space.id() < self.expendable_from {
            return Err(error);
        }
        if space.id() < FIRST_TABLE_SPACE {
            // The engine's own files are read all the same, as far as they can be.
            tracing::error!(%error, "the page's changes in the redo log are passed over");
            self.broken.insert(PageId::new(space.id(), no), lsn);
            return Ok(0);
        }
        tracing::error!(%error, "the table's changes in the redo log are passed over");
        self.missing.insert(space.id());
        self.spaces.remove(&space.id());
        self.pool.close_space(space, true)?;
        Ok(0)
    }

    /// Lets reads ahead go as far as page `no`. One that the file does not have is of zeroes.
    fn extend(&self, space: &Space, no: u32) {
        if no >= space.page_count() {
            let pages = (u64::from(no) + 1).next_multiple_of(EXTEND_PAGES);
            space.note_page_count(pages.min(u64::from(u32::MAX)) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_tiny_changes_is_no_larger_than_others() {
        const MIB: usize = 1 << 20;
        for (budget, most) in [(0, 32 * MIB), (16 << 20, MIB / 2), (1 << 40, 32 * MIB)] {
            let mut batch = Batch::new(budget);
            while !batch.is_full() {
                batch.push(PageId::new(FIRST_TABLE_SPACE, 1), Lsn(1), &[0; 2]);
            }
            let bytes = batch.bytes.len() + batch.changes.len() * size_of::<Change>();
            assert!(bytes <= most + size_of::<Change>() + 2, "{bytes} bytes");
        }
    }
}
