//! What the server has reserved for itself counts before it is used.

use super::*;
use crate::facts::Promise;

/// A cgroup of 1 GiB, a full pool of 128 MiB that misses, 908 MiB of data, and a key cache of 512
/// MiB that has `left` MiB to take, for MyISAM indexes of 468 MiB.
fn with_key_cache(left: u64) -> Facts {
    let mut facts = healthy();
    facts.data =
        Data { innodb_data_bytes: 908 * MIB, myisam_index_bytes: 468 * MIB, ..Data::default() };
    *pool(&mut facts) = Pool {
        size_bytes: 128 * MIB,
        data_bytes: 127 * MIB,
        free_bytes: MIB,
        reads_per_s: 4000.0,
        ..pool(&mut facts).clone()
    };
    let used = 230 * MIB + (512 - left) * MIB;
    *machine(&mut facts) = Machine {
        limit_bytes: GIB,
        limit_place: "cgroup /db".into(),
        room_bytes: GIB - used,
        ..machine(&mut facts).clone()
    };
    facts.connections = Connections {
        allowed: 100,
        used_max: 3,
        connected: 3,
        running: 3,
        tmp_table_bytes: 16 * MIB,
        ..facts.connections
    };
    facts.promised =
        vec![Promise { name: "key_buffer_size", size_bytes: 512 * MIB, left_bytes: left * MIB }];
    facts
}

#[test]
fn a_size_is_the_same_before_and_after_a_cache_has_filled() {
    let (empty, full) = (only(&with_key_cache(512)), only(&with_key_cache(0)));
    assert_eq!(empty.rule, "pool_too_small");
    assert_eq!(empty.set, full.set);
    let size = set_size(&empty);
    // 1024 less 230 beside what the pool holds of them, 512 for the cache, and the headroom.
    assert!((256 * MIB..370 * MIB).contains(&size), "{size}");
    assert!(
        empty.why.contains("reserved 512 MiB that it has not used yet (key_buffer_size 512 MiB)"),
        "{}",
        empty.why
    );
    assert!(!full.why.contains("reserved"), "{}", full.why);
}

#[test]
fn a_cache_with_nothing_to_fill_it_keeps_a_pool_small_and_is_named() {
    let mut facts = with_key_cache(512);
    facts.data.myisam_index_bytes = MIB;
    let finding = only(&facts);
    assert_eq!(set_size(&finding), set_size(&only(&with_key_cache(512))));
    assert!(finding.why.contains("SET GLOBAL key_buffer_size = 8388608"), "{}", finding.why);
}

#[test]
fn a_pool_is_too_large_beside_a_cache_that_can_fill_and_not_beside_one_that_cannot() {
    let with = |indexes: u64| {
        let mut facts = with_key_cache(512);
        facts.data.myisam_index_bytes = indexes;
        pool(&mut facts).size_bytes = 640 * MIB;
        pool(&mut facts).free_bytes = 512 * MIB;
        pool(&mut facts).reads_per_s = 0.0;
        evaluate(&facts)
    };
    let found = with(468 * MIB);
    assert_eq!(found[0].rule, "pool_too_large", "{found:#?}");
    assert_eq!(with(MIB), []);
}

#[test]
fn a_pool_of_a_fixed_size_that_is_not_full_is_reserved_beside_the_other() {
    let sized = |setting: u64| {
        let mut facts = with_key_cache(0);
        facts.promised = Vec::new();
        machine(&mut facts).room_bytes = 700 * MIB;
        facts.tidepool = Some(Tidepool {
            size_setting_bytes: setting,
            guarded: true,
            limit_bytes: 300 * MIB,
            data_bytes: 20 * MIB,
            ..Tidepool::default()
        });
        room::fit(&facts).unwrap().bytes
    };
    assert!(sized(300 * MIB) + 240 * MIB < sized(0), "{} {}", sized(300 * MIB), sized(0));
}

#[test]
fn temporary_tables_of_the_busiest_time_are_left_room_by_a_pool_that_grows() {
    let mut facts = with_key_cache(0);
    facts.promised = Vec::new();
    machine(&mut facts).room_bytes = 700 * MIB;
    let before = room::fit(&facts).unwrap();
    facts.connections.used_max = 12;
    let after = room::fit(&facts).unwrap();
    // Fifteen connections, of which three run and have theirs.
    assert_eq!(after.peak_bytes - before.peak_bytes, 12 * (16 * MIB + (1200 << 10)));
    assert!(after.bytes + 180 * MIB < before.bytes);
    // They are a guess: no pool is too large for their sake alone.
    assert_eq!(
        after.certain_bytes,
        room::settable(after.certain_bytes, facts.pool.as_ref().unwrap())
    );
    assert!(after.certain_bytes > after.bytes + 150 * MIB, "{after:?}");
    facts.connections.tmp_tables_max_bytes = Some(32 * MIB);
    let bounded = room::fit(&facts).unwrap();
    assert!(bounded.peak_bytes < after.peak_bytes / 3, "{bounded:?}");
}
