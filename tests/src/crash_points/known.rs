//! Faults of the server, which it shows with InnoDB as well.
//!
//! Each was seen with `scripts/crash-points --engine InnoDB --flush 1`, with the same `--crash`.
//! InnoDB shows more, which are not listed, as this engine has none of them: `create-partitioned`
//! (what a crash leaves of the partitions stays, and the next CREATE TABLE fails),
//! `drop-partitioned`, `drop-several` and `rename-partitioned` (some partitions are dropped or
//! renamed, and others are not), `partition-add-hash` and `partition-coalesce` ("doesn't exist in
//! engine" after a crash), `partition-by`, `partition-remove`, `partition-to-table` and
//! `table-to-partition` (a table without its definition, or partitions without a table), and with
//! power cuts acknowledged changes of triggers.

use super::Setting;

/// A fault that is not the engine's.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub case: &'static str,
    /// A part of the setting's text: it is shown only there.
    pub setting: &'static str,
    /// A part of the violation's text.
    pub symptom: &'static str,
    /// Where it is excused.
    pub point: Point,
    /// What the server does wrong.
    pub why: &'static str,
}

/// A kind of crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// At a call of the statement.
    Call,
    /// Behind the acknowledgement.
    Acknowledged,
}

const fn known(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, setting: "", symptom, point: Point::Call, why }
}

/// A fault that the binary log prevents, if it is synced.
const fn without_binary_log(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, setting: "binlog off", symptom, point: Point::Call, why }
}

/// A fault that a kill does not show.
const fn at_power_cut(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, setting: "power cut", symptom, point: Point::Call, why }
}

/// A change that the server acknowledges before it is durable, and that engines can't make durable.
/// A synced binary log takes it along to the disk, as ext4 commits all names together.
const fn acknowledged(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    let point = Point::Acknowledged;
    Known { case, setting: "power cut", symptom, point, why }
}

/// All of them.
pub const KNOWN: &[Known] = &[
    known("create-or-replace", REPLACED, DROP_AND_CREATE),
    known("create-or-replace-select", REPLACED, DROP_AND_CREATE),
    without_binary_log("commit-two-engines", "compared with after: `cp`.`o` is", ONE_OF_TWO),
    without_binary_log("commit-two-engines", "compared with after: `cp`.`t` is", ONE_OF_TWO),
    Known {
        case: "commit-two-engines",
        setting: "power cut, flush 1, binlog unsynced",
        symptom: "compared with after: `cp`.`o` is",
        point: Point::Call,
        why: ONE_OF_TWO,
    },
    at_power_cut("alter-engine-to-other", ".ibd", NAME_OF_INNODB),
    acknowledged("create-database", "is lost: cp3 is absent", DATABASE_NOT_SYNCED),
    acknowledged("drop-database", "is lost: cp2 is here only", DATABASE_NOT_SYNCED),
    at_power_cut(
        "create-in-new-database",
        "after: cp3 is\nCREATE DATABASE `cp3` /*!40100 DEFAULT CHARACTER SET latin1 ",
        DATABASE_NOT_SYNCED,
    ),
    at_power_cut("create-trigger", "stray: cp/g.TRN", TRIGGER_NAMES),
    at_power_cut("create-trigger-under-lock", "stray: cp/g.TRN", TRIGGER_NAMES),
    at_power_cut("create-second-trigger", "stray: cp/g2.TRN", TRIGGER_NAMES),
    at_power_cut("create-second-trigger", "ERROR 1341", TRIGGERS_EMPTY),
    known("drop-trigger", "stray: cp/g.TRN", TRIGGER_NAMES),
    at_power_cut("rename-with-trigger", "stray: cp/g.TRN~", TRIGGER_NAMES),
    known("alter-rename-with-trigger", "stray: cp/g.TRN~", TRIGGER_NAMES),
    known("alter-copy-rename-with-trigger", "stray: cp/g.TRN~", TRIGGER_NAMES),
];

const REPLACED: &str =
    "compared with before: `cp`.`t` is absent\ncompared with after: `cp`.`t` is absent";
const DROP_AND_CREATE: &str = "\
    CREATE OR REPLACE is a DROP TABLE and a CREATE TABLE: after a crash between the two there \
    is no table";
const ONE_OF_TWO: &str = "\
    without a binary log, or one that is lost in part, the server rolls back all that is \
    prepared, and a transaction that was not acknowledged may be committed in one engine only";

const NAME_OF_INNODB: &str = "\
    InnoDB renames a table's file, and does not sync the directory: the file may be there under the \
    name of the copy that ALTER TABLE made, as in an ALTER TABLE of InnoDB's tables";
const DATABASE_NOT_SYNCED: &str = "\
    CREATE DATABASE and DROP DATABASE sync neither the directory that has the database's name, nor \
    db.opt: the database is gone, or there again, empty";
const TRIGGER_NAMES: &str = "\
    the files of triggers are made, renamed and removed one by one, and not all of that is in the \
    DDL log: one that names the trigger's table is left behind";
const TRIGGERS_EMPTY: &str = "\
    going back, the server copies a file of triggers that it has not synced over the good one: the \
    table can't be opened until that file is removed";

/// The known fault that explains a violation.
pub fn explain(
    case: &str,
    setting: Setting,
    point: Point,
    violation: &str,
) -> Option<&'static Known> {
    let setting = setting.to_string();
    let is_it = |known: &&Known| {
        known.case == case
            && known.point == point
            && setting.contains(known.setting)
            && violation.contains(known.symptom)
    };
    KNOWN.iter().find(is_it)
}
