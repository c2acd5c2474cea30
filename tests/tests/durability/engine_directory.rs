//! Where the engine's files are not: a file system that is not mounted, a path with a typo, a
//! directory of something else.

use std::fs;
use std::path::Path;

use tidepool_tests::environment::Environment;
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

/// It would settle what was only prepared in the last run with the other engines alone.
#[test]
fn a_server_whose_default_is_another_engine_does_not_start_without_this_one() {
    let mut server = Server::create(Options::new("mandatory").engine(Engine::Tidepool));
    let nowhere = home(&server.dir().join("nowhere/engine"));
    server.set_args(vec![nowhere.clone(), "--default-storage-engine=InnoDB".into()]);
    refuses_to_start(&mut server, "the server does not start without the engine");
    server.set_args(vec![
        nowhere,
        "--default-storage-engine=InnoDB".into(),
        "--tidepool=OFF".into(),
    ]);
    server.launch().expect("it starts without the engine");
}

/// The server begins its log for transactions over two engines at its start only.
#[test]
fn a_plugin_that_is_loaded_late_says_what_is_missing() {
    let mut server = Server::create(Options::new("loaded_late").engine(Engine::InnoDb));
    let dir = format!("--plugin-dir={}", Environment::get().plugin_dir().display());
    server.set_args(vec![dir.clone(), "--plugin-load-add=ha_tidepool.so".into()]);
    server.launch().expect("a start with the plugin");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=Tidepool",
            "XA START 'x'",
            "INSERT INTO t VALUES (1)",
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
    );
    drop(conn);
    server.kill9();
    server.set_args(vec![dir]);
    server.launch().expect("a start without the plugin");
    run(&mut server.connect(), &["INSTALL SONAME 'ha_tidepool'"]);
    let log = server.error_log();
    assert!(log.contains("restart the server before you use XA transactions"), "{log}");
    assert!(log.contains("1 transactions are prepared"), "{log}");
    server.restart();
    run(&mut server.connect(), &["XA COMMIT 'x'"]);
    assert_eq!(number(&mut server.connect_to("test"), "SELECT COUNT(*) FROM t"), 1);
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
