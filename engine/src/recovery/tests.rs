//! Pages that come from the disk with wrong bytes now and then, and pages whose log is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidepool_pool::storage::{Result as StorageResult, SimStorage, StorageFile};
use tidepool_pool::{Access, Lsn, PAGE_HEADER_SIZE, PageId, PageType};

use crate::env::{Env, EnvOptions};
use crate::files::{FIRST_TABLE_SPACE, space_file_name};
use crate::mtr::Mtr;
use crate::options::AcceptLogLoss;
use crate::page_op::PageOp;
use crate::test_storage::{Hooked, Hooks, place_of};

const PAGE_SIZE: usize = 4096;
/// The page whose reads go wrong.
const UNSTEADY: u32 = 1;
/// More log than is applied at a time.
const MORE_THAN_A_BATCH: u64 = 33 << 20;

fn options() -> EnvOptions {
    EnvOptions { page_size: PAGE_SIZE, redo_capacity_bytes: 128 << 20, ..EnvOptions::small() }
}

/// A disk that reads a page of the table wrongly for some time.
struct Unsteady {
    /// Offset of a byte of the page's image.
    wrong: u64,
    wrong_reads: AtomicU32,
}

impl Hooks for Unsteady {
    fn read(&self, file: &dyn StorageFile, buf: &mut [u8], offset: u64) -> StorageResult<()> {
        file.read_at(buf, offset)?;
        let wrong = self.wrong;
        let is_hit = (offset..offset + buf.len() as u64).contains(&wrong);
        let one_less = |left: u32| left.checked_sub(1);
        if is_hit
            && file.name() == space_file_name(FIRST_TABLE_SPACE)
            && self.wrong_reads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        {
            buf[(wrong - offset) as usize] ^= 1;
        }
        Ok(())
    }
}

/// Makes a page of the table anew.
fn format(env: &Arc<Env>, no: u32) {
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    let mut mtr = Mtr::begin(env).unwrap();
    let page = mtr.new_page(&space, no).unwrap();
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
    mtr.commit();
}

/// Writes bytes behind the page's header; gives the LSN of the change.
fn write(env: &Arc<Env>, no: u32, at: usize, bytes: &[u8]) -> Lsn {
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    let mut mtr = Mtr::begin(env).unwrap();
    let page = mtr.exclusive(&space, no).unwrap();
    mtr.apply(page, &PageOp::Write { offset: (PAGE_HEADER_SIZE + at) as u32, bytes });
    mtr.commit()
}

/// A log with two changes of the page, and `log_between` bytes between them. The second may set all
/// of the page.
fn disk_with_two_changes(log_between: u64, is_anew: bool) -> SimStorage {
    let storage = SimStorage::new(1);
    let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(4).unwrap();
    let write = |no, at, bytes: &[u8]| write(&env, no, at, bytes);
    format(&env, UNSTEADY);
    format(&env, UNSTEADY + 1);
    env.checkpoint_all().unwrap();
    write(UNSTEADY, 0, b"first");
    let end = env.redo().next_lsn().0 + log_between;
    while env.redo().next_lsn().0 < end {
        write(UNSTEADY + 1, 0, &[7; 4000]);
    }
    if is_anew {
        format(&env, UNSTEADY);
        write(UNSTEADY, 0, b"first");
    }
    write(UNSTEADY, 10, b"second");
    env.redo().flush().unwrap();
    drop((space, env));
    storage.kill()
}

/// What recovery makes of the page if some reads of it go wrong.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    GivenUp,
    /// Reported to its readers.
    Broken,
}

fn recover(disk: &SimStorage, wrong_reads: u32) -> Outcome {
    let disk = disk.kill();
    let (at, len) = place_of(&disk, PageId::new(FIRST_TABLE_SPACE, UNSTEADY));
    let wrong = at + len as u64 / 2;
    let unsteady = Unsteady { wrong, wrong_reads: AtomicU32::new(wrong_reads) };
    let env = Env::open(Hooked::new(disk, unsteady), &options()).unwrap();
    if env.missing_spaces().contains(&FIRST_TABLE_SPACE) {
        return Outcome::GivenUp;
    }
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    match env.pool().shared(&space, UNSTEADY, Access::Normal) {
        Ok(page) => {
            let found = &page[PAGE_HEADER_SIZE..][..16];
            assert_eq!(found, b"first\0\0\0\0\0second", "changes are lost without a word");
            Outcome::Whole
        }
        Err(tidepool_pool::Error::Corrupt { .. }) => Outcome::Broken,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_page_that_is_read_wrongly_for_a_time_loses_no_change_without_a_word() {
    for log_between in [0, MORE_THAN_A_BATCH] {
        let disk = disk_with_two_changes(log_between, false);
        // When the file is opened, which looks for runs in all of the segment; ahead, once more by
        // itself, when it is wanted, and again at once.
        assert_eq!(recover(&disk, 4), Outcome::Whole);
        assert_eq!(recover(&disk, 5), Outcome::GivenUp);
        assert_eq!(recover(&disk, 6), Outcome::GivenUp);
        assert_eq!(recover(&disk, u32::MAX), Outcome::Broken);
        // What it lacks makes no difference then.
        let disk = disk_with_two_changes(log_between, true);
        for wrong_reads in [5, 6, u32::MAX] {
            assert_eq!(recover(&disk, wrong_reads), Outcome::Whole);
        }
    }
}

/// A change that only the lost part of the log describes is in the page's file. Recovery does not
/// meet the page; once the log is longer than it ever was, the page's LSN could be one of it.
#[test]
fn a_page_whose_changes_are_lost_is_refused_however_long_the_log_becomes() {
    const OTHER: u32 = UNSTEADY + 1;
    let storage = SimStorage::new(1);
    let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(4).unwrap();
    format(&env, UNSTEADY);
    format(&env, OTHER);
    env.checkpoint_all().unwrap();
    let kept = write(&env, OTHER, 0, b"new");
    let lost = write(&env, UNSTEADY, 0, b"new");
    let other = env.pool().exclusive(&space, OTHER, Access::Normal).unwrap();
    assert_eq!(env.pool().flush_up_to(Lsn::MAX, 9).unwrap(), 1);
    drop(other);
    // They say that what was lost had been durable.
    env.redo().flush_regularly().unwrap();
    env.redo().flush_regularly().unwrap();
    drop((space, env));
    let mut disk = storage.kill();
    disk.corrupt("redo/redo.00000001", kept.0 + 10, 1);
    assert!(Env::open(Arc::new(disk.clone()), &options()).is_err());
    disk = disk.kill();

    let accepts = EnvOptions { accept_log_loss: AcceptLogLoss::Yes, ..options() };
    for life in 0..4 {
        let options = if life == 0 { &accepts } else { &options() };
        let env = Env::open(Arc::new(disk.clone()), options).unwrap();
        assert_eq!(env.missing_spaces().len(), 0, "recovery does not meet the page");
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        let read = |no| env.pool().shared(&space, no, Access::Normal).map(drop);
        for _ in 0..2 {
            let why = read(UNSTEADY).unwrap_err().to_string();
            assert!(why.contains(&format!("at LSN {lost}, in redo log that is lost")), "{why}");
            read(OTHER).unwrap();
            while env.redo().next_lsn().0 < lost.0 + (life + 1) * 50_000 {
                write(&env, OTHER, 0, b"new");
            }
        }
        if life == 1 {
            env.checkpoint_all().unwrap();
        }
        env.redo().flush().unwrap();
        drop((space, env));
        disk = disk.crash();
    }
}
