//! What a backup leaves out.

use super::{Finding, Severity};
use crate::facts::Facts;

/// Tables of Tidepool are there, whose rows `mariadb-backup` does not copy. No figure says which
/// backups this server has, so it is a note.
pub fn mariadb_backup(facts: &Facts) -> Option<Finding> {
    let tables = match facts.data.tidepool_tables {
        0 => return None,
        1 => "the table".to_owned(),
        tables => format!("the {tables} tables"),
    };
    let why = format!(
        "It copies the definitions of {tables} and none of the rows, and ends with \
         \"completed OK!\" all the same. A backup of them while they are in use: SET GLOBAL tidepool_backup_to = \
         '/a/new/directory'; or mariadb-dump --single-transaction."
    );
    let title = "mariadb-backup does not back up Tidepool's tables".into();
    Some(Finding::new("mariadb_backup", Severity::Note, title, why))
}
