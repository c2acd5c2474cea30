//! A batch becomes images, and each file gets those of its pages as one run.
//!
//! Compressing needs no latch and no file; it comes before any file's writer is held.

use tidepool_store::packed::{self, Image, PackedFile, Prepared, Stream, Threads};

use super::batch::{Copied, slot_range};
use super::{Cause, Flusher};
use crate::background_task::catch_panic;
use crate::error::{Error, Result};
use crate::page::PageSize;
use crate::pool_core::PoolCore;
use crate::replacement::Access;
use crate::space::Space;
use crate::tier::Origin;

impl Flusher {
    /// Writes copies of pages, sorted by file, and syncs the files. Says of each page how that
    /// went: the pages of a file share its fate, except those whose place can't be found.
    pub(super) fn write_packed(
        &self,
        page_size: PageSize,
        buffer: &[u8],
        pages: &[Copied<'_>],
        cause: Cause,
    ) -> Vec<Result<()>> {
        const WRITE: &str = "a write of packed pages";
        let written = catch_panic(WRITE, || {
            let images: Vec<Image> = pages
                .iter()
                .map(|page| {
                    self.core.image_in(
                        &page.space,
                        page.id.no,
                        &buffer[slot_range(page_size, page.slot)],
                    )
                })
                .collect();
            let outcomes = self.append(pages, &images);
            self.note_written(pages, &images, &outcomes, cause);
            outcomes
        });
        written.unwrap_or_else(|| vec![Err(Error::Panicked(WRITE)); pages.len()])
    }

    /// Has the compressed tier keep the images of pages that were written because frames ran short,
    /// for they leave soon, and forget older images of the others.
    fn note_written(
        &self,
        pages: &[Copied<'_>],
        images: &[Image],
        outcomes: &[Result<()>],
        cause: Cause,
    ) {
        let is_kept = cause == Cause::Eviction && self.tier.keeps_images_of(Access::Normal);
        for ((page, image), outcome) in pages.iter().zip(images).zip(outcomes) {
            match outcome {
                Ok(()) if is_kept => {
                    let key = page.space.tier_key(page.id.no);
                    self.tier.keep(key, image.codec, &image.bytes, Origin::Written);
                }
                Ok(()) => {
                    self.tier.note_image(&image.bytes);
                    self.tier.forget(&page.space, page.id.no);
                }
                Err(_) => {}
            }
        }
    }

    /// Writes a page, which is latched exclusively and not dirty, to its file, and syncs it.
    pub(crate) fn write_home(&self, space: &Space, no: u32, bytes: &[u8]) -> Result<()> {
        if space.file().access() == packed::Access::ReadOnly {
            return Ok(());
        }
        // Until the page is written no shutdown comes in between.
        let state = self.state.lock();
        state.check()?;
        self.tier.forget(space, no);
        let image = self.core.image_in(space, no, bytes);
        space.file().write(Stream::Flushed, &[image]).map_err(Error::of_file)
    }

    /// Appends the images of the pages to their files.
    fn append(&self, pages: &[Copied<'_>], images: &[Image]) -> Vec<Result<()>> {
        assert_eq!(pages.len(), images.len(), "each page has its image");
        assert!(
            pages.is_sorted_by(|a, b| a.id < b.id),
            "the pages of a file are together, each once: a file is prepared once at a time"
        );
        // Of each page, the number of its batch, or why it is in none.
        let mut fates: Vec<Result<usize>> = Vec::with_capacity(pages.len());
        let (mut batches, mut rest) = (Vec::new(), images);
        for group in pages.chunk_by(|a, b| a.id.space == b.id.space) {
            let (images, behind) = rest.split_at(group.len());
            rest = behind;
            let (of_pages, batch) = prepare_findable(&self.core, group, images);
            assert_eq!(of_pages.len(), group.len(), "each page has its fate");
            fates.extend(of_pages.into_iter().map(|fate| fate.map(|()| batches.len())));
            batches.extend(batch);
        }
        let threads = match self.core.background.runs() {
            true => Threads::SideBySide,
            false => Threads::Caller,
        };
        let written = packed::write_all(&*self.core.storage, batches, threads);
        let outcome = |batch: usize| written[batch].clone().map_err(Error::of_file);
        fates.into_iter().map(|fate| fate.and_then(outcome)).collect()
    }
}

/// A batch for one file, of those of its pages whose place the map says; and why the others are not
/// in it. A part of the map that can't be read costs the pages below it alone.
fn prepare_findable<'a>(
    core: &PoolCore,
    group: &'a [Copied<'a>],
    images: &[Image],
) -> (Vec<Result<()>>, Option<Prepared<'a>>) {
    let error = match prepare(core, group, images) {
        Ok(batch) => return (vec![Ok(()); group.len()], Some(batch)),
        Err(error) => error,
    };
    let file = group[0].space.file();
    let find = |page: &Copied<'_>| match file.find(page.id.space, page.id.no) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::of_lost_place(page.id, error)),
    };
    let mut fates: Vec<Result<()>> = group.iter().map(find).collect();
    let findable = images.iter().zip(&fates).filter(|(_, fate)| fate.is_ok());
    let findable: Vec<Image> = findable.map(|(image, _)| image.clone()).collect();
    let prepared = match findable.len() {
        0 => return (fates, None),
        // It was for another reason.
        all if all == images.len() => Err(error),
        _ => prepare(core, group, &findable),
    };
    match prepared {
        Ok(batch) => (fates, Some(batch)),
        Err(error) => {
            let error = Error::of_file(error);
            let rest = fates.iter_mut().filter(|fate| fate.is_ok());
            rest.for_each(|fate| *fate = Err(error.clone()));
            (fates, None)
        }
    }
}

/// A batch for one file. On a full disk, room is made in the file itself, or by the ballast.
fn prepare<'a>(
    core: &PoolCore,
    group: &'a [Copied<'a>],
    images: &[Image],
) -> packed::Result<Prepared<'a>> {
    let file = group[0].space.file();
    let prepare = || file.prepare(Stream::Flushed, images);
    match prepare() {
        Err(packed::Error::Storage(error)) if error.is_no_space() => {
            core.with_ballast(|| make_room(file).and_then(|()| prepare()))
        }
        prepared => prepared,
    }
}

/// A checkpoint frees the segments that held runs since the last one; and the emptiest of the
/// others is emptied, which takes another checkpoint to count. One that can't be emptied is no
/// reason to do without the ballast.
fn make_room(file: &PackedFile) -> packed::Result<()> {
    file.checkpoint()?;
    while let Some(victim) = file.victim() {
        match file.clean(victim) {
            Ok(cleaned) if cleaned.stuck.is_some() => {}
            Ok(_) => return file.checkpoint(),
            Err(_) => break,
        }
    }
    Ok(())
}
