//! Files that the whole directory needs: the control file, the system and the undo tablespace.

use std::fs;
use std::os::unix::fs::FileExt;

use tidepool::{Db, LockMode, LockWait, ReadRequest, TransactionOptions};

use crate::fixture::{PAGE_SIZE, directory, killed, open_error, options};
use crate::packed;

#[test]
fn missing_redo_directory() {
    let dir = directory();
    fs::remove_dir_all(dir.path().join("redo")).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: missing, though the data directory holds 'system.tpd': put the file back or restore the data directory from a backup; or \
         start with force_recovery=5 and dump what can still be read"
    );
}

#[test]
fn missing_system_file() {
    let dir = directory();
    // Its mirror has all of it.
    fs::remove_file(dir.path().join("system.tpd")).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    db.open_table("a").unwrap();
    db.close().unwrap();
    for name in ["system.tpd", "system-mirror.tpd"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    assert_eq!(
        open_error(dir.path()),
        "system.tpd: cannot open it: No such file or directory (os error 2): put the file back or restore the data directory \
         from a backup; or save what can be read with 'tidepool salvage'"
    );
}

const PAIRS: [&str; 4] = ["system.tpd", "undo.tpd", "system-mirror.tpd", "undo-mirror.tpd"];

/// As when a backup is being put back, and the rest is still to come.
#[test]
fn only_a_part_of_the_files() {
    for (gone, there) in [
        (&["redo/control"][..], "tables/00000010.tpd"),
        (&["redo/control", "tables"], "redo/redo.00000001"),
    ] {
        let dir = directory();
        for name in gone.iter().chain(&PAIRS) {
            let path = dir.path().join(name);
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.unwrap();
        }
        let before = fs::read(dir.path().join("redo/redo.00000001")).unwrap();
        assert_eq!(
            open_error(dir.path()),
            format!(
                "redo/control: missing, though the data directory holds '{there}': put the file back or restore the data directory from a backup; or \
                 start with force_recovery=5 and dump what can still be read"
            )
        );
        assert!(fs::read(dir.path().join("redo/redo.00000001")).unwrap() == before);
        assert!(!dir.path().join("system.tpd").exists());
    }
}

/// As when a data directory has lost all else.
#[test]
fn only_files_that_are_made_later() {
    for name in ["newest-runs.0", "hot-list", "scrub"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), b"x").unwrap();
        let error = open_error(dir.path());
        let expected = format!("missing, though the data directory holds '{name}'");
        assert!(error.starts_with("redo/control: ") && error.contains(&expected), "{error}");
        assert!(!dir.path().join("system.tpd").exists());
    }
}

#[test]
fn files_of_something_else() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::create_dir(dir.path().join("redo")).unwrap();
    for foreign in ["ibdata1", ".bashrc", "base"] {
        fs::write(dir.path().join(foreign), b"x").unwrap();
        assert!(!Db::exists(dir.path()).unwrap());
        assert_eq!(
            open_error(dir.path()),
            format!(
                "{foreign}: this file is not Tidepool's, and there is no Tidepool in its \
                 directory: choose a directory that is empty or does not exist, or the one where \
                 the data is"
            )
        );
        // Not even a lock file was put beside it.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        fs::remove_file(dir.path().join(foreign)).unwrap();
    }
    Db::open(dir.path(), options()).unwrap().close().unwrap();
    assert!(Db::exists(dir.path()).unwrap());
    // Where the data is, more files do no harm.
    fs::write(dir.path().join("note.txt"), b"x").unwrap();
    Db::open(dir.path(), options()).unwrap().close().unwrap();
}

#[test]
fn volumes_of_their_own_for_the_log_and_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    for volume in ["redo", "tables"] {
        fs::create_dir_all(dir.path().join(volume).join("lost+found")).unwrap();
    }
    for _ in 0..2 {
        Db::open(dir.path(), options()).unwrap().close().unwrap();
    }
}

#[test]
fn empty_undo_file() {
    let expected = "undo.tpd: it is empty or cut short: it has 0 bytes, and its roots take 16384: \
                    restore the data directory from a backup, or save what can be read with \
                    'tidepool salvage'; or start with force_recovery=4 and dump what can still be \
                    read";
    for dir in [directory(), killed()] {
        fs::write(dir.path().join("undo.tpd"), b"").unwrap();
        assert_eq!(open_error(dir.path()), expected);
        assert_eq!(open_error(dir.path()), expected, "nothing was made in its place");
    }
    // Nothing says that there was more in it.
    let dir = directory();
    for name in ["newest-runs.0", "newest-runs.1", "undo-mirror.tpd"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("undo.tpd"), b"").unwrap();
    assert_eq!(
        open_error(dir.path()),
        "undo.tpd: there is no undo log in it, though the data directory is not new: put the file \
         back or restore the data directory from a backup; or start with force_recovery=4 and dump \
         what can still be read"
    );
}

#[test]
fn undo_file_with_a_zeroed_first_page() {
    let dir = directory();
    let zeroes = vec![0; PAGE_SIZE as usize];
    packed::write_page(&packed::files_in(dir.path()), packed::UNDO, 0, zeroes.clone());
    let mirror = fs::OpenOptions::new().write(true).open(dir.path().join("undo-mirror.tpd"));
    mirror.unwrap().write_all_at(&zeroes, 0).unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: there is no undo log in it"), "{error}");
}

/// It has yet to give the ids of the transactions that wrote the newest rows.
#[test]
fn undo_file_of_an_earlier_time() {
    let dir = directory();
    let undo = dir.path().join("undo.tpd");
    let earlier = fs::read(&undo).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let a = db.open_table("a").unwrap();
    for row in 0..3u32 {
        let mut trx = db.begin(TransactionOptions::default());
        trx.update(&a, 0, &row.to_be_bytes(), b"later").unwrap();
        trx.commit().unwrap();
    }
    drop(a);
    db.close().unwrap();
    fs::write(&undo, earlier).unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: its newest run is "), "{error}");
    assert!(error.contains("it is an older copy, or has lost its end"), "{error}");
    // Where nothing says what it had, the rows show it.
    for name in ["newest-runs.0", "newest-runs.1"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let db = Db::open(dir.path(), options()).unwrap();
    let a = db.open_table("a").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let expected = |id: u32, next: u32| {
        format!(
            "tables/00000010.tpd: a row names transaction {id}, but from {next} on there was none: the file is of a later \
             time than undo.tpd: restore both from one backup, or drop the table"
        )
    };
    let (key, mut value) = (2u32.to_be_bytes(), vec![]);
    let read = trx.read(
        &a,
        0,
        ReadRequest::new(&key, &mut value).locked(LockMode::Shared, LockWait::Wait),
    );
    assert_eq!(read.unwrap_err().to_string(), expected(16387, 16385));
    // It has another id then.
    let written = trx.update(&a, 0, &key, b"");
    assert_eq!(written.unwrap_err().to_string(), expected(16387, 16386));
    trx.update(&a, 0, &9u32.to_be_bytes(), b"").unwrap();
    trx.commit().unwrap();
}

#[test]
fn corrupt_control_file() {
    let dir = directory();
    fs::write(dir.path().join("redo/control"), vec![0x55; 8192]).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: both slots are corrupt: restore the data directory from a backup; or start with \
         force_recovery=5 and dump what can still be read"
    );
}
