//! The mirrors, as they are on the disk: each page of one is whole, and the same as the page that
//! it is the copy of.
//!
//! After a crash the two may differ, and the last write of either may be torn: the next start makes
//! them the same. After a clean
//! shutdown neither may.

use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{PageId, page};

use super::files::DAMAGED_PAGES_MAX;
use super::{DamagedPage, FileReport, Inspection, Report};
use crate::error::Result;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, mirror_file_name, space_file_name};
use crate::mirror;
use crate::page_files::Found;

/// What a start does about a page of a mirror, and what people are to do.
const ADVICE: &str = "nothing is lost while the page itself is whole, and the next start writes the copy anew; check the disk";

impl Inspection {
    pub(super) fn check_mirrors(&self, report: &mut Report) -> Result<()> {
        for space in [SYSTEM_SPACE, UNDO_SPACE] {
            if !self.base.exists(&space_file_name(space))? {
                continue;
            }
            let name = mirror_file_name(space).expect("it has one");
            match self.base.exists(name)? {
                true => report.files.push(self.check_mirror(space, name)?),
                false => report.notes.push(format!(
                    "{name}: missing, as in a backup: the next start makes it from {}",
                    space_file_name(space)
                )),
            }
        }
        Ok(())
    }

    fn check_mirror(&self, space: u32, name: &str) -> Result<FileReport> {
        let mut report = FileReport { file: name.into(), space, ..FileReport::default() };
        let (page_size, own_name) = (self.page_size(), space_file_name(space));
        // What is wrong with the file itself is found with its pages.
        let Ok(Found { file: own_file, .. }) =
            self.files_on_disk().rescue_to_read(&*self.base, space)
        else {
            return Ok(report);
        };
        let Some(mirror) = mirror::open(&*self.base, page_size, space)? else { return Ok(report) };
        let bytes = page_size.bytes();
        report.bytes = mirror.file().len()?;
        let (mut own, mut copy) = (AlignedBuf::zeroed(bytes), AlignedBuf::zeroed(bytes));
        for no in 0..own_file.end(space).unwrap_or(0) {
            let Some(offset) = mirror.offset_of(no) else { continue };
            let id = PageId::new(space, no);
            let read = own_file.read(space, no, &mut own);
            // What is wrong with the page itself is found with its file.
            if read.is_err() || page::verify(&own, id).is_err() || page::is_zero(&own) {
                continue;
            }
            report.pages += 1;
            let wrong = match mirror.file().read_at(&mut copy, offset) {
                Err(error) => Some(error.to_string()),
                Ok(()) => match page::verify(&copy, id) {
                    Err(defect) => Some(defect.to_string()),
                    Ok(()) if page::is_zero(&copy) => Some("a page of zeroes".into()),
                    Ok(()) if own[..] != copy[..] => Some(format!(
                        "it was written at LSN {}, and the page in {own_name} at LSN {}: one of the two files was replaced by a \
                         copy of another time, or has lost a write",
                        page::page_lsn(&copy),
                        page::page_lsn(&own)
                    )),
                    Ok(()) => None,
                },
            };
            let Some(why) = wrong else { continue };
            if !self.was_clean() {
                report.healed_pages += 1;
                continue;
            }
            report.damaged_pages += 1;
            if report.damaged.len() < DAMAGED_PAGES_MAX {
                let why = format!("{why}: a second copy of page {no} of {own_name}: {ADVICE}");
                report.damaged.push(DamagedPage { page: no, why });
            }
        }
        Ok(report)
    }
}
