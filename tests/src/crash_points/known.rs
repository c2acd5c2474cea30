//! Faults of the server, which it shows with InnoDB as well.
//!
//! Each was seen with `scripts/crash-points --engine InnoDB --flush 1 --crash kill`. InnoDB shows
//! more, which are not listed, as this engine has none of them: `create-partitioned` (what a crash
//! leaves of the partitions stays, and the next CREATE TABLE fails), `drop-partitioned`,
//! `drop-several` and `rename-partitioned` (some partitions are dropped or renamed, and others are
//! not), `partition-add-hash` and `partition-coalesce` ("doesn't exist in engine" after a crash).

use super::Setting;

/// A fault that is not the engine's.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The case.
    pub case: &'static str,
    /// A part of the setting's text: it is shown only there.
    pub setting: &'static str,
    /// A part of the violation's text.
    pub symptom: &'static str,
    /// What the server does wrong.
    pub why: &'static str,
}

const fn known(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, setting: "", symptom, why }
}

/// A fault that the binary log prevents, if it is synced.
const fn without_binary_log(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, setting: "binlog off", symptom, why }
}

/// All of them.
pub const KNOWN: &[Known] = &[
    known("create-or-replace", REPLACED, DROP_AND_CREATE),
    known("create-or-replace-select", REPLACED, DROP_AND_CREATE),
    known("partition-by", "`cp`.`t`: MySqlError { ERROR 1696", PAR_NOT_RENAMED),
    known("partition-to-table", "before: `cp`.`r` is absent", CONVERT_LOSES),
    known("partition-to-table", PARTITIONS_LEFT, CONVERT_LOSES),
    known("partition-to-table", "stray: cp/r#P#", CONVERT_LOSES),
    known("partition-to-table", "`cp`.`r`: MySqlError { ERROR 1696", CONVERT_LOSES),
    known("table-to-partition", "before: `cp`.`r` is absent", CONVERT_LOSES),
    known("table-to-partition", PARTITIONS_LEFT, CONVERT_LOSES),
    known("table-to-partition", "stray: cp/r#P#", CONVERT_LOSES),
    known("table-to-partition", "`cp`.`r`: MySqlError { ERROR 1696", CONVERT_LOSES),
    known("partition-remove", PARTITIONS_LEFT, BACKUP_LEFT),
    known("partition-remove", "stray: cp/#sql-backup", BACKUP_LEFT),
    without_binary_log("commit-two-engines", "compared with after: `cp`.`o` is", ONE_OF_TWO),
    without_binary_log("commit-two-engines", "compared with after: `cp`.`t` is", ONE_OF_TWO),
    Known {
        case: "commit-two-engines",
        setting: "power cut, flush 1, binlog unsynced",
        symptom: "compared with after: `cp`.`o` is",
        why: ONE_OF_TWO,
    },
];

const REPLACED: &str =
    "compared with before: `cp`.`t` is absent\ncompared with after: `cp`.`t` is absent";
const PARTITIONS_LEFT: &str = "stray: tidepool/tables has";
const DROP_AND_CREATE: &str = "\
    CREATE OR REPLACE is a DROP TABLE and a CREATE TABLE: after a crash between the two there \
    is no table";
const PAR_NOT_RENAMED: &str = "\
    the copy's partitions get the table's name one by one, its .par file last; after a crash \
    the server does not go on with the .par file";
const CONVERT_LOSES: &str = "\
    CONVERT PARTITION, and CONVERT TABLE, rename the table's .frm and .par files away before \
    the new ones are there; after a crash between the two the table has no definition, or half \
    of one, and its partitions stay in the engine";
const BACKUP_LEFT: &str = "\
    ALTER TABLE keeps the partitioned table under another name until the new one is in its \
    place; after a crash the server does not find the partitions that it is to remove";
const ONE_OF_TWO: &str = "\
    without a binary log, or one that is lost in part, the server rolls back all that is \
    prepared, and a transaction that was not acknowledged may be committed in one engine only";

/// The known fault that explains a violation of a statement that was not acknowledged.
pub fn explain(case: &str, setting: Setting, violation: &str) -> Option<&'static Known> {
    let setting = setting.to_string();
    let is_it = |known: &&Known| {
        known.case == case && setting.contains(known.setting) && violation.contains(known.symptom)
    };
    KNOWN.iter().find(is_it)
}
