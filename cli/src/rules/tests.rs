//! Each rule on machines written down: where it must speak, and where it must not.

use super::*;
use crate::bytes::{GIB, MIB, parse};
use crate::facts::machine::{Disk, Process};
use crate::facts::{
    AdviceRow, Connections, Data, Filesystem, Machine, Pool, Redo, Settings, Tidepool,
};
use crate::server::Kind;

mod connections;
mod dedicated;
mod promised;
mod redo;

/// A tuned MariaDB on a machine of 16 GiB with 20 GiB of data.
fn healthy() -> Facts {
    let kind = Kind::from_words("10.11.18-MariaDB", "").unwrap();
    let pool = Pool {
        size_bytes: 11 * GIB,
        size_max_bytes: Some(8 << 40),
        unit_bytes: MIB,
        online: true,
        least_bytes: 5 * MIB,
        described: false,
        data_bytes: 10 * GIB + 900 * MIB,
        free_bytes: 100 * MIB,
        kept_free_bytes: 24 * MIB,
        requests_per_s: 100_000.0,
        reads_per_s: 50.0,
        requests_ever: 1 << 40,
        reads_ever: 1 << 20,
        wait_free_ever: 0,
        is_loaded_at_start: false,
        old_blocks_time_ms: Some(1000),
    };
    let machine = Machine {
        pid: 1,
        memory_bytes: 16 * GIB,
        available_bytes: 3 * GIB,
        limit_bytes: 16 * GIB,
        limit_place: "the machine".into(),
        room_bytes: 3 * GIB,
        swap_bytes: 2 * GIB,
        swappiness: Some(1),
        server_resident_bytes: 12 * GIB,
        disk: Some(disk()),
        redo_disk: Some(disk()),
        ..Machine::default()
    };
    let redo = Redo {
        capacity_bytes: 4 * GIB,
        files: 1,
        option: "innodb_log_file_size",
        least_bytes: 16 * MIB,
        online: true,
        written_per_s: 500_000.0,
        written_per_s_ever: 400_000.0,
        checkpoint_age_bytes: Some(GIB),
        checkpoint_max_bytes: Some(3 * GIB),
    };
    Facts {
        kind,
        uptime_s: 1_000_000,
        machine: Some(machine),
        pool: Some(pool),
        tidepool: None,
        redo: Some(redo),
        connections: Connections {
            allowed: 200,
            used_max: 80,
            connected: 60,
            busy_bytes: 1200 << 10,
            idle_bytes: 160 << 10,
            tmp_table_bytes: 0,
            tmp_tables_max_bytes: None,
            running: 60,
            pooled: false,
            large: Vec::new(),
        },
        promised: Vec::new(),
        data: Data { innodb_data_bytes: 16 * GIB, innodb_index_bytes: 4 * GIB, ..Data::default() },
        settings: Settings {
            flush_method: Some("O_DIRECT".into()),
            dump_at_shutdown: Some(true),
            load_at_startup: Some(true),
            dump_pct: Some(25),
            ..Settings::default()
        },
        unseen: Vec::new(),
    }
}

fn disk() -> Disk {
    Disk {
        device: "8:1".into(),
        rotational: Some(false),
        free_bytes: 200 * GIB,
        filesystem: Filesystem::Other,
    }
}

fn pool(facts: &mut Facts) -> &mut Pool {
    facts.pool.as_mut().unwrap()
}

fn machine(facts: &mut Facts) -> &mut Machine {
    facts.machine.as_mut().unwrap()
}

fn only(facts: &Facts) -> Finding {
    let findings = evaluate(facts);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.into_iter().next().unwrap()
}

fn set_size(finding: &Finding) -> u64 {
    let (_, value) = finding.config.iter().find_map(|line| line.split_once(" = ")).unwrap();
    parse(value).unwrap()
}

#[test]
fn a_healthy_server_is_left_alone() {
    assert_eq!(evaluate(&healthy()), []);
}

#[test]
fn nothing_is_said_about_a_machine_that_cannot_be_seen() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 400 * GIB;
    facts.machine = None;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_pool_above_the_limit_is_critical_and_the_advice_fits() {
    let mut facts = healthy();
    machine(&mut facts).limit_bytes = 8 * GIB;
    machine(&mut facts).limit_place = "cgroup /db".into();
    machine(&mut facts).room_bytes = GIB;
    pool(&mut facts).free_bytes = 5 * GIB;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("pool_too_large", Severity::Critical));
    // 6 GiB are held, 1 GiB is left, a twentieth of 8 GiB stays free.
    let size = set_size(&finding);
    assert!((6 * GIB..7 * GIB).contains(&size), "{size}");
    assert!(finding.set[0].contains(&size.to_string()));
    assert!(finding.why.contains("cgroup /db"));
    assert!(finding.why.ends_with("the server swaps."), "{}", finding.why);
    machine(&mut facts).swap_bytes = 0;
    assert!(only(&facts).why.ends_with("the kernel's OOM killer kills the server."));
    // The kernel kills no process at a memory.high.
    machine(&mut facts).limit_throttles = true;
    assert!(only(&facts).why.contains("the kernel throttles the server (memory.high)"));
}

#[test]
fn the_size_that_is_advised_would_itself_raise_no_finding() {
    for room_mib in [0, 10, 100, 500, 2000, 5000] {
        for free_mib in [0, 100, 4000, 9000] {
            let mut facts = healthy();
            machine(&mut facts).room_bytes = room_mib * MIB;
            pool(&mut facts).free_bytes = free_mib * MIB;
            pool(&mut facts).reads_per_s = 900.0;
            for finding in evaluate(&facts) {
                let Some(size) = finding.rule.starts_with("pool_too").then(|| set_size(&finding))
                else {
                    continue;
                };
                // The machine after the advice was taken and the pool is full.
                let held = pool(&mut facts).held_bytes();
                let Some(used) = (16 * GIB).checked_sub(room_mib * MIB + held) else {
                    panic!("no such machine: room {room_mib}, free {free_mib}");
                };
                let mut after = facts.clone();
                pool(&mut after).size_bytes = size;
                pool(&mut after).free_bytes = 0;
                machine(&mut after).room_bytes = (16 * GIB)
                    .saturating_sub(used + held.min(size) + size.saturating_sub(held) / 12 * 13);
                let again: Vec<_> = evaluate(&after)
                    .into_iter()
                    .filter(|f| f.rule.starts_with("pool_too_l"))
                    .collect();
                assert_eq!(again, [], "room {room_mib}, free {free_mib}");
            }
        }
    }
}

#[test]
fn a_full_pool_that_misses_grows_to_what_fits_and_no_further_than_the_data() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = MIB;
    pool(&mut facts).data_bytes = 127 * MIB;
    pool(&mut facts).reads_per_s = 4000.0;
    machine(&mut facts).room_bytes = 14 * GIB;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("pool_too_small", Severity::High));
    assert!((11 * GIB..13 * GIB).contains(&set_size(&finding)), "{finding:?}");
    facts.data = Data { innodb_data_bytes: 3 * GIB, ..Data::default() };
    let finding = only(&facts);
    assert!((3 * GIB..4 * GIB).contains(&set_size(&finding)), "{finding:?}");
    // The working set fits: no read would be saved.
    pool(&mut facts).reads_per_s = 0.0;
    assert!(evaluate(&facts).iter().all(|f| f.rule != "pool_too_small"));
}

#[test]
fn what_is_free_beside_another_server_is_free_once() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = 100 * MIB;
    machine(&mut facts).room_bytes = 14 * GIB;
    let process = |name: &str| Process { pid: 7, name: name.into(), resident_bytes: GIB };
    machine(&mut facts).others = vec![process("java")];
    assert!(!only(&facts).risk.contains("another server"), "{}", only(&facts).risk);
    // One that is not below the limit is among neither.
    machine(&mut facts).servers.push(process("mysqld"));
    assert!(only(&facts).risk.contains("another server (mysqld, process 7)"));
    pool(&mut facts).free_bytes = 0;
    pool(&mut facts).reads_per_s = 4000.0;
    let finding = only(&facts);
    assert_eq!(finding.rule, "pool_too_small");
    assert!(finding.risk.contains("another server"), "{}", finding.risk);
}

#[test]
fn growing_beyond_the_reservation_takes_a_restart() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = GIB;
    pool(&mut facts).size_max_bytes = Some(2 * GIB);
    pool(&mut facts).free_bytes = MIB;
    pool(&mut facts).reads_per_s = 4000.0;
    machine(&mut facts).room_bytes = 12 * GIB;
    let finding = only(&facts);
    assert!(finding.set.is_empty() && finding.restart);
    assert!(finding.config[1].starts_with("innodb_buffer_pool_size_max = "));
}

#[test]
fn the_built_in_default_is_mentioned_while_there_is_no_data_and_is_no_more_than_that() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = 120 * MIB;
    machine(&mut facts).room_bytes = 14 * GIB;
    facts.data = Data { innodb_data_bytes: 10 * MIB, ..Data::default() };
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("pool_default", Severity::Low));
    assert!(finding.risk.starts_with("none now: the memory is taken as pages come in"));
    pool(&mut facts).described = true;
    assert!(only(&facts).risk.contains("for descriptors is taken at once"));
    pool(&mut facts).described = false;
    facts.data = Data { innodb_data_bytes: 10 * GIB, ..Data::default() };
    assert_eq!(only(&facts).severity, Severity::Medium);
    facts.data = Data { innodb_data_bytes: 10 * MIB, ..Data::default() };
    // A user without privileges sees no table.
    facts.data = Data::default();
    assert!(only(&facts).why.contains("may not see"));
    // Nor does one say much that may read a small table of many.
    facts.data = Data { innodb_data_bytes: MIB, is_partial: true, ..Data::default() };
    assert!(only(&facts).why.contains("may not see"), "{}", only(&facts).why);
    facts.data = Data { innodb_data_bytes: 10 * MIB, ..Data::default() };
    // On a server whose tables are Tidepool's, InnoDB's pool has nothing to do.
    facts.kind.tidepool = true;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_size_that_somebody_chose_is_no_default_though_it_be_the_same() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = 100 * MIB;
    machine(&mut facts).room_bytes = 14 * GIB;
    // One that doesn't tell.
    assert_eq!(only(&facts).rule, "pool_default");
    facts.settings.pool_size_is_set = Some(false);
    assert_eq!(only(&facts).rule, "pool_default");
    facts.settings.pool_size_is_set = Some(true);
    assert_eq!(evaluate(&facts), []);
    // But it may be too small.
    pool(&mut facts).free_bytes = MIB;
    pool(&mut facts).reads_per_s = 4000.0;
    assert_eq!(only(&facts).rule, "pool_too_small");
}

#[test]
fn a_large_pool_with_little_data_is_a_promise_and_no_danger() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 15 * GIB;
    pool(&mut facts).free_bytes = 14 * GIB;
    machine(&mut facts).room_bytes = 13 * GIB;
    facts.data = Data { innodb_data_bytes: GIB, ..Data::default() };
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn nothing_is_said_of_the_size_of_a_pool_in_huge_pages() {
    let mut facts = healthy();
    machine(&mut facts).limit_bytes = 8 * GIB;
    machine(&mut facts).room_bytes = 100 * MIB;
    assert_eq!(only(&facts).rule, "pool_too_large");
    // A group is not charged for it, and of the machine's memory it frees none by becoming smaller.
    machine(&mut facts).server_huge_bytes = 11 * GIB;
    assert_eq!(evaluate(&facts), []);
    // A few are something else's.
    machine(&mut facts).server_huge_bytes = 64 * MIB;
    assert_eq!(only(&facts).rule, "pool_too_large");
}

#[test]
fn what_set_persist_has_written_is_taken_back_for_a_line_in_the_option_file() {
    let mut facts = healthy();
    facts.kind = Kind::from_words("8.4.2", "MySQL Community Server").unwrap();
    pool(&mut facts).old_blocks_time_ms = Some(0);
    facts.settings.persisted = vec!["max_connections".into()];
    assert_eq!(only(&facts).set, ["SET GLOBAL innodb_old_blocks_time = 1000;"]);
    facts.settings.persisted.push("innodb_old_blocks_time".into());
    let finding = only(&facts);
    assert_eq!(
        finding.set,
        [
            "SET GLOBAL innodb_old_blocks_time = 1000;",
            "RESET PERSIST IF EXISTS innodb_old_blocks_time;"
        ]
    );
    assert_eq!(finding.config, ["innodb_old_blocks_time = 1000"]);
    assert!(finding.why.contains("outranks the option file"), "{}", finding.why);
    // What takes a restart as well.
    pool(&mut facts).old_blocks_time_ms = Some(1000);
    facts.settings.flush_method = Some("fsync".into());
    facts.settings.persisted.push("innodb_flush_method".into());
    assert_eq!(only(&facts).set, ["RESET PERSIST IF EXISTS innodb_flush_method;"]);
}

#[test]
fn chunks_are_respected() {
    let unit = 3 * 128 * MIB;
    let pool = Pool { unit_bytes: unit, ..Pool::default() };
    for bytes in [1, 300 * MIB, GIB, 5 * GIB + 7, 100 * GIB] {
        let size = room::settable(bytes, &pool);
        assert_eq!(size % unit, 0, "{bytes}");
        assert!(size <= bytes.max(unit) && (bytes < unit || size >= bytes / 100 * 93 - unit));
    }
}

#[test]
fn a_scan_washes_out_a_pool_without_the_timer() {
    let mut facts = healthy();
    pool(&mut facts).old_blocks_time_ms = Some(0);
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("old_blocks_time", Severity::High));
    assert_eq!(finding.set, ["SET GLOBAL innodb_old_blocks_time = 1000;"]);
    facts.data = Data { innodb_data_bytes: 4 * GIB, ..Data::default() };
    assert_eq!(only(&facts).severity, Severity::Medium);
    // What a user sees who may read a few tables.
    facts.data.is_partial = true;
    assert!(!only(&facts).why.contains("still fits"), "{}", only(&facts).why);
    pool(&mut facts).old_blocks_time_ms = None;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_server_in_swap_is_told_to_shrink_if_the_pool_is_the_reason() {
    let mut facts = healthy();
    machine(&mut facts).server_swapped_bytes = 2 * GIB;
    machine(&mut facts).room_bytes = 100 * MIB;
    machine(&mut facts).swap_bytes_per_s = 50.0 * MIB as f64;
    let findings = evaluate(&facts);
    let rules: Vec<_> = findings.iter().map(|f| (f.rule, f.severity)).collect();
    assert_eq!(
        rules,
        [("server_in_swap", Severity::Critical), ("pool_too_large", Severity::Critical)]
    );
    assert!(set_size(&findings[0]) < 9 * GIB);
    assert_eq!(set_size(&findings[0]), set_size(&findings[1]));
}

#[test]
fn a_server_in_swap_is_seen_whatever_its_pool_is_in() {
    let mut facts = healthy();
    machine(&mut facts).server_swapped_bytes = GIB;
    machine(&mut facts).swap_bytes_per_s = 50.0 * MIB as f64;
    machine(&mut facts).server_huge_bytes = 11 * GIB;
    let in_huge_pages = only(&facts);
    facts.pool = None;
    let without_innodb = only(&facts);
    for finding in [in_huge_pages, without_innodb] {
        assert_eq!((finding.rule, finding.severity), ("server_in_swap", Severity::Critical));
        assert_eq!(finding.set, [""; 0], "no size of a pool helps");
    }
}

/// `swapoff` brings back what everybody has there, and the kernel kills where that is more than is
/// free.
#[test]
fn swap_is_not_turned_off_where_there_is_no_memory_for_all_of_it() {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 8 * GIB;
    pool(&mut facts).free_bytes = 0;
    machine(&mut facts).server_swapped_bytes = 200 * MIB;
    machine(&mut facts).swap_used_bytes = 300 * MIB;
    machine(&mut facts).room_bytes = 5 * GIB;
    facts.data = Data { innodb_data_bytes: 7 * GIB, ..Data::default() };
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("server_in_swap", Severity::Medium));
    assert!(finding.commands[0].starts_with("swapoff -a && swapon -a"), "{finding:?}");
    machine(&mut facts).swap_used_bytes = 5 * GIB / 2;
    let finding = only(&facts);
    assert_eq!(finding.commands, [""; 0]);
    assert!(finding.risk.contains("2.5 GiB of the machine's programs"), "{}", finding.risk);
    machine(&mut facts).server_swapped_bytes = GIB;
    assert_eq!(only(&facts).severity, Severity::High);
}

#[test]
fn a_pool_that_cannot_be_swapped_is_pushed_nowhere() {
    let mut facts = healthy();
    machine(&mut facts).swappiness = Some(60);
    assert_eq!(only(&facts).rule, "swappiness");
    let mut locked = facts.clone();
    locked.settings.locked = Some(true);
    assert_eq!(evaluate(&locked), []);
    machine(&mut facts).server_huge_bytes = 11 * GIB;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_server_that_never_writes_wants_no_larger_log_and_writes_no_list() {
    let mut facts = healthy();
    facts.redo.as_mut().unwrap().capacity_bytes = 10 * MIB;
    facts.settings.dump_at_shutdown = Some(false);
    assert_eq!(evaluate(&facts).len(), 2);
    facts.settings.read_only = Some(true);
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn swappiness_matters_where_there_is_swap() {
    let mut facts = healthy();
    machine(&mut facts).swappiness = Some(60);
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("swappiness", Severity::Low));
    let mut small = facts.clone();
    pool(&mut small).size_bytes = 2 * GIB;
    small.data = Data { innodb_data_bytes: GIB, ..Data::default() };
    assert_eq!(evaluate(&small), []);
    machine(&mut facts).swap_bytes = 0;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn without_swapping_at_all_the_kernel_kills_where_memory_is_short() {
    let mut facts = healthy();
    machine(&mut facts).swappiness = Some(0);
    // 3 GiB are free.
    assert_eq!(evaluate(&facts), []);
    machine(&mut facts).room_bytes = GIB + 100 * MIB;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("swappiness", Severity::Medium));
    assert_eq!(finding.title, "vm.swappiness is 0");
    assert_eq!(finding.commands[0], "sysctl -w vm.swappiness=1");
    assert!(finding.why.contains("killer"), "{}", finding.why);
    // The same memory, but the pool has yet to take it.
    let mut filling = facts.clone();
    machine(&mut filling).room_bytes = 3 * GIB + 400 * MIB;
    pool(&mut filling).free_bytes = 2 * GIB;
    let finding = only(&filling);
    assert_eq!(finding.rule, "swappiness");
    assert!(finding.why.contains("once the pool is filled"), "{}", finding.why);
    // A group of version 1 has its own, which the machine's does not change.
    for (file, command) in [
        ("/cg/db/memory.swappiness", "echo 1 > /cg/db/memory.swappiness"),
        (r"/cg/db\x2da.slice/memory.swappiness", r"echo 1 > '/cg/db\x2da.slice/memory.swappiness'"),
        ("/cg/it's/memory.swappiness", r"echo 1 > '/cg/it'\''s/memory.swappiness'"),
    ] {
        machine(&mut facts).swappiness_file = Some(file.into());
        assert_eq!(only(&facts).commands, [command]);
    }
    machine(&mut facts).limit_place = "cgroup /db".into();
    machine(&mut facts).swappiness_file = Some("/db/memory.swappiness".into());
    let finding = only(&facts);
    assert_eq!(finding.title, "memory.swappiness of cgroup /db is 0");
    assert_eq!(finding.commands, ["echo 1 > /db/memory.swappiness"]);
    // Nothing to choose from.
    machine(&mut facts).swap_bytes = 0;
    assert_eq!(evaluate(&facts), []);
    machine(&mut facts).swap_bytes = GIB;
    machine(&mut facts).swappiness = Some(1);
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn connections_that_memory_is_not_enough_for() {
    let mut facts = healthy();
    facts.connections.allowed = 10_000;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("max_connections", Severity::Medium));
    let wanted: u64 = finding.config[0].rsplit(' ').next().unwrap().parse().unwrap();
    assert!((100..5000).contains(&wanted), "{wanted}");
    // Buffers set per connection by someone who meant well.
    let mut facts = healthy();
    facts.connections.busy_bytes = 64 * MIB;
    facts.connections.used_max = 60;
    assert_eq!(only(&facts).rule, "max_connections");
}

/// On a tmpfs no read comes from a disk, and ZFS has its own cache.
#[test]
fn files_that_are_memory_want_neither_a_pool_nor_another_way_to_be_read() {
    let mut facts = healthy();
    facts.settings.flush_method = Some("fsync".into());
    facts.redo.as_mut().unwrap().capacity_bytes = 10 * MIB;
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = MIB;
    pool(&mut facts).reads_per_s = 4000.0;
    machine(&mut facts).room_bytes = 14 * GIB;
    let rules = |filesystem| {
        let mut facts = facts.clone();
        machine(&mut facts).disk.as_mut().unwrap().filesystem = filesystem;
        machine(&mut facts).redo_disk.as_mut().unwrap().filesystem = filesystem;
        evaluate(&facts).iter().map(|finding| finding.rule).collect::<Vec<_>>()
    };
    assert_eq!(rules(Filesystem::Other), ["pool_too_small", "redo_capacity", "flush_method"]);
    assert_eq!(rules(Filesystem::Zfs), ["pool_too_small", "redo_capacity"]);
    assert_eq!(rules(Filesystem::Memory), [""; 0]);
    // There is no default that anybody should change, either.
    pool(&mut facts).free_bytes = 100 * MIB;
    machine(&mut facts).disk.as_mut().unwrap().filesystem = Filesystem::Memory;
    machine(&mut facts).redo_disk.as_mut().unwrap().filesystem = Filesystem::Memory;
    assert_eq!(evaluate(&facts), []);
}

/// As after a restart that has loaded the pool, and before anybody comes.
#[test]
fn a_full_pool_that_nobody_has_read_from_proves_nothing() {
    let mut facts = healthy();
    *pool(&mut facts) = Pool {
        size_bytes: GIB,
        free_bytes: 0,
        requests_per_s: 0.0,
        reads_per_s: 0.0,
        requests_ever: 100,
        reads_ever: 70,
        ..pool(&mut facts).clone()
    };
    machine(&mut facts).room_bytes = 13 * GIB;
    assert_eq!(evaluate(&facts), []);
    pool(&mut facts).reads_per_s = 200.0;
    assert_eq!(only(&facts).rule, "pool_too_small");
}

#[test]
fn a_cold_restart_is_announced() {
    let mut facts = healthy();
    facts.settings.dump_at_shutdown = Some(false);
    facts.settings.load_at_startup = Some(false);
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("warm_up", Severity::Medium));
    assert_eq!(finding.set.len(), 1);
    assert_eq!(finding.config.len(), 2);
}

#[test]
fn double_buffering_in_every_dialect() {
    let mut facts = healthy();
    for (method, found) in [
        ("fsync", true),
        ("", true),
        ("O_DIRECT", false),
        ("O_DIRECT_NO_FSYNC", false),
        ("O_DSYNC", true),
    ] {
        facts.settings.flush_method = Some(method.into());
        assert_eq!(!evaluate(&facts).is_empty(), found, "{method}");
    }
    // MariaDB 11 says fsync or O_DIRECT of the old option, whatever the new ones are.
    facts.settings.flush_method = Some("fsync".into());
    facts.settings.data_file_buffering = Some(false);
    assert_eq!(evaluate(&facts), []);
    facts.settings.data_file_buffering = Some(true);
    assert_eq!(only(&facts).set, ["SET GLOBAL innodb_data_file_buffering = OFF;"]);
}

#[test]
fn descriptors_of_pages_that_hold_nothing_are_room() {
    // As MySQL 9.7 is seen that has taken three quarters of a machine for its own, in a container
    // of 2 GiB.
    let mut facts = healthy();
    machine(&mut facts).limit_bytes = 2 * GIB;
    machine(&mut facts).room_bytes = 90 * MIB;
    *pool(&mut facts) = Pool {
        size_bytes: 17 * GIB,
        unit_bytes: 128 * MIB,
        online: true,
        described: true,
        free_bytes: 17 * GIB - 110 * MIB,
        old_blocks_time_ms: Some(1000),
        ..Pool::default()
    };
    facts.connections = Connections { allowed: 20, ..Connections::default() };
    let finding = only(&facts);
    assert_eq!(finding.rule, "pool_too_large");
    let size = set_size(&finding);
    assert!((GIB..3 * GIB / 2).contains(&size), "{finding:?}");
    // When that was done, the descriptors are gone and it fits.
    let freed = (17 * GIB - size) / 13;
    machine(&mut facts).room_bytes += freed;
    pool(&mut facts).size_bytes = size;
    pool(&mut facts).free_bytes = size - 110 * MIB;
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_pool_of_large_chunks_gets_a_chunk_for_the_rest() {
    let mut facts = healthy();
    *pool(&mut facts) = Pool {
        size_bytes: 128 * MIB,
        unit_bytes: 128 * MIB,
        online: true,
        described: true,
        reads_per_s: 4000.0,
        ..Pool::default()
    };
    machine(&mut facts).room_bytes = 14 * GIB;
    facts.data = Data { innodb_data_bytes: 286 * MIB, ..Data::default() };
    let finding = only(&facts);
    assert_eq!((finding.rule, set_size(&finding)), ("pool_too_small", 384 * MIB));
}

#[test]
fn a_size_for_tidepool_that_the_machine_does_not_have() {
    let mut facts = healthy();
    let large = Tidepool { size_setting_bytes: 64 * GIB, guarded: true, ..Tidepool::default() };
    facts.tidepool = Some(large.clone());
    assert_eq!(only(&facts).set, ["SET GLOBAL tidepool_buffer_pool_size = 0;"]);
    facts.tidepool = Some(Tidepool { guarded: false, ..large });
    assert_eq!(only(&facts).set, ["SET GLOBAL tidepool_memory_guard = ON;"]);
    assert_eq!(only(&facts).severity, Severity::High);
    facts.tidepool = Some(Tidepool { guarded: true, ..Tidepool::default() });
    assert_eq!(evaluate(&facts), []);
}

/// 6 GiB of Tidepool's tables in a pool of 128 MiB, on a machine with memory to spare.
fn small_tidepool() -> Facts {
    let mut facts = healthy();
    facts.kind.tidepool = true;
    facts.data = Data { tidepool_bytes: 6 * GIB, ..Data::default() };
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = 120 * MIB;
    machine(&mut facts).room_bytes = 14 * GIB;
    facts.tidepool = Some(Tidepool {
        size_setting_bytes: 128 * MIB,
        guarded: true,
        limit_bytes: 128 * MIB,
        data_bytes: 127 * MIB,
        requests_per_s: 100_000.0,
        reads_per_s: 4000.0,
        dump_at_shutdown: Some(true),
        load_at_startup: Some(true),
        direct_io: Some(true),
        ..Tidepool::default()
    });
    facts
}

fn tidepool(facts: &mut Facts) -> &mut Tidepool {
    facts.tidepool.as_mut().unwrap()
}

/// Points of a curve: size in MiB and miss ratio.
fn curve(points: &[(u64, f64)]) -> Vec<AdviceRow> {
    let row = |&(mib, miss): &(u64, f64)| AdviceRow {
        size_bytes: mib * MIB,
        size_factor: None,
        hit_ratio: 1.0 - miss,
        reads_per_s: miss * 100_000.0,
    };
    points.iter().map(row).collect()
}

#[test]
fn a_fixed_tidepool_pool_that_misses_is_better_governed() {
    let mut facts = small_tidepool();
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("tidepool_pool_too_small", Severity::High));
    assert_eq!(finding.set, ["SET GLOBAL tidepool_buffer_pool_size = 0;"]);
    assert_eq!(finding.config, ["tidepool_buffer_pool_size = 0"]);
    assert!(finding.title.contains("128 MiB, too small for 6 GiB of data"), "{}", finding.title);
    // No more than the data, with a tenth for growth.
    assert!(finding.title.contains("could have 6.6 GiB"), "{}", finding.title);
    assert!(finding.why.contains("predicts nothing yet"), "{}", finding.why);
    // A curve that ends before that size.
    tidepool(&mut facts).advice = curve(&[(64, 0.08), (128, 0.04), (512, 0.01)]);
    let why = only(&facts).why;
    assert!(why.contains("predicts 99.00 % at 512 MiB, where its curve ends"), "{why}");
    assert!(why.contains("96.00 % at the present size"), "{why}");
    // One that reaches it: half of the way between its points in the logarithm.
    tidepool(&mut facts).advice = curve(&[(128, 0.04), (1024, 0.02), (16 << 10, 0.001)]);
    let why = only(&facts).why;
    assert!(why.contains("at 6.6 GiB, and"), "{why}");
    // It says that no read would be saved.
    tidepool(&mut facts).advice = curve(&[(128, 0.04), (16 << 10, 0.0395)]);
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn a_small_tidepool_pool_that_costs_nothing_is_left_alone() {
    let unchanged: [fn(&mut Facts); 6] = [
        // It is governed.
        |facts| tidepool(facts).size_setting_bytes = 0,
        // There is no memory for more: its guard keeps it below its size.
        |facts| tidepool(facts).limit_bytes = 64 * MIB,
        |facts| machine(facts).room_bytes = 100 * MIB,
        // It has place left, or all of the data.
        |facts| tidepool(facts).data_bytes = 60 * MIB,
        |facts| facts.data.tidepool_bytes = 100 * MIB,
        // The working set fits.
        |facts| tidepool(facts).reads_per_s = 0.0,
    ];
    for (at, change) in unchanged.iter().enumerate() {
        let mut facts = small_tidepool();
        change(&mut facts);
        let findings = evaluate(&facts);
        assert!(
            findings.iter().all(|f| f.rule != "tidepool_pool_too_small"),
            "{at}: {findings:#?}"
        );
    }
}

#[test]
fn tidepool_is_told_what_innodb_is_told() {
    let governed = || {
        let mut facts = small_tidepool();
        tidepool(&mut facts).size_setting_bytes = 0;
        facts
    };
    assert_eq!(evaluate(&governed()), []);
    let mut cold = governed();
    tidepool(&mut cold).dump_at_shutdown = Some(false);
    tidepool(&mut cold).load_at_startup = Some(false);
    let finding = only(&cold);
    assert_eq!((finding.rule, finding.severity), ("tidepool_warm_up", Severity::Low));
    assert_eq!(finding.set, ["SET GLOBAL tidepool_buffer_pool_dump_at_shutdown = ON;"]);
    assert_eq!(finding.config[1], "tidepool_buffer_pool_load_at_startup = ON");
    tidepool(&mut cold).data_bytes = 2 * GIB;
    assert_eq!(only(&cold).severity, Severity::Medium);

    let mut twice = governed();
    tidepool(&mut twice).direct_io = Some(false);
    let finding = only(&twice);
    assert_eq!((finding.rule, finding.severity), ("tidepool_direct_io", Severity::Medium));
    assert!(finding.restart && finding.set.is_empty());
    assert_eq!(finding.config, ["tidepool_use_direct_io = ON"]);

    let mut washed = governed();
    tidepool(&mut washed).old_blocks_time_ms = Some(0);
    let finding = only(&washed);
    assert_eq!((finding.rule, finding.severity), ("tidepool_old_blocks_time", Severity::High));
    assert_eq!(finding.set, ["SET GLOBAL tidepool_old_blocks_time = 1000;"]);
    tidepool(&mut washed).limit_bytes = 8 * GIB;
    assert_eq!(only(&washed).severity, Severity::Medium);
    tidepool(&mut washed).old_blocks_time_ms = Some(1000);
    assert_eq!(evaluate(&washed), []);
}

#[test]
fn innodb_beside_tidepool_needs_no_larger_log() {
    let mut facts = healthy();
    facts.redo.as_mut().unwrap().capacity_bytes = 10 * MIB;
    assert_eq!(only(&facts).rule, "redo_capacity");
    facts.kind.tidepool = true;
    facts.data = Data { innodb_index_bytes: 0, ..Data::default() };
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn what_was_not_seen_is_not_called_healthy() {
    let mut facts = healthy();
    assert_eq!(is_healthy(&facts, &[]), Some(true));
    facts.unseen.push(crate::facts::Unseen { what: "files".into(), remedy: "GRANT".into() });
    assert_eq!(is_healthy(&facts, &[]), None);
    pool(&mut facts).old_blocks_time_ms = Some(0);
    assert_eq!(is_healthy(&facts, &evaluate(&facts)), Some(false));
    let mut remote = healthy();
    remote.machine = None;
    assert_eq!(is_healthy(&remote, &[]), None);
}

#[test]
fn rules_that_need_no_sizes_speak_where_the_sizes_are_unseen() {
    let mut facts = healthy();
    facts.redo.as_mut().unwrap().capacity_bytes = 10 * MIB;
    facts.kind.tidepool = true;
    facts.data = Data { is_partial: true, ..Data::default() };
    assert_eq!(only(&facts).rule, "redo_capacity");
    // Seen, there are none.
    facts.data.is_partial = false;
    assert_eq!(evaluate(&facts), []);
    // Nor is a pool taken for one that holds little because its data is unseen.
    facts.data.is_partial = true;
    facts.redo = None;
    machine(&mut facts).room_bytes = 14 * GIB;
    *pool(&mut facts) = Pool { free_bytes: 10 * GIB, ..pool(&mut facts).clone() };
    facts.connections.allowed = 4000;
    facts.connections.busy_bytes = MIB;
    assert_eq!(only(&facts).rule, "max_connections");
}

#[test]
fn worst_first() {
    let mut facts = healthy();
    machine(&mut facts).swappiness = Some(60);
    pool(&mut facts).old_blocks_time_ms = Some(0);
    facts.settings.flush_method = Some("fsync".into());
    let severities: Vec<_> = evaluate(&facts).iter().map(|f| f.severity).collect();
    assert_eq!(severities, [Severity::High, Severity::Medium, Severity::Low]);
}

#[test]
fn that_mariadb_backup_leaves_tables_out_is_a_note_and_no_fault() {
    let mut facts = small_tidepool();
    tidepool(&mut facts).size_setting_bytes = 0;
    assert_eq!(evaluate(&facts), []);
    facts.data.tidepool_tables = 3;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.severity), ("mariadb_backup", Severity::Note));
    assert!(finding.why.contains("of the 3 tables and none of the rows"), "{}", finding.why);
    // There is no statement to run blindly: the directory is the administrator's to choose.
    assert!(finding.set.is_empty() && finding.commands.is_empty());
    assert_eq!(is_healthy(&facts, &[finding]), Some(true));
    // It comes last, and does not hide what is wrong.
    tidepool(&mut facts).load_at_startup = Some(false);
    let findings = evaluate(&facts);
    assert_eq!(findings.last().unwrap().severity, Severity::Note);
    assert!(findings.len() == 2 && is_healthy(&facts, &findings) == Some(false));
}
