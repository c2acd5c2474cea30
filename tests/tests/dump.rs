//! `mariadb-dump --single-transaction` while others write: the dump is a consistent snapshot, and loads.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server, connect_to_socket};
use tidepool_tests::sql::{code_of, number, run};

const WRITERS: i64 = 8;
const ACCOUNTS: i64 = 2000;
const BALANCE: i64 = 1000;

/// Moves money between accounts of two tables, adds and removes pairs of rows: the sum over both never changes.
fn write(
    socket: &std::path::Path,
    writer: i64,
    stop: &AtomicBool,
    commits: &AtomicU64,
) -> mysql::Result<()> {
    let mut conn = connect_to_socket(socket, "bank")?;
    let mut step = writer;
    while !stop.load(Ordering::Relaxed) {
        step += 1;
        // Writers keep to accounts of their own, so none waits for another.
        let account = |n: i64| n * 7919 % (ACCOUNTS / WRITERS) * WRITERS + writer;
        let extra = ACCOUNTS + step * WRITERS + writer;
        conn.query_drop("START TRANSACTION")?;
        conn.exec_drop("UPDATE checking SET balance = balance - 5 WHERE id = ?", (account(step),))?;
        conn.exec_drop(
            "UPDATE saving SET balance = balance + 5 WHERE id = ?",
            (account(step * 3),),
        )?;
        conn.exec_drop("INSERT INTO checking VALUES (?, 17, REPEAT('x', 500))", (extra,))?;
        conn.exec_drop("INSERT INTO saving VALUES (?, -17, REPEAT('y', 500))", (extra,))?;
        if step % 3 == 0 {
            let old = extra - 20 * WRITERS;
            if old >= ACCOUNTS {
                conn.exec_drop("DELETE FROM checking WHERE id = ?", (old,))?;
                conn.exec_drop("DELETE FROM saving WHERE id = ?", (old,))?;
            }
        }
        conn.query_drop("COMMIT")?;
        commits.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn total(server: &Server, database: &str) -> Option<i64> {
    let query = "SELECT CAST((SELECT SUM(balance) FROM checking) + (SELECT SUM(balance) FROM saving) AS SIGNED)";
    server.connect_to(database).query_first(query).expect("the sum can be computed")
}

#[test]
fn a_dump_beside_writers_is_a_consistent_snapshot() {
    let server = Server::start(Options::new("dump"));
    let mut conn = server.connect();
    conn.query_drop("CREATE DATABASE bank").expect("a database can be created");
    conn.query_drop("USE bank").expect("a database can be used");
    for table in ["checking", "saving"] {
        conn.query_drop(format!(
            "CREATE TABLE {table} (id BIGINT PRIMARY KEY, balance BIGINT, pad TEXT, KEY (balance))"
        ))
        .expect("a table can be created");
        let insert = format!(
            "INSERT INTO {table} SELECT seq, {BALANCE}, REPEAT('z', 500) FROM seq_0_to_{}",
            ACCOUNTS - 1
        );
        conn.query_drop(insert).expect("a table can be filled");
    }
    let expected = Some(2 * ACCOUNTS * BALANCE);
    assert_eq!(total(&server, "bank"), expected);

    let (stop, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (socket, stop, commits) =
                (server.socket().to_path_buf(), Arc::clone(&stop), Arc::clone(&commits));
            thread::spawn(move || write(&socket, writer, &stop, &commits))
        })
        .collect();
    while commits.load(Ordering::Relaxed) < 100 {
        thread::sleep(std::time::Duration::from_millis(10));
        assert!(!writers.iter().all(thread::JoinHandle::is_finished), "the writers ended");
    }
    let dumps: Vec<_> = (0..3)
        .map(|number| {
            let file = server.dir().join(format!("{number}.sql"));
            let before = commits.load(Ordering::Relaxed);
            let status = server
                .client("DUMP")
                .args(["--single-transaction", "bank"])
                .stdout(File::create(&file).expect("a file can be made"))
                .status()
                .expect("mariadb-dump can be run");
            assert!(status.success(), "mariadb-dump: {status}");
            println!("{} commits beside dump {number}", commits.load(Ordering::Relaxed) - before);
            file
        })
        .collect();
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("a writer doesn't panic").expect("a writer gets no error");
    }
    assert_eq!(total(&server, "bank"), expected);

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
        assert_eq!(total(&fresh, &database), expected, "dump {number}");
    }
}

/// A dump goes back to a savepoint after each table, so that others may alter it while the dump goes on. Who has locked rows keeps the
/// table.
#[test]
fn a_table_already_dumped_can_be_altered() {
    const LOCK_WAIT_TIMEOUT: u16 = 1205;
    const DEFINITION_CHANGED: u16 = 1412;
    let server = Server::start(Options::new("dumped"));
    let (mut dump, mut other) = (server.connect_to("test"), server.connect_to("test"));
    for table in ["a", "b", "c", "d", "e"] {
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
        ],
    );
    // What was read before the savepoint stays in use; and the snapshot is what it was, where that can be told still.
    assert_eq!(code_of(&mut other, "DROP TABLE e"), LOCK_WAIT_TIMEOUT);
    assert_eq!(number(&mut dump, "SELECT COUNT(*) FROM b FORCE INDEX (PRIMARY)"), 2);
    assert_eq!(code_of(&mut dump, "SELECT * FROM c"), DEFINITION_CHANGED);
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
    run(&mut other, &["DROP TABLE a, b, c, e"]);
}
