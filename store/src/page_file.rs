//! The file of a space, in either of its two forms. Who reads and writes pages names them; where
//! they are in the file is this crate's business.
//!
//! | form | where page `no` is | what a write does |
//! |---|---|---|
//! | [`InPlaceFile`] | at `no` times the page size | overwrites it |
//! | [`PackedFile`] | where the file's map says | puts its image elsewhere, and leads the map there |

use std::fmt;
use std::sync::Arc;

use crate::packed::{self, Object, PackedFile};
use crate::page::{PageId, PageSize};
use crate::storage::{IoOp, Result, StorageError, StorageFile};

/// The file of a space.
pub enum PageFile {
    /// A file of pages side by side.
    InPlace(InPlaceFile),
    /// A file of images, compressed and packed.
    Packed(Box<PackedFile>),
}

/// Why a page could not be read.
#[derive(Clone, Debug)]
pub enum ReadError {
    /// The disk did not give the bytes.
    Storage(StorageError),
    /// The bytes are not those that were written.
    Corrupt(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Storage(error) => error.fmt(f),
            ReadError::Corrupt(why) => why.fmt(f),
        }
    }
}

impl From<packed::Error> for ReadError {
    fn from(error: packed::Error) -> ReadError {
        match error {
            packed::Error::Storage(error) => ReadError::Storage(error),
            // Who asks for a page says which.
            packed::Error::Corrupt { object: Object::Page { .. }, why, .. } => {
                ReadError::Corrupt(why)
            }
            packed::Error::Corrupt { object, why, .. } => {
                ReadError::Corrupt(format!("{object} is corrupt: {why}"))
            }
            packed::Error::File { why, .. } => ReadError::Corrupt(why),
        }
    }
}

impl PageFile {
    /// The file's name.
    pub fn name(&self) -> &str {
        match self {
            PageFile::InPlace(file) => file.file.name(),
            PageFile::Packed(file) => file.name(),
        }
    }

    /// The packed file, if it is one.
    pub fn packed(&self) -> Option<&PackedFile> {
        match self {
            PageFile::InPlace(_) => None,
            PageFile::Packed(file) => Some(file),
        }
    }

    /// The file of pages side by side, if it is one.
    pub fn in_place(&self) -> Option<&InPlaceFile> {
        match self {
            PageFile::InPlace(file) => Some(file),
            PageFile::Packed(_) => None,
        }
    }

    /// Reads a page into `page`, which has its length. A page that was never written is zeroes.
    ///
    /// A packed file gives exactly what was written last, or an error. A file of pages side by side
    /// gives whatever bytes it has there, which the caller is to verify.
    pub fn read(&self, id: PageId, page: &mut [u8]) -> Result<(), ReadError> {
        match self {
            PageFile::InPlace(file) => {
                file.read_op(id.no, page).alone().map_err(ReadError::Storage)
            }
            PageFile::Packed(file) => Ok(file.read(id.space, id.no, page).map(drop)?),
        }
    }

    /// Length of the file in bytes.
    pub fn bytes(&self) -> Result<u64> {
        match self {
            PageFile::InPlace(file) => file.file.len(),
            PageFile::Packed(file) => file.io_file().len(),
        }
    }

    /// One more than the highest page of `space` that the file has.
    pub fn end(&self, space: u32) -> Result<u32, ReadError> {
        match self {
            PageFile::InPlace(file) => file.pages().map_err(ReadError::Storage),
            PageFile::Packed(file) => Ok(file.end(space)?),
        }
    }
}

/// A file of pages side by side.
pub struct InPlaceFile {
    file: Arc<dyn StorageFile>,
    page_size: PageSize,
}

impl InPlaceFile {
    /// The file as one of pages of this size.
    pub fn new(file: Arc<dyn StorageFile>, page_size: PageSize) -> InPlaceFile {
        InPlaceFile { file, page_size }
    }

    /// The file itself.
    pub fn file(&self) -> &Arc<dyn StorageFile> {
        &self.file
    }

    /// How many whole pages it has.
    pub fn pages(&self) -> Result<u32> {
        let pages = self.file.len()? / self.page_size.bytes() as u64;
        Ok(u32::try_from(pages).unwrap_or(u32::MAX))
    }

    /// The read of pages from `first` on, as many as `bytes` has room for.
    pub fn read_op<'a>(&'a self, first: u32, bytes: &'a mut [u8]) -> IoOp<'a> {
        IoOp::read(&*self.file, bytes, self.page_size.offset_of(first))
    }

    /// The write of pages from `first` on.
    pub fn write_op<'a>(&'a self, first: u32, bytes: &'a [u8]) -> IoOp<'a> {
        IoOp::write(&*self.file, bytes, self.page_size.offset_of(first))
    }

    /// Makes the file long enough for `pages` pages. Where it grows, the space is allocated.
    pub fn extend_to(&self, pages: u32) -> Result<()> {
        let bytes = self.page_size.offset_of(pages);
        if self.file.len()? < bytes { self.file.set_len(bytes) } else { Ok(()) }
    }

    /// Whether anything lies behind the first `pages` pages, be it a part of a page.
    pub fn is_longer_than(&self, pages: u32) -> Result<bool> {
        Ok(self.file.len()? > self.page_size.offset_of(pages))
    }

    /// Cuts off what lies behind the first `pages` pages, durably.
    pub fn cut_to(&self, pages: u32) -> Result<()> {
        self.file.set_len(self.page_size.offset_of(pages))?;
        self.file.sync_data()
    }
}
