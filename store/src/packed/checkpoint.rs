//! Checkpoints: the map's dirty nodes and the file's tables are written, then a root that leads to
//! them.
//!
//! All of it is placed before any of it is filled, since a node holds the places of its children,
//! and the table of segments counts the node's own images. Until the root is durable, the images
//! that the older root leads to stay as they are.

use super::entry::{Entry, Object};
use super::error::Result;
use super::file::{META_CODEC, PackedFile, Writer};
use super::geometry::{BLOCK, SMALL_SEGMENTS};
use super::map::Stored;
use super::root::Root;
use super::run::{RunKind, Stream};
use super::segments::Segments;
use super::write::{Appender, Spot};
use crate::storage::AlignedBuf;

/// Bytes of runs after which a checkpoint is due, at least.
const INTERVAL_MIN: u64 = 4 << 20;
/// And at most: a start follows the chain of runs since the last one.
const INTERVAL_MAX: u64 = 4 << 30;
/// And as a share of the file: an eighth. The map of the pages is 1/200 of their images, so all of
/// it each time costs 4 %.
const INTERVAL_DIVISOR: u64 = 8;

const MAP_RUN: (RunKind, Stream) = (RunKind::Map, Stream::Flushed);

impl PackedFile {
    /// Whether another checkpoint is due: enough was written since the last one.
    pub fn wants_checkpoint(&self) -> bool {
        let writer = self.writer.lock();
        let occupied = writer.segments.live_units_total() * super::geometry::UNIT as u64;
        let interval = (occupied / INTERVAL_DIVISOR).clamp(INTERVAL_MIN, INTERVAL_MAX);
        writer.since_checkpoint >= interval
    }

    /// Writes the map and a root that leads to it, and cuts empty segments off the end of the file.
    ///
    /// # Errors
    /// The file is as before, and the next checkpoint writes the same.
    pub fn checkpoint(&self) -> Result<()> {
        let mut writer = self.writer_for_change()?;
        if writer.since_checkpoint == 0 {
            return Ok(());
        }
        self.write_map(&mut writer)?;
        self.cut(&mut writer)
    }

    /// Writes the map and a root.
    pub(super) fn write_map(&self, writer: &mut Writer) -> Result<()> {
        // Until the root is durable, the runs of the map do not count.
        writer.must_checkpoint = true;
        let outcome = self.write_dirty(writer);
        match outcome {
            Ok(()) => writer.must_checkpoint = false,
            Err(_) => self.map.write().settle(Stored::Failed),
        }
        outcome
    }

    fn write_dirty(&self, writer: &mut Writer) -> Result<()> {
        let mut map = self.map.write();
        let mut appender = Appender::new(self, writer);
        let nodes = appender.place(writer, MAP_RUN, &map.dirty_lens())?;
        let (tables, count) = place_tables(&mut appender, writer, &map.directory_lens())?;

        // From the leaves up, then the list of spaces, then what the segments hold with all that,
        // then the top.
        let mut spots = nodes.into_iter();
        let mut written = Vec::new();
        map.store(&mut |object, image| {
            let spot = spots.next().expect("as many as `dirty_lens` said");
            let entry = appender.fill(spot, object, (META_CODEC, image));
            written.push(entry);
            entry
        });
        let mut spots = tables.into_iter();
        let mut tables: Vec<(Object, Entry)> = Vec::new();
        for (part, bytes) in (0..).zip(map.directory()) {
            let (object, spot) = (Object::Directory { part }, spots.next().expect("placed"));
            tables.push((object, appender.fill(spot, object, (META_CODEC, &bytes))));
        }
        drop(map);
        written.extend(tables.iter().map(|(_, entry)| *entry));
        written.extend(spots.as_slice().iter().map(|spot| appender.place_of(*spot)));
        let mut segments = self.segments_then(writer, &written);
        appender.pin(&mut segments);
        for (part, bytes) in (0..).zip(segments.encode()) {
            let (object, spot) = (Object::Segments { part }, spots.next().expect("placed"));
            tables.push((object, appender.fill(spot, object, (META_CODEC, &bytes))));
        }
        debug_assert_eq!(segments.count(), count);
        let top = encode_top(count, &tables);
        let spot = spots.next().expect("placed");
        let top = appender.fill(spot, Object::Top, (META_CODEC, &top));
        tables.push((Object::Top, top));
        appender.finish();
        appender.write(writer)?;

        let mut tails = appender.chain.tails;
        for stream in Stream::ALL.map(Stream::index) {
            // What was chosen when the file was longer may lie far behind, and would keep it long.
            let is_left = |segment| {
                segments.live_units(segment) == 0
                    || segment > 2 * segments.in_use() + SMALL_SEGMENTS
            };
            if tails[stream].segment.is_some_and(is_left) {
                (tails[stream].segment, tails[stream].filled) = (None, 0);
            }
            tails[stream].next = u32::MAX;
            tails[stream].next = segments.choose(&tails, &[]);
        }
        let root = Root {
            page_size: self.settings.page_size,
            instance: self.settings.instance,
            space: self.settings.space,
            segments: count,
            file: self.number,
            number: writer.root + 1,
            sequence: appender.chain.sequence,
            previous: appender.chain.checksum,
            top: Some(top),
            tails,
        };
        self.write_root(writer, &root)?;

        // The root is durable.
        appender.chain.tails = tails;
        writer.segments = segments;
        appender.commit(writer);
        writer.segments.unpin();
        self.map.write().settle(Stored::Durable);
        (writer.tables, writer.root) = (tables, root.number);
        writer.since_checkpoint = 0;
        Ok(())
    }

    /// What the segments hold when the root is durable: the images to come, and not those that they
    /// replace.
    fn segments_then(&self, writer: &Writer, written: &[Entry]) -> Segments {
        let mut segments = writer.segments.clone();
        segments.unpin();
        self.map.read().replaced().iter().for_each(|old| segments.remove(old));
        writer.tables.iter().for_each(|(_, old)| segments.remove(old));
        written.iter().for_each(|entry| segments.add(entry));
        segments
    }

    /// Writes both copies of a root, and syncs them.
    pub(super) fn write_root(&self, writer: &mut Writer, root: &Root) -> Result<()> {
        let mut slot = AlignedBuf::zeroed(2 * BLOCK);
        let block = root.encode();
        slot[..BLOCK].copy_from_slice(&block);
        slot[BLOCK..].copy_from_slice(&block);
        self.file.write_at(&slot, Root::slot_offset(root.number))?;
        self.sync(writer)
    }

    /// Cuts segments off the end that nothing needs.
    fn cut(&self, writer: &mut Writer) -> Result<()> {
        let needed = writer.segments.needed(&writer.chain.tails);
        if needed < writer.segments.count() {
            self.file.set_len(self.geometry.offset_of(needed))?;
            writer.segments.shrink(needed);
        }
        Ok(())
    }
}

/// Places for the parts of the tables and the top. The file may grow for them, and the table of
/// segments with it: then they are placed again. Returns the places and how many segments the table
/// is to have.
fn place_tables(
    appender: &mut Appender<'_>,
    writer: &mut Writer,
    directory: &[usize],
) -> Result<(Vec<Spot>, u32)> {
    loop {
        let (before, count) = (appender.mark(), writer.segments.count());
        let mut lens = directory.to_vec();
        lens.extend(Segments::part_lens(count));
        lens.push(TOP_HEADER + lens.len() * TOP_ROW);
        let spots = appender.place(writer, MAP_RUN, &lens)?;
        if writer.segments.count() == count {
            return Ok((spots, count));
        }
        appender.back_to(before);
    }
}

const TOP_HEADER: usize = 8;
const TOP_ROW: usize = 28;

/// Segments, rows; then object and entry of each table's part.
fn encode_top(segments: u32, tables: &[(Object, Entry)]) -> Vec<u8> {
    let mut bytes = segments.to_le_bytes().to_vec();
    bytes.extend((tables.len() as u32).to_le_bytes());
    for (object, entry) in tables {
        bytes.extend(object.encode());
        bytes.extend(Entry::encode(Some(*entry)));
    }
    bytes
}

/// The inverse: how many segments, and the parts of the tables.
pub(super) fn decode_top(bytes: &[u8]) -> Option<(u32, Vec<(Object, Entry)>)> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    };
    let rows = bytes.get(TOP_HEADER..)?.chunks(TOP_ROW).map(|row| {
        let object = Object::decode(row.get(..12)?.try_into().expect("12 bytes"))?;
        let entry = Entry::decode(row.get(12..)?.try_into().ok()?).ok()??;
        Some((object, entry))
    });
    let rows: Vec<(Object, Entry)> = rows.collect::<Option<_>>()?;
    (rows.len() == word(4)? as usize).then_some((word(0)?, rows))
}
