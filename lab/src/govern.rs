//! `tidepool govern` beside a server: this program again, with its log read back when the run is
//! over.
//!
//! It is outside of the server's cgroup, as a separate service would be.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::process::spawn_tied;
use crate::server::Server;
use crate::subprocess;

/// It connects and takes its first reading within this, unless something is wrong.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Where its messages go.
const OUTPUT: &str = "govern.out";

/// A running `tidepool govern`; killed when dropped.
#[derive(Debug)]
pub struct Governing {
    child: Child,
    log: PathBuf,
}

/// What its log says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps that were taken.
    pub count: u64,
    /// The largest part of the queries' work that one of them cost, milliseconds.
    pub lost_ms_max: u64,
    /// The longest that one took, milliseconds.
    pub took_ms_max: u64,
}

impl Governing {
    /// Starts it and waits until it looks after the server; its log is in `dir`.
    ///
    /// # Errors
    /// If it can't be started, or says nothing: the program that runs must be `tidepool`.
    pub fn start(server: &Server, dir: &Path) -> Result<Governing> {
        let mut governing = Governing::spawn(server, dir)?;
        let deadline = Instant::now() + START_LIMIT;
        while governing.text().is_empty() {
            if !governing.is_running() || Instant::now() > deadline {
                let message = fs::read_to_string(dir.join(OUTPUT)).unwrap_or_default();
                return Err(Error::Program { program: "tidepool govern".into(), message });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(governing)
    }

    /// Starts it without waiting: a server in trouble may take a while to let it in.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn spawn(server: &Server, dir: &Path) -> Result<Governing> {
        let log = dir.join("govern.jsonl");
        let output = dir.join(OUTPUT);
        let file = File::create(&output).map_err(Error::at(&output))?;
        let errors = file.try_clone().map_err(Error::at(&output))?;
        let mut command = Command::new(subprocess::own_program()?);
        command
            .args(["--defaults-file=/dev/null", "--user=root"])
            .arg(format!("--socket={}", server.socket().display()))
            .args(["govern", "--apply"])
            .arg(format!("--pid={}", server.pid().unwrap_or(0)))
            .arg(format!("--log={}", log.display()))
            .env_remove("MYSQL_PWD")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        Ok(Governing { child: spawn_tied(&mut command, &[])?, log })
    }

    /// True while it looks after the server.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has done so far.
    pub fn steps(&self) -> Steps {
        steps(&self.text())
    }

    /// Its log so far: JSON lines.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Governing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn steps(log: &str) -> Steps {
    let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = Steps::default();
    for record in records.filter(|record| record["event"] == "step") {
        let number = |name: &str| record[name].as_u64().unwrap_or(0);
        found.count += 1;
        found.lost_ms_max = found.lost_ms_max.max(number("lost_ms"));
        found.took_ms_max = found.took_ms_max.max(number("took_ms"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Steps, steps};

    #[test]
    fn steps_are_counted_and_the_worst_is_kept() {
        let log = concat!(
            "{\"event\":\"note\",\"text\":\"governing\"}\n",
            "{\"event\":\"step\",\"lost_ms\":7,\"took_ms\":30}\n",
            "{\"event\":\"step\",\"lost_ms\":3,\"took_ms\":90}\n",
            "{\"event\":\"step\",\"lost_",
        );
        assert_eq!(steps(log), Steps { count: 2, lost_ms_max: 7, took_ms_max: 90 });
    }
}
