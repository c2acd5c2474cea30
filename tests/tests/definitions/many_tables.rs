//! More tables than file descriptors: all of them are read and written, before and after a crash.

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};

const TABLES: u32 = 600;
/// Descriptors that table files may have.
const OPEN_FILES: usize = 60;

/// Files of the engine that the server has open.
fn open_table_files(server: &Server) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.pid().expect("it runs")))
        .expect("it is our child");
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.extension().is_some_and(|e| e == "tpd")).count()
}

#[test]
fn there_may_be_more_tables_than_descriptors() {
    let options = Options::new("many_tables").engine(Engine::Tidepool);
    let options = options.arg(format!("--tidepool-open-files={OPEN_FILES}"));
    // The pool holds not nearly a page a table: reading them all again reads files.
    let mut server =
        Server::start(options.arg("--tidepool-buffer-pool-size=4M").arg("--table-open-cache=100"));
    let mut conn = server.connect_to("test");
    for t in 0..TABLES {
        conn.query_drop(format!("CREATE TABLE t{t} (id INT PRIMARY KEY, v INT, KEY (v))"))
            .expect("a table can be made");
        conn.query_drop(format!("INSERT INTO t{t} VALUES (1, {t}), (2, 0)"))
            .expect("a row can be inserted");
    }
    assert!(open_table_files(&server) <= OPEN_FILES, "{}", open_table_files(&server));
    for t in 0..TABLES {
        conn.query_drop(format!("UPDATE t{t} SET v = v + 1 WHERE id = 2"))
            .expect("an update works");
    }
    for t in (0..TABLES).step_by(7) {
        conn.query_drop(format!("RENAME TABLE t{t} TO r{t}")).expect("a table can be renamed");
    }
    for t in (3..TABLES).step_by(7) {
        conn.query_drop(format!("DROP TABLE t{t}")).expect("a table can be dropped");
    }
    let check = |server: &Server| {
        let mut conn = server.connect_to("test");
        for t in 0..TABLES {
            let name = if t % 7 == 0 { format!("r{t}") } else { format!("t{t}") };
            let rows = conn.query::<(u32, u32), _>(format!("SELECT id, v FROM {name} ORDER BY id"));
            match t % 7 {
                3 => assert!(rows.is_err(), "{name} was dropped"),
                _ => assert_eq!(rows.expect("can be read"), [(1, t), (2, 1)], "{name}"),
            }
        }
        assert!(open_table_files(server) <= OPEN_FILES, "{}", open_table_files(server));
    };
    check(&server);
    drop(conn);
    server.kill9();
    server.restart();
    check(&server);
    server.stop();
}
