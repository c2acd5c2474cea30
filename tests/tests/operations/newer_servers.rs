//! What MariaDB does with engines since versions that not every distribution has; skipped on older
//! ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mysql::prelude::Queryable;
use mysql::{Conn, Error};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, rows, run};

/// A server of at least this version, or none.
fn server_since(major: u32, minor: u32, name: &str) -> Option<Server> {
    let version = Environment::get().value("VERSION");
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < (major, minor) {
        tidepool_skip::skip(format!("MariaDB {major}.{minor} is wanted, this is {version}"));
        return None;
    }
    Some(Server::start(Options::new(name).engine(Engine::Tidepool)))
}

/// The index is another table of the engine, which the server writes in the same transaction.
#[test]
fn vector_indexes_are_as_innodb_s_and_survive_a_crash() {
    let Some(mut server) = server_since(11, 7, "vectors") else { return };
    let mut conn = server.connect_to("test");
    for (table, engine) in [("t", Engine::Tidepool), ("i", Engine::InnoDb)] {
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE {table} (id INT PRIMARY KEY, v VECTOR(3) NOT NULL, VECTOR INDEX (v)) ENGINE={}",
                    engine.name()
                ),
                &format!(
                    "INSERT INTO {table} SELECT seq, VEC_FromText(CONCAT('[', seq % 17, ',', seq % 23, ',', seq, ']'))
                     FROM seq_1_to_500"
                ),
                &format!("DELETE FROM {table} WHERE id % 50 = 3"),
                &format!("UPDATE {table} SET v = VEC_FromText('[3,4,100]') WHERE id = 7"),
                "BEGIN",
                &format!("DELETE FROM {table} WHERE id BETWEEN 90 AND 110"),
                &format!("INSERT INTO {table} VALUES (1000, VEC_FromText('[3,4,100]'))"),
                "ROLLBACK",
            ],
        );
    }
    let nearest = |conn: &mut Conn, table: &str| {
        let order = "VEC_DISTANCE_EUCLIDEAN(v, VEC_FromText('[3,4,100]')) LIMIT 5";
        rows(conn, &format!("SELECT id FROM {table} ORDER BY {order}"))
    };
    let found = nearest(&mut conn, "t");
    assert!(found[0].contains('7'), "{found:?}");
    assert_eq!(found, nearest(&mut conn, "i"));
    run(&mut conn, &["RENAME TABLE t TO u", "ALTER TABLE u ADD COLUMN c INT DEFAULT 3"]);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(nearest(&mut conn, "u"), found);
    run(&mut conn, &["ALTER TABLE u DROP INDEX v, ADD VECTOR INDEX (v)"]);
    assert_eq!(nearest(&mut conn, "u"), found);
    run(&mut conn, &["TRUNCATE u", "INSERT INTO u VALUES (1, VEC_FromText('[1,2,3]'), 5)"]);
    assert_eq!(nearest(&mut conn, "u").len(), 1);
    run(&mut conn, &["DROP TABLE u"]);
    let left = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX WHERE TABLE_NAME LIKE 'u%'";
    assert_eq!(number(&mut conn, left), 0, "nothing of it is left");
}

/// The server copies what a snapshot holds, and then what others have written since.
#[test]
fn others_write_while_a_table_is_copied() {
    let Some(server) = server_since(11, 2, "online-copy") else { return };
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE a (id INT PRIMARY KEY, v BIGINT NOT NULL, s VARCHAR(50), KEY (v))",
            "INSERT INTO a SELECT seq, 0, REPEAT('x', seq % 50) FROM seq_1_to_2000",
            "CREATE TABLE b LIKE a",
            "INSERT INTO b SELECT * FROM a",
        ],
    );
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (mut conn, done) = (server.connect_to("test"), &done);
            scope.spawn(move || {
                let mut n = writer;
                while !done.load(Ordering::Relaxed) {
                    n += 3;
                    let id = n * 7919 % 2200;
                    let write = match n % 5 {
                        0 => format!("DELETE FROM # WHERE id = {id}"),
                        1 => format!("INSERT IGNORE INTO # VALUES ({id}, {n}, 'new')"),
                        _ => format!("UPDATE # SET v = v + {n}, s = 'y{n}' WHERE id = {id}"),
                    };
                    let end = if n.is_multiple_of(11) { "ROLLBACK" } else { "COMMIT" };
                    // The same in both tables, or in neither.
                    for statement in
                        ["BEGIN", &write.replace('#', "a"), &write.replace('#', "b"), end]
                    {
                        match conn.query_drop(statement) {
                            Ok(()) => {}
                            // A deadlock, or a row that another has written since.
                            Err(Error::MySqlError(error))
                                if [1213, 1205, 1020].contains(&error.code) =>
                            {
                                conn.query_drop("ROLLBACK").expect("a rollback");
                                break;
                            }
                            Err(error) => panic!("{statement}: {error}"),
                        }
                    }
                }
            });
        }
        for _ in 0..6 {
            run(&mut conn, &["ALTER TABLE a FORCE, ALGORITHM=COPY, LOCK=NONE"]);
        }
        done.store(true, Ordering::Relaxed);
    });
    let all =
        |conn: &mut Conn, table: &str| rows(conn, &format!("SELECT * FROM {table} ORDER BY id"));
    assert_eq!(all(&mut conn, "a"), all(&mut conn, "b"));
    let moved = number(&mut conn, "SELECT COUNT(*) FROM a WHERE v > 0");
    assert!(moved > 10, "{moved} rows were written to meanwhile");
}
