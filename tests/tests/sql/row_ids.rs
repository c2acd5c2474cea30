//! Tables without a primary key: their rows are numbered on, through openings and restarts.

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

#[test]
fn a_table_that_is_opened_again_and_again_still_takes_rows() {
    let mut server = Server::start(Options::new("row_ids").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (a INT, KEY (a))", "INSERT INTO t VALUES (1), (2), (3)"]);
    drop(conn);
    server.stop();
    server.launch().expect("the server starts");
    let mut conn = server.connect_to("test");
    for n in 4..10 {
        let insert = format!("INSERT INTO t VALUES ({n}), ({n})");
        run(&mut conn, &[insert.as_str(), "FLUSH TABLES"]);
    }
    run(
        &mut conn,
        &["ALTER TABLE t ADD KEY again (a), ALGORITHM=INPLACE", "INSERT INTO t VALUES (10)"],
    );
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 16);
    assert_eq!(number(&mut conn, "SELECT SUM(a) FROM t"), 6 + 2 * 39 + 10);
    let checked: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE t EXTENDED").expect("a verdict");
    assert_eq!(checked[0].3, "OK", "{checked:?}");
}
