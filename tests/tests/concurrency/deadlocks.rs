//! What is left of a deadlock: a row for each of its transactions, and lines in the error log.

use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{code_of, number, run};

const DEADLOCK: u16 = 1213;

/// Two sessions that each want the row which the other has. The second closes the circle; who has
/// written less is rolled back, and that is the second.
fn deadlock(server: &Server, first: &mut Conn, second: &mut Conn) {
    let writes = [1, 3, 4].map(|id| format!("UPDATE t SET v = v + 1 WHERE id = {id}"));
    run(first, &["BEGIN", &writes[0], &writes[1], &writes[2]]);
    run(second, &["BEGIN", "UPDATE t SET v = v + 1 WHERE id = 2"]);
    let mut watcher = server.connect();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| first.query_drop("UPDATE t SET v = v + 10 WHERE id = 2"));
        let waiting = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX
            WHERE trx_state = 'LOCK WAIT'";
        wait_until(Duration::from_secs(60), "the first waits", || {
            number(&mut watcher, waiting) == 1
        });
        assert_eq!(code_of(second, "UPDATE t SET v = 'ü' WHERE id = 1"), DEADLOCK);
        waits.join().expect("no panic").expect("the first goes on");
    });
    run(first, &["ROLLBACK"]);
}

type Member = (u64, u64, String, String, String, u64, String);

#[test]
fn each_side_of_a_deadlock_is_shown_with_its_statement() {
    let mut server = Server::start(Options::new("deadlocks").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)",
            "INSERT INTO t VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
        ],
    );
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    deadlock(&server, &mut first, &mut second);
    let (one, two) = (first.connection_id().into(), second.connection_id().into());
    let members: Vec<Member> = conn
        .query(
            "SELECT deadlock_id, trx_mysql_thread_id, trx_query,
                CONCAT(table_schema, '/', table_name), index_name, trx_rows_modified, is_victim
             FROM information_schema.TIDEPOOL_DEADLOCKS ORDER BY deadlock_id DESC, position",
        )
        .expect("rows");
    let text = |text: &str| text.to_owned();
    let row = |session, query, modified, is_victim| -> Member {
        (1, session, text(query), text("test/t"), text("PRIMARY"), modified, text(is_victim))
    };
    assert_eq!(
        members,
        [
            row(two, "UPDATE t SET v = 'ü' WHERE id = 1", 1, "YES"),
            row(one, "UPDATE t SET v = v + 10 WHERE id = 2", 3, "NO"),
        ]
    );
    let status: Vec<(String, String, String)> =
        conn.query("SHOW ENGINE TIDEPOOL STATUS").expect("a text");
    let wanted = format!("connection {two}, 1 undo records, waited for a lock in test/t");
    assert!(status[0].2.contains(&wanted), "{}", status[0].2);

    // The error log has those that come once it is wanted.
    assert!(!server.error_log().contains("deadlock 1:"), "{}", server.error_log());
    run(&mut conn, &["SET GLOBAL tidepool_print_all_deadlocks = ON"]);
    deadlock(&server, &mut first, &mut second);
    let found = server.error_log();
    assert!(found.contains("deadlock 2: each waited for the next"), "{found}");
    assert!(found.contains("by UPDATE t SET v = 'ü' WHERE id = 1: rolled back"), "{found}");
    run(&mut conn, &["SET GLOBAL tidepool_print_all_deadlocks = OFF"]);
    deadlock(&server, &mut first, &mut second);
    assert!(!server.error_log().contains("deadlock 3:"), "{}", server.error_log());
    let count = "SELECT COUNT(DISTINCT deadlock_id) FROM information_schema.TIDEPOOL_DEADLOCKS";
    assert_eq!(number(&mut conn, count), 3);
    // As an option, from the start on.
    drop((conn, first, second));
    server.stop();
    server.set_args(vec!["--tidepool-print-all-deadlocks=ON".into()]);
    server.launch().expect("it starts");
    // The log of the life before is before this.
    let before = server.error_log().len();
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    deadlock(&server, &mut first, &mut second);
    let found = server.error_log()[before..].to_owned();
    assert!(found.contains("deadlock 1: each waited for the next"), "{found}");
}
