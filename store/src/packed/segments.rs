//! Which segments of a file are in use, by how much, and which one is filled next.
//!
//! A segment is *empty* when the map leads to no image in it. An empty one is *idle*, and may be
//! filled again, unless a run since the last checkpoint lies in it: a start after a crash follows
//! the chain of runs through it. The newest root's own images count as in use until a newer root is
//! durable. One in which a write failed is not idle either.
//!
//! All that is asked often is kept up to date: no question walks the segments.

use std::collections::{BTreeSet, VecDeque};

use super::entry::Entry;
use super::geometry::{Geometry, SMALL_SEGMENTS, UNIT};
use super::root::Tail;
use super::run::STREAMS;
use super::victims::{Victim, Victims};

/// Segments of a part of the table as it is stored.
const PART_SEGMENTS: usize = 4096;
/// Units in use, newest run.
const ROW_BYTES: usize = 8;

/// Segments at most that are known to refuse writes. If a whole device refuses them for a while,
/// most segments are none the worse for it.
const REFUSING_MAX: usize = 8;

/// Bytes that a segment takes in memory: its row, and its place among idle ones or victims.
const SEGMENT_BYTES: u64 = size_of::<Row>() as u64 + 32;

/// The table of segments and the map do not fit together.
pub type Miscounted = &'static str;

const NO_SEGMENT: Miscounted = "an image lies in no segment of the file";
const TOO_FEW: Miscounted = "less of a segment is in use than the map says";
const TOO_MANY: Miscounted = "more of a segment is in use than it has";

/// The table of segments.
#[derive(Debug)]
pub struct Segments {
    geometry: Geometry,
    rows: Vec<Row>,
    /// Neither images nor runs since the last checkpoint, and no write to them failed.
    idle: BTreeSet<u32>,
    /// How many of them are small.
    idle_small: u32,
    /// Segments with runs since the last checkpoint.
    pinned: BTreeSet<u32>,
    /// Segments that the cleaner has gone through since the last checkpoint. What it left goes with
    /// the checkpoint.
    cleaned: BTreeSet<u32>,
    /// Segments with an image in use that the cleaner could not move. It passes over them as long
    /// as they hold any.
    stuck: BTreeSet<u32>,
    /// Segments in which a write failed, the newest last. Nothing is written to them, until the
    /// file is opened again.
    refusing: VecDeque<u32>,
    /// Those with images that are neither pinned, nor cleaned, nor stuck.
    victims: Victims,
    /// Units of images in use in all of them.
    live: u64,
    /// Segments with images.
    in_use: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Units of images in use.
    live: u32,
    /// The newest run in the segment.
    newest: u64,
}

/// What a checkpoint changes, to be taken back if its root does not become durable.
#[derive(Debug, Default)]
pub struct Trial {
    removed: Vec<Entry>,
    added: Vec<Entry>,
    pinned: BTreeSet<u32>,
    cleaned: BTreeSet<u32>,
    /// The newest run that each segment had which has runs of the checkpoint.
    newest: Vec<(u32, u64)>,
}

impl Segments {
    /// `count` segments without an image.
    pub fn new(geometry: Geometry, count: u32) -> Segments {
        Segments {
            geometry,
            rows: vec![Row::default(); count as usize],
            idle: (0..count).collect(),
            idle_small: count.min(SMALL_SEGMENTS),
            pinned: BTreeSet::new(),
            cleaned: BTreeSet::new(),
            stuck: BTreeSet::new(),
            refusing: VecDeque::new(),
            victims: Victims::default(),
            live: 0,
            in_use: 0,
        }
    }

    pub fn count(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Adds segments without an image until there are `count`.
    pub fn grow(&mut self, count: u32) {
        for segment in self.count()..count {
            self.set_idle(segment, true);
        }
        let count = self.rows.len().max(count as usize);
        self.rows.resize(count, Row::default());
    }

    /// Forgets the segments behind the first `count`, which have no images.
    pub fn shrink(&mut self, count: u32) {
        assert!(self.rows[count as usize..].iter().all(|row| row.live == 0), "no image is cut off");
        assert!(
            self.pinned.range(count..).next().is_none(),
            "no run that a start follows is cut off"
        );
        for segment in count..self.count() {
            self.set_idle(segment, false);
        }
        self.rows.truncate(count as usize);
        self.cleaned.split_off(&count);
        self.refusing.retain(|segment| *segment < count);
        self.check();
    }

    /// An image in use more.
    pub fn add(&mut self, entry: &Entry) -> Result<(), Miscounted> {
        let segment = self.segment_of(entry)?;
        let live = self.rows[segment as usize].live + entry.units();
        if live > self.units_of(segment) {
            return Err(TOO_MANY);
        }
        self.set_live(segment, live);
        Ok(())
    }

    /// An image in use less.
    pub fn remove(&mut self, entry: &Entry) -> Result<(), Miscounted> {
        let segment = self.segment_of(entry)?;
        let live = self.rows[segment as usize].live.checked_sub(entry.units()).ok_or(TOO_FEW)?;
        self.set_live(segment, live);
        Ok(())
    }

    fn segment_of(&self, entry: &Entry) -> Result<u32, Miscounted> {
        let segment = self.geometry.segment_of(entry);
        segment.filter(|segment| *segment < self.count()).ok_or(NO_SEGMENT)
    }

    fn units_of(&self, segment: u32) -> u32 {
        (self.geometry.bytes_of(segment) / UNIT as u64) as u32
    }

    fn set_live(&mut self, segment: u32, live: u32) {
        debug_assert!(live <= self.units_of(segment), "a segment holds no more than it has");
        let row = self.rows[segment as usize];
        let class =
            |live_units| (live_units > 0).then(|| self.victim_with(segment, live_units).class());
        let is_same = class(row.live) == class(live);
        if !is_same {
            self.forget_victim(segment);
        }
        self.live = self.live - u64::from(row.live) + u64::from(live);
        self.in_use = self.in_use + u32::from(live > 0) - u32::from(row.live > 0);
        self.rows[segment as usize].live = live;
        if live == 0 {
            self.stuck.remove(&segment);
        }
        if !is_same {
            self.place(segment);
        }
    }

    /// Puts a segment where its row and the sets say that it belongs.
    fn place(&mut self, segment: u32) {
        let row = self.rows[segment as usize];
        let is_pinned = self.pinned.contains(&segment);
        self.set_idle(segment, row.live == 0 && !is_pinned && !self.refuses(segment));
        let is_passed_over = self.cleaned.contains(&segment) || self.stuck.contains(&segment);
        if row.live > 0 && !is_pinned && !is_passed_over {
            self.victims.insert(self.victim_of(segment), row.newest);
        }
    }

    fn forget_victim(&mut self, segment: u32) {
        self.victims.remove(self.victim_of(segment), self.rows[segment as usize].newest);
    }

    fn victim_of(&self, segment: u32) -> Victim {
        self.victim_with(segment, self.rows[segment as usize].live)
    }

    fn victim_with(&self, segment: u32, live_units: u32) -> Victim {
        Victim { segment, live_units, units: self.units_of(segment), age: 0 }
    }

    fn set_idle(&mut self, segment: u32, is_idle: bool) {
        let changed = match is_idle {
            true => self.idle.insert(segment),
            false => self.idle.remove(&segment),
        };
        match changed && segment < SMALL_SEGMENTS {
            true if is_idle => self.idle_small += 1,
            true => self.idle_small -= 1,
            false => {}
        }
        debug_assert!(self.idle_small as usize <= self.idle.len(), "small ones are among the idle");
    }

    /// Notes that `run`, written since the last checkpoint, lies in the segment.
    pub fn pin(&mut self, segment: u32, run: u64) {
        assert!(run >= self.rows[segment as usize].newest, "later runs have greater numbers");
        self.forget_victim(segment);
        self.pinned.insert(segment);
        self.set_newest(segment, run);
    }

    /// Sets the newest run in a segment; returns the one before.
    fn set_newest(&mut self, segment: u32, run: u64) -> u64 {
        self.forget_victim(segment);
        let before = std::mem::replace(&mut self.rows[segment as usize].newest, run);
        self.place(segment);
        before
    }

    /// Notes that the cleaner has gone through the segment.
    pub fn note_cleaned(&mut self, segment: u32) {
        debug_assert!(!self.is_pinned(segment), "a start may follow the runs in a pinned segment");
        self.forget_victim(segment);
        self.cleaned.insert(segment);
    }

    /// The cleaner has not gone through the segment after all.
    pub fn forget_cleaned(&mut self, segment: u32) {
        if self.cleaned.remove(&segment) | self.stuck.remove(&segment) {
            self.place(segment);
        }
    }

    /// Notes that the cleaner could not move all that is in use in the segment. Returns whether
    /// that is news.
    pub fn note_stuck(&mut self, segment: u32) -> bool {
        self.forget_victim(segment);
        self.live_units(segment) > 0 && self.stuck.insert(segment)
    }

    /// Notes that a write to the segment failed.
    pub fn note_refusing(&mut self, segment: u32) {
        if self.refuses(segment) {
            return;
        }
        self.refusing.push_back(segment);
        self.place(segment);
        if self.refusing.len() > REFUSING_MAX {
            let oldest = self.refusing.pop_front().expect("it has several");
            self.place(oldest);
        }
        self.check();
    }

    /// Whether a write to the segment failed.
    pub fn refuses(&self, segment: u32) -> bool {
        self.refusing.contains(&segment)
    }

    /// Whether runs since the last checkpoint lie in the segment.
    pub fn is_pinned(&self, segment: u32) -> bool {
        self.pinned.contains(&segment)
    }

    /// What the segments hold when a checkpoint is durable: `added` images are in use then,
    /// `removed` ones are not, and no start follows the chain of runs through the segments that
    /// were pinned. `runs` are those of the checkpoint, with their segments. [`Segments::undo`]
    /// takes this back if the checkpoint does not become durable.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn try_checkpoint(
        &mut self,
        removed: Vec<Entry>,
        added: Vec<Entry>,
        runs: impl Iterator<Item = (u32, u64)>,
    ) -> Result<Trial, Miscounted> {
        let mut trial = Trial::default();
        for entry in removed {
            match self.remove(&entry) {
                Ok(()) => trial.removed.push(entry),
                Err(why) => {
                    self.undo(trial);
                    return Err(why);
                }
            }
        }
        for entry in added {
            match self.add(&entry) {
                Ok(()) => trial.added.push(entry),
                Err(why) => {
                    self.undo(trial);
                    return Err(why);
                }
            }
        }
        self.check();
        trial.pinned = std::mem::take(&mut self.pinned);
        trial.cleaned = std::mem::take(&mut self.cleaned);
        trial.pinned.union(&trial.cleaned).for_each(|segment| self.place(*segment));
        for (segment, run) in runs {
            let before = self.set_newest(segment, run);
            assert!(run > before, "later runs have greater numbers");
            trial.newest.push((segment, before));
        }
        Ok(trial)
    }

    /// Takes back what [`Segments::try_checkpoint`] has changed.
    pub fn undo(&mut self, trial: Trial) {
        for (segment, before) in trial.newest.into_iter().rev() {
            self.set_newest(segment, before);
        }
        let again = "it was counted when the checkpoint began";
        trial.added.iter().for_each(|entry| self.remove(entry).expect(again));
        trial.removed.iter().for_each(|entry| self.add(entry).expect(again));
        for segment in trial.pinned.union(&trial.cleaned) {
            self.forget_victim(*segment);
        }
        self.pinned.extend(&trial.pinned);
        self.cleaned.extend(&trial.cleaned);
        trial.pinned.union(&trial.cleaned).for_each(|segment| self.place(*segment));
        self.check();
    }

    /// In a debug build: what is kept up to date is what the rows say.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let live: u64 = self.rows.iter().map(|row| u64::from(row.live)).sum();
        assert_eq!(live, self.live, "the units in use are those of all segments");
        let in_use = self.rows.iter().filter(|row| row.live > 0).count();
        assert_eq!(in_use, self.in_use as usize, "the segments in use are counted");
        let idle_small = self.idle.range(..SMALL_SEGMENTS).count();
        assert_eq!(idle_small, self.idle_small as usize, "the small idle segments are counted");
        for (segment, row) in (0..).zip(&self.rows) {
            let is_idle =
                row.live == 0 && !self.pinned.contains(&segment) && !self.refuses(segment);
            assert_eq!(is_idle, self.idle.contains(&segment), "whether segment {segment} is idle");
        }
    }

    /// A segment that a stream can go on in: the first idle one that no stream has and that is not
    /// in `batch`, whose runs are not published; else one behind the end of the file.
    pub fn choose(&self, tails: &[Tail; STREAMS], batch: &[u32]) -> u32 {
        let is_taken = |segment: &u32| {
            let is_ahead = |tail: &Tail| tail.next == *segment || tail.after == *segment;
            tails.iter().any(is_ahead) || is_filled(tails, *segment) || batch.contains(segment)
        };
        let mut choices = self.idle.iter().copied().chain(self.count()..);
        let choice =
            choices.find(|segment| !is_taken(segment)).expect("streams and a batch take few");
        self.check_choice(choice);
        choice
    }

    /// An idle segment for a run that no chain leads to, if there is one: also one that a stream
    /// means to go on in.
    pub fn choose_any(&self, tails: &[Tail; STREAMS], batch: &[u32]) -> Option<u32> {
        let mut idle = self.idle.iter().copied();
        let choice = idle.find(|segment| !is_filled(tails, *segment) && !batch.contains(segment));
        choice.inspect(|segment| self.check_choice(*segment))
    }

    /// Nothing is written over that a start needs.
    pub fn check_choice(&self, segment: u32) {
        let live = self.rows.get(segment as usize).map_or(0, |row| row.live);
        assert_eq!(live, 0, "segment {segment} has images in use, so none is written over them");
        assert!(!self.is_pinned(segment), "a start may follow the runs in segment {segment}");
    }

    /// Blocks that new runs surely find in idle segments that no stream fills and that are not in
    /// `batch`.
    pub fn room(&self, tails: &[Tail; STREAMS], batch: &[u32]) -> u64 {
        let (small, large) = (self.idle_small, self.idle.len() as u32 - self.idle_small);
        let room = u64::from(small) * self.geometry.sure_blocks_of(0)
            + u64::from(large) * self.geometry.sure_blocks_of(SMALL_SEGMENTS);
        let mut taken: Vec<u32> = tails.iter().filter_map(|tail| tail.segment).collect();
        taken.extend(batch);
        taken.sort_unstable();
        taken.dedup();
        let taken = taken.iter().filter(|segment| self.idle.contains(segment));
        let taken = taken.map(|segment| self.geometry.sure_blocks_of(*segment)).sum::<u64>();
        assert!(taken <= room, "the taken segments are among the idle ones");
        room - taken
    }

    /// Blocks that new runs surely find in the segment that the first stream fills.
    pub fn room_ahead(&self, tails: &[Tail; STREAMS]) -> u64 {
        let left = |segment| self.geometry.blocks_of(segment) - tails[0].filled;
        tails[0].segment.map_or(0, |segment| self.geometry.sure_blocks_in(left(segment)))
    }

    /// The length in segments that the file can be cut to, so that there is still room for `keep`
    /// blocks.
    pub fn needed(&self, tails: &[Tail; STREAMS], keep: u64) -> u32 {
        let (mut room, mut needed) = (self.room(tails, &[]), self.count());
        while needed > 0
            && self.idle.contains(&(needed - 1))
            && !is_filled(tails, needed - 1)
            && room.saturating_sub(self.geometry.sure_blocks_of(needed - 1)) >= keep
        {
            needed -= 1;
            debug_assert_eq!(self.live_units(needed), 0, "an idle segment has no image");
            room = room.saturating_sub(self.geometry.sure_blocks_of(needed));
        }
        needed
    }

    /// The length in segments that the file has at least, by the table and the streams.
    pub fn used(&self, tails: &[Tail; STREAMS]) -> u32 {
        let is_used =
            |segment: &u32| self.rows[*segment as usize].live > 0 || is_filled(tails, *segment);
        (0..self.count()).rev().find(is_used).map_or(0, |segment| segment + 1)
    }

    /// How many segments have images in use.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Bytes that the table takes in memory, at most.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.count()) * SEGMENT_BYTES
    }

    /// Units in use in a segment.
    pub fn live_units(&self, segment: u32) -> u32 {
        self.rows[segment as usize].live
    }

    /// Units in use in all of them.
    pub fn live_units_total(&self) -> u64 {
        self.live
    }

    /// Bytes of all segments that are not idle, and of those that streams fill.
    pub fn occupied_bytes(&self, tails: &[Tail; STREAMS]) -> u64 {
        let idle_large = self.idle.len() as u64 - u64::from(self.idle_small);
        let idle = u64::from(self.idle_small) * self.geometry.bytes_of(0)
            + idle_large * self.geometry.bytes_of(SMALL_SEGMENTS);
        let filled = tails.iter().filter_map(|tail| tail.segment);
        let filled = filled.filter(|segment| self.idle.contains(segment));
        self.geometry.offset_of(self.count()) - self.geometry.offset_of(0) - idle
            + filled.map(|segment| self.geometry.bytes_of(segment)).sum::<u64>()
    }

    /// The segment that is worth most to empty; `run` is the newest run. Segments that are empty,
    /// pinned, filled by a stream, stuck or cleaned since the last checkpoint are none.
    pub fn victim(&self, tails: &[Tail; STREAMS], run: u64) -> Option<Victim> {
        self.victims.best(|segment, newest| {
            let age = run.saturating_sub(newest);
            (!is_filled(tails, segment)).then(|| Victim { age, ..self.victim_of(segment) })
        })
    }

    /// The last segment with images, if it can be emptied and idle segments before it have room for
    /// these and for what the streams go on in. Walks the segments from the end.
    pub fn last_victim(&self, tails: &[Tail; STREAMS]) -> Option<Victim> {
        let last = (0..self.count()).rev().find(|segment| self.live_units(*segment) > 0)?;
        let is_kept = is_filled(tails, last)
            || [&self.pinned, &self.cleaned, &self.stuck].iter().any(|set| set.contains(&last));
        let before = self.idle.range(..last).filter(|segment| !is_filled(tails, **segment));
        // Each stream has chosen two.
        let spare = before.skip(2 * STREAMS).map(|segment| u64::from(self.units_of(*segment)));
        let has_room = spare.sum::<u64>() > 2 * u64::from(self.live_units(last));
        (!is_kept && has_room).then(|| self.victim_of(last))
    }

    /// The table, in parts.
    pub fn encode(&self) -> impl Iterator<Item = Vec<u8>> {
        let row = |row: &Row| [row.live.to_le_bytes(), (row.newest as u32).to_le_bytes()];
        self.rows
            .chunks(PART_SEGMENTS)
            .map(move |rows| rows.iter().flat_map(row).flatten().collect())
    }

    /// Bytes of the parts of a table of `count` segments.
    pub fn part_lens(count: u32) -> impl Iterator<Item = usize> {
        let starts = (0..count as usize).step_by(PART_SEGMENTS);
        starts.map(move |start| (count as usize - start).min(PART_SEGMENTS) * ROW_BYTES)
    }

    /// Takes the rows of part number `part` as they were stored when `run` was the newest run.
    pub fn set_part(&mut self, part: u32, bytes: &[u8], run: u64) -> Result<(), Miscounted> {
        let (rows, rest) = bytes.as_chunks::<ROW_BYTES>();
        let start = part as usize * PART_SEGMENTS;
        let len = self.rows.len().saturating_sub(start).min(PART_SEGMENTS);
        if rows.len() != len || !rest.is_empty() {
            return Err("the table of segments has another length than the file");
        }
        for (segment, row) in (start as u32..).zip(rows) {
            let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"));
            if word(0) > self.units_of(segment) {
                return Err(TOO_MANY);
            }
            // The low bits of a number that is not above `run`.
            let age = (run as u32).wrapping_sub(word(4));
            self.rows[segment as usize].newest = run.saturating_sub(u64::from(age));
            self.set_live(segment, word(0));
        }
        Ok(())
    }
}

/// Whether a stream fills the segment.
pub fn is_filled(tails: &[Tail; STREAMS], segment: u32) -> bool {
    tails.iter().any(|tail| tail.segment == Some(segment))
}
