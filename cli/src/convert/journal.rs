//! The journal: foreign keys that were dropped and are not back yet.
//!
//! It is a table on the server, `tidepool_convert.constraints`, for three reasons: it outlives the
//! command, its machine and the server's kill; any machine can go on; and it moves with the data
//! directory. It is InnoDB's in both directions, and not in the binary log where the user may leave
//! it out.
//!
//! # Invariants
//! * A foreign key is in the journal, and the journal's redo on disk, before the first DROP.
//! * It leaves the journal only when it exists again, and that is on disk.
//! * It says whether the parent existed at the DROP: one that has gone since is an accident, and
//!   the foreign key is not added without a check for it.
//!
//! What has been converted is not noted: the tables say so themselves. So nothing in the journal
//! can be out of date, except a foreign key that is back already, which the next run takes out.

use crate::connect::Target;
use crate::exit::{Error, Result};
use crate::server::Server;
use crate::sql_text::literal;

use super::names::TableName;
use super::schema::Constraint;
use super::statements::adds;

/// The schema of the journal.
pub const SCHEMA: &str = "tidepool_convert";
const WHAT: &str = "the journal tidepool_convert.constraints";
/// What the command needs on its schemas, the journal's and the trial's.
const PRIVILEGES: &str = "ALTER, CREATE, DROP, INSERT, SELECT, LOCK TABLES, REFERENCES, UPDATE, \
                          DELETE ON `tidepool_convert%`.*";

/// The journal, open for writing on a connection of the command's.
pub struct Journal {
    server: Server,
    /// Whether a commit reaches the disk by itself.
    is_flushed: bool,
}

/// A foreign key in the journal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Noted {
    #[serde(flatten)]
    pub constraint: Constraint,
    /// Whether its parent existed when it was dropped.
    #[serde(default = "is_usual")]
    pub had_parent: bool,
}

/// Of an entry that does not say it.
fn is_usual() -> bool {
    true
}

/// What the journal has, if there is one.
///
/// # Errors
/// As [`Server::rows`]; an entry that can't be read.
pub fn read(server: &mut Server) -> Result<Vec<Constraint>> {
    Ok(read_noted(server)?.into_iter().map(|noted| noted.constraint).collect())
}

/// The same, with what was noted beside it.
///
/// # Errors
/// As [`read`].
pub fn read_noted(server: &mut Server) -> Result<Vec<Noted>> {
    let query = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = \
                 'tidepool_convert' AND TABLE_NAME = 'constraints'";
    if server.first::<u64>(WHAT, "", query)? != Some(1) {
        return Ok(Vec::new());
    }
    let query = "SELECT definition FROM tidepool_convert.constraints ORDER BY child_schema, \
                 child_table, name";
    let rows: Vec<String> = server.rows(WHAT, PRIVILEGES, query)?;
    let entry = |row: String| {
        serde_json::from_str(&row).map_err(|error| Error::Refused {
            what: WHAT.into(),
            why: format!("an entry that this version can't read: {error}"),
        })
    };
    rows.into_iter().map(entry).collect()
}

impl Journal {
    /// Opens it, and makes it where there is none.
    ///
    /// # Errors
    /// As [`Server::execute`].
    pub fn open(target: &Target) -> Result<Journal> {
        let mut server = Server::connect(&target.without_answer_timeout())?;
        // Without the privilege, replicas get the journal too, which harms nothing.
        let _ = server.attempt(WHAT, "SET SESSION sql_log_bin = 0")?;
        let variables = server.named(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit')",
        )?;
        let at_commit = variables.get("innodb_flush_log_at_trx_commit");
        let is_flushed = at_commit.is_some_and(|value| value == "1" || value == "3");
        for statement in [
            "SET SESSION wait_timeout = 31536000",
            "CREATE SCHEMA IF NOT EXISTS tidepool_convert",
            "CREATE TABLE IF NOT EXISTS tidepool_convert.constraints (
               child_schema VARCHAR(64) NOT NULL,
               child_table VARCHAR(64) NOT NULL,
               name VARCHAR(64) NOT NULL,
               definition LONGTEXT NOT NULL,
               statement LONGTEXT NOT NULL COMMENT 'adds it by hand',
               noted_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
               PRIMARY KEY (child_schema, child_table, name)
             ) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin
               COMMENT='Foreign keys that `tidepool convert` has dropped and will add again'",
        ] {
            server.execute(WHAT, PRIVILEGES, statement)?;
        }
        Ok(Journal { server, is_flushed })
    }

    /// Notes foreign keys that are about to be dropped, and which of their parents exist.
    ///
    /// # Errors
    /// As [`Server::execute`]: then nothing may be dropped.
    pub fn note(
        &mut self,
        constraints: &[Constraint],
        is_there: impl Fn(&TableName) -> bool,
    ) -> Result<()> {
        if constraints.is_empty() {
            return Ok(());
        }
        let row = |constraint: &Constraint| {
            let had_parent = is_there(&constraint.parent.name());
            let noted = Noted { constraint: constraint.clone(), had_parent };
            let definition = serde_json::to_string(&noted).expect("plain text can be written");
            let statement = adds(std::slice::from_ref(constraint)).concat();
            let fields = [
                &constraint.child.schema,
                &constraint.child.table,
                &constraint.name,
                &definition,
                &statement,
            ];
            format!("({})", fields.map(|field| literal(field)).join(", "))
        };
        let rows: Vec<String> = constraints.iter().map(row).collect();
        let statement = format!(
            "INSERT INTO tidepool_convert.constraints (child_schema, child_table, name, \
             definition, statement) VALUES {} ON DUPLICATE KEY UPDATE definition = \
             VALUES(definition), statement = VALUES(statement)",
            rows.join(", ")
        );
        self.server.execute(WHAT, PRIVILEGES, &statement)?;
        match self.is_flushed {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Takes out foreign keys that exist again.
    ///
    /// # Errors
    /// As [`Server::execute`].
    pub fn forget(&mut self, constraints: &[Constraint]) -> Result<()> {
        if constraints.is_empty() {
            return Ok(());
        }
        // The definitions that were added are on disk before the journal forgets them. Engines
        // flush a definition by themselves; without the privilege that has to do.
        let _ = self.server.attempt(WHAT, "FLUSH ENGINE LOGS")?;
        for constraint in constraints {
            let statement = format!(
                "DELETE FROM tidepool_convert.constraints WHERE child_schema = {} AND child_table \
                 = {} AND name = {}",
                literal(&constraint.child.schema),
                literal(&constraint.child.table),
                literal(&constraint.name)
            );
            self.server.execute(WHAT, PRIVILEGES, &statement)?;
        }
        Ok(())
    }

    /// Removes the journal if nothing is left in it.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn close(mut self) -> Result<()> {
        if read(&mut self.server)?.is_empty() {
            // Another table in the schema is the user's.
            self.server.execute(WHAT, PRIVILEGES, "DROP TABLE tidepool_convert.constraints")?;
            let query = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = \
                         'tidepool_convert'";
            if self.server.first::<u64>(WHAT, "", query)? == Some(0) {
                self.server.execute(WHAT, PRIVILEGES, "DROP SCHEMA tidepool_convert")?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.server.execute(
            "flushing the journal (innodb_flush_log_at_trx_commit is not 1)",
            "RELOAD",
            "FLUSH ENGINE LOGS",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::ChildOrParent;
    use super::*;

    #[test]
    fn an_entry_says_whether_the_parent_existed_and_one_that_does_not_means_that_it_did() {
        let side = |table: &str| ChildOrParent {
            schema: "s".into(),
            table: table.into(),
            columns: vec!["a".into()],
        };
        let constraint = Constraint {
            name: "f".into(),
            child: side("c"),
            parent: side("p"),
            on_delete: "CASCADE".into(),
            on_update: "RESTRICT".into(),
        };
        let old = serde_json::to_string(&constraint).unwrap();
        let read: Noted = serde_json::from_str(&old).unwrap();
        assert_eq!(read, Noted { constraint: constraint.clone(), had_parent: true });
        let noted = Noted { constraint, had_parent: false };
        let text = serde_json::to_string(&noted).unwrap();
        assert_eq!(serde_json::from_str::<Noted>(&text).unwrap(), noted);
    }
}
