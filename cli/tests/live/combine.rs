//! Incremental backups of a real server, and `combine`, which makes a complete one of them.

use std::path::Path;
use std::process::{Command, Output};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};

use crate::{stderr, stdout};

/// The program, with nothing of a server.
fn combine(backups: &[&Path], to: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    command.arg("combine").args(backups).arg("--to").arg(to);
    command.output().unwrap()
}

fn back_up(conn: &mut Conn, dir: &Path, base: Option<&Path>) -> Result<(), String> {
    let base = base.map_or(String::new(), |base| base.display().to_string());
    conn.query_drop(format!("SET SESSION tidepool_backup_incremental_from = '{base}'")).unwrap();
    let statement = format!("SET GLOBAL tidepool_backup_to = '{}'", dir.display());
    conn.query_drop(statement).map_err(|error| error.to_string())
}

/// Bytes of the files of tables in a backup.
fn tables_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("tidepool/tables")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

const CONTENT: &str =
    "SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM test.t), (SELECT SUM(CRC32(v)) FROM test.t),
    (SELECT COUNT(*) FROM test.later), (SELECT SUM(id) FROM test.later))";

fn restore(name: &str, dir: &Path) -> Server {
    let mut server = Server::create(Options::new(name).engine(Engine::Tidepool));
    let copied = Command::new("cp").arg("-a").arg(dir.join(".")).arg(server.data_dir()).status();
    assert!(copied.unwrap().success());
    server.launch().unwrap();
    server
}

#[test]
fn incremental_backups_become_a_complete_one() {
    let mut server = Server::start(Options::new("combine").engine(Engine::Tidepool));
    let root = server.dir().to_path_buf();
    let dir = |name: &str| root.join(name);
    let (sunday, monday, tuesday) = (dir("sunday"), dir("monday"), dir("tuesday"));
    let (combined, wrong) = (dir("combined"), dir("wrong"));
    let mut conn = server.connect();
    for statement in [
        "CREATE DATABASE IF NOT EXISTS test",
        "USE test",
        "CREATE TABLE test.t (id INT PRIMARY KEY, v VARCHAR(400), KEY (v(20)))",
        "INSERT INTO test.t SELECT seq, CONCAT(seq, SHA2(seq, 512), SHA2(seq + 1, 512))
            FROM seq_1_to_40000",
        "CREATE TABLE test.gone (id INT PRIMARY KEY)",
    ] {
        conn.query_drop(statement).unwrap();
    }
    drop(conn);
    // A shutdown writes all pages to their files: until then a backup has them in its log.
    server.stop();
    server.launch().unwrap();
    let mut conn = server.connect_to("test");
    back_up(&mut conn, &sunday, None).unwrap();
    for statement in [
        "UPDATE test.t SET v = REVERSE(v) WHERE id BETWEEN 100 AND 300",
        "DROP TABLE test.gone",
        "CREATE TABLE test.later (id INT PRIMARY KEY AUTO_INCREMENT)",
        "INSERT INTO test.later SELECT NULL FROM seq_1_to_1000",
    ] {
        conn.query_drop(statement).unwrap();
    }
    drop(conn);
    server.stop();
    server.launch().unwrap();
    let mut conn = server.connect_to("test");
    back_up(&mut conn, &monday, Some(&sunday)).unwrap();
    let (whole, part) = (tables_bytes(&sunday), tables_bytes(&monday));
    println!("complete {whole} bytes, incremental {part}");
    assert!(part * 4 < whole, "{part} of {whole} bytes are in an increment of 1 % of the rows");
    // What was written and not durable at the time is another's by then.
    drop(conn);
    server.kill9();
    server.launch().unwrap();
    let mut conn = server.connect_to("test");
    conn.query_drop("DELETE FROM test.t WHERE id > 30000").unwrap();
    conn.query_drop("INSERT INTO test.later SELECT NULL FROM seq_1_to_5000").unwrap();
    back_up(&mut conn, &tuesday, Some(&monday)).unwrap();
    let content: String = conn.query_first(CONTENT).unwrap().unwrap();
    conn.query_drop("DELETE FROM test.later").unwrap();

    // Not what follows, and nothing that could be taken for a backup is left.
    for (backups, words) in [
        (vec![&*sunday, &*tuesday], "was not made since the one before it"),
        (vec![&*monday, &*tuesday], "begin with the complete backup"),
        (vec![&*sunday, &*sunday], "is complete"),
    ] {
        let output = combine(&backups, &wrong);
        assert_eq!(output.status.code(), Some(8), "{}", stdout(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert!(wrong.join("tidepool-backup-unfinished").exists());
        std::fs::remove_dir_all(&wrong).unwrap();
    }
    let mut within = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    within.arg("combine").arg(&sunday).args([".", "--to", "complete"]).current_dir(&monday);
    let within = within.output().unwrap();
    assert_eq!(within.status.code(), Some(2), "{}", stderr(&within));
    assert!(!monday.join("complete").exists(), "{}", stderr(&within));
    let check =
        |dir: &Path| Command::new(env!("CARGO_BIN_EXE_tidepool")).arg("check").arg(dir).output();
    let increment = check(&monday).unwrap();
    assert!(increment.status.success(), "{}", stdout(&increment));
    assert!(stdout(&increment).contains("an incremental backup"), "{}", stdout(&increment));
    let output = combine(&[&sunday, &monday, &tuesday], &combined);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("a complete backup, as of"), "{}", stdout(&output));
    let again = combine(&[&sunday], &combined);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let damage = check(&combined).unwrap();
    assert!(damage.status.success(), "{}", stdout(&damage));
    assert!(
        back_up(&mut conn, &wrong, Some(&dir("nowhere"))).unwrap_err().contains("nowhere"),
        "a base that does not exist"
    );
    // It is a base like any other, also after `check`.
    back_up(&mut conn, &wrong, Some(&combined)).unwrap();

    let restored = restore("combine-restored", &combined);
    let mut copy = restored.connect();
    assert_eq!(copy.query_first::<String, _>(CONTENT).unwrap().unwrap(), content);
    let gone = copy.query_drop("SELECT * FROM test.gone").unwrap_err().to_string();
    assert!(gone.contains("doesn't exist"), "{gone}");
    for table in ["t", "later"] {
        let check = format!("CHECK TABLE test.{table} EXTENDED");
        let row: (String, String, String, String) = copy.query_first(check).unwrap().unwrap();
        assert_eq!(row.3, "OK");
    }
    // Another server's backup is no base, and what was opened is no backup any more.
    let error = back_up(&mut copy, &restored.dir().join("next"), Some(&tuesday)).unwrap_err();
    assert!(error.contains("make a complete backup, and take that as the base"), "{error}");
    drop(copy);
    let data_dir = restored.data_dir().to_path_buf();
    assert!(!data_dir.join("tidepool/tidepool-backup-manifest").exists());
    drop(restored);
    // By itself it is none.
    let mut alone = Server::create(Options::new("combine-alone").engine(Engine::Tidepool));
    let copied = Command::new("cp").arg("-a").arg(tuesday.join(".")).arg(alone.data_dir()).status();
    assert!(copied.unwrap().success());
    let refused = alone.launch().map(|()| alone.connect().query_drop("SELECT * FROM test.t"));
    assert!(!matches!(refused, Ok(Ok(()))), "an incremental backup opens by itself");
}
