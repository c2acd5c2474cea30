//! Every page of every file, as it is on the disk: checksum, address, LSN.

use std::sync::Arc;

use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{Access, PageId, Space, packed, page};

use super::{DamagedPage, FileReport, InspectProgress, Inspection, Opened, ProgressFn, Report};
use crate::error::{Error, Remedy, Result};
use crate::files::{
    ORPHANS_DIR, SYSTEM_SPACE, TABLES_DIR, UNDO_SPACE, space_file_name, space_of_file,
};
use crate::format::space_header::SpaceHeader;
use crate::page_files::{self, Found, PageFiles, Source};
use crate::redo::contradiction;

/// How many damaged pages of a file are listed; the others are counted.
pub const DAMAGED_PAGES_MAX: usize = 10_000;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Why a file can't be opened and what is wrong with it, without what to do.
fn all_wrong(found: &Found) -> Vec<String> {
    let refusal = found.refusal.as_ref().map(Error::what);
    refusal.into_iter().chain(found.wrong.iter().cloned()).collect()
}

/// The error for a page that can't be read from its file.
fn page_error(id: PageId, error: packed::Error) -> Error {
    match error {
        packed::Error::Key { file, why } => Error::Key { file: Some(file), what: why },
        error => Error::corrupt(space_file_name(id.space), id.no, page_files::why(error)),
    }
}

/// What a file's pages are held to.
struct Expected {
    /// Pages of the space; those behind are of no use yet.
    size_pages: u64,
}

impl Inspection {
    /// The spaces that have a file, and names in `tables/` that are none of a space.
    pub(super) fn spaces_on_disk(&self) -> Result<(Vec<u32>, Vec<String>)> {
        let mut spaces = Vec::new();
        for id in [SYSTEM_SPACE, UNDO_SPACE] {
            if self.base.exists(&space_file_name(id))? {
                spaces.push(id);
            }
        }
        let mut others = Vec::new();
        if self.base.exists(TABLES_DIR)? {
            for name in self.base.list(TABLES_DIR)? {
                match space_of_file(&name) {
                    Some(id) => spaces.push(id),
                    None => others.push(name),
                }
            }
        }
        Ok((spaces, others))
    }

    /// Bytes of all files that hold pages.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let (spaces, _) = self.spaces_on_disk()?;
        spaces.iter().try_fold(0, |sum, id| {
            Ok(sum + self.base.open(&space_file_name(*id)).and_then(|file| file.len())?)
        })
    }

    pub(super) fn check_files(&self, report: &mut Report, progress: ProgressFn<'_>) -> Result<()> {
        let (spaces, others) = self.spaces_on_disk()?;
        for id in [SYSTEM_SPACE, UNDO_SPACE] {
            if !spaces.contains(&id) && self.db.is_err() {
                let name = space_file_name(id);
                let error = Error::lost(name, "missing", Remedy::PutBack);
                report.problems.push(error.to_string());
            }
        }
        let tables = self.db.as_ref().map(|db| db.catalog().tables()).unwrap_or_default();
        let mut total_bytes = self.file_bytes()?;
        if self.db.is_ok() {
            total_bytes *= 2;
        }
        let mut done_bytes = 0;
        for id in spaces {
            let name = space_file_name(id);
            let mut note_bytes = |bytes| {
                let done_bytes = done_bytes + bytes;
                progress(InspectProgress { what: &name, done_bytes, total_bytes });
            };
            let mut file = self.check_file(id, &mut note_bytes)?;
            done_bytes += file.bytes;
            let table = tables.iter().find(|(_, record)| record.space == id);
            file.table = table.map(|(name, _)| name.clone());
            if table.is_none() && id > UNDO_SPACE && self.sound_db().is_some() {
                report.notes.push(format!(
                    "{name}: no table has this file. It is the rest of an unfinished CREATE or DROP, which the next \
                     start removes; or system.tpd is an older copy, and the next start sets the file aside"
                ));
            }
            if file.encrypted_pages > 0 {
                report.lacks_key = true;
                report.notes.push(format!(
                    "{name}: {} pages are encrypted, and their key was not given: their checksums \
                     are right, and what is in them was not looked at",
                    file.encrypted_pages
                ));
            }
            report.files.push(file);
        }
        for name in others {
            let aside = format!("{TABLES_DIR}/{name}");
            if name != ORPHANS_DIR {
                report.notes.push(format!("{aside}: not the name of a table's file"));
                continue;
            }
            for name in self.base.list(&aside)? {
                report.notes.push(format!("{aside}/{name}: set aside at an earlier start"));
            }
        }
        Ok(())
    }

    /// Reads a file from its beginning to its end. `note_bytes` is called with the bytes read so
    /// far.
    fn check_file(&self, id: u32, note_bytes: &mut dyn FnMut(u64)) -> Result<FileReport> {
        let name = space_file_name(id);
        let mut report = FileReport { file: name.clone(), space: id, ..FileReport::default() };
        let page_size = self.page_size().bytes();
        let file = match self.files_on_disk().rescue_to_read(&*self.base, id) {
            Ok(Found { file, refusal, wrong }) => {
                // Pages whose key can't be had are counted.
                let refusal = refusal.filter(|error| !matches!(error, Error::Key { .. }));
                report.problems.extend(refusal.map(|error| error.to_string()));
                report.problems.extend(wrong);
                file
            }
            Err(error) => {
                report.problems.push(error.to_string());
                return Ok(report);
            }
        };
        let expected = self.check_header(id, &mut report);
        let len = file.io_file().len()?;
        let mut buf = AlignedBuf::zeroed(PIECE.max(page_size));
        let mut next = Some(0);
        while let Some(first) = next {
            let piece =
                page_files::read_piece(&file, (id, first), (self.page_size(), &mut buf[..]));
            for ((no, read), bytes) in piece.pages.into_iter().zip(buf.chunks_exact(page_size)) {
                if let Err(why) = read.and_then(|()| self.verify(bytes, PageId::new(id, no))) {
                    self.note_damage(&mut report, &expected, u64::from(no), why);
                }
                report.pages += u64::from(u64::from(no) < expected.size_pages);
            }
            report.encrypted_pages += piece.encrypted;
            report.bytes += piece.bytes;
            note_bytes(report.bytes);
            next = piece.next;
        }
        report.bytes = len;
        Ok(report)
    }

    /// What the files on the disk have in common, as far as that is known.
    pub(super) fn files_on_disk(&self) -> &PageFiles {
        self.on_disk.get_or_init(|| {
            let instance = match (&self.control, &self.db) {
                (Some(control), _) => control.uuid,
                (None, Ok(db)) => db.inner.env().instance(),
                (None, Err(_)) => [0; 16],
            };
            let keys = self.keys.clone();
            PageFiles { keys, ..PageFiles::to_read(&*self.base, self.page_size(), instance) }
        })
    }

    /// The same of the files as recovery has left them: it knows of newer runs.
    fn recovered_files(&self) -> &PageFiles {
        match &self.db {
            Ok(db) => db.inner.env().page_files(),
            Err(_) => self.files_on_disk(),
        }
    }

    /// What is wrong with a page as it is.
    pub(super) fn verify(&self, bytes: &[u8], id: PageId) -> Result<(), String> {
        page::verify(bytes, id).map_err(|why| why.to_string())?;
        let lost = self.control.as_ref().map_or(&[][..], |control| &control.lost);
        let why = self.log_end().and_then(|end| contradiction(page::page_lsn(bytes), end, lost));
        why.map_or(Ok(()), Err)
    }

    fn note_damage(&self, report: &mut FileReport, expected: &Expected, no: u64, why: String) {
        // What lies behind the space's end has no content yet, and gets one as a whole.
        if no >= expected.size_pages {
            return;
        }
        let mut bytes = AlignedBuf::zeroed(self.page_size().bytes());
        let id = PageId::new(report.space, no as u32);
        let recovered = self.overlay_page(id, &mut bytes);
        let is_whole_now = self.db.is_ok() && recovered.is_ok() && self.verify(&bytes, id).is_ok();
        if is_whole_now && !self.was_clean() {
            report.healed_pages += 1;
            return;
        }
        // A clean shutdown leaves no torn pages: the disk has changed this one.
        let why = match is_whole_now {
            true => format!("{why}; a start restores the page from its mirror"),
            false => why,
        };
        report.damaged_pages += 1;
        if report.damaged.len() < DAMAGED_PAGES_MAX {
            report.damaged.push(DamagedPage { page: no as u32, why });
        }
    }

    /// One more than the highest page that a space's file has.
    pub(super) fn page_count(&self, space: u32) -> Result<u32> {
        let end = self.opened(space)?.source.file().end(space);
        end.map_err(|error| page_error(PageId::new(space, 0), error))
    }

    /// The file of a space as recovery has left it, rescued if it can't be opened.
    fn opened(&self, space: u32) -> Result<Arc<Opened>> {
        if let Some(space) = self.open_space(space) {
            return Ok(Arc::new(Opened { source: Source::Open(space), wrong: Vec::new() }));
        }
        let open = || {
            let found = self.recovered_files().rescue_to_read(&*self.storage, space)?;
            let wrong = all_wrong(&found);
            Ok(Arc::new(Opened { source: Source::Own(Box::new(found.file)), wrong }))
        };
        self.opened.lock().entry(space).or_insert_with(open).clone()
    }

    /// The space, if the engine has it open.
    fn open_space(&self, space: u32) -> Option<Arc<Space>> {
        self.db.as_ref().ok()?.inner.env().pool().space(space)
    }

    /// What is wrong with a file that had to be rescued. Empty: it could be opened.
    pub(super) fn rescue_notes(&self, space: u32) -> Vec<String> {
        let wrong = match self.level.is_read_only() {
            // The engine has rescued it.
            true => {
                let found = self.files_on_disk().rescue_to_read(&*self.base, space);
                found.map(|found| all_wrong(&found))
            }
            false => self.opened(space).map(|opened| opened.wrong.clone()),
        };
        wrong.unwrap_or_default()
    }

    /// A page as recovery has left it.
    pub(super) fn overlay_page(&self, id: PageId, bytes: &mut [u8]) -> Result<()> {
        if let Ok(db) = &self.db
            && self.is_in_pool
            && let Some(space) = self.open_space(id.space)
        {
            let page = db.inner.env().pool().shared(&space, id.no, Access::Normal)?;
            bytes.copy_from_slice(&page);
            if !page::is_zero(bytes) {
                page::stamp_checksum(bytes);
            }
            return Ok(());
        }
        let read = self.opened(id.space)?.source.file().read(id.space, id.no, bytes);
        read.map(drop).map_err(|error| page_error(id, error))
    }

    /// Whether the file is the one that its name says, and how many pages its space has.
    fn check_header(&self, id: u32, report: &mut FileReport) -> Expected {
        let page_size = self.page_size().bytes();
        let mut bytes = AlignedBuf::zeroed(page_size);
        let header = self.overlay_page(PageId::new(id, 0), &mut bytes);
        let header = header.and_then(|()| {
            // A broken one is found with the other pages.
            match page::verify(&bytes, PageId::new(id, 0)).is_ok() && !page::is_zero(&bytes) {
                true => SpaceHeader::parse(&bytes, &report.file).map(Some),
                false => Ok(None),
            }
        });
        let header = match header {
            Ok(Some(header)) => header,
            // Pages whose key can't be had are counted.
            Ok(None) | Err(Error::Key { .. }) => return Expected { size_pages: u64::MAX },
            Err(error) => {
                report.problems.push(error.to_string());
                return Expected { size_pages: u64::MAX };
            }
        };
        if let Some(control) = &self.control
            && let Err(error) = header.check(&report.file, page_size, id, &control.uuid)
        {
            report.problems.push(error.to_string());
        }
        let size_pages = u64::from(header.size_pages);
        Expected { size_pages }
    }
}
