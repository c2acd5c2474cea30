//! Making a file and opening one: the newest root, the map that it leads to, and the runs since.
//!
//! # Which runs count
//! A run counts if it is the successor of the one before, by number and by the checksum of that
//! one's header, and is at one of the places where its stream goes on. Every run says which one was
//! durable when it was written. Runs up to there are whole. The images of later ones are checked,
//! and the first run with a spoilt one ends the chain: a crash came before its sync.
//!
//! The runs of a checkpoint count only by their root: the chain ends before them. A root that
//! failed may be on the disk all the same, and then the runs of the attempts after it say where
//! streams went on from the root before it: that can contradict the one that is there.
//!
//! A run that did not count stays where it is. A root is written before the next run
//! ([`Writer::must_checkpoint`]), since the two could be mistaken for each other.
//!
//! A chain that ends before a run that was durable is damage, and the open fails: see
//! [`PackedFile::open`].

mod rescue;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::entry::{Entry, Object};
use super::error::{Error, Remedy, Result};
use super::file::{Access, Chain, PackedFile, Settings, Totals, Traffic, Writer};
use super::geometry::{BLOCK, Geometry, ROOT_BLOCKS};
use super::map::Map;
use super::root::{FileKey, Root, Slot, Tail, VERSION_WITH_KEY};
use super::run::{Change, RunHeader, RunKind, Stream, header_bytes};
use super::sealing::Sealing;
use super::segments::Segments;
use super::top::{self, Rows};
use crate::storage::{AlignedBuf, StorageFile};

/// A run as the chain has it.
struct Link {
    segment: u32,
    header: RunHeader,
    changes: Vec<Change>,
    checksum: u32,
}

impl PackedFile {
    /// Makes an empty packed file of `file`, which is empty. Its name is not durable yet.
    pub fn create(file: Arc<dyn StorageFile>, settings: Settings) -> Result<PackedFile> {
        PackedFile::create_behind(file, settings, (0, FileKey::Never))
    }

    /// The same for a file that is to take the place of another, of which run `known` was durable:
    /// its runs have greater numbers, so that it does not count as an older copy of that one. It
    /// says that its images are encrypted with `key`; see [`PackedFile::encrypt_with`].
    pub fn create_behind(
        file: Arc<dyn StorageFile>,
        settings: Settings,
        (known, key): (u64, FileKey),
    ) -> Result<PackedFile> {
        file.set_len(ROOT_BLOCKS * BLOCK as u64)?;
        let tails = std::array::from_fn(|stream| {
            let next = 2 * stream as u32;
            Tail { segment: None, filled: 0, next, after: next + 1 }
        });
        let root = Root {
            page_size: settings.page_size,
            instance: settings.instance,
            space: settings.space,
            segments: 0,
            file: settings.random,
            number: 1,
            sequence: known,
            previous: 0,
            top: None,
            tails,
            key,
        };
        let packed = PackedFile::with_root(file, (settings, Access::ReadWrite), &root);
        packed.write_root(&mut packed.writer.lock(), &root)?;
        Ok(packed)
    }

    /// Whether a file has no more than a crash in the middle of [`PackedFile::create`] leaves: it
    /// is no longer than its roots, and none of these is whole.
    pub fn is_unmade(file: &dyn StorageFile) -> Result<bool> {
        let len = file.len()?;
        let roots = ROOT_BLOCKS * BLOCK as u64;
        Ok(len < roots || len == roots && newest_root(file).is_err())
    }

    /// What a packed file says that it is of, by the newest whole root; `random` is the file's
    /// number.
    ///
    /// # Errors
    /// [`Error::File`] if it is no packed file, or none of its roots is whole.
    pub fn settings_of(file: &dyn StorageFile) -> Result<Settings> {
        let Root { page_size, instance, space, file: random, .. } = newest_root(file)?;
        Ok(Settings { page_size, instance, space, random })
    }

    /// The key that a packed file encrypts its images with, by the newest whole root.
    ///
    /// # Errors
    /// As [`PackedFile::settings_of`].
    pub fn key_of(file: &dyn StorageFile) -> Result<FileKey> {
        Ok(newest_root(file)?.key)
    }

    /// Opens a packed file, as its newest durable run left it. Writes nothing; for
    /// [`Access::ReadWrite`] it syncs the file first, since a process that was killed may have left
    /// bytes that a power cut can still take.
    ///
    /// `known` is a run that the caller knows to have been durable, from
    /// [`super::Usage::sequence`]; 0 if it knows none. So an older copy of the file in its place is
    /// found out, and the loss of runs that no later run of the file bears witness to.
    ///
    /// # Errors
    /// [`Error::WrongFile`] if it is of another directory, space, page size or version.
    /// [`Error::File`] if it is no packed file, an older copy, or has lost a run that was durable.
    /// [`Error::Corrupt`] if a part of the map is spoilt.
    pub fn open(
        file: Arc<dyn StorageFile>,
        settings: Settings,
        access: Access,
        known: u64,
    ) -> Result<PackedFile> {
        if access == Access::ReadWrite {
            file.sync_data()?;
        }
        let root = newest_root(&*file)?;
        check(&root, &settings, file.name())?;
        let mut packed = PackedFile::with_root(file, (settings, access), &root);
        packed.load_tables(&root)?;
        let links = packed.follow_chain(known)?;
        packed.apply(links)?;
        packed.note_totals(&packed.writer.lock());
        let newest = packed.writer.get_mut().chain.sequence;
        if newest < known {
            return Err(packed.damaged(format!(
                "its newest run is {newest}, but run {known} was durable: it is an older copy, or \
                 has lost its end"
            )));
        }
        Ok(packed)
    }

    fn with_root(
        file: Arc<dyn StorageFile>,
        (settings, access): (Settings, Access),
        root: &Root,
    ) -> PackedFile {
        let geometry = Geometry::new(root.page_size);
        let chain = Chain {
            sequence: root.sequence,
            checksum: root.previous,
            synced: root.sequence,
            tails: root.tails,
        };
        let writer = Writer {
            chain,
            segments: Segments::new(geometry, root.segments),
            durable_root: root.number,
            next_root: root.number + 1,
            failed_root: None,
            tables: Vec::new(),
            since_checkpoint: 0,
            must_checkpoint: false,
            refuses: None,
        };
        PackedFile {
            file,
            settings,
            access,
            number: root.file,
            geometry,
            writer: Mutex::new(writer),
            map: RwLock::new(Map::default()),
            totals: Mutex::new(Totals::default()),
            traffic: Traffic::default(),
            sealing: Sealing::of(root.key),
        }
    }

    /// The list of spaces and the table of segments.
    fn load_tables(&self, root: &Root) -> Result<()> {
        let mut writer = self.writer.lock();
        if let Some(entry) = root.top {
            let (parts, mut tables) = self.parts_of(entry, root.segments)?;
            for (object, entry) in &parts {
                let bytes = self.table(*object, *entry)?;
                let taken = match *object {
                    Object::Directory { .. } => self.map.write().add_directory(&bytes),
                    Object::Segments { part } => {
                        writer.segments.set_part(part, &bytes, root.sequence)
                    }
                    _ => Err("it is neither of spaces nor of segments"),
                };
                taken.map_err(|why| self.corrupt_at(*object, entry, why))?;
            }
            tables.extend(parts);
            tables.push((Object::Top, entry));
            writer.tables = tables;
        }
        // The end of the file may have been cut off since, or have grown.
        let has = self.geometry.segments_in(self.file.len()?);
        let used = writer.segments.used(&writer.chain.tails);
        if has < used {
            let why = format!("it is cut short: it has {has} segments of {used}");
            return Err(self.damaged(why));
        }
        if has < writer.segments.count() {
            writer.segments.shrink(has);
        }
        writer.segments.grow(has);
        Ok(())
    }

    /// The parts of both tables, and the lists that the top has instead if they are many.
    fn parts_of(&self, top: Entry, segments: u32) -> Result<(Rows, Rows)> {
        let (count, mut parts) = top::decode(&self.table(Object::Top, top)?)
            .filter(|(count, _)| *count == segments)
            .ok_or_else(|| self.corrupt_at(Object::Top, &top, "its rows do not fit the root"))?;
        let mut lists = Vec::new();
        if matches!(parts.first(), Some((Object::Tables { .. }, _))) {
            lists = std::mem::take(&mut parts);
            for (object, entry) in &lists {
                let rows = top::decode_rows(&self.table(*object, *entry)?);
                parts.extend(
                    rows.ok_or_else(|| self.corrupt_at(*object, entry, "it is no list of parts"))?,
                );
            }
        }
        match top::is_complete(&parts, count) {
            true => Ok((parts, lists)),
            false => {
                let why = "it does not name each part of the tables once";
                Err(self.corrupt_at(Object::Top, &top, why))
            }
        }
    }

    /// The runs since the root that count.
    fn follow_chain(&self, known: u64) -> Result<Vec<Link>> {
        let mut writer = self.writer.lock();
        let (mut chain, mut links) = (writer.chain.clone(), Vec::new());
        let mut is_void_behind = false;
        while let Some(link) = self.successor(&chain)? {
            if link.header.kind == RunKind::Map {
                is_void_behind = true;
                break;
            }
            follow(&mut chain, &link);
            links.push(link);
        }
        let durable = links.iter().map(|link| link.header.synced).max().unwrap_or(0).max(known);
        let unsure = links.iter().position(|link| link.header.sequence > durable);
        for at in unsure.unwrap_or(links.len())..links.len() {
            if !self.is_whole(&links[at])? {
                is_void_behind = true;
                links.truncate(at);
                break;
            }
        }
        let mut end = writer.chain.clone();
        links.iter().for_each(|link| follow(&mut end, link));
        if let Some(later) = self.durable_behind(&end)? {
            let offsets: Vec<String> =
                self.ways_on(&end).map(|(.., offset)| offset.to_string()).collect();
            return Err(self.damaged(format!(
                "it has lost run {}, which was durable when run {later} was written: that begins \
                 at none of the offsets where the file can go on, {}",
                end.sequence + 1,
                offsets.join(", ")
            )));
        }
        writer.must_checkpoint = is_void_behind;
        Ok(links)
    }

    /// The run behind the end of `chain`, if there is one.
    fn successor(&self, chain: &Chain) -> Result<Option<Link>> {
        for (stream, segment, offset) in self.ways_on(chain) {
            let Some((header, changes, checksum)) = self.header_at(segment, offset)? else {
                continue;
            };
            let end = self.geometry.offset_of(segment) + self.geometry.bytes_of(segment);
            let fits = (1..=(end - offset) / BLOCK as u64).contains(&u64::from(header.blocks));
            if header.stream == stream
                && header.file == self.number
                && header.previous == chain.checksum
                && header.sequence == chain.sequence + 1
                && fits
            {
                self.check_places(offset, &header, &changes)?;
                return Ok(Some(Link { segment, header, changes, checksum }));
            }
        }
        Ok(None)
    }

    /// The images of a run lie behind its header and before its end.
    fn check_places(&self, offset: u64, header: &RunHeader, changes: &[Change]) -> Result<()> {
        let from = offset + header_bytes(changes.len()) as u64;
        let to = offset + u64::from(header.blocks) * BLOCK as u64;
        let is_outside =
            |entry: &Entry| entry.offset() < from || entry.offset() + u64::from(entry.len) > to;
        let mut outside =
            changes.iter().filter(|(_, entry)| entry.as_ref().is_some_and(is_outside));
        match outside.next() {
            Some((object, _)) => {
                let why = format!(
                    "the run at offset {offset} that holds its image says that it lies elsewhere"
                );
                Err(self.corrupt(*object, why))
            }
            None => Ok(()),
        }
    }

    /// Where the run behind the end of `chain` can begin: its stream, its segment, and the offset
    /// in the file.
    fn ways_on(&self, chain: &Chain) -> impl Iterator<Item = (Stream, u32, u64)> {
        Stream::ALL.into_iter().flat_map(move |stream| {
            self.places(&chain.tails[stream.index()]).map(move |(segment, block)| {
                let offset = self.geometry.offset_of(segment) + u64::from(block) * BLOCK as u64;
                (stream, segment, offset)
            })
        })
    }

    /// Where a stream can go on: segment and block.
    fn places(&self, tail: &Tail) -> impl Iterator<Item = (u32, u32)> {
        let here = tail.segment.map(|segment| (segment, tail.filled));
        let has_room = |(segment, filled): &(u32, u32)| *filled < self.geometry.blocks_of(*segment);
        here.filter(has_room).into_iter().chain([(tail.next, 0)])
    }

    pub(super) fn header_at(
        &self,
        segment: u32,
        offset: u64,
    ) -> Result<Option<(RunHeader, Vec<Change>, u32)>> {
        let end = self.geometry.offset_of(segment) + self.geometry.bytes_of(segment);
        if self.file.len()? < end {
            return Ok(None);
        }
        let mut block = AlignedBuf::zeroed(BLOCK);
        self.file.read_at(&mut block, offset)?;
        let Some(len) = RunHeader::peek(&block) else { return Ok(None) };
        let len = len.next_multiple_of(BLOCK);
        if len == BLOCK {
            return Ok(RunHeader::decode(&block));
        }
        if offset + len as u64 > end {
            return Ok(None);
        }
        let mut blocks = AlignedBuf::zeroed(len);
        self.file.read_at(&mut blocks, offset)?;
        Ok(RunHeader::decode(&blocks))
    }

    /// Whether all images of a run are as they were written.
    fn is_whole(&self, link: &Link) -> Result<bool> {
        for (object, entry) in &link.changes {
            if let Some(entry) = entry
                && self.with_image(*object, *entry, |_| ())?.is_none()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A run behind the end of the chain that says that the chain's successor was durable. Looked
    /// for where the successor could lie and behind it, where the stream goes on if the successor
    /// filled its segment, and where the runs found so say that their streams go on.
    fn durable_behind(&self, chain: &Chain) -> Result<Option<u64>> {
        let mut places: Vec<(u32, u32)> = Vec::new();
        for tail in &chain.tails {
            places.extend(self.places(tail).chain([(tail.after, 0)]));
        }
        let mut seen: HashSet<u32> = places.iter().map(|(segment, _)| *segment).collect();
        while let Some((segment, block)) = places.pop() {
            for header in self.runs_in(segment, block)? {
                if header.sequence <= chain.sequence {
                    continue;
                }
                if header.synced > chain.sequence {
                    return Ok(Some(header.sequence));
                }
                let ahead = [header.next, header.after].into_iter();
                places.extend(ahead.filter(|next| seen.insert(*next)).map(|next| (next, 0)));
            }
        }
        Ok(None)
    }

    /// The headers of this file's runs in a segment, from a block on.
    fn runs_in(&self, segment: u32, block: u32) -> Result<Vec<RunHeader>> {
        let start = self.geometry.offset_of(segment);
        let (bytes, from) = (self.geometry.bytes_of(segment), block as usize * BLOCK);
        if self.file.len()? < start + bytes {
            return Ok(Vec::new());
        }
        let mut rest = AlignedBuf::zeroed(bytes as usize - from);
        self.file.read_at(&mut rest, start + from as u64)?;
        let blocks = (0..rest.len()).step_by(BLOCK);
        let headers = blocks.filter_map(|at| RunHeader::decode(&rest[at..]));
        Ok(headers.map(|(header, ..)| header).filter(|at| at.file == self.number).collect())
    }

    /// Leads the map to the images of the runs, in order.
    fn apply(&self, links: Vec<Link>) -> Result<()> {
        let mut writer = self.writer.lock();
        for link in links {
            for (object, entry) in &link.changes {
                let Object::Page { space, no } = *object else {
                    let why = format!("it is in run {}, which is of pages", link.header.sequence);
                    return Err(self.corrupt(*object, why));
                };
                if let Some(entry) = entry
                    && entry.run != link.header.sequence as u32
                {
                    let why = format!("run {} says that it is another's", link.header.sequence);
                    return Err(self.corrupt_at(*object, entry, why));
                }
                self.find(space, no)?;
                let old = self.map.write().set(space, no, *entry).expect("found just now");
                let removed = old.iter().try_for_each(|old| writer.segments.remove(old));
                let added = entry.iter().try_for_each(|entry| writer.segments.add(entry));
                removed.and(added).map_err(|why| self.corrupt(*object, why))?;
            }
            follow(&mut writer.chain, &link);
            writer.segments.pin(link.segment, link.header.sequence);
            writer.since_checkpoint += u64::from(link.header.blocks) * BLOCK as u64;
        }
        writer.chain.synced = writer.chain.sequence;
        Ok(())
    }
}

/// Ends the chain behind its next run.
fn follow(chain: &mut Chain, link: &Link) {
    let tail: &mut Tail = &mut chain.tails[link.header.stream.index()];
    if tail.segment != Some(link.segment) {
        (tail.segment, tail.filled) = (Some(link.segment), 0);
    }
    tail.filled += link.header.blocks;
    (tail.next, tail.after) = (link.header.next, link.header.after);
    chain.sequence = link.header.sequence;
    chain.checksum = link.checksum;
}

fn newest_root(file: &dyn StorageFile) -> Result<Root> {
    let damaged =
        |why: String| Err(Error::File { file: file.name().into(), why, remedy: Remedy::Restore });
    if file.len()? < ROOT_BLOCKS * BLOCK as u64 {
        return damaged(format!(
            "it is empty or cut short: it has {} bytes, and its roots take {}",
            file.len()?,
            ROOT_BLOCKS * BLOCK as u64
        ));
    }
    let mut blocks = AlignedBuf::zeroed(ROOT_BLOCKS as usize * BLOCK);
    file.read_at(&mut blocks, 0)?;
    let (mut newest, mut other) = (None::<Root>, None);
    for block in blocks.chunks(BLOCK) {
        match Root::decode(block) {
            Slot::Root(root) => {
                if newest.as_ref().is_none_or(|newest| newest.number < root.number) {
                    newest = Some(*root);
                }
            }
            Slot::OtherVersion(version) => other = Some(version),
            Slot::Nothing => {}
        }
    }
    match (newest, other) {
        (_, Some(version)) => {
            let why = format!(
                "it has format version {version}, but this program reads only versions up to \
                 {VERSION_WITH_KEY}"
            );
            let remedy = Remedy::UseItsVersion;
            Err(Error::WrongFile { file: file.name().into(), why, remedy })
        }
        (Some(root), None) => Ok(root),
        (None, None) => {
            let end = ROOT_BLOCKS * BLOCK as u64;
            damaged(format!("none of its roots is whole: they are the bytes before offset {end}"))
        }
    }
}

fn check(root: &Root, settings: &Settings, file: &str) -> Result<()> {
    let mut remedy = Remedy::Restore;
    let why = if root.instance != settings.instance {
        remedy = Remedy::PutOwnFile;
        "it belongs to another data directory".to_string()
    } else if root.space != settings.space {
        let (is, wanted) = (root.space, settings.space);
        format!("it is of space {is}, expected {wanted}: the file was renamed or copied")
    } else if root.page_size != settings.page_size {
        let (has, wanted) = (root.page_size.bytes(), settings.page_size.bytes());
        format!("it has pages of {has} bytes, the data directory has {wanted}")
    } else if !has_sound_tails(root) {
        "its root says that streams go on where none can".to_string()
    } else {
        return Ok(());
    };
    Err(Error::WrongFile { file: file.into(), why, remedy })
}

/// Whether the streams can go on where a root says. Its checksum is right, so a writer was wrong.
fn has_sound_tails(root: &Root) -> bool {
    let geometry = Geometry::new(root.page_size);
    let are_sound = root.tails.iter().all(|tail| {
        let is_filled_right =
            |segment: u32| segment < root.segments && tail.filled <= geometry.blocks_of(segment);
        tail.segment.is_none_or(is_filled_right)
            && tail.next < geometry.segments_max()
            && tail.after < geometry.segments_max()
    });
    are_sound && root.segments <= geometry.segments_max()
}
