//! A disk without space for a write of the log.

use super::*;

const REDO_FILES: &str = "redo/redo.";

fn no_space_on(files: &str) -> Fault {
    Fault::new(StorageOp::Write, FaultKind::NoSpace).on(files)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !condition() {
        assert!(since.elapsed() < std::time::Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_commit_waits_until_there_is_space() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    append(&log, b"before");
    log.flush().unwrap();
    storage.inject(no_space_on(REDO_FILES).always());
    let (_, end) = append(&log, b"waits");
    let later = std::thread::scope(|scope| {
        let commit = scope.spawn(|| log.flush_to(end));
        wait_until("the writer waits", || !log.has_room());
        assert!(
            matches!(log.full_disk_error(), Some(Error::NoSpace(file)) if file.starts_with(REDO_FILES))
        );
        assert!(log.flushed_lsn() < end && log.failure.check().is_ok());
        // Those who hold latches do not wait, whatever they write.
        (0..100).for_each(|n| _ = append(&log, &[n; 1000]));
        let later = append(&log, &[1; 100_000]).1;
        let second = scope.spawn(move || later);
        assert!(!commit.is_finished());
        storage.clear_faults();
        commit.join().unwrap().unwrap();
        second.join().unwrap()
    });
    assert!(log.full_disk_error().is_none());
    log.flush_to(later).unwrap();
    drop(log);
    let (_, scan, frames) = open(&storage.crash_with(3)).unwrap();
    assert!(scan.end >= later && frames.len() == 103);
}

/// Whatever write it is that finds none.
#[test]
fn nothing_is_lost_by_a_wait_for_space() {
    for seed in seeds(40) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut storage = SimStorage::new(seed);
        let mut model = Model::default();
        for _ in 0..3 {
            let (log, scan, found) = open(&storage).unwrap();
            check(&mut model, &scan, &found, seed);
            for _ in 0..3 {
                let file = [REDO_FILES, "redo/control", "redo/"][rng.random_range(0..3)];
                storage.inject(no_space_on(file).skip(rng.random_range(0..30)));
                let steps = rng.random_range(1..100);
                // The control file's writes are not waited for: who asked for the checkpoint tries
                // again.
                match life(&log, &mut model, &mut rng, steps) {
                    Ok(()) | Err(Error::NoSpace(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                assert!(log.failure.check().is_ok(), "seed {seed}");
            }
            drop(log);
            storage = if rng.random_bool(0.5) { storage.kill() } else { storage.crash() };
        }
        let (_, scan, found) = open(&storage).unwrap();
        check(&mut model, &scan, &found, seed);
    }
}

#[test]
fn an_engine_that_closes_does_not_wait_for_ever() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    append(&log, b"before");
    log.flush().unwrap();
    let flushed = log.flushed_lsn();
    storage.inject(no_space_on(REDO_FILES).always());
    append(&log, b"lost");
    let error = std::thread::scope(|scope| {
        let commit = scope.spawn(|| log.flush());
        wait_until("the writer waits", || !log.has_room());
        log.limit_wait_for_space(std::time::Duration::ZERO);
        commit.join().unwrap().unwrap_err()
    });
    let text = error.to_string();
    assert_eq!(
        text,
        "the engine has stopped writing: no space left for redo/redo.00000001, and the engine was being closed: \
         free disk space; restart to recover"
    );
    drop(log);
    let (_, scan, frames) = open(&storage.kill()).unwrap();
    assert!(scan.end >= flushed && frames.len() == 1);
}

/// A sync may have lost what was to be synced, whatever its error.
#[test]
fn a_sync_that_finds_no_space_is_final() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    storage.inject(Fault::new(StorageOp::Sync, FaultKind::NoSpace).on(REDO_FILES));
    append(&log, b"lost");
    log.flush().unwrap_err();
    assert!(log.failure.is_set());
    let text = log.flush().unwrap_err().to_string();
    assert!(text.contains("the engine has stopped writing: cannot sync"), "{text}");
    assert!(!text.contains("try again"), "{text}");
}
