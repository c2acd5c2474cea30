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
use crate::options::{ForceRecovery, Options};
use crate::page_files::{PageFiles, Source};
use crate::redo::control::{CONTROL_FILE, Control};

pub use files::DAMAGED_PAGES_MAX;
pub use report::{DamagedPage, FileReport, IndexReport, LogReport, Report, TableReport};

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

/// A directory that is being looked at.
pub struct Inspection {
    /// As it is on the disk.
    base: Arc<dyn Storage>,
    /// As it is after recovery.
    storage: Arc<dyn Storage>,
    /// What the control file says, if it can be read.
    control: Option<Control>,
    /// The engine on the overlay, or why it doesn't open.
    db: Result<Db>,
    /// Why it doesn't open without a level of force_recovery, if so.
    refusal: Option<Error>,
    /// The level that it is open with.
    level: ForceRecovery,
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
    /// There is no data directory. One that is damaged is no error: see [`Inspection::db`].
    pub fn open(
        base: Arc<dyn Storage>,
        scratch: Arc<dyn Storage>,
        options: Options,
    ) -> Result<Inspection> {
        let is_there = |name: &str| base.exists(name);
        if !is_there(CONTROL_FILE)? && !is_there(crate::files::SYSTEM_FILE)? {
            return Err(Error::format(
                CONTROL_FILE,
                "missing, and there is no system.tpd: this is no data directory of Tidepool",
                Remedy::NameDataDirectory,
            ));
        }
        let control = base.open(CONTROL_FILE).map_err(Error::from);
        let control =
            control.and_then(|file| Control::read(&*file)).ok().map(|(control, _)| control);
        let storage: Arc<dyn Storage> = Arc::new(OverlayStorage::new(base.clone(), scratch));
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
        // Without its control file the directory would be taken for a new one.
        let has_control = is_there(CONTROL_FILE)?;
        let db = match has_control {
            true => Db::open_on(storage.clone(), options.clone()),
            false => Err(Error::format(
                CONTROL_FILE,
                "missing, though the data directory holds 'system.tpd'",
                Remedy::PutBack,
            )),
        };
        let (db, refusal, level) = match db {
            Ok(db) => (Ok(db), None, ForceRecovery::Off),
            Err(refusal) => {
                let mut may_help = LEVELS
                    .into_iter()
                    .filter(|level| has_control || *level == ForceRecovery::NoRedo);
                let opened = may_help.find_map(|force_recovery| {
                    let options = Options { force_recovery, ..options.clone() };
                    Some((Db::open_on(storage.clone(), options).ok()?, force_recovery))
                });
                match opened {
                    Some((db, level)) => (Ok(db), Some(refusal), level),
                    None => (Err(refusal.clone()), Some(refusal), ForceRecovery::Off),
                }
            }
        };
        if let Ok(db) = &db {
            // So that what is read beside the pool is as new as what is read through it.
            let env = db.inner.env();
            let written = match level.is_read_only() {
                true => env.pool().flush_all().map_err(Error::from),
                false => env.checkpoint_all().map(drop),
            };
            if let Err(error) = written {
                tracing::warn!(%error, "pages that recovery has changed can't be written to the scratch directory");
            }
        }
        Ok(Inspection {
            base,
            storage,
            control,
            db,
            refusal,
            level,
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
        let mut report = Report {
            log: self.check_log(),
            force_recovery: self.level.level(),
            ..Report::default()
        };
        report.problems.extend(self.refusal_text());
        self.check_files(&mut report, progress)?;
        self.check_mirrors(&mut report)?;
        if let Ok(db) = &self.db {
            self.check_tables(db, &mut report, progress)?;
        }
        Ok(report)
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
