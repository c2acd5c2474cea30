//! Where the engine's files are not: a file system that is not mounted, a path with a typo, a
//! directory of something else.

use std::fs;
use std::path::Path;

use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

fn home(dir: &Path) -> String {
    format!("--tidepool-data-home-dir={}", dir.display())
}

/// The server does not start, and says this.
fn refuses_to_start(server: &mut Server, why: &str) {
    let error = server.launch().expect_err("it must not start");
    assert!(error.contains(why), "no '{why}' in: {error}");
    assert!(!error.contains("panicked") && !error.contains("got signal"), "{error}");
}

#[test]
fn a_server_with_tables_does_not_start_on_an_engine_directory_that_is_new() {
    let mut server = Server::create(Options::new("not_mounted").engine(Engine::Tidepool));
    // As a mount point and a directory in it.
    let mount = server.dir().join("mount");
    fs::create_dir(&mount).expect("a directory");
    server.set_args(vec![home(&mount.join("engine"))]);
    server.launch().expect("the first start makes the directory");
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE other (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE aria (id INT PRIMARY KEY) ENGINE=Aria PARTITION BY HASH (id) PARTITIONS 2",
            "CREATE VIEW seen AS SELECT * FROM other",
        ],
    );
    server.stop();
    // Without tables nothing is missed.
    fs::remove_dir_all(mount.join("engine")).expect("it can be removed");
    server.launch().expect("it starts empty");

    for definition in [
        "CREATE TABLE test.t (id INT PRIMARY KEY)",
        "CREATE TABLE test.p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
        "CREATE SEQUENCE test.s",
    ] {
        run(&mut server.connect(), &[definition]);
        server.stop();
        let unmounted = server.dir().join("unmounted");
        fs::rename(&mount, &unmounted).expect("a rename");
        // The mount point is there, with nothing in it; or it is not.
        fs::create_dir(&mount).expect("a directory");
        let table = definition.split(['.', ' ']).nth(3).expect("a name");
        refuses_to_start(&mut server, &format!("'test/{table}.frm' for one"));
        assert!(!mount.join("engine").exists(), "nothing was made there");
        fs::remove_dir(&mount).expect("it is empty");
        refuses_to_start(&mut server, "mount the file system, or correct tidepool_data_home_dir");
        fs::rename(&unmounted, &mount).expect("a rename");
        server.launch().expect("it is there again");
        run(&mut server.connect(), &[&format!("SELECT * FROM test.{table}")]);
        run(&mut server.connect(), &[&format!("DROP TABLE test.{table}")]);
    }

    // What is lost is lost.
    run(&mut server.connect_to("test"), &["CREATE TABLE t (id INT PRIMARY KEY)"]);
    server.stop();
    fs::remove_dir_all(mount.join("engine")).expect("it can be removed");
    refuses_to_start(&mut server, "start once with --tidepool-start-empty");
    server.set_args(vec![home(&mount.join("engine")), "--tidepool-start-empty".into()]);
    server.launch().expect("it starts empty");
    run(&mut server.connect_to("test"), &["DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)"]);
    server.stop();
    server.set_args(vec![home(&mount.join("engine"))]);
    server.launch().expect("the directory is there now");
    assert_eq!(number(&mut server.connect_to("test"), "SELECT COUNT(*) FROM t"), 0);
}

#[test]
fn a_path_with_a_typo_or_with_other_files_is_refused_and_nothing_is_made_there() {
    let mut server = Server::create(Options::new("foreign").engine(Engine::Tidepool));
    let dir = server.dir().join("volume");
    server.set_args(vec![home(&dir.join("tidepool/engine"))]);
    refuses_to_start(&mut server, "is the path right, and the file system mounted?");
    assert!(!dir.exists());
    fs::create_dir(&dir).expect("a directory");
    refuses_to_start(&mut server, "is the path right, and the file system mounted?");
    assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 0);

    fs::create_dir_all(dir.join("tidepool/engine/lost+found")).expect("directories");
    let foreign = dir.join("tidepool/engine/letter.txt");
    fs::write(&foreign, "dear").expect("a file");
    refuses_to_start(&mut server, "letter.txt: this file is not Tidepool's");
    let there = fs::read_dir(dir.join("tidepool/engine")).expect("a directory");
    let mut names: Vec<_> = there.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["letter.txt", "lost+found"]);
    fs::remove_file(foreign).expect("it can be removed");
    server.launch().expect("it starts in an empty file system");
}
