//! A tablespace as the pool sees it: a file, and the translation words of its pages.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tidepool_store::packed::{self, Codec, PackedFile};

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::latch::PageWord;
use crate::mapping::Accounting;
use crate::mirror::Mirror;
use crate::page::PageId;
use crate::page_compression::PageCompression;

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
}

impl Space {
    pub(crate) fn new(
        id: u32,
        file: PackedFile,
        mirror: Option<Mirror>,
        accounting: Accounting,
    ) -> Result<Space> {
        let pages = file.end(id).map_err(Error::of_file)?;
        let directory = Directory::new(accounting)
            .map_err(|error| Error::system("reserving the translation directory", error))?;
        Ok(Space {
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
        })
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
            self.highest_resident.fetch_max(no, Ordering::SeqCst);
        }
        Ok(())
    }

    pub(crate) fn highest_resident(&self) -> u32 {
        self.highest_resident.load(Ordering::Relaxed)
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

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("id", &self.id).field("file", &self.name()).finish()
    }
}
