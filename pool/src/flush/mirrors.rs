//! Second copies of the pages of a batch.
//!
//! A page goes to its mirror behind its own file: while the one copy is being overwritten, the
//! other is durable and whole.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Flusher;
use super::batch::{Copied, slot_range};
use crate::background_task::catch_panic;
use crate::error::{Error, Result};
use crate::mirror::Mirror;
use crate::page::{self, PageSize};
use crate::storage::IoOp;

const WRITE: &str = "a write of second copies";
const SYNC: &str = "a sync of a mirror";

impl Flusher {
    /// Writes those of the copies that were written to their files, and have a place in a mirror,
    /// to that too, and syncs the mirrors. `results` say of each page how its own write went, and
    /// afterwards, how both did.
    ///
    /// # Errors
    /// A mirror could not be synced: what it holds is not known any more.
    pub(super) fn write_mirrors(
        &self,
        page_size: PageSize,
        buffer: &[u8],
        pages: &[Copied<'_>],
        results: &mut [Result<()>],
    ) -> Result<()> {
        let written = |at: &usize| results[*at].is_ok();
        let (mut mirrored, mut ops) = (Vec::new(), Vec::new());
        for at in (0..pages.len()).filter(written) {
            let page = &pages[at];
            let place = page.space.mirror().and_then(|mirror| mirror.place_of(page.id.no));
            let Some((file, offset)) = place else { continue };
            debug_assert!(page::verify(&buffer[slot_range(page_size, page.slot)], page.id).is_ok());
            mirrored.push(at);
            ops.push(IoOp::write(file, &buffer[slot_range(page_size, page.slot)], offset));
        }
        if ops.is_empty() {
            return Ok(());
        }
        let ran = catch_panic(WRITE, || {
            self.core.storage.run_batch(&mut ops);
            if ops.iter().any(is_refused_by_full_disk) && self.core.release_ballast() {
                self.core.storage.run_batch(&mut ops);
            }
        });
        let ran = ran.is_some();
        let mut mirrors: BTreeMap<u32, &Mirror> = BTreeMap::new();
        for (&at, op) in mirrored.iter().zip(ops) {
            match op.result {
                Ok(()) if ran => {
                    mirrors
                        .insert(pages[at].id.space, pages[at].space.mirror().expect("it has one"));
                }
                Ok(()) => results[at] = Err(Error::Panicked(WRITE)),
                Err(error) => results[at] = Err(error.into()),
            }
        }
        assert!(mirrored.len() <= pages.len(), "a page has one second copy");
        let mut outcome = Ok(());
        for (space, mirror) in mirrors {
            // After a panic it is not known whether the file was synced, and a second sync might
            // lie.
            let synced = catch_panic(SYNC, || mirror.file().sync_data().map_err(Error::from));
            let synced = synced.unwrap_or(Err(Error::Panicked(SYNC)));
            for &at in mirrored.iter().filter(|at| pages[**at].id.space == space) {
                match &synced {
                    Ok(()) if results[at].is_ok() => mirror.note_durable(pages[at].lsn),
                    Err(error) if results[at].is_ok() => results[at] = Err(error.clone()),
                    _ => {}
                }
            }
            outcome = outcome.and(synced);
        }
        let written = mirrored.iter().filter(|at| results[**at].is_ok()).count() as u64;
        self.core.counters.mirror_pages_written.fetch_add(written, Ordering::Relaxed);
        outcome
    }
}

fn is_refused_by_full_disk(op: &IoOp<'_>) -> bool {
    op.result.as_ref().is_err_and(|error| error.is_no_space())
}
