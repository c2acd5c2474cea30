//! The TPC-C load: its consistency conditions hold after the initial population, after a run, and
//! after a crash in the middle of one.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server};
use tidepool_tests::tpcc::consistency::{DATABASE, broken_conditions, lost_or_phantom, violations};
use tidepool_tests::tpcc::population::populate;
use tidepool_tests::tpcc::{Load, LoadOptions, Report, Scale};

const TERMINALS: u32 = 8;

fn populated(name: &str, scale: &Scale) -> Server {
    let server = Server::start(Options::new(name));
    let mut conn = server.connect();
    conn.query_drop(format!("CREATE DATABASE {DATABASE}")).expect("a database can be created");
    conn.query_drop(format!("USE {DATABASE}")).expect("a database can be used");
    populate(&mut conn, scale, 42).expect("the tables can be filled");
    server
}

fn assert_consistent(server: &Server, scale: &Scale, report: &Report) {
    let mut conn = server.connect_to(DATABASE);
    let mut wrong = violations(&mut conn).expect("the conditions can be checked");
    wrong.extend(lost_or_phantom(&mut conn, scale, report).expect("the counts can be checked"));
    assert!(wrong.is_empty(), "{}\n{report:?}", wrong.join("\n"));
}

#[test]
fn the_conditions_hold_after_a_run() {
    let scale = Scale::small(2);
    let server = populated("tpcc", &scale);
    assert_consistent(&server, &scale, &Report::default());
    let load = Load::start(server.socket(), scale, LoadOptions { terminals: TERMINALS, seed: 1 });
    sleep(Duration::from_secs(8));
    let report = load.finish();
    println!("{report:?}");
    assert_eq!(report.errors, Vec::<String>::new());
    assert!(report.total() > 100, "hardly anything ran: {report:?}");
    assert_consistent(&server, &scale, &report);
}

#[test]
fn the_conditions_hold_after_crashes() {
    let scale = Scale::small(2);
    let mut server = populated("tpcc_crash", &scale);
    let mut sum = Report::default();
    for round in 0..3 {
        let load = Load::start(
            server.socket(),
            scale,
            LoadOptions { terminals: TERMINALS, seed: 2 + round },
        );
        sleep(Duration::from_secs(3));
        server.kill9();
        let report = load.finish();
        assert!(report.total() > 20, "hardly anything ran: {report:?}");
        // A terminal ends with its connection; an error of the server's is none of the kill's.
        for error in &report.errors {
            assert!(!error.contains("ERROR "), "{error}");
        }
        sum.add(report);
        server.restart();
        assert_consistent(&server, &scale, &sum);
    }
}

/// A check that cannot fail proves nothing: each condition is broken once, and must say so.
#[test]
fn each_condition_sees_what_breaks_it() {
    let scale = Scale::small(1);
    let server = populated("tpcc_conditions", &scale);
    let mut conn = server.connect_to(DATABASE);
    let first_open = scale.delivered_orders() + 1;
    let second_open = first_open + 1;
    let damage = [
        (1, "UPDATE warehouse SET w_ytd = w_ytd + 1".to_string()),
        (2, "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 3".into()),
        (3, format!("DELETE FROM new_order WHERE no_d_id = 1 AND no_o_id = {second_open}")),
        (4, "DELETE FROM order_line WHERE ol_d_id = 2 AND ol_o_id = 5 AND ol_number = 1".into()),
        (5, format!("UPDATE orders SET o_carrier_id = 1 WHERE o_d_id = 4 AND o_id = {first_open}")),
        (6, "UPDATE orders SET o_ol_cnt = o_ol_cnt + 1 WHERE o_d_id = 1 AND o_id = 1".into()),
        (7, "UPDATE order_line SET ol_delivery_d = NULL WHERE ol_d_id = 1 AND ol_o_id = 1 AND ol_number = 1".into()),
        (8, "DELETE FROM history WHERE h_d_id = 1 LIMIT 1".into()),
        (9, "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_id = 7".into()),
        (10, "UPDATE history SET h_amount = h_amount + 1 WHERE h_c_id = 9 AND h_d_id = 2".into()),
        (11, "DELETE FROM new_order WHERE no_d_id = 10".into()),
        (12, "UPDATE customer SET c_ytd_payment = c_ytd_payment - 1 WHERE c_d_id = 5 AND c_id = 6".into()),
    ];
    for (condition, statement) in damage {
        conn.query_drop("START TRANSACTION").expect("a transaction can begin");
        conn.query_drop(&statement).expect("damage can be done");
        assert_eq!(conn.affected_rows(), if condition == 11 { 18 } else { 1 }, "{statement}");
        let found = broken_conditions(&mut conn).expect("the conditions can be checked");
        let name = format!("condition {condition}:");
        assert!(
            found.iter().any(|violation| violation.starts_with(&name)),
            "{statement}: only {found:?}"
        );
        conn.query_drop("ROLLBACK").expect("a rollback works");
    }
    // A payment that is lost as a whole breaks no condition.
    for (what, statement) in [
        ("payments", "DELETE FROM history LIMIT 1"),
        ("orders entered", "DELETE FROM orders LIMIT 1"),
        ("orders delivered", "UPDATE orders SET o_carrier_id = NULL LIMIT 1"),
    ] {
        conn.query_drop("START TRANSACTION").expect("a transaction can begin");
        conn.query_drop(statement).expect("damage can be done");
        let found = lost_or_phantom(&mut conn, &scale, &Report::default()).expect("counts");
        assert!(found.iter().any(|lost| lost.contains(what)), "{statement}: only {found:?}");
        conn.query_drop("ROLLBACK").expect("a rollback works");
    }
    assert_consistent(&server, &scale, &Report::default());
}

/// Percona's scripts for sysbench, unchanged. They are found where `TIDEPOOL_SYSBENCH_TPCC` says;
/// where that is not set, the test has nothing to run.
#[test]
fn sysbench_tpcc_runs_and_its_checks_pass() {
    let Some(scripts) = std::env::var_os("TIDEPOOL_SYSBENCH_TPCC") else {
        tidepool_skip::skip("TIDEPOOL_SYSBENCH_TPCC is not set");
        return;
    };
    let server = Server::start(Options::new("sysbench_tpcc"));
    server.connect().query_drop("CREATE DATABASE tpcc").expect("a database can be created");
    let sysbench = |command: &str| {
        let output = Command::new("sysbench")
            .current_dir(&scripts)
            .args(["./tpcc.lua", "--db-driver=mysql", "--mysql-user=root", "--mysql-db=tpcc"])
            .arg(format!("--mysql-socket={}", server.socket().display()))
            .arg(format!("--mysql_storage_engine={}", server.engine().name()))
            .args(["--tables=1", "--scale=1", "--threads=4", "--time=10", command])
            .output()
            .expect("sysbench can be run");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {said}");
        said
    };
    sysbench("prepare");
    let said = sysbench("run");
    assert!(said.contains("transactions:") && !said.contains("FATAL"), "{said}");
    let said = sysbench("check");
    assert_eq!((said.matches("PASSED").count(), said.contains("FAILED")), (10, false), "{said}");
}
