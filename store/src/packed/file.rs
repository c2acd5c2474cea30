//! [`PackedFile`]: the file of a space, and what it says of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::checkpoint::is_due;
use super::codec::Codec;
use super::entry::{Entry, Object, Seal};
use super::error::{Error, Remedy, Result};
use super::geometry::{Geometry, UNIT};
use super::map::{Absent, Map};
use super::root::{Root, Tail};
use super::run::STREAMS;
use super::sealing::Sealing;
use super::segments::Segments;
use super::victims::Victim;
use super::write::Stored;
use crate::page::PageSize;
use crate::storage::StorageFile;

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
    /// A leaf in the locking order.
    pub(super) totals: Mutex<Totals>,
    pub(super) traffic: Traffic,
    /// A leaf in the locking order.
    pub(super) sealing: Sealing,
}

/// Bytes that were asked of the disk since the opening.
#[derive(Default)]
pub(super) struct Traffic {
    pub read: AtomicU64,
    pub written: AtomicU64,
}

/// What writing needs.
pub(super) struct Writer {
    pub chain: Chain,
    pub segments: Segments,
    /// Number of the newest durable root.
    pub durable_root: u64,
    /// Number of the next root, which has the other slot.
    pub next_root: u64,
    /// The newest root whose write failed, if none has become durable since.
    pub failed_root: Option<Root>,
    /// Images of the file's tables and the map's top that the newest root leads to.
    pub tables: Vec<(Object, Entry)>,
    /// Bytes of runs since the last checkpoint.
    pub since_checkpoint: u64,
    /// A run that does not count may lie behind the end of the chain. It says that it is the
    /// successor, and so would the next one, at another place perhaps. A checkpoint comes first:
    /// its root says which run the chain goes on from.
    pub must_checkpoint: bool,
    /// Why no change is possible any more: a sync failed, or the file's tables contradict each
    /// other.
    pub refuses: Option<Error>,
}

/// What is asked often. It changes with the writer, and is read without it.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub usage: Usage,
    pub victim: Option<Victim>,
    pub wants_checkpoint: bool,
    /// Blocks of pages that find room in idle segments, for sure.
    pub page_room: u64,
    /// Blocks of pages that [`PackedFile::reserve`] was asked for, and that were not written yet.
    pub promised: u64,
}

/// Where the chain of runs ends.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The newest run; 0: there is none.
    pub sequence: u64,
    /// Checksum of its header.
    pub checksum: u32,
    /// The newest run that is known to be durable and that a start finds.
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
    /// Bytes that the map and the table of segments take in memory, at most.
    pub memory_bytes: u64,
    /// The newest durable run.
    pub sequence: u64,
    /// Bytes read from the file since it was opened, except by the opening.
    pub read_bytes: u64,
    /// Bytes written to it since it was opened.
    pub written_bytes: u64,
}

impl PackedFile {
    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Its random number: the same for its life, and another file has another.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What the file was opened for.
    pub fn access(&self) -> Access {
        self.access
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
    pub(super) fn with_nodes<T>(&self, ask: impl FnMut() -> Result<T, Absent>) -> Result<T> {
        self.with_nodes_named(ask).map_err(|failed| failed.1)
    }

    /// The same. An error comes with the node that can't be read.
    pub(super) fn with_nodes_named<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, Absent>,
    ) -> Result<T, Box<(Object, Error)>> {
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(absent) => {
                    self.load(absent).map_err(|error| Box::new((absent.object, error)))?;
                }
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
            return Err(self.refused("it is opened for reading only", Remedy::OpenForWriting));
        }
        let writer = self.writer.lock();
        match &writer.refuses {
            Some(error) => Err(error.clone()),
            None => Ok(writer),
        }
    }

    /// What the file takes. Waits for no batch.
    pub fn usage(&self) -> Usage {
        let map = self.map.read().memory_bytes() as u64;
        let usage = self.totals.lock().usage;
        let count = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        Usage {
            memory_bytes: map + usage.memory_bytes,
            read_bytes: count(&self.traffic.read),
            written_bytes: count(&self.traffic.written),
            ..usage
        }
    }

    /// The segment that is worth most to empty. Waits for no batch.
    pub fn victim(&self) -> Option<Victim> {
        self.totals.lock().victim
    }

    /// Whether another checkpoint is due: enough was written since the last one, or much of the map
    /// has changed. Waits for no batch.
    pub fn wants_checkpoint(&self) -> bool {
        self.totals.lock().wants_checkpoint
    }

    /// Brings the totals up to date, after a change.
    pub(super) fn note_totals(&self, writer: &Writer) {
        let (segments, tails) = (&writer.segments, &writer.chain.tails);
        let map = self.map.read().cost();
        let page_room = self.page_room(writer);
        let mut totals = self.totals.lock();
        totals.usage = Usage {
            file_bytes: self.geometry.offset_of(segments.count()),
            occupied_bytes: segments.occupied_bytes(tails),
            live_bytes: segments.live_units_total() * UNIT as u64,
            memory_bytes: segments.memory_bytes(),
            sequence: writer.chain.synced,
            ..Usage::default()
        };
        totals.victim = segments.victim(tails, writer.chain.sequence);
        totals.wants_checkpoint = is_due(writer, map);
        totals.page_room = page_room;
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
        let is_place = |entry: &Entry| self.geometry.segment_of(entry).is_some();
        let install = |image: &[u8]| self.map.write().install(absent, image, is_place);
        match self.with_image(object, entry, install)? {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(self.corrupt_at(object, &entry, why)),
            // Only the writer gives a node another place; the caller looks again.
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
        let (len, offset) = (entry.len, entry.offset());
        if self.file.len().is_ok_and(|end| end < offset + u64::from(len)) {
            return format!(
                "the file ends before the {len} bytes at offset {offset}: it was cut short"
            );
        }
        format!(
            "the {len} bytes at offset {offset} are not those that run {} wrote there",
            entry.run
        )
    }

    pub(super) fn corrupt(&self, object: Object, why: impl Into<String>) -> Error {
        Error::Corrupt { file: self.name().into(), object, why: why.into() }
    }

    /// The same of bytes that are those that were written, but make no sense.
    pub(super) fn corrupt_at(
        &self,
        object: Object,
        entry: &Entry,
        why: impl std::fmt::Display,
    ) -> Error {
        let (len, offset) = (entry.len, entry.offset());
        self.corrupt(object, format!("{why}, in the {len} bytes at offset {offset}"))
    }

    pub(super) fn damaged(&self, why: impl Into<String>) -> Error {
        self.refused(why, Remedy::Restore)
    }

    pub(super) fn refused(&self, why: impl Into<String>, remedy: Remedy) -> Error {
        Error::File { file: self.name().into(), why: why.into(), remedy }
    }
}

/// Nodes and tables are stored as they are: most of their bytes are checksums, and no rows.
pub(super) fn meta(bytes: &[u8]) -> Stored<'_> {
    Stored { codec: Codec::Raw, seal: Seal::NONE, bytes }
}
