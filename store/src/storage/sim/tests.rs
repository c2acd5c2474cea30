//! The simulation against real files, and against its own contract.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::storage::{AlignedBuf, FileOptions, FileStorage};

/// Cases of each property test; more by the environment variable that proptest reads.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(200), failure_persistence: None, ..Default::default() }
}

fn sectors(count: usize, fill: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(count * 512);
    buf.fill(fill);
    buf
}

fn read_all(file: &dyn StorageFile) -> Vec<u8> {
    let mut buf = AlignedBuf::zeroed(file.len().unwrap() as usize);
    file.read_at(&mut buf, 0).unwrap();
    buf.to_vec()
}

/// A synced file of `count` sectors filled with `fill`.
fn synced_file(sim: &SimStorage, name: &str, count: usize, fill: u8) -> Arc<dyn StorageFile> {
    let file = sim.create(name).unwrap();
    file.write_at(&sectors(count, fill), 0).unwrap();
    file.sync_data().unwrap();
    sim.sync_dir("").unwrap();
    file
}

/// Every name with its contents (`None` = a directory).
fn image(storage: &dyn Storage) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut image = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for name in storage.list(&dir).unwrap() {
            let name = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            match storage.open(&name) {
                Ok(file) => drop(image.insert(name, Some(read_all(&*file)))),
                Err(_) => {
                    image.insert(name.clone(), None);
                    dirs.push(name);
                }
            }
        }
    }
    image
}

// ---- the live view ----------------------------------------------------------------------------

/// One step of a random program; names and handles are small numbers.
#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Create(usize),
    Remove(usize),
    Rename(usize, usize),
    CreateDir,
    Exists(usize),
    List(bool),
    SyncDir(bool),
    Read { handle: usize, sector: u64, count: usize },
    Write { handle: usize, sector: u64, count: usize, fill: u8 },
    Sync(usize),
    SetLen { handle: usize, sectors: u64 },
}

const NAMES: [&str; 5] = ["a", "b", "dir/c", "dir/d", "dir"];

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let handle = 0..4usize;
    prop_oneof![
        1 => name.clone().prop_map(Step::Open),
        3 => name.clone().prop_map(Step::Create),
        1 => name.clone().prop_map(Step::Remove),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::CreateDir),
        1 => name.prop_map(Step::Exists),
        1 => any::<bool>().prop_map(Step::List),
        1 => any::<bool>().prop_map(Step::SyncDir),
        4 => (handle.clone(), 0..40u64, 0..20usize)
            .prop_map(|(handle, sector, count)| Step::Read { handle, sector, count }),
        6 => (handle.clone(), 0..40u64, 1..20usize, any::<u8>())
            .prop_map(|(handle, sector, count, fill)| Step::Write { handle, sector, count, fill }),
        2 => handle.clone().prop_map(Step::Sync),
        2 => (handle, 0..60u64).prop_map(|(handle, sectors)| Step::SetLen { handle, sectors }),
    ]
}

/// What a step shows to the program.
type Seen = std::result::Result<Vec<u8>, io::ErrorKind>;

fn run(storage: &dyn Storage, handles: &mut Vec<Arc<dyn StorageFile>>, step: &Step) -> Seen {
    let nothing = |()| Vec::new();
    let dir = |root: bool| if root { "" } else { "dir" };
    let open = |handles: &mut Vec<_>, file| {
        // The newest handle sits first; the fifth is closed.
        handles.insert(0, file);
        handles.truncate(4);
    };
    let seen = match *step {
        Step::Open(name) => storage.open(NAMES[name]).map(|file| open(handles, file)).map(nothing),
        Step::Create(name) => {
            storage.create(NAMES[name]).map(|file| open(handles, file)).map(nothing)
        }
        Step::Remove(name) => storage.remove(NAMES[name]).map(nothing),
        Step::Rename(from, to) => storage.rename(NAMES[from], NAMES[to]).map(nothing),
        Step::CreateDir => storage.create_dir("dir").map(nothing),
        Step::Exists(name) => storage.exists(NAMES[name]).map(|yes| vec![yes.into()]),
        Step::List(root) => storage.list(dir(root)).map(|names| names.join(",").into_bytes()),
        Step::SyncDir(root) => storage.sync_dir(dir(root)).map(nothing),
        Step::Read { handle, sector, count } => match handles.get(handle) {
            Some(file) => {
                let mut buf = sectors(count, 0);
                file.read_at(&mut buf, sector * 512).map(|()| buf.to_vec())
            }
            None => Ok(Vec::new()),
        },
        Step::Write { handle, sector, count, fill } => match handles.get(handle) {
            Some(file) => file.write_at(&sectors(count, fill), sector * 512).map(nothing),
            None => Ok(Vec::new()),
        },
        Step::Sync(handle) => match handles.get(handle) {
            Some(file) => file.sync_data().map(nothing),
            None => Ok(Vec::new()),
        },
        Step::SetLen { handle, sectors } => match handles.get(handle) {
            Some(file) => file.set_len(sectors * 512).map(nothing),
            None => Ok(Vec::new()),
        },
    };
    seen.map_err(|error| error.kind())
}

proptest! {
    #![proptest_config(config())]

    /// A program can't tell the simulation from the operating system, as long as nothing fails.
    #[test]
    fn live_view_is_that_of_real_files(steps in prop::collection::vec(step(), 1..60), kill in 0..60usize) {
        let dir = tempfile::tempdir().unwrap();
        let real = FileStorage::new(dir.path(), FileOptions { direct_io: false, ..FileOptions::default() }).unwrap();
        let mut sim = SimStorage::new(1);
        let (mut real_handles, mut sim_handles) = (Vec::new(), Vec::new());
        for (number, step) in steps.iter().enumerate() {
            if number == kill {
                sim = sim.kill();
                real_handles.clear();
                sim_handles.clear();
            }
            // Renaming a directory is not offered by the simulation, nor used.
            if matches!(step, Step::Rename(from, to) if NAMES[*from] == "dir" || NAMES[*to] == "dir") {
                continue;
            }
            let expected = run(&real, &mut real_handles, step);
            prop_assert_eq!(run(&sim, &mut sim_handles, step), expected, "{:?}", step);
        }
        prop_assert_eq!(image(&sim), image(&real));
        // With everything synced, a crash takes nothing.
        for name in image(&sim).into_iter().filter_map(|(name, bytes)| bytes.map(|_| name)) {
            sim.open(&name).unwrap().sync_data().unwrap();
        }
        sim.sync_dir("").unwrap();
        if sim.exists("dir").unwrap() && sim.open("dir").is_err() {
            sim.sync_dir("dir").unwrap();
        }
        let before = image(&sim);
        prop_assert_eq!(image(&sim.crash()), before);
    }
}

// ---- what a crash leaves ----------------------------------------------------------------------

/// What a crash may make of one file, by the contract: kept apart from the simulation's own books.
#[derive(Default)]
struct Legal {
    now: Vec<u8>,
    lengths: BTreeSet<usize>,
    /// For each sector ever written, the fills it may show.
    fills: BTreeMap<usize, BTreeSet<u8>>,
    ever_resized: bool,
}

impl Legal {
    fn sync(&mut self) {
        *self = Legal { now: std::mem::take(&mut self.now), ..Legal::default() };
        self.lengths.insert(self.now.len());
        for (sector, bytes) in self.now.chunks(512).enumerate() {
            self.fills.entry(sector).or_default().insert(bytes[0]);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.ever_resized |= len != self.now.len();
        self.now.resize(len, 0);
        self.lengths.insert(len);
    }

    fn write(&mut self, sector: usize, count: usize, fill: u8) {
        let (start, end) = (sector * 512, (sector + count) * 512);
        self.set_len(self.now.len().max(end));
        self.now[start..end].fill(fill);
        for sector in sector..sector + count {
            self.fills.entry(sector).or_default().insert(fill);
        }
    }

    fn check(&self, bytes: &[u8]) {
        assert!(self.lengths.contains(&bytes.len()), "length {}", bytes.len());
        for (sector, bytes) in bytes.chunks(512).enumerate() {
            let fill = bytes[0];
            assert!(bytes.iter().all(|&b| b == fill), "sector {sector} is torn");
            let known = self.fills.get(&sector).is_some_and(|fills| fills.contains(&fill));
            assert!(known || (fill == 0 && self.ever_resized), "sector {sector} shows {fill}");
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_crash_leaves_a_legal_mix(
        seed: u64,
        steps in prop::collection::vec((0..8u8, 0..2usize, 0..40usize, 1..20usize), 1..80),
    ) {
        let sim = SimStorage::new(seed);
        let names = ["a", "b"];
        let files = names.map(|name| sim.create(name).unwrap());
        sim.sync_dir("").unwrap();
        let mut legal = [Legal::default(), Legal::default()];
        legal.iter_mut().for_each(Legal::sync);
        for (number, &(what, which, sector, count)) in steps.iter().enumerate() {
            let (file, legal, fill) = (&files[which], &mut legal[which], 1 + number as u8);
            match what {
                0 => {
                    file.sync_data().unwrap();
                    legal.sync();
                }
                1 => {
                    file.set_len(sector as u64 * 512).unwrap();
                    legal.set_len(sector * 512);
                }
                2 => {
                    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io));
                    file.write_at(&sectors(count, fill), sector as u64 * 512).unwrap_err();
                    // Sector by sector old or new, and so is the length: what it is now, we see.
                    let now = read_all(&**file);
                    for end in sector..sector + count {
                        legal.lengths.insert(((end + 1) * 512).max(legal.now.len()));
                    }
                    legal.ever_resized |= now.len() != legal.now.len();
                    legal.now.resize(now.len().max((sector + count) * 512), 0);
                    let old_len = now.len();
                    legal.write(sector, count, fill);
                    legal.check(&now);
                    legal.now.truncate(old_len);
                    legal.now.copy_from_slice(&now);
                }
                _ => {
                    file.write_at(&sectors(count, fill), sector as u64 * 512).unwrap();
                    legal.write(sector, count, fill);
                }
            }
            prop_assert_eq!(&read_all(&**file), &legal.now);
        }
        for outcome in 0..8 {
            let after = sim.crash_with(outcome);
            for (name, legal) in names.iter().zip(&legal) {
                legal.check(&read_all(&*after.open(name).unwrap()));
            }
        }
    }
}

#[test]
fn every_mix_of_unsynced_sectors_turns_up() {
    let sim = SimStorage::new(5);
    let file = synced_file(&sim, "a", 3, 1);
    file.write_at(&sectors(3, 2), 0).unwrap();
    file.write_at(&sectors(1, 3), 512).unwrap();
    let mixes: BTreeSet<Vec<u8>> = (0..1000)
        .map(|seed| {
            let bytes = read_all(&*sim.crash_with(seed).open("a").unwrap());
            bytes.chunks(512).map(|sector| sector[0]).collect()
        })
        .collect();
    // Two versions of the outer sectors, three of the one in the middle.
    assert_eq!(mixes.len(), 12, "{mixes:?}");
}

#[test]
fn unsynced_length_may_be_lost_and_gained_space_reads_as_zeroes() {
    let sim = SimStorage::new(6);
    let file = synced_file(&sim, "a", 1, 1);
    file.set_len(4096).unwrap();
    file.write_at(&sectors(1, 2), 1024).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let bytes = read_all(&*sim.crash_with(seed).open("a").unwrap());
        assert!(bytes[..512].iter().all(|&b| b == 1));
        assert!(bytes.iter().skip(512).all(|&b| b == 0 || b == 2));
        seen.insert((bytes.len(), bytes.get(1024).copied()));
    }
    assert_eq!(seen, BTreeSet::from([(512, None), (4096, Some(0)), (4096, Some(2))]));
}

#[test]
fn names_not_synced_may_be_lost() {
    let sim = SimStorage::new(7);
    sim.create_dir("dir").unwrap();
    sim.sync_dir("").unwrap();
    synced_file(&sim, "kept", 1, 1);
    synced_file(&sim, "removed", 1, 2);
    synced_file(&sim, "old", 1, 3);
    sim.create("new").unwrap().sync_data().unwrap();
    sim.remove("removed").unwrap();
    sim.rename("old", "dir/moved").unwrap();
    sim.sync_dir("dir").unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..500 {
        let after = image(&sim.crash_with(seed));
        assert_eq!(after["kept"], Some(vec![1; 512]));
        if let Some(removed) = after.get("removed") {
            assert_eq!(removed, &Some(vec![2; 512]));
        }
        let (old, moved) = (after.contains_key("old"), after.contains_key("dir/moved"));
        assert!(old != moved, "a rename is atomic");
        assert_eq!(after[if old { "old" } else { "dir/moved" }], Some(vec![3; 512]));
        seen.insert((after.contains_key("new"), after.contains_key("removed"), old));
    }
    assert_eq!(seen.len(), 8, "the three changes survive independently");
    sim.crash();
}

#[test]
fn synced_names_survive_with_the_changes_they_build_on() {
    let sim = SimStorage::new(8);
    sim.create_dir("dir").unwrap();
    synced_file(&sim, "a", 1, 1);
    sim.rename("a", "dir/a").unwrap();
    sim.create("a").unwrap();
    // The new "a" can't be durable while the old one still has the name.
    sim.sync_dir("").unwrap();
    for seed in 0..100 {
        let after = image(&sim.crash_with(seed));
        assert_eq!(after["a"], Some(vec![]));
        assert_eq!(after["dir/a"], Some(vec![1; 512]));
    }
}

#[test]
fn a_lost_directory_takes_its_files_along() {
    let sim = SimStorage::new(9);
    sim.create_dir("dir").unwrap();
    let file = sim.create("dir/a").unwrap();
    file.write_at(&sectors(1, 1), 0).unwrap();
    file.sync_data().unwrap();
    sim.sync_dir("dir").unwrap();
    let outcomes: BTreeSet<_> =
        (0..100).map(|seed| image(&sim.crash_with(seed)).into_keys().collect::<Vec<_>>()).collect();
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    assert!(outcomes.contains(&vec![]));
}

#[test]
fn the_power_is_cut_in_the_nth_operation() {
    let total = {
        let sim = SimStorage::new(10);
        let file = synced_file(&sim, "a", 1, 1);
        file.set_len(2048).unwrap();
        sim.operation_count()
    };
    assert_eq!(total, 5);
    for n in 1..=total {
        let sim = SimStorage::new(10);
        sim.crash_at(n);
        let mut failed = 0;
        let mut check = |result: Result<()>| {
            if let Err(error) = result {
                failed += 1;
                assert!(error.to_string().ends_with(": simulated power cut"), "{error}");
            }
        };
        match sim.create("a") {
            Err(error) => check(Err(error)),
            Ok(file) => {
                check(file.write_at(&sectors(1, 1), 0));
                check(file.sync_data());
                check(sim.sync_dir(""));
                check(file.set_len(2048));
                check(file.read_at(&mut sectors(1, 0), 0));
            }
        }
        assert_eq!(failed, if n == 1 { 1 } else { total - n + 2 });
        assert!(sim.is_down());
        let after = sim.crash();
        assert!(!after.is_down());
        assert_eq!(after.operation_count(), 0);
        if n > 4 {
            assert_eq!(read_all(&*after.open("a").unwrap())[..512], [1; 512]);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_life() {
    let life = |seed| {
        let sim = SimStorage::new(seed);
        let mut images = Vec::new();
        let mut sim = sim;
        for round in 1..6 {
            let file = match sim.open("a") {
                Ok(file) => file,
                Err(_) => sim.create("a").unwrap(),
            };
            sim.set_error_chance(StorageOp::Write, FaultKind::Io, 300_000);
            let bufs: Vec<_> = (0..20).map(|i| sectors(4, round * 20 + i)).collect();
            let mut ops: Vec<_> =
                (0..20).map(|i| IoOp::write(&*file, &bufs[i as usize], i * 1024 % 6144)).collect();
            sim.crash_at(sim.operation_count() + 15);
            sim.run_batch(&mut ops);
            images.push(ops.iter().map(|op| op.result.is_ok()).collect::<Vec<_>>());
            sim = sim.crash();
            images.push(image(&sim).into_values().map(|bytes| bytes.is_some()).collect());
            images.push(image(&sim).into_values().flatten().flatten().map(|b| b > 0).collect());
        }
        (images, image(&sim))
    };
    let mut different = BTreeSet::new();
    for seed in 0..50 {
        assert_eq!(life(seed), life(seed));
        different.insert(format!("{:?}", life(seed).1));
    }
    assert!(different.len() > 10);
}

#[test]
fn a_killed_process_leaves_its_writes_at_risk() {
    let sim = SimStorage::new(11);
    let file = synced_file(&sim, "a", 1, 1);
    file.write_at(&sectors(1, 2), 0).unwrap();
    let _lock = sim.lock("lock").unwrap();
    sim.sync_dir("").unwrap();
    let next = sim.kill();
    assert!(file.write_at(&sectors(1, 3), 0).unwrap_err().to_string().contains("kill"));
    drop(file);
    let _lock_again = next.lock("lock").unwrap();
    assert_eq!(read_all(&*next.open("a").unwrap()), [2; 512]);
    let outcomes: BTreeSet<_> =
        (0..50).map(|seed| read_all(&*next.crash_with(seed).open("a").unwrap())[0]).collect();
    assert_eq!(outcomes, BTreeSet::from([1, 2]));
}

#[test]
fn a_removed_file_lives_on_in_its_handles() {
    let sim = SimStorage::new(12);
    let file = synced_file(&sim, "a", 2, 1);
    sim.remove("a").unwrap();
    sim.sync_dir("").unwrap();
    assert_eq!(read_all(&*file), [1; 1024]);
    assert_eq!(sim.used_bytes(), 1024);
    drop(file);
    assert_eq!(sim.used_bytes(), 0);
    assert_eq!(sim.disk.lock().inodes.len(), 0);
}

// ---- errors -----------------------------------------------------------------------------------

#[test]
fn ordered_faults_strike_where_and_when_told() {
    let sim = SimStorage::new(13);
    sim.create_dir("redo").unwrap();
    let (a, b) = (synced_file(&sim, "a", 1, 1), sim.create("redo/1").unwrap());
    b.write_at(&sectors(1, 1), 0).unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("redo/").skip(1).times(2));
    let mut buf = sectors(1, 0);
    a.read_at(&mut buf, 0).unwrap();
    b.read_at(&mut buf, 0).unwrap();
    for _ in 0..2 {
        assert_eq!(
            b.read_at(&mut buf, 0).unwrap_err().to_string(),
            "cannot read 'redo/1' at offset 0: Input/output error (os error 5) (the disk failed: \
             look in the kernel log and check the device)"
        );
    }
    b.read_at(&mut buf, 0).unwrap();
    sim.inject(Fault::new(StorageOp::Create, FaultKind::ReadOnly).always());
    for name in ["x", "y"] {
        let error = sim.create(name).err().unwrap();
        assert!(error.is_read_only());
        assert!(!sim.exists(name).unwrap());
    }
    sim.clear_faults();
    sim.create("x").unwrap();
}

#[test]
fn bad_sectors_refuse_what_touches_them_in_every_life() {
    let mut sim = SimStorage::new(15);
    synced_file(&sim, "a", 8, 1);
    sim.sync_dir("").unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("a").within(1024..1025).always());
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("a").within(2048..3072).always());
    for life in 0..3 {
        let file = sim.open("a").unwrap();
        for (first, sectors_read, fails) in
            [(0, 2, false), (0, 3, true), (2, 1, true), (3, 5, false)]
        {
            let read = file.read_at(&mut sectors(sectors_read, 0), first * 512);
            assert_eq!(read.is_err(), fails, "life {life}, from sector {first}");
        }
        for (first, fails) in [(3, false), (4, true), (5, true), (6, false)] {
            let written = file.write_at(&sectors(1, 2), first * 512);
            assert_eq!(written.is_err(), fails, "life {life}, sector {first}");
        }
        file.set_len(9 * 512).unwrap();
        file.sync_data().unwrap();
        drop(file);
        sim = if life == 0 { sim.kill() } else { sim.crash() };
    }
    sim.clear_faults();
    sim.open("a").unwrap().read_at(&mut sectors(8, 0), 0).unwrap();
}

#[test]
fn a_failed_sync_poisons_the_file_until_the_next_life() {
    let sim = SimStorage::new(14);
    let file = synced_file(&sim, "a", 1, 1);
    file.write_at(&sectors(1, 2), 0).unwrap();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io));
    assert!(file.sync_data().unwrap_err().to_string().contains("Input/output error"));
    assert_eq!(
        file.sync_data().unwrap_err().to_string(),
        "cannot sync 'a': an earlier sync of this file failed, so what reached the disk is unknown; \
         restart to recover"
    );
    // A second handle does not help.
    sim.open("a").unwrap().sync_data().unwrap_err();
    let outcomes: BTreeSet<_> =
        (0..50).map(|seed| read_all(&*sim.crash_with(seed).open("a").unwrap())[0]).collect();
    assert_eq!(outcomes, BTreeSet::from([1, 2]));
    sim.crash().open("a").unwrap().sync_data().unwrap();
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    let sim = SimStorage::new(15);
    let file = synced_file(&sim, "a", 4, 1);
    sim.set_capacity(Some(3072));
    let error = file.set_len(4096).unwrap_err();
    assert!(error.is_no_space());
    assert_eq!(
        error.to_string(),
        "cannot change the length of 'a' to 4096 bytes: No space left on device (os error 28) \
         (free space on this disk; nothing committed is lost)"
    );
    assert!(file.write_at(&sectors(4, 2), 1536).unwrap_err().is_no_space());
    assert_eq!(read_all(&*file), [1; 2048]);
    file.write_at(&sectors(4, 2), 0).unwrap();
    file.set_len(3072).unwrap();
    file.sync_data().unwrap();
    let next = sim.crash();
    assert!(next.open("a").unwrap().set_len(4096).unwrap_err().is_no_space());
    next.remove("a").unwrap();
    next.create("b").unwrap().set_len(3072).unwrap();
}

#[test]
fn a_full_disk_has_space_again_after_so_many_refusals() {
    let sim = SimStorage::new(15);
    let file = synced_file(&sim, "a", 4, 1);
    sim.set_capacity_until(3072, 2);
    file.set_len(4096).unwrap_err();
    // A write that succeeds begins the count anew.
    file.write_at(&sectors(4, 2), 0).unwrap();
    file.set_len(4096).unwrap_err();
    file.set_len(4096).unwrap_err();
    file.set_len(4096).unwrap();
}

#[test]
fn rot_is_seen_and_stays() {
    let sim = SimStorage::new(16);
    let file = synced_file(&sim, "a", 1, 1);
    sim.corrupt("a", 100, 0x80);
    assert_eq!(read_all(&*file)[99..102], [1, 0x81, 1]);
    assert_eq!(read_all(&*sim.crash().open("a").unwrap())[99..102], [1, 0x81, 1]);
}

#[test]
fn misaligned_access_is_refused() {
    let sim = SimStorage::new(17);
    let file = synced_file(&sim, "a", 4, 1);
    let mut buf = sectors(2, 0);
    assert_eq!(file.read_at(&mut buf, 100).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(file.write_at(&buf[..100], 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(file.write_at(&buf[1..513], 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let sim = SimStorage::with_alignment(17, 1);
    let file = sim.create("a").unwrap();
    file.write_at(b"hello", 3).unwrap();
    assert_eq!(read_all(&*file), b"\0\0\0hello");
}

#[test]
fn the_lock_is_exclusive() {
    let sim = SimStorage::new(18);
    let held = sim.lock("lock").unwrap();
    assert!(sim.lock("lock").unwrap_err().is_locked());
    drop(held);
    let _held = sim.lock("lock").unwrap();
}

#[test]
fn several_threads_share_a_disk() {
    let sim = SimStorage::new(19);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let sim = &sim;
            scope.spawn(move || {
                let file = sim.create(&format!("{thread}")).unwrap();
                for round in 0..200 {
                    file.write_at(&sectors(2, thread + 1), round * 1024).unwrap();
                    file.sync_data().unwrap();
                    sim.sync_dir("").unwrap();
                }
            });
        }
    });
    let after = image(&sim.crash());
    for thread in 0..4u8 {
        assert_eq!(after[&thread.to_string()], Some(vec![thread + 1; 200 * 1024]));
    }
}

#[test]
fn a_disk_may_acknowledge_what_it_does_not_do() {
    let sim = SimStorage::with_alignment(1, 1);
    let file = sim.create("a").unwrap();
    file.write_at(&[1; 16384], 0).unwrap();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Lost));
    file.write_at(&[2; 4096], 0).unwrap();
    let mut bytes = vec![0; 16384];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 16384]);
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Misplaced).times(8));
    for _ in 0..8 {
        file.write_at(&[3; 4096], 4096).unwrap();
    }
    file.read_at(&mut bytes, 0).unwrap();
    let places: Vec<bool> = bytes.chunks(4096).map(|block| block == [3; 4096]).collect();
    assert!(places != [false, true, false, false] && places.contains(&true), "{places:?}");
    // A sync that is acknowledged, and syncs nothing.
    sim.sync_dir("").unwrap();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Lost).always());
    file.sync_data().unwrap();
    let kept = (0..20)
        .filter(|outcome| sim.crash_with(*outcome).open("a").unwrap().len().unwrap() == 16384);
    assert!(kept.count() < 20, "what was not synced is there after every crash");
}
