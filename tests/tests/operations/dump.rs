//! `mariadb-dump --single-transaction` while others write: the dump is a consistent snapshot, and
//! loads.

use std::fs::{self, File};

use mysql::prelude::Queryable;
use tidepool_tests::bank::{self, Bank};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{code_of, number, run};

#[test]
fn a_dump_beside_writers_is_a_consistent_snapshot() {
    let server = Server::start(Options::new("dump"));
    let mut bank = Bank::open(&server, "");
    let dumps: Vec<_> = (0..3)
        .map(|number| {
            let file = server.dir().join(format!("{number}.sql"));
            let before = bank.commits();
            let status = server
                .client("DUMP")
                .args(["--single-transaction", "bank"])
                .stdout(File::create(&file).expect("a file can be made"))
                .status()
                .expect("mariadb-dump can be run");
            assert!(status.success(), "mariadb-dump: {status}");
            println!("{} commits beside dump {number}", bank.commits() - before);
            file
        })
        .collect();
    bank.close();
    assert_eq!(bank::total(&server, "bank"), bank::TOTAL);

    let fresh = Server::start(Options::new("dump_loaded"));
    for (number, file) in dumps.iter().enumerate() {
        let text = fs::read_to_string(file).expect("a dump can be read");
        assert!(
            text.contains(&format!("ENGINE={}", server.engine().name())),
            "the dump names the engine"
        );
        let database = format!("bank_{number}");
        fresh
            .connect()
            .query_drop(format!("CREATE DATABASE {database}"))
            .expect("a database can be created");
        let dump = File::open(file).expect("a dump can be read");
        let status = fresh
            .client("CLIENT")
            .arg(&database)
            .stdin(dump)
            .status()
            .expect("the client can be run");
        assert!(status.success(), "the dump does not load: {status}");
        assert_eq!(bank::total(&fresh, &database), bank::TOTAL, "dump {number}");
    }
}

/// A dump goes back to a savepoint after each table, so that others may alter it while the dump
/// goes on. Who has locked rows keeps the table.
#[test]
fn a_table_already_dumped_can_be_altered() {
    const LOCK_WAIT_TIMEOUT: u16 = 1205;
    const DEFINITION_CHANGED: u16 = 1412;
    let server = Server::start(Options::new("dumped"));
    let (mut dump, mut other) = (server.connect_to("test"), server.connect_to("test"));
    for table in ["a", "b", "c", "d", "e", "f", "g"] {
        let create = format!("CREATE TABLE {table} (id INT PRIMARY KEY, n INT)");
        run(&mut other, &[&create, &format!("INSERT INTO {table} VALUES (1, 1), (2, 2)")]);
    }
    run(&mut other, &["SET lock_wait_timeout = 1"]);
    run(
        &mut dump,
        &["START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT * FROM e", "SAVEPOINT sp"],
    );
    for table in ["a", "b", "c", "d"] {
        run(&mut dump, &[&format!("SELECT * FROM {table}"), "ROLLBACK TO SAVEPOINT sp"]);
    }
    run(
        &mut other,
        &[
            "ALTER TABLE a ADD COLUMN more INT, ALGORITHM=INSTANT",
            "ALTER TABLE b ADD INDEX (n)",
            "ALTER TABLE c FORCE, ALGORITHM=COPY",
            "DROP TABLE d",
            "INSERT INTO b VALUES (3, 3)",
            "DELETE FROM f WHERE id = 2",
            "RENAME TABLE f TO renamed",
            "RENAME TABLE g TO f",
        ],
    );
    // What was read before the savepoint stays in use; and the snapshot is what it was, where that
    // can be told still.
    assert_eq!(code_of(&mut other, "DROP TABLE e"), LOCK_WAIT_TIMEOUT);
    assert_eq!(number(&mut dump, "SELECT COUNT(*) FROM b FORCE INDEX (PRIMARY)"), 2);
    assert_eq!(code_of(&mut dump, "SELECT * FROM c"), DEFINITION_CHANGED);
    // A rename leaves the rows alone; but a name that was another table's stands for that one.
    assert_eq!(number(&mut dump, "SELECT COUNT(*) FROM renamed"), 2);
    assert_eq!(code_of(&mut dump, "SELECT * FROM f"), DEFINITION_CHANGED);
    // With a lock the table stays in use as well.
    run(
        &mut dump,
        &[
            "ROLLBACK TO SAVEPOINT sp",
            "SELECT * FROM b WHERE id = 1 FOR UPDATE",
            "ROLLBACK TO SAVEPOINT sp",
        ],
    );
    assert_eq!(code_of(&mut other, "DROP TABLE b"), LOCK_WAIT_TIMEOUT);
    run(&mut dump, &["COMMIT"]);
    run(&mut other, &["DROP TABLE a, b, c, e, f, renamed"]);
}
