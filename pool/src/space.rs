//! A tablespace as the pool sees it: a file, and the translation words of its pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tidepool_store::packed::{self, Codec, PackedFile, Usage};

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::latch::PageWord;
use crate::mapping::Accounting;
use crate::mirror::Mirror;
use crate::page::PageId;
use crate::page_compression::PageCompression;

/// What the spaces of a pool have in memory, over all of them: kept up to date as it changes, for
/// there may be a hundred thousand.
#[derive(Default)]
pub(crate) struct SpacesMemory {
    /// Of their directories, bytes.
    translation: AtomicU64,
    /// Of the maps of their files, bytes, each as of the last look.
    maps: AtomicU64,
}

impl SpacesMemory {
    pub(crate) fn translation_bytes(&self) -> u64 {
        self.translation.load(Ordering::Relaxed)
    }

    pub(crate) fn map_bytes(&self) -> u64 {
        self.maps.load(Ordering::Relaxed)
    }
}

/// Bytes of the translation of a space whose highest page that was ever resident is this one.
pub(crate) fn translation_bytes(highest_resident: u32) -> u64 {
    ((u64::from(highest_resident) + 1) * 8).next_multiple_of(4096) + 4096
}

/// The number of the next space that is opened.
static NEXT_INCARNATION: AtomicU32 = AtomicU32::new(0);

/// An open tablespace. Made by `Pool::open_space`.
pub struct Space {
    id: u32,
    file: PackedFile,
    mirror: Option<Mirror>,
    directory: Directory,
    /// Set once, when the space is being closed: no page is loaded from then on.
    closed: AtomicBool,
    /// Set with `closed`, if its dirty pages are discarded: none is written from then on.
    discarded: AtomicBool,
    /// No page above this one has ever been resident.
    highest_resident: AtomicU32,
    page_count: AtomicU32,
    incarnation: u32,
    /// A [`PageCompression`].
    compression: AtomicU8,
    memory: Arc<SpacesMemory>,
    /// What is counted there of its file's map.
    map_bytes: AtomicU64,
}

impl Space {
    pub(crate) fn new(
        id: u32,
        file: PackedFile,
        mirror: Option<Mirror>,
        accounting: Accounting,
        memory: Arc<SpacesMemory>,
    ) -> Result<Space> {
        let pages = file.end(id).map_err(Error::of_file)?;
        let directory = Directory::new(accounting)
            .map_err(|error| Error::system("reserving the translation directory", error))?;
        memory.translation.fetch_add(translation_bytes(0), Ordering::Relaxed);
        let space = Space {
            id,
            file,
            mirror,
            directory,
            closed: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
            highest_resident: AtomicU32::new(0),
            page_count: AtomicU32::new(pages),
            incarnation: NEXT_INCARNATION.fetch_add(1, Ordering::Relaxed),
            compression: AtomicU8::new(PageCompression::Auto as u8),
            memory,
            map_bytes: AtomicU64::new(0),
        };
        space.file_usage();
        Ok(space)
    }

    /// The tablespace's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// A number that no other space of this process has, nor this one when it is opened again.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The name of its file.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// How its pages are compressed from now on; [`PageCompression::Auto`]: as the pool says.
    pub fn set_compression(&self, compression: PageCompression) {
        self.compression.store(compression as u8, Ordering::Relaxed);
    }

    /// See [`Space::set_compression`].
    pub fn compression(&self) -> PageCompression {
        PageCompression::ALL[usize::from(self.compression.load(Ordering::Relaxed))]
    }

    pub fn file(&self) -> &PackedFile {
        &self.file
    }

    /// What its file takes; the pool's total of what maps take knows that from now on.
    pub(crate) fn file_usage(&self) -> Usage {
        let usage = self.file.usage();
        let before = self.map_bytes.swap(usage.memory_bytes, Ordering::Relaxed);
        // It wraps where the map became smaller, and so does the sum.
        self.memory.maps.fetch_add(usage.memory_bytes.wrapping_sub(before), Ordering::Relaxed);
        usage
    }

    /// Reads a page past the pool: exactly what was written last; zeroes if nothing was.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file does not have that any more; [`Error::Storage`] of the disk.
    pub fn read_past_pool(&self, no: u32, page: &mut [u8]) -> Result<()> {
        let read = self.file.read(self.id, no, page);
        read.map(drop).map_err(|error| Error::of_read(PageId::new(self.id, no), error))
    }

    /// The same; `see` gets the image that the page was made of.
    pub(crate) fn read_with_image(
        &self,
        no: u32,
        page: &mut [u8],
        see: impl FnOnce(Codec, &[u8]),
    ) -> Result<()> {
        let read = self.file.read_with_image(self.id, no, page, see);
        read.map(drop).map_err(|error| Error::of_read(PageId::new(self.id, no), error))
    }

    #[cfg(test)]
    pub(crate) fn counted_map_bytes(&self) -> u64 {
        self.map_bytes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn forget_map_bytes(&self) {
        let before = self.map_bytes.swap(0, Ordering::Relaxed);
        self.memory.maps.fetch_sub(before, Ordering::Relaxed);
    }

    /// Makes sure that the file has room for `pages` pages, as far as a file can; a full disk shows
    /// here. Read-ahead goes that far from now on.
    pub fn grow_to(&self, pages: u32) -> Result<()> {
        // The first pages of a new file find room when they are written.
        let more = pages.saturating_sub(self.page_count());
        // Of a file that is opened for reading, new pages are in memory alone.
        let is_written = self.file.access() == packed::Access::ReadWrite;
        if is_written && self.page_count() > 0 && more > 0 {
            self.file.reserve(more).map_err(Error::of_file)?;
        }
        self.page_count.fetch_max(pages, Ordering::Relaxed);
        Ok(())
    }

    /// Where some of its pages have a second copy, if any have.
    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_ref()
    }

    /// How many pages the file is thought to hold: what it had when it was opened, or what
    /// [`Space::grow_to`] or [`Space::note_page_count`] said since, if that is more. Read-ahead
    /// stops there; nothing else depends on it.
    pub fn page_count(&self) -> u32 {
        self.page_count.load(Ordering::Relaxed)
    }

    /// Sets how many pages the space has.
    pub fn note_page_count(&self, pages: u32) {
        self.page_count.fetch_max(pages, Ordering::Relaxed);
    }

    /// The word of page `no`.
    #[inline]
    pub(crate) fn word(&self, no: u32) -> Result<&PageWord> {
        match self.directory.get(no) {
            Some(word) => Ok(word),
            None => self
                .directory
                .get_or_make(no)
                .map_err(|error| Error::system("growing the translation directory", error)),
        }
    }

    /// The word of page `no`, unless no page near it was ever resident.
    pub(crate) fn existing_word(&self, no: u32) -> Option<&PageWord> {
        self.directory.get(no)
    }

    /// To be called before a page is installed in its word.
    pub(crate) fn note_resident(&self, no: u32) -> Result<()> {
        self.directory
            .let_be_installed(no)
            .map_err(|error| Error::system("growing the translation directory", error))?;
        if self.highest_resident.load(Ordering::Relaxed) < no {
            let before = self.highest_resident.fetch_max(no, Ordering::SeqCst);
            let more = translation_bytes(no.max(before)) - translation_bytes(before);
            self.memory.translation.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Calls `visit` with each word that has a frame.
    pub(crate) fn for_each_resident(&self, mut visit: impl FnMut(u32, &PageWord)) {
        let highest = self.highest_resident.load(Ordering::SeqCst);
        self.directory.for_each_up_to(highest, |no, word| {
            if word.load().frame().is_some() {
                visit(no, word);
            }
        });
    }

    /// False if it was closed already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn discard(&self) {
        self.discarded.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::SeqCst)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let translation = translation_bytes(*self.highest_resident.get_mut());
        self.memory.translation.fetch_sub(translation, Ordering::Relaxed);
        self.memory.maps.fetch_sub(*self.map_bytes.get_mut(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("id", &self.id).field("file", &self.name()).finish()
    }
}
