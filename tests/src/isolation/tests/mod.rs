//! Histories written by hand, each with an anomaly that must be named, and the same without it.

mod script;

use super::anomaly::{Anomaly, Name};
use super::check::check;
use super::history::{AfterCrash, Follows, Kind, Level, Outcome, Read, Row, Scope, Write};
use Level::{ReadCommitted as Rc, RepeatableRead as Rr, Serializable as Ser};
use script::{Script, X, Y, is, none, put, row};

#[test]
fn transactions_one_after_the_other_are_fine_at_any_level() {
    for level in Level::ALL {
        let script = Script::new(&[level; 3])
            .read(0, X, &[1])
            .append(0, X, 10)
            .read(0, X, &[1, 10])
            .commit(0)
            .lock(1, X, &[1, 10])
            .delete(1, X, 10, 11)
            .read(1, X, &[])
            .commit(1)
            .read(2, X, &[])
            .insert(2, X, 12)
            .append(2, Y, 13)
            .commit(2);
        none(&script.finally(&[12], &[2, 13]));
    }
}

#[test]
fn writes_that_cross_are_g0() {
    for level in Level::ALL {
        let script = Script::new(&[level; 2])
            .append(0, X, 10)
            .append(1, X, 11)
            .append(1, Y, 12)
            .append(0, Y, 13)
            .commit(0)
            .commit(1);
        is(&script.finally(&[1, 10, 11], &[2, 12, 13]), Name::G0);
    }
}

#[test]
fn a_read_of_what_was_rolled_back_is_g1a() {
    let aborted = Script::new(&[Rc; 2]).append(0, X, 10).read(1, X, &[1, 10]).abort(0).commit(1);
    is(&aborted.finally(&[1], &[2]), Name::G1a);
    let undone = Script::new(&[Rc; 2])
        .append(0, Y, 12)
        .kind(0, Kind::Savepoint)
        .append(0, X, 10)
        .kind(0, Kind::BackToSavepoint)
        .append(0, X, 11)
        .commit(0)
        .read(1, X, &[1, 10, 11])
        .commit(1);
    is(&undone.check(), Name::G1a);
    let failed = Script::new(&[Rc; 2])
        .step(0, Kind::Failed, Vec::new(), vec![put(X, 10, Follows::Unseen)])
        .commit(0)
        .read(1, X, &[1, 10]);
    is(&failed.check(), Name::G1a);
}

#[test]
fn writes_before_a_savepoint_stay() {
    let script = Script::new(&[Rr])
        .append(0, X, 10)
        .kind(0, Kind::Savepoint)
        .append(0, X, 11)
        .read(0, X, &[1, 10, 11])
        .kind(0, Kind::BackToSavepoint)
        .read(0, X, &[1, 10])
        .append(0, X, 12)
        .commit(0);
    none(&script.finally(&[1, 10, 12], &[2]));
}

#[test]
fn a_read_between_two_writes_of_a_transaction_is_g1b() {
    let script = Script::new(&[Rc; 2])
        .append(0, X, 10)
        .read(1, X, &[1, 10])
        .append(0, X, 11)
        .commit(0)
        .commit(1);
    is(&script.finally(&[1, 10, 11], &[2]), Name::G1b);
}

#[test]
fn reads_of_each_others_writes_are_g1c() {
    for level in Level::ALL {
        let script = Script::new(&[level; 2])
            .append(0, X, 10)
            .append(1, Y, 11)
            .read(0, Y, &[2, 11])
            .read(1, X, &[1, 10])
            .commit(0)
            .commit(1);
        is(&script.finally(&[1, 10], &[2, 11]), Name::G1c);
    }
}

#[test]
fn a_dirty_read_is_g1c_even_if_its_writer_commits() {
    let script = Script::new(&[Rc; 2]).append(0, X, 10).read(1, X, &[1, 10]).commit(1).commit(0);
    // Only the clock says that the reader ended first.
    is(&script.finally(&[1, 10], &[2]), Name::G1cRealtime);
}

/// One transaction reads x, another changes both rows, the first reads y.
fn read_skew(level: Level) -> Script {
    Script::new(&[level; 2])
        .read(0, X, &[1])
        .append(1, X, 10)
        .append(1, Y, 11)
        .commit(1)
        .read(0, Y, &[2, 11])
        .commit(0)
}

#[test]
fn read_skew_is_g_single_above_read_committed() {
    none(&read_skew(Rc).finally(&[1, 10], &[2, 11]));
    is(&read_skew(Rr).finally(&[1, 10], &[2, 11]), Name::GSingle);
    is(&read_skew(Ser).finally(&[1, 10], &[2, 11]), Name::GSingle);
}

#[test]
fn read_skew_within_one_statement_is_g_single_at_read_committed() {
    let both = Read {
        scopes: vec![Scope::point(X), Scope::point(Y)],
        rows: vec![row(X, &[1], 0), row(Y, &[2, 11], 0)],
        ..Read::default()
    };
    let mut script = Script::new(&[Rc; 2]).append(1, X, 10).append(1, Y, 11).commit(1).step(
        0,
        Kind::Done,
        vec![both],
        vec![],
    );
    // It began before the other committed.
    script.history.transactions[0].steps[0].span.from = 0;
    is(&script.commit(0).finally(&[1, 10], &[2, 11]), Name::GSingle);
}

/// T0 reads with locks, T1 moves the row X to another bucket meanwhile; T0 asks for some buckets,
/// and X does not come.
fn moved(asked: u32, level: Level) -> Script {
    let scope = Scope { table: X.table, keys: 1 << X.key, buckets: asked };
    let read = Read { lasting: vec![scope], locking: true, ..Read::default() };
    let moving = Write { bucket: Some(1), ..put(X, 10, Follows::Unseen) };
    let mut script = Script::new(&[level, Rc, Rc])
        .write(1, moving)
        .commit(1)
        .step(0, Kind::Done, vec![read], Vec::new())
        .commit(0);
    script.history.transactions[0].steps[0].span.from = 0;
    script
}

#[test]
fn a_locking_read_that_misses_a_row_while_it_moves_is_told() {
    let after = |script: Script| {
        script.read_by(2, Scope::point(X), &[row(X, &[1, 10], 1)], false).commit(2)
    };
    for level in [Rc, Rr, Ser] {
        is(&after(moved(0b11, level)).check(), Name::MissedRow);
        // It came or went meanwhile.
        none(&after(moved(0b01, level)).check());
        none(&after(moved(0b10, level)).check());
    }
    // It was moved before the statement began, and that is known.
    let mut script = moved(0b10, Rc);
    script.history.transactions[0].steps[0].span.from = script.history.transactions[1].end.to + 1;
    is(&after(script).check(), Name::MissedRow);
    // The transaction that moved it may have been rolled back by a crash.
    let mut script = moved(0b11, Rc);
    script.history.transactions[1].outcome = Outcome::Unknown;
    none(&script.check());
}

#[test]
fn a_read_that_is_not_repeatable_is_g_single() {
    let script = |level| {
        Script::new(&[level; 2])
            .read(0, X, &[1])
            .append(1, X, 10)
            .commit(1)
            .read(0, X, &[1, 10])
            .commit(0)
    };
    none(&script(Rc).finally(&[1, 10], &[2]));
    is(&script(Rr).finally(&[1, 10], &[2]), Name::GSingle);
}

#[test]
fn a_write_over_what_the_snapshot_does_not_see_is_g_single() {
    let script = |level| {
        Script::new(&[level; 2])
            .read(0, X, &[1])
            .append(1, X, 10)
            .commit(1)
            .append(0, X, 11)
            .commit(0)
    };
    none(&script(Rc).finally(&[1, 10, 11], &[2]));
    is(&script(Rr).finally(&[1, 10, 11], &[2]), Name::GSingle);
}

#[test]
fn a_locking_read_of_what_the_snapshot_does_not_see_is_g_single() {
    let script = |level| {
        Script::new(&[level; 2])
            .read(0, X, &[1])
            .append(1, X, 10)
            .commit(1)
            .lock(0, X, &[1, 10])
            .commit(0)
    };
    none(&script(Rc).finally(&[1, 10], &[2]));
    is(&script(Rr).finally(&[1, 10], &[2]), Name::GSingle);
}

#[test]
fn two_writes_of_what_both_have_read_are_a_lost_update() {
    let script = Script::new(&[Rc; 2])
        .read(0, X, &[1])
        .read(1, X, &[1])
        .write(0, put(X, 10, Follows::List(1)))
        .commit(0)
        .write(1, put(X, 11, Follows::List(1)))
        .commit(1);
    is(&script.finally(&[1, 11], &[2]), Name::LostUpdate);
}

#[test]
fn a_write_over_a_row_that_another_has_locked_is_found() {
    for level in Level::ALL {
        let script = Script::new(&[level; 2])
            .lock(0, X, &[1])
            .append(1, X, 10)
            .append(1, Y, 11)
            .commit(1)
            .lock(0, Y, &[2, 11])
            .commit(0);
        is(&script.finally(&[1, 10], &[2, 11]), Name::GSingle);
    }
}

/// Each of two transactions reads both rows and writes one.
fn write_skew(level: Level) -> Script {
    Script::new(&[level; 2])
        .read(0, X, &[1])
        .read(0, Y, &[2])
        .read(1, X, &[1])
        .read(1, Y, &[2])
        .append(0, X, 10)
        .append(1, Y, 11)
        .commit(0)
        .commit(1)
}

#[test]
fn write_skew_is_g2_item_at_serializable_only() {
    none(&write_skew(Rc).finally(&[1, 10], &[2, 11]));
    none(&write_skew(Rr).finally(&[1, 10], &[2, 11]));
    is(&write_skew(Ser).finally(&[1, 10], &[2, 11]), Name::G2Item);
}

#[test]
fn write_skew_by_phantoms_is_g2_at_serializable_only() {
    let script = |level| {
        let mut script = Script::new(&[level; 2]);
        script.history.initial.clear();
        script.read(0, X, &[]).read(1, Y, &[]).insert(0, Y, 10).insert(1, X, 11).commit(0).commit(1)
    };
    none(&script(Rr).finally(&[11], &[10]));
    is(&script(Ser).finally(&[11], &[10]), Name::G2);
}

#[test]
fn a_long_fork_is_found_from_repeatable_read_on() {
    let script = |level| {
        Script::new(&[level; 4])
            .append(0, X, 10)
            .append(1, Y, 11)
            .read(2, X, &[1])
            .read(3, Y, &[2])
            .commit(0)
            .commit(1)
            .read(2, Y, &[2, 11])
            .read(3, X, &[1, 10])
            .commit(2)
            .commit(3)
    };
    none(&script(Rc).finally(&[1, 10], &[2, 11]));
    let fork = script(Rr).finally(&[1, 10], &[2, 11]);
    is(&fork, Name::GNonadjacent);
}

#[test]
fn a_read_of_less_than_was_acknowledged_is_stale() {
    for level in Level::ALL {
        let script = Script::new(&[level; 2]).append(0, X, 10).commit(0).read(1, X, &[1]).commit(1);
        is(&script.finally(&[1, 10], &[2]), Name::GSingleRealtime);
    }
    // Begun before that, it may see either, except a statement of READ COMMITTED.
    let script = |level| {
        Script::new(&[level; 2])
            .read(1, Y, &[2])
            .append(0, X, 10)
            .commit(0)
            .read(1, X, &[1])
            .commit(1)
    };
    none(&script(Rr).finally(&[1, 10], &[2]));
    is(&script(Rc).finally(&[1, 10], &[2]), Name::GSingleRealtime);
}

#[test]
fn levels_may_be_mixed() {
    // A SERIALIZABLE reader's locks hold against everybody; a snapshot's reads bind no other.
    let script = |reader, writer| {
        Script::new(&[reader, writer])
            .read(0, X, &[1])
            .append(1, X, 10)
            .read(1, Y, &[2])
            .commit(1)
            .append(0, Y, 11)
            .commit(0)
    };
    none(&script(Rr, Ser).finally(&[1, 10], &[2, 11]));
    is(&script(Ser, Rc).finally(&[1, 10], &[2, 11]), Name::GSingleRealtime);
}

#[test]
fn own_writes_must_be_seen() {
    let script = Script::new(&[Rr]).append(0, X, 10).read(0, X, &[1]).commit(0);
    is(&script.finally(&[1, 10], &[2]), Name::Internal);
    let script = Script::new(&[Rr]).delete(0, X, 1, 10).read(0, X, &[1]).commit(0);
    is(&script.finally(&[], &[2]), Name::Internal);
    let script = Script::new(&[Rr]).append(0, X, 10).read(0, X, &[]).commit(0);
    is(&script.finally(&[1, 10], &[2]), Name::Internal);
}

#[test]
fn a_write_that_no_list_shows_is_lost() {
    is(&Script::new(&[Rc]).append(0, X, 10).commit(0).finally(&[1], &[2]), Name::LostWrite);
}

#[test]
fn lists_that_contradict_each_other_are_found() {
    let script = Script::new(&[Rc; 3]).append(0, X, 10).commit(0).append(1, X, 11).commit(1).read(
        2,
        X,
        &[1, 10, 11],
    );
    is(&script.finally(&[1, 11, 10], &[2]), Name::IncompatibleOrder);
}

#[test]
fn rows_that_nobody_wrote_are_garbage() {
    is(&Script::new(&[]).finally(&[1, 77], &[2]), Name::Garbage);
    is(&Script::new(&[]).finally(&[1, 1], &[2]), Name::Garbage);
    let elsewhere = Script::new(&[Rr]).read_by(0, Scope::point(X), &[row(X, &[1], 3)], false);
    is(&elsewhere.check(), Name::Garbage);
    let twice = [row(X, &[1], 0), row(X, &[1], 0)];
    is(&Script::new(&[Rr]).read_by(0, Scope::point(X), &twice, false).check(), Name::Garbage);
}

#[test]
fn a_row_that_a_predicate_misses_is_found() {
    let all = Scope { table: 0, keys: 0b11, buckets: 0b1 };
    is(&Script::new(&[Rc]).read_by(0, all, &[], false).commit(0).check(), Name::MissedRow);
    // It is in another bucket.
    let other = Scope { buckets: 0b10, ..all };
    none(&Script::new(&[Rc]).read_by(0, other, &[], false).commit(0).check());
}

#[test]
fn a_row_that_has_moved_must_be_in_one_of_its_buckets() {
    let in_bucket = |bucket: u8| Scope { table: 0, keys: 0b10, buckets: 1 << bucket };
    let moved = |level| {
        Script::new(&[level; 3])
            .read_by(0, in_bucket(1), &[], false)
            .write(1, Write { bucket: Some(1), ..put(X, 10, Follows::Unseen) })
            .append(1, Y, 11)
            .commit(1)
            .read_by(0, in_bucket(0), &[], false)
            .commit(0)
            .read_by(2, in_bucket(1), &[row(X, &[1, 10], 1)], false)
            .read(2, Y, &[2, 11])
            .commit(2)
    };
    none(&moved(Rc).check());
    is(&moved(Rr).check(), Name::GSingle);
}

/// Transaction 0 committed, 1 is in doubt after a change of both rows, with a mark or not; then the
/// rows that are left.
fn crashed(left: &[Row], marked: bool) -> Vec<Anomaly> {
    let mut script = Script::new(&[Rr; 2])
        .append(0, X, 10)
        .commit(0)
        .append(1, X, 11)
        .append(1, Y, 12)
        .end(1, Outcome::Unknown);
    let marked = if marked { [0, 1].into() } else { [0].into() };
    script.history.after_crash =
        Some(AfterCrash { rows: left.to_vec(), marked, marking: [0, 1].into() });
    script.check()
}

#[test]
fn what_was_acknowledged_is_there_after_a_crash_and_what_was_not_wholly_or_not() {
    let (old, new) =
        ([row(X, &[1, 10], 0), row(Y, &[2], 0)], [row(X, &[1, 10, 11], 0), row(Y, &[2, 12], 0)]);
    none(&crashed(&old, false));
    none(&crashed(&new, true));
    is(&crashed(&new, false), Name::NotDurable);
    is(&crashed(&old, true), Name::NotDurable);
    is(&crashed(&[new[0].clone(), old[1].clone()], true), Name::NotDurable);
    is(&crashed(&[row(X, &[1], 0), row(Y, &[2], 0)], false), Name::NotDurable);
    is(&crashed(&[], false), Name::NotDurable);
}

#[test]
fn what_only_a_reader_saw_may_be_gone_after_a_crash() {
    let script = |also_writes: bool| {
        let mut script = Script::new(&[Rc; 2]).append(0, X, 10).end(0, Outcome::Unknown);
        script = script.read(1, X, &[1, 10]);
        if also_writes {
            script = script.append(1, X, 11);
        }
        script = script.commit(1);
        let rows = vec![row(X, &[1], 0), row(Y, &[2], 0)];
        let marking = [0, 1].into();
        script.history.after_crash = Some(AfterCrash { rows, marked: [].into(), marking });
        script.check()
    };
    none(&script(false));
    is(&script(true), Name::NotDurable);
}

#[test]
fn a_report_names_the_cycle_and_the_statements() {
    let mut script = read_skew(Rr).lock(0, X, &[1, 10]);
    script.history.transactions[0].steps[0].sql = "SELECT x".into();
    let anomalies = check(&script.history);
    let cycle = anomalies.iter().find(|anomaly| anomaly.name == Name::GSingle);
    let report = cycle.expect("read skew").report(&script.history);
    for part in [
        "G-single",
        "T0 ─rw t0[1]→ T1",
        "REPEATABLE READ",
        "SELECT x → t0[1] = [1]",
        "writes 10 on t0[1]",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
}

#[test]
fn a_row_that_stays_out_of_a_bucket_is_no_phantom() {
    let elsewhere = Scope { table: 0, keys: 0b10, buckets: 0b10 };
    let moves_to = |bucket: u8| {
        Script::new(&[Ser; 3])
            .read_by(0, elsewhere, &[], false)
            .write(1, Write { bucket: Some(bucket), ..put(X, 10, Follows::Unseen) })
            .commit(1)
            .read(0, Y, &[2])
            .commit(0)
            .read_by(2, Scope::point(X), &[row(X, &[1, 10], bucket)], false)
            .commit(2)
            .check()
    };
    none(&moves_to(2));
    is(&moves_to(1), Name::GSingleRealtime);
}

#[test]
fn a_read_that_failed_may_have_taken_the_snapshot() {
    let script = |kind| {
        Script::new(&[Rr; 2])
            .kind(0, kind)
            .append(1, X, 10)
            .commit(1)
            .read(0, X, &[1])
            .commit(0)
            .finally(&[1, 10], &[2])
    };
    none(&script(Kind::Failed));
    none(&script(Kind::Snapshot));
    is(&script(Kind::Savepoint), Name::GSingleRealtime);
}

#[test]
fn who_was_seen_before_a_crash_wrote_all_its_rows() {
    let moved = |kind| {
        let mut script = Script::new(&[Rc; 2])
            .step(
                0,
                kind,
                Vec::new(),
                vec![Write { bucket: Some(1), ..put(X, 10, Follows::Unseen) }],
            )
            .append(0, Y, 11)
            .end(0, Outcome::Unknown)
            .read(1, Y, &[2, 11])
            .read_by(1, Scope { table: 0, keys: 0b10, buckets: 0b1 }, &[], false)
            .commit(1);
        let rows = vec![row(X, &[1], 0), row(Y, &[2], 0)];
        script.history.after_crash = Some(AfterCrash { rows, ..AfterCrash::default() });
        script.check()
    };
    none(&moved(Kind::Done));
    is(&moved(Kind::Failed), Name::MissedRow);
}
