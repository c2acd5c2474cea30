//! What MySQL has only in `information_schema.INNODB_METRICS`, under the names that MariaDB has in
//! its status: deadlocks, the history list, and where writers wait for the checkpoint.

use crate::exit::{Error, Result};
use crate::server::{Named, Server, number};

/// Names there and here. MySQL enables both by default.
const METRICS: [(&str, &str); 2] = [
    ("lock_deadlocks", "innodb_deadlocks"),
    ("trx_rseg_history_len", "innodb_history_list_length"),
];

/// Asks for what the status lacks.
#[derive(Debug, Default)]
pub struct InnodbMetrics {
    /// The server has refused; the figures stay unknown.
    is_refused: bool,
}

impl InnodbMetrics {
    /// Adds what is missing in the status, where the server and the user's privileges have it.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn complete(&mut self, server: &mut Server, status: &mut Named) -> Result<()> {
        if let Some(capacity) = number(status, "innodb_redo_log_capacity_resized") {
            // MySQL does not say where writers wait: with its margins that is at about five sixths.
            let most = (capacity / 6 * 5).to_string();
            status.entry("innodb_checkpoint_max_age".into()).or_insert(most);
        }
        let is_missing = METRICS.iter().any(|(_, name)| !status.contains_key(*name));
        if !is_missing || self.is_refused {
            return Ok(());
        }
        let query = "SELECT NAME, COUNT FROM information_schema.INNODB_METRICS \
                     WHERE NAME IN ('lock_deadlocks', 'trx_rseg_history_len') AND COUNT >= 0";
        match server.rows::<(String, i64)>("InnoDB's metrics", "PROCESS", query) {
            Ok(rows) => {
                for (found, count) in rows {
                    let name = METRICS.iter().find(|(name, _)| found.eq_ignore_ascii_case(name));
                    if let Some((_, name)) = name {
                        status.entry((*name).to_owned()).or_insert(count.to_string());
                    }
                }
                Ok(())
            }
            Err(error @ Error::Gone(_)) => Err(error),
            Err(_) => {
                self.is_refused = true;
                Ok(())
            }
        }
    }
}
