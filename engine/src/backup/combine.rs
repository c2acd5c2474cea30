//! A complete backup of a complete one and the incremental ones that were made since.
//!
//! # How
//! The files are those of the newest backup. A page's image is taken from the newest backup that
//! has one, and from none if the newest says that the page has no image any more. The log is that
//! of the newest backup: it is all that recovery needs, since each page has at least the changes
//! that were before its checkpoint.
//!
//! What comes out is a backup like any other: it can be opened, and it can be the base of the next
//! incremental one, as which it counts as the newest of those that it was made of.
//!
//! # An end before the end
//! As for a backup, the mark "unfinished" comes first and goes last.

use std::sync::Arc;

use tidepool_pool::PageSize;
use tidepool_pool::packed::{Image, PackedFile, Since};
use tidepool_pool::storage::Storage;

use super::manifest::{FileRow, Manifest};
use super::{MAP_NODES, PIECE, copy_file, mark_and_lock, refuse_unless_empty, write_images};
use crate::error::{Error, Remedy, Result};
use crate::files::{INCREMENT_MARK, MANIFEST_FILE, TABLES_DIR, UNFINISHED_MARK, space_file_name};
use crate::hot_list::HOT_LIST_FILE;
use crate::page_files::{PageFiles, file_error};
use crate::redo::REDO_DIR;

/// What was made of backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CombineReport {
    /// Number of files with pages.
    pub files: usize,
    /// Bytes of images.
    pub copied_bytes: u64,
}

/// One of the backups.
struct Part {
    storage: Arc<dyn Storage>,
    manifest: Manifest,
    page_files: PageFiles,
}

/// A file of one of the backups.
struct Layer {
    file: PackedFile,
    /// The images from the next page on that were read, the next one last.
    ahead: Vec<Image>,
    /// Where to read on; `None`: there is no more.
    next: Option<u32>,
}

/// Makes a complete backup in `target`, an empty directory, of `parts`: a complete backup first,
/// then the incremental ones in the order in which they were made, each with the one before as its
/// base. `go_on` gets the bytes copied so far; if it says false, that is [`Error::Interrupted`].
///
/// # Errors
/// [`Error::Format`] names the backup that does not follow the one before, or what else is wrong
/// with one. Nothing but the mark, the lock and empty directories is left in `target` then.
pub fn combine_backups(
    parts: &[Arc<dyn Storage>],
    target: Arc<dyn Storage>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<CombineReport> {
    combine(parts, target, go_on).map_err(|error| match error {
        // What is damaged are backups, not the data.
        Error::Corrupt { .. } | Error::Lost { .. } => error.with_remedies(Remedy::UseAnotherBackup),
        error => error,
    })
}

fn combine(
    parts: &[Arc<dyn Storage>],
    target: Arc<dyn Storage>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<CombineReport> {
    let parts: Vec<Part> = parts.iter().map(Part::open).collect::<Result<_>>()?;
    check_chain(&parts)?;
    refuse_unless_empty(&*target)?;
    let _lock = mark_and_lock(&*target)?;
    let mut combination = Combination { parts, target, made: Vec::new(), go_on, copied_bytes: 0 };
    let outcome = combination.make();
    if outcome.is_err() {
        // If the last step failed, the mark may be gone already.
        let _ = combination.target.create(UNFINISHED_MARK);
        for name in &combination.made {
            let _ = combination.target.remove_if_there(name);
        }
    }
    outcome
}

impl Part {
    fn open(storage: &Arc<dyn Storage>) -> Result<Part> {
        if storage.exists(UNFINISHED_MARK)? {
            return Err(Error::format(
                UNFINISHED_MARK,
                "this backup was interrupted, or is still being made",
                Remedy::WaitOrUseAnotherBackup,
            ));
        }
        let manifest = Manifest::read(&**storage)?;
        let page_size = PageSize::new(manifest.page_size as usize);
        let page_size = page_size.ok_or_else(|| {
            let why = format!("pages of {} bytes are impossible", manifest.page_size);
            Error::format(MANIFEST_FILE, why, Remedy::UseAnotherBackup)
        })?;
        let page_files = PageFiles::to_read(&**storage, page_size, manifest.instance);
        Ok(Part { storage: storage.clone(), manifest, page_files })
    }

    /// The file of a space, if this backup has it.
    fn layer(&self, row: &FileRow) -> Result<Option<(Layer, bool)>> {
        let Some(own) = self.manifest.row_of(row.space, row.file) else { return Ok(None) };
        let file = self.page_files.open_to_read(&*self.storage, row.space)?;
        Ok(Some((Layer { file, ahead: Vec::new(), next: Some(0) }, own.since == 0)))
    }
}

/// An error unless each is an increment of the one before, and the first is complete.
fn check_chain(parts: &[Part]) -> Result<()> {
    let mut before: Option<&Manifest> = None;
    for (at, Part { manifest, .. }) in parts.iter().enumerate() {
        let why = match before {
            None if manifest.base.is_some() => "is incremental, and the first",
            Some(_) if manifest.base.is_none() => "is complete, and not the first",
            Some(before) if manifest.base != Some(before.id) => {
                "was not made since the one before it in the list"
            }
            Some(before)
                if (manifest.instance, manifest.page_size)
                    != (before.instance, before.page_size) =>
            {
                "is of another data directory"
            }
            _ => {
                before = Some(manifest);
                continue;
            }
        };
        let why = format!("backup {} {why}", at + 1);
        return Err(Error::format(MANIFEST_FILE, why, Remedy::NameAllBackups));
    }
    match before {
        Some(_) => Ok(()),
        None => Err(Error::InvalidOption("no backup was named".into())),
    }
}

struct Combination<'a> {
    parts: Vec<Part>,
    target: Arc<dyn Storage>,
    /// Names of the files made, in case it fails.
    made: Vec<String>,
    go_on: &'a mut dyn FnMut(u64) -> bool,
    copied_bytes: u64,
}

impl Combination<'_> {
    fn make(&mut self) -> Result<CombineReport> {
        let newest = self.parts.last().expect("the chain was checked");
        let (newest, storage) = (newest.manifest.clone(), newest.storage.clone());
        self.target.create_dir(TABLES_DIR)?;
        self.target.create_dir(REDO_DIR)?;
        for row in &newest.files {
            self.combine_file(row)?;
        }
        let log = storage.list(REDO_DIR)?;
        for name in log.iter().map(|name| format!("{REDO_DIR}/{name}")) {
            self.copy(&*storage, &name)?;
        }
        if storage.exists(HOT_LIST_FILE)? {
            self.copy(&*storage, HOT_LIST_FILE)?;
        }
        let whole = |row: &FileRow| FileRow { since: 0, stretches: Vec::new(), ..*row };
        let files: Vec<FileRow> = newest.files.iter().map(whole).collect();
        let report = CombineReport { files: files.len(), copied_bytes: self.copied_bytes };
        self.made.push(MANIFEST_FILE.into());
        Manifest { base: None, files, ..newest }.write(&*self.target)?;
        for dir in [TABLES_DIR, REDO_DIR, ""] {
            self.target.sync_dir(dir)?;
        }
        debug_assert!(!self.target.exists(INCREMENT_MARK)?);
        self.target.remove(UNFINISHED_MARK)?;
        self.target.sync_dir("")?;
        Ok(report)
    }

    /// Makes the file of a space, of the backups' from the newest back to one that has all images.
    fn combine_file(&mut self, row: &FileRow) -> Result<()> {
        let name = space_file_name(row.space);
        let mut layers = Vec::new();
        let mut is_whole = false;
        for part in self.parts.iter().rev() {
            let Some((layer, ends)) = part.layer(row)? else { break };
            layers.push(layer);
            is_whole = ends;
            if is_whole {
                break;
            }
        }
        if !is_whole {
            let why = "an incremental backup has a part of this file, and no earlier one the rest";
            return Err(Error::format(name, why, Remedy::NameAllBackups));
        }
        self.made.push(name.clone());
        let page_files = &self.parts[0].page_files;
        let key = layers[0].file.file_key();
        let target = self.target.create(&name)?;
        let target = page_files.make_for_images(row.space, target, key)?;
        let (mut images, mut bytes) = (Vec::new(), 0);
        let mut stretches = row.stretches.iter().copied().peekable();
        while let Some(no) = next_page(&mut layers, row.space)? {
            let image = take_page(&mut layers, no);
            if row.since > 0 {
                while stretches.next_if(|&(first, count)| first + count <= no).is_some() {}
                // The newest backup does not have the page any more.
                if stretches.peek().is_none_or(|&(first, _)| no < first) {
                    continue;
                }
            }
            bytes += image.bytes.len();
            images.push(image);
            if bytes >= PIECE {
                self.write(&target, &mut images)?;
                bytes = 0;
            }
        }
        self.write(&target, &mut images)?;
        target.checkpoint().map_err(file_error)
    }

    fn write(&mut self, target: &PackedFile, images: &mut Vec<Image>) -> Result<()> {
        write_images(target, images)?;
        self.copied_bytes += images.iter().map(|image| image.bytes.len() as u64).sum::<u64>();
        images.clear();
        match (self.go_on)(self.copied_bytes) {
            true => Ok(()),
            false => Err(Error::Interrupted),
        }
    }

    /// Copies a file as it is.
    fn copy(&mut self, from: &dyn Storage, name: &str) -> Result<()> {
        self.made.push(name.into());
        copy_file(from, &*self.target, name)
    }
}

/// The lowest page that a layer has next.
fn next_page(layers: &mut [Layer], space: u32) -> Result<Option<u32>> {
    let mut lowest = None;
    for layer in layers {
        let next = layer.peek(space)?;
        lowest = [lowest, next].into_iter().flatten().min();
    }
    Ok(lowest)
}

/// The image of the page that the newest layer has; every layer goes on behind it.
fn take_page(layers: &mut [Layer], no: u32) -> Image {
    let has = |layer: &&mut Layer| layer.ahead.last().is_some_and(|image| image.no == no);
    let images: Vec<Image> =
        layers.iter_mut().filter(has).filter_map(|layer| layer.ahead.pop()).collect();
    images.into_iter().next().expect("a layer has the page")
}

impl Layer {
    fn peek(&mut self, space: u32) -> Result<Option<u32>> {
        while self.ahead.is_empty()
            && let Some(from) = self.next
        {
            let since = Since { run: 0, bytes_max: PIECE };
            let mut piece = self.file.images_since(space, from, since).map_err(file_error)?;
            if let Some((_, error)) = piece.spoilt.pop() {
                return Err(file_error(error));
            }
            piece.images.reverse();
            (self.ahead, self.next) = (piece.images, piece.next);
            self.file.trim_map(MAP_NODES);
        }
        Ok(self.ahead.last().map(|image| image.no))
    }
}
