//! Tables without a primary key: their rows are numbered on, whatever an older version has left.

use mysql::prelude::Queryable;
use tidepool::{Db, Options as EngineOptions};
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

/// Where a table's metadata have the epoch that older versions raised at each opening (docs/internals/format/rows.md).
const EPOCH: std::ops::Range<usize> = 2..6;
/// The last one of which row ids can be made.
const LAST_EPOCH: u32 = 0xFF_FFFF;

fn set_epoch(server: &Server, table: &str, epoch: u32) {
    let db = Db::open(server.data_dir().join("tidepool"), EngineOptions::default());
    let db = db.expect("the engine's directory can be opened");
    let mut metadata = db.table_def(table).expect("the table is there").metadata;
    metadata[EPOCH].copy_from_slice(&epoch.to_le_bytes());
    db.set_table_metadata(table, &metadata).expect("the table can be changed");
    db.close().expect("it closes");
}

#[test]
fn a_table_that_was_opened_very_often_still_takes_rows() {
    let mut server = Server::start(Options::new("row_ids").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (a INT, KEY (a))", "INSERT INTO t VALUES (1), (2), (3)"]);
    drop(conn);
    server.stop();
    set_epoch(&server, "test/t", LAST_EPOCH);

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
