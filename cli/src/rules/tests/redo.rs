//! The redo log.

use super::*;

#[test]
fn redo_is_rate_times_time() {
    let mut facts = healthy();
    let redo = facts.redo.as_mut().unwrap();
    redo.capacity_bytes = 96 * MIB;
    redo.written_per_s = 2.0 * MIB as f64;
    let finding = only(&facts);
    // 48 s of writing; ten minutes are 1.17 GiB, and an hour of the average 1.3 GiB.
    assert_eq!((finding.rule, finding.severity), ("redo_capacity", Severity::High));
    assert_eq!(set_size(&finding), 2 * GIB);
    assert_eq!(finding.set, [format!("SET GLOBAL innodb_log_file_size = {};", 2 * GIB)]);
    // The disk has the last word.
    machine(&mut facts).redo_disk.as_mut().unwrap().free_bytes = 5 * GIB;
    assert_eq!(set_size(&only(&facts)), GIB);
    // An idle server with a log that one burst fills.
    machine(&mut facts).redo_disk = None;
    let redo = facts.redo.as_mut().unwrap();
    (redo.capacity_bytes, redo.written_per_s, redo.written_per_s_ever) = (10 * MIB, 0.0, 10.0);
    let finding = only(&facts);
    assert_eq!((finding.severity, set_size(&finding)), (Severity::Medium, 256 * MIB));
    // MariaDB refuses a log that is smaller than its buffer.
    facts.redo.as_mut().unwrap().least_bytes = 600 * MIB;
    assert_eq!(set_size(&only(&facts)), GIB);
    machine(&mut facts).redo_disk = Some(Disk { free_bytes: 2 * GIB, ..Disk::default() });
    assert_eq!(evaluate(&facts), []);
}

#[test]
fn old_servers_share_the_redo_log_among_files_and_need_a_restart() {
    let mut facts = healthy();
    facts.kind = Kind::from_words("5.7.40", "MySQL Community Server").unwrap();
    let redo = facts.redo.as_mut().unwrap();
    (redo.capacity_bytes, redo.files, redo.online) = (96 * MIB, 2, false);
    redo.written_per_s = MIB as f64;
    let finding = only(&facts);
    assert_eq!(set_size(&finding), GIB);
    assert!(finding.restart && finding.set.is_empty());
}

/// 8 MiB of log, 796 MiB of data, and a benchmark of fifteen seconds.
fn after_a_burst() -> Facts {
    let mut facts = healthy();
    facts.data = Data { innodb_data_bytes: 796 * MIB, ..Data::default() };
    pool(&mut facts).size_bytes = 900 * MIB;
    let redo = facts.redo.as_mut().unwrap();
    redo.capacity_bytes = 8 * MIB;
    redo.written_per_s = 5.0 * MIB as f64;
    redo.written_per_s_ever = 232.0 * 1024.0;
    facts
}

#[test]
fn a_log_is_not_made_larger_than_what_can_be_dirty() {
    let finding = only(&after_a_burst());
    assert_eq!((finding.rule, set_size(&finding)), ("redo_capacity", GIB));
    let mut small = after_a_burst();
    pool(&mut small).size_bytes = 128 * MIB;
    pool(&mut small).free_bytes = MIB;
    pool(&mut small).reads_per_s = 0.0;
    small.settings.pool_size_is_set = Some(true);
    assert_eq!(set_size(&only(&small)), 256 * MIB);
    // Unseen, the data sets no bound, and the pool does.
    let mut unseen = after_a_burst();
    unseen.data = Data { is_partial: true, ..Data::default() };
    assert_eq!(set_size(&only(&unseen)), GIB);
}

#[test]
fn a_sample_of_seconds_counts_for_minutes() {
    let mut facts = healthy();
    let redo = facts.redo.as_mut().unwrap();
    redo.capacity_bytes = 96 * MIB;
    (redo.written_per_s, redo.written_per_s_ever) = (5.0 * MIB as f64, 232.0 * 1024.0);
    // Ten minutes of the one are 2.9 GiB, an hour of the other 0.8 GiB.
    assert_eq!(set_size(&only(&facts)), 4 * GIB);
    let redo = facts.redo.as_mut().unwrap();
    (redo.written_per_s, redo.written_per_s_ever) = (0.0, 232.0 * 1024.0);
    let finding = only(&facts);
    assert_eq!(set_size(&finding), GIB);
    assert!(finding.why.starts_with("At the average write rate since the start (232 KiB/s) it"));
    assert!(finding.why.contains("the server is idle now"), "{}", finding.why);
}
