//! Readings below a root of the test's own, and of this machine.

use super::*;

#[test]
fn the_limit_that_binds_is_the_one_whose_share_is_used_up_first() {
    // The group has less left than the machine, but the machine must keep more free.
    let level = Level {
        directory: "/g".into(),
        limit_bytes: Some(1 << 30),
        usage_bytes: 900 << 20,
        file_cache_bytes: 0,
        limit_hits: 0,
    };
    let signals = Signals {
        levels: vec![level],
        machine_total_bytes: Some(64 << 30),
        machine_available_bytes: Some(900 << 20),
        ..Signals::default()
    };
    assert_eq!(signals.room().unwrap().place, Place::Machine);
}

#[test]
fn this_machine_can_be_read() {
    let mut reader = Reader::new(Root::default(), None);
    let signals = reader.read(Duration::ZERO);
    assert!(signals.machine_total_bytes.unwrap() >= signals.machine_available_bytes.unwrap());
    assert!(signals.own_resident_bytes.unwrap() > 0);
    let room = signals.room().unwrap();
    assert!(room.bytes() <= signals.machine_total_bytes.unwrap());
}

fn write_below(root: &std::path::Path, file: &str, text: &str) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The root of a process in a cgroup of version 2 that uses 400 of 1000 bytes; what it uses them
/// for is still to be written.
fn in_a_cgroup() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("proc/self/cgroup", "0::/db\n");
    write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 9000 kB\n");
    write("cg/db/memory.max", "1000");
    write("cg/db/memory.current", "400");
    dir
}

#[test]
fn a_glance_sees_the_usage_and_a_reading_the_limit_too() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("cg/db/memory.stat", "inactive_file 100\nactive_file 0\n");
    let mut reader = Reader::new(Root::new(dir.path()), None);
    assert_eq!(reader.glance(), None);
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 700);
    write("cg/db/memory.current", "600");
    assert_eq!(reader.glance(), Some(500));
    write("cg/db/memory.max", "800");
    assert_eq!(reader.glance(), Some(500));
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 300);
    // The group vanishes, then the process is somewhere else: found by the next reading but one.
    std::fs::remove_dir_all(dir.path().join("cg")).unwrap();
    assert_eq!(reader.glance(), None);
    write("proc/self/cgroup", "0::/other\n");
    write("cg/other/memory.max", "50");
    write("cg/other/memory.current", "20");
    write("cg/other/memory.stat", "");
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().place, Place::Machine);
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 30);
}

/// The kernel does not count ZFS's cache as file cache, and yet it shrinks when a process needs
/// memory.
#[test]
fn half_of_what_zfs_can_give_back_is_available() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 1000 kB\n");
    let available = || {
        let mut reader = Reader::new(Root::new(dir.path()), None);
        let bytes = reader.read(Duration::ZERO).machine_available_bytes.unwrap();
        assert_eq!(reader.glance(), Some(bytes));
        bytes >> 10
    };
    assert_eq!(available(), 1000);
    let arc = |evictable: u64| {
        let stat = |name: &str, kib: u64| format!("{name:31} 4    {}\n", kib << 10);
        let names = ["mru_evictable_data", "mru_evictable_metadata", "mfu_evictable_data"];
        let parts: String = names.iter().map(|name| stat(name, evictable / 3)).collect();
        let (size, least) = (stat("size", 5000), stat("c_min", 600));
        let sizes = format!("{size}{least}{}", stat("anon_size", 9));
        let text = format!("9 1 0x01 147 39984 1 2\nname     type data\n{sizes}{parts}");
        write("proc/spl/kstat/zfs/arcstats", &text);
    };
    arc(30_000);
    assert_eq!(available(), 1000 + 2200);
    arc(3000);
    assert_eq!(available(), 1000 + 1500);
    write("proc/spl/kstat/zfs/arcstats", "nonsense");
    assert_eq!(available(), 1000);
}

#[test]
fn a_stall_says_whose_it_is() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    let pressure =
        |file: &str, total: u64| write(file, &format!("some avg10=0.00 total={total}\n"));
    pressure("proc/pressure/memory", 9_000_000);
    pressure("cg/db/memory.pressure", 17);
    let mut reader = Reader::new(Root::new(dir.path()), None);
    let mut stall = |at| {
        let Stall { place, total_us, .. } = reader.read(at).stall.unwrap();
        (place, total_us)
    };
    assert_eq!(stall(Duration::ZERO), (Place::Cgroup("/cg/db".into()), 17));
    write("proc/self/cgroup", "0::/other\n");
    write("cg/other/memory.max", "1000");
    write("cg/other/memory.current", "400");
    pressure("cg/other/memory.pressure", 5_000_000);
    assert_eq!(stall(FIND_AGAIN), (Place::Cgroup("/cg/other".into()), 5_000_000));
    std::fs::remove_file(dir.path().join("cg/other/memory.pressure")).unwrap();
    assert_eq!(stall(FIND_AGAIN), (Place::Machine, 9_000_000));
}

#[test]
fn refaults_are_those_of_the_own_group_which_needs_no_limit_for_that() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("cg/db/memory.pressure", "some avg10=0.00 total=17\n");
    write("cg/db/memory.max", "max");
    let mut reader = Reader::new(Root::new(dir.path()), None);
    let mut refaults = || reader.read(Duration::ZERO).stall.unwrap().refaults;
    assert_eq!(refaults(), None);
    let told = |anon_pages, file_pages| Some(Refaults { anon_pages, file_pages });
    write("cg/db/memory.stat", "workingset_refault_anon 42\nworkingset_refault_file 7\n");
    assert_eq!(refaults(), told(42, 7));
    write("cg/db/memory.stat", "workingset_refault 9\n");
    assert_eq!(refaults(), told(0, 9));
    std::fs::remove_file(dir.path().join("cg/db/memory.stat")).unwrap();
    assert_eq!(refaults(), None);
}

#[test]
fn commits_count_where_they_did_from_the_start_and_still_do() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    let meminfo = |committed: u64| {
        let memory = "MemTotal: 9000 kB\nMemAvailable: 9000 kB\nCommitLimit: 500 kB\n";
        write("proc/meminfo", &format!("{memory}Committed_AS: {committed} kB\n"));
    };
    write("cg/db/memory.max", "max");
    meminfo(100);
    let mode = "proc/sys/vm/overcommit_memory";
    write(mode, "0\n");
    let reader = |pid| Reader::new(Root::new(dir.path()), pid);
    let mut lenient = reader(None);
    write(mode, "2\n");
    assert_eq!(lenient.read(Duration::ZERO).commit, None, "not what this process has");
    assert_eq!(reader(Some(1)).read(Duration::ZERO).commit, None, "who knows what that has");
    let mut strict = reader(None);
    let room = strict.read(Duration::ZERO).room().unwrap();
    assert_eq!((room.bytes(), room.place), (400 << 10, Place::Commit));
    meminfo(450);
    assert_eq!(strict.glance(), Some(50 << 10));
    // Above the limit, as when that was lowered.
    meminfo(510);
    assert_eq!(strict.read(Duration::ZERO).room().unwrap().bytes(), 0);
    write(mode, "1\n");
    assert_eq!(strict.read(Duration::ZERO).room().unwrap().place, Place::Machine);
}

#[test]
fn a_process_out_of_descriptors_keeps_the_limits_that_it_knows() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("cg/db/memory.stat", "");
    let mut reader = Reader::new(Root::new(dir.path()), None);
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 600);
    for file in ["proc/self/mountinfo", "proc/self/cgroup"] {
        // Where the process is can't be looked up. What was open stays readable.
        std::fs::remove_file(dir.path().join(file)).unwrap();
        assert_eq!(reader.read(FIND_AGAIN).room().unwrap().bytes(), 600);
        assert_eq!(reader.read(FIND_AGAIN * 2).room().unwrap().bytes(), 600);
    }
}

#[test]
fn a_process_out_of_sight_has_no_room_rather_than_the_machines() {
    let dir = in_a_cgroup();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("proc/7/cgroup", "0::/db\n");
    let mut reader = Reader::new(Root::new(dir.path()), Some(7));
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 600);
    assert_eq!(reader.out_of_sight(), None);
    reader.take_notices();
    write("proc/7/cgroup", "0::/../db\n");
    for at in [FIND_AGAIN, FIND_AGAIN * 2] {
        assert_eq!(reader.read(at).room(), None);
        assert!(reader.out_of_sight().unwrap().contains("/../db"));
    }
    let notices = reader.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("limits of /proc/7 can't be seen"), "{notices:?}");
    write("proc/7/cgroup", "0::/db\n");
    assert_eq!(reader.read(FIND_AGAIN * 3).room().unwrap().bytes(), 600);
    assert_eq!(reader.out_of_sight(), None);
}

#[test]
fn a_silent_source_is_said_once_and_its_return_too() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let mut reader = Reader::new(Root::new(dir.path()), None);
    assert_eq!(reader.read(Duration::ZERO).room(), None);
    assert_eq!(reader.take_notices().len(), 3);
    reader.read(Duration::ZERO);
    assert_eq!(reader.take_notices(), Vec::<String>::new());
    std::fs::write(
        dir.path().join("proc/meminfo"),
        "MemTotal: 100 kB\nMemFree: 40 kB\nInactive(file): 20 kB\n",
    )
    .unwrap();
    let signals = reader.read(Duration::ZERO);
    assert_eq!(signals.room().unwrap().bytes(), 60 * 1024);
    assert_eq!(reader.take_notices(), ["/proc/meminfo can be read again"]);
}

#[test]
fn the_tightest_level_wins() {
    let level = |name: &str, limit, usage| Level {
        directory: name.into(),
        limit_bytes: limit,
        usage_bytes: usage,
        file_cache_bytes: 0,
        limit_hits: 0,
    };
    let signals = Signals {
        levels: vec![
            level("/a/b", Some(1000), 400),
            level("/a", Some(1200), 900),
            level("/", None, 5000),
        ],
        machine_total_bytes: Some(10_000),
        machine_available_bytes: Some(5000),
        ..Signals::default()
    };
    let room = signals.room().unwrap();
    assert_eq!((room.bytes(), room.place), (300, Place::Cgroup("/a".into())));
}

/// As where all of the machine's hierarchy is mounted into a container with a cgroup namespace.
#[test]
fn limits_that_may_be_missed_are_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| write_below(dir.path(), file, text);
    write("proc/self/cgroup", "0::/\n");
    write("proc/self/mountinfo", "30 23 0:26 /.. /cg rw - cgroup2 cgroup2 rw\n");
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 9000 kB\n");
    write("proc/self/status", "VmRSS: 1 kB\nVmSwap: 0 kB\n");
    write("proc/vmstat", "pswpin 0\npswpout 0\n");
    write("cg/cgroup.procs", "1\n");
    write("cg/box/memory.max", "1000");
    write("cg/box/memory.current", "400");
    let mut reader = Reader::new(Root::new(dir.path()), None);
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().place, Place::Machine);
    let notices = reader.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("is not found below /cg"), "{notices:?}");
    reader.read(Duration::from_secs(60));
    assert_eq!(reader.take_notices(), [""; 0]);
    // A process that is found is sized by its limit.
    write("cg/box/cgroup.procs", &format!("{}\n", std::process::id()));
    let mut reader = Reader::new(Root::new(dir.path()), None);
    assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 600);
    assert_eq!(reader.take_notices(), [""; 0]);
}
