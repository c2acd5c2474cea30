//! Reading pages and images: one by one, or many through windows of the file.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use super::codec::Codec;
use super::entry::{Entry, IMAGE_MAX, Identity, Object};
use super::error::{Error, Result};
use super::file::{Found, PackedFile};
use super::geometry::BLOCK;
use super::write::Image;
use crate::lend;
use crate::storage::{AlignedBuf, IoOp, StorageFile};

/// Longest run of blocks that one image lies in: it may begin anywhere in the first.
const BLOCKS_OF_IMAGE: usize = IMAGE_MAX + BLOCK;
/// Bytes that [`PackedFile::images_since`] reads although no image that it wants lies there.
const BACKUP_GAP: usize = 64 << 10;
/// Bytes that it reads at once.
const BACKUP_WINDOW: usize = 1 << 20;
/// Pages at most that one call of [`PackedFile::images_since`] looks at: 1 MiB of the map.
const PAGES_OF_PIECE: usize = 1 << 16;

thread_local! {
    static BLOCKS: RefCell<AlignedBuf> = RefCell::new(new_blocks());
}

fn new_blocks() -> AlignedBuf {
    AlignedBuf::zeroed(BLOCKS_OF_IMAGE)
}

/// A part of the file that holds images of pages: whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Byte offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// The images in it, in the order of the file.
    pub pages: Vec<Wanted>,
}

/// An image in a [`Window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where the page is in the list that [`PackedFile::windows`] was given.
    pub index: usize,
    /// The space.
    pub space: u32,
    /// The page's number.
    pub no: u32,
    /// Where the image is.
    pub entry: Entry,
}

/// How windows are made of the places of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// Neighbours become one window if at most this number of bytes is between them.
    pub gap_max: usize,
    /// Bytes of a window at most, unless one image takes more.
    pub len_max: usize,
}

/// Which images [`PackedFile::images_since`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Those of later runs; 0: all. No more than 2^31 runs ago.
    pub run: u64,
    /// At most this number of bytes, but at least one image.
    pub bytes_max: usize,
}

impl Since {
    /// Whether the image is of a later run. Entries have the low half of a run's number.
    fn covers(self, entry: &Entry) -> bool {
        self.run == 0 || entry.run.wrapping_sub(self.run as u32).cast_signed() > 0
    }
}

/// What [`PackedFile::images_since`] found.
#[derive(Debug, Default)]
pub struct Piece {
    /// The images, in the order of their pages.
    pub images: Vec<Image>,
    /// The pages whose image can't be read or is not the one that was written, and what is wrong
    /// with each.
    pub spoilt: Vec<(u32, Error)>,
    /// Which pages have an image, these or older ones: first page and number of pages of each
    /// stretch, in order.
    pub present: Vec<(u32, u32)>,
    /// Where to go on; `None`: there is no more.
    pub next: Option<u32>,
}

impl Piece {
    fn add_present(&mut self, no: u32) {
        match self.present.last_mut() {
            Some((first, count)) if *first + *count == no => *count += 1,
            _ => self.present.push((no, 1)),
        }
    }
}

impl PackedFile {
    /// Reads page `no` of `space` into `page`, which has the length of a page.
    ///
    /// # Errors
    /// [`Error::Corrupt`](super::Error::Corrupt) unless the file has exactly the bytes that were
    /// written last: another page, an older version and spoilt bytes are all found out.
    /// [`Error::Key`](super::Error::Key) if the page is encrypted and its key can't be had.
    pub fn read(&self, space: u32, no: u32, page: &mut [u8]) -> Result<Found> {
        self.read_with_image(space, no, page, |_, _| {})
    }

    /// The same; `see` gets the image that the page was made of, decrypted, if it has one.
    ///
    /// # Errors
    /// As [`PackedFile::read`].
    pub fn read_with_image(
        &self,
        space: u32,
        no: u32,
        page: &mut [u8],
        see: impl FnOnce(Codec, &[u8]),
    ) -> Result<Found> {
        self.check_length(page);
        let object = Object::Page { space, no };
        let decode = |entry: Entry, image: &[u8]| {
            self.with_opened((object, &entry), image, |image| {
                entry.codec.decode(image, page).map_err(|why| (entry, why))?;
                see(entry.codec, image);
                Ok::<(), (Entry, &str)>(())
            })
        };
        match self.newest_image(space, no, decode)? {
            Some(Ok(Ok(()))) => Ok(Found::Page),
            Some(Ok(Err((entry, why)))) => Err(self.corrupt_at(object, &entry, why)),
            Some(Err(error)) => Err(error),
            None => {
                page.fill(0);
                Ok(Found::Nothing)
            }
        }
    }

    /// The image of page `no` of `space` as it is stored; `None` if the page was never written, or
    /// is free.
    ///
    /// # Errors
    /// As [`PackedFile::read`], but that the image can be decoded is not checked.
    pub fn image(&self, space: u32, no: u32) -> Result<Option<Image>> {
        self.newest_image(space, no, |entry: Entry, image: &[u8]| {
            Image::stored_at((space, no), &entry, image.to_vec())
        })
    }

    /// Calls `each` with the image of a page, once its checksum is right.
    fn newest_image<T>(
        &self,
        space: u32,
        no: u32,
        each: impl FnOnce(Entry, &[u8]) -> T,
    ) -> Result<Option<T>> {
        let (object, mut tried, mut each) = (Object::Page { space, no }, None, Some(each));
        loop {
            let Some(entry) = self.find(space, no)? else { return Ok(None) };
            if tried == Some(entry) {
                return Err(self.corrupt(object, self.spoilt(&entry)));
            }
            let take = |image: &[u8]| each.take().expect("called once")(entry, image);
            match self.with_image(object, entry, take)? {
                Some(taken) => return Ok(Some(taken)),
                // The cleaner or a write has given it another place meanwhile, or the bytes are
                // spoilt: then it is found at the same place again.
                None => tried = Some(entry),
            }
        }
    }

    /// The images of `space` from page `from` on that a run after `since.run` has written, as they
    /// are stored, in the order of the pages; and which pages have an image at all. An image that
    /// the cleaner has moved since counts as written.
    ///
    /// # Errors
    /// As [`PackedFile::image`], except for images that can't be read or are spoilt, which the
    /// answer lists.
    pub fn images_since(&self, space: u32, from: u32, since: Since) -> Result<Piece> {
        let (mut pages, mut bytes, mut next) = (Vec::new(), 0, Some(from));
        let mut piece = Piece::default();
        let mut looked_at = 0;
        while let Some(at) = next
            && let Some((no, entry)) = self.next_image(space, at)?
        {
            if since.covers(&entry) {
                bytes += entry.len as usize;
                if bytes > since.bytes_max && !pages.is_empty() {
                    piece.next = Some(no);
                    break;
                }
                pages.push((space, no));
            }
            piece.add_present(no);
            next = no.checked_add(1);
            looked_at += 1;
            if looked_at >= PAGES_OF_PIECE {
                piece.next = next;
                break;
            }
        }
        self.add_images(&pages, &mut piece)?;
        Ok(piece)
    }

    /// Adds the images of these pages (space, number), as far as they have one.
    fn add_images(&self, pages: &[(u32, u32)], piece: &mut Piece) -> Result<()> {
        let merging = Merging { gap_max: BACKUP_GAP, len_max: BACKUP_WINDOW };
        let (windows, _) = self.windows(pages, merging)?;
        let mut images: Vec<Option<Image>> = vec![None; pages.len()];
        let longest = windows.iter().map(|window| window.len).max().unwrap_or(0);
        let mut buffer = AlignedBuf::zeroed(longest);
        for window in &windows {
            let bytes = &mut buffer[..window.len];
            self.traffic.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // If the disk refuses it, perhaps not each image in it.
            let is_read = self.file.read_at(bytes, window.offset).is_ok();
            for wanted in &window.pages {
                let Wanted { index, space, no, entry } = *wanted;
                images[index] = match self.image_in(window, bytes, wanted).filter(|_| is_read) {
                    Some(image) => Some(Image::stored_at((space, no), &entry, image.to_vec())),
                    None => match self.image(space, no) {
                        Err(
                            error @ (Error::Corrupt { object: Object::Page { .. }, .. }
                            | Error::Storage(_)),
                        ) => {
                            piece.spoilt.push((no, error));
                            None
                        }
                        image => image?,
                    },
                };
            }
        }
        piece.images.extend(images.into_iter().flatten());
        Ok(())
    }

    /// The windows of the file that hold the images of these pages (space, number), in the order of
    /// the file; and the positions in `pages` of those that have no image. To be read by the
    /// caller, from [`PackedFile::io_file`], and given to [`PackedFile::decode_in`].
    pub fn windows(
        &self,
        pages: &[(u32, u32)],
        merging: Merging,
    ) -> Result<(Vec<Window>, Vec<usize>)> {
        let (mut wanted, mut absent) = (Vec::with_capacity(pages.len()), Vec::new());
        for (index, (space, no)) in pages.iter().copied().enumerate() {
            match self.find(space, no)? {
                Some(entry) => wanted.push(Wanted { index, space, no, entry }),
                None => absent.push(index),
            }
        }
        wanted.sort_unstable_by_key(|wanted| wanted.entry.unit);
        let mut windows: Vec<Window> = Vec::new();
        for wanted in wanted {
            let (offset, len) = wanted.entry.window();
            if let Some(last) = windows.last_mut() {
                let end = (offset + len as u64).max(last.offset + last.len as u64);
                let gap = offset.saturating_sub(last.offset + last.len as u64);
                if gap <= merging.gap_max as u64 && end - last.offset <= merging.len_max as u64 {
                    last.len = (end - last.offset) as usize;
                    last.pages.push(wanted);
                    continue;
                }
            }
            windows.push(Window { offset, len, pages: vec![wanted] });
        }
        debug_assert!(
            windows.is_sorted_by(|a, b| a.offset + a.len as u64 <= b.offset + BLOCK as u64),
            "windows share at most the block in which two images meet"
        );
        Ok((windows, absent))
    }

    /// The read of a window into `bytes`, which has its length, for
    /// [`Storage::run_batch`](crate::storage::Storage::run_batch).
    pub fn read_op<'a>(&'a self, window: &Window, bytes: &'a mut [u8]) -> IoOp<'a> {
        assert_eq!(bytes.len(), window.len, "the buffer has the window's length");
        self.traffic.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        IoOp::read(&*self.file, bytes, window.offset)
    }

    /// The file, for reading windows of it with
    /// [`Storage::run_batch`](crate::storage::Storage::run_batch).
    pub fn io_file(&self) -> &dyn StorageFile {
        &*self.file
    }

    /// Makes the page of image number `at` of a window, from the window's bytes. `false` if those
    /// are not the image: it has moved since, or is spoilt. [`PackedFile::read`] finds out
    /// which.
    ///
    /// # Errors
    /// [`Error::Corrupt`](super::Error::Corrupt) if the image is the one that was written, and is
    /// no image of a page; [`Error::Key`] if its key can't be had.
    pub fn decode_in(
        &self,
        window: &Window,
        bytes: &[u8],
        at: usize,
        page: &mut [u8],
    ) -> Result<bool> {
        self.check_length(page);
        let wanted = &window.pages[at];
        let Some(image) = self.image_in(window, bytes, wanted) else { return Ok(false) };
        let object = Object::Page { space: wanted.space, no: wanted.no };
        self.decode((object, &wanted.entry), image, page)?;
        Ok(true)
    }

    /// An image within the bytes of its window, if they are those that were written.
    fn image_in<'a>(&self, window: &Window, bytes: &'a [u8], wanted: &Wanted) -> Option<&'a [u8]> {
        assert_eq!(bytes.len(), window.len, "the bytes are those of the window");
        let entry = &wanted.entry;
        let start = (entry.offset() - window.offset) as usize;
        let image = &bytes[start..start + entry.len as usize];
        let object = Object::Page { space: wanted.space, no: wanted.no };
        let identity = Identity { file: self.number, object, run: entry.run };
        (identity.checksum(image) == entry.crc).then_some(image)
    }

    /// Calls `each` with the bytes of an image; `None` if they are not those that were written.
    pub(super) fn with_image<T>(
        &self,
        object: Object,
        entry: Entry,
        each: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let (offset, len) = entry.window();
        lend(&BLOCKS, new_blocks, |blocks| {
            let blocks = &mut blocks[..len];
            self.traffic.read.fetch_add(blocks.len() as u64, Ordering::Relaxed);
            match self.file.read_at(blocks, offset) {
                Ok(()) => {}
                // The file was cut while the image moved, or it is damaged: the caller finds out.
                Err(error) if error.is_unexpected_eof() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let image = entry.image_in(blocks);
            let identity = Identity { file: self.number, object, run: entry.run };
            Ok((identity.checksum(image) == entry.crc).then(|| each(image)))
        })
    }

    fn check_length(&self, page: &[u8]) {
        assert_eq!(page.len(), self.settings.page_size.bytes(), "the buffer has a page's length");
    }
}
