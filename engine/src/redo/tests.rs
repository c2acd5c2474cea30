//! The log alone against a model: random frames, flushes, checkpoints, crashes; no pages.

mod damage;
mod full_disk;
mod threads;
mod unreadable;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_pool::encryption::{Keys, MemoryKeyring};
use tidepool_pool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool_pool::{Lsn, PageSize};

use super::*;
use crate::options::AcceptLogLoss;
use crate::pause::{PausePoint, with_hook};
use crate::recovery::scan::{Scan, scan};
use crate::redo::reader::Reader;
use crate::redo::record::{Record, Writer};

const UUID: [u8; 16] = [5; 16];
/// Small, so that the ring turns often.
const CAPACITY: u64 = CAPACITY_MIN_BYTES;

/// Seeds to run: `TIDEPOOL_SEED=n` one of them, `TIDEPOOL_SEEDS=n` this many, from
/// `TIDEPOOL_FIRST_SEED` on.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    match number("TIDEPOOL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("TIDEPOOL_FIRST_SEED").unwrap_or(0);
            first..first + number("TIDEPOOL_SEEDS").unwrap_or(default)
        }
    }
}

fn file_size() -> u64 {
    default_file_size(CAPACITY)
}

/// Payloads by their start.
type Payloads = Vec<(Lsn, Vec<u8>)>;

fn open(storage: &SimStorage) -> Result<(RedoLog, Scan, Payloads)> {
    open_on(Arc::new(storage.clone()))
}

fn open_on(storage: Arc<dyn Storage>) -> Result<(RedoLog, Scan, Payloads)> {
    open_with(storage, AcceptLogLoss::No)
}

fn open_with(
    storage: Arc<dyn Storage>,
    accept: AcceptLogLoss,
) -> Result<(RedoLog, Scan, Payloads)> {
    open_life(storage, accept, false)
}

/// The keys of all logs.
fn keys() -> Arc<Keys> {
    let ring = MemoryKeyring::default();
    ring.insert(1, 1, vec![1; 32]);
    Arc::new(Keys::new(Arc::new(ring)))
}

fn open_life(
    storage: Arc<dyn Storage>,
    accept: AcceptLogLoss,
    is_encrypted: bool,
) -> Result<(RedoLog, Scan, Payloads)> {
    let mut ring = if storage.exists(control::CONTROL_FILE)? {
        Ring::open(storage, file_size())?
    } else {
        Ring::create(storage, PageSize::DEFAULT, UUID, file_size())?
    };
    ring.give_keys(Some(keys()));
    let mut scan = scan(&mut ring, accept)?;
    let mut frames = Vec::new();
    let mut reader = Reader::new(&ring);
    while reader.lsn() < scan.end {
        let frame = reader.next(&mut ring)?.expect("the second pass sees what the first saw");
        if let Some(Ok(Record::Page { op, .. })) = frame.records().next() {
            frames.push((frame.start, op.to_vec()));
        }
    }
    let epochs = scan.epochs.clone();
    let lost = scan.go_on_behind_lost(&mut ring)?;
    let start = LogStart {
        end: scan.end,
        lost,
        epochs,
        capacity_bytes: CAPACITY,
        buffer_bytes: 16 << 10,
        is_encrypted,
        access: LogAccess::Append,
    };
    let log = RedoLog::start(ring, start, Arc::default())?;
    if accept == AcceptLogLoss::Yes {
        log.flush()?;
    }
    Ok((log, scan, frames))
}

fn append(log: &RedoLog, body: &[u8]) -> (Lsn, Lsn) {
    let mut writer = Writer::default();
    writer.page(1, 2, |out| out.extend_from_slice(body));
    let mut start = Lsn::ZERO;
    let end = log.append(writer.bytes(), |at, _| start = at);
    (start, end)
}

/// What a life may have left.
#[derive(Default)]
struct Model {
    /// Frames that may still be read back: start, end, body.
    frames: Vec<(Lsn, Lsn, Vec<u8>)>,
    flushed: Lsn,
    /// No frame before this may be asked of the log.
    checkpoint_asked: Lsn,
}

fn life(log: &RedoLog, model: &mut Model, rng: &mut StdRng, steps: u32) -> Result<()> {
    for _ in 0..steps {
        match rng.random_range(0..100) {
            0..60 => {
                let largest = [20, 300, 3000, 40_000][rng.random_range(0..4)];
                let mut body = vec![0; rng.random_range(1..largest)];
                rng.fill(&mut body[..]);
                if log.has_room() {
                    let (start, end) = append(log, &body);
                    // A log that has failed meanwhile takes nothing.
                    if start < end {
                        model.frames.push((start, end, body));
                    }
                }
            }
            60..75 => {
                if let Some((_, end, _)) =
                    model.frames.get(rng.random_range(0..=model.frames.len()))
                {
                    log.flush_to(*end)?;
                    model.flushed = model.flushed.max(*end);
                }
            }
            75..80 => log.write_to(log.next_lsn())?,
            80..82 => {
                log.set_capacity(CAPACITY_MIN_BYTES << rng.random_range(0..2))?;
            }
            82..90 => log.prepare_files()?,
            _ => {
                let frame = model.frames.get(rng.random_range(0..=model.frames.len()));
                let at = frame.map(|(start, ..)| (*start).max(log.checkpoint_lsn()));
                model.checkpoint_asked = model.checkpoint_asked.max(at.unwrap_or(log.next_lsn()));
                log.checkpoint(|| at, || (), false)?;
                let checkpoint = log.checkpoint_lsn();
                model.flushed = model.flushed.max(checkpoint);
                // `has_room` must come true again.
                if at.is_none() {
                    log.prepare_files()?;
                    assert!(log.has_room(), "an empty log has no room: {:?}", log.stats());
                }
            }
        }
    }
    Ok(())
}

/// What was read back must be a prefix of what was appended, and hold all that was flushed.
fn check(model: &mut Model, scan: &Scan, found: &[(Lsn, Vec<u8>)], seed: u64) {
    assert!(scan.end >= model.flushed, "seed {seed}: flushed frames are lost");
    let checkpoint = scan.epochs[0].0;
    assert!(checkpoint <= model.checkpoint_asked.max(FIRST_LSN), "seed {seed}");
    model.frames.retain(|(_, end, _)| *end <= scan.end);
    let expected: Vec<_> = model
        .frames
        .iter()
        .filter(|(start, ..)| *start >= checkpoint)
        .map(|(start, _, body)| (*start, body.clone()))
        .collect();
    let starts = |frames: &[(Lsn, Vec<u8>)]| frames.iter().map(|f| f.0.0).collect::<Vec<_>>();
    assert!(
        found == expected,
        "seed {seed}: read back {:?} instead of {:?}, up to {}, epochs {:?}",
        starts(found),
        starts(&expected),
        scan.end.0,
        scan.epochs
    );
    // What was read is durable now.
    model.flushed = scan.end;
}

#[test]
fn crashes_lose_nothing_flushed_and_keep_a_prefix() {
    for seed in seeds(150) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut storage = SimStorage::new(seed);
        let mut model = Model::default();
        for _ in 0..rng.random_range(1..6) {
            let kill = rng.random_bool(0.3);
            if rng.random_bool(0.8) {
                let most = [10, 60, 400][rng.random_range(0..3)];
                let at = storage.operation_count() + rng.random_range(1..most);
                if kill { storage.kill_at(at) } else { storage.crash_at(at) }
            }
            let is_encrypted = rng.random_bool(0.5);
            match open_life(Arc::new(storage.clone()), AcceptLogLoss::No, is_encrypted) {
                Ok((log, scan, found)) => {
                    check(&mut model, &scan, &found, seed);
                    let steps = rng.random_range(1..600);
                    let result = life(&log, &mut model, &mut rng, steps);
                    assert!(result.is_ok() || storage.is_down(), "seed {seed}: {result:?}");
                }
                Err(error) => assert!(storage.is_down(), "seed {seed}: {error}"),
            }
            storage = match rng.random_range(0..4) {
                _ if kill && storage.is_down() => storage.kill(),
                0 if !storage.is_down() => storage.kill(),
                _ => storage.crash(),
            };
        }
        let (_, scan, found) =
            open(&storage).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check(&mut model, &scan, &found, seed);
    }
}

/// What a process that is killed in the middle of a write of the control file leaves there is read
/// by the next one, and can still be lost; the other slot must be whole until it can't.
#[test]
fn a_control_slot_left_unsynced_is_durable_before_the_other_is_overwritten() {
    for seed in 0..3 {
        let storage = SimStorage::new(seed);
        let (log, ..) = open(&storage).unwrap();
        append(&log, b"acknowledged");
        log.flush().unwrap();
        // The slot is written, but not synced.
        storage.kill_at(storage.operation_count() + 2);
        log.checkpoint(|| None, || (), false).unwrap_err();
        drop(log);
        let killed = storage.kill();
        for ahead in 1..8 {
            let storage = killed.kill();
            storage.crash_at(storage.operation_count() + ahead);
            let _ = open(&storage);
            for outcome in 0..100 {
                let reopened = open(&storage.crash_with(outcome));
                let why = reopened.err().map(|error| error.to_string());
                assert_eq!(why, None, "seed {seed}, operation {ahead}, outcome {outcome}");
            }
        }
    }
}

/// The same of the names that it gives while it makes the directory.
#[test]
fn a_log_whose_making_was_killed_is_there_once_it_has_acknowledged_something() {
    let storage = SimStorage::new(0);
    open(&storage).unwrap();
    for at in 1..=storage.operation_count() {
        let storage = SimStorage::new(at);
        storage.kill_at(at);
        let _ = open(&storage);
        let storage = storage.kill();
        let (log, ..) = open(&storage).unwrap();
        append(&log, b"acknowledged");
        log.flush().unwrap();
        for outcome in 0..20 {
            let storage = storage.crash_with(outcome);
            assert!(storage.exists(control::CONTROL_FILE).unwrap(), "operation {at}");
            let (_, scan, _) = open(&storage).unwrap();
            assert!(scan.end >= log.flushed_lsn(), "operation {at}, outcome {outcome}");
        }
    }
}

/// Appends a frame that ends at `end`.
fn append_up_to(log: &RedoLog, end: u64, fill: u8) {
    let room = (end - log.next_lsn().0) as usize;
    let fits = |len: &usize| {
        let mut writer = Writer::default();
        writer.page(1, 2, |out| out.resize(out.len() + len, fill));
        frame::frame_len(writer.bytes().len()) == room
    };
    let len = (0..room).rev().find(fits).expect("some length fits");
    assert_eq!(append(log, &vec![fill; len]).1.0, end);
}

/// The same of a log that is flushed up to there: it ends with a durable mark.
fn flush_up_to(log: &RedoLog, end: u64, fill: u8) {
    append_up_to(log, end - mark::MARK_LEN as u64, fill);
    log.flush().unwrap();
    assert_eq!(log.flushed_lsn().0, end);
}

#[test]
fn a_log_that_ends_with_its_last_file_goes_on_in_the_next() {
    for clean in [true, false] {
        let storage = SimStorage::new(1);
        let (log, ..) = open(&storage).unwrap();
        let end = log.ring.lock().end();
        flush_up_to(&log, end.0, 1);
        log.checkpoint(|| None, || (), clean).unwrap();
        assert_eq!(log.checkpoint_lsn(), end);
        assert_eq!(log.ring.lock().end(), end, "nothing has extended the ring");
        drop(log);
        let (log, scan, frames) = open(&storage.kill()).unwrap();
        assert_eq!((scan.end, frames.len()), (end, 0));
        append(&log, b"more");
        log.flush().unwrap();
    }
}

#[test]
fn what_an_earlier_life_left_behind_its_end_stays_dead() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    append_up_to(&log, 5000, 1);
    append_up_to(&log, 12288, 2);
    append_up_to(&log, 13000, 3);
    log.flush().unwrap();
    drop(log);
    let storage = storage.kill();
    // The second frame was torn: the log ends after the first.
    storage.corrupt("redo/redo.00000001", 6000, 1);
    let (log, scan, frames) = open(&storage).unwrap();
    assert_eq!((scan.end, frames.len()), (Lsn(5000), 1));
    // The new life's log ends exactly where the third frame begins.
    flush_up_to(&log, 12288, 4);
    drop(log);
    let (_, scan, frames) = open(&storage.kill()).unwrap();
    assert_eq!((scan.end, frames.len()), (Lsn(12288), 2), "the third frame is of an earlier epoch");
}

/// Where the log goes on follows from a file's header if the newest control slot is lost. What is
/// in that file may be as undurable as in those that are listed.
#[test]
fn a_file_found_by_its_header_is_synced_before_its_log_counts() {
    for seed in 0..10 {
        let storage = SimStorage::new(seed);
        let (log, ..) = open(&storage).unwrap();
        let end = log.ring.lock().end();
        append_up_to(&log, end.0, 1);
        log.flush().unwrap();
        append(&log, &[2; 3000]);
        log.write_to(log.next_lsn()).unwrap();
        let newest = control::Control::slot_offset(log.ring.lock().control().sequence);
        drop(log);
        let storage = storage.kill();
        storage.corrupt("redo/control", newest + 100, 1);
        let (log, found, _) = open(&storage).unwrap();
        assert!(found.end > end, "the second file is part of the log");
        drop(log);
        for outcome in 0..10 {
            let (_, scan, _) = open(&storage.crash_with(outcome)).unwrap();
            assert!(scan.end >= found.end, "seed {seed}, outcome {outcome}: what was read is gone");
        }
    }
}

/// A write that began before the failure would take it along. Its LSN is never durable.
#[test]
fn what_comes_after_a_failure_is_not_in_the_log() {
    let (log, ..) = open(&SimStorage::new(1)).unwrap();
    let (_, before) = append(&log, &[1; 100]);
    log.failure.set("on purpose");
    let (start, end) = append(&log, &[2; 100]);
    assert!((start, log.next_lsn()) == (before, before) && end > before);
}

/// Who fills trees rests before others have to wait for room, and goes on after a checkpoint.
#[test]
fn a_log_is_crowded_before_it_has_no_room() {
    let (log, ..) = open(&SimStorage::new(1)).unwrap();
    log.prepare_files().unwrap();
    assert!(!log.is_crowded());
    while !log.is_crowded() {
        assert!(log.has_room(), "{:?}", log.stats());
        append(&log, &[1; 10_000]);
        log.write_to(log.next_lsn()).unwrap();
        log.prepare_files().unwrap();
    }
    assert!(log.has_room(), "others can still write: {:?}", log.stats());
    log.wait_while_crowded(Duration::from_millis(1));
    log.hold_checkpoint(true);
    assert!(!log.is_crowded(), "no rest would make room");
    log.hold_checkpoint(false);
    assert!(log.is_crowded());
    log.checkpoint(|| None, || (), false).unwrap();
    assert!(!log.is_crowded());
}

/// Many mini-transactions that have begun while there was room may need more than the reserve. Then
/// there is no room for others, or the log would grow by a wave of them after the other for as long
/// as the checkpoint stands still.
#[test]
fn a_file_beyond_the_capacity_is_no_room_for_more() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    log.prepare_files().unwrap();
    while log.has_room() {
        append(&log, &[1; 1000]);
        log.prepare_files().unwrap();
    }
    for _ in 0..100 {
        append(&log, &[2; 1000]);
    }
    log.flush().unwrap();
    log.prepare_files().unwrap();
    let stats = log.stats();
    assert!(stats.files_bytes > CAPACITY, "the writer needed no more: {stats:?}");
    assert!(!log.has_room(), "{stats:?}");
    log.checkpoint(|| None, || (), false).unwrap();
    log.prepare_files().unwrap();
    assert!(log.has_room());
    assert!(log.stats().files_bytes <= CAPACITY + file_size(), "{:?}", log.stats());
}

#[test]
fn a_file_made_ahead_is_thrown_away_if_the_list_became_full_meanwhile() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    log.set_capacity(1 << 30).unwrap();
    log.ring.lock().set_file_size(file_size());
    let files = |log: &RedoLog| log.ring.lock().control().files.len();
    // The log is at the end of its last file, and one more can be made ahead.
    let most_ahead = control::MAX_FILES - checkpoint::FILES_KEPT_FOR_THE_WRITER;
    while files(&log) < most_ahead - 1 || log.next_lsn() < log.ring.lock().end() {
        let end = log.ring.lock().end();
        flush_up_to(&log, end.0 + if log.next_lsn() == end { file_size() } else { 0 }, 1);
    }
    let log = Arc::new(log);
    let writer = log.clone();
    let hook = move |point| {
        if point != PausePoint::RedoFileMade {
            return;
        }
        while writer.ring.lock().has_room() {
            writer.ring.lock().extend().unwrap();
        }
    };
    with_hook(hook, || log.prepare_files()).unwrap();
    assert_eq!(files(&log), control::MAX_FILES);
    assert_eq!(storage.list(ring::REDO_DIR).unwrap().len(), control::MAX_FILES + 1);
    // Nor does the writer leave one behind that it can't list.
    assert!(log.ring.lock().extend().is_err());
    assert_eq!(storage.list(ring::REDO_DIR).unwrap().len(), control::MAX_FILES + 1);
    append(&log, b"more");
    log.flush().unwrap();
    log.checkpoint(|| None, || (), false).unwrap();
    log.prepare_files().unwrap();
}

#[test]
fn a_file_that_cannot_be_removed_is_in_nobodys_way() {
    let storage = SimStorage::new(1);
    let files_there = |storage: &SimStorage| storage.list(ring::REDO_DIR).unwrap().len();
    let (log, ..) = open(&storage).unwrap();
    let fault = || Fault::new(StorageOp::Remove, FaultKind::Io).on("redo/").always();
    storage.inject(fault());
    // More files than the capacity has room for, and then a checkpoint that makes them spare.
    for _ in 0..40 {
        log.ring.lock().extend().unwrap();
    }
    let listed = |log: &RedoLog| log.ring.lock().control().files.len();
    let most = listed(&log);
    append_up_to(&log, log.ring.lock().end().0 - file_size(), 1);
    log.flush().unwrap();
    log.checkpoint(|| None, || (), false).unwrap();
    log.prepare_files().unwrap();
    assert!(listed(&log) < most, "nothing was spare");
    assert!(files_there(&storage) > listed(&log) + 1, "a file is gone");
    append(&log, b"goes on");
    log.flush().unwrap();
    let end = log.next_lsn();
    drop(log);
    // It opens beside them, as often as need be, and takes none of them for its own.
    let mut storage = storage;
    for _ in 0..3 {
        storage = storage.kill();
        storage.inject(fault());
        let (log, scan, _) = open(&storage).unwrap();
        assert_eq!(scan.end, end);
        log.prepare_files().unwrap();
    }
    let storage = storage.kill();
    storage.clear_faults();
    let (log, scan, _) = open(&storage).unwrap();
    assert_eq!(scan.end, end);
    assert_eq!(files_there(&storage), listed(&log) + 1);
}

/// Fills the log with `bytes` more, and has files made ahead now and then.
fn fill(log: &RedoLog, bytes: u64) {
    let end = log.next_lsn().0 + bytes;
    while log.next_lsn().0 < end {
        append(log, &[7; 30_000]);
        log.flush().unwrap();
        log.prepare_files().unwrap();
    }
}

/// A thread that waits for room waits for the next file to be filled with zeroes, and the log may
/// be full when it gets a larger size.
#[test]
fn a_log_of_a_much_larger_capacity_grows_by_files_no_larger_than_itself() {
    const LARGER: u64 = 64 << 20;
    for by_writer in [false, true] {
        let (log, ..) = open(&SimStorage::new(1)).unwrap();
        log.prepare_files().unwrap();
        log.set_capacity(LARGER).unwrap();
        let first: u64 = log.stats().files_bytes;
        if by_writer {
            let mut ring = log.ring.lock();
            let spares = ring.spares();
            (0..=spares).for_each(|_| ring.extend().unwrap());
        }
        let known = log.ring.lock().control().next_file_no;
        fill(&log, 2 * default_file_size(LARGER));
        let mut files = log.ring.lock().control().files.clone();
        files.sort_by_key(|file| file.file_no);
        let mut before = first;
        for file in files.iter().filter(|file| file.file_no >= known) {
            assert!(file.size <= before, "{} bytes behind {before}", file.size);
            before += file.size;
        }
        let stats = log.stats();
        assert!(stats.files_bytes - stats.next_lsn >= default_file_size(LARGER), "{stats:?}");
    }
}

/// A file that was made for a larger capacity may hold all of a smaller one. While the log ends in
/// it, a checkpoint makes no room there.
#[test]
fn a_log_whose_capacity_was_lowered_goes_on_whichever_files_are_left() {
    const SMALL: u64 = 4 << 20;
    for further in 0..8 {
        let (log, ..) = open(&SimStorage::new(1)).unwrap();
        log.set_capacity(16 * SMALL).unwrap();
        let has_large = || log.ring.lock().control().files.iter().any(|file| file.size == SMALL);
        while !has_large() {
            fill(&log, 64 << 10);
        }
        fill(&log, further * SMALL / 4);
        log.set_capacity(SMALL).unwrap();
        let end = log.next_lsn().0 + 6 * SMALL;
        while log.next_lsn().0 < end {
            if !log.has_room() {
                log.checkpoint(|| None, || (), false).unwrap();
                log.prepare_files().unwrap();
                assert!(log.has_room(), "{further}: {:?}", log.stats());
            }
            append(&log, &[7; 30_000]);
            log.flush().unwrap();
        }
        assert!(log.stats().files_bytes <= SMALL, "{further}: {:?}", log.stats());
    }
}

/// An application may have many directories with little in them.
#[test]
fn the_log_of_a_new_directory_is_small_and_grows_with_what_is_logged() {
    const LARGE: u64 = 1 << 30;
    let (log, ..) = open(&SimStorage::new(1)).unwrap();
    log.set_capacity(LARGE).unwrap();
    log.prepare_files().unwrap();
    assert!(log.stats().files_bytes <= 512 << 10, "{:?}", log.stats());
    fill(&log, 4 << 20);
    let stats = log.stats();
    assert!(stats.files_bytes > stats.next_lsn + (4 << 20), "{stats:?}");
    assert!(stats.files_bytes < 20 << 20, "{stats:?}");
    assert!(log.ring.lock().control().files.len() < 20, "{stats:?}");
}

/// A file made ahead may be of gigabytes, and closing the log does not wait for these.
#[test]
fn a_file_that_is_being_filled_is_given_up_when_the_log_is_to_close() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    let log = Arc::new(log);
    log.set_capacity(32 << 20).unwrap();
    fill(&log, 4 << 20);
    // The next files take several pieces.
    log.set_capacity(1 << 30).unwrap();
    let (closing, made) = (log.clone(), Arc::new(AtomicU64::new(0)));
    let (counter, mut pieces) = (made.clone(), 0);
    let hook = move |point| match point {
        PausePoint::RedoFileFilling => {
            pieces += 1;
            assert!(pieces <= 2, "the file is filled to its end");
            if pieces == 2 {
                closing.stop_preparing();
            }
        }
        // The last one is reached, too.
        PausePoint::RedoFileMade => {
            counter.fetch_add(1, Ordering::Relaxed);
            pieces = 0;
        }
        _ => {}
    };
    let files = || log.ring.lock().control().files.len();
    let before = files();
    with_hook(hook, || log.prepare_files()).unwrap();
    assert_eq!(files(), before + made.load(Ordering::Relaxed) as usize - 1);
    assert_eq!(storage.list(ring::REDO_DIR).unwrap().len(), files() + 1);
    assert_eq!(log.growth_error(), None);
    append(&log, b"the last");
    log.flush().unwrap();
    log.checkpoint(|| None, || (), true).unwrap();
}
