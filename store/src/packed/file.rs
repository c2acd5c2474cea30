//! [`PackedFile`]: the file of a space, and reading from it.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::codec::Codec;
use super::entry::{Entry, IMAGE_MAX, Identity, Object};
use super::error::{Error, Result};
use super::geometry::{BLOCK, Geometry, UNIT};
use super::map::{Absent, Map};
use super::root::Tail;
use super::run::STREAMS;
use super::segments::{Segments, Victim};
use crate::page::PageSize;
use crate::storage::{AlignedBuf, StorageFile};

/// What a file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Page size of the data directory.
    pub page_size: PageSize,
    /// The data directory's uuid.
    pub instance: [u8; 16],
    /// The space whose file it is.
    pub space: u32,
    /// Random bits, others for each opening: they tell the runs of this opening from those of
    /// others.
    pub random: u64,
}

/// A file of pages, compressed and packed. All methods may be called from several threads at once.
pub struct PackedFile {
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) settings: Settings,
    /// Random number of the file, the same for its life.
    pub(super) number: u64,
    pub(super) geometry: Geometry,
    pub(super) writer: Mutex<Writer>,
    pub(super) map: RwLock<Map>,
}

/// What writing needs.
pub(super) struct Writer {
    pub chain: Chain,
    pub segments: Segments,
    /// Number of the newest root.
    pub root: u64,
    /// Images of the file's tables and the map's top that the newest root leads to.
    pub tables: Vec<(Object, Entry)>,
    /// Bytes of runs since the last checkpoint.
    pub since_checkpoint: u64,
    /// A run that does not count may lie behind the end of the chain. It says that it is the
    /// successor, and so would the next one, at another place perhaps. A checkpoint comes first:
    /// its root says which run the chain goes on from.
    pub must_checkpoint: bool,
}

/// Where the chain of runs ends.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The newest run; 0: there is none.
    pub sequence: u32,
    /// Checksum of its header.
    pub checksum: u32,
    /// The newest run that is known to be durable.
    pub synced: u32,
    pub tails: [Tail; STREAMS],
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The page.
    Page,
    /// The page was never written, or is free: zeroes.
    Nothing,
}

/// What a file takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Bytes of segments that hold something or are being filled.
    pub occupied_bytes: u64,
    /// Bytes of images in use, the map's among them, in whole units.
    pub live_bytes: u64,
    /// Bytes that the map takes in memory.
    pub memory_bytes: u64,
    /// The newest durable run.
    pub sequence: u32,
}

/// Longest window of an image: it may begin anywhere in a block.
const WINDOW_MAX: usize = IMAGE_MAX + BLOCK;

thread_local! {
    static WINDOW: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(WINDOW_MAX));
}

impl PackedFile {
    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Reads page `no` of `space` into `page`, which has the length of a page.
    ///
    /// # Errors
    /// [`Error::Corrupt`] unless the file has exactly the bytes that were written last: another
    /// page, an older version and spoilt bytes are all found out.
    pub fn read(&self, space: u32, no: u32, page: &mut [u8]) -> Result<Found> {
        assert_eq!(page.len(), self.settings.page_size.bytes(), "the buffer has a page's length");
        let (object, mut tried) = (Object::Page { space, no }, None);
        loop {
            let Some(entry) = self.find(space, no)? else {
                page.fill(0);
                return Ok(Found::Nothing);
            };
            if tried == Some(entry) {
                return Err(self.corrupt(object, self.spoilt(&entry)));
            }
            match self.with_image(object, entry, |image| entry.codec.decode(image, page))? {
                Some(Ok(())) => return Ok(Found::Page),
                Some(Err(why)) => return Err(self.corrupt(object, why)),
                // The cleaner or a write has given it another place meanwhile, or the bytes are
                // spoilt: then it is found at the same place again.
                None => tried = Some(entry),
            }
        }
    }

    /// Where the image of page `no` of `space` is.
    pub fn find(&self, space: u32, no: u32) -> Result<Option<Entry>> {
        self.with_nodes(|| self.map.read().find(space, no))
    }

    /// The first page of `space` from `no` on that has an image.
    pub fn next_page(&self, space: u32, no: u32) -> Result<Option<u32>> {
        Ok(self.next_image(space, no)?.map(|(no, _)| no))
    }

    /// The same, and where the image is.
    pub(super) fn next_image(&self, space: u32, no: u32) -> Result<Option<(u32, Entry)>> {
        self.with_nodes(|| self.map.read().next_page(space, no))
    }

    /// Asks the map until all nodes that the answer needs are in memory.
    pub(super) fn with_nodes<T>(&self, mut ask: impl FnMut() -> Result<T, Absent>) -> Result<T> {
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(absent) => self.load(absent)?,
            }
        }
    }

    /// What the file takes.
    pub fn usage(&self) -> Result<Usage> {
        let writer = self.writer.lock();
        let memory = self.map.read().memory_bytes();
        Ok(Usage {
            file_bytes: self.file.len()?,
            occupied_bytes: writer.segments.occupied_bytes(&writer.chain.tails),
            live_bytes: writer.segments.live_units_total() * UNIT as u64,
            memory_bytes: memory as u64,
            sequence: writer.chain.synced,
        })
    }

    /// The segment that is worth most to empty.
    pub fn victim(&self) -> Option<Victim> {
        let writer = self.writer.lock();
        writer.segments.victim(&writer.chain.tails, writer.chain.sequence)
    }

    /// Forgets parts of the map until about `nodes` nodes of 16 KiB are in memory. Those that are
    /// to be written stay.
    pub fn trim_map(&self, nodes: usize) {
        // No batch is between finding its nodes and changing them.
        let _writer = self.writer.lock();
        self.map.write().trim(nodes);
    }

    /// Reads a node of the map that is absent, unless it is in memory by now or has moved.
    fn load(&self, absent: Absent) -> Result<()> {
        let Absent { object, entry } = absent;
        let install = |image: &[u8]| self.map.write().install(absent, image);
        match self.with_image(object, entry, install)? {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(self.corrupt(object, why)),
            // Only the writer gives a node another place; whoever asked looks again.
            None if self.map.write().is_absent(&absent) => {
                Err(self.corrupt(object, self.spoilt(&entry)))
            }
            None => Ok(()),
        }
    }

    /// Calls `each` with the bytes of an image; `None` if they are not those that were written.
    pub(super) fn with_image<T>(
        &self,
        object: Object,
        entry: Entry,
        each: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let (offset, len) = entry.window();
        WINDOW.with_borrow_mut(|window| {
            let window = &mut window[..len];
            match self.file.read_at(window, offset) {
                Ok(()) => {}
                // The file was cut while the image moved, or it is damaged: the caller finds out.
                Err(error) if error.is_unexpected_eof() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let image = entry.image_in(window);
            let identity = Identity { file: self.number, object, run: entry.run };
            Ok((identity.checksum(image) == entry.crc).then(|| each(image)))
        })
    }

    /// The bytes of a table of the file or of the map's top.
    pub(super) fn table(&self, object: Object, entry: Entry) -> Result<Vec<u8>> {
        let bytes = self.with_image(object, entry, <[u8]>::to_vec)?;
        bytes.ok_or_else(|| self.corrupt(object, self.spoilt(&entry)))
    }

    fn spoilt(&self, entry: &Entry) -> String {
        format!(
            "the {} bytes at offset {} are not those that run {} wrote there",
            entry.len,
            entry.offset(),
            entry.run
        )
    }

    pub(super) fn corrupt(&self, object: Object, why: impl Into<String>) -> Error {
        Error::Corrupt { file: self.name().into(), object, why: why.into() }
    }

    pub(super) fn damaged(&self, why: impl Into<String>) -> Error {
        Error::File { file: self.name().into(), why: why.into() }
    }
}

/// Nodes and tables are stored as they are: most of their bytes are checksums.
pub(super) const META_CODEC: Codec = Codec::Raw;
