//! Files that the whole directory needs: the control file, the system and the undo tablespace.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::fixture::{PAGE_SIZE, directory, killed, open_error};

#[test]
fn missing_redo_directory() {
    let dir = directory();
    fs::remove_dir_all(dir.path().join("redo")).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: missing, though the data directory holds 'system.tpd'; put the file back or restore the data directory from a backup"
    );
}

#[test]
fn missing_system_file() {
    let dir = directory();
    fs::remove_file(dir.path().join("system.tpd")).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "cannot open 'system.tpd': No such file or directory (os error 2) (put the missing file back, or restore a backup)"
    );
}

#[test]
fn empty_undo_file() {
    let dir = directory();
    fs::write(dir.path().join("undo.tpd"), b"").unwrap();
    let expected = "undo.tpd: there is no undo log in it, though the data directory is not new: put the file back or restore \
                    the data directory from a backup";
    assert_eq!(open_error(dir.path()), expected);
    assert_eq!(open_error(dir.path()), expected, "nothing was made in its place");
    // With changes of it in the redo log, recovery may see it first.
    let dir = killed();
    fs::write(dir.path().join("undo.tpd"), b"").unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: "), "{error}");
}

#[test]
fn undo_file_with_a_zeroed_first_page() {
    let dir = directory();
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("undo.tpd")).unwrap();
    file.write_all_at(&[0; PAGE_SIZE as usize], 0).unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: there is no undo log in it"), "{error}");
}

#[test]
fn corrupt_control_file() {
    let dir = directory();
    fs::write(dir.path().join("redo/control"), vec![0x55; 8192]).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: both slots are corrupt; restore the data directory from a backup"
    );
}
