//! Buffers that every connection may take: where they are too large, the advice is about them, and
//! not about the pool.

use super::*;
use crate::facts::LargeBuffer;

/// A hundred of these connections were there at one time, with buffers of 256 and 128 MiB each.
fn large_buffers() -> Facts {
    let mut facts = healthy();
    pool(&mut facts).size_bytes = 4 * GIB;
    pool(&mut facts).free_bytes = 100 * MIB;
    machine(&mut facts).room_bytes = 10 * GIB;
    facts.data = Data { innodb_data_bytes: 3 * GIB, ..Data::default() };
    facts.connections = Connections {
        allowed: 500,
        used_max: 100,
        connected: 5,
        busy_bytes: 385 * MIB,
        idle_bytes: 160 << 10,
        tmp_table_bytes: 0,
        tmp_tables_max_bytes: None,
        running: 0,
        pooled: false,
        large: vec![
            LargeBuffer { name: "sort_buffer_size", bytes: 256 * MIB },
            LargeBuffer { name: "join_buffer_size", bytes: 128 * MIB },
        ],
    };
    facts
}

#[test]
fn buffers_that_are_too_large_do_not_make_the_pool_small() {
    let finding = only(&large_buffers());
    assert_eq!((finding.rule, finding.severity), ("max_connections", Severity::High));
    assert_eq!(
        finding.set,
        ["SET GLOBAL sort_buffer_size = 2097152;", "SET GLOBAL join_buffer_size = 2097152;",],
        "with these memory is enough for all of them"
    );
    assert_eq!(finding.config, ["sort_buffer_size = 2M", "join_buffer_size = 2M"]);
    assert!(finding.why.contains("sort_buffer_size 256 MiB"), "{}", finding.why);
    let mut many = large_buffers();
    many.connections.allowed = 100_000;
    let finding = only(&many);
    assert_eq!(finding.set.len(), 3);
    assert!(finding.set[2].starts_with("SET GLOBAL max_connections = "), "{:?}", finding.set);
}

#[test]
fn of_connections_that_share_a_pool_of_threads_few_are_busy() {
    let mut facts = large_buffers();
    facts.connections.pooled = true;
    assert_eq!(evaluate(&facts), []);
    let idle = 120 * facts.connections.idle_bytes;
    assert_eq!(room::fit(&facts).unwrap().peak_all_bytes, idle);
}

#[test]
fn a_busiest_time_that_would_take_all_is_counted_as_a_quarter_of_the_limit() {
    let facts = large_buffers();
    let fit = room::fit(&facts).unwrap();
    let peak = 125 * 385 * MIB - 5 * facts.connections.idle_bytes;
    assert_eq!((fit.peak_bytes, fit.peak_all_bytes), (4 * GIB, peak));
    let words = room::sentence(&fit, &facts, facts.machine.as_ref().unwrap());
    assert!(words.contains("could need 47.0 GiB, of which 4 GiB"), "{words}");
}

#[test]
fn no_figure_is_too_large_to_be_counted_with() {
    let mut facts = large_buffers();
    facts.connections.busy_bytes = u64::MAX;
    assert_eq!(only(&facts).rule, "max_connections");
}

#[test]
fn a_pool_is_not_told_to_be_nothing_where_others_have_taken_the_memory() {
    let mut facts = healthy();
    machine(&mut facts).room_bytes = 50 * MIB;
    pool(&mut facts).size_bytes = 256 * MIB;
    pool(&mut facts).free_bytes = MIB;
    pool(&mut facts).reads_per_s = 0.0;
    let finding = only(&facts);
    assert_eq!(finding.rule, "pool_too_large");
    assert_eq!(set_size(&finding), 64 * MIB);
    assert!(finding.title.ends_with("nor does any that is of use"), "{}", finding.title);
    assert!(!finding.why.contains("room for a pool of 64 MiB"), "{}", finding.why);
    for size in [128, 64, 16] {
        pool(&mut facts).size_bytes = size * MIB;
        // Full and missing, or not: no word that it should grow.
        for reads in [0.0, 4000.0] {
            pool(&mut facts).reads_per_s = reads;
            let rules: Vec<_> = evaluate(&facts).iter().map(|f| f.rule).collect();
            assert_eq!(rules == ["pool_too_large"], size > 64, "{size}: {rules:?}");
            assert!(!rules.contains(&"pool_too_small"), "{size}: {rules:?}");
        }
    }
}

#[test]
fn no_more_connections_are_advised_than_come() {
    let mut facts = large_buffers();
    (facts.connections.allowed, facts.connections.used_max) = (5000, 3);
    facts.connections.connected = 1;
    let finding = only(&facts);
    assert_eq!(finding.rule, "max_connections");
    assert_eq!(finding.set[2], "SET GLOBAL max_connections = 151;");
    facts.connections.used_max = 100;
    assert_eq!(only(&facts).set[2], "SET GLOBAL max_connections = 400;");
}
