//! Faults of the server, which it shows with InnoDB as well.

/// A fault that is not the engine's.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The case.
    pub case: &'static str,
    /// A part of the violation's text.
    pub symptom: &'static str,
    /// What the server does wrong. Verified on InnoDB by `scripts/crash-points --engine InnoDB`.
    pub why: &'static str,
}

const fn known(case: &'static str, symptom: &'static str, why: &'static str) -> Known {
    Known { case, symptom, why }
}

/// All of them.
pub const KNOWN: &[Known] = &[
    known("create-or-replace", REPLACED, DROP_AND_CREATE),
    known("create-or-replace-select", REPLACED, DROP_AND_CREATE),
    known("drop-partitioned", PARTITIONS_LEFT, PAR_OF_DROP),
    known("drop-partitioned", "stray: cp/h#P#", PAR_OF_DROP),
    known("drop-several", PARTITIONS_LEFT, PAR_OF_DROP),
    known("drop-several", "stray: cp/r#P#", PAR_OF_DROP),
    known("rename-partitioned", "`cp`.`r`: MySqlError { ERROR 1932", HALF_RENAMED),
    known("rename-partitioned", "`cp`.`r`: MySqlError { ERROR 1696", HALF_RENAMED),
    known("commit-two-engines", "compared with after: `cp`.`o` is", ONE_OF_TWO),
];

const REPLACED: &str =
    "compared with before: `cp`.`t` is absent\ncompared with after: `cp`.`t` is absent";
const PARTITIONS_LEFT: &str = "stray: tidepool/tables has";
const DROP_AND_CREATE: &str = "CREATE OR REPLACE is a DROP TABLE and a CREATE TABLE: after a crash between the two \
                               there is no table";
const PAR_OF_DROP: &str = "DROP TABLE removes the .par file first; without it the server does not know the partitions \
                           that are still there, and drops the rest of the table";
const HALF_RENAMED: &str = "RENAME TABLE renames partition by partition, then the .par file; after a crash the server \
                            does not rename back those that have their new name";
const ONE_OF_TWO: &str = "without a binary log the server rolls back all that is prepared, and a transaction that \
                          was not acknowledged may be committed in one engine only";

/// The known fault that explains a violation.
pub fn explain(case: &str, violation: &str) -> Option<&'static Known> {
    let is_it = |known: &&Known| known.case == case && violation.contains(known.symptom);
    KNOWN.iter().find(is_it)
}
