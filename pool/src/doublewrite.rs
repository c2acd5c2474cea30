//! The doublewrite file: every page is written here, and synced, before it is written home.
//!
//! A power cut in the middle of a page write may leave half a page, which redo can't repair, since
//! its records say what changed, not what was there. With a whole copy in this file there is always
//! one good image: this one if the home is torn, the home if this one is.
//!
//! # Format of `doublewrite.tpd`
//! Two halves of equal length, which batches use in turn. A half is a header page and page images:
//!
//! ```text
//!  0  magic         8 bytes  "TPDWRITE"
//!  8  checksum      u32      CRC32C of bytes 12 .. 28
//! 12  batch number  u64      its lowest bit says which half
//! 20  page size     u32
//! 24  images        u32      how many follow, from byte `page size` on
//! ```
//! An image needs no entry of its own: its page header names the page, its checksum says whether it
//! is whole.
//!
//! # Why it works
//! - A half is overwritten only when every page of its last batch is home and synced, or its image
//!   was *carried* into the other half: a page whose home write failed may be torn from then on, so
//!   its image goes into every batch until a write succeeds.
//! - Hence recovery finds, for every page that may be torn, an image in one of the halves, and the
//!   newest by page LSN is the last that was written home, or a later one. Images beyond the count
//!   in a header are of older batches, and are not looked at: healing a rotten page with one of
//!   those would silently undo committed changes.
//! - A power cut in a write of this file may leave a new header with a greater count before old
//!   images. So an image counts only if the redo log reaches back to it: redo then makes of it
//!   whatever its page was. A page that may be torn was dirty when the power went, which held the
//!   checkpoint before all that its image lacks, and so before the image's own LSN.
//! - A pool that writes pages only once (`doublewrite` off) would make the images old without a
//!   word about it here, so the file is removed before it is made.
//! - A failed sync of this file costs the file, not the data: the next batch goes to a new file,
//!   with the carried images, which takes the old one's name once it is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::page::{self, Lsn, PageId, PageSize};
use crate::step::survive;
use crate::storage::{AlignedBuf, Storage, StorageFile};

/// The file's name in the storage's root.
pub const DOUBLEWRITE_FILE: &str = "doublewrite.tpd";

/// Its name until it may replace one that failed.
const SUCCESSOR_FILE: &str = "doublewrite.tpd.new";

const MAGIC: &[u8; 8] = b"TPDWRITE";
const HEADER_BYTES: usize = 28;

/// Images read at a time by recovery.
const RECOVERY_CHUNK: usize = 64;

/// The doublewrite file, opened when first needed.
pub struct Doublewrite {
    page_size: PageSize,
    batch_pages: usize,
    file: Option<Arc<dyn StorageFile>>,
    /// The file last written failed: the next is a new one.
    replace: bool,
    /// The number of the next batch.
    batch: u64,
    /// Images of pages whose home write failed. They are in the half of the last batch.
    carried: BTreeMap<PageId, Box<[u8]>>,
}

impl Doublewrite {
    pub(crate) fn new(page_size: PageSize, batch_pages: usize) -> Doublewrite {
        Doublewrite {
            page_size,
            batch_pages,
            file: None,
            replace: false,
            batch: 1,
            carried: BTreeMap::new(),
        }
    }

    /// Pages that a half must have room for, its header included: a batch, and as many carried.
    pub(crate) fn half_pages(batch_pages: usize) -> usize {
        1 + 2 * batch_pages
    }

    /// Makes the images of `pages` durable. They lie one after the other in `half`, behind room for
    /// the header, with room after them for those that are carried.
    pub(crate) fn write(
        &mut self,
        storage: &dyn Storage,
        half: &mut [u8],
        pages: &[PageId],
    ) -> Result<()> {
        let size = self.page_size.bytes();
        let mut images = pages.len();
        for (id, image) in &self.carried {
            // A page of the batch is there already, as it is now.
            if !pages.contains(id) {
                images += 1;
                half[images * size..][..size].copy_from_slice(image);
            }
        }
        encode_header(&mut half[..size], self.batch, self.page_size, images as u32);
        const WHAT: &str = "a write of the doublewrite file";
        let bytes = &half[..(1 + images) * size];
        let written = survive(WHAT, || self.write_half(storage, bytes));
        let written = written.unwrap_or(Err(Error::Panicked(WHAT)));
        if written.is_err() {
            self.file = None;
            self.replace = true;
        } else {
            self.batch += 1;
            for id in pages {
                self.carried.remove(id);
            }
        }
        written
    }

    fn write_half(&mut self, storage: &dyn Storage, bytes: &[u8]) -> Result<()> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.open(storage)?,
        };
        let half_bytes = Self::half_pages(self.batch_pages) * self.page_size.bytes();
        file.write_at(bytes, (self.batch & 1) * half_bytes as u64)?;
        file.sync_data()?;
        if self.replace {
            storage.rename(SUCCESSOR_FILE, DOUBLEWRITE_FILE)?;
            storage.sync_dir("")?;
            self.replace = false;
        }
        self.file = Some(file);
        Ok(())
    }

    /// The file, such that recovery finds nothing in it: what a file of an earlier run holds was
    /// used, and must not be found again beside newer images.
    fn open(&self, storage: &dyn Storage) -> Result<Arc<dyn StorageFile>> {
        let len = 2 * (Self::half_pages(self.batch_pages) * self.page_size.bytes()) as u64;
        if self.replace {
            storage.remove_if_there(SUCCESSOR_FILE)?;
            let file = storage.create(SUCCESSOR_FILE)?;
            file.set_len(len)?;
            return Ok(file);
        }
        remove_successor(storage);
        let file = match storage.open(DOUBLEWRITE_FILE) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => storage.create(DOUBLEWRITE_FILE)?,
            Err(error) => return Err(error.into()),
        };
        let old_len = file.len()?;
        let no_header = AlignedBuf::zeroed(self.page_size.bytes());
        for start in [0, old_len / 2] {
            if start + self.page_size.bytes() as u64 <= old_len {
                file.write_at(&no_header, start)?;
            }
        }
        if old_len != len {
            file.set_len(len)?;
        }
        file.sync_data()?;
        storage.sync_dir("")?;
        Ok(file)
    }

    /// Notes that the page may be torn at home, and `image` is its only whole copy.
    pub(crate) fn carry(&mut self, id: PageId, image: &[u8]) {
        self.carried.insert(id, image.into());
    }

    /// The pages whose images are carried.
    pub(crate) fn carried(&self) -> impl Iterator<Item = PageId> {
        self.carried.keys().copied()
    }

    /// Whether so many are carried that a whole batch more might find no room.
    pub(crate) fn is_full(&self) -> bool {
        self.carried.len() >= self.batch_pages
    }

    /// A space is dropped: nobody will miss its pages.
    pub(crate) fn forget_space(&mut self, space: u32) {
        self.carried.retain(|id, _| id.space != space);
    }

    /// To be called before redo is applied, and before a pool is made: replaces every page whose
    /// home is broken by its image here, and makes durable all that the last batches wrote (after a
    /// kill it may be there without being durable). Redo will be applied from `checkpoint` on;
    /// images that are older are left alone. `file_of` gives the file of a page, or `None` if its
    /// space no longer exists. Returns the pages healed.
    pub fn recover(
        storage: &dyn Storage,
        page_size: PageSize,
        checkpoint: Lsn,
        mut file_of: impl FnMut(PageId) -> Option<Arc<dyn StorageFile>>,
    ) -> Result<Vec<PageId>> {
        let file = match storage.open(DOUBLEWRITE_FILE) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut images = BTreeMap::new();
        let half_bytes = file.len()? / 2;
        for start in [0, half_bytes] {
            read_half(&*file, page_size, start, half_bytes, &mut images);
        }
        let mut healed = Vec::new();
        let mut homes: BTreeMap<u32, Arc<dyn StorageFile>> = BTreeMap::new();
        let mut home = AlignedBuf::zeroed(page_size.bytes());
        for (id, image) in images {
            let Some(file) = file_of(id) else { continue };
            let offset = page_size.offset_of(id.no);
            let whole = match file.read_at(&mut home, offset) {
                Ok(()) => page::verify(&home, id).is_ok(),
                // The file was not yet extended to there: the page never reached its home, and
                // redo will make it anew.
                Err(error) if error.source.kind() == std::io::ErrorKind::UnexpectedEof => continue,
                // Some devices tell of a sector that a power cut tore in this way, until it is
                // written again.
                Err(error) => {
                    tracing::warn!(%error, "taken for a torn page");
                    false
                }
            };
            homes.insert(id.space, file.clone());
            if whole {
                continue;
            }
            let lsn = page::page_lsn(&image);
            if lsn < checkpoint {
                tracing::warn!(
                    file = file.name(),
                    page = %id,
                    image = %lsn,
                    %checkpoint,
                    "broken, and not by a torn write: its image in the doublewrite file may be an older one"
                );
                continue;
            }
            file.write_at(&AlignedBuf::copy_of(&image), offset)?;
            tracing::warn!(file = file.name(), page = %id, "torn page restored from doublewrite");
            healed.push(id);
        }
        for file in homes.values() {
            file.sync_data()?;
        }
        Ok(healed)
    }

    /// To be called after [`Doublewrite::recover`], and before a pool is made that writes pages
    /// only once: it leaves the images here behind, and a later recovery would take them for the
    /// newest.
    pub fn remove(storage: &dyn Storage) -> Result<()> {
        remove_successor(storage);
        storage.remove_if_there(DOUBLEWRITE_FILE)?;
        // Even if it is gone: a process that was killed may have removed it without this.
        storage.sync_dir("")?;
        Ok(())
    }
}

/// Removes what a crash kept from taking the file's place: no page went home on its word. If it
/// stays, it is in nobody's way.
fn remove_successor(storage: &dyn Storage) {
    if let Err(error) = storage.remove_if_there(SUCCESSOR_FILE) {
        tracing::warn!(%error, "a doublewrite file of an earlier run stays");
    }
}

fn encode_header(header: &mut [u8], batch: u64, page_size: PageSize, images: u32) {
    header.fill(0);
    header[..8].copy_from_slice(MAGIC);
    header[12..20].copy_from_slice(&batch.to_le_bytes());
    header[20..24].copy_from_slice(&(page_size.bytes() as u32).to_le_bytes());
    header[24..28].copy_from_slice(&images.to_le_bytes());
    let checksum = crc32c::crc32c(&header[12..HEADER_BYTES]);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
}

/// How many images follow; `None` if this is no header, or a torn one.
fn decode_header(header: &[u8], page_size: PageSize) -> Option<u32> {
    let u32_at = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let whole = header[..8] == *MAGIC
        && u32_at(8)? == crc32c::crc32c(&header[12..HEADER_BYTES])
        && u32_at(20)? as usize == page_size.bytes();
    if whole { u32_at(24) } else { None }
}

/// Adds the whole images of a half, keeping the newest of each page.
///
/// What can't be read counts as what is broken: some devices tell of a sector that a power cut tore
/// in this way, and the pages of a batch that the power cut are whole at home.
fn read_half(
    file: &dyn StorageFile,
    page_size: PageSize,
    start: u64,
    half_bytes: u64,
    images: &mut BTreeMap<PageId, Box<[u8]>>,
) {
    let size = page_size.bytes();
    if half_bytes < size as u64 || !half_bytes.is_multiple_of(size as u64) {
        return;
    }
    let mut chunk = AlignedBuf::zeroed(RECOVERY_CHUNK * size);
    read_pages(file, &mut chunk[..size], size, start);
    // Without a header this batch was never begun at home.
    let Some(count) = decode_header(&chunk[..size], page_size) else { return };
    let count = (count as u64).min(half_bytes / size as u64 - 1);
    let mut slot = 0;
    while slot < count {
        let part = (count - slot).min(RECOVERY_CHUNK as u64) as usize;
        let bytes = &mut chunk[..part * size];
        read_pages(file, bytes, size, start + (1 + slot) * size as u64);
        for image in bytes.chunks_exact(size) {
            let id = page::page_id(image);
            if page::verify(image, id).is_err() || page::is_zero(image) {
                continue;
            }
            let newer =
                images.get(&id).is_none_or(|other| page::page_lsn(other) < page::page_lsn(image));
            if newer {
                images.insert(id, image.into());
            }
        }
        slot += part as u64;
    }
}

/// Reads pages; those that can't be read are zeroes.
fn read_pages(file: &dyn StorageFile, pages: &mut [u8], size: usize, at: u64) {
    if file.read_at(pages, at).is_ok() {
        return;
    }
    for (page, at) in pages.chunks_exact_mut(size).zip((at..).step_by(size)) {
        if let Err(error) = file.read_at(page, at) {
            tracing::warn!(%error, "taken for a torn image");
            page.fill(0);
        }
    }
}
