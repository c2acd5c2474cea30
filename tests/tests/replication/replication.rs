//! A replica that applies transactions in parallel, before it knows that they don't conflict.
//! Commits come in the order of the primary; a later transaction that has got a row first is rolled
//! back for an earlier one and tried again, at once, and not when a lock wait times out.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::fulltext::{WRITTEN_WORDS, write_at_random};
use tidepool_tests::server::{self, Engine, Options, Server, free_port};
use tidepool_tests::sql::{check, number, rows, run};

/// A wait that only its timeout ends is far longer than what a test waits, s.
const LOCK_WAIT_TIMEOUT: u32 = 50;
/// Longer than any replica here needs, shorter than a lock wait that times out, s.
const CATCH_UP_LIMIT: u32 = 40;
const HOT_ROWS: usize = 5;
const ROWS: usize = 200;
const TRANSACTIONS: usize = 400;

/// A status variable that is a number.
fn status(conn: &mut Conn, name: &str) -> i64 {
    let row: Option<(String, String)> =
        conn.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'")).expect("a status variable");
    row.unwrap_or_else(|| panic!("there is no {name}")).1.parse().expect("a number")
}

fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    server::wait_until(Duration::from_secs(CATCH_UP_LIMIT.into()), what, is_so);
}

/// The options of both servers.
fn options(name: &str, server_id: u32) -> Options {
    // Nothing is crashed here, and a slow disk is not to be taken for a wait.
    let options = Options::new(name)
        .arg(format!("--server-id={server_id}"))
        .arg("--binlog-format=ROW")
        .arg("--innodb-flush-log-at-trx-commit=2");
    let prefix = match options.engine {
        Engine::Tidepool => "tidepool",
        Engine::InnoDb => "innodb",
    };
    options
        .arg(format!("--{prefix}-flush-log-at-trx-commit=2"))
        .arg(format!("--{prefix}-lock-wait-timeout={LOCK_WAIT_TIMEOUT}"))
}

/// Two servers; the replica has to be started.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    /// Starts both; `replica_args` are more options of the replica.
    fn start(name: &str, mode: &str, replica_args: &[&str]) -> Pair {
        Pair::start_with(name, mode, (&[], replica_args))
    }

    /// The same with more options of the primary and the replica.
    fn start_with(
        name: &str,
        mode: &str,
        (primary_args, replica_args): (&[&str], &[&str]),
    ) -> Pair {
        let port = free_port();
        let mut primary = options(&format!("{name}_primary"), 1)
            .arg("--log-bin=primary")
            .arg("--skip-networking=0")
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--port={port}"));
        for arg in primary_args {
            primary = primary.arg(*arg);
        }
        let primary = Server::start(primary);
        let mut replica = options(&format!("{name}_replica"), 2)
            .arg("--skip-slave-start")
            .arg("--slave-parallel-threads=4")
            .arg(format!("--slave-parallel-mode={mode}"));
        for arg in replica_args {
            replica = replica.arg(*arg);
        }
        let replica = Server::start(replica);
        run(
            &mut primary.connect(),
            &["GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1' IDENTIFIED BY 'x'"],
        );
        let change = format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='replica', MASTER_PASSWORD='x',
             MASTER_USE_GTID=slave_pos"
        );
        run(&mut replica.connect(), &[&change]);
        Pair { primary, replica }
    }

    /// Waits until the replica has applied what the primary has committed.
    fn catch_up(&self) {
        let mut replica = self.replica.connect();
        let position: Option<String> =
            self.primary.connect().query_first("SELECT @@gtid_binlog_pos").expect("a position");
        let position = position.expect("a row");
        let wait = format!("SELECT MASTER_GTID_WAIT('{position}', {CATCH_UP_LIMIT})");
        let reached = number(&mut replica, &wait) == 0;
        if !reached {
            let threads: Vec<mysql::Row> = replica.query("SHOW PROCESSLIST").expect("a list");
            let slave: Vec<mysql::Row> = replica.query("SHOW SLAVE STATUS").expect("a status");
            panic!("the replica hangs: {threads:#?}\n{slave:?}");
        }
    }
}

/// A row of each of two transactions is locked on the replica, so that the later one, which needs
/// no other row, gets the row that both change.
fn later_takes_the_row_first(name: &str, mode: &str, later_waits_for_a_row: bool) {
    let pair = Pair::start(name, mode, &[]);
    let mut primary = pair.primary.connect_to("test");
    run(
        &mut primary,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL)",
            "INSERT INTO t VALUES (1, ''), (2, ''), (3, '')",
        ],
    );
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    pair.catch_up();

    let (mut holder_of_1, mut holder_of_3) =
        (pair.replica.connect_to("test"), pair.replica.connect_to("test"));
    run(&mut holder_of_1, &["BEGIN", "SELECT * FROM t WHERE id = 1 FOR UPDATE"]);
    run(&mut primary, &["BEGIN", "UPDATE t SET v = 'a' WHERE id = 1"]);
    run(&mut primary, &["UPDATE t SET v = CONCAT(v, 'a') WHERE id = 2", "COMMIT"]);
    run(&mut primary, &["BEGIN", "UPDATE t SET v = CONCAT(v, 'b') WHERE id = 2"]);
    if later_waits_for_a_row {
        run(&mut holder_of_3, &["BEGIN", "SELECT * FROM t WHERE id = 3 FOR UPDATE"]);
        run(&mut primary, &["UPDATE t SET v = 'b' WHERE id = 3"]);
    }
    run(&mut primary, &["COMMIT"]);

    let mut replica = pair.replica.connect_to("test");
    let state = if later_waits_for_a_row { "Update" } else { "Waiting for prior transaction" };
    let is_there = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE command = 'Slave_worker' AND state LIKE '{state}%'"
    );
    let expected = if later_waits_for_a_row { 2 } else { 1 };
    wait_until("the later one has the row", || number(&mut replica, &is_there) == expected);
    let row_2 = "SELECT COUNT(*) FROM t WHERE id = 2 FOR UPDATE SKIP LOCKED";
    wait_until("the later one has the row", || number(&mut replica, row_2) == 0);
    let (retried, started) = (status(&mut replica, "Slave_retried_transactions"), Instant::now());
    run(&mut holder_of_1, &["COMMIT"]);
    let first = "SELECT COUNT(*) FROM t WHERE id = 2 AND v LIKE 'a%'";
    wait_until("the earlier one is applied", || number(&mut replica, first) == 1);
    println!("the earlier transaction waited for {:?}", started.elapsed());
    run(&mut holder_of_3, &["COMMIT"]);
    pair.catch_up();
    assert_eq!(status(&mut replica, "Slave_retried_transactions"), retried + 1);
    let rows: Vec<String> = replica.query("SELECT v FROM t ORDER BY id").expect("rows");
    assert_eq!(rows, ["a", "ab", if later_waits_for_a_row { "b" } else { "" }]);
}

#[test]
fn one_that_waits_for_its_turn_to_commit_gives_way() {
    later_takes_the_row_first("rpl_turn", "optimistic", false);
}

#[test]
fn one_that_waits_for_another_row_gives_way() {
    later_takes_the_row_first("rpl_row", "aggressive", true);
}

/// The log has the parents' rows alone: what follows for the children, the replica does by itself.
#[test]
fn referential_actions_are_the_replicas_own() {
    let pair = Pair::start("rpl_foreign_keys", "optimistic", &[]);
    let mut primary = pair.primary.connect_to("test");
    run(
        &mut primary,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, q INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE,
                 FOREIGN KEY (q) REFERENCES p (u) ON DELETE SET NULL ON UPDATE SET NULL)",
            "CREATE TABLE g (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE CASCADE)",
            "INSERT INTO p SELECT seq, seq FROM seq_1_to_20",
            "INSERT INTO c SELECT seq, 1 + seq % 20, 1 + seq % 7 FROM seq_1_to_200",
            "INSERT INTO g SELECT seq, 1 + seq % 200 FROM seq_1_to_400",
        ],
    );
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    run(
        &mut primary,
        &[
            "DELETE FROM p WHERE id IN (3, 4)",
            "UPDATE p SET id = id + 100 WHERE id < 8",
            "UPDATE p SET u = u + 100 WHERE u IN (5, 6)",
            "REPLACE INTO p VALUES (102, 2)",
            "BEGIN",
            "DELETE FROM p WHERE id = 9",
            "UPDATE p SET id = 109 WHERE id = 10",
            "COMMIT",
            "SET foreign_key_checks = 0",
            "DELETE FROM p WHERE id = 12",
        ],
    );
    pair.catch_up();
    let mut replica = pair.replica.connect_to("test");
    for query in [
        "SELECT * FROM p ORDER BY id",
        "SELECT * FROM c ORDER BY id",
        "SELECT * FROM g ORDER BY id",
    ] {
        let (here, there): (Vec<mysql::Row>, Vec<mysql::Row>) =
            (primary.query(query).expect("rows"), replica.query(query).expect("rows"));
        assert_eq!(format!("{here:?}"), format!("{there:?}"), "{query}");
    }
    assert!(number(&mut replica, "SELECT COUNT(*) FROM c") < 200);
    assert_eq!(number(&mut replica, "SELECT COUNT(*) FROM c WHERE p = 12"), 10);
}

/// Many small transactions that change the same rows, in all the ways that there are.
fn conflicting_load(name: &str, mode: &str, replica_args: &[&str]) {
    let pair = Pair::start(name, mode, replica_args);
    let mut primary = pair.primary.connect_to("test");
    run(
        &mut primary,
        &[
            "CREATE TABLE hot (id INT PRIMARY KEY, n INT NOT NULL, last INT NOT NULL, KEY (n))",
            "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, u INT NOT NULL, UNIQUE (u))",
            &format!("INSERT INTO hot SELECT seq, 0, 0 FROM seq_1_to_{HOT_ROWS}"),
            &format!("INSERT INTO t SELECT seq, 0, seq FROM seq_1_to_{ROWS}"),
        ],
    );
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    pair.catch_up();
    run(&mut pair.replica.connect(), &["STOP SLAVE SQL_THREAD"]);

    for n in 1..=TRANSACTIONS {
        let (row, new) = (n * 7 % ROWS + 1, ROWS + n);
        let (hot, other) = (n % HOT_ROWS + 1, n * 3 % HOT_ROWS + 1);
        let statements = match n % 4 {
            // Later ones are shorter, and so get to the hot rows before this.
            0 => vec![
                format!("UPDATE t SET n = n + 1 WHERE id BETWEEN {row} AND {row} + 50"),
                format!("UPDATE hot SET n = n + 1, last = {n} WHERE id = {hot}"),
                format!("UPDATE hot SET n = n * 2 % 1000 WHERE id = {other}"),
            ],
            // Both ways round.
            1 => vec![
                format!("UPDATE hot SET n = n + 3, last = {n} WHERE id = {other}"),
                format!("UPDATE hot SET n = n + 1 WHERE id = {hot}"),
            ],
            // A unique value that one gives up and the next takes.
            2 => vec![
                format!("DELETE FROM t WHERE id = {row}"),
                format!("INSERT INTO t VALUES ({new}, 1, {new})"),
                format!("UPDATE hot SET last = {n} WHERE id = {hot}"),
            ],
            _ => {
                let old = new - 1;
                vec![
                    format!("UPDATE t SET u = -u WHERE id = {old}"),
                    format!("REPLACE INTO t VALUES ({new}, 2, {old})"),
                    format!("UPDATE hot SET n = n + 7 WHERE id IN (1, {HOT_ROWS})"),
                ]
            }
        };
        run(&mut primary, &["BEGIN"]);
        statements.iter().for_each(|statement| run(&mut primary, &[statement]));
        run(&mut primary, &["COMMIT"]);
    }

    let started = Instant::now();
    let mut replica = pair.replica.connect_to("test");
    let retried = status(&mut replica, "Slave_retried_transactions");
    run(&mut replica, &["START SLAVE SQL_THREAD"]);
    pair.catch_up();
    let retried = status(&mut replica, "Slave_retried_transactions") - retried;
    println!("{mode}: caught up after {:?}, {retried} tried again", started.elapsed());
    assert!(retried > 0, "so the test shows something");
    if pair.replica.engine() == Engine::Tidepool {
        assert_eq!(status(&mut replica, "Tidepool_row_lock_timeouts"), 0);
    }
    for table in ["hot", "t"] {
        let all = format!("SELECT * FROM {table} ORDER BY id");
        let on_primary: Vec<(i64, i64, i64)> = primary.query(&all).expect("rows");
        let on_replica: Vec<(i64, i64, i64)> = replica.query(&all).expect("rows");
        assert_eq!(on_primary, on_replica);
        let checked: Vec<(String, String, String, String)> =
            replica.query(format!("CHECK TABLE {table}")).expect("a check");
        assert_eq!(checked.last().expect("a row").3, "OK");
    }
}

#[test]
fn conflicting_transactions_are_applied_in_optimistic_mode() {
    conflicting_load("rpl_optimistic", "optimistic", &[]);
}

/// With the table of positions in the engine: of that, too, rows are looked for, and read to the
/// end.
#[test]
fn conflicting_transactions_are_applied_in_idempotent_mode() {
    let engine = Engine::from_environment().name();
    conflicting_load(
        "rpl_idempotent_load",
        "aggressive",
        &["--slave-exec-mode=IDEMPOTENT", &format!("--gtid-pos-auto-engines={engine}")],
    );
}

/// With a binary log, what waits for its turn is prepared already; and the table of positions is
/// the engine's own too.
#[test]
fn conflicting_transactions_are_applied_in_aggressive_mode_and_logged() {
    let engine = Engine::from_environment().name();
    conflicting_load(
        "rpl_aggressive",
        "aggressive",
        &["--log-bin=replica", "--log-slave-updates", &format!("--gtid-pos-auto-engines={engine}")],
    );
}

/// The server has no transaction wait for its turn that its binary log leaves out.
#[test]
fn conflicting_transactions_are_applied_with_a_binary_log_that_has_none_of_them() {
    conflicting_load("rpl_unlogged", "optimistic", &["--log-bin=replica"]);
    let ignored = ["--log-bin=replica", "--log-slave-updates", "--binlog-ignore-db=test"];
    conflicting_load("rpl_ignored", "aggressive", &ignored);
}

/// At SERIALIZABLE the replica locks ranges too, which are waited for in another way than rows.
#[test]
fn conflicting_transactions_are_applied_at_serializable() {
    let serializable = "--transaction-isolation=SERIALIZABLE";
    conflicting_load("rpl_serializable", "optimistic", &[serializable]);
}

/// Until `workers` workers have done all but commit, and wait for what commits before.
fn wait_for_turn(replica: &mut Conn, workers: i64) {
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist
                   WHERE command = 'Slave_worker' AND state LIKE 'Waiting for prior transaction%'";
    wait_until("the later ones wait for their turn", || number(replica, waiting) == workers);
}

/// `earlier` is held up by one row while each of `later` is applied, in a transaction to
/// itself. In IDEMPOTENT mode the server passes over rows that are missing, duplicates, and rows
/// that a foreign key refuses; before its turn that says nothing yet.
fn later_comes_first(pair: &Pair, setup: &[&str], earlier: &[&str], later: &[&str], query: &str) {
    let mut primary = pair.primary.connect_to("test");
    run(
        &mut primary,
        &[
            "DROP TABLE IF EXISTS c, t, gate",
            "CREATE TABLE gate (id INT PRIMARY KEY, n INT)",
            "INSERT INTO gate VALUES (1, 0)",
        ],
    );
    run(&mut primary, setup);
    pair.catch_up();
    let (mut replica, mut holder) =
        (pair.replica.connect_to("test"), pair.replica.connect_to("test"));
    let retried = status(&mut replica, "Slave_retried_transactions");
    run(&mut holder, &["BEGIN", "SELECT * FROM gate WHERE id = 1 FOR UPDATE"]);
    run(&mut primary, &["BEGIN", "UPDATE gate SET n = 1"]);
    run(&mut primary, earlier);
    run(&mut primary, &["COMMIT"]);
    run(&mut primary, later);
    wait_for_turn(&mut replica, later.len() as i64);
    run(&mut holder, &["COMMIT"]);
    pair.catch_up();
    assert!(status(&mut replica, "Slave_retried_transactions") > retried, "{later:?} in its turn");
    assert_eq!(rows(&mut primary, query), rows(&mut replica, query), "{later:?} after {earlier:?}");
    check(&mut replica, "t");
}

fn nothing_is_lost_that_comes_too_early(name: &str, passes_over: &str) {
    // With InnoDB, one of the later ones may wait for a gap that another has locked.
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let pair = Pair::start(name, "optimistic", &[passes_over]);
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    let change = ["UPDATE t SET n = n + 10 WHERE id = 5", "DELETE FROM t WHERE id = 6"];
    let insert = ["INSERT INTO t VALUES (5, 5, 5), (6, 6, 6)"];
    let all = "SELECT * FROM t ORDER BY id, u, n";
    // The row is looked for by its primary key, by a unique one, by another, and by reading all.
    for (keys, may_be_parted) in [
        ("PRIMARY KEY (id)", false),
        ("PRIMARY KEY (id, u)", true),
        ("UNIQUE (u)", true),
        ("KEY (u)", true),
        ("CHECK (id > 0)", true),
    ] {
        let partitions: &[&str] =
            if may_be_parted { &["", "PARTITION BY HASH (u) PARTITIONS 3"] } else { &[""] };
        for parted in partitions {
            let create = format!("CREATE TABLE t (id INT, u INT NOT NULL, n INT, {keys}) {parted}");
            let setup = [create.as_str(), "INSERT INTO t VALUES (1, 1, 1), (9, 9, 9)"];
            later_comes_first(&pair, &setup, &insert, &change, all);
        }
    }

    // In the place of one that is still there, by either key.
    for unique in ["INT NOT NULL", "TEXT"] {
        let create = format!("CREATE TABLE t (id INT PRIMARY KEY, u {unique}, n INT, UNIQUE (u))");
        let setup = [create.as_str(), "INSERT INTO t VALUES (1, 1, 1), (5, 5, 5)"];
        for later in [
            "INSERT INTO t VALUES (5, 6, 7)",
            "INSERT INTO t VALUES (6, 5, 7)",
            "UPDATE t SET u = 5 WHERE id = 1",
            "UPDATE t SET id = 5 WHERE id = 1",
        ] {
            later_comes_first(&pair, &setup, &["DELETE FROM t WHERE id = 5"], &[later], all);
        }
    }

    let setup = [
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (id))",
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO c VALUES (1, 1), (2, 2)",
    ];
    let both = "SELECT t.id, c.id FROM t LEFT JOIN c ON c.t = t.id ORDER BY 1, 2";
    let children = ["INSERT INTO c VALUES (3, 3)", "UPDATE c SET t = 3 WHERE id = 2"];
    later_comes_first(&pair, &setup, &["INSERT INTO t VALUES (3)"], &children, both);
    let parent = ["DELETE FROM t WHERE id = 1"];
    later_comes_first(&pair, &setup, &["DELETE FROM c WHERE id = 1"], &parent, both);
}

#[test]
fn nothing_is_lost_that_comes_too_early_in_strict_mode() {
    nothing_is_lost_that_comes_too_early("rpl_early_strict", "--slave-exec-mode=STRICT");
}

#[test]
fn nothing_is_lost_that_comes_too_early_in_idempotent_mode() {
    nothing_is_lost_that_comes_too_early("rpl_early_idempotent", "--slave-exec-mode=IDEMPOTENT");
}

#[test]
fn nothing_is_lost_that_comes_too_early_and_whose_error_would_be_skipped() {
    nothing_is_lost_that_comes_too_early(
        "rpl_early_skip",
        "--slave-skip-errors=1020,1032,1451,1452",
    );
}

/// The primary's engine locks the ranges that a statement reads, and so logs it as it is. What it
/// finds on the replica must be what it found there.
#[test]
fn a_statement_of_the_log_finds_the_rows_of_earlier_ones() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let primary = ["--default-storage-engine=InnoDB", "--binlog-format=MIXED"];
    let pair = Pair::start_with("rpl_statements", "optimistic", (&primary, &[]));
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    let setup = [
        "CREATE TABLE t (id INT PRIMARY KEY, u INT, n INT, KEY (u))",
        "CREATE TABLE c (id INT PRIMARY KEY, u INT, n INT)",
        "INSERT INTO t VALUES (1, 1, 1), (9, 9, 9)",
    ];
    for later in [
        "DELETE FROM t WHERE u BETWEEN 3 AND 6",
        "DELETE FROM t WHERE id < 6 AND id > 1",
        "UPDATE t SET n = n + 1 WHERE id = 5",
        "INSERT INTO c SELECT * FROM t WHERE u < 8",
    ] {
        let both = "SELECT t.*, c.* FROM t LEFT JOIN c USING (id) ORDER BY t.id";
        later_comes_first(&pair, &setup, &["INSERT INTO t VALUES (5, 5, 5)"], &[later], both);
    }
}

/// The primary, which has no trigger, did not make the two wait for each other.
#[test]
fn a_trigger_of_a_replica_finds_the_rows_of_earlier_ones() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let args = ["--slave-run-triggers-for-rbr=YES"];
    let pair = Pair::start("rpl_triggers", "optimistic", &args);
    let mut primary = pair.primary.connect_to("test");
    run(
        &mut primary,
        &[
            "CREATE TABLE gate (id INT PRIMARY KEY, n INT)",
            "INSERT INTO gate VALUES (1, 0)",
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "CREATE TABLE s (k INT PRIMARY KEY, n INT)",
        ],
    );
    run(&mut pair.replica.connect(), &["START SLAVE"]);
    pair.catch_up();
    let mut replica = pair.replica.connect_to("test");
    let trigger = "CREATE TRIGGER sums AFTER INSERT ON t FOR EACH ROW
                   IF NEW.id = 1 THEN INSERT INTO s VALUES (7, 0);
                   ELSE UPDATE s SET n = n + 1 WHERE k = 7; END IF";
    run(&mut replica, &[trigger]);
    let mut holder = pair.replica.connect_to("test");
    run(&mut holder, &["BEGIN", "SELECT * FROM gate WHERE id = 1 FOR UPDATE"]);
    run(&mut primary, &["BEGIN", "UPDATE gate SET n = 1", "INSERT INTO t VALUES (1)", "COMMIT"]);
    run(&mut primary, &["INSERT INTO t VALUES (2)"]);
    wait_for_turn(&mut replica, 1);
    run(&mut holder, &["COMMIT"]);
    pair.catch_up();
    assert_eq!(number(&mut replica, "SELECT n FROM s WHERE k = 7"), 1);
}

/// A transaction that waits for its turn is prepared, and the binary log does not have it yet: in a
/// backup of that moment it must not be, and a server with a binary log must start on it.
#[test]
fn what_waits_for_its_turn_is_rolled_back_in_a_restored_backup() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let pair =
        Pair::start("rpl_backup", "optimistic", &["--log-bin=replica", "--log-slave-updates"]);
    let mut primary = pair.primary.connect_to("test");
    let (mut replica, mut holder) =
        (pair.replica.connect_to("test"), pair.replica.connect_to("test"));
    run(&mut replica, &["START SLAVE"]);
    run(
        &mut primary,
        &["CREATE TABLE gate (n INT)", "CREATE TABLE t (n INT)", "INSERT INTO gate VALUES (0)"],
    );
    pair.catch_up();
    run(&mut holder, &["BEGIN", "SELECT * FROM gate FOR UPDATE"]);
    run(&mut primary, &["UPDATE gate SET n = 1", "INSERT INTO t VALUES (1)"]);
    wait_for_turn(&mut replica, 1);
    let backup = pair.replica.dir().join("backup");
    run(&mut replica, &[&format!("SET GLOBAL tidepool_backup_to = '{}'", backup.display())]);
    run(&mut holder, &["COMMIT"]);
    pair.catch_up();

    let mut restored = Server::create(options("rpl_restored", 3).arg("--log-bin=restored"));
    tidepool_tests::cluster::node::lay_over(&backup, &restored.data_dir());
    for _ in 0..2 {
        restored.restart();
        let mut conn = restored.connect_to("test");
        assert_eq!(number(&mut conn, "SELECT n FROM gate"), 0);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 0);
    }
    let log = restored.error_log();
    let rolled_back = "1 transactions that were about to commit when it ended are rolled back";
    assert_eq!(log.matches(rolled_back).count(), 1, "{log}");
}

/// What is passed over in this mode still is, once its turn has come.
#[test]
fn what_is_missing_is_passed_over_in_idempotent_mode() {
    let pair = Pair::start("rpl_missing", "optimistic", &["--slave-exec-mode=IDEMPOTENT"]);
    let mut primary = pair.primary.connect_to("test");
    let mut replica = pair.replica.connect_to("test");
    run(&mut replica, &["START SLAVE"]);
    run(
        &mut primary,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE h (id INT, n INT, KEY (id))",
            "INSERT INTO t SELECT seq, 0 FROM seq_1_to_20",
            "INSERT INTO h SELECT seq, 0 FROM seq_1_to_20",
        ],
    );
    pair.catch_up();
    run(&mut replica, &["DELETE FROM t WHERE id % 2", "DELETE FROM h WHERE id % 2"]);
    for id in 1..=20 {
        for table in ["t", "h"] {
            run(&mut primary, &[&format!("UPDATE {table} SET n = 1 WHERE id = {id}")]);
        }
    }
    run(&mut primary, &["DELETE FROM t WHERE id < 5", "DELETE FROM h WHERE id < 5"]);
    pair.catch_up();
    for table in ["t", "h"] {
        let sum = format!("SELECT SUM(n) FROM {table}");
        assert_eq!(number(&mut replica, &sum), 8);
        assert_eq!(number(&mut replica, &format!("SELECT COUNT(*) FROM {table}")), 8);
    }
}

/// A trigger's reading takes a snapshot, and a row that changes after it is refused. A transaction
/// from the log is tried again then; in IDEMPOTENT mode, too, it is not passed over.
#[test]
fn a_row_that_changed_after_the_snapshot_of_a_trigger_is_read_again() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    for (name, args) in [
        ("rpl_snapshot", &["--slave-run-triggers-for-rbr=YES"][..]),
        (
            "rpl_snapshot_idempotent",
            &["--slave-run-triggers-for-rbr=YES", "--slave-exec-mode=IDEMPOTENT"][..],
        ),
    ] {
        let pair = Pair::start(name, "conservative", args);
        let mut primary = pair.primary.connect_to("test");
        run(
            &mut primary,
            &[
                "CREATE TABLE t (id INT PRIMARY KEY, n INT, local INT)",
                "INSERT INTO t VALUES (1, 0, 0), (2, 0, 0)",
                "SET binlog_row_image = MINIMAL",
            ],
        );
        let (mut replica, mut holder) =
            (pair.replica.connect_to("test"), pair.replica.connect_to("test"));
        run(&mut replica, &["START SLAVE"]);
        pair.catch_up();
        run(
            &mut replica,
            &[
                "CREATE TABLE seen (n INT)",
                "CREATE TRIGGER before_update BEFORE UPDATE ON t FOR EACH ROW SET @seen = (SELECT COUNT(*) FROM seen)",
            ],
        );
        run(&mut holder, &["BEGIN", "UPDATE t SET local = 1 WHERE id = 2"]);
        run(
            &mut primary,
            &[
                "BEGIN",
                "UPDATE t SET n = 1 WHERE id = 1",
                "UPDATE t SET n = 2 WHERE id = 2",
                "COMMIT",
            ],
        );
        wait_until("the transaction waits for the row", || {
            status(&mut replica, "Tidepool_row_lock_current_waits") == 1
        });
        run(&mut holder, &["COMMIT"]);
        pair.catch_up();
        let all: Vec<(i32, i32, i32)> = replica.query("SELECT * FROM t ORDER BY id").expect("rows");
        assert_eq!(all, [(1, 1, 0), (2, 2, 1)]);
        check(&mut replica, "t");
    }
}

/// The replica is asked for rows that it could not store. They are not there, and that is all.
#[test]
fn a_row_with_a_key_too_long_for_the_replica_is_not_found_there() {
    let pair = Pair::start("long_key", "none", &["--slave-skip-errors=all"]);
    let mut primary = pair.primary.connect_to("test");
    let create = "CREATE TABLE t (k VARBINARY(3000) PRIMARY KEY, n INT) ENGINE=";
    run(&mut primary, &["SET sql_log_bin = 0", &format!("{create}InnoDB"), "SET sql_log_bin = 1"]);
    let mut replica = pair.replica.connect_to("test");
    let engine = Engine::from_environment().name();
    run(&mut replica, &["SET sql_log_bin = 0", &format!("{create}{engine}"), "START SLAVE"]);
    run(
        &mut primary,
        &[
            // Each zero is two bytes of a key of the engine's.
            "INSERT INTO t VALUES (REPEAT(CHAR(0), 3000), 1)",
            "INSERT INTO t VALUES (REPEAT('a', 3000), 2), ('b', 3)",
            "UPDATE t SET n = n + 10",
            "DELETE FROM t WHERE n < 12",
        ],
    );
    pair.catch_up();
    assert_eq!(number(&mut replica, "SELECT SUM(n) FROM t"), 12 + 13);
    assert_eq!(number(&mut replica, "SELECT COUNT(*) FROM t"), 2);
}

/// Tables with a computed column in an index, the column that it is computed from, and values for
/// that.
const COMPUTED: [(&str, &str, &str); 4] = [
    ("ints", "a", "seq * 10"),
    ("indexed_there", "a", "seq * 10"),
    ("hashed", "txt", "REPEAT(CHAR(96 + seq), 3000 * seq)"),
    ("texts", "s", "REPEAT(CHAR(96 + seq), 3000 * seq)"),
];

fn create_computed(conn: &mut Conn) {
    run(
        conn,
        &[
            "CREATE TABLE ints (id INT PRIMARY KEY, a INT, b INT, v INT AS (a + 1) VIRTUAL, w INT AS (v * 2) VIRTUAL, KEY (v), UNIQUE (w))",
            "CREATE TABLE indexed_there (id INT PRIMARY KEY, a INT, b INT, v INT AS (a + 1) VIRTUAL)",
            "CREATE TABLE hashed (id INT PRIMARY KEY, txt TEXT, b INT, UNIQUE (txt))",
            "CREATE TABLE texts (id INT PRIMARY KEY, s TEXT, b INT, v TEXT AS (CONCAT(b, '-', s)) VIRTUAL, KEY (v(40)))",
        ],
    );
}

/// Adds indexes that the primary doesn't have, also on a column that it doesn't have. InnoDB can't
/// apply a log with them.
fn index_there(conn: &mut Conn) {
    if Engine::from_environment() == Engine::Tidepool {
        run(
            conn,
            &[
                "ALTER TABLE indexed_there ADD KEY (v)",
                "ALTER TABLE indexed_there ADD x INT AS (a * 3) VIRTUAL, ADD KEY (x)",
            ],
        );
    }
}

/// Changes rows in all ways, with the columns in the log that each image has.
fn change_computed(conn: &mut Conn) {
    for image in ["FULL", "NOBLOB", "MINIMAL"] {
        run(conn, &[&format!("SET binlog_row_image = {image}")]);
        for (table, column, value) in COMPUTED {
            run(
                conn,
                &[
                    &format!("DELETE FROM {table}"),
                    &format!(
                        "INSERT INTO {table} (id, {column}, b) SELECT seq, {value}, seq FROM seq_1_to_12"
                    ),
                    &format!("DELETE FROM {table} WHERE id = 1"),
                    &format!("UPDATE {table} SET b = b + 1 WHERE id = 2"),
                    &format!("UPDATE {table} SET {column} = 1000 + id WHERE id = 3"),
                    &format!("UPDATE {table} SET id = id + 100 WHERE id = 4"),
                    &format!("UPDATE {table} SET id = id + 100, {column} = 1000 + id WHERE id = 5"),
                    &format!("UPDATE {table} SET {column} = NULL WHERE id IN (6, 7)"),
                    &format!("DELETE FROM {table} WHERE id BETWEEN 7 AND 8"),
                    &format!("REPLACE INTO {table} (id, {column}, b) VALUES (9, 3000, 1)"),
                    &format!(
                        "INSERT INTO {table} (id, {column}, b) VALUES (10, 0, 0) ON DUPLICATE KEY UPDATE {column} = 4000"
                    ),
                ],
            );
        }
    }
}

fn same_computed(here: &mut Conn, there: &mut Conn) {
    for (table, column, _) in COMPUTED {
        let all = format!("SELECT id, {column}, b FROM {table} ORDER BY id");
        let found = rows(there, &all);
        assert_eq!(found, rows(here, &all), "{table}");
        assert_eq!(found.len(), 9, "{table}");
        check(there, table);
    }
    let by_index = "SELECT COUNT(*) FROM ints FORCE INDEX (v) WHERE v > 0";
    assert_eq!(number(there, by_index), number(here, by_index));
    if Engine::from_environment() == Engine::Tidepool {
        let by_index = "SELECT id FROM indexed_there FORCE INDEX (x) WHERE x = 330";
        assert_eq!(number(there, by_index), 11);
    }
    let by_index = "SELECT id FROM texts FORCE INDEX (v) WHERE v = '10-4000'";
    assert_eq!(number(there, by_index), 10);
}

/// The log has not the computed columns that the replica's indexes have, and the server does not
/// compute them: entries would be looked for, or made, by other values than those of the row.
#[test]
fn indexed_virtual_columns_are_computed_where_the_log_lacks_them() {
    let cases: [(&str, &[&str]); 3] = [
        ("rpl_virtual", &[]),
        (
            "rpl_virtual_logged",
            &["--log-bin=replica", "--log-slave-updates", "--binlog-row-image=MINIMAL"],
        ),
        ("rpl_virtual_idempotent", &["--slave-exec-mode=IDEMPOTENT"]),
    ];
    for (name, args) in cases {
        let pair = Pair::start(name, "optimistic", args);
        let mut primary = pair.primary.connect_to("test");
        create_computed(&mut primary);
        run(&mut pair.replica.connect(), &["START SLAVE"]);
        pair.catch_up();
        let mut replica = pair.replica.connect_to("test");
        run(&mut replica, &["SET sql_log_bin = 0"]);
        index_there(&mut replica);
        change_computed(&mut primary);
        pair.catch_up();
        same_computed(&mut primary, &mut replica);
        if !name.ends_with("idempotent") {
            continue;
        }
        for (table, column, _) in COMPUTED {
            let insert =
                |n: i32| format!("INSERT INTO {table} (id, {column}, b) VALUES (50, {n}, {n})");
            run(&mut replica, &[&insert(5000)]);
            run(&mut primary, &[&insert(5001)]);
            pair.catch_up();
            check(&mut replica, table);
            assert_eq!(number(&mut replica, &format!("SELECT b FROM {table} WHERE id = 50")), 5001);
        }
    }
}

/// Words of new rows are pending on each server by itself: each merges them when it likes.
#[test]
fn a_replica_finds_the_words_that_the_primary_finds() {
    let replica_args = ["--log-bin=replica", "--log-slave-updates", "--gtid-strict-mode=1"];
    let pair = Pair::start("fulltext", "optimistic", &replica_args);
    let mut here = pair.primary.connect_to("test");
    run(&mut here, &["CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))"]);
    let mut there = pair.replica.connect();
    run(&mut there, &["START SLAVE"]);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let mut conn = pair.primary.connect_to("test");
            scope.spawn(move || write_at_random(&mut conn, writer, 300));
        }
    });
    pair.catch_up();
    let mut there = pair.replica.connect_to("test");
    for word in WRITTEN_WORDS {
        let search = format!("SELECT id FROM t WHERE MATCH (a) AGAINST ('{word}') ORDER BY id");
        let scan = format!("SELECT id FROM t WHERE a REGEXP '\\\\b{word}\\\\b' ORDER BY id");
        let expected = rows(&mut here, &scan);
        assert!(!expected.is_empty());
        assert_eq!(rows(&mut here, &search), expected, "the primary, {word}");
        assert_eq!(rows(&mut there, &search), expected, "the replica, {word}");
    }
    check(&mut there, "t");
    // Merges are no transactions of the binary log.
    assert_ne!(status(&mut there, "Tidepool_ft_merged_rows"), 0);
    let position = |conn: &mut Conn| rows(conn, "SELECT @@gtid_binlog_pos");
    assert_eq!(position(&mut there), position(&mut here));
}

/// The same by `BINLOG` statements.
#[test]
fn a_log_is_applied_as_statements() {
    let logged = Server::start(options("binlog_written", 1).arg("--log-bin=primary"));
    let applied = Server::start(options("binlog_applied", 2));
    let (mut here, mut there) = (logged.connect_to("test"), applied.connect_to("test"));
    create_computed(&mut here);
    create_computed(&mut there);
    index_there(&mut there);
    run(&mut here, &["FLUSH BINARY LOGS"]);
    change_computed(&mut here);
    let log = Command::new(Environment::get().path("BASEDIR").join("bin/mariadb-binlog"))
        .arg("--no-defaults")
        .arg(logged.data_dir().join("primary.000002"))
        .output()
        .expect("mariadb-binlog runs");
    assert!(log.status.success(), "{}", String::from_utf8_lossy(&log.stderr));
    let file = applied.dir().join("log.sql");
    fs::write(&file, &log.stdout).expect("the log can be written");
    let output = applied
        .client("CLIENT")
        .arg("test")
        .stdin(File::open(&file).expect("the log can be read"))
        .output()
        .expect("the client runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    same_computed(&mut here, &mut there);
}
