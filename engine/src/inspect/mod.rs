//! A look at a data directory that no process has open, without a change of it: what `tidepool
//! check` and `tidepool salvage` stand on.
//!
//! The engine opens an [`OverlayStorage`] of the directory, so that recovery, and whatever else
//! writes at an open,
//! writes to a scratch storage. What is looked at then is the state that a start would come to, by
//! the code that a
//! server would use.
//!
//! | file | what |
//! |---|---|
//! | `scratch` | where recovery writes to |
//! | `files` | every page of every file: checksum, address, LSN |
//! | `mirrors` | the second copies of `system.tpd` and `undo.tpd` |
//! | `tables` | trees, allocation, undo, the catalog |
//! | `report` | what was found |
//! | [`salvage`] | what can still be read of a table |
//!
//! A page that is broken in its file is no damage if it is whole after the recovery: the log goes
//! on to set all of it, or its second copy is whole. Such pages are counted as healed.
//!
//! Where the engine does not open, it is opened at the lowest level of [`ForceRecovery`] that
//! helps.
//! The catalog that such an open has read may lack tables; [`salvage`] walks it itself then.
//!
//! Memory: the buffer pool that the options allow; a bit for each page of the largest file; a
//! number for each node of
//! the largest tree; the list of damaged pages, which ends at [`DAMAGED_PAGES_MAX`] a file.

mod files;
mod mirrors;
mod report;
pub mod salvage;
mod scratch;
mod tables;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidepool_pool::encryption::Keys;
use tidepool_pool::storage::{OverlayStorage, Storage};
use tidepool_pool::{Lsn, PageSize};

use crate::db::Db;
use crate::encryption::KeySource;
use crate::error::{Error, Remedy, Result};
use crate::files::{INCREMENT_MARK, SYSTEM_FILE, UNFINISHED_MARK};
use crate::options::{ForceRecovery, Options};
use crate::page_files::{PageFiles, Source};
use crate::redo::control::{CONTROL_FILE, Control};

pub use files::DAMAGED_PAGES_MAX;
pub use report::{DamagedPage, FileReport, IndexReport, LogReport, Report, TableReport};
use scratch::Scratch;

/// How far an inspection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectProgress<'a> {
    /// The file or table that is being looked at.
    pub what: &'a str,
    /// Bytes looked at. All files are read twice: page by page, and tree by tree.
    pub done_bytes: u64,
    /// Bytes to look at.
    pub total_bytes: u64,
}

/// Gets how far an inspection is, a few times for each MiB.
pub type ProgressFn<'f> = &'f mut dyn FnMut(InspectProgress<'_>);

/// A file that is read past the engine.
struct Opened {
    source: Source,
    /// Why it can't be opened and what is wrong with it, if it was rescued. Each names the file.
    wrong: Vec<String>,
}

/// The levels that do without something at the open. Those below are about what threads do later.
const LEVELS: [ForceRecovery; 3] =
    [ForceRecovery::ReadOnly, ForceRecovery::NoUndo, ForceRecovery::NoRedo];

/// What the engine is opened on.
struct Opening<'a> {
    storage: &'a Arc<dyn Storage>,
    scratch: &'a Scratch,
    options: &'a Options,
    has_control: bool,
    is_increment: bool,
}

/// The engine, why it doesn't open without a level, and the level.
type AtLevel = (Result<Db>, Option<Error>, ForceRecovery);

impl Opening<'_> {
    fn at_lowest_level(&self) -> Result<AtLevel> {
        let refusal = match self.at(ForceRecovery::Off)? {
            Ok(db) => return Ok((Ok(db), None, ForceRecovery::Off)),
            Err(refusal) => refusal,
        };
        let may_help = |level: &ForceRecovery| {
            !self.is_increment && (self.has_control || *level == ForceRecovery::NoRedo)
        };
        for level in LEVELS.into_iter().filter(may_help) {
            if let Ok(db) = self.at(level)? {
                return Ok((Ok(db), Some(refusal), level));
            }
        }
        Ok((Err(refusal.clone()), Some(refusal), ForceRecovery::Off))
    }

    /// The engine, or why it does not open.
    ///
    /// # Errors
    /// Of the scratch: what is refused then may be whole.
    fn at(&self, force_recovery: ForceRecovery) -> Result<Result<Db>> {
        // Without its control file the directory would be taken for a new one.
        if !self.has_control && force_recovery < ForceRecovery::NoRedo {
            return Ok(Err(Error::format(
                CONTROL_FILE,
                "missing, though the data directory holds 'system.tpd'",
                Remedy::PutBack,
            )));
        }
        let options = Options { force_recovery, ..self.options.clone() };
        let db = Db::open_on(self.storage.clone(), options);
        match (&db, self.scratch.error()) {
            (Err(_), Some(error)) => Err(error),
            _ => Ok(db),
        }
    }
}

/// A directory that is being looked at.
pub struct Inspection {
    /// As it is on the disk.
    base: Arc<dyn Storage>,
    /// As it is after recovery.
    storage: Arc<dyn Storage>,
    /// What recovery has written.
    scratch: Arc<Scratch>,
    /// What the control file says, if it can be read.
    control: Option<Control>,
    /// The engine on the overlay, or why it doesn't open.
    db: Result<Db>,
    /// Why it doesn't open without a level of force_recovery, if so.
    refusal: Option<Error>,
    /// The level that it is open with.
    level: ForceRecovery,
    /// It is an incremental backup, which the engine opens at no level.
    is_increment: bool,
    /// Pages that recovery has changed may be in the pool alone.
    is_in_pool: bool,
    /// Where it doesn't: what could be read of the attachments, by name and kind.
    attachments: OnceLock<HashMap<(String, u8), Vec<u8>>>,
    /// What the files on the disk have in common, once it was asked for.
    on_disk: OnceLock<PageFiles>,
    /// What encrypted pages are read with.
    keys: Option<Arc<Keys>>,
    /// Files that the engine has not open.
    opened: Mutex<HashMap<u32, Result<Arc<Opened>>>>,
}

impl Inspection {
    /// Opens the data directory in `base`, which is only read; what recovery writes goes to
    /// `scratch`, an empty
    /// storage. Both are opened for buffered I/O, and the caller holds the directory's lock.
    /// `options` gives the
    /// memory, and the keys of what is encrypted; what else it says of the directory does not
    /// count.
    ///
    /// # Errors
    /// There is no data directory, or `scratch` does not take what recovery writes
    /// ([`Error::NoSpace`] if it is full, else [`Error::Storage`]). A directory that is damaged is
    /// no error: see [`Inspection::db`].
    pub fn open(
        base: Arc<dyn Storage>,
        scratch: Arc<dyn Storage>,
        options: Options,
    ) -> Result<Inspection> {
        let is_there = |name: &str| base.exists(name);
        if !is_there(CONTROL_FILE)? && !is_there(SYSTEM_FILE)? {
            return Err(Error::format(
                CONTROL_FILE,
                "missing, and there is no system.tpd: this is no data directory of Tidepool",
                Remedy::NameDataDirectory,
            ));
        }
        let control = base.open(CONTROL_FILE).map_err(Error::from);
        let control =
            control.and_then(|file| Control::read(&*file)).ok().map(|(control, _)| control);
        let scratch = Arc::new(Scratch::new(scratch));
        let storage: Arc<dyn Storage> =
            Arc::new(OverlayStorage::new(base.clone(), scratch.clone()));
        let options = Options {
            page_size: 0,
            redo_capacity_bytes: 0,
            buffer_pool_dump_at_shutdown: false,
            buffer_pool_load_at_startup: false,
            scrub_days: 0,
            read_only: false,
            background: false,
            flush_log_at_trx_commit: 0,
            ..options
        };
        let keys = options.keyring.clone().map(|KeySource(keyring)| Arc::new(Keys::new(keyring)));
        let has_control = is_there(CONTROL_FILE)?;
        let is_increment = has_control && is_there(INCREMENT_MARK)? && !is_there(UNFINISHED_MARK)?;
        let opening = Opening {
            storage: &storage,
            scratch: &scratch,
            options: &options,
            has_control,
            is_increment,
        };
        let (db, refusal, level) = opening.at_lowest_level()?;
        let mut is_in_pool = level.is_read_only();
        if let Ok(db) = &db {
            // So that what is read beside the pool is as new as what is read through it.
            let env = db.inner.env();
            let written = match level.is_read_only() {
                true => env.pool().flush_all().map_err(Error::from),
                false => env.checkpoint_all().map(drop),
            };
            if let Err(error) = written {
                if let Some(of_scratch) = scratch.error() {
                    env.crash("the inspection has ended".into());
                    return Err(of_scratch);
                }
                // A file is damaged such that it takes no page.
                tracing::warn!(%error, "pages that recovery has changed are in memory alone");
                is_in_pool = true;
            }
        }
        scratch.forget_error();
        Ok(Inspection {
            base,
            storage,
            scratch,
            control,
            db,
            refusal,
            level,
            is_increment,
            is_in_pool,
            attachments: OnceLock::new(),
            on_disk: OnceLock::new(),
            keys,
            opened: Mutex::default(),
        })
    }

    /// The engine, as it is after the recovery, at whichever [`Inspection::level`]; an error if it
    /// can't be opened at any.
    pub fn db(&self) -> Result<&Db> {
        self.db.as_ref().map_err(Error::clone)
    }

    /// Why a start is refused; none if it is not.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// The lowest level of `force_recovery` that the engine opens with: [`Off`](ForceRecovery::Off)
    /// if it starts without one, or not at all.
    pub fn level(&self) -> ForceRecovery {
        self.level
    }

    /// The engine, if a start is not refused: its catalog has all tables.
    fn sound_db(&self) -> Option<&Db> {
        self.db.as_ref().ok().filter(|_| self.refusal.is_none())
    }

    /// The engine, if it knows which transactions had committed.
    fn db_with_undo(&self) -> Option<&Db> {
        self.db.as_ref().ok().filter(|_| self.level < ForceRecovery::NoUndo)
    }

    /// Why a start is refused, and the level that helps.
    pub fn refusal_text(&self) -> Option<String> {
        let refusal = self.refusal.as_ref()?;
        if self.is_increment {
            return Some(format!("{refusal}; only its pages were looked at"));
        }
        let how = match self.level {
            ForceRecovery::Off => "it does not with any level of force_recovery either".into(),
            level => {
                format!("it does with force_recovery={}, and so it was looked at", level.level())
            }
        };
        Some(format!("the engine can't start on this directory: {refusal}; {how}"))
    }

    /// Bytes in a page; of a directory that doesn't say, the usual ones.
    pub fn page_size(&self) -> PageSize {
        let of_files = || PageSize::new(self.db.as_ref().ok()?.inner.env().page_size());
        let page_size = self.control.as_ref().map(|control| control.page_size);
        page_size.or_else(of_files).unwrap_or(PageSize::DEFAULT)
    }

    /// End of the log; unknown if the engine can't be opened, or not with the log.
    pub fn log_end(&self) -> Option<Lsn> {
        let db = self.db.as_ref().ok().filter(|_| self.level < ForceRecovery::NoRedo);
        db.map(|db| db.inner.env().recovered_lsn())
    }

    /// Looks at everything.
    ///
    /// # Errors
    /// Only what keeps it from looking on. What it finds wrong is in the report.
    pub fn check(&self, progress: ProgressFn<'_>) -> Result<Report> {
        let lacks_key = matches!(self.refusal, Some(Error::Key { .. }));
        let mut report = Report {
            log: self.check_log(),
            force_recovery: self.level.level(),
            lacks_key,
            ..Report::default()
        };
        match self.is_increment || lacks_key {
            true => report.notes.extend(self.refusal_text()),
            false => report.problems.extend(self.refusal_text()),
        }
        self.check_files(&mut report, progress)?;
        self.check_mirrors(&mut report)?;
        if let Ok(db) = &self.db {
            self.check_tables(db, &mut report, progress)?;
        }
        self.unless_scratch_failed(report)
    }

    /// What was found, unless the scratch storage was at fault.
    fn unless_scratch_failed<T>(&self, found: T) -> Result<T> {
        self.scratch.error().map_or(Ok(found), Err)
    }

    /// Forgets the directory, without the writes that a close would make to the scratch.
    pub fn abandon(self) {
        if let Ok(db) = self.db {
            db.inner.env().crash("the inspection has ended".into());
        }
    }

    /// Whether the directory was closed cleanly; false if that is not known.
    fn was_clean(&self) -> bool {
        self.log_end().is_some() && self.db.as_ref().is_ok_and(|db| db.inner.env().was_clean())
    }

    fn check_log(&self) -> LogReport {
        let slots = self
            .base
            .open(CONTROL_FILE)
            .ok()
            .map(|file| Control::read(&*file).map_or(0, |(_, whole)| whole));
        let clean = self.was_clean();
        LogReport {
            checkpoint: self.control.as_ref().map(|control| control.checkpoint),
            end: self.log_end(),
            clean,
            damaged_control_slots: 2 - slots.unwrap_or(0).min(2),
        }
    }
}

impl std::fmt::Debug for Inspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspection").field("db", &self.db.is_ok()).finish_non_exhaustive()
    }
}
