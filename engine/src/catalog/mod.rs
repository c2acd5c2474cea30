//! The catalog: which tables there are, under which names, and where their trees live.
//!
//! # On disk
//! One versioned tree in the system space: table name → `TableRecord`. It is written by ordinary
//! transactions, so a change of definition is atomic and survives a crash as any row does. Its
//! root, and the next ids to give, are in the table area of the system space's header page:
//!
//! ```text
//!  96  format version u32 = 2
//! 100  root page of the catalog's tree u32
//! 104  next space id u32       from 16
//! 108  next tree id u32        from 16
//! 112  next table id u64       from 1
//! 120  root page of the attachments' tree u32
//! ```
//! Ids are durable before they are used, and never used again, whatever became of what they were
//! for: a file, or an undo record that names a space can't be taken for
//! another's.
//!
//! # In memory
//! All of it but the attachments, read once at open: looking up a table costs no page access.
//! Memory and tree are changed by one definition change at a time (`Db` serializes them), memory
//! after the commit.

mod attachment;
mod record;

pub use attachment::{ATTACHMENT_KIND_MAX, ATTACHMENT_LEN_MAX, Attachment};
pub(crate) use attachment::{ATTACHMENT_TREE, parts as attachment_of};
pub use record::{INDEXES_MAX, IndexDef, METADATA_LEN_MAX, NAME_LEN_MAX, TableDef};
pub(crate) use record::{TableRecord, TreeRecord, check_table_name};

use attachment::Attachments;

use crate::env::Env;
use crate::error::{Error, Remedy, Result};
use crate::files::FIRST_TABLE_SPACE;
use crate::format::space_header::TABLE_AREA;
use crate::lock::LockMode;
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::pause::{self, PausePoint};
use crate::trx::{Csn, TransactionCore, TransactionOptions, TrxSystem};
use crate::versioned::{Batch, Direction, LongValues, ScanPosition, ScanRequest, VersionedTree};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_pool::{Access, Space};

/// Tree id of the catalog.
pub(crate) const CATALOG_TREE: u32 = 1;
/// First tree id of tables; those below are the engine's own.
const FIRST_TABLE_TREE: u32 = 16;

const FORMAT_VERSION: u32 = 2;
/// The root of a catalog that was made in a new space: behind the space's header and bitmap. A root
/// never moves.
const FIRST_ROOT: u32 = 2;
/// The root of the attachments' tree, likewise.
const FIRST_ATTACHMENTS_ROOT: u32 = 3;
const VERSION_AT: usize = TABLE_AREA.start;
const ROOT_AT: usize = TABLE_AREA.start + 4;
const NEXT_SPACE_AT: usize = TABLE_AREA.start + 8;
const NEXT_TREE_AT: usize = TABLE_AREA.start + 12;
const NEXT_TABLE_AT: usize = TABLE_AREA.start + 16;
const ATTACHMENTS_ROOT_AT: usize = TABLE_AREA.start + 24;

/// Ids for a new table, or for the new space of a truncated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewIds {
    pub space: u32,
    pub first_tree: u32,
    pub table: u64,
}

/// The open catalog.
pub(crate) struct Catalog {
    env: Arc<Env>,
    system: Arc<Space>,
    tree: VersionedTree,
    attachments: Attachments,
    tables: RwLock<BTreeMap<String, Arc<TableRecord>>>,
    /// See [`Catalog::newest_change`].
    newest_change: AtomicU64,
}

/// The root page of the catalog's tree, from the bytes of the system space's header page.
pub(crate) fn catalog_root(header: &[u8]) -> u32 {
    u32_at(header, ROOT_AT)
}

/// The same of the attachments' tree.
pub(crate) fn attachments_root(header: &[u8]) -> u32 {
    u32_at(header, ATTACHMENTS_ROOT_AT)
}

impl Catalog {
    /// Makes the catalog of a new data directory, in its system space.
    pub fn create(env: &Arc<Env>, system: &Arc<Space>) -> Result<Self> {
        let mut mtr = Mtr::begin(env)?;
        let root = VersionedTree::create(&mut mtr, env, system, CATALOG_TREE)?;
        let attachments = Attachments::create(&mut mtr, env, system)?;
        debug_assert_eq!((root, attachments), (FIRST_ROOT, FIRST_ATTACHMENTS_ROOT));
        let header = mtr.exclusive(system, 0)?;
        let mut write = |at: usize, bytes: &[u8]| {
            mtr.apply(header, &PageOp::Write { offset: at as u32, bytes })
        };
        write(VERSION_AT, &FORMAT_VERSION.to_le_bytes());
        write(ROOT_AT, &root.to_le_bytes());
        write(NEXT_SPACE_AT, &FIRST_TABLE_SPACE.to_le_bytes());
        write(NEXT_TREE_AT, &FIRST_TABLE_TREE.to_le_bytes());
        write(NEXT_TABLE_AT, &1u64.to_le_bytes());
        write(ATTACHMENTS_ROOT_AT, &attachments.to_le_bytes());
        mtr.commit();
        Ok(Self::with_roots(env, system, root, attachments))
    }

    /// Whether the system space holds a catalog.
    pub fn exists(env: &Env, system: &Space) -> Result<bool> {
        let header = env.pool().shared(system, 0, Access::Normal)?;
        Ok(u32_at(&header, VERSION_AT) != 0)
    }

    /// Opens the catalog of an existing data directory. [`load`](Self::load) comes next.
    pub fn open(env: &Arc<Env>, system: &Arc<Space>) -> Result<Self> {
        let header = match env.pool().shared(system, 0, Access::Normal) {
            Err(error) if env.force_recovery().is_read_only() => {
                tracing::error!("{error}; the catalog is looked for where a new one begins");
                return Ok(Self::with_roots(env, system, FIRST_ROOT, FIRST_ATTACHMENTS_ROOT));
            }
            header => header?,
        };
        let version = u32_at(&header, VERSION_AT);
        if version != FORMAT_VERSION {
            return Err(Error::format(
                crate::files::SYSTEM_FILE,
                format!(
                    "catalog of format version {version}, but this program reads only version {FORMAT_VERSION}"
                ),
                Remedy::UseItsVersion,
            ));
        }
        let (root, attachments) = (u32_at(&header, ROOT_AT), u32_at(&header, ATTACHMENTS_ROOT_AT));
        Ok(Self::with_roots(env, system, root, attachments))
    }

    fn with_roots(env: &Arc<Env>, system: &Arc<Space>, root: u32, attachments: u32) -> Self {
        Self {
            env: env.clone(),
            system: system.clone(),
            tree: VersionedTree::open(env, system, root, CATALOG_TREE, 0),
            attachments: Attachments::open(env, system, attachments),
            tables: RwLock::default(),
            newest_change: AtomicU64::new(0),
        }
    }

    /// Reads all committed entries. What an unfinished transaction of an earlier life wrote is not
    /// among them.
    pub fn load(&self, trx_system: &Arc<TrxSystem>) -> Result<()> {
        let mut trx = trx_system
            .begin(TransactionOptions { read_only: true, ..TransactionOptions::default() });
        let (mut position, mut batch) = (ScanPosition::start(), Batch::default());
        let (direction, long_values) = (Direction::Forward, LongValues::Whole);
        let request = ScanRequest { direction, rows: 64, access: Access::Scan, long_values };
        let mut tables = BTreeMap::new();
        while !position.at_end() {
            batch.clear();
            let scanned = self.tree.scan(&mut trx, &mut position, request, &mut batch);
            match scanned {
                Err(error) if self.env.force_recovery().is_read_only() => {
                    tracing::error!("{error}; there are only the tables that were read before");
                    break;
                }
                scanned => scanned?,
            }
            for at in 0..batch.len() {
                let name = std::str::from_utf8(batch.key(at)).map_err(|_| {
                    Error::lost(
                        crate::files::SYSTEM_FILE,
                        "a table's name in the catalog is not UTF-8",
                        Remedy::RestoreDirectory,
                    )
                })?;
                let record = TableRecord::decode(name, batch.value(at))?;
                tables.insert(name.to_string(), Arc::new(record));
            }
        }
        for record in tables.values() {
            self.register_space_of(record);
        }
        *self.tables.write() = tables;
        Ok(())
    }

    pub fn tree(&self) -> &VersionedTree {
        &self.tree
    }

    /// A table by name.
    pub fn get(&self, name: &str) -> Option<Arc<TableRecord>> {
        self.tables.read().get(name).cloned()
    }

    /// All tables, by name.
    pub fn tables(&self) -> Vec<(String, Arc<TableRecord>)> {
        self.tables.read().iter().map(|(name, record)| (name.clone(), record.clone())).collect()
    }

    /// How many tables have names that begin so.
    pub fn count_with_prefix(&self, prefix: &str) -> usize {
        let tables = self.tables.read();
        let from = tables.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(|(name, _)| name.starts_with(prefix)).count()
    }

    /// The number of the commit that the newest change of this life was, or of one a moment later.
    /// A snapshot that is older does not see the change.
    pub fn newest_change(&self) -> Csn {
        Csn(self.newest_change.load(Ordering::Acquire))
    }

    /// Every tree id given out is below.
    pub fn tree_id_limit(&self) -> Result<u32> {
        Ok(u32_at(&self.env.pool().shared(&self.system, 0, Access::Normal)?, NEXT_TREE_AT))
    }

    /// Gives new ids of trees, one behind the other, and returns the first; they are durable on
    /// return.
    pub fn new_tree_ids(&self, trees: u32) -> Result<u32> {
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.system, 0)?;
        let first = u32_at(mtr.page(header), NEXT_TREE_AT);
        let Some(next) = first.checked_add(trees) else {
            return Err(Error::NoSpace("tree ids: 2^32 have been used".into()));
        };
        let bytes = &next.to_le_bytes();
        mtr.apply(header, &PageOp::Write { offset: NEXT_TREE_AT as u32, bytes });
        let lsn = mtr.commit();
        self.env.redo().flush_to(lsn)?;
        Ok(first)
    }

    /// Gives new ids; they are durable on return.
    pub fn new_ids(&self, trees: u32) -> Result<NewIds> {
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.system, 0)?;
        let page = mtr.page(header);
        let ids = NewIds {
            space: u32_at(page, NEXT_SPACE_AT),
            first_tree: u32_at(page, NEXT_TREE_AT),
            table: u64_at(page, NEXT_TABLE_AT),
        };
        let (Some(space), Some(tree)) =
            (ids.space.checked_add(1), ids.first_tree.checked_add(trees))
        else {
            return Err(Error::NoSpace("space and tree ids: 2^32 have been used".into()));
        };
        let mut write = |at: usize, bytes: &[u8]| {
            mtr.apply(header, &PageOp::Write { offset: at as u32, bytes })
        };
        write(NEXT_SPACE_AT, &space.to_le_bytes());
        write(NEXT_TREE_AT, &tree.to_le_bytes());
        write(NEXT_TABLE_AT, &(ids.table + 1).to_le_bytes());
        let lsn = mtr.commit();
        self.env.redo().flush_to(lsn)?;
        Ok(ids)
    }

    /// No table gets the space id `used`, nor one below: its file, set aside, may be put back; or
    /// the log says that the space is gone, and a later recovery would take that for the table's.
    /// Matters only to a catalog that is older than its table files; durable on return.
    pub fn skip_space_id(&self, used: u32) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.system, 0)?;
        let Some(next) = used.checked_add(1) else {
            return Err(Error::NoSpace("space ids: 2^32 have been used".into()));
        };
        if u32_at(mtr.page(header), NEXT_SPACE_AT) < next {
            let bytes = &next.to_le_bytes();
            mtr.apply(header, &PageOp::Write { offset: NEXT_SPACE_AT as u32, bytes });
        }
        let lsn = mtr.commit();
        self.env.redo().flush_to(lsn)
    }

    /// Reads an attachment, if there is one of this name and kind. `trx` is to have no snapshot
    /// yet.
    pub fn attachment(
        &self,
        trx: &mut TransactionCore,
        name: &str,
        kind: u8,
    ) -> Result<Option<Vec<u8>>> {
        self.attachments.get(trx, name, kind)
    }

    /// Gives all attachments to `each`, in the order of their names.
    pub fn for_each_attachment(
        &self,
        trx: &mut TransactionCore,
        each: &mut dyn FnMut(&str, u8, &[u8]),
    ) -> Result<()> {
        self.attachments.for_each(trx, each)
    }

    /// Enters a table; durable on return.
    pub fn insert(
        &self,
        trx: &mut TransactionCore,
        name: &str,
        record: TableRecord,
        attachments: &[Attachment<'_>],
    ) -> Result<()> {
        self.tree.insert(trx, name.as_bytes(), &record.encode(), LockMode::None)?;
        self.attachments.set(trx, attachments)?;
        self.commit(trx)?;
        self.register_space_of(&record);
        self.tables.write().insert(name.into(), Arc::new(record));
        Ok(())
    }

    /// Gives a table another record; durable on return.
    pub fn replace(
        &self,
        trx: &mut TransactionCore,
        name: &str,
        record: TableRecord,
    ) -> Result<()> {
        self.tree.update(trx, name.as_bytes(), &record.encode())?;
        self.commit(trx)?;
        self.register_space_of(&record);
        let space = record.space;
        let old = self.tables.write().insert(name.into(), Arc::new(record));
        if let Some(old) = old.filter(|old| old.space != space) {
            self.env.unregister_space(old.space);
        }
        Ok(())
    }

    /// Notes that a table's file was missing when changes of it were to be recovered; durable on
    /// return.
    pub fn mark_lost_changes(&self, trx: &mut TransactionCore, name: &str) -> Result<()> {
        let record = self.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        let record = TableRecord { lost_changes: true, ..TableRecord::clone(&record) };
        self.replace(trx, name, record)
    }

    /// Removes tables, and the attachments of their names: all of them or none. Durable on return.
    pub fn remove(
        &self,
        trx: &mut TransactionCore,
        names: &[&str],
        attachments: &[Attachment<'_>],
    ) -> Result<()> {
        for name in names {
            self.tree.delete(trx, name.as_bytes())?;
            self.attachments.move_all(trx, name, None)?;
        }
        self.attachments.set(trx, attachments)?;
        self.commit(trx)?;
        let mut tables = self.tables.write();
        for record in names.iter().filter_map(|name| tables.remove(*name)) {
            self.env.unregister_space(record.space);
        }
        Ok(())
    }

    /// Gives tables other records, which may name other spaces, and some of them other names: all of
    /// it or nothing. `records` are under the names of before. A renamed table keeps its
    /// attachments. Those of `attachments`, by the names of afterwards, change at the same moment.
    /// Durable on return.
    pub fn change(
        &self,
        trx: &mut TransactionCore,
        renames: &[(&str, &str)],
        records: BTreeMap<String, Arc<TableRecord>>,
        attachments: &[Attachment<'_>],
    ) -> Result<()> {
        let mut records = records;
        for &(from, _) in renames {
            if !records.contains_key(from) {
                let record = self.get(from).ok_or_else(|| Error::TableMissing(from.into()))?;
                records.insert(from.into(), record);
            }
        }
        let new_name = |name: &str| {
            renames.iter().find(|(from, _)| *from == name).map(|(_, to)| (*to).to_owned())
        };
        for (name, record) in &records {
            match new_name(name) {
                Some(to) => {
                    self.tree.delete(trx, name.as_bytes())?;
                    self.tree.insert(trx, to.as_bytes(), &record.encode(), LockMode::None)?;
                }
                None => self.tree.update(trx, name.as_bytes(), &record.encode())?,
            }
        }
        for (from, to) in renames {
            self.attachments.move_all(trx, from, Some(to))?;
        }
        self.attachments.set(trx, attachments)?;
        self.commit(trx)?;
        let mut tables = self.tables.write();
        for (name, record) in records {
            if let Some(old) = tables.get(&name).filter(|old| old.space != record.space) {
                self.register_space_of(&record);
                self.env.unregister_space(old.space);
            }
            let present = match new_name(&name) {
                Some(to) => {
                    tables.remove(&name);
                    to
                }
                None => name,
            };
            tables.insert(present, record);
        }
        Ok(())
    }

    /// Other names of a table's indexes, until the directory is closed or the record is replaced.
    pub fn learn_index_names(&self, name: &str, names: &[&str]) -> Result<()> {
        let record = self.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        let Some(renamed) = record.with_index_names(names)? else { return Ok(()) };
        let mut tables = self.tables.write();
        // Not over a record that has come in between.
        if let Some(present) = tables.get_mut(name).filter(|now| Arc::ptr_eq(now, &record)) {
            *present = Arc::new(renamed);
        }
        Ok(())
    }

    /// From here on a missing file of this table is missed. Not if the table has lost changes: it
    /// is of no use any more, and nor is what undo says of it.
    fn register_space_of(&self, record: &TableRecord) {
        match record.lost_changes {
            false => self.env.register_space(record.space),
            true => self.env.register_lost_space(record.space),
        }
    }

    /// Commits durably at any `flush_log_at_trx_commit`: files are created and removed by what the
    /// catalog says.
    fn commit(&self, trx: &mut TransactionCore) -> Result<()> {
        let lsn = trx.commit_no_flush()?;
        // Before the flush: while that is waited for, others commit, and take snapshots that see
        // this change.
        self.newest_change.store(trx.system.csn.published().0, Ordering::Release);
        pause::reach(PausePoint::DefinitionCommitted);
        self.env.redo().flush_to(lsn)
    }
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}
