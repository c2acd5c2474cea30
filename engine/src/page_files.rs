//! The files of spaces: which form each has, and how it is made and opened.
//!
//! Tables' files are packed ([`tidepool_pool::packed`]). `system.tpd` and `undo.tpd` are small and
//! overwritten in place: their pages go through the doublewrite file, and have mirrors.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use tidepool_pool::packed::{self, MAP_PAGES, PackedFile, Settings};
use tidepool_pool::storage::{Storage, StorageError, StorageFile, StorageOp};
use tidepool_pool::{InPlaceFile, PageFile, PageSize, Pool, ReadError, Space};

use crate::error::{Error, Result};
use crate::files::{FIRST_TABLE_SPACE, SYSTEM_SPACE, space_file_name};
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
    /// A table's file that can't be opened is rescued, as far as it can be: what is damaged is
    /// passed over, and the start is the last resort.
    pub last_resort: bool,
    /// Which runs of the packed files were durable.
    pub newest_runs: Arc<NewestRuns>,
}

/// Whether the file of a space is packed.
pub(crate) fn is_packed(space: u32) -> bool {
    space >= FIRST_TABLE_SPACE
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
        }
    }

    /// Makes a space's file, which is new and empty. Durable, except for its name.
    pub fn make(&self, space: u32, file: Arc<dyn StorageFile>) -> Result<PackedFile> {
        PackedFile::create(file, self.settings(space)).map_err(file_error)
    }

    /// Opens the file of a space, and the space in the pool.
    ///
    /// # Errors
    /// [`OpenError::Unusable`] if a table's file is damaged, or the disk does not give what it
    /// holds.
    pub fn open_space(
        &self,
        storage: &dyn Storage,
        pool: &Pool,
        space: u32,
    ) -> Result<Arc<Space>, OpenError> {
        let mirror = mirror::open(storage, self.page_size, space)?;
        let writes_nothing = self.read_only || self.last_resort;
        let file = match storage.open(&space_file_name(space)) {
            // Nothing has put it back.
            Err(error) if error.is_not_found() && space == SYSTEM_SPACE && writes_nothing => {
                mirror.as_ref().map(|mirror| mirror.file().clone()).ok_or(error)
            }
            file => file,
        }?;
        if is_packed(space) {
            let (file, _) = self.open_or_rescue(space, file).map_err(OpenError::of_file)?;
            return Ok(pool.open_packed_space(space, file)?);
        }
        if !self.read_only {
            // A process that was killed may have written pages that this one can read, and a power
            // cut would take; recovery counts such pages as having seen their changes.
            file.sync_data()?;
        }
        Ok(pool.open_mirrored_space(space, file, mirror)?)
    }

    /// Opens a packed file. One that nothing was written to yet is made anew: a crash came before
    /// that.
    pub fn open(&self, space: u32, file: Arc<dyn StorageFile>) -> packed::Result<PackedFile> {
        let known = self.newest_runs.of(space);
        if !self.read_only && known == 0 && PackedFile::is_unmade(&*file)? {
            file.set_len(0)?;
            return PackedFile::create(file, self.settings(space));
        }
        let access = match self.read_only {
            true => packed::Access::ReadOnly,
            false => packed::Access::ReadWrite,
        };
        PackedFile::open(file, self.settings(space), access, known)
    }

    /// Opens a packed file; as the last resort, one that can't be opened as far as it can be
    /// rescued. Then why it can't be opened and what is wrong with it comes with it, and is in the
    /// log.
    fn open_or_rescue(
        &self,
        space: u32,
        file: Arc<dyn StorageFile>,
    ) -> packed::Result<(PackedFile, Vec<String>)> {
        let refusal = match self.open(space, file.clone()) {
            Err(error) if self.last_resort && !matches!(error, packed::Error::Storage(_)) => error,
            opened => return Ok((opened?, Vec::new())),
        };
        let known = self.newest_runs.of(space);
        match PackedFile::rescue(file, self.settings(space), known) {
            Ok((file, wrong)) => {
                tracing::error!(
                    "{refusal}; its pages are read as far as they can be found: {}",
                    wrong.join("; ")
                );
                let refusal = refusal.to_string();
                Ok((file, [refusal].into_iter().chain(wrong).collect()))
            }
            // It says less than the refusal.
            Err(_) => Err(refusal),
        }
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
        match &error {
            packed::Error::Storage(storage) if storage.op != StorageOp::Read => {
                OpenError::Other(file_error(error))
            }
            _ => OpenError::Unusable(file_error(error)),
        }
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
    fn from(error: tidepool_pool::Error) -> OpenError {
        OpenError::Other(error.into())
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
    Own(PageFile),
}

impl Source {
    pub fn file(&self) -> &PageFile {
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
            None => Ok(Source::Own(self.open_to_read(storage, space)?)),
        }
    }

    /// The same, whether or not the space is open in a pool: the file as it is on the disk.
    pub fn open_to_read(&self, storage: &dyn Storage, space: u32) -> Result<PageFile> {
        let reader = PageFiles { read_only: true, ..self.clone() };
        Ok(reader.open_any(storage, space)?.0)
    }

    /// The same as the last resort, and what is wrong with a file that can't be opened.
    pub fn rescue_to_read(
        &self,
        storage: &dyn Storage,
        space: u32,
    ) -> Result<(PageFile, Vec<String>)> {
        let reader = PageFiles { read_only: true, last_resort: true, ..self.clone() };
        reader.open_any(storage, space)
    }

    /// The file of a space in its form; and what is wrong with it, if it was rescued.
    fn open_any(&self, storage: &dyn Storage, space: u32) -> Result<(PageFile, Vec<String>)> {
        let file = storage.open(&space_file_name(space))?;
        if !is_packed(space) {
            return Ok((PageFile::InPlace(InPlaceFile::new(file, self.page_size)), Vec::new()));
        }
        let (file, wrong) = self.open_or_rescue(space, file).map_err(file_error)?;
        Ok((PageFile::Packed(Box::new(file)), wrong))
    }
}

/// Pages that were read from a file, one after the other.
#[derive(Default)]
pub(crate) struct Piece {
    /// Number, and whether it could be read; the bytes of the first are at the start of the buffer,
    /// and so on. A page of a file that is overwritten in place may be torn or spoilt.
    pub pages: Vec<(u32, Result<(), String>)>,
    /// The page to go on with; `None`: that was all.
    pub next: Option<u32>,
    /// Bytes of the file that these pages take.
    pub bytes: u64,
}

/// Reads the pages of a space from `first` on, as many as `buf` has room for. Pages that were never
/// written to a packed file are left out.
pub(crate) fn read_piece(
    file: &PageFile,
    (space, first): (u32, u32),
    (page_size, buf): (PageSize, &mut [u8]),
) -> Result<Piece> {
    match file {
        PageFile::InPlace(file) => read_side_by_side(file, first, (page_size, buf)),
        PageFile::Packed(file) => Ok(read_images(file, (space, first), (page_size, buf))),
    }
}

fn read_side_by_side(
    file: &InPlaceFile,
    first: u32,
    (page_size, buf): (PageSize, &mut [u8]),
) -> Result<Piece> {
    let size = page_size.bytes();
    let end = file.pages()?;
    let count = (buf.len() / size).min(end.saturating_sub(first) as usize);
    let whole = file.read_op(first, &mut buf[..count * size]).alone();
    let mut pages = Vec::with_capacity(count);
    for (no, bytes) in (first..).zip(buf[..count * size].chunks_exact_mut(size)) {
        let read = match &whole {
            Ok(()) => Ok(()),
            // One sector must not hide its neighbours.
            Err(_) => file.read_op(no, bytes).alone().map_err(|error| error.to_string()),
        };
        pages.push((no, read));
    }
    let next = first + count as u32;
    Ok(Piece { pages, next: (next < end).then_some(next), bytes: (count * size) as u64 })
}

fn read_images(
    file: &PackedFile,
    (space, first): (u32, u32),
    (page_size, buf): (PageSize, &mut [u8]),
) -> Piece {
    let mut piece = Piece { next: Some(first), ..Piece::default() };
    for bytes in buf.chunks_exact_mut(page_size.bytes()) {
        let Some(from) = piece.next else { break };
        match file.next_page(space, from) {
            Ok(None) => piece.next = None,
            Ok(Some(no)) => {
                let read = file.read(space, no, bytes);
                let read = read.map_err(|error| ReadError::from(error).to_string());
                piece.pages.push((no, read.map(drop)));
                let entry = file.find(space, no).ok().flatten();
                piece.bytes += entry.map_or(0, |entry| u64::from(entry.len));
                piece.next = no.checked_add(1);
            }
            Err(error) => {
                // The node of the map that has the places of these pages.
                piece.pages.push((from, Err(ReadError::from(error).to_string())));
                piece.next = (from / MAP_PAGES + 1).checked_mul(MAP_PAGES);
            }
        }
    }
    piece
}
