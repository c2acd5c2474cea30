//! Runs sysbench and reads its report of every second.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::process::spawn_tied;

/// How rows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// 80 % of the accesses to 20 % of the rows, and so on within these.
    Pareto,
}

impl Distribution {
    /// sysbench's name.
    pub fn key(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Pareto => "pareto",
        }
    }
}

/// The script of a load that does nothing, for what runs without one.
pub const NOTHING: &str = "none";

/// What sysbench is to do, without end.
#[derive(Clone, Debug)]
pub struct Job {
    /// One of sysbench's scripts, as `oltp_point_select`, or [`NOTHING`].
    pub script: String,
    /// The database with the table `sbtest1`.
    pub database: String,
    /// Rows of the table.
    pub rows: u64,
    /// Client threads.
    pub threads: u32,
    /// How rows are chosen.
    pub distribution: Distribution,
}

impl Job {
    /// Point selects by primary key, on the large table of the experiments.
    pub fn point_selects(rows: u64, threads: u32, distribution: Distribution) -> Job {
        Job {
            script: "oltp_point_select".into(),
            database: "sbtest".into(),
            rows,
            threads,
            distribution,
        }
    }

    /// No load.
    pub fn nothing(database: &str, rows: u64) -> Job {
        Job {
            script: NOTHING.into(),
            database: database.into(),
            rows,
            threads: 1,
            distribution: Distribution::Uniform,
        }
    }
}

/// One second as sysbench reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// Transactions.
    pub tps: f64,
    /// Queries.
    pub qps: f64,
    /// The 95th percentile of the latency in milliseconds.
    pub p95_ms: f64,
    /// Errors that sysbench repeats, as deadlocks.
    pub errors_per_s: f64,
}

/// A running sysbench; killed when dropped.
#[derive(Debug)]
pub struct Sysbench {
    /// None for [`NOTHING`].
    child: Option<Child>,
    seconds: Receiver<Second>,
}

/// Why there is no next second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// sysbench has ended: it lost its server.
    Ended,
    /// Nothing came in time.
    Stuck,
}

impl Sysbench {
    /// Starts it on a server's socket. [`NOTHING`] is a clock: seconds without a query.
    ///
    /// # Errors
    /// If sysbench is not installed.
    pub fn start(socket: &Path, job: &Job) -> Result<Sysbench> {
        if job.script == NOTHING {
            return Ok(Sysbench { child: None, seconds: clock() });
        }
        let mut command = Command::new("sysbench");
        command
            .arg(&job.script)
            .args(["--db-driver=mysql", "--mysql-user=root", "--tables=1", "--report-interval=1"])
            .args(["--time=0", "--events=0", "--histogram=off", "--percentile=95"])
            .arg(format!("--mysql-socket={}", socket.display()))
            .arg(format!("--mysql-db={}", job.database))
            .arg(format!("--table-size={}", job.rows))
            .arg(format!("--threads={}", job.threads))
            .arg(format!("--rand-type={}", job.distribution.key()))
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = spawn_tied(&mut command, &[]).map_err(|error| Error::Program {
            program: "sysbench".into(),
            message: format!("{error}; run scripts/deps --test"),
        })?;
        let (sender, seconds) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
                    if let Some(second) = parse(&line)
                        && sender.send(second).is_err()
                    {
                        break;
                    }
                }
            });
        }
        Ok(Sysbench { child: Some(child), seconds })
    }

    /// Waits for the report of the next second.
    ///
    /// # Errors
    /// [`Silence`], if none comes.
    pub fn next_second(&mut self) -> std::result::Result<Second, Silence> {
        self.seconds.recv_timeout(Duration::from_secs(10)).map_err(|error| match error {
            RecvTimeoutError::Disconnected => Silence::Ended,
            RecvTimeoutError::Timeout => Silence::Stuck,
        })
    }
}

impl Drop for Sysbench {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An empty second every second, until the receiver is gone.
fn clock() -> Receiver<Second> {
    let (sender, seconds) = mpsc::channel();
    thread::spawn(move || {
        let start = Instant::now();
        for second in 1.. {
            let due = Duration::from_secs(second);
            thread::sleep(due.saturating_sub(start.elapsed()));
            if sender.send(Second::default()).is_err() {
                return;
            }
        }
    });
    seconds
}

/// The version of the installed sysbench, as "1.0.20".
pub fn version() -> Option<String> {
    let child = Command::new("sysbench").arg("--version").stdout(Stdio::piped()).spawn();
    let mut text = String::new();
    let mut child = child.ok()?;
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    child.wait().ok()?;
    text.split_whitespace().nth(1).map(ToString::to_string)
}

/// Reads "[ 7s ] thds: 16 tps: 1.00 qps: 20.00 (r/w/o: …) lat (ms,95%): 1.23 err/s: 0.00 reconn/s:
/// 0.00".
fn parse(line: &str) -> Option<Second> {
    if !line.starts_with("[ ") {
        return None;
    }
    let after = |key: &str| {
        let (_, rest) = line.split_once(key)?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Second {
        tps: after(" tps: ")?,
        qps: after(" qps: ")?,
        p95_ms: after("95%): ")?,
        errors_per_s: after("err/s: ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Job, Second, Sysbench, parse};

    #[test]
    fn the_report_of_a_second_is_read() {
        let line = "[ 12s ] thds: 8 tps: 401.50 qps: 8031.12 (r/w/o: 5620.78/1607.34/803.00) \
                    lat (ms,95%): 24.83 err/s: 1.00 reconn/s: 0.00";
        let second = parse(line).unwrap();
        assert_eq!((second.tps, second.qps, second.p95_ms), (401.5, 8031.12, 24.83));
        assert_eq!(second.errors_per_s, 1.0);
        assert_eq!(parse("Threads started!"), None);
        assert_eq!(parse("[ 1s ] thds: 8 tps: x"), None);
    }

    #[test]
    fn a_load_that_does_nothing_is_a_clock() {
        let start = std::time::Instant::now();
        let socket = std::path::Path::new("no socket");
        let mut load = Sysbench::start(socket, &Job::nothing("sbtest", 1)).unwrap();
        assert_eq!(load.next_second(), Ok(Second::default()));
        assert!(start.elapsed().as_millis() >= 990);
    }
}
