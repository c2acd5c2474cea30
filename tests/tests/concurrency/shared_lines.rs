//! Sessions that run the same statement write few cache lines in common.
//!
//! Such a line moves between cores with each statement, so cores wait for it, whatever rows
//! they work on. The bounds are what a statement needs today: a change that adds to it finds out
//! here. `docs/results/shared-lines.md` has what `--nocapture` prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use mysql::Conn;
use tidepool_tests::locked_lines::{Counts, locked_in};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::run;

/// Runs of a statement before the one that is looked at: what the first ones make is there then.
const WARM_UP: usize = 20;

/// How often a statement above its bound is counted: a thread in the background that has what
/// it wants makes it wait, which takes more.
const TRIES: usize = 3;

/// A statement, what both sessions run before, and how many atomic read-modify-writes go to lines
/// that both write, at most. `@` stands for the session's number, 0 or 1.
struct Bound {
    before: &'static str,
    statement: &'static str,
    shared: usize,
}

const BOUNDS: [Bound; 6] = [
    // The latch of the row's leaf, taken and given back.
    Bound { before: "COMMIT", statement: "SELECT v FROM t WHERE id = 5000", shared: 2 },
    Bound { before: "BEGIN", statement: "SELECT v FROM t WHERE id = 5000", shared: 2 },
    // The same of two leaves, and of one more that the optimizer's estimate reads; its gate.
    Bound { before: "COMMIT", statement: "SELECT v FROM t WHERE id BETWEEN 1 AND 100", shared: 13 },
    Bound {
        before: "COMMIT",
        statement: "UPDATE t SET v = RAND() WHERE id = 5000 + @ * 5000",
        shared: 20,
    },
    Bound {
        before: "COMMIT",
        statement: "UPDATE t SET k = k + 1 WHERE id = 5000 + @ * 5000",
        shared: 18,
    },
    Bound { before: "COMMIT", statement: "INSERT INTO u (v) VALUES ('value')", shared: 24 },
];

/// All atomic read-modify-writes of the second session, and those on lines that the first one
/// writes as well.
fn counts_of(pid: u32, conns: &mut [Conn; 2], statement: &str) -> (Counts, Counts) {
    let [first, second] = [0, 1].map(|session: usize| {
        let statement = statement.replace('@', &session.to_string());
        let conn = &mut conns[session];
        for _ in 0..WARM_UP {
            run(conn, &[&statement]);
        }
        locked_in(pid, conn, &statement)
    });
    let lines: BTreeSet<u64> = first.keys().map(|locked| locked.line).collect();
    let mut shared = second.clone();
    shared.retain(|locked, _| lines.contains(&locked.line));
    (second, shared)
}

fn total(counts: &Counts) -> usize {
    counts.values().sum()
}

/// The counts of each line.
fn by_line(counts: &Counts) -> BTreeMap<u64, usize> {
    let mut lines = BTreeMap::new();
    for (locked, count) in counts {
        *lines.entry(locked.line).or_default() += count;
    }
    lines
}

fn list(counts: &Counts) -> String {
    let mut list = String::new();
    for (locked, count) in counts {
        writeln!(list, "{count} × line {:x} by {:#x}", locked.line, locked.instruction).unwrap();
    }
    list
}

#[test]
fn statements_write_few_lines_in_common() {
    // Whether a commit writes the log for others depends on who comes when.
    let options = Options::new("shared-lines").arg("--tidepool-flush-log-at-trx-commit=0");
    let server = Server::start(options);
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, k INT, v VARCHAR(100), KEY (k))",
            "INSERT INTO t SELECT seq, seq DIV 20, REPEAT('v', 100) FROM seq_1_to_20000",
            "CREATE TABLE u (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100))",
        ],
    );
    let pid = server.pid().unwrap();
    let mut conns = [0, 1].map(|_| server.connect_to("test"));
    println!("| statement | all | shared | lines shared | busiest |\n|---|--:|--:|--:|--:|");
    let mut above = String::new();
    for Bound { before, statement, shared: bound } in BOUNDS {
        conns.iter_mut().for_each(|conn| run(conn, &[before]));
        let mut counts = counts_of(pid, &mut conns, statement);
        for _ in 1..TRIES {
            if total(&counts.1) > bound {
                counts = counts_of(pid, &mut conns, statement);
            }
        }
        let (all, shared) = counts;
        let (all, count) = (total(&all), total(&shared));
        let (lines, busiest) = (by_line(&shared).len(), by_line(&shared).into_values().max());
        let busiest = busiest.unwrap_or(0);
        println!("| `{before}`, `{statement}` | {all} | {count} | {lines} | {busiest} |");
        // A stepping that sees nothing proves nothing.
        assert!(all > 0 && all >= count && count * 4 >= bound, "{statement}: {all}, {count}");
        if count > bound {
            let list = list(&shared);
            writeln!(above, "{statement}: {count} instead of {bound}\n{list}").unwrap();
        }
    }
    assert!(
        above.is_empty(),
        "`addr2line -Cfie target/release/ha_tidepool.so ADDRESS` names the functions:\n{above}"
    );
}
