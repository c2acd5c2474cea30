//! Encryption of the files of an open database: new tables, and the rotation.
//!
//! # The rotation
//! A thread goes through the files of all tables and `undo.tpd`, one after the other. It gives a
//! file the key that its table should have, in its newest version, and has images sealed anew that
//! are not encrypted so ([`PackedFile::reseal`]), at the pace of
//! [`Options::encryption_rotation_iops`](crate::Options::encryption_rotation_iops). What it has
//! found out of a file it remembers; the file is looked at again when the key has a newer version,
//! or the table should be encrypted otherwise.
//!
//! A key that can't be had costs the rotation of its files alone, and a page that can't be read its
//! own; the error log says so once. The turn is repeated later, ever more rarely.
//!
//! # Which versions a file has
//! The map has versions of keys modulo 15 ([`Seal`]). The rotation remembers the oldest version
//! that a turn has left, from which the newest of now is rarely 15 versions away. Where it is, or
//! may be, as in the first turn of a life with a key that has had 15 versions, the turn reads every
//! image, for that names its key and the version.
//!
//! # Locking order
//! `work` is held for a step, and comes before the catalog and the pool.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_pool::encryption::PageKey;
use tidepool_pool::packed::{FileKey, PackedFile, Resealing, Seal};
use tidepool_pool::{Space, StepRunner, Wakeup};

use super::worker::Worker;
use super::{Db, Inner};
use crate::encryption::{DEFAULT_KEY_ID, EncryptTables, EncryptionChoice, TableEncryption};
use crate::error::{Error, Result};
use crate::files::{UNDO_FILE, UNDO_SPACE};
use crate::page_files::file_error;

const THREAD: &str = "tidepool-rotate";
/// How often the thread looks for something to do.
const STEP_EVERY: Duration = Duration::from_secs(1);
/// And while nothing was ever encrypted.
const IDLE_STEP_EVERY: Duration = Duration::from_secs(60);
/// Images that are sealed anew at once. Batches for the file wait for them.
const IMAGES_AT_ONCE: usize = 16;
/// Steps at most between a turn that has passed over pages and the next.
const REST_MAX_STEPS: u32 = 3600;
/// Calls in a step that find nothing to write: each looks at the places of 16384 pages.
const LOOKS_A_STEP: u32 = 64;

/// What a file should be encrypted with: key and version. `None`: not at all.
type Target = Option<(u32, u32)>;

/// The rotation, and what it knows.
#[derive(Default)]
pub(super) struct Rotation {
    work: Mutex<Work>,
    worker: Worker,
}

#[derive(Default)]
struct Work {
    /// By space.
    files: BTreeMap<u32, FileState>,
    /// By space: what the error log says already.
    logged: HashMap<u32, String>,
    /// Images that were sealed anew in this life.
    resealed: u64,
}

/// How far a file is.
#[derive(Clone, Debug)]
struct FileState {
    target: Target,
    /// The page to go on with; `None`: all were looked at.
    next: Option<u32>,
    /// Pages that were passed over in this turn, and what was wrong with the first.
    failed: u32,
    failure: Option<String>,
    /// How many newer versions the oldest image has that this turn has left.
    oldest: Option<u32>,
    /// A key and a version of it: earlier turns have found no image with another key or an older
    /// version.
    floor: Option<(u32, u32)>,
    /// Some images may be encrypted with another key than the file's.
    is_mixed: bool,
    /// Steps until a turn that has passed over pages is repeated, and after the next such turn.
    rest_steps: u32,
    next_rest_steps: u32,
}

impl FileState {
    /// A new turn, of a file of which this is known.
    fn begin(target: Target, known: Option<&FileState>, is_mixed: bool) -> FileState {
        let same = known.filter(|known| known.target == target);
        FileState {
            target,
            next: Some(0),
            failed: 0,
            failure: None,
            oldest: None,
            floor: known.and_then(|known| known.oldest_left().or(known.floor)),
            is_mixed: is_mixed || known.is_some_and(|known| known.is_mixed),
            rest_steps: 0,
            next_rest_steps: same.map_or(1, |known| known.next_rest_steps),
        }
    }

    /// The file's key and the oldest version of it that the turn has left, if the turn is over and
    /// has seen all images.
    fn oldest_left(&self) -> Option<(u32, u32)> {
        let (id, version) = self.target?;
        let is_over = self.next.is_none() && self.failed == 0;
        is_over.then(|| (id, version.saturating_sub(self.oldest.unwrap_or(0))))
    }

    /// Whether the map's versions may be wrong, in a rotation from `age` versions on.
    fn must_read_images(&self, age: u32) -> bool {
        let Some((id, version)) = self.target else { return false };
        let floor = self.floor.filter(|(floor_id, _)| *floor_id == id);
        let behind = version.saturating_sub(floor.map_or(0, |(_, version)| version));
        floor.is_none() && self.is_mixed || behind >= Seal::VERSIONS || age >= Seal::VERSIONS
    }
}

/// A file whose encryption may need a change.
struct Candidate {
    space: u32,
    name: String,
    key_id: Option<u32>,
}

/// How the file of a table is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionRow {
    /// The space.
    pub space: u32,
    /// The table, or the file if it is no table's.
    pub name: String,
    /// The key of the file; `None`: it is not encrypted.
    pub key_id: Option<u32>,
    /// The newest version of that key; 0: it can't be had.
    pub newest_version: u32,
    /// The oldest version that an image is encrypted with, once the rotation has looked at all; 0:
    /// it is not known, or a page can't be read.
    pub oldest_version: u32,
    /// Pages that the rotation has looked at in its present turn, and all pages; `None`: it has
    /// looked at all.
    pub rotating: Option<(u32, u32)>,
}

impl Db {
    /// Whether tables are encrypted that do not say.
    pub fn set_encrypt_tables(&self, tables: EncryptTables) -> Result<()> {
        self.inner.check_open()?;
        let _one = self.inner.setting.lock();
        self.inner.options.write().encrypt_tables = tables;
        self.inner.env.encryption().set_tables(tables);
        self.inner.rotation.worker.wake();
        Ok(())
    }

    /// See [`Options::encryption_rotate_key_age`](crate::Options::encryption_rotate_key_age).
    pub fn set_encryption_rotate_key_age(&self, versions: u32) {
        self.inner.options.write().encryption_rotate_key_age = versions;
    }

    /// See [`Options::encryption_rotation_iops`](crate::Options::encryption_rotation_iops).
    pub fn set_encryption_rotation_iops(&self, pages: u32) {
        self.inner.options.write().encryption_rotation_iops = pages;
    }

    /// An error if a table can't be encrypted so: a key is missing, or it has to be encrypted.
    pub fn check_encryption(&self, table: &TableEncryption) -> Result<()> {
        self.inner.env.encryption().key_for_new(table).map(drop)
    }

    /// One step of the rotation, as if a second had passed. Whether there is more to do.
    pub fn step_rotation(&self) -> Result<bool> {
        self.inner.check_open()?;
        self.inner.step_rotation()
    }

    /// How the files are encrypted, by space.
    pub fn encryption_report(&self) -> Vec<EncryptionRow> {
        self.inner.encryption_report()
    }
}

impl Inner {
    /// The key for a table that is about to be made; undo records are encrypted by then.
    pub(super) fn key_for_new_table(
        &self,
        table: &TableEncryption,
    ) -> Result<Option<Arc<PageKey>>> {
        let key = self.env.encryption().key_for_new(table)?;
        if let Some(key) = &key {
            self.encrypt_undo(key)?;
        }
        Ok(key)
    }

    /// Has undo records encrypted from now on, as they hold rows of an encrypted table: with the
    /// default key, or with `other` if there is no such key.
    fn encrypt_undo(&self, other: &Arc<PageKey>) -> Result<()> {
        let space = self.env.space(UNDO_SPACE)?;
        if matches!(space.file().file_key(), FileKey::Id(_)) && !space.file().owes_checkpoint() {
            return Ok(());
        }
        let key = self.env.encryption().newest(DEFAULT_KEY_ID).unwrap_or(other.clone());
        encrypt_file(space.file(), Some(key))?;
        self.rotation.worker.wake();
        Ok(())
    }

    /// The same for the tables that there are, at an opening.
    pub(super) fn encrypt_undo_if_need_be(&self) -> Result<()> {
        let encryption = self.env.encryption();
        for (name, record) in self.catalog.tables() {
            let Some(id) = encryption.key_id_of(&record.def.encryption) else { continue };
            match encryption.newest(id) {
                Ok(key) => return self.encrypt_undo(&key),
                // Its file may not be encrypted: only new ones are certain to be.
                Err(_) if record.def.encryption.choice == EncryptionChoice::Default => {}
                Err(error) => {
                    tracing::error!(table = name, %error, "an encrypted table can't be used");
                }
            }
        }
        Ok(())
    }

    /// Gives the files that recovery has made the key that their tables want, or none.
    pub(super) fn encrypt_made_files(&self) -> Result<()> {
        let (encryption, made) = (self.env.encryption(), self.env.made_spaces());
        for (name, record) in self.catalog.tables() {
            let Some(space) = self.env.pool().space(record.space) else { continue };
            if !made.contains(&record.space) {
                continue;
            }
            match encryption.key_id_of(&record.def.encryption).map(|id| encryption.newest(id)) {
                None => encrypt_file(space.file(), None)?,
                Some(Ok(key)) => encrypt_file(space.file(), Some(key))?,
                Some(Err(error)) => {
                    tracing::error!(table = name, %error, "an encrypted table can't be used");
                }
            }
        }
        Ok(())
    }

    /// The thread begins, if there are keys.
    pub(super) fn start_rotation(self: &Arc<Self>) -> Result<()> {
        if self.options.read().keyring.is_none() {
            return Ok(());
        }
        self.rotation.worker.start(THREAD, self, run)
    }

    /// Ends the thread and waits for it, unless it is the caller.
    pub(super) fn stop_rotation(&self) {
        self.rotation.worker.stop();
    }

    /// Adds what it has done to the status.
    pub(super) fn add_rotation(&self, status: &mut crate::status::Status) {
        status.push("encryption_pages_rotated", self.rotation.work.lock().resealed);
    }

    /// Seals images anew, as many as are due in a second. Whether there is more to do.
    fn step_rotation(&self) -> Result<bool> {
        let (age, iops) = {
            let options = self.options.read();
            (options.encryption_rotate_key_age, options.encryption_rotation_iops)
        };
        if age == 0 || iops == 0 || self.env.is_read_only() || self.has_nothing_encrypted() {
            return Ok(false);
        }
        self.env.check_writable()?;
        let mut work = self.rotation.work.lock();
        let candidates = self.candidates();
        let spaces: HashSet<u32> = candidates.iter().map(|file| file.space).collect();
        work.files.retain(|space, _| spaces.contains(space));
        let keys = HashMap::new();
        let mut step = Step { age, images: iops as usize, looks: LOOKS_A_STEP, keys };
        for file in &candidates {
            if step.is_over() {
                return Ok(true);
            }
            if let Err(error) = self.rotate(&mut work, file, &mut step) {
                self.env.check_writable()?;
                let why = error.to_string();
                if work.logged.insert(file.space, why.clone()) != Some(why) {
                    tracing::error!(
                        table = file.name, %error,
                        "the encryption of a table can't be brought up to date; it is tried again"
                    );
                }
            }
        }
        Ok(false)
    }

    /// Whether no table is encrypted, or ever was: undo records would be.
    pub(super) fn has_nothing_encrypted(&self) -> bool {
        let undo = self.env.pool().space(UNDO_SPACE);
        self.env.encryption().tables() == EncryptTables::Off
            && undo.is_none_or(|undo| undo.file().file_key() == FileKey::Never)
    }

    /// The files that the rotation looks after, and the keys that they should have.
    fn candidates(&self) -> Vec<Candidate> {
        let encryption = self.env.encryption();
        let undo = self.env.pool().space(UNDO_SPACE);
        let undo = undo.and_then(|space| match space.file().file_key() {
            FileKey::Id(id) => {
                Some(Candidate { space: UNDO_SPACE, name: UNDO_FILE.into(), key_id: Some(id) })
            }
            FileKey::Never | FileKey::NoMore => None,
        });
        let tables = self.catalog.tables().into_iter();
        let tables = tables.filter(|(_, record)| !record.lost_changes).map(|(name, record)| {
            let key_id = encryption.key_id_of(&record.def.encryption);
            Candidate { space: record.space, name, key_id }
        });
        undo.into_iter().chain(tables).collect()
    }

    /// Goes on with a file, or begins a turn if it should be encrypted otherwise by now.
    fn rotate(&self, work: &mut Work, file: &Candidate, step: &mut Step) -> Result<()> {
        let newest = |id: u32| {
            let key = step.keys.entry(id).or_insert_with(|| self.env.encryption().newest(id));
            key.clone()
        };
        let key = file.key_id.map(newest).transpose()?;
        let target = key.as_ref().map(|key| (key.id(), key.version()));
        if let Some(state) = work.files.get_mut(&file.space)
            && state.target == target
            && state.next.is_none()
            && (state.failed == 0 || state.rest_steps > 0)
        {
            state.rest_steps = state.rest_steps.saturating_sub(1);
            return Ok(());
        }
        let Some(space) = self.space_to_rotate(file.space)? else { return Ok(()) };
        let mut state = match work.files.get(&file.space) {
            Some(known) if known.target == target && known.next.is_some() => known.clone(),
            known => {
                let has_other_key = match space.file().file_key() {
                    FileKey::Id(id) => target.is_some_and(|(target, _)| target != id),
                    FileKey::Never | FileKey::NoMore => false,
                };
                let is_mixed = has_other_key || self.env.made_spaces().contains(&file.space);
                FileState::begin(target, known, is_mixed)
            }
        };
        if let Some(key) = key.as_ref().filter(|_| file.space != UNDO_SPACE) {
            self.encrypt_undo(key)?;
        }
        if space.file().encrypts_with() != key {
            encrypt_file(space.file(), key)?;
        }
        while let Some(from) = state.next
            && !step.is_over()
        {
            let images_max = step.images.min(IMAGES_AT_ONCE);
            let exact = state.must_read_images(step.age);
            let resealing = Resealing { age: step.age, exact, images_max };
            let part = space.file().reseal(file.space, from, resealing).map_err(file_error)?;
            step.images -= (part.images + part.read + part.failed) as usize;
            step.looks -= 1;
            work.resealed += u64::from(part.images);
            state.failed += part.failed;
            state.failure = state.failure.take().or(part.failure);
            state.next = part.next;
            state.oldest = state.oldest.max(part.oldest);
            work.files.insert(file.space, state.clone());
        }
        if state.next.is_none() && state.failed > 0 {
            // A key may be there by the next turn.
            state.rest_steps = state.next_rest_steps;
            state.next_rest_steps = (2 * state.next_rest_steps).min(REST_MAX_STEPS);
            let (name, failed) = (space.name(), state.failed);
            let why = state.failure.take().unwrap_or_default();
            let what = format!("{name}: pages that stay encrypted as they are: {failed}; {why}");
            work.files.insert(file.space, state);
            return Err(Error::Key { file: Some(name.to_string()), what });
        }
        if state.next.is_none() {
            work.logged.remove(&file.space);
        }
        Ok(())
    }

    /// The space, open; `None` if the table is being dropped.
    fn space_to_rotate(&self, space: u32) -> Result<Option<Arc<Space>>> {
        match self.env.space(space) {
            Ok(space) => Ok(Some(space)),
            Err(_) if !self.catalog.tables().iter().any(|(_, record)| record.space == space) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn encryption_report(&self) -> Vec<EncryptionRow> {
        let states = self.rotation.work.lock().files.clone();
        let encryption = self.env.encryption();
        let row = |file: Candidate| {
            let state = states.get(&file.space);
            let open = self.env.pool().space(file.space);
            let key_id = match open.as_ref().map(|space| space.file().file_key()) {
                Some(FileKey::Id(id)) => Some(id),
                Some(FileKey::Never | FileKey::NoMore) => None,
                None => file.key_id,
            };
            let newest_version =
                key_id.and_then(|id| encryption.newest(id).ok()).map_or(0, |key| key.version());
            let oldest_version = match state.and_then(FileState::oldest_left) {
                Some((id, version)) if key_id == Some(id) => version,
                _ => 0,
            };
            let pages = open.map_or(0, |space| space.page_count());
            let rotating = state.and_then(|state| state.next).map(|next| (next, pages));
            EncryptionRow {
                space: file.space,
                name: file.name,
                key_id,
                newest_version,
                oldest_version,
                rotating,
            }
        };
        self.candidates().into_iter().map(row).collect()
    }
}

/// A step of the rotation.
struct Step {
    /// From how many newer versions of a key on an image is sealed anew.
    age: u32,
    /// Images and looks that it may still take.
    images: usize,
    looks: u32,
    /// The newest version of each key, which is asked for once a step.
    keys: HashMap<u32, Result<Arc<PageKey>>>,
}

impl Step {
    fn is_over(&self) -> bool {
        self.images == 0 || self.looks == 0
    }
}

/// Encrypts what is written to a file from now on with `key`, and has its root say so.
fn encrypt_file(file: &PackedFile, key: Option<Arc<PageKey>>) -> Result<()> {
    let before = file.file_key();
    file.encrypt_with(key);
    // An earlier attempt may have failed at the checkpoint, with the key in memory.
    match file.file_key() == before && !file.owes_checkpoint() {
        true => Ok(()),
        false => file.checkpoint().map_err(file_error),
    }
}

fn run(inner: &Weak<Inner>, signal: &Wakeup) {
    let mut steps = StepRunner::new(THREAD);
    let mut pause = Duration::ZERO;
    while signal.sleep(pause) {
        let Some(inner) = inner.upgrade() else { return };
        // After an error, writing may go on one day: a disk is full for a while.
        pause = match steps.run(|| inner.step_rotation()) {
            Ok(_) if inner.has_nothing_encrypted() => IDLE_STEP_EVERY,
            Ok(_) => STEP_EVERY,
            Err(rest) => rest,
        };
    }
}
