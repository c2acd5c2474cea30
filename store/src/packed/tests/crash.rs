//! Power cuts and kills at any operation of random lives, failing operations, and full disks.
//!
//! `TIDEPOOL_SEED=n` replays one run, `TIDEPOOL_SEEDS=n` runs n of them.

use super::super::*;
use super::model::{
    FILE, KEY, Model, Random, SPACE, create, free, give_keys, image, keys, reopen, settings,
};
use crate::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};

const PAGES: u32 = 60;

/// One step of a life: a batch, a cleaning, a reserve, a checkpoint, a trim, another key, a sealing
/// anew. Any of them may fail.
fn step(packed: &PackedFile, model: &mut Model, random: &mut Random, version: u32) -> Result<()> {
    match random.below(12) {
        10 if random.below(2) == 0 => {
            let version = 1 + random.below(40) as u32;
            let key = (!version.is_multiple_of(4)).then(|| keys().page_key(KEY, version).unwrap());
            packed.encrypt_with(key);
        }
        10 | 11 => {
            let (age, exact) = (random.below(3) as u32, random.below(2) == 0);
            let resealing = Resealing { age, exact, images_max: 20 };
            packed.reseal(SPACE, random.below(PAGES as usize) as u32, resealing)?;
        }
        0..6 => {
            let first = random.below(PAGES as usize) as u32;
            let count = 1 + random.below(24) as u32;
            let images: Vec<(u32, u32)> = (0..count)
                .map(|at| {
                    let no = model.page((first + at) % PAGES);
                    (no, if random.below(12) == 0 { 0 } else { version })
                })
                .collect();
            let batch: Vec<Image> = images
                .iter()
                .map(|(no, version)| if *version == 0 { free(*no) } else { image(*no, *version) })
                .collect();
            // Also if the batch fails: parts of it may be found after a crash.
            model.perhaps(&images);
            packed.write(Stream::Flushed, &batch)?;
            model.durable(&images);
        }
        6..8 => {
            if let Some(victim) = packed.victim() {
                packed.clean(victim)?;
            }
        }
        8 if random.below(3) == 0 => packed.reserve(random.below(30) as u32)?,
        8 => packed.checkpoint()?,
        _ if random.below(2) == 0 => _ = packed.shorten()?,
        _ => packed.trim_map(random.below(3)),
    }
    Ok(())
}

/// Steps until the power is cut, the process is killed or a sync fails. Any other operation that
/// fails changes nothing, and life goes on.
fn live(
    (disk, packed): (&SimStorage, &PackedFile),
    (model, random): (&mut Model, &mut Random),
    versions: impl Iterator<Item = u32>,
) -> u32 {
    let mut last = 0;
    for version in versions {
        last = version;
        match step(packed, model, random, version) {
            Ok(()) => {}
            Err(Error::Storage(_)) if disk.is_down() => break,
            Err(error) if error.is_failed_sync() => break,
            Err(Error::Storage(error)) => {
                assert!(matches!(error.op, StorageOp::Write | StorageOp::SetLen), "{error}");
            }
            Err(error) => panic!("version {version}: {error}"),
        }
    }
    last
}

/// Lives until the power is cut or the process is killed, at an operation by chance; then another
/// one on what is left. Seeds differ in what fails meanwhile.
fn lives(seed: u64) {
    let mut random = Random::new(seed);
    let mut disk = SimStorage::new(seed);
    // One leaf, several, and one for each page.
    let mut model = Model { stride: [1, 97, 1030][random.below(3)], ..Model::default() };
    let mut packed = create(&disk, seed);
    if random.below(3) == 0 {
        disk.set_capacity(Some([600, 900][random.below(2)] << 10));
    }
    if seed % 3 == 1 {
        // A few places refuse writes, in all lives.
        let mut random = Random::new(seed + 1000);
        for _ in 0..1 + random.below(3) {
            let start = (16 << 10) + random.below(800 << 10) as u64;
            let place = start..start + 1 + random.below(20 << 10) as u64;
            disk.inject(Fault::new(StorageOp::Write, FaultKind::Io).within(place).always());
        }
    }
    let mut version = 1;
    for life in 0..6 {
        let what = format!("seed {seed}, life {life}");
        model.check(&packed, PAGES, &what);
        match seed % 4 {
            0 => {}
            1 => disk.set_error_chance(StorageOp::Write, FaultKind::Io, 60_000),
            2 => disk.set_error_chance(StorageOp::SetLen, FaultKind::NoSpace, 300_000),
            _ => {
                disk.set_error_chance(StorageOp::Write, FaultKind::Io, 20_000);
                disk.set_error_chance(StorageOp::Sync, FaultKind::Io, 20_000);
            }
        }
        let at = disk.operation_count() + 1 + random.below(60) as u64;
        let is_killed = random.below(3) == 0;
        match is_killed {
            true => disk.kill_at(at),
            false => disk.crash_at(at),
        }
        version = live((&disk, &packed), (&mut model, &mut random), version..) + 1;
        let known = packed.usage().sequence;
        disk = if is_killed { disk.kill() } else { disk.crash() };
        drop(packed);
        if random.below(4) == 0 {
            // Opening syncs, and changes nothing else.
            disk.crash_at(disk.operation_count() + 1);
            assert!(reopen(&disk, seed).is_err(), "{what}");
            disk = disk.crash();
        }
        let settings = settings(seed + 1 + life);
        packed = PackedFile::open(disk.open(FILE).unwrap(), settings, Access::ReadWrite, known)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        give_keys(&packed);
    }
    model.check(&packed, PAGES, &format!("seed {seed}, at last"));
    // With room on the disk, a batch can be written, whatever places refuse it.
    disk.set_capacity(None);
    let done = (0..20).any(|_| packed.write(Stream::Flushed, &[image(1, version)]).is_ok());
    assert!(done, "seed {seed}: no batch can be written");
}

#[test]
fn what_was_durable_is_there_after_power_cuts() {
    seeds(40).for_each(lives);
}

/// The seeds that the environment asks for, else the first `count`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    match number("TIDEPOOL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("TIDEPOOL_FIRST_SEED").unwrap_or(0);
            first..first + number("TIDEPOOL_SEEDS").unwrap_or(count)
        }
    }
}

/// A disk that acknowledges writes that it does not make, or makes elsewhere: every page is right,
/// or the file says that it is not.
fn life_with_lies(seed: u64) -> bool {
    let (mut model, mut random) = (Model::default(), Random::new(seed));
    let disk = SimStorage::new(seed);
    let packed = create(&disk, seed);
    for kind in [FaultKind::Lost, FaultKind::Misplaced] {
        disk.set_error_chance(StorageOp::Write, kind, 10_000);
    }
    for version in 1..40 + random.below(60) as u32 {
        match step(&packed, &mut model, &mut random, version) {
            Ok(()) => {}
            Err(Error::Corrupt { .. } | Error::File { .. } | Error::WrongFile { .. }) => break,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    disk.clear_faults();
    let whole = model.check_reported(&packed, PAGES, &format!("seed {seed}"));
    let known = packed.usage().sequence;
    drop(packed);
    let opened =
        PackedFile::open(disk.open(FILE).unwrap(), settings(seed + 1), Access::ReadWrite, known);
    whole
        & opened.is_ok_and(|packed| {
            give_keys(&packed);
            model.check_reported(&packed, PAGES, &format!("seed {seed}, after a restart"))
        })
}

#[test]
fn a_lost_or_misplaced_write_is_right_or_reported() {
    let lives = seeds(150);
    let whole = lives.clone().filter(|seed| life_with_lies(*seed)).count();
    let count = lives.count();
    println!("{whole} lives of {count} without an error");
    assert!(count < 100 || (1..count).contains(&whole), "{whole} of {count}: no disk lied, or all");
}

/// Each operation of one life is where the power is cut, and each of those ends in several ways.
#[test]
fn the_power_can_be_cut_at_any_operation() {
    let life = |disk: &SimStorage, model: &mut Model| {
        let packed = create(disk, 77);
        live((disk, &packed), (model, &mut Random::new(4)), 1..60)
    };
    let whole = SimStorage::new(3);
    life(&whole, &mut Model::default());
    let first = {
        let disk = SimStorage::new(3);
        create(&disk, 77);
        disk.operation_count()
    };
    for at in first + 1..whole.operation_count() {
        let disk = SimStorage::new(3);
        disk.crash_at(at);
        let mut model = Model::default();
        life(&disk, &mut model);
        for outcome in 0..4 {
            let disk = disk.crash_with(outcome);
            let packed = reopen(&disk, 78).unwrap_or_else(|error| panic!("cut at {at}: {error}"));
            model.clone().check(&packed, PAGES, &format!("cut at {at}, outcome {outcome}"));
        }
    }
}

/// A batch for which there is no room fails and changes nothing. A checkpoint can be written all
/// the same, and with the cleaner it makes room for the batch.
#[test]
fn a_full_disk_loses_nothing() {
    for seed in 0..9 {
        let disk = SimStorage::new(seed);
        let (mut model, mut random) = (Model::default(), Random::new(seed));
        let packed = create(&disk, seed);
        disk.set_capacity(Some([500, 600, 700][seed as usize % 3] << 10));
        let mut refused = 0;
        for version in 1..400 {
            let first = random.below(PAGES as usize) as u32;
            let images: Vec<(u32, u32)> =
                (0..12).map(|at| ((first + at) % PAGES, version)).collect();
            let batch: Vec<Image> =
                images.iter().map(|(no, version)| image(*no, *version)).collect();
            match packed.write(Stream::Flushed, &batch) {
                Ok(()) => model.durable(&images),
                Err(Error::Storage(error)) if error.is_no_space() => {
                    refused += 1;
                    packed.checkpoint().unwrap();
                    while let Some(victim) = packed.victim().filter(|victim| victim.share() < 0.9) {
                        if packed.clean(victim).is_err() {
                            break;
                        }
                    }
                    packed.checkpoint().unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0 && refused < 390, "{refused} batches were refused");
        model.check(&packed, PAGES, &format!("seed {seed}"));
        drop(packed);
        model.check(&reopen(&disk, seed).unwrap(), PAGES, &format!("seed {seed}, {FILE} again"));
    }
}

/// Batches of several files are written at once; one whose writes fail changes nothing, the others
/// are durable.
#[test]
fn batches_of_several_files_stand_or_fall_alone() {
    let disk = SimStorage::new(1);
    let files: Vec<PackedFile> = (0..5)
        .map(|at| {
            let settings = Settings { space: 10 + at, ..super::model::settings(u64::from(at)) };
            PackedFile::create(disk.create(&format!("f{at}")).unwrap(), settings).unwrap()
        })
        .collect();
    let batch: Vec<Image> = (0..20).map(|no| image(no, 1)).collect();
    // The next write of the third file fails.
    disk.inject(crate::storage::Fault::new(StorageOp::Write, FaultKind::Io).on("f2"));
    let prepared = files.iter().map(|file| file.prepare(Stream::Flushed, &batch).unwrap());
    let outcomes = write_all(&disk, prepared.collect(), Threads::Caller);
    let failed: Vec<usize> = (0..5).filter(|at| outcomes[*at].is_err()).collect();
    assert_eq!(failed, [2]);
    let mut bytes = vec![0; super::model::PAGE];
    for (at, file) in files.iter().enumerate() {
        let found = file.read(super::model::SPACE, 7, &mut bytes).unwrap();
        assert_eq!(found == Found::Nothing, at == 2, "file {at}");
    }
    files[2].write(Stream::Flushed, &batch).unwrap();
    assert_eq!(files[2].read(super::model::SPACE, 7, &mut bytes).unwrap(), Found::Page);
}
