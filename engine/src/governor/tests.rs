//! A whole engine on a machine that the test makes up: limits and usages in files, time by steps.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidepool_governor::Signal;

use crate::storage::SimStorage;
use crate::{Db, IndexDef, Options, TableDef};

const MIB: u64 = 1 << 20;
/// What the governor leaves free of a limit of 1 GiB, and of the extents that it rounds down to.
const FREE: std::ops::Range<u64> = 12 * MIB..72 * MIB;

struct Machine {
    dir: TempDir,
    now: Duration,
}

impl Machine {
    /// A machine of 8 GiB, and a cgroup (version 1 or 2) of 1 GiB, of which 100 MiB are in use.
    fn new(version: u32) -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap(), now: Duration::ZERO };
        let (groups, mount) = match version {
            1 => ("4:memory:/db\n", "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n"),
            _ => ("0::/db\n", "35 31 0:32 / /cg rw - cgroup2 cgroup2 rw\n"),
        };
        machine.write("proc/self/cgroup", groups);
        machine.write("proc/self/mountinfo", mount);
        machine.write("proc/self/status", "VmRSS: 50000 kB\nVmSwap: 0 kB\n");
        machine.write("proc/vmstat", "pswpin 0\npswpout 0\n");
        machine.write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n");
        for (name, text) in [
            ("memory.stat", "total_inactive_file 0\ninactive_file 0\n"),
            ("memory.limit_in_bytes", "1073741824"),
            ("memory.max", "1073741824"),
        ] {
            machine.write(&format!("cg/db/{name}"), text);
        }
        machine.others(100);
        machine
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What the cgroup uses beside the pool, which is empty in these tests.
    fn others(&self, mib: u64) {
        for name in ["memory.usage_in_bytes", "memory.current"] {
            self.write(&format!("cg/db/{name}"), &format!("{}\n", mib * MIB));
        }
    }

    fn options(&self, size_bytes: u64) -> Options {
        Options {
            buffer_pool_size_bytes: size_bytes,
            system_root: self.dir.path().to_owned(),
            background: false,
            ..Options::default()
        }
    }

    fn open(&self, size_bytes: u64) -> Db {
        Db::open_on(Arc::new(SimStorage::new(1)), self.options(size_bytes)).unwrap()
    }

    /// Time passes, with a look every 50 ms. The pool's target, and its size: bytes.
    fn run(&mut self, db: &Db, time: Duration) -> u64 {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            db.governor().step(self.now);
            while db.step_resize() {}
        }
        let target = db.governor().report().target_bytes;
        assert_eq!(db.status().get("buffer_pool_size_bytes"), Some(target));
        target
    }
}

fn about(size_bytes: u64, limit_mib: u64) {
    let free = (limit_mib * MIB).saturating_sub(size_bytes);
    assert!(FREE.contains(&free), "{} of {limit_mib} MiB", size_bytes / MIB);
}

#[test]
fn the_pool_follows_what_others_leave_of_the_cgroup() {
    for version in [1, 2] {
        let mut machine = Machine::new(version);
        let db = machine.open(2000 * MIB);
        let status = |name| db.status().get(name).unwrap();
        about(status("buffer_pool_size_bytes"), 924);
        about(machine.run(&db, Duration::from_secs(4)), 924);
        // A neighbour takes half: one look is enough.
        machine.others(612);
        let small = machine.run(&db, Duration::from_millis(50));
        assert!(small <= (1024 - 612) * MIB - FREE.start, "{} MiB", small / MIB);
        // It goes: not at once (it may come back), but by itself.
        machine.others(100);
        assert_eq!(machine.run(&db, Duration::from_secs(2)), small);
        let back = machine.run(&db, Duration::from_secs(8));
        assert!(back >= (924 - 90) * MIB, "{} MiB", back / MIB);
        about(machine.run(&db, Duration::from_secs(60)), 924);
        assert_eq!(status("memory_limit_bytes"), 1 << 30);
        assert!(status("memory_shrinks") >= 1 && status("memory_grows") >= 1);
        let decisions = db.governor().decisions();
        assert_eq!(decisions[0].decision.signal, Signal::Start);
        assert!(decisions.iter().any(|entry| entry.decision.signal == Signal::RoomShrank));
        assert!(decisions.iter().all(|entry| entry.took.is_some()), "{decisions:?}");
    }
}

#[test]
fn a_lowered_limit_is_obeyed_like_a_neighbour() {
    let mut machine = Machine::new(2);
    let db = machine.open(0);
    machine.run(&db, Duration::from_secs(1));
    machine.write("cg/db/memory.max", &(512 * MIB).to_string());
    let size = machine.run(&db, Duration::from_millis(50));
    about(size, 412);
}

#[test]
fn a_number_is_a_ceiling_and_the_guard_can_be_taken_off() {
    let mut machine = Machine::new(1);
    let db = machine.open(300 * MIB);
    assert_eq!(machine.run(&db, Duration::from_secs(1)), 300 * MIB);
    // More than there is: as much as there is, once it has lasted.
    db.set_buffer_pool_size(5000 * MIB).unwrap();
    about(machine.run(&db, Duration::from_secs(10)), 924);
    // The guard off: what was asked for, whatever happens.
    db.set_memory_guard(false);
    assert_eq!(machine.run(&db, Duration::from_millis(50)), 5000 * MIB);
    machine.others(900);
    assert_eq!(machine.run(&db, Duration::from_secs(1)), 5000 * MIB);
    // On again: back to what there is, at once.
    machine.others(100);
    db.set_memory_guard(true);
    about(machine.run(&db, Duration::from_millis(50)), 924);
    db.set_buffer_pool_size(64 * MIB).unwrap();
    assert_eq!(machine.run(&db, Duration::from_millis(50)), 64 * MIB);
    // Too small is refused, by name, and nothing changes.
    let error = db.set_buffer_pool_size(MIB).unwrap_err().to_string();
    assert!(error.contains("buffer_pool_size_bytes = 1048576: must be 0 (governed) or"), "{error}");
    assert_eq!(machine.run(&db, Duration::from_secs(5)), 64 * MIB);
}

#[test]
fn what_happened_while_the_guard_was_off_is_no_news_when_it_is_on() {
    let mut machine = Machine::new(1);
    let db = machine.open(300 * MIB);
    machine.run(&db, Duration::from_secs(5));
    db.set_memory_guard(false);
    // For a minute, the process goes to swap, except what is left after all.
    machine.write("proc/self/status", "VmRSS: 50000 kB\nVmSwap: 400000 kB\n");
    machine.run(&db, Duration::from_secs(60));
    db.set_memory_guard(true);
    assert_eq!(machine.run(&db, Duration::from_secs(5)), 300 * MIB);
    // Nor does the pool take room that may have come a moment ago.
    machine.write("proc/self/status", "VmRSS: 50000 kB\nVmSwap: 0 kB\n");
    db.set_memory_guard(false);
    machine.run(&db, Duration::from_secs(60));
    db.set_buffer_pool_size(2000 * MIB).unwrap();
    db.set_memory_guard(true);
    assert_eq!(machine.run(&db, Duration::from_millis(2900)), 300 * MIB);
    about(machine.run(&db, Duration::from_secs(1)), 924);
}

#[test]
fn a_pool_that_began_without_the_guard_grows_below_it_when_room_has_lasted() {
    let mut machine = Machine::new(1);
    let options = Options { memory_guard: false, ..machine.options(100 * MIB) };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    machine.run(&db, Duration::from_secs(5));
    db.set_buffer_pool_size(2000 * MIB).unwrap();
    db.set_memory_guard(true);
    assert_eq!(machine.run(&db, Duration::from_millis(2900)), 100 * MIB);
    about(machine.run(&db, Duration::from_secs(1)), 924);
}

#[test]
fn a_ceiling_is_reached_in_whole_extents_and_then_nothing_is_decided() {
    let mut machine = Machine::new(2);
    let db = machine.open(300 * MIB);
    machine.run(&db, Duration::from_secs(5));
    // Less than the smallest change that is worth it.
    db.set_buffer_pool_size(302 * MIB).unwrap();
    assert_eq!(machine.run(&db, Duration::from_millis(50)), 302 * MIB);
    for asked in [305 * MIB, 301 * MIB + 1000] {
        db.set_buffer_pool_size(asked).unwrap();
        let size = machine.run(&db, Duration::from_secs(5));
        assert_eq!(size, asked / (2 * MIB) * (2 * MIB));
        let mut control = db.governor().control.lock();
        let state = control.pool_state(0);
        let signals = control.signals.clone();
        assert_eq!(control.governor.decide(&signals, &state), None);
    }
}

#[test]
fn what_lies_beyond_the_address_space_is_decided_once() {
    let sizes = |db: &Db| -> Vec<u64> {
        db.governor().decisions().iter().map(|entry| entry.decision.to_bytes / MIB).collect()
    };
    // A number, the guard off: more than the machine has.
    let mut machine = Machine::new(1);
    let options = Options { memory_guard: false, ..machine.options(300 * MIB) };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    db.set_buffer_pool_size(64 << 30).unwrap();
    assert_eq!(machine.run(&db, Duration::from_secs(5)), 8 << 30);
    assert_eq!(sizes(&db), [8 << 10]);
    assert_eq!(db.status().get("memory_grows"), Some(1));
    db.set_buffer_pool_size(300 * MIB).unwrap();
    assert_eq!(machine.run(&db, Duration::from_secs(1)), 300 * MIB);
    // The guard on: there is room, but not among the addresses.
    let mut machine = Machine::new(1);
    machine.write("proc/meminfo", "");
    let db = machine.open(800 * MIB);
    db.set_buffer_pool_size(5000 * MIB).unwrap();
    assert_eq!(machine.run(&db, Duration::from_secs(10)), 800 * MIB);
    assert_eq!(sizes(&db), [800]);
}

#[test]
fn a_governed_pool_without_use_for_more_does_not_grow() {
    let mut machine = Machine::new(2);
    machine.others(600);
    let db = machine.open(0);
    let small = machine.run(&db, Duration::from_secs(1));
    about(small, 424);
    machine.others(100);
    assert_eq!(machine.run(&db, Duration::from_secs(30)), small);
    assert_eq!(db.status().get("memory_wants_more"), Some(0));
}

#[test]
fn signals_that_lie_or_vanish_leave_the_pool_what_it_has() {
    let mut machine = Machine::new(1);
    let db = machine.open(0);
    let size = machine.run(&db, Duration::from_secs(1));
    std::fs::remove_dir_all(machine.dir.path().join("cg")).unwrap();
    std::fs::remove_dir_all(machine.dir.path().join("proc")).unwrap();
    assert_eq!(machine.run(&db, Duration::from_secs(30)), size);
    machine.write("proc/meminfo", "MemTotal: x kB\nMemAvailable: -5 kB\n");
    assert_eq!(machine.run(&db, Duration::from_secs(30)), size);
    assert_eq!(db.status().get("memory_limit_bytes"), Some(0));
}

#[test]
fn nothing_readable_from_the_start_is_a_modest_pool() {
    let nowhere = tempfile::tempdir().unwrap();
    let options = Options {
        system_root: Path::join(nowhere.path(), "nothing"),
        background: false,
        ..Options::default()
    };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    assert_eq!(db.status().get("buffer_pool_size_bytes"), Some(super::BLIND_SIZE_BYTES));
}

#[test]
fn the_floor_holds_when_nothing_is_left() {
    let mut machine = Machine::new(1);
    machine.others(1020);
    let db = machine.open(0);
    assert_eq!(machine.run(&db, Duration::from_secs(5)), super::FLOOR_BYTES);
}

#[test]
fn closing_ends_the_thread_and_new_settings_wake_it() {
    let machine = Machine::new(2);
    let options = Options { background: true, ..machine.options(0) };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let weak = Arc::downgrade(db.inner.env().governor());
    db.set_buffer_pool_size(100 * MIB).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while db.status().get("buffer_pool_size_bytes") != Some(100 * MIB) {
        assert!(std::time::Instant::now() < deadline, "{}", db.status());
        std::thread::yield_now();
    }
    db.close().unwrap();
    drop(db);
    assert!(weak.upgrade().is_none(), "somebody still holds the governor");
}

#[test]
fn one_budget_covers_all_that_the_engine_allocates() {
    const BUDGET: u64 = 32 * MIB;
    const ROWS: u32 = 60_000;
    for (size_bytes, page_size) in [(0, 16384), (500 * MIB, 16384), (0, 4096), (0, 65536)] {
        let mut machine = Machine::new(2);
        let memory_budget_bytes = BUDGET;
        let options = Options { memory_budget_bytes, page_size, ..machine.options(size_bytes) };
        let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
        let fits = |db: &Db| {
            let memory = db.memory();
            assert!(
                memory.total_bytes() <= BUDGET,
                "{} of {BUDGET}:\n{memory}",
                memory.total_bytes()
            );
            let report = db.governor().report();
            assert_eq!(report.budget_bytes, BUDGET);
            let rest = memory.total_bytes() - memory.get("frames").unwrap();
            assert_eq!(report.budget_rest_bytes, rest);
            rest
        };
        // No reading was taken yet: a recovery, which comes before that, may fill all of the pool.
        let beside_pages = db.memory().total_bytes() - db.memory().get("frames").unwrap();
        let begun = db.status().get("buffer_pool_size_bytes").unwrap();
        assert!(begun + beside_pages <= BUDGET, "{begun} and {beside_pages} of {BUDGET}");
        let unused = machine.run(&db, Duration::from_secs(1));
        assert!(unused > BUDGET * 3 / 4, "{unused}");

        // Twice the budget of rows.
        let mut load = db.load_table("t", &TableDef::new([IndexDef::unique("n")])).unwrap();
        for n in 0..ROWS {
            load.push(0, &n.to_be_bytes(), &[1; 1000]).unwrap();
            if n % 1000 == 0 {
                while db.step_cleaner().unwrap() {}
                db.step_checkpoint().unwrap();
                machine.run(&db, Duration::from_millis(50));
            }
        }
        load.commit().unwrap();
        let alone = machine.run(&db, Duration::from_secs(1));
        let rest = fits(&db);

        // A sort, for which pages go.
        let mut sorted = db.load_table("u", &TableDef::new([IndexDef::unique("n")])).unwrap();
        for n in 0..ROWS {
            sorted.add(0, &n.to_le_bytes(), &[1; 50]).unwrap();
            if n % 1000 == 0 {
                machine.run(&db, Duration::from_millis(50));
            }
        }
        let crowded = machine.run(&db, Duration::from_secs(1));
        let sort = fits(&db) - rest;
        assert!((2 * MIB..6 * MIB).contains(&sort), "{sort}");
        assert!(crowded < alone && crowded >= 8 * MIB, "{crowded}, {alone}");
        let decisions = db.governor().decisions();
        let newest = &decisions.last().unwrap().decision;
        assert_eq!(newest.signal, Signal::Budget);
        assert!(newest.reason.starts_with("of the memory budget of 32 MiB, "), "{newest:?}");

        // It ends, and pages come back.
        drop(sorted);
        if size_bytes != 0 {
            assert!(machine.run(&db, Duration::from_secs(20)) > crowded);
            fits(&db);
        }

        // Less, more, and none; too little is refused.
        db.set_memory_budget(16 * MIB).unwrap();
        assert!(machine.run(&db, Duration::from_secs(1)) < 16 * MIB);
        assert!(db.memory().total_bytes() <= 16 * MIB, "{}", db.memory());
        let error = db.set_memory_budget(MIB).unwrap_err().to_string();
        assert!(error.contains("memory_budget_bytes = 1048576: must be 0 (none) or"), "{error}");
        db.set_memory_budget(0).unwrap();
        assert!(size_bytes == 0 || machine.run(&db, Duration::from_secs(20)) == size_bytes);
    }
}

#[test]
fn a_process_that_was_frozen_keeps_its_pool() {
    let swapped = |kib: u32| format!("VmRSS: 50000 kB\nVmSwap: {kib} kB\n");
    let mut machine = Machine::new(2);
    let db = machine.open(0);
    let size = machine.run(&db, Duration::from_secs(5));
    // An hour in a frozen cgroup, in which others needed its memory.
    machine.now += Duration::from_secs(3600);
    machine.write("proc/self/status", &swapped(40_000));
    let kept = machine.run(&db, Duration::from_secs(5));
    assert!(kept + 50 * MIB >= size, "{} of {} MiB", kept / MIB, size / MIB);
    // Swapping while it runs still counts.
    machine.write("proc/self/status", &swapped(80_000));
    let left = machine.run(&db, Duration::from_millis(50));
    assert!(left < kept, "{} of {} MiB", left / MIB, kept / MIB);
}
