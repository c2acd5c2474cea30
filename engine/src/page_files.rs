//! The files of spaces: how they are made and opened.
//!
//! All are packed ([`tidepool_pool::packed`]). Pages of `system.tpd` and `undo.tpd` have second
//! copies in mirrors ([`crate::mirror`]).

mod of_mirror;

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use tidepool_pool::encryption::{Keys, PageKey};
use tidepool_pool::packed::{self, FileKey, MAP_PAGES, Object, PackedFile, Settings};
use tidepool_pool::storage::{SimStorage, Storage, StorageError, StorageFile, StorageOp};
use tidepool_pool::{PageSize, Pool, Space};

use crate::error::{Error, Result};
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, space_file_name};
use crate::mirror;
use crate::newest_runs::NewestRuns;

/// What all files of a data directory have in common, and who opens them.
#[derive(Clone)]
pub(crate) struct PageFiles {
    /// Page size of the data directory.
    pub page_size: PageSize,
    /// The data directory's uuid.
    pub instance: [u8; 16],
    /// What the random bits of files are made from; `None`: from the operating system's.
    pub seed: Option<u64>,
    /// Nothing is written.
    pub read_only: bool,
    /// A file that can't be opened is rescued, as far as it can be: what is damaged is passed over,
    /// and the start is the last resort.
    pub last_resort: bool,
    /// Which runs of the files were durable.
    pub newest_runs: Arc<NewestRuns>,
    /// What encrypted images are read and written with.
    pub keys: Option<Arc<Keys>>,
}

impl PageFiles {
    /// What the files of a data directory have in common, for who only reads them.
    pub fn to_read(storage: &dyn Storage, page_size: PageSize, instance: [u8; 16]) -> PageFiles {
        let newest_runs = Arc::new(NewestRuns::load(storage, instance));
        PageFiles {
            page_size,
            instance,
            seed: None,
            read_only: true,
            last_resort: false,
            newest_runs,
            keys: None,
        }
    }

    /// Makes a space's file, which is new and empty; its images are encrypted with `key`, if there
    /// is one. Durable, except for its name.
    pub fn make(
        &self,
        space: u32,
        file: Arc<dyn StorageFile>,
        key: Option<Arc<PageKey>>,
    ) -> Result<PackedFile> {
        let file_key = key.as_ref().map_or(FileKey::Never, |key| FileKey::Id(key.id()));
        let made = self.make_behind(space, file, (0, file_key)).map_err(file_error)?;
        if key.is_some() {
            made.encrypt_with(key);
        }
        Ok(made)
    }

    /// The same for one that gets the images of another file of the space, with this key, as they
    /// are.
    pub fn make_for_images(
        &self,
        space: u32,
        file: Arc<dyn StorageFile>,
        key: FileKey,
    ) -> Result<PackedFile> {
        let made = self.make_behind(space, file, (0, key)).map_err(file_error)?;
        made.store_as_given();
        Ok(made)
    }

    /// Every file that is made here begins so. It has the keys to read with, also if it has no key
    /// to write with yet: its table may get one at any time.
    fn make_behind(
        &self,
        space: u32,
        file: Arc<dyn StorageFile>,
        known: (u64, FileKey),
    ) -> packed::Result<PackedFile> {
        Ok(self.with_keys(PackedFile::create_behind(file, self.settings(space), known)?))
    }

    /// Makes the file of a table that the redo log creates, if it is not there or nothing was
    /// written to it: an older backup lacks files that were made while it ran. Whether it was made.
    ///
    /// Which key the table wants is not known before there is a catalog. Undo records are encrypted
    /// once a table is, so the file begins with their key: no row of an encrypted table is written
    /// in the clear. The opening gives the file the table's key when it has read the catalog.
    pub fn make_missing(&self, storage: &dyn Storage, space: u32) -> Result<bool> {
        let name = space_file_name(space);
        let file = match storage.open(&name) {
            Err(error) if error.is_not_found() => storage.create(&name)?,
            file => file?,
        };
        if !self.is_unmade(space, &*file).map_err(file_error)? {
            return Ok(false);
        }
        file.set_len(0)?;
        self.make(space, file, self.key_of_undo(storage).map_err(file_error)?)?;
        Ok(true)
    }

    /// Whether nothing was written yet to the file of a space: a crash came before that.
    fn is_unmade(&self, space: u32, file: &dyn StorageFile) -> packed::Result<bool> {
        Ok(self.newest_runs.of(space) == 0 && PackedFile::is_unmade(file)?)
    }

    /// The key that undo records are encrypted with; `None`: they are not.
    fn key_of_undo(&self, storage: &dyn Storage) -> packed::Result<Option<Arc<PageKey>>> {
        let undo = storage.open(&space_file_name(UNDO_SPACE))?;
        match PackedFile::key_of(&*undo)? {
            FileKey::Id(id) => self.newest_key(undo.name(), id).map(Some),
            FileKey::Never | FileKey::NoMore => Ok(None),
        }
    }

    /// The file with the keys that its images are read with.
    fn with_keys(&self, packed: PackedFile) -> PackedFile {
        if let Some(keys) = &self.keys {
            packed.read_with_keys(keys.clone());
        }
        packed
    }

    /// The file with the key that it goes on encrypting with.
    fn with_its_key(&self, packed: PackedFile) -> packed::Result<PackedFile> {
        let FileKey::Id(id) = packed.file_key() else { return Ok(packed) };
        packed.encrypt_with(Some(self.newest_key(packed.name(), id)?));
        Ok(packed)
    }

    /// The newest version of the key of a file.
    fn newest_key(&self, file: &str, id: u32) -> packed::Result<Arc<PageKey>> {
        let no_key = |why: String| packed::Error::Key {
            file: file.into(),
            why: format!("it is encrypted: {why}"),
        };
        match &self.keys {
            Some(keys) => keys.newest_page_key(id).map_err(|error| no_key(error.to_string())),
            None => Err(no_key(format!("it takes key {id}, and there are no keys"))),
        }
    }

    /// Makes a file that is to take the place of the space's own. Durable, except for its name.
    fn make_successor(&self, space: u32, file: Arc<dyn StorageFile>) -> packed::Result<PackedFile> {
        self.make_behind(space, file, (self.newest_runs.of(space), FileKey::Never))
    }

    /// Opens the file of a space, and the space in the pool.
    ///
    /// # Errors
    /// [`OpenError::Unusable`] if the file is damaged, or the disk does not give what it holds.
    pub fn open_space(
        &self,
        storage: &dyn Storage,
        pool: &Pool,
        space: u32,
    ) -> Result<Arc<Space>, OpenError> {
        let Found { file, .. } = self.find(storage, space)?;
        let mirror = mirror::open(storage, self.page_size, space)?;
        Ok(pool.open_mirrored_space(space, file, mirror)?)
    }

    /// Opens the file of a space. As the last resort, one that can't be opened is rescued as far as
    /// it can be. Where nothing may be written, the pages of a system space without a file are read
    /// from its mirror.
    fn find(&self, storage: &dyn Storage, space: u32) -> Result<Found, OpenError> {
        let file = match storage.open(&space_file_name(space)) {
            Err(error) if error.is_not_found() && self.writes_nothing() => {
                let copy = self.copy_of_mirror(storage, space)?;
                return Ok(Found::whole(copy.ok_or(error)?));
            }
            file => file?,
        };
        let refusal = match self.open(space, file.clone()) {
            Err(error) if self.last_resort => error,
            opened => return Ok(Found::whole(opened.map_err(OpenError::of_file)?)),
        };
        let is_of_disk = matches!(refusal, packed::Error::Storage(_));
        let refusal = OpenError::of_file(refusal);
        if let Some(file) = self.copy_of_mirror(storage, space)? {
            let refusal = Error::from(refusal);
            tracing::error!("{refusal}; its pages are read from its mirror");
            return Ok(Found { file, refusal: Some(refusal), wrong: Vec::new() });
        }
        let known = self.newest_runs.of(space);
        match PackedFile::rescue(file, self.settings(space), known) {
            Ok((file, wrong)) if !is_of_disk => {
                let (file, refusal) = (self.with_keys(file), Error::from(refusal));
                tracing::error!(
                    "{refusal}; its pages are read as far as they can be found: {}",
                    wrong.join("; ")
                );
                let of_file = |why: String| format!("{}: {why}", file.name());
                let wrong = wrong.into_iter().map(of_file).collect();
                Ok(Found { file, refusal: Some(refusal), wrong })
            }
            // That error says less than the refusal.
            _ => Err(refusal),
        }
    }

    /// Whether nothing may be written.
    pub fn writes_nothing(&self) -> bool {
        self.read_only || self.last_resort
    }

    /// A file of the system space, made in memory of the pages in its mirror. None for another
    /// space, or if the mirror has not all pages.
    fn copy_of_mirror(&self, storage: &dyn Storage, space: u32) -> Result<Option<PackedFile>> {
        if space != SYSTEM_SPACE {
            return Ok(None);
        }
        let Some(mirror) = mirror::open(storage, self.page_size, space)? else {
            return Ok(None);
        };
        let file = SimStorage::new(0).create(&space_file_name(SYSTEM_SPACE))?;
        self.restore_system(&mirror, file).map_err(file_error)
    }

    /// Opens a packed file. One that nothing was written to yet is made anew: a crash came before
    /// that.
    pub fn open(&self, space: u32, file: Arc<dyn StorageFile>) -> packed::Result<PackedFile> {
        let known = self.newest_runs.of(space);
        if !self.read_only && self.is_unmade(space, &*file)? {
            file.set_len(0)?;
            return self.make_behind(space, file, (0, FileKey::Never));
        }
        let access = match self.read_only {
            true => packed::Access::ReadOnly,
            false => packed::Access::ReadWrite,
        };
        let opened = PackedFile::open(file, self.settings(space), access, known)?;
        let opened = self.with_keys(opened);
        if self.writes_nothing() { Ok(opened) } else { self.with_its_key(opened) }
    }

    fn settings(&self, space: u32) -> Settings {
        let random = match self.seed {
            None => RandomState::new().hash_one(space),
            Some(seed) => {
                let mut hasher = DefaultHasher::new();
                (seed, space, self.instance).hash(&mut hasher);
                hasher.finish()
            }
        };
        Settings { page_size: self.page_size, instance: self.instance, space, random }
    }
}

/// The file of a space, and what is wrong with it.
pub(crate) struct Found {
    /// The file, to be read as far as it can be.
    pub file: PackedFile,
    /// Why it can't be opened; none: it is open.
    pub refusal: Option<Error>,
    /// What else is wrong with it; each names the file.
    pub wrong: Vec<String>,
}

impl Found {
    fn whole(file: PackedFile) -> Found {
        Found { file, refusal: None, wrong: Vec::new() }
    }
}

/// Why a space's file could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// What it holds is damaged, or can't be read.
    Unusable(Error),
    /// Anything else.
    Other(Error),
}

impl OpenError {
    fn of_file(error: packed::Error) -> OpenError {
        tidepool_pool::Error::of_file(error).into()
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        OpenError::Other(error)
    }
}

impl From<StorageError> for OpenError {
    fn from(error: StorageError) -> OpenError {
        OpenError::Other(error.into())
    }
}

impl From<tidepool_pool::Error> for OpenError {
    /// Of opening a file, or a space, which reads what the file says of its pages.
    fn from(error: tidepool_pool::Error) -> OpenError {
        use tidepool_pool::Error::{Corrupt, File, Storage};
        let of_file = match &error {
            File { .. } | Corrupt { .. } => OpenError::Unusable,
            Storage(storage) if storage.op == StorageOp::Read => OpenError::Unusable,
            // Where a key is missing, the file is as good as ever.
            _ => OpenError::Other,
        };
        of_file(error.into())
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        match error {
            OpenError::Unusable(error) | OpenError::Other(error) => error,
        }
    }
}

/// The engine's error for one of a packed file.
pub(crate) fn file_error(error: packed::Error) -> Error {
    tidepool_pool::Error::of_file(error).into()
}

/// The file of a space, to be read past the pool.
pub(crate) enum Source {
    /// That of a space that is open.
    Open(Arc<Space>),
    /// One that was opened for this.
    Own(Box<PackedFile>),
}

impl Source {
    pub fn file(&self) -> &PackedFile {
        match self {
            Source::Open(space) => space.file(),
            Source::Own(file) => file,
        }
    }
}

impl PageFiles {
    /// The file of a space, to be read past the pool; the space is not opened by this.
    pub fn source(&self, storage: &dyn Storage, pool: &Pool, space: u32) -> Result<Source> {
        match pool.space(space) {
            Some(space) => Ok(Source::Open(space)),
            None => Ok(Source::Own(Box::new(self.open_to_read(storage, space)?))),
        }
    }

    /// The same, whether or not the space is open in a pool: the file as it is on the disk.
    pub fn open_to_read(&self, storage: &dyn Storage, space: u32) -> Result<PackedFile> {
        let reader = PageFiles { read_only: true, ..self.clone() };
        Ok(reader.find(storage, space)?.file)
    }

    /// The same as the last resort, and what is wrong with a file that can't be opened.
    pub fn rescue_to_read(&self, storage: &dyn Storage, space: u32) -> Result<Found> {
        let reader = PageFiles { read_only: true, last_resort: true, ..self.clone() };
        Ok(reader.find(storage, space)?)
    }
}

/// Pages that were read from a file, one after the other.
#[derive(Default)]
pub(crate) struct Piece {
    /// Number, and whether it could be read; the bytes of the first are at the start of the buffer,
    /// and so on.
    pub pages: Vec<(u32, Result<(), String>)>,
    /// The page to go on with; `None`: that was all.
    pub next: Option<u32>,
    /// Bytes of the file that these pages take.
    pub bytes: u64,
    /// Pages that are left out, for they are encrypted and their key can't be had. Their images
    /// have the right checksum.
    pub encrypted: u64,
}

/// Reads the pages of a space from `first` on, as many as `buf` has room for. Pages that were never
/// written are left out.
pub(crate) fn read_piece(
    file: &PackedFile,
    (space, first): (u32, u32),
    (page_size, buf): (PageSize, &mut [u8]),
) -> Piece {
    let mut piece = Piece { next: Some(first), ..Piece::default() };
    let room = buf.len() / page_size.bytes();
    while piece.pages.len() + (piece.encrypted as usize) < room
        && let Some(from) = piece.next
    {
        let bytes = &mut buf[piece.pages.len() * page_size.bytes()..][..page_size.bytes()];
        match file.next_page(space, from) {
            Ok(None) => piece.next = None,
            Ok(Some(no)) => {
                match file.read(space, no, bytes) {
                    Err(packed::Error::Key { .. }) => piece.encrypted += 1,
                    read => piece.pages.push((no, read.map(drop).map_err(why))),
                }
                let entry = file.find(space, no).ok().flatten();
                piece.bytes += entry.map_or(0, |entry| u64::from(entry.len));
                piece.next = no.checked_add(1);
            }
            Err(error) => {
                // The node of the map that has the places of these pages.
                piece.pages.push((from, Err(why(error))));
                piece.next = (from / MAP_PAGES + 1).checked_mul(MAP_PAGES);
            }
        }
    }
    piece
}

/// Why a page could not be read. Which one it was, the caller says.
pub(crate) fn why(error: packed::Error) -> String {
    match error {
        packed::Error::Corrupt { object: Object::Page { .. }, why, .. } => why,
        packed::Error::Corrupt { object, why, .. } => format!("{object} is corrupt: {why}"),
        packed::Error::File { why, .. }
        | packed::Error::WrongFile { why, .. }
        | packed::Error::Key { why, .. } => why,
        packed::Error::Storage(error) => error.to_string(),
    }
}
