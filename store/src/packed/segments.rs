//! Which segments of a file are in use, by how much, and which one is filled next.
//!
//! A segment is *empty* when no durable root and no run since leads to an image in it. It may be
//! filled again then, unless a run since the last checkpoint lies in it: a start after a crash
//! follows the chain of runs through it.

use std::collections::BTreeSet;

use super::entry::Entry;
use super::geometry::Geometry;
use super::root::Tail;
use super::run::STREAMS;

/// Segments of a part of the table as it is stored.
const PART_SEGMENTS: usize = 4096;
/// Units in use, newest run.
const ROW_BYTES: usize = 8;

/// The table of segments.
#[derive(Clone, Debug)]
pub struct Segments {
    geometry: Geometry,
    /// Units of images in use, by segment.
    live: Vec<u32>,
    /// The newest run in the segment: the low 32 bits of its number.
    newest: Vec<u32>,
    empty: BTreeSet<u32>,
    /// Segments with runs since the last checkpoint.
    pinned: BTreeSet<u32>,
    /// Segments that the cleaner has gone through since the last checkpoint. What it left goes with
    /// the checkpoint.
    cleaned: BTreeSet<u32>,
}

impl Segments {
    /// `count` segments without an image.
    pub fn new(geometry: Geometry, count: u32) -> Segments {
        Segments {
            geometry,
            live: vec![0; count as usize],
            newest: vec![0; count as usize],
            empty: (0..count).collect(),
            pinned: BTreeSet::new(),
            cleaned: BTreeSet::new(),
        }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.live.len() as u32
    }

    /// Adds segments without an image until there are `count`.
    pub fn grow(&mut self, count: u32) {
        self.empty.extend(self.count()..count);
        let count = self.live.len().max(count as usize);
        self.live.resize(count, 0);
        self.newest.resize(count, 0);
    }

    /// Forgets the segments behind the first `count`, which are empty.
    pub fn shrink(&mut self, count: u32) {
        assert!(self.live[count as usize..].iter().all(|live| *live == 0), "no image is cut off");
        self.live.truncate(count as usize);
        self.newest.truncate(count as usize);
        self.empty.split_off(&count);
        self.pinned.split_off(&count);
        self.cleaned.split_off(&count);
    }

    /// An image in use more.
    pub fn add(&mut self, entry: &Entry) {
        let segment = self.geometry.segment_at(entry.offset());
        self.live[segment as usize] += entry.units();
        self.empty.remove(&segment);
    }

    /// An image in use less.
    pub fn remove(&mut self, entry: &Entry) {
        let segment = self.geometry.segment_at(entry.offset());
        let live = &mut self.live[segment as usize];
        *live = live.checked_sub(entry.units()).expect("an image in use is counted");
        if *live == 0 {
            self.empty.insert(segment);
        }
    }

    /// Notes that `run`, written since the last checkpoint, lies in the segment.
    pub fn pin(&mut self, segment: u32, run: u64) {
        self.pinned.insert(segment);
        self.newest[segment as usize] = run as u32;
    }

    /// Notes that the cleaner has gone through the segment.
    pub fn note_cleaned(&mut self, segment: u32) {
        self.cleaned.insert(segment);
    }

    /// A checkpoint is durable: no start follows the chain of runs through these segments any more.
    pub fn unpin(&mut self) {
        self.pinned.clear();
        self.cleaned.clear();
    }

    /// The segment that a stream should go on in when its own is full: the first empty one that no
    /// stream has and that is not in `batch`, whose runs are not published; else one behind the end
    /// of the file.
    pub fn choose(&self, tails: &[Tail; STREAMS], batch: &[u32]) -> u32 {
        let is_taken = |segment: &u32| {
            let is_next = tails.iter().any(|tail| tail.next == *segment);
            is_next || is_filled(tails, *segment) || batch.contains(segment)
        };
        let mut free = self.empty.iter().copied().filter(|at| !self.pinned.contains(at));
        free.find(|segment| !is_taken(segment)).unwrap_or_else(|| {
            (self.count()..)
                .find(|segment| !is_taken(segment))
                .expect("streams and a batch take few")
        })
    }

    /// The length in segments that the file can be cut to.
    pub fn needed(&self, tails: &[Tail; STREAMS]) -> u32 {
        let used = (0..self.count()).rev().find(|segment| {
            self.live[*segment as usize] > 0
                || self.pinned.contains(segment)
                || is_filled(tails, *segment)
        });
        used.map_or(0, |segment| segment + 1)
    }

    /// How many segments have images in use.
    pub fn in_use(&self) -> u32 {
        self.count() - self.empty.len() as u32
    }

    /// Units in use in a segment.
    pub fn live_units(&self, segment: u32) -> u32 {
        self.live[segment as usize]
    }

    /// Units in use in all of them.
    pub fn live_units_total(&self) -> u64 {
        self.live.iter().map(|units| u64::from(*units)).sum()
    }

    /// Bytes of all segments that are not empty, and of those that streams fill.
    pub fn occupied_bytes(&self, tails: &[Tail; STREAMS]) -> u64 {
        let occupied = |segment: &u32| {
            !self.empty.contains(segment)
                || self.pinned.contains(segment)
                || is_filled(tails, *segment)
        };
        (0..self.count()).filter(occupied).map(|segment| self.geometry.bytes_of(segment)).sum()
    }

    /// The segment that is worth most to empty: it gives much room for what is written, and has not
    /// been filled lately, so images in it that were to die soon have done so. (Rosenblum and
    /// Ousterhout's measure: room × age / work. On recorded page writes the cleaner writes a third
    /// less than by room alone.) `run` is the newest run. Segments that are empty, pinned, filled
    /// by a stream or cleaned since the last checkpoint are none.
    pub fn victim(&self, tails: &[Tail; STREAMS], run: u64) -> Option<Victim> {
        let candidates = (0..self.count()).filter(|segment| {
            self.live[*segment as usize] > 0
                && !self.pinned.contains(segment)
                && !self.cleaned.contains(segment)
                && !is_filled(tails, *segment)
        });
        let victim = |segment: u32| Victim {
            segment,
            live_units: self.live[segment as usize],
            units: (self.geometry.bytes_of(segment) / super::geometry::UNIT as u64) as u32,
        };
        let worth = |victim: &Victim| {
            let age = (run as u32).wrapping_sub(self.newest[victim.segment as usize]);
            (1.0 - victim.share()) * f64::from(age) / (1.0 + victim.share())
        };
        candidates.map(victim).max_by(|a, b| worth(a).total_cmp(&worth(b)))
    }

    /// The table, in parts.
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let rows: Vec<[u32; 2]> =
            self.live.iter().zip(&self.newest).map(|(live, newest)| [*live, *newest]).collect();
        let part = |rows: &[[u32; 2]]| {
            rows.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        rows.chunks(PART_SEGMENTS).map(part).collect()
    }

    /// Bytes of the parts of a table of `count` segments.
    pub fn part_lens(count: u32) -> impl Iterator<Item = usize> {
        let starts = (0..count as usize).step_by(PART_SEGMENTS);
        starts.map(move |start| (count as usize - start).min(PART_SEGMENTS) * ROW_BYTES)
    }

    /// Takes the rows of part number `part` as they were stored.
    pub fn set_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), &'static str> {
        let (rows, rest) = bytes.as_chunks::<ROW_BYTES>();
        let start = part as usize * PART_SEGMENTS;
        if start + rows.len() > self.live.len() || !rest.is_empty() {
            return Err("the table of segments has another length than the file");
        }
        for (segment, row) in (start as u32..).zip(rows) {
            let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"));
            self.newest[segment as usize] = word(4);
            let live = &mut self.live[segment as usize];
            *live = word(0);
            if u64::from(*live) * super::geometry::UNIT as u64 > self.geometry.bytes_of(segment) {
                return Err("more of a segment is in use than it has");
            }
            match *live {
                0 => self.empty.insert(segment),
                _ => self.empty.remove(&segment),
            };
        }
        Ok(())
    }
}

/// Whether a stream fills the segment.
pub fn is_filled(tails: &[Tail; STREAMS], segment: u32) -> bool {
    tails.iter().any(|tail| tail.segment == Some(segment))
}

/// A segment to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The segment.
    pub segment: u32,
    /// Units of it in use: what is to be moved.
    pub live_units: u32,
    /// Units that it has.
    pub units: u32,
}

impl Victim {
    /// Which share of the segment is in use.
    pub fn share(&self) -> f64 {
        f64::from(self.live_units) / f64::from(self.units)
    }
}
