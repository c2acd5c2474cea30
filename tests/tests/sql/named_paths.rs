//! Variables that name a path: who may set them, and where no file is made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};

/// Those whose value is a path that the server makes something at. (`tidepool_data_home_dir` can't
/// be set by a statement.)
const VARIABLES: [&str; 2] = ["tidepool_page_trace_file", "tidepool_backup_to"];

fn set(variable: &str, path: &Path) -> String {
    format!("SET GLOBAL {variable} = '{}'", path.display())
}

/// The error's text.
fn refused(conn: &mut Conn, statement: &str) -> String {
    match conn.query_drop(statement) {
        Err(mysql::Error::MySqlError(error)) => error.message,
        other => panic!("{statement}: {other:?}"),
    }
}

fn value(conn: &mut Conn, variable: &str) -> Option<String> {
    conn.query_first::<Option<String>, _>(format!("SELECT @@{variable}")).expect("a row").flatten()
}

/// All paths below a directory.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        found.push(path.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn a_path_takes_the_privilege_file_and_leads_to_no_directory_of_the_server() {
    let options = Options::new("named_paths").engine(Engine::Tidepool);
    let mut server = Server::create(options);
    let dir = server.dir().to_path_buf();
    let home = dir.join("engine");
    server.set_args(vec![
        format!("--tidepool-data-home-dir={}", home.display()),
        "--tidepool-buffer-pool-dump-at-shutdown=OFF".into(),
    ]);
    server.launch().expect("it starts");
    let mut conn = server.connect_to("test");
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY)").expect("a table");
    for statement in ["CREATE USER someone@localhost", "GRANT SUPER ON *.* TO someone@localhost"] {
        conn.query_drop(statement).expect(statement);
    }
    let (data, outside) = (server.data_dir(), dir.join("outside"));
    fs::create_dir(&outside).expect("a directory");
    symlink(&data, outside.join("to_data")).expect("a link");
    symlink(&home, outside.join("to_engine")).expect("a link");
    symlink(outside.join("nothing"), outside.join("dangling")).expect("a link");
    fs::write(outside.join("file"), "precious").expect("a file");
    let trees = || [&data, &home, &outside].map(|dir| tree(dir)).concat();
    let before = trees();
    for variable in VARIABLES {
        // Who has SUPER alone.
        let allowed = set(variable, &outside.join("new"));
        let said = server.client("CLIENT").args(["--user=someone", "-e", &allowed]).output();
        let said = String::from_utf8(said.expect("the client can be run").stderr).expect("text");
        assert!(said.contains("privilege(s) for this operation"), "{variable}: {said}");
        assert!(said.contains("FILE"), "{variable}: {said}");

        for (path, why) in [
            (Path::new("new").to_path_buf(), "is no absolute path"),
            (Path::new("./test/new.frm").to_path_buf(), "is no absolute path"),
            (data.clone(), "in the server's data directory"),
            (data.join("new"), "in the server's data directory"),
            (data.join("test/new.frm"), "in the server's data directory"),
            (outside.join("../data/test/new.frm"), "in the server's data directory"),
            (outside.join("to_data/test/new.frm"), "in the server's data directory"),
            (outside.join("to_data"), "in the server's data directory"),
            (home.join("tables/00000011.tpd"), "in the server's data directory"),
            (outside.join("to_engine/tables/00000011.tpd"), "in the server's data directory"),
            (outside.join("missing/../../data/test/new.frm"), "in no directory that exists"),
            (outside.join("missing/new"), "in no directory that exists"),
            (outside.join("missing/.."), "in no directory that exists"),
        ] {
            let said = refused(&mut conn, &set(variable, &path));
            assert!(said.starts_with(variable), "{said}");
            assert!(said.contains(why), "{variable} = {}: {said}", path.display());
        }
        for there in ["file", "dangling"] {
            let said = refused(&mut conn, &set(variable, &outside.join(there)));
            assert!(said.contains(there), "{variable}: {said}");
        }
        assert_eq!(value(&mut conn, variable).unwrap_or_default(), "");
    }
    let mut made = trees();
    made.retain(|path| !before.contains(path));
    assert_eq!(made, [""; 0]);
    assert_eq!(fs::read(outside.join("file")).expect("a file"), b"precious");
    conn.query_drop("CREATE TABLE u (id INT PRIMARY KEY)").expect("the next table's file is free");

    // A trace goes on if the next one can't begin.
    let trace = outside.join("../outside/a.trace");
    conn.query_drop(set("tidepool_page_trace_file", &trace)).expect("a trace");
    let shown = fs::canonicalize(&trace).expect("it is there").display().to_string();
    let said = refused(&mut conn, &set("tidepool_page_trace_file", &outside.join("file")));
    assert!(said.contains("no page trace is recorded"), "{said}");
    assert!(said.contains("File exists"), "{said}");
    assert_eq!(value(&mut conn, "tidepool_page_trace_file"), Some(shown));
    conn.query_drop(set("tidepool_page_trace_file", &outside.join("b.trace"))).expect("a trace");
    conn.query_drop("SET GLOBAL tidepool_page_trace_file = DEFAULT").expect("its end");
    assert_eq!(value(&mut conn, "tidepool_page_trace_file"), None);
    conn.query_drop(set("tidepool_backup_to", &outside.join("backup"))).expect("a backup");
    assert!(outside.join("backup/tidepool/redo/control").exists());

    // The server reads the base of an incremental backup for the session.
    for (path, why) in [
        (Path::new("backup").to_path_buf(), "is no absolute path"),
        (data.clone(), "in the server's data directory"),
        (outside.join("to_data"), "in the server's data directory"),
        (outside.join("to_data/test"), "in the server's data directory"),
        (home.clone(), "in the server's data directory"),
        (outside.join("missing/backup"), "in no directory that exists"),
    ] {
        let said = refused_base(&mut conn, &path, &outside.join("next"));
        assert!(said.starts_with("tidepool_backup_incremental_from"), "{said}");
        assert!(said.contains(why), "{}: {said}", path.display());
    }
    assert!(!outside.join("next").exists());
    conn.query_drop(set_base(&outside.join("backup"))).expect("a base");
    conn.query_drop(set("tidepool_backup_to", &outside.join("next"))).expect("a backup");
    assert!(outside.join("next/tidepool/redo/control").exists());
}

fn set_base(path: &Path) -> String {
    format!("SET SESSION tidepool_backup_incremental_from = '{}'", path.display())
}

/// The error's text of a backup that is based on the one there.
fn refused_base(conn: &mut Conn, base: &Path, to: &Path) -> String {
    match conn.query_drop(set_base(base)) {
        Ok(()) => refused(conn, &set("tidepool_backup_to", to)),
        Err(error) => error.to_string(),
    }
}

#[test]
fn paths_keep_to_secure_file_priv() {
    let options = Options::new("secure_paths").engine(Engine::Tidepool);
    let mut server = Server::create(options);
    let (allowed, other) = (server.dir().join("allowed"), server.dir().join("other"));
    for dir in [&allowed, &other] {
        fs::create_dir(dir).expect("a directory");
    }
    symlink(&other, allowed.join("out")).expect("a link");
    server.set_args(vec![format!("--secure-file-priv={}", allowed.display())]);
    server.launch().expect("it starts");
    let mut conn = server.connect();
    for variable in VARIABLES {
        for path in [other.join("new"), allowed.join("../other/new"), allowed.join("out/new")] {
            let said = refused(&mut conn, &set(variable, &path));
            assert!(said.contains("--secure-file-priv"), "{variable} = {}: {said}", path.display());
        }
        conn.query_drop(set(variable, &allowed.join(variable))).expect(variable);
    }
    for base in [other.join("base"), allowed.join("../other/base"), allowed.join("out/base")] {
        let said = refused_base(&mut conn, &base, &allowed.join("next"));
        assert!(said.contains("--secure-file-priv"), "{}: {said}", base.display());
    }
    conn.query_drop(set_base(&allowed.join("tidepool_backup_to"))).expect("a base");
    conn.query_drop(set("tidepool_backup_to", &allowed.join("next"))).expect("a backup");
    assert_eq!(tree(&other), [""; 0]);
}

/// Where the option stays in a file of options, the second start finds the first one's trace.
#[test]
fn a_trace_that_can_not_be_recorded_from_the_start_on_is_an_error_in_the_log() {
    let mut server = Server::create(Options::new("trace_option").engine(Engine::Tidepool));
    let trace = server.dir().join("a.trace");
    server.set_args(vec![format!("--tidepool-page-trace-file={}", trace.display())]);
    server.launch().expect("it starts");
    let shown = value(&mut server.connect(), "tidepool_page_trace_file");
    assert_eq!(shown, Some(fs::canonicalize(&trace).expect("it is there").display().to_string()));
    server.restart();
    assert_eq!(value(&mut server.connect(), "tidepool_page_trace_file"), None);
    let recorded = "[ERROR] Tidepool: tidepool_page_trace_file: no page trace is recorded: ";
    let log = server.error_log();
    let line = log.lines().find(|line| line.contains(recorded)).expect("a line");
    assert!(line.contains("File exists"), "{line}");

    let evil = server.data_dir().join("test/evil.frm");
    server.restart_with(&[&format!("--tidepool-page-trace-file={}", evil.display())]);
    assert!(!evil.exists());
    let log = server.error_log();
    let line = log.lines().rfind(|line| line.contains(recorded)).expect("a line");
    assert!(line.contains("is in the server's data directory"), "{line}");
}
