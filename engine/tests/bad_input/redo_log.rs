//! Files of the redo log that are damaged, missing, or of another directory.

use std::fs;
use std::path::{Path, PathBuf};
use tidepool::Db;

use crate::copy::copy_dir;
use crate::fixture::{count, directory, killed, open_error, options, without_numbers};

fn redo_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("redo")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}

/// Does `harm` to each redo file, each in a separate copy. Gives the errors of those that the log
/// needs; without the others, nothing is missing.
fn harm_redo_files(harm: impl Fn(&Path)) -> Vec<String> {
    let dir = killed();
    let mut errors = vec![];
    for file in redo_files(dir.path()) {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        harm(&copy.path().join("redo").join(file.file_name().unwrap()));
        match Db::open(copy.path(), options()) {
            Err(error) => errors.push(error.to_string()),
            Ok(db) => assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1001),
        }
    }
    errors
}

#[test]
fn missing_redo_file() {
    let errors = harm_redo_files(|file| fs::remove_file(file).unwrap());
    assert_each_is(
        errors,
        "redo/redo.#: missing, but it holds the redo log from LSN # to #: put the file \
         back or restore the data directory from a backup; or start with \
         force_recovery=# and dump what can still be read",
    );
}

#[test]
fn truncated_redo_file() {
    let errors = harm_redo_files(|file| {
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(8192).unwrap();
    });
    assert_each_is(
        errors,
        "redo/redo.#: # bytes long instead of #: it was truncated: restore the data \
         directory from a backup; or start with force_recovery=# and dump what can still be read",
    );
}

#[test]
fn redo_of_another_directory() {
    let (dir, other) = (directory(), directory());
    fs::remove_dir_all(dir.path().join("redo")).unwrap();
    fs::create_dir(dir.path().join("redo")).unwrap();
    copy_dir(&other.path().join("redo"), &dir.path().join("redo"));
    assert_eq!(
        without_uuids(&open_error(dir.path())),
        "redo: the redo log belongs to another data directory (instance … but system.tpd is of … put back this \
         data directory's own redo log; or start with \
         force_recovery=5 and dump what can still be read"
    );
}

#[test]
fn one_redo_file_of_another_directory() {
    let other = killed();
    let foreign = |file: &Path| other.path().join("redo").join(file.file_name().unwrap());
    let errors = harm_redo_files(|file| _ = fs::copy(foreign(file), file).unwrap());
    assert_each_is(
        errors.iter().map(|error| without_uuids(error)).collect(),
        "redo/redo.#: belongs to another data directory (instance … this one is … put back this \
         data directory's own file; or start with \
         force_recovery=# and dump what can still be read",
    );
}

/// Fails unless there are errors, and each is `expected` with `#` in place of each number.
fn assert_each_is(errors: Vec<String>, expected: &str) {
    assert!(!errors.is_empty(), "the log needs none of its files");
    errors.iter().for_each(|error| assert_eq!(without_numbers(error), expected));
}

/// A message with `…` in place of each uuid.
fn without_uuids(message: &str) -> String {
    let is_uuid = |word: &str| word.len() >= 36 && word.matches('-').count() == 4;
    let words = message.split(' ').map(|word| if is_uuid(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}
