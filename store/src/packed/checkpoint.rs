//! Checkpoints: the map's dirty nodes and the file's tables are written, then a root that leads to
//! them.
//!
//! All of it is placed before any of it is filled, since a node holds the places of its children,
//! and the table of segments counts the node's own images. Until the root is durable, the images
//! that the older root leads to stay as they are.
//!
//! A root whose write failed may be on the disk all the same, or may come there. So what it leads
//! to stays as well, until a later root is durable: the next attempt goes on behind it. It begins
//! by writing the same root again: if its slot refuses writes for ever, no attempt takes more room.
//! There is no other place for a root: the other slot has the only one that is durable.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::entry::{Entry, Object};
use super::error::Result;
use super::file::{PackedFile, Writer, meta};
use super::geometry::{BLOCK, SMALL_SEGMENTS, UNIT};
use super::map::{Cost, Pending};
use super::reserve::Left;
use super::root::{Root, Tail};
use super::run::{RunKind, STREAMS, Stream};
use super::segments::{Segments, Trial};
use super::top::{self, Rows};
use super::write::{Appender, Spot};
use super::write_all::written;
use crate::storage::AlignedBuf;

/// Bytes of runs after which a checkpoint is due, at least.
const INTERVAL_MIN: u64 = 4 << 20;
/// And at most: a start follows the chain of runs since the last one.
const INTERVAL_MAX: u64 = 4 << 30;
/// And as a share of the file: an eighth. The map of the pages is 1/200 of their images, so all of
/// it each time costs 4 %.
const INTERVAL_DIVISOR: u64 = 8;
/// Nodes of the map to be written from which a checkpoint is due: they take 128 MiB.
const DIRTY_NODES_MAX: u64 = 8192;

const MAP_RUN: (RunKind, Stream) = (RunKind::Map, Stream::Flushed);

/// Whether a checkpoint is due, if `map` is what it has to write of the map.
pub(super) fn is_due(writer: &Writer, map: Cost) -> bool {
    let live = writer.segments.live_units_total() * UNIT as u64;
    let interval = (live / INTERVAL_DIVISOR).clamp(INTERVAL_MIN, INTERVAL_MAX);
    writer.since_checkpoint >= interval || map.images >= DIRTY_NODES_MAX
}

/// The runs of a checkpoint, all of whose images are in their places.
struct Filled<'a> {
    appender: Appender<'a>,
    pending: Pending,
    tables: Vec<(Object, Entry)>,
    top: Entry,
    /// Segments in the file.
    count: u32,
    /// What the segments hold then.
    trial: Trial,
}

impl PackedFile {
    /// Writes the map and a root that leads to it, and cuts idle segments off the end of the file.
    ///
    /// # Errors
    /// The file is as before, and the next checkpoint writes the same.
    pub fn checkpoint(&self) -> Result<()> {
        let mut writer = self.writer_for_change()?;
        if writer.since_checkpoint == 0 {
            return Ok(());
        }
        let outcome = self.write_map(&mut writer).and_then(|blocks| self.cut(&mut writer, blocks));
        self.note_totals(&writer);
        outcome
    }

    /// Whether the newest checkpoint failed: what it was to say is in memory alone.
    pub fn owes_checkpoint(&self) -> bool {
        self.writer.lock().must_checkpoint
    }

    /// Writes the map and a root. Returns how many blocks that took.
    pub(super) fn write_map(&self, writer: &mut Writer) -> Result<u64> {
        // Until the root is durable, the runs of the map do not count.
        writer.must_checkpoint = true;
        let outcome = self.try_write_map(writer);
        writer.must_checkpoint = outcome.is_err();
        self.note_totals(writer);
        outcome
    }

    fn try_write_map(&self, writer: &mut Writer) -> Result<u64> {
        if let Some(root) = writer.failed_root.clone() {
            // It may count from now on, as it might have before.
            self.write_root(writer, &root)?;
        }
        let filled = self.fill_map(writer)?;
        let blocks = filled.appender.bytes() / BLOCK as u64;
        if let Err(error) = filled.appender.write(writer) {
            writer.segments.undo(filled.trial);
            return Err(error);
        }
        self.write_root_of(writer, filled)?;
        Ok(blocks)
    }

    /// Makes the runs of a checkpoint: from the leaves up, then the list of spaces, then what the
    /// segments hold with all that, then the top.
    fn fill_map(&self, writer: &mut Writer) -> Result<Filled<'_>> {
        let dirty = self.map.read().dirty();
        let mut appender = Appender::new(self, writer, Left::default());
        let lens: Vec<usize> = dirty.iter().map(|node| node.len).filter(|len| *len > 0).collect();
        let nodes = appender.place(writer, MAP_RUN, &lens)?;
        let directory = self.map.read().directory_lens();
        let (tables, count) = place_tables(&mut appender, writer, &directory)?;

        let mut pending = Pending::new();
        for (node, spot) in dirty.iter().filter(|node| node.len > 0).zip(nodes) {
            // Readers may load nodes between one and the next.
            let image = self.map.read().encode(node.object, &pending);
            pending.insert(node.object, appender.fill(spot, node.object, meta(&image)));
        }
        let mut spots = tables.into_iter();
        let mut rows: Rows = Vec::new();
        let parts = self.map.read().directory(&pending);
        for (part, bytes) in (0..).zip(parts) {
            let (object, spot) = (Object::Directory { part }, spots.next().expect("placed"));
            rows.push((object, appender.fill(spot, object, meta(&bytes))));
        }
        let mut removed: Vec<Entry> = dirty.iter().filter_map(|node| node.stored).collect();
        removed.extend(writer.tables.iter().map(|(_, entry)| *entry));
        let mut added: Vec<Entry> = pending.values().copied().collect();
        added.extend(rows.iter().map(|(_, entry)| *entry));
        added.extend(spots.as_slice().iter().map(|spot| appender.place_of(*spot)));
        let trial = writer.segments.try_checkpoint(removed, added, appender.runs());
        let trial = trial.map_err(|why| self.damaged(why))?;
        for (part, bytes) in (0..).zip(writer.segments.encode()) {
            let (object, spot) = (Object::Segments { part }, spots.next().expect("placed"));
            rows.push((object, appender.fill(spot, object, meta(&bytes))));
        }
        assert_eq!(writer.segments.count(), count, "the file grows while places are chosen");
        let mut lists: Rows = Vec::new();
        for (part, list) in (0..).zip(top::lower_lists(&rows)) {
            let (object, spot) = (Object::Tables { part }, spots.next().expect("placed"));
            let image = top::encode_rows(list);
            lists.push((object, appender.fill(spot, object, meta(&image))));
        }
        let image = top::encode(count, if lists.is_empty() { &rows } else { &lists });
        let spot = spots.next().expect("placed");
        let top = appender.fill(spot, Object::Top, meta(&image));
        rows.extend(lists);
        rows.push((Object::Top, top));
        appender.finish();
        Ok(Filled { appender, pending, tables: rows, top, count, trial })
    }

    /// Writes a root that leads to the runs, which are durable.
    fn write_root_of(&self, writer: &mut Writer, filled: Filled<'_>) -> Result<()> {
        let Filled { appender, pending, tables, top, count, trial } = filled;
        let tails = tails_then(&writer.segments, appender.chain.tails);
        let root = Root {
            page_size: self.settings.page_size,
            instance: self.settings.instance,
            space: self.settings.space,
            segments: count,
            file: self.number,
            number: writer.next_root,
            sequence: appender.chain.sequence,
            previous: appender.chain.checksum,
            top: Some(top),
            tails,
            key: self.file_key(),
        };
        // If the root fails, it may be on the disk: nothing is written over what it leads to, nor
        // over the root before it. It may also be lost, and then a start need not find the runs:
        // they do not count as durable.
        let runs: Vec<(u32, u64)> = appender.runs().collect();
        assert_ne!(
            Root::slot_offset(root.number),
            Root::slot_offset(writer.durable_root),
            "a root is not written over the newest durable one"
        );
        writer.next_root += 2;
        appender.commit(writer);
        if let Err(error) = self.write_root(writer, &root) {
            writer.segments.undo(trial);
            runs.into_iter().for_each(|(segment, run)| writer.segments.pin(segment, run));
            writer.failed_root = Some(root);
            return Err(error);
        }
        writer.durable_root = root.number;
        writer.next_root = root.number + 1;
        writer.failed_root = None;
        writer.chain.tails = tails;
        writer.chain.synced = root.sequence;
        writer.tables = tables;
        writer.since_checkpoint = 0;
        self.map.write().settle(&pending);
        Ok(())
    }

    /// Writes both copies of a root, and syncs them.
    pub(super) fn write_root(&self, writer: &mut Writer, root: &Root) -> Result<()> {
        assert!(root.sequence >= writer.chain.synced, "a root leads to all that is durable");
        assert!(
            root.top.is_none_or(|top| self.geometry.segment_of(&top) < Some(root.segments)),
            "the map's top lies in the file"
        );
        let mut slot = AlignedBuf::zeroed(2 * BLOCK);
        let block = root.encode();
        slot[..BLOCK].copy_from_slice(&block);
        slot[BLOCK..].copy_from_slice(&block);
        self.traffic.written.fetch_add(slot.len() as u64, Ordering::Relaxed);
        let offset = Root::slot_offset(root.number);
        written(&*self.file, || self.file.write_at(&slot, offset))?;
        self.sync(writer)
    }

    /// Cuts segments off the end that nothing needs. Room for a checkpoint of `blocks` blocks and
    /// for what was reserved stays.
    fn cut(&self, writer: &mut Writer, blocks: u64) -> Result<()> {
        let checkpoint = self.spare_blocks(writer).max(blocks);
        let promised = self.totals.lock().promised;
        let ahead = writer.segments.room_ahead(&writer.chain.tails);
        let keep = self.cleaner_blocks(writer) + (checkpoint + promised).saturating_sub(ahead);
        let needed = writer.segments.needed(&writer.chain.tails, keep);
        if needed < writer.segments.count() {
            assert!(needed >= writer.segments.used(&writer.chain.tails), "nothing needed is cut");
            self.file.set_len(self.geometry.offset_of(needed))?;
            writer.segments.shrink(needed);
        }
        Ok(())
    }
}

/// Where the streams go on when the root is durable.
fn tails_then(segments: &Segments, mut tails: [Tail; STREAMS]) -> [Tail; STREAMS] {
    // What was chosen when the file was longer may lie far behind, and would keep it long.
    let far = 2 * segments.in_use() + SMALL_SEGMENTS;
    for tail in &mut tails {
        let is_left = |segment| segments.live_units(segment) == 0 || segment > far;
        if tail.segment.is_some_and(is_left) {
            (tail.segment, tail.filled) = (None, 0);
        }
        (tail.next, tail.after) = (u32::MAX, u32::MAX);
    }
    // Pages first: on a full disk, few segments are in the file already.
    for stream in 0..STREAMS {
        tails[stream].next = segments.choose(&tails, &[]);
    }
    for stream in 0..STREAMS {
        tails[stream].after = segments.choose(&tails, &[]);
    }
    debug_assert!(
        tails.iter().flat_map(|tail| [tail.next, tail.after]).collect::<HashSet<u32>>().len()
            == 2 * STREAMS,
        "no two streams go on in the same segment"
    );
    tails
}

/// Places for the parts of the tables, the lists of them, and the top. The file may grow for them,
/// and the table of segments with it: then they are placed again. Returns the places and how many
/// segments the table is to have.
fn place_tables(
    appender: &mut Appender<'_>,
    writer: &mut Writer,
    directory: &[usize],
) -> Result<(Vec<Spot>, u32)> {
    loop {
        let (before, count) = (appender.mark(), writer.segments.count());
        let mut lens = directory.to_vec();
        lens.extend(Segments::part_lens(count));
        lens.extend(top::lens(lens.len()));
        let spots = appender.place(writer, MAP_RUN, &lens)?;
        if writer.segments.count() == count {
            return Ok((spots, count));
        }
        appender.back_to(before);
    }
}
