//! Bytes of the log that were durable and are wrong: never a silent end of the log, and no crash
//! passes for it.

use tidepool_pool::storage::AlignedBuf;

use super::*;
use crate::redo::beyond;
use crate::redo::file_header::{FileHeader, HEADER_SIZE};
use crate::redo::mark::{self, MARK_LEN};

/// Where the log's byte at `lsn` is.
fn place(log: &RedoLog, lsn: u64) -> (String, u64) {
    let file = log.ring.lock().find(Lsn(lsn)).expect("the log is in some file");
    (file.file.name().to_owned(), file.offset(lsn))
}

/// A log of `commits` flushed frames, its places by LSN, and the disk after a kill.
fn flushed_log(commits: usize) -> (SimStorage, RedoLog) {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    for n in 0..commits {
        append(&log, &[n as u8; 100]);
        log.flush().unwrap();
    }
    (storage, log)
}

fn message(storage: &SimStorage) -> String {
    open(storage).map(drop).expect_err("the log is damaged").to_string()
}

#[test]
fn a_flipped_bit_anywhere_in_log_that_is_known_durable_stops_the_open() {
    let (storage, log) = flushed_log(6);
    let (marked, flushed) = (log.marked(), log.flushed_lsn());
    assert!(FIRST_LSN < marked && marked < flushed);
    let killed = storage.kill();
    for lsn in FIRST_LSN.0..marked.0 {
        let disk = killed.kill();
        let (file, offset) = place(&log, lsn);
        disk.corrupt(&file, offset, 1 << (lsn % 8));
        let text = message(&disk);
        assert!(
            text.starts_with("redo/redo.00000001: the redo log is damaged at offset "),
            "{text}"
        );
        assert!(text.contains("tidepool_accept_log_loss=ON"), "{text}");
        assert!(text.contains(&format!("durable up to LSN {} at least", marked.0)), "{text}");
        // With the bit as it was, all is there.
        disk.corrupt(&file, offset, 1 << (lsn % 8));
        assert_eq!(open(&disk.kill()).unwrap().1.end, flushed);
    }
}

#[test]
fn the_error_says_what_would_be_lost_and_how_to_accept_that() {
    let (storage, log) = flushed_log(4);
    let third = 4096 + 8 + 2 * 112 + 2 * MARK_LEN as u64;
    let (file, offset) = place(&log, third + 50);
    assert_eq!((&*file, offset), ("redo/redo.00000001", third + 50));
    let disk = storage.kill();
    disk.corrupt(&file, offset, 4);
    assert_eq!(
        message(&disk),
        "redo/redo.00000001: the redo log is damaged at offset 4360: it can be read up to LSN 4360, but it was durable up to \
         LSN 4488 at least, as 'redo/redo.00000001' says at offset 4597. What was committed in these 128 bytes would be lost \
         (1 whole mini-transaction can be read behind the damage, up to LSN 4597): restore the data directory from a backup, \
         or accept the loss: start once with accept_log_loss (in a server, tidepool_accept_log_loss=ON)"
    );
}

#[test]
fn the_regular_flush_makes_damage_to_what_was_flushed_last_known() {
    let (storage, log) = flushed_log(3);
    let (end, marked) = (log.next_lsn(), log.marked());
    let last = place(&log, end.0 - MARK_LEN as u64 - 10);
    // Nothing says yet that these bytes were durable.
    let disk = storage.kill();
    disk.corrupt(&last.0, last.1, 1);
    let (_, scan, _) = open(&disk).unwrap();
    assert!(marked <= scan.end && scan.end < end);

    let (storage, log) = flushed_log(3);
    log.flush_regularly().unwrap();
    let operations = storage.operation_count();
    log.flush_regularly().unwrap();
    assert_eq!(storage.operation_count(), operations, "nothing is written for an idle log");
    for outcome in 0..4 {
        let disk = storage.crash_with(outcome);
        match outcome {
            0 => disk.corrupt(&last.0, last.1, 1),
            // The whole block is gone, with all marks in it.
            _ => {
                disk.open(&last.0).unwrap().write_at(&AlignedBuf::zeroed(BLOCK_SIZE), 4096).unwrap()
            }
        }
        assert!(message(&disk).contains(&format!("durable up to LSN {} at least", end.0)));
    }
}

#[test]
fn the_control_file_says_how_far_the_log_was_durable() {
    let (storage, log) = flushed_log(3);
    let (first, end) = (append(&log, b"first").0, append(&log, b"second").1);
    log.flush().unwrap();
    // Pages keep the checkpoint back.
    log.checkpoint(|| Some(first), || (), false).unwrap();
    let (file, offset) = place(&log, end.0 - 3);
    let disk = storage.kill();
    disk.corrupt(&file, offset, 1);
    let text = message(&disk);
    assert!(text.contains("as 'redo/control' says at offset"), "{text}");
    assert!(
        text.contains(&format!("durable up to LSN {} at least", log.flushed_lsn().0)),
        "{text}"
    );
}

#[test]
fn a_loss_that_was_accepted_is_not_reported_again() {
    for lives in 0..3 {
        let (storage, log) = flushed_log(20);
        let (file, offset) = place(&log, 5010);
        drop(log);
        let mut disk = storage.kill();
        disk.corrupt(&file, offset, 1);
        message(&disk);
        disk = disk.kill();
        let (log, scan, _) = open_with(Arc::new(disk.clone()), AcceptLogLoss::Yes).unwrap();
        assert!(scan.loss.is_some_and(|loss| loss.end.0 < 5010));
        // Lives of all lengths, up to beyond the old log.
        for n in 0..lives * 10 {
            append(&log, &[n; 100]);
            log.flush().unwrap();
        }
        let end = log.flushed_lsn();
        drop(log);
        for outcome in 0..20 {
            let (_, scan, _) = open(&disk.crash_with(outcome)).unwrap();
            assert!(scan.end >= end && scan.loss.is_none());
        }
    }
}

#[test]
fn a_crash_before_an_accepted_loss_is_durable_reports_it_again() {
    let (storage, log) = flushed_log(20);
    let (file, offset) = place(&log, 5010);
    drop(log);
    let killed = storage.kill();
    killed.corrupt(&file, offset, 1);
    for at in 1..10 {
        let disk = killed.kill();
        disk.crash_at(disk.operation_count() + at);
        let opened = open_with(Arc::new(disk.clone()), AcceptLogLoss::Yes).is_ok();
        for outcome in 0..10 {
            match open(&disk.crash_with(outcome)) {
                Ok((.., frames)) => {
                    let last = frames.last().expect("frames before the damage").0;
                    assert!(last.0 < 5010, "what is lost comes back");
                }
                Err(error) => {
                    assert!(
                        !opened && error.to_string().contains("is damaged at offset"),
                        "{error}"
                    );
                }
            }
        }
    }
}

/// Changes some bytes of the file, if they are not so already. Returns whether it did.
fn damage(storage: &SimStorage, file: &str, offset: u64, rng: &mut StdRng) -> bool {
    let (len, is_bit) = match rng.random_range(0..4) {
        0 => (1, true),
        1 => (512, false),
        _ => (4096, false),
    };
    if is_bit {
        storage.corrupt(file, offset, 1 << rng.random_range(0..8));
        return true;
    }
    let start = offset / len * len;
    let handle = storage.open(file).unwrap();
    let mut block = AlignedBuf::zeroed(len as usize);
    handle.read_at(&mut block, start).unwrap();
    let before = block.to_vec();
    match rng.random_bool(0.5) {
        true => block.fill(0),
        false => rng.fill(&mut block[..]),
    }
    handle.write_at(&block, start).unwrap();
    handle.sync_data().unwrap();
    before != block[..]
}

/// How far the log was durable by the marks of `epoch` that can still be read.
fn marks_left(storage: &SimStorage, files: &[(String, Lsn, Lsn)], epoch: u32) -> Lsn {
    let mut bytes = Vec::new();
    for (name, start, end) in files {
        let mut buf = AlignedBuf::zeroed((end.0 - start.0) as usize);
        storage.open(name).unwrap().read_at(&mut buf, HEADER_SIZE).unwrap();
        bytes.extend_from_slice(&buf);
    }
    let (mut at, mut known) = (0, Lsn::ZERO);
    while let Some((found, mark)) = mark::find(&bytes[at..], Lsn(files[0].1.0 + at as u64)) {
        if mark.epoch == epoch {
            known = known.max(mark.lsn);
        }
        at += found + MARK_LEN;
    }
    known
}

/// Random logs of several lives; then damage anywhere behind the checkpoint.
#[test]
fn damage_is_never_silent_where_the_log_is_known_to_be_durable() {
    let (mut refused, mut unknown) = (0, 0);
    for seed in seeds(150) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut storage = SimStorage::new(seed);
        let mut model = Model::default();
        for _ in 0..rng.random_range(0..3) {
            let (log, scan, found) = open(&storage).unwrap();
            check(&mut model, &scan, &found, seed);
            let steps = rng.random_range(1..200);
            life(&log, &mut model, &mut rng, steps).unwrap();
            drop(log);
            storage = if rng.random_bool(0.5) { storage.kill() } else { storage.crash() };
        }
        let (log, scan, found) = open(&storage).unwrap();
        check(&mut model, &scan, &found, seed);
        let steps = rng.random_range(1..300);
        life(&log, &mut model, &mut rng, steps).unwrap();
        let is_idle = rng.random_bool(0.3);
        if is_idle {
            log.flush().unwrap();
            log.flush_regularly().unwrap();
        }
        let (checkpoint, written) = (log.checkpoint_lsn(), log.written_lsn());
        let by_control = log.ring.lock().control().durable;
        let files = log.ring.lock().files_beyond(checkpoint);
        let files: Vec<_> =
            files.iter().map(|f| (f.file.name().to_owned(), f.start, f.end)).collect();
        if checkpoint == written {
            continue;
        }
        let lsn = rng.random_range(checkpoint.0..written.0);
        let (file, offset) = place(&log, lsn);
        let log_epoch = log.ring.lock().control().epoch;
        drop(log);
        let disk = if is_idle { storage.crash() } else { storage.kill() };
        if !damage(&disk, &file, offset, &mut rng) {
            continue;
        }
        let damaged = disk.kill();
        // Damage may take the last marks with it.
        let known = by_control.max(marks_left(&damaged, &files, log_epoch));
        match open(&damaged) {
            Ok((_, scan, _)) => {
                assert!(scan.end >= known, "seed {seed}: LSN {lsn}: ends at {}", scan.end.0);
                unknown += 1;
                continue;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("the redo log is damaged at offset"), "seed {seed}: {text}");
                refused += 1;
            }
        }
        // What was accepted stays so.
        let disk = damaged.kill();
        let (log, scan, _) = open_with(Arc::new(disk.clone()), AcceptLogLoss::Yes)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(scan.loss.as_ref().is_some_and(|loss| loss.end < known), "seed {seed}");
        assert!(scan.end >= known, "seed {seed}: the log goes on in what is lost");
        let mut after =
            Model { flushed: scan.end, checkpoint_asked: Lsn(u64::MAX), ..Model::default() };
        let steps = rng.random_range(0..200);
        life(&log, &mut after, &mut rng, steps).unwrap();
        drop(log);
        let (_, scan, _) =
            open(&disk.crash()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(scan.end >= after.flushed, "seed {seed}");
    }
    assert!(refused > unknown, "{refused} damages were found, {unknown} were not");
}

#[test]
fn the_log_goes_on_in_the_file_that_completes_its_next_frame() {
    for boundary in [0, 5, 700] {
        let storage = SimStorage::new(1);
        let (log, ..) = open(&storage).unwrap();
        let end = log.ring.lock().end();
        append_up_to(&log, end.0 - boundary, 1);
        append(&log, &[2; 3000]);
        log.flush().unwrap();
        let flushed = log.flushed_lsn();
        let newest = log.ring.lock().control().offset();
        drop(log);
        let storage = storage.kill();
        // What the second file holds is in another now, and something else in its place under the
        // same header.
        const OTHER: u32 = 9;
        let second = storage.open("redo/redo.00000002").unwrap();
        let other = storage.create(&ring::file_name(OTHER)).unwrap();
        let mut bytes = AlignedBuf::zeroed((HEADER_SIZE + file_size()) as usize);
        second.read_at(&mut bytes, 0).unwrap();
        let header = FileHeader::decode(&bytes, "").unwrap();
        assert_eq!(header.start, end);
        FileHeader { file_no: OTHER, ..header }.encode(&mut bytes);
        other.write_at(&bytes, 0).unwrap();
        bytes[BLOCK_SIZE..].fill(0);
        header.encode(&mut bytes);
        second.write_at(&bytes, 0).unwrap();
        storage.corrupt("redo/control", newest + 100, 1);
        let disk = storage.kill();
        let (log, scan, _) = open(&disk).unwrap();
        assert_eq!(scan.end, flushed, "{boundary}");
        append(&log, b"more");
        log.flush().unwrap();
        drop((log, second, other));
        let (_, again, _) = open(&disk.kill()).unwrap();
        assert!(again.end > flushed);

        // If none completes it, the log ends there.
        let disk = storage.kill();
        disk.remove(&ring::file_name(OTHER)).unwrap();
        let (log, scan, _) = open(&disk).unwrap();
        assert!(scan.end <= end && scan.end.0 >= end.0 - boundary - MARK_LEN as u64);
        append(&log, b"more");
        log.flush().unwrap();
    }
}

/// What [`beyond::look`] reads behind the end after an ordinary crash proves nothing.
#[test]
fn whole_frames_behind_a_hole_that_were_not_durable_are_no_damage() {
    let mut holes = 0;
    for seed in 0..200 {
        let storage = SimStorage::new(seed);
        let (log, ..) = open(&storage).unwrap();
        append(&log, b"durable");
        log.flush().unwrap();
        let flushed = log.flushed_lsn();
        for n in 0..50 {
            append(&log, &[n; 700]);
            log.write_to(log.next_lsn()).unwrap();
        }
        drop(log);
        let disk = storage.crash_with(seed);
        let mut ring = Ring::open(Arc::new(disk.clone()), file_size()).unwrap();
        let (_, scan, _) = open(&disk).unwrap();
        assert!(scan.end >= flushed);
        assert_eq!(beyond::look(&mut ring, scan.end, 2).unwrap(), None);
        let mut reader = Reader::at(scan.end, 2);
        holes += u32::from(reader.next(&mut ring).unwrap().is_none());
    }
    assert!(holes > 20, "{holes}");
}
