//! From facts to findings: pure rules, a file a subject.
//!
//! | file | finds |
//! |---|---|
//! | [`room`] | nothing itself: how large a pool fits this machine beside everything else that runs there |
//! | [`pool_size`] | a pool larger than what fits, or smaller than what would save reads |
//! | [`scan`] | a pool that one table scan washes out |
//! | [`redo`] | a redo log that makes writers wait for checkpoints |
//! | [`memory`] | a server in swap, a kernel that swaps too eagerly or never, more connections than memory |
//! | [`restart`] | a pool that starts cold |
//! | [`flush`] | files that are cached twice |
//! | [`dedicated`] | `innodb_dedicated_server` on a machine that isn't; on one that is, the other way to a pool that fits |
//! | [`backup`] | tables that `mariadb-backup` leaves out |
//!
//! A rule that lacks a fact says nothing: advice from a guess is worse than none.

pub mod backup;
pub mod dedicated;
pub mod flush;
pub mod memory;
pub mod pool_size;
pub mod redo;
pub mod restart;
pub mod room;
pub mod scan;

use serde::Serialize;

use crate::bytes::MIB;
use crate::facts::Facts;

/// How bad it is, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The server may be killed, or crawls now.
    Critical,
    /// Much speed is lost, or will be at the next busy hour.
    High,
    /// Worth a change at the next occasion.
    Medium,
    /// Nothing hurts yet.
    Low,
    /// Nothing is wrong: something to know.
    Note,
}

/// What is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The rule's name, for programs.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, one line.
    pub title: String,
    /// Why that is bad, and the figures it comes from.
    pub why: String,
    /// What the change may cost.
    pub risk: String,
    /// Statements for now; empty when it needs a restart or is no server setting.
    pub set: Vec<String>,
    /// Lines of the server's option file, for after a restart.
    pub config: Vec<String>,
    /// Another way to the same, for those statements and lines have no effect beside it, or it has
    /// none beside them; empty when there is none.
    pub alternative: String,
    /// Commands for the machine.
    pub commands: Vec<String>,
    /// Whether it takes a restart to have an effect.
    pub restart: bool,
}

impl Finding {
    fn new(rule: &'static str, severity: Severity, title: String, why: String) -> Finding {
        Finding {
            rule,
            severity,
            title,
            why,
            risk: String::new(),
            set: Vec::new(),
            config: Vec::new(),
            alternative: String::new(),
            commands: Vec::new(),
            restart: false,
        }
    }

    fn risk(mut self, risk: impl Into<String>) -> Finding {
        self.risk = risk.into();
        self
    }

    fn or(mut self, alternative: Option<String>) -> Finding {
        self.alternative = alternative.unwrap_or_default();
        self
    }

    /// A variable for now (if the server can change it while it runs) and for after a restart.
    fn variable(
        mut self,
        online: bool,
        name: &str,
        value: impl ToString,
        written: &str,
    ) -> Finding {
        if online {
            self.set.push(format!("SET GLOBAL {name} = {};", value.to_string()));
        } else {
            self.restart = true;
        }
        self.config.push(format!("{name} = {written}"));
        self
    }

    /// A line of the option file has no effect on what `SET PERSIST` has written down, before that
    /// is taken back.
    fn beside_persisted(mut self, persisted: &[String]) -> Finding {
        let is_named = |name: &&String| {
            self.config.iter().any(|line| line.split(' ').next() == Some(name.as_str()))
        };
        let outranked: Vec<&String> = persisted.iter().filter(is_named).collect();
        let Some(first) = outranked.first() else { return self };
        self.why.push_str(&format!(
            " SET PERSIST was used for {first}, and outranks the option file until RESET PERSIST takes it back."
        ));
        self.set.extend(outranked.iter().map(|name| format!("RESET PERSIST IF EXISTS {name};")));
        self
    }
}

/// Whether InnoDB is there, but has nothing to do: the tables are Tidepool's, and its log and pool
/// are as good as any.
fn tables_elsewhere(facts: &Facts) -> bool {
    let data = &facts.data;
    // A user who sees few tables does not see that there are few.
    let is_seen = !data.is_partial || data.innodb_file_bytes.is_some();
    facts.kind.tidepool && is_seen && data.innodb_bytes() < 64 * MIB
}

/// Whether there is nothing to change; `None` where nothing was found and not everything was seen.
/// Notes say that nothing is wrong.
pub fn is_healthy(facts: &Facts, findings: &[Finding]) -> Option<bool> {
    let is_clean = findings.iter().all(|finding| finding.severity == Severity::Note);
    match is_clean {
        true if facts.unseen.is_empty() && facts.machine.is_some() => Some(true),
        true => None,
        false => Some(false),
    }
}

/// All findings, worst first.
pub fn evaluate(facts: &Facts) -> Vec<Finding> {
    let rules: [fn(&Facts) -> Option<Finding>; 17] = [
        memory::swapped,
        pool_size::too_large,
        pool_size::too_small,
        pool_size::tidepool_too_large,
        pool_size::tidepool_too_small,
        scan::old_blocks_time,
        scan::tidepool_old_blocks_time,
        redo::capacity,
        memory::connections,
        dedicated::on_where_it_is_not,
        flush::double_buffering,
        flush::tidepool_double_buffering,
        restart::warm_up,
        restart::tidepool_warm_up,
        memory::swappiness,
        pool_size::built_in_default,
        backup::mariadb_backup,
    ];
    let persisted = &facts.settings.persisted;
    let findings = rules.iter().filter_map(|rule| rule(facts));
    let mut findings: Vec<Finding> =
        findings.map(|finding| finding.beside_persisted(persisted)).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

#[cfg(test)]
mod tests;
