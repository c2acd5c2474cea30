//! [`PackedFile`]: the file of a space, and what it says of itself.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::codec::Codec;
use super::entry::{Entry, Object};
use super::error::{Error, Result};
use super::geometry::{Geometry, UNIT};
use super::map::{Absent, Map};
use super::root::Tail;
use super::run::STREAMS;
use super::segments::{Segments, Victim};
use crate::page::PageSize;
use crate::storage::{StorageError, StorageFile};

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

/// What an opened file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing.
    ReadWrite,
    /// Reading: nothing is written or synced, and writes are refused.
    ReadOnly,
}

/// A file of pages, compressed and packed. All methods may be called from several threads at once.
pub struct PackedFile {
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) settings: Settings,
    pub(super) access: Access,
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
    /// The error of a sync of the file: no change is possible any more.
    pub failed_sync: Option<StorageError>,
}

/// Where the chain of runs ends.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The newest run; 0: there is none.
    pub sequence: u64,
    /// Checksum of its header.
    pub checksum: u32,
    /// The newest run that is known to be durable.
    pub synced: u64,
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
    pub sequence: u64,
}

impl PackedFile {
    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.name()
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

    /// One more than the highest page of `space` that has an image; 0: none has. (The last number
    /// that 32 bits have is no page's.) Reads the nodes of the map at its right edge, if need be.
    pub fn end(&self, space: u32) -> Result<u32> {
        let last = self.with_nodes(|| self.map.read().last_page(space))?;
        Ok(last.map_or(0, |no| no.saturating_add(1)))
    }

    /// The spaces that have an image, in order.
    pub fn spaces(&self) -> Vec<u32> {
        self.map.read().spaces().collect()
    }

    /// The writer, for a change. Refused if the file is opened for reading, and once a sync has
    /// failed: what was written before may be lost, and no later sync would say so.
    pub(super) fn writer_for_change(&self) -> Result<MutexGuard<'_, Writer>> {
        if self.access == Access::ReadOnly {
            return Err(
                self.damaged("it is opened for reading only: open the directory for writing")
            );
        }
        let writer = self.writer.lock();
        match &writer.failed_sync {
            Some(error) => Err(error.clone().into()),
            None => Ok(writer),
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

    /// The bytes of a table of the file or of the map's top.
    pub(super) fn table(&self, object: Object, entry: Entry) -> Result<Vec<u8>> {
        let bytes = self.with_image(object, entry, <[u8]>::to_vec)?;
        bytes.ok_or_else(|| self.corrupt(object, self.spoilt(&entry)))
    }

    pub(super) fn spoilt(&self, entry: &Entry) -> String {
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
