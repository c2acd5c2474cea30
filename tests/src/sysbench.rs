//! Runs sysbench's scripts on a server and reads what they report.

use std::process::Command;

use mysql::prelude::Queryable;

use crate::server::Server;

/// The database that sysbench expects.
const DATABASE: &str = "sbtest";

/// The scripts of Debian's package that use the tables of `oltp_common`: those that read, those
/// that change rows in place, those that add and remove rows. In this order, an earlier script
/// leaves a later one its rows.
pub const SCRIPTS: [&str; 11] = [
    "oltp_point_select",
    "oltp_read_only",
    "select_random_points",
    "select_random_ranges",
    "oltp_update_non_index",
    "oltp_update_index",
    "oltp_write_only",
    "oltp_read_write",
    "oltp_insert",
    "oltp_delete",
    BULK_INSERT,
];

/// The one script with other tables.
pub const BULK_INSERT: &str = "bulk_insert";

/// A set of tables.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    pub count: u32,
    /// Rows of each.
    pub rows: u64,
}

/// How a script is run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// One of [`SCRIPTS`].
    pub script: &'a str,
    /// Client threads.
    pub threads: u32,
    /// Seconds.
    pub time_s: u32,
    /// More options for sysbench.
    pub args: &'a [&'a str],
}

/// What sysbench reports.
#[derive(Clone, Debug, Default)]
pub struct Measure {
    /// Transactions per second.
    pub tps: f64,
    /// Queries per second.
    pub qps: f64,
    /// The 95th percentile of the latency.
    pub p95_ms: f64,
    /// The longest latency.
    pub max_ms: f64,
    /// Deadlocks and the like, which sysbench repeats.
    pub ignored_errors: u64,
}

/// Creates the tables with rows in them, with the server's default engine.
///
/// # Errors
/// What sysbench prints, if it fails.
///
/// # Panics
/// If the server refuses the database.
pub fn prepare(server: &Server, tables: Tables) -> Result<(), String> {
    let mut conn = server.connect();
    conn.query_drop(format!("DROP DATABASE IF EXISTS {DATABASE}"))
        .expect("a database can be dropped");
    conn.query_drop(format!("CREATE DATABASE {DATABASE}")).expect("a database can be created");
    let mut command = sysbench(server, "oltp_read_write", tables, tables.count.min(2));
    output(command.arg("prepare")).map(drop)
}

/// Runs a script. `bulk_insert` gets its tables anew each time.
///
/// # Errors
/// What sysbench prints, if it fails or reports an error that it does not repeat.
pub fn run(server: &Server, tables: Tables, run: &Run) -> Result<Measure, String> {
    if run.script == BULK_INSERT {
        let bulk =
            |what: &str| output(sysbench(server, BULK_INSERT, tables, run.threads).arg(what));
        // Its tables have the names of the others'.
        let mut conn = server.connect();
        conn.query_drop(format!("DROP DATABASE IF EXISTS {DATABASE}"))
            .map_err(|e| e.to_string())?;
        conn.query_drop(format!("CREATE DATABASE {DATABASE}")).map_err(|e| e.to_string())?;
        bulk("prepare")?;
    }
    let mut command = sysbench(server, run.script, tables, run.threads);
    command.arg(format!("--time={}", run.time_s)).args(run.args).arg("run");
    let text = output(&mut command)?;
    if text.contains("FATAL") {
        return Err(text);
    }
    parse(&text).ok_or(text)
}

fn sysbench(server: &Server, script: &str, tables: Tables, threads: u32) -> Command {
    let mut command = Command::new("sysbench");
    command
        .arg(script)
        .args(["--db-driver=mysql", "--mysql-user=root", "--histogram=off"])
        .arg(format!("--mysql-socket={}", server.socket().display()))
        .arg(format!("--mysql-db={DATABASE}"))
        .arg(format!("--threads={threads}"));
    if script != BULK_INSERT {
        command
            .arg(format!("--tables={}", tables.count))
            .arg(format!("--table-size={}", tables.rows))
            .arg(format!("--mysql-storage-engine={}", server.engine().name()));
    }
    command
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("sysbench: {e}; run scripts/deps --test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text) } else { Err(text) }
}

fn parse(text: &str) -> Option<Measure> {
    let per_second = |key: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(key))?;
        line.split_once('(')?.1.split_whitespace().next()?.parse().ok()
    };
    let value = |key: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(key))?;
        line.split_once(':')?.1.split_whitespace().next()
    };
    Some(Measure {
        tps: per_second("transactions:")?,
        qps: per_second("queries:")?,
        p95_ms: value("95th percentile:")?.parse().ok()?,
        max_ms: value("max:")?.parse().ok()?,
        ignored_errors: value("ignored errors:")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_report_is_read() {
        let text = "SQL statistics:\n    transactions:                        1234   (61.70 per sec.)\n    \
                    queries:                             24680  (1234.00 per sec.)\n    \
                    ignored errors:                      3      (0.15 per sec.)\n\
                    Latency (ms):\n         min:      1.0\n         max:      99.5\n         95th percentile:    7.25\n";
        let measure = parse(text).expect("can be parsed");
        assert!((measure.tps - 61.7).abs() < 1e-9 && (measure.qps - 1234.0).abs() < 1e-9);
        assert!((measure.p95_ms - 7.25).abs() < 1e-9 && (measure.max_ms - 99.5).abs() < 1e-9);
        assert_eq!(measure.ignored_errors, 3);
    }
}
