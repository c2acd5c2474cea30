//! Statements by digest, from `performance_schema.events_statements_summary_by_digest`.
//!
//! The table has sums since the start. A look reads the digests that ran since the look before, and
//! takes the difference to what it knows of each. A digest that it meets for the first time has
//! none yet: when it ran last is known, how often it ran before is not.

use std::collections::HashMap;

use super::{Cost, KEPT, Key, cut};
use crate::exit::Result;
use crate::server::{Server, text};

/// Digests whose sums are remembered: as many as the server keeps by default.
const KNOWN: usize = 10_000;

/// What the last looks have read.
#[derive(Debug, Default)]
pub struct Digests {
    /// Sums by schema and digest.
    known: HashMap<(String, String), Cost>,
    /// Whether a look came before this one.
    has_looked: bool,
}

type Columns = (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, u64, f64, u64, u64);

impl Digests {
    /// What each statement has cost since the last call; nothing in the first one.
    ///
    /// # Errors
    /// A missing privilege with its grant; if the server goes away.
    pub fn read(&mut self, server: &mut Server) -> Result<HashMap<Key, Cost>> {
        // The first look needs no texts, but all sums.
        let (since, limit, words) = match self.has_looked {
            true => {
                let since = "WHERE LAST_SEEN >= NOW() - INTERVAL 30 SECOND";
                (since, KEPT, "LEFT(DIGEST_TEXT, 1000)")
            }
            false => ("", KNOWN, "NULL"),
        };
        let query = format!(
            "SELECT SCHEMA_NAME, DIGEST, {words}, COUNT_STAR, \
             SUM_TIMER_WAIT / 1e12 + 0e0, SUM_ROWS_EXAMINED, SUM_CREATED_TMP_DISK_TABLES \
             FROM performance_schema.events_statements_summary_by_digest {since} \
             ORDER BY SUM_TIMER_WAIT DESC LIMIT {limit}"
        );
        let rows: Vec<Columns> = server.rows("the digests of statements", "SELECT", &query)?;
        let mut found: HashMap<Key, Cost> = HashMap::new();
        for (schema, digest, words, executions, time_s, rows_examined, tmp_disk_tables) in rows {
            let schema = schema.map(text).unwrap_or_default();
            let sums = Cost {
                executions,
                time_s,
                rows_examined,
                tmp_disk_tables: Some(tmp_disk_tables),
                ..Cost::default()
            };
            if self.known.len() >= KNOWN {
                self.known.clear();
            }
            let digest = digest.map(text).unwrap_or_default();
            let before = self.known.insert((schema.clone(), digest), sums);
            let came = before.and_then(|before| between(&before, &sums));
            if let (true, Some(cost)) = (self.has_looked, came) {
                let words = words.map_or_else(|| "(all others)".into(), text);
                found.entry((schema, cut(words))).or_default().add(&cost);
            }
        }
        self.has_looked = true;
        Ok(found)
    }
}

/// `None` where nothing came, or the table was emptied.
fn between(before: &Cost, now: &Cost) -> Option<Cost> {
    let executions = now.executions.checked_sub(before.executions).filter(|&count| count > 0)?;
    Some(Cost {
        executions,
        time_s: (now.time_s - before.time_s).max(0.0),
        rows_examined: now.rows_examined.saturating_sub(before.rows_examined),
        tmp_disk_tables: now
            .tmp_disk_tables
            .zip(before.tmp_disk_tables)
            .map(|(now, before)| now.saturating_sub(before)),
        ..Cost::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_in_between_counts() {
        let sums = |executions, time_s, rows_examined| Cost {
            executions,
            time_s,
            rows_examined,
            tmp_disk_tables: Some(executions),
            ..Cost::default()
        };
        let came = between(&sums(10, 1.0, 100), &sums(12, 1.5, 130)).unwrap();
        assert_eq!(came, sums(2, 0.5, 30));
        assert_eq!(between(&sums(10, 1.0, 100), &sums(10, 1.0, 100)), None);
        assert_eq!(between(&sums(10, 1.0, 100), &sums(3, 0.1, 5)), None, "it was emptied");
    }
}
