//! A file that can't be opened any more, as far as its roots and its runs go.
//!
//! # Where a page is
//! 1. The map, if the newest whole root and its own images are whole, says where pages were when
//!    that root was written. Runs up to then change nothing of that; runs since do.
//! 2. Where a node of the map is spoilt, and where no root is whole, all runs count that are still
//!    in the file. The image of the newest run is the page's, also if it is spoilt by now: an older
//!    one would be another version of the page, and pass for the newest.
//! 3. Of a header that is spoilt, each entry counts whose image is whole. Its checksum covers the
//!    page, the file and the run, so the rest of the header need not be believed.
//!
//! # Which run is newer
//! A run is later than each run that was durable when it was written. Runs of an interrupted life,
//! which never counted, may have the numbers of later ones. Where neither of two runs knows the
//! other to be durable, the greater LSN of their two images of a page decides. Runs that none knows
//! to be durable count only if all their images are whole, as at an open. A page of a run that
//! never counted may come back where nothing later has it: that is newer than what went before it.
//!
//! # Invariants
//! Nothing is written. A page is given only as bytes that were written as this page of this space.
//!
//! Memory: 16 bytes for each page of the space, and 40 for each page that a run names which is not
//! on the map.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::entry::{ENTRY_BYTES, Entry, Object};
use super::super::error::{Error, Result};
use super::super::file::{Access, PackedFile, Settings};
use super::super::geometry::{BLOCK, ROOT_BLOCKS};
use super::super::map::FANOUT;
use super::super::root::{FileKey, Root, Slot, Tail};
use super::super::run::{ENTRIES_MAX, RunHeader, RunKind, STREAMS, has_magic, header_bytes};
use super::{check, newest_root};
use crate::page::page_lsn;
use crate::storage::{AlignedBuf, StorageFile};

const OBJECT_BYTES: usize = 12;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Lost runs that are named; the others are counted.
const NAMED_MAX: usize = 20;

/// A run as its header says.
struct Run {
    sequence: u64,
    synced: u64,
    /// Where the pages of the space are; `None`: free.
    pages: Vec<(u32, Option<Entry>)>,
}

/// What all of the file was read for.
#[derive(Default)]
struct Scan {
    /// By the number of the file that a header says: runs.
    runs: HashMap<u64, Vec<Run>>,
    /// What is left of spoilt headers: entries of pages.
    scraps: Vec<(u32, Entry)>,
    spoilt_headers: u64,
    unreadable_blocks: u64,
    other_spaces: u64,
}

/// Where a page may be.
#[derive(Clone, Copy)]
struct Candidate {
    sequence: u64,
    synced: u64,
    entry: Option<Entry>,
}

/// What the newest whole root leads to.
struct Known {
    file: PackedFile,
    sequence: u64,
    /// Leaves of the map that can't be read.
    lost_leaves: BTreeSet<u32>,
    /// The map itself can't be read.
    is_lost: bool,
}

impl Known {
    /// Whether the map says where the page was, or that it was nowhere.
    fn covers(&self, no: u32) -> bool {
        !self.is_lost && !self.lost_leaves.contains(&(no / FANOUT as u32))
    }
}

impl PackedFile {
    /// A file that [`PackedFile::open`] refuses, with as many of its pages as can be found; and
    /// what is wrong with it, in sentences. Reads all of the file. It is opened for reading only.
    ///
    /// `known` is as for [`PackedFile::open`].
    ///
    /// Where a run is lost, a page that was in it is as an older run has it, or has no image. A
    /// page may come back that was free by then, if only a lost root said so.
    ///
    /// # Errors
    /// [`Error::WrongFile`] if it is of another directory, space, page size or version;
    /// [`Error::File`] if no run of it is left.
    pub fn rescue(
        file: Arc<dyn StorageFile>,
        settings: Settings,
        known: u64,
    ) -> Result<(PackedFile, Vec<String>)> {
        let mut notes = Vec::new();
        let root = match newest_root(&*file) {
            Ok(root) => {
                check(&root, &settings, file.name())?;
                Some(root)
            }
            Err(error) => {
                has_other_version(&*file, error)?;
                notes.push("none of its roots is whole: its pages are found by its runs".into());
                None
            }
        };
        let mut scan = Scan::read(&*file, &settings)?;
        let of_most = scan.runs.iter().max_by_key(|(_, runs)| runs.len()).map(|(file, _)| *file);
        let number = root.as_ref().map(|root| root.file).or(of_most);
        let mut runs = number.and_then(|number| scan.runs.remove(&number)).unwrap_or_default();
        let bare = root.clone().unwrap_or_else(|| bare_root(&settings, number.unwrap_or(0)));
        let rescued = PackedFile::with_root(file.clone(), (settings, Access::ReadOnly), &bare);
        if root.is_none() && runs.is_empty() {
            let why = "none of its roots is whole, and no run of it is left";
            return Err(rescued.damaged(why));
        }
        let mut old = root.map(|root| Known::read(&rescued, &root));
        runs.sort_by_key(|run| run.sequence);
        if let Some(old) = &old {
            // Since before that root, and they never counted.
            runs.retain(|run| run.sequence <= old.sequence || run.synced >= old.sequence);
        }
        rescued.end_at_a_spoilt_run(&mut runs, known, &mut notes);
        let newest = runs.last().map_or(0, |run| run.sequence);
        let newest = newest.max(old.as_ref().map_or(0, |old| old.sequence));
        let mut pages = rescued.pages_of(old.as_mut(), &runs);
        let scraps = rescued.add_scraps(&scan.scraps, (newest, old.as_ref()), &mut pages);
        if let Some(old) = &old {
            note_lost_runs((old.sequence, newest.max(known)), &runs, &mut notes);
            if old.is_lost || !old.lost_leaves.is_empty() {
                notes.push(
                    "a part of its map is damaged: the pages there are found by its runs".into(),
                );
            }
        }
        scan.note(scraps, &mut notes);
        let spoilt = rescued.lead_to(pages);
        if spoilt > 0 {
            notes.push(format!("the images of {spoilt} pages are damaged"));
        }
        Ok((rescued, notes))
    }

    /// The newest runs, of which none knows whether they were durable, are as at an open: the first
    /// with a spoilt image, and what comes after it, does not count.
    fn end_at_a_spoilt_run(&self, runs: &mut Vec<Run>, known: u64, notes: &mut Vec<String>) {
        let durable = runs.iter().map(|run| run.synced).max().unwrap_or(0).max(known);
        let is_whole = |run: &Run| {
            let mut images = run.pages.iter().filter_map(|(no, entry)| Some((*no, (*entry)?)));
            images.all(|(no, entry)| self.lsn_of(no, entry).is_some())
        };
        let unsure = runs.partition_point(|run| run.sequence <= durable);
        let spoilt = runs[unsure..].iter().position(|run| !is_whole(run));
        if let Some(at) = spoilt {
            notes.push(format!(
                "run {}, one of its newest, does not count: a crash interrupted it, or it is damaged",
                runs[unsure + at].sequence
            ));
            runs.truncate(unsure + at);
        }
    }

    /// The newest place of each page.
    fn pages_of(&self, old: Option<&mut Known>, runs: &[Run]) -> BTreeMap<u32, Candidate> {
        let mut pages = BTreeMap::new();
        let since = old.as_ref().map_or(0, |old| old.sequence);
        let mut covers: Box<dyn Fn(u32) -> bool> = Box::new(|_| false);
        if let Some(old) = old {
            old.each_image(&mut |no, entry| {
                let sequence = full_sequence(entry.run, since);
                pages.insert(no, Candidate { sequence, synced: since, entry: Some(entry) });
            });
            covers = Box::new(|no| old.covers(no));
        }
        for run in runs {
            for (no, entry) in &run.pages {
                if run.sequence > since || !covers(*no) {
                    let Run { sequence, synced, .. } = *run;
                    self.add(*no, Candidate { sequence, synced, entry: *entry }, &mut pages);
                }
            }
        }
        pages
    }

    /// Adds what spoilt headers say of images that are whole. Gives how many there were.
    fn add_scraps(
        &self,
        scraps: &[(u32, Entry)],
        (newest, old): (u64, Option<&Known>),
        pages: &mut BTreeMap<u32, Candidate>,
    ) -> u64 {
        let mut whole = 0;
        for (no, entry) in scraps {
            let is_known = pages.get(no).is_some_and(|candidate| candidate.entry == Some(*entry));
            if is_known || self.lsn_of(*no, *entry).is_none() {
                continue;
            }
            // The lost run may be newer than all others.
            let sequence = full_sequence(entry.run, newest + u64::from(u32::MAX / 2));
            if old.is_some_and(|old| sequence <= old.sequence && old.covers(*no)) {
                continue;
            }
            whole += 1;
            self.add(*no, Candidate { sequence, synced: 0, entry: Some(*entry) }, pages);
        }
        whole
    }

    fn add(&self, no: u32, found: Candidate, pages: &mut BTreeMap<u32, Candidate>) {
        let is_later = pages.get(&no).is_none_or(|other| self.is_later(no, &found, other));
        if is_later {
            pages.insert(no, found);
        }
    }

    /// Whether an image of a page is newer than another one.
    fn is_later(&self, no: u32, found: &Candidate, other: &Candidate) -> bool {
        if found.synced >= other.sequence {
            return true;
        }
        if other.synced >= found.sequence {
            return false;
        }
        let lsn = |candidate: &Candidate| self.lsn_of(no, candidate.entry?);
        match (lsn(found), lsn(other)) {
            (Some(found), Some(other)) if found != other => found > other,
            (Some(_), None) if other.entry.is_some() => true,
            (None, Some(_)) if found.entry.is_some() => false,
            _ => found.sequence >= other.sequence,
        }
    }

    /// The LSN of a page in an image, if that is whole; 0 if its key is missing.
    fn lsn_of(&self, no: u32, entry: Entry) -> Option<u64> {
        let object = Object::Page { space: self.settings.space, no };
        self.geometry.segment_of(&entry)?;
        let mut page = vec![0; self.settings.page_size.bytes()];
        let decode = |image: &[u8]| self.decode((object, &entry), image, &mut page);
        match self.with_image(object, entry, decode).ok()?? {
            Ok(()) => Some(page_lsn(&page).0),
            Err(Error::Key { .. }) => Some(0),
            Err(_) => None,
        }
    }

    /// Leads the map to the images. Gives how many of these are spoilt.
    fn lead_to(&self, pages: BTreeMap<u32, Candidate>) -> u64 {
        let (mut map, mut spoilt) = (self.map.write(), 0);
        for (no, candidate) in pages {
            let Some(entry) = candidate.entry else { continue };
            spoilt += u64::from(self.lsn_of(no, entry).is_none());
            map.set(self.settings.space, no, Some(entry)).expect("all nodes are in memory");
        }
        spoilt
    }
}

impl Known {
    /// What the root leads to, as far as that can be read.
    fn read(rescued: &PackedFile, root: &Root) -> Known {
        let file = rescued.file.clone();
        let file = PackedFile::with_root(file, (rescued.settings, Access::ReadOnly), root);
        let is_read = root.top.is_none_or(|top| file.load_spaces(top, root.segments).is_ok());
        Known { file, sequence: root.sequence, lost_leaves: BTreeSet::new(), is_lost: !is_read }
    }

    /// Calls `each` with every image that the map leads to, and notes the leaves that are lost.
    fn each_image(&mut self, each: &mut dyn FnMut(u32, Entry)) {
        let space = self.file.settings.space;
        let mut next = (!self.is_lost).then_some(0);
        while let Some(leaf) = next {
            let first = leaf * FANOUT as u32;
            next = (leaf < u32::MAX / FANOUT as u32).then_some(leaf + 1);
            if self.file.find(space, first).is_err() {
                self.lost_leaves.insert(leaf);
            } else {
                let mut at = Some(first);
                while let Some(from) = at {
                    match self.file.next_image(space, from) {
                        Ok(Some((no, entry))) if no / FANOUT as u32 == leaf => {
                            each(no, entry);
                            at = no.checked_add(1);
                        }
                        Ok(Some((no, _))) => (at, next) = (None, Some(no / FANOUT as u32)),
                        Ok(None) => return,
                        // It is of a leaf behind this one.
                        Err(_) => at = None,
                    }
                }
            }
        }
    }
}

impl PackedFile {
    /// The list of spaces.
    fn load_spaces(&self, top: Entry, segments: u32) -> Result<()> {
        let (parts, _) = self.parts_of(top, segments)?;
        for (object, entry) in parts {
            if let Object::Directory { .. } = object {
                let added = self.map.write().add_directory(&self.table(object, entry)?);
                added.map_err(|why| self.corrupt(object, why))?;
            }
        }
        Ok(())
    }
}

impl Scan {
    /// Reads all blocks behind the roots.
    fn read(file: &dyn StorageFile, settings: &Settings) -> Result<Scan> {
        let mut scan = Scan::default();
        let len = file.len()? / BLOCK as u64 * BLOCK as u64;
        let longest = header_bytes(ENTRIES_MAX).next_multiple_of(BLOCK);
        let mut bytes = AlignedBuf::zeroed(PIECE + longest);
        let mut start = ROOT_BLOCKS * BLOCK as u64;
        while start < len {
            // A header may go on in the next piece.
            let held = (len - start).min((PIECE + longest) as u64) as usize;
            let bytes = &mut bytes[..held];
            if file.read_at(bytes, start).is_err() {
                for (at, block) in (0u64..).zip(bytes.chunks_mut(BLOCK)) {
                    if file.read_at(block, start + at * BLOCK as u64).is_err() {
                        block.fill(0);
                        scan.unreadable_blocks += u64::from(at < (PIECE / BLOCK) as u64);
                    }
                }
            }
            for at in (0..held.min(PIECE)).step_by(BLOCK) {
                scan.look_at(&bytes[at..], settings);
            }
            start += PIECE as u64;
        }
        Ok(scan)
    }

    /// Takes the run whose header begins here, if one does.
    fn look_at(&mut self, bytes: &[u8], settings: &Settings) {
        let page = |object: &Object| match *object {
            Object::Page { space, no } => Some((space, no)),
            _ => None,
        };
        if let Some((header, changes, _)) = RunHeader::decode(bytes) {
            let is_of_pages = header.kind == RunKind::Pages;
            let named = changes.iter().filter_map(|(object, entry)| Some((page(object)?, *entry)));
            let named = named.filter(|_| is_of_pages);
            let mut pages = Vec::new();
            for ((space, no), entry) in named {
                match space == settings.space {
                    true => pages.push((no, entry)),
                    false => self.other_spaces += 1,
                }
            }
            let RunHeader { sequence, synced, .. } = header;
            let run = Run { sequence, synced, pages };
            self.runs.entry(header.file).or_default().push(run);
            return;
        }
        let Some(entries) = RunHeader::entries_of_spoilt(bytes, settings.space) else { return };
        self.spoilt_headers += 1;
        let named = entries.iter().filter_map(|(object, entry)| Some((page(object)?.1, (*entry)?)));
        self.scraps.extend(named);
    }

    fn note(&self, scraps: u64, notes: &mut Vec<String>) {
        if self.spoilt_headers > 0 {
            notes.push(format!(
                "headers of runs are damaged: {}; {scraps} images that they name were found",
                self.spoilt_headers
            ));
        }
        if self.unreadable_blocks > 0 {
            notes.push(format!("{} blocks can't be read", self.unreadable_blocks));
        }
        if self.other_spaces > 0 {
            notes.push(format!(
                "its runs name {} pages of other spaces, which are left out",
                self.other_spaces
            ));
        }
    }
}

impl RunHeader {
    /// What the entries of a spoilt header say, as far as they can be entries. `None` if there was
    /// no header of a run with pages of the space here.
    fn entries_of_spoilt(run: &[u8], space: u32) -> Option<Vec<(Object, Option<Entry>)>> {
        const ENTRY: usize = OBJECT_BYTES + ENTRY_BYTES;
        let (_, rest) = run.split_at_checked(header_bytes(0))?;
        let entry = |bytes: &[u8]| {
            let (object, entry) = bytes.split_at(OBJECT_BYTES);
            let object = Object::decode(object.try_into().expect("12 bytes"))?;
            Some((object, Entry::decode(entry.try_into().expect("16 bytes")).ok()?))
        };
        let is_of_space = |(object, _): &(Object, _)| match object {
            Object::Page { space: of, .. } => *of == space,
            _ => false,
        };
        // Either the magic or the first entry may be what is spoilt.
        let first = rest.get(..ENTRY).and_then(entry);
        if !has_magic(run) && !first.as_ref().is_some_and(is_of_space) {
            return None;
        }
        let rest = &rest[..rest.len().min(ENTRIES_MAX * ENTRY)];
        Some(rest.chunks_exact(ENTRY).filter_map(entry).filter(is_of_space).collect())
    }
}

/// The whole number of a run, of which the low bits are known, and a greater or equal one.
fn full_sequence(low: u32, most: u64) -> u64 {
    let full = most >> 32 << 32 | u64::from(low);
    if full > most { full.saturating_sub(1 << 32) } else { full }
}

/// A root of another version is no damage.
fn has_other_version(file: &dyn StorageFile, error: Error) -> Result<()> {
    let mut block = AlignedBuf::zeroed(BLOCK);
    for at in 0..ROOT_BLOCKS {
        let is_read = file.read_at(&mut block, at * BLOCK as u64).is_ok();
        if is_read && matches!(Root::decode(&block), Slot::OtherVersion(_)) {
            return Err(error);
        }
    }
    Ok(())
}

/// A root that leads nowhere.
fn bare_root(settings: &Settings, file: u64) -> Root {
    Root {
        page_size: settings.page_size,
        instance: settings.instance,
        space: settings.space,
        segments: 0,
        file,
        number: 0,
        sequence: 0,
        previous: 0,
        top: None,
        tails: [Tail { segment: None, filled: 0, next: 0, after: 0 }; STREAMS],
        key: FileKey::default(),
    }
}

fn note_lost_runs((since, newest): (u64, u64), runs: &[Run], notes: &mut Vec<String>) {
    let there: HashSet<u64> = runs.iter().map(|run| run.sequence).collect();
    let lost = (since + 1..=newest).filter(|run| !there.contains(run));
    let named: Vec<String> = lost.clone().take(NAMED_MAX).map(|run| run.to_string()).collect();
    let others = match lost.count().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        others => format!(" and {others} others"),
    };
    if !named.is_empty() {
        notes.push(format!(
            "it has lost run {}{others}: a page that was in it is missing, or older than it should \
             be",
            named.join(", ")
        ));
    }
}
