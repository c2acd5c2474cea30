//! The redo log.

use super::*;

#[test]
fn redo_is_rate_times_time() {
    let mut facts = healthy();
    let redo = facts.redo.as_mut().unwrap();
    redo.capacity_bytes = 96 * MIB;
    redo.written_per_s = 2.0 * MIB as f64;
    let finding = only(&facts);
    // 48 s of writing; an hour is 7.03 GiB.
    assert_eq!((finding.rule, finding.severity), ("redo_capacity", Severity::High));
    assert_eq!(set_size(&finding), 8 * GIB);
    assert_eq!(finding.set, [format!("SET GLOBAL innodb_log_file_size = {};", 8 * GIB)]);
    // The disk has the last word.
    machine(&mut facts).redo_disk.as_mut().unwrap().free_bytes = 9 * GIB;
    assert_eq!(set_size(&only(&facts)), 2 * GIB);
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
    assert_eq!(set_size(&finding), 2 * GIB);
    assert!(finding.restart && finding.set.is_empty());
}
