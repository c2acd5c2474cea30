//! Data directories that are not as they should be, each with the exact message or with what
//! becomes of it.

use std::sync::Arc;

use tidepool_pool::storage::{AlignedBuf, Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool_pool::{PAGE_HEADER_SIZE, PageId, PageType};

use super::*;
use crate::files::*;
use crate::mtr::Mtr;
use crate::newest_runs::NewestRuns;
use crate::page_op::PageOp;
use crate::redo::{BLOCK_SIZE, CAPACITY_MIN_BYTES};
use crate::space;
use crate::test_storage::{spoil, write_page};

const PAGE_SIZE: usize = 4096;

fn options() -> EnvOptions {
    EnvOptions { page_size: PAGE_SIZE, ..EnvOptions::small() }
}

fn open(storage: &SimStorage, options: &EnvOptions) -> Result<Arc<Env>> {
    Env::open(Arc::new(storage.clone()), options)
}

fn message(storage: &SimStorage, options: &EnvOptions) -> String {
    open(storage, options).expect_err("this must not open").to_string()
}

/// A data directory with a table file and changes in the log, closed cleanly or not.
fn directory(clean: bool) -> SimStorage {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    for id in [SYSTEM_SPACE, FIRST_TABLE_SPACE] {
        let space = if id == 0 { env.space(0).unwrap() } else { env.create_space(id).unwrap() };
        space.grow_to(4).unwrap();
        for no in 0..2 {
            write(&env, &space, no, b"something");
        }
    }
    env.redo().flush().unwrap();
    if clean {
        env.close().unwrap();
    }
    drop(env);
    storage.kill()
}

fn write(env: &Env, space: &Space, no: u32, bytes: &[u8]) {
    let mut mtr = Mtr::begin(env).unwrap();
    let page = mtr.new_page(space, no).unwrap();
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
    mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes });
    mtr.commit();
}

/// All bytes of a file.
fn bytes_of(storage: &SimStorage, name: &str) -> AlignedBuf {
    let file = storage.open(name).unwrap();
    let mut bytes = AlignedBuf::zeroed(file.len().unwrap() as usize);
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Gives a file these bytes.
fn put(storage: &SimStorage, name: &str, bytes: &AlignedBuf) {
    let file = storage.open(name).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// Writes at any offset through aligned blocks.
fn patch(storage: &SimStorage, name: &str, offset: u64, bytes: &[u8]) {
    let file = storage.open(name).unwrap();
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    let base = offset / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    file.read_at(&mut block, base).unwrap();
    let at = (offset - base) as usize;
    block[at..at + bytes.len()].copy_from_slice(bytes);
    file.write_at(&block, base).unwrap();
    file.sync_data().unwrap();
}

/// Makes the block's checksum right again after a [`patch`].
fn stamp(storage: &SimStorage, name: &str, base: u64, crc_at: usize) {
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    storage.open(name).unwrap().read_at(&mut block, base).unwrap();
    let crc = crc32c::crc32c(&block[..crc_at]);
    patch(storage, name, base + crc_at as u64, &crc.to_le_bytes());
}

#[test]
fn what_was_written_is_there_again() {
    for clean in [true, false] {
        let storage = directory(clean);
        let env = open(&storage, &options()).unwrap();
        assert!(!env.is_new());
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        let page = env.pool().shared(&space, 1, tidepool_pool::Access::Normal).unwrap();
        assert_eq!(&page[PAGE_HEADER_SIZE..][..9], b"something", "clean: {clean}");
    }
}

#[test]
fn newest_runs_that_could_not_be_noted_are_noted_by_the_next_checkpoint() {
    for kind in [FaultKind::Io, FaultKind::NoSpace] {
        let storage = directory(true);
        let env = open(&storage, &options()).unwrap();
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        write(&env, &space, 2, b"more");
        // In both files, if it is an error of one.
        storage.inject(Fault::new(StorageOp::Write, kind).on("newest-runs.").times(2));
        // The checkpoint gives room back.
        env.checkpoint_all().unwrap();
        storage.clear_faults();
        // The next one passes more of the log, and finds no newer run.
        env.log_file_change(LogRecord::SpaceUnlist(4000)).unwrap();
        env.checkpoint_all().unwrap();
        let run = space.file().usage().sequence;
        drop((space, env));
        let noted = NewestRuns::load(&storage.crash(), *b"tidepool-sim-env");
        assert_eq!(noted.of(FIRST_TABLE_SPACE), run, "{kind:?}");
    }
}

/// A bad block in the list of newest runs, which is a witness only, never goes away.
#[test]
fn a_list_of_newest_runs_that_refuses_writes_stops_no_checkpoint() {
    let ops = [StorageOp::Open, StorageOp::Write, StorageOp::Sync];
    for (op, file) in ops.into_iter().flat_map(|op| ["", "0", "1"].map(|file| (op, file))) {
        let storage = directory(true);
        storage.inject(Fault::new(op, FaultKind::Io).on(format!("newest-runs.{file}")).always());
        let env = open(&storage, &options()).unwrap();
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        let mut run = 0;
        for round in 0..4 {
            write(&env, &space, 2, format!("round {round}").as_bytes());
            let end = env.redo().next_lsn();
            let checkpoint = env.checkpoint_all();
            assert!(checkpoint.unwrap() >= end, "{op:?} of '{file}', round {round}");
            run = space.file().usage().sequence;
        }
        drop((space, env));
        let left = storage.crash();
        left.clear_faults();
        let noted = NewestRuns::load(&left, *b"tidepool-sim-env").of(FIRST_TABLE_SPACE);
        match file.is_empty() {
            // What was not synced may have survived.
            true => assert!(noted <= run, "{op:?}: {noted}"),
            false => assert_eq!(noted, run, "{op:?} of '{file}': the other file has them"),
        }
        assert!(open(&left, &options()).is_ok(), "{op:?} of '{file}'");
    }
}

#[test]
fn a_missing_redo_file() {
    for clean in [true, false] {
        let storage = directory(clean);
        storage.remove("redo/redo.00000001").unwrap();
        assert_eq!(
            message(&storage, &options()),
            "redo/redo.00000001: missing, but it holds the redo log from LSN 4096 to 69632: put the file \
             back or restore the data directory from a backup"
        );
    }
}

#[test]
fn a_missing_control_file() {
    let storage = directory(true);
    storage.remove("redo/control").unwrap();
    assert_eq!(
        message(&storage, &options()),
        "redo/control: missing, though the data directory holds 'system.tpd': put the file back or restore \
         the data directory from a backup"
    );
}

#[test]
fn a_redo_file_of_another_data_directory() {
    let storage = directory(false);
    let name = "redo/redo.00000001";
    patch(&storage, name, 16, &[0xab; 16]);
    stamp(&storage, name, 0, 508);
    assert_eq!(
        message(&storage, &options()),
        "redo/redo.00000001: belongs to another data directory (instance \
         abababab-abab-abab-abab-abababababab, this one is 74696465-706f-6f6c-2d73-696d2d656e76): put back \
         this data directory's own file"
    );
}

#[test]
fn the_whole_redo_log_of_another_data_directory() {
    let other = SimStorage::new(1);
    open(&other, &EnvOptions { uuid: Some([0xcd; 16]), ..options() }).unwrap().close().unwrap();
    let storage = directory(true);
    put(&storage, SYSTEM_FILE, &bytes_of(&other, SYSTEM_FILE));
    assert_eq!(
        message(&storage, &options()),
        "redo: the redo log belongs to another data directory (instance \
         74696465-706f-6f6c-2d73-696d2d656e76, but system.tpd is of cdcdcdcd-cdcd-cdcd-cdcd-cdcdcdcdcdcd): \
         put back this data directory's own redo log"
    );
}

#[test]
fn an_older_copy_of_a_redo_file() {
    let storage = directory(false);
    let name = "redo/redo.00000001";
    patch(&storage, name, 32, &8192u64.to_le_bytes());
    stamp(&storage, name, 0, 508);
    assert_eq!(
        message(&storage, &options()),
        "redo/redo.00000001: holds the log from LSN 8192 as file 1, but redo/control expects LSN 4096 as \
         file 1: the two are of different times: restore the data directory from a backup"
    );
}

#[test]
fn a_truncated_redo_file() {
    let storage = directory(false);
    storage.open("redo/redo.00000001").unwrap().set_len(8192).unwrap();
    assert_eq!(
        message(&storage, &options()),
        "redo/redo.00000001: 8192 bytes long instead of 69632: it was truncated: restore the data \
         directory from a backup"
    );
}

#[test]
fn a_newer_format() {
    let storage = directory(true);
    for slot in [0, 4096] {
        patch(&storage, "redo/control", slot + 8, &7u32.to_le_bytes());
        stamp(&storage, "redo/control", slot, 4092);
    }
    assert_eq!(
        message(&storage, &options()),
        "redo/control: format version 7, but this program reads only version 5: use the version of \
         Tidepool that wrote it"
    );
}

#[test]
fn another_page_size() {
    let storage = directory(true);
    let other = EnvOptions { page_size: 16384, ..options() };
    assert_eq!(
        message(&storage, &other),
        "redo/control: the data directory has pages of 4096 bytes, but 16384 were asked for: set the page \
         size to 4096, or use another data directory"
    );
    let any = EnvOptions { page_size: 0, ..options() };
    assert_eq!(open(&storage, &any).unwrap().page_size(), PAGE_SIZE);
}

#[test]
fn one_corrupt_control_slot_is_survived_and_two_are_not() {
    for clean in [true, false] {
        let storage = directory(clean);
        storage.corrupt("redo/control", 100, 1);
        let env = open(&storage, &options()).unwrap();
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        let page = env.pool().shared(&space, 1, tidepool_pool::Access::Normal).unwrap();
        assert_eq!(&page[PAGE_HEADER_SIZE..][..9], b"something");
    }
    let storage = directory(true);
    storage.corrupt("redo/control", 100, 1);
    storage.corrupt("redo/control", 4196, 1);
    assert_eq!(
        message(&storage, &options()),
        "redo/control: both slots are corrupt: restore the data directory from a backup"
    );
}

/// A log with a change of a page, whose space was created and first written before the checkpoint.
fn directory_with_old_space(id: u32) -> SimStorage {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = if id < FIRST_TABLE_SPACE { env.space(id) } else { env.create_space(id) }.unwrap();
    space.grow_to(4).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.new_page(&space, 0).unwrap();
    let init = PageOp::NodeInit { tree_id: 1, level: 0, first_child: 0, lower: b"", upper: None };
    mtr.apply(page, &init);
    mtr.commit();
    env.checkpoint_all().unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.exclusive(&space, 0).unwrap();
    mtr.apply(page, &PageOp::InsertCell { slot: 0, suffix: b"key", payload: b"value" });
    mtr.commit();
    env.redo().flush().unwrap();
    drop((space, env));
    storage.kill()
}

#[test]
fn a_missing_file_that_the_log_changes() {
    let storage = directory_with_old_space(UNDO_SPACE);
    storage.remove("undo.tpd").unwrap();
    assert_eq!(
        message(&storage, &options()),
        "undo.tpd: missing, but the redo log holds changes of it: put the file back or restore the data \
         directory from a backup"
    );
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.remove("tables/00000010.tpd").unwrap();
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE), "only the table is lost");
}

#[test]
fn a_truncated_file_that_the_log_changes() {
    let storage = directory_with_old_space(UNDO_SPACE);
    storage.open("undo.tpd").unwrap().set_len(0).unwrap();
    let error = message(&storage, &options());
    assert!(error.starts_with("undo.tpd: it is empty or cut short: it has 0 bytes"), "{error}");
    let advice = ": restore the data directory from a backup, or save what can be read with \
                  'tidepool salvage'; or start with force_recovery=4 and dump what can still be read";
    assert!(error.ends_with(advice), "{error}");
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.open("tables/00000010.tpd").unwrap().set_len(0).unwrap();
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE), "only the table is lost");
}

/// As [`directory_with_old_space`], but of the changes in the log each fits a page of zeroes.
fn directory_with_overwritten_space(id: u32) -> SimStorage {
    directory_after_overwriting(id, |_, _| ())
}

/// The same, after `more` has been done.
fn directory_after_overwriting(id: u32, more: impl FnOnce(&Env, &Space)) -> SimStorage {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = if id < FIRST_TABLE_SPACE { env.space(id) } else { env.create_space(id) }.unwrap();
    space.grow_to(4).unwrap();
    write(&env, &space, 1, b"before");
    env.checkpoint_all().unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.exclusive(&space, 1).unwrap();
    mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: b"behind" });
    mtr.commit();
    more(&env, &space);
    env.redo().flush().unwrap();
    drop((space, env));
    storage.kill()
}

#[test]
fn a_zeroed_page_that_the_log_overwrites_a_part_of() {
    let storage = directory_with_overwritten_space(UNDO_SPACE);
    write_page(&storage, PageId::new(UNDO_SPACE, 1), &[0; PAGE_SIZE]);
    let error = message(&storage, &options());
    assert!(
        error.starts_with("undo.tpd: page 1 is corrupt: the redo log's change up to LSN "),
        "{error}"
    );
    let storage = directory_with_overwritten_space(FIRST_TABLE_SPACE);
    storage.open("tables/00000010.tpd").unwrap().set_len(0).unwrap();
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE), "only the table is lost");
    let storage = directory_with_overwritten_space(FIRST_TABLE_SPACE);
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().is_empty(), "a whole file is not");
}

/// What a page was makes no difference if the log goes on to set all of it.
#[test]
fn a_broken_page_that_the_log_sets_as_a_whole_later() {
    let anew = |env: &Env, space: &Space| write(env, space, 1, b"anew");
    let storage = directory_after_overwriting(FIRST_TABLE_SPACE, anew);
    spoil(&storage, PageId::new(FIRST_TABLE_SPACE, 1));
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().is_empty());
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    let page = env.pool().shared(&space, 1, tidepool_pool::Access::Normal).unwrap();
    assert_eq!(&page[PAGE_HEADER_SIZE..][..6], b"anew\0\0");
}

/// A file that a checkpoint has relied on must not pass for a new one when it is emptied.
#[test]
fn an_emptied_file_is_no_new_one() {
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.open("tables/00000010.tpd").unwrap().set_len(0).unwrap();
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE));
    let error = env.space(FIRST_TABLE_SPACE).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Lost { .. }), "{error}");
}

/// Each of two copies of a file is whole in itself.
#[test]
fn an_older_copy_of_a_file_is_found_out() {
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    let name = "tables/00000010.tpd";
    let bytes_of = |storage: &SimStorage| {
        let file = storage.open(name).unwrap();
        let mut bytes = AlignedBuf::zeroed(file.len().unwrap() as usize);
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let old = bytes_of(&storage);
    let env = open(&storage, &options()).unwrap();
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    write(&env, &space, 1, b"newer");
    drop(space);
    env.close().unwrap();
    drop(env);
    let storage = storage.kill();
    let file = storage.open(name).unwrap();
    file.write_at(&old, 0).unwrap();
    file.set_len(old.len() as u64).unwrap();
    let env = open(&storage, &options()).unwrap();
    let error = env.space(FIRST_TABLE_SPACE).map(drop).unwrap_err().to_string();
    assert!(error.contains("it is an older copy, or has lost its end"), "{error}");
}

#[test]
fn a_flipped_bit_in_the_log_before_changes_that_are_on_disk() {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = env.space(UNDO_SPACE).unwrap();
    space.grow_to(4).unwrap();
    for no in 0..2 {
        write(&env, &space, no, b"old");
    }
    env.checkpoint_all().unwrap();
    let change = |no| {
        let mut mtr = Mtr::begin(&env).unwrap();
        let page = mtr.exclusive(&space, no).unwrap();
        mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: b"new" });
        mtr.commit()
    };
    let ends = [change(0), change(1), change(0)];
    // Page 0 is written; page 1 is in use, and keeps the checkpoint back.
    let page = env.pool().exclusive(&space, 1, tidepool_pool::Access::Normal).unwrap();
    assert_eq!(env.pool().flush_up_to(Lsn::MAX, 9).unwrap(), 1);
    drop(page);
    drop((space, env));
    let storage = storage.kill();
    storage.corrupt("redo/redo.00000001", ends[0].0 + 10, 1);
    assert_eq!(
        message(&storage, &options()),
        format!(
            "undo.tpd: page 0 is corrupt: it was written at LSN {}, but the redo log ends at LSN {}: \
             the file is of a later time than the log, or the log was damaged: restore the data \
             directory from a backup",
            ends[2].0, ends[0].0
        )
    );
}

#[test]
fn read_only() {
    let read_only = EnvOptions { read_only: true, ..options() };
    assert_eq!(
        message(&SimStorage::new(1), &read_only),
        "read-only: there is no data directory, and none can be made"
    );
    assert_eq!(
        message(&directory(false), &read_only),
        "read-only: the data directory was not closed cleanly, and recovery must write: open it writable once"
    );
    let storage = directory(true);
    let before = storage.operation_count();
    let env = open(&storage, &read_only).unwrap();
    assert_eq!(
        Mtr::begin(&env).err().unwrap().to_string(),
        "read-only: the data directory is open read-only"
    );
    env.close().unwrap();
    // The lock file is all that is touched.
    assert!(storage.operation_count() <= before + 1, "nothing is written");
    drop(env);
    assert!(!open(&storage, &options()).unwrap().is_read_only());
}

#[test]
fn a_directory_in_use() {
    let storage = SimStorage::new(1);
    let _env = open(&storage, &options()).unwrap();
    let error = message(&storage, &options());
    assert!(
        error.contains("this data directory is open already, in another process or in this one"),
        "{error}"
    );
}

/// An engine on a disk that is full, with a space of four pages.
fn on_a_full_disk() -> (SimStorage, Arc<Env>, Arc<Space>) {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(4).unwrap();
    write(&env, &space, 0, b"before");
    env.checkpoint_all().unwrap();
    // A table's file needs three segments to be written to on a full disk: one that is filled, one
    // for the cleaner, one that is emptied meanwhile. This one has two.
    const SEGMENT: u64 = 64 << 10;
    storage.set_capacity(Some(storage.used_bytes() + SEGMENT));
    (storage, env, space)
}

#[test]
fn a_disk_too_full_for_a_larger_log_leaves_the_engine_working() {
    let (storage, env, space) = on_a_full_disk();
    // Far more log than the two files hold.
    for i in 0..1000u32 {
        write(&env, &space, i % 4, &[i as u8; 1000]);
        env.redo().flush().unwrap();
    }
    let stats = env.redo().stats();
    assert!(stats.files_bytes < stats.capacity_bytes / 2, "the log did not grow: {stats:?}");
    storage.set_capacity(None);
    for i in 0..2000u32 {
        write(&env, &space, i % 4, &[i as u8; 1000]);
    }
    env.step_checkpoint(std::time::Duration::from_secs(1)).unwrap();
    assert!(env.redo().stats().files_bytes > stats.files_bytes, "it grows once there is space");
}

#[test]
fn a_log_told_to_grow_on_a_full_disk_goes_on_in_the_files_it_has() {
    let (_storage, env, space) = on_a_full_disk();
    env.set_redo_capacity(1 << 30).unwrap();
    for i in 0..1000u32 {
        write(&env, &space, i % 4, &[i as u8; 1000]);
        env.redo().flush().unwrap();
    }
}

/// Who waits for a checkpoint of such a log, on a slow disk, must not get the error that the disk
/// is full.
#[test]
fn that_the_log_could_not_grow_is_forgotten_once_it_need_not() {
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(4).unwrap();
    while env.redo().stats().files_bytes < CAPACITY_MIN_BYTES {
        write(&env, &space, 0, &[1; 1000]);
        env.redo().prepare_files().unwrap();
    }
    env.checkpoint_all().unwrap();
    storage.set_capacity(Some(storage.used_bytes()));
    let growth_error = |capacity| {
        env.set_redo_capacity(capacity).unwrap();
        env.step_checkpoint(std::time::Duration::from_secs(1)).unwrap();
        env.redo().growth_error()
    };
    assert!(matches!(growth_error(1 << 30), Some(Error::NoSpace(_))), "it cannot grow");
    assert!(growth_error(CAPACITY_MIN_BYTES).is_none(), "there are as many files as are wanted");
}

/// A page that rots after its last change has left the log is not taken from an older image.
#[test]
fn rot_in_an_undo_page_is_reported_rather_than_undone() {
    // One that has no mirror.
    const PAGE: u32 = 5;
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    let space = env.space(UNDO_SPACE).unwrap();
    for value in ["old", "new"] {
        write(&env, &space, PAGE, value.as_bytes());
        env.checkpoint_all().unwrap();
    }
    drop((space, env));
    let storage = storage.kill();
    spoil(&storage, PageId::new(UNDO_SPACE, PAGE));
    let env = open(&storage, &options()).unwrap();
    assert!(!env.was_clean());
    let space = env.space(UNDO_SPACE).unwrap();
    let page = env.pool().shared(&space, PAGE, tidepool_pool::Access::Normal);
    let error = page.map(drop).expect_err("an old version in place of the page").to_string();
    assert!(error.contains("undo.tpd: page 5 is corrupt: "), "{error}");
}

/// An engine's own file is no less protected than a table's: what it had durable at a checkpoint,
/// it must have. The system file is made anew of its mirror, unless that is an older copy as well.
#[test]
fn an_older_copy_of_an_own_file_is_found_out() {
    let both = |space: u32| vec![space_file_name(space), mirror_file_name(space).unwrap().into()];
    let cases = [
        (SYSTEM_SPACE, vec![space_file_name(SYSTEM_SPACE)], true),
        (SYSTEM_SPACE, both(SYSTEM_SPACE), false),
        (UNDO_SPACE, vec![space_file_name(UNDO_SPACE)], false),
        (UNDO_SPACE, both(UNDO_SPACE), false),
    ];
    for (space, names, is_made_good) in cases {
        let storage = SimStorage::new(1);
        let env = open(&storage, &options()).unwrap();
        let opened = env.space(space).unwrap();
        let mut mtr = Mtr::begin(&env).unwrap();
        space::create(&mut mtr, &env, &opened).unwrap();
        mtr.commit();
        write(&env, &opened, 5, b"old");
        env.checkpoint_all().unwrap();
        let copies = |storage: &SimStorage| {
            names.iter().map(|name| bytes_of(storage, name)).collect::<Vec<_>>()
        };
        let older = copies(&storage);
        write(&env, &opened, 5, b"new");
        env.close().unwrap();
        drop((opened, env));
        let storage = storage.kill();
        let newer = copies(&storage);
        let put_all = |copies: &[AlignedBuf]| {
            names.iter().zip(copies).for_each(|(name, bytes)| put(&storage, name, bytes));
        };
        put_all(&older);
        if !is_made_good {
            let error = message(&storage, &options());
            assert!(error.starts_with(&*names[0]), "{error}");
            assert!(error.contains("it is an older copy"), "{error}");
            assert!(!error.contains("drop the table"), "{error}");
            put_all(&newer);
        }
        let env = open(&storage, &options()).unwrap();
        let opened = env.space(space).unwrap();
        let page = env.pool().shared(&opened, 5, tidepool_pool::Access::Normal).unwrap();
        assert_eq!(&page[PAGE_HEADER_SIZE..][..3], b"new");
    }
}

/// A write of such a file that the disk acknowledged and did not do, or did elsewhere, is found
/// out: every page is right, or the start or the read of the page is an error.
#[test]
fn a_lost_write_of_an_own_file_is_found_out() {
    let mut found = 0;
    for (space, name) in [(SYSTEM_SPACE, "system.tpd"), (UNDO_SPACE, "undo.tpd")] {
        for (kind, skip) in [FaultKind::Lost, FaultKind::Misplaced]
            .into_iter()
            .flat_map(|kind| (0..12).map(move |skip| (kind, skip)))
        {
            let storage = SimStorage::new(skip + 1);
            let env = open(&storage, &options()).unwrap();
            let opened = env.space(space).unwrap();
            storage.inject(Fault::new(StorageOp::Write, kind).on(name).skip(skip));
            for round in 1..10u8 {
                for no in 5..8 {
                    write(&env, &opened, no, &[round; 2000]);
                }
                let _ = env.checkpoint_all();
            }
            let _ = env.close();
            drop((opened, env));
            let storage = storage.kill();
            let Ok(env) = open(&storage, &options()) else {
                found += 1;
                continue;
            };
            let opened = env.space(space).unwrap();
            for no in 5..8 {
                match env.pool().shared(&opened, no, tidepool_pool::Access::Normal) {
                    Ok(page) => {
                        let bytes = &page[PAGE_HEADER_SIZE..][..2000];
                        assert_eq!(bytes, [9; 2000], "{name}, {kind:?} {skip}: page {no}");
                    }
                    Err(_) => found += 1,
                }
            }
        }
    }
    assert!(found > 0, "no lost write mattered");
}

/// Nothing but the mirror has the pages then; and what is made of it counts as no older copy.
#[test]
fn a_system_file_that_cannot_be_opened_is_made_anew_of_its_mirror() {
    const BLOCK: u64 = 4096;
    type Harm = fn(&SimStorage);
    let harm: [(&str, Harm); 4] = [
        ("removed", |disk| disk.remove("system.tpd").unwrap()),
        ("empty", |disk| disk.open("system.tpd").unwrap().set_len(0).unwrap()),
        ("without roots", |disk| {
            let file = disk.open("system.tpd").unwrap();
            file.write_at(&AlignedBuf::zeroed(4 * BLOCK as usize), 0).unwrap();
        }),
        ("without anything behind its roots", |disk| {
            let file = disk.open("system.tpd").unwrap();
            let rest = file.len().unwrap() - 4 * BLOCK;
            file.write_at(&AlignedBuf::zeroed(rest as usize), 4 * BLOCK).unwrap();
        }),
    ];
    for (how, harm) in harm {
        for is_clean in [true, false] {
            let storage = SimStorage::new(1);
            let env = open(&storage, &options()).unwrap();
            let space = env.space(SYSTEM_SPACE).unwrap();
            let mut mtr = Mtr::begin(&env).unwrap();
            space::create(&mut mtr, &env, &space).unwrap();
            mtr.commit();
            write(&env, &space, 5, b"old");
            env.checkpoint_all().unwrap();
            write(&env, &space, 5, b"new");
            match is_clean {
                true => env.close().unwrap(),
                false => env.redo().flush().unwrap(),
            }
            drop((space, env));
            let storage = storage.kill();
            harm(&storage);
            storage.sync_dir("").unwrap();
            if let Ok(file) = storage.open(SYSTEM_FILE) {
                file.sync_data().unwrap();
            }
            // Interrupted anywhere, it is done again.
            let operations = {
                let whole = storage.kill();
                let before = whole.operation_count();
                drop(open(&whole, &options()).unwrap());
                whole.operation_count() - before
            };
            for at in 0..operations {
                let storage = storage.kill();
                storage.crash_at(storage.operation_count() + 1 + at);
                drop(open(&storage, &options()));
                let storage = storage.crash();
                let env = open(&storage, &options())
                    .unwrap_or_else(|why| panic!("{how}, operation {at}: {why}"));
                let space = env.space(SYSTEM_SPACE).unwrap();
                let page = env.pool().shared(&space, 5, tidepool_pool::Access::Normal).unwrap();
                assert_eq!(&page[PAGE_HEADER_SIZE..][..3], b"new", "{how}, operation {at}");
                drop(page);
                env.close().unwrap();
            }
        }
    }
}

#[test]
fn lost_changes_are_found_again_until_they_are_noted() {
    let mut storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.remove("tables/00000010.tpd").unwrap();
    for noted in [false, true] {
        let env = open(&storage, &options()).unwrap();
        assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE));
        if noted {
            env.losses_are_noted();
        }
        env.checkpoint_all().unwrap();
        drop(env);
        storage = storage.kill();
    }
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().is_empty());
    // Nor does a clean shutdown pass them.
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.remove("tables/00000010.tpd").unwrap();
    let error = open(&storage, &options()).unwrap().close().unwrap_err().to_string();
    assert_eq!(error, "what recovery found is not remembered yet");
}

/// Nothing but more files makes room then. There must be enough, whatever their number; and if the
/// disk has no room for them, a writer gets an error, and the log is not harmed.
#[test]
fn a_log_whose_checkpoint_is_held_grows_as_far_as_the_disk_lets_it() {
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.remove("tables/00000010.tpd").unwrap();
    let env = open(&storage, &options()).unwrap();
    let space = env.space(0).unwrap();
    let fill = |bytes: u64| {
        let end = env.redo().next_lsn().0 + bytes;
        while env.redo().next_lsn().0 < end {
            let mut mtr = Mtr::begin(&env)?;
            let page = mtr.new_page(&space, 3)?;
            mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
            mtr.apply(page, &PageOp::Write { offset: 32, bytes: &[7; 4000] });
            mtr.commit();
        }
        env.redo().flush()
    };
    // As many files as can be listed are far less.
    fill(40 << 20).unwrap();
    storage.set_capacity(Some(storage.used_bytes()));
    let error = fill(40 << 20).unwrap_err();
    assert!(matches!(&error, Error::NoSpace(_)), "{error}");
    env.check_writable().unwrap();
    storage.set_capacity(None);
    fill(1 << 20).unwrap();
    env.losses_are_noted();
    env.checkpoint_all().unwrap();
    for _ in 0..16 {
        fill(1 << 20).unwrap();
    }
    env.step_checkpoint(std::time::Duration::from_secs(10)).unwrap();
    let stats = env.redo().stats();
    assert!(stats.files_bytes <= 2 * stats.capacity_bytes, "{stats:?}");
    env.close().unwrap();
    drop((space, env));
    assert!(open(&storage.kill(), &options()).unwrap().was_clean());
}

#[test]
fn a_table_that_cannot_be_read_does_not_end_the_recovery_of_the_others() {
    let storage = directory_with_old_space(FIRST_TABLE_SPACE);
    storage.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().contains(&FIRST_TABLE_SPACE), "only the table is lost");
    let storage = directory_with_old_space(UNDO_SPACE);
    // The mirror's pages neither.
    storage.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("undo").always());
    let error = message(&storage, &options());
    assert!(error.starts_with("cannot read 'undo.tpd' at offset 0: "), "{error}");
}

/// A process that is killed may have removed the file of a dropped table without making that
/// durable, when the log says no more than that no table has it, because the record that deletes it
/// lies before the checkpoint. Nothing says so any more once it is found to be gone.
#[test]
fn that_a_pending_file_is_gone_is_durable_before_it_is_pending_no_longer() {
    let name = space_file_name(FIRST_TABLE_SPACE);
    let storage = SimStorage::new(1);
    let env = open(&storage, &options()).unwrap();
    env.add_pending_space(FIRST_TABLE_SPACE).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(4).unwrap();
    write(&env, &space, 0, b"something");
    env.checkpoint_all().unwrap();
    storage.remove(&name).unwrap();
    drop((space, env));
    let storage = storage.kill();
    let env = open(&storage, &options()).unwrap();
    assert!(env.missing_spaces().is_empty());
    env.checkpoint_all().unwrap();
    for outcome in 0..20 {
        assert!(!storage.crash_with(outcome).exists(&name).unwrap(), "outcome {outcome}");
    }
}
