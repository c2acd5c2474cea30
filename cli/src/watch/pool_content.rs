//! The pool's content by table and index, and the reason of its size.

use serde::Serialize;

use super::sample::Engine;
use crate::bytes::change;
use crate::exit::{Error, Result};
use crate::server::{Server, text};

/// Rows shown.
const ROWS: usize = 100;

/// One index in the pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Database and table, as the server writes them.
    pub table: String,
    pub index: String,
    /// Cached.
    pub mb: f64,
    /// Of that, in the part of the list that the policy intends to keep.
    pub mb_hot: Option<f64>,
    /// Of that, changed and not yet written.
    pub mb_dirty: Option<f64>,
}

/// Whether reading it costs the server enough that `watch` does it only on request.
pub fn is_costly(engine: Engine) -> bool {
    engine == Engine::Innodb
}

/// The pool's content, largest first.
///
/// For InnoDB this reads `INNODB_BUFFER_PAGE`: a row for every page of the pool, copied under the
/// pool's mutex; queries stall meanwhile.
///
/// # Errors
/// [`Error::Privilege`] with the grant; if the server goes away.
pub fn rows(server: &mut Server, engine: Engine) -> Result<Vec<Row>> {
    let query = match engine {
        Engine::Tidepool => {
            "SELECT CONCAT_WS('.', TABLE_SCHEMA, TABLE_NAME), INDEX_NAME, MB + 0e0, \
             MB_HOT + 0e0, MB_DIRTY + 0e0 \
             FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX ORDER BY MB DESC LIMIT "
        }
        Engine::Innodb => {
            "SELECT table_name, index_name, COUNT(*) * @@innodb_page_size / 1048576 + 0e0, \
             SUM(is_old = 'NO') * @@innodb_page_size / 1048576 + 0e0, \
             SUM(oldest_modification > 1) * @@innodb_page_size / 1048576 + 0e0 \
             FROM information_schema.INNODB_BUFFER_PAGE WHERE table_name IS NOT NULL \
             GROUP BY table_name, index_name ORDER BY 3 DESC LIMIT "
        }
    };
    type Columns = (Option<Vec<u8>>, Option<Vec<u8>>, f64, Option<f64>, Option<f64>);
    let rows: Vec<Columns> =
        server.rows("the pool's content", "PROCESS", &format!("{query}{ROWS}"))?;
    let row = |(table, index, mb, mb_hot, mb_dirty): Columns| Row {
        table: table.map_or_else(|| "(no table)".into(), text).replace('`', ""),
        index: index.map(text).unwrap_or_default(),
        mb,
        mb_hot,
        mb_dirty,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// One line of the decision log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// When, as the log has it.
    pub at: String,
    /// What was decided and why.
    pub text: String,
}

/// Tidepool's own log of decisions, newest first; empty where this build of it keeps none.
///
/// # Errors
/// [`Error::Privilege`] with the grant; if the server goes away.
pub fn decisions(server: &mut Server) -> Result<Vec<Decision>> {
    // In UTC, as the times of the other logs.
    let query = "SELECT DATE_FORMAT(CONVERT_TZ(DECIDED_AT, @@session.time_zone, '+00:00'), '%Y-%m-%dT%H:%i:%sZ'), \
                 SIGNAL_NAME, FROM_BYTES, TO_BYTES, REASON, DURATION_US \
                 FROM information_schema.TIDEPOOL_MEMORY_DECISIONS ORDER BY DECIDED_AT DESC LIMIT 50";
    type Columns = (Option<String>, String, u64, u64, String, Option<u64>);
    let rows: Vec<Columns> = match server.rows("the governor's decisions", "PROCESS", query) {
        Ok(rows) => rows,
        Err(error @ (Error::Gone(_) | Error::Privilege { .. })) => return Err(error),
        Err(_) => return Ok(Vec::new()),
    };
    let decision = |(at, signal, from, to, reason, took_us): Columns| {
        let took = took_us.map_or(String::new(), |us| format!(" ({} ms)", us / 1000));
        let text = format!("{}: {signal}: {reason}{took}", change(from, to));
        Decision { at: at.unwrap_or_default(), text }
    };
    Ok(rows.into_iter().map(decision).collect())
}

/// The newest lines of a log that `tidepool govern --log` writes, newest first.
pub fn journal(path: &std::path::Path) -> Vec<Decision> {
    use std::io::{Read, Seek, SeekFrom};
    const TAIL: u64 = 64 << 10;
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = match read() {
        Ok(text) => text,
        Err(error) => {
            return vec![Decision {
                at: String::new(),
                text: format!("{}: {error}", path.display()),
            }];
        }
    };
    let entry = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).ok()?;
        let at = record["at"].as_str().unwrap_or_default().to_owned();
        let size = |name: &str| record[name].as_u64().unwrap_or(0);
        let sizes = || change(size("from_bytes"), size("to_bytes"));
        let text = match record["event"].as_str()? {
            "decision" => {
                let would = if record["applied"] == true { "" } else { "(dry run) " };
                format!(
                    "{would}{}: {}: {}",
                    sizes(),
                    record["signal"].as_str().unwrap_or_default(),
                    record["reason"].as_str().unwrap_or_default()
                )
            }
            "step" => format!(
                "step {}, cost {} ms",
                sizes(),
                record["lost_ms"]
                    .as_u64()
                    .unwrap_or(0)
                    .max(record["ping_ms"].as_u64().unwrap_or(0))
            ),
            _ => record["text"].as_str()?.to_owned(),
        };
        Some(Decision { at, text })
    };
    text.lines().rev().filter_map(entry).take(50).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_backwards_and_garbage_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("govern.jsonl");
        let lines = "{\"at\":\"t1\",\"event\":\"decision\",\"signal\":\"room shrank\",\"from_bytes\":2097152,\"to_bytes\":1048576,\"reason\":\"r\",\"applied\":true}\n\
                     half a li\n{\"at\":\"t2\",\"event\":\"note\",\"text\":\"<b>\"}\n";
        std::fs::write(&path, lines).unwrap();
        let found = journal(&path);
        assert_eq!(found[0], Decision { at: "t2".into(), text: "<b>".into() });
        assert_eq!(found[1].text, "2 MiB -> 1 MiB: room shrank: r");
        assert!(journal(&directory.path().join("none"))[0].text.contains("none"));
    }
}
