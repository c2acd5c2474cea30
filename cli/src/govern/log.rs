//! The decision log: why the pool has the size it has. For people on standard output, for programs
//! as JSON lines in a file.
//!
//! ```text
//! {"at":"2026-01-31T23:59:01Z","event":"decision","signal":"room
//! shrank","from_bytes":…,"to_bytes":…,"reason":"…","applied":true}
//! {"at":"…","event":"step","from_bytes":…,"to_bytes":…,"took_ms":12,"lost_ms":3,"ping_ms":1,"stride_bytes":…}
//! {"at":"…","event":"note","text":"…"}
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tidepool_governor::Decision;

use super::probe::Cost;
use crate::bytes::{change, human};
use crate::clock::rfc3339;
use crate::exit::{Error, Result};
use crate::terminal::{Verbosity, printable};

/// One step of a resize, as it was done.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Size before, bytes.
    pub from_bytes: u64,
    /// Size after, bytes.
    pub to_bytes: u64,
    /// From the statement to its end.
    pub took: Duration,
    /// What it cost the queries.
    pub cost: Cost,
    /// The stride from now on, bytes.
    pub stride_bytes: u64,
}

/// Where the log goes.
#[derive(Debug)]
pub struct Log {
    path: Option<PathBuf>,
    verbosity: Verbosity,
}

impl Log {
    /// Appends to `path`, if there is one; and prints, unless it should be quiet.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub fn open(path: Option<&Path>, verbosity: Verbosity) -> Result<Log> {
        if let Some(path) = path {
            open(path).map_err(|e| Error::file(path, &e))?;
        }
        Ok(Log { path: path.map(Path::to_owned), verbosity })
    }

    /// A decision of the governor.
    pub fn decision(&mut self, decision: &Decision, applied: bool) {
        let verb = match (applied, decision.to_bytes.cmp(&decision.from_bytes)) {
            (true, std::cmp::Ordering::Less) => "shrink",
            (true, std::cmp::Ordering::Greater) => "grow",
            (false, std::cmp::Ordering::Less) => "would shrink",
            (false, std::cmp::Ordering::Greater) => "would grow",
            (_, std::cmp::Ordering::Equal) => "keep",
        };
        let text = format!(
            "{verb} {}: {}: {}",
            change(decision.from_bytes, decision.to_bytes),
            decision.signal,
            decision.reason
        );
        let record = json!({
            "event": "decision",
            "signal": decision.signal.to_string(),
            "from_bytes": decision.from_bytes,
            "to_bytes": decision.to_bytes,
            "reason": decision.reason,
            "applied": applied,
        });
        self.write(&text, record);
    }

    /// A step that was taken.
    pub fn step(&mut self, step: &Step) {
        let text = format!(
            "  step {}: {} ms, {} ms of query time lost, slowest probe {} ms; next step up to {}",
            change(step.from_bytes, step.to_bytes),
            step.took.as_millis(),
            step.cost.lost.as_millis(),
            step.cost.ping.as_millis(),
            human(step.stride_bytes)
        );
        let record = json!({
            "event": "step",
            "from_bytes": step.from_bytes,
            "to_bytes": step.to_bytes,
            "took_ms": step.took.as_millis() as u64,
            "lost_ms": step.cost.lost.as_millis() as u64,
            "ping_ms": step.cost.ping.as_millis() as u64,
            "stride_bytes": step.stride_bytes,
        });
        self.write(&text, record);
    }

    /// Anything else worth knowing later.
    pub fn note(&mut self, text: &str) {
        self.write(text, json!({ "event": "note", "text": text }));
    }

    /// A log that can't be written must not stop the guard: it is the guard that keeps the server
    /// alive.
    fn write(&mut self, text: &str, mut record: Value) {
        let at = rfc3339(SystemTime::now());
        if self.verbosity == Verbosity::Normal {
            let _ = writeln!(std::io::stdout(), "{at} {}", printable(text));
        }
        if let Some(path) = &self.path {
            record["at"] = at.into();
            // In one piece: another may append to the same file, and `watch` read it just then.
            let line = format!("{record}\n");
            let _ = open(path).and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
}

/// Anew for each line: there are few, and the file may have been moved away (by logrotate, say)
/// since the last.
fn open(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("govern.jsonl");
        let mut log = Log::open(Some(&path), Verbosity::Quiet).unwrap();
        log.note("one");
        std::fs::rename(&path, directory.path().join("govern.jsonl.1")).unwrap();
        log.note("two");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"two\"") && !text.contains("\"one\""), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_at_the_start() {
        let missing = Log::open(Some(Path::new("/nonexistent/log")), Verbosity::Quiet);
        assert!(matches!(missing, Err(Error::Local(_))));
    }
}
