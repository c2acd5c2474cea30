//! `docs/operations/replication.md`, step by step, with rows that change between the steps and are
//! the same on all servers after each.

use std::fs;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use tidepool_tests::bank::{self, Bank};
use tidepool_tests::guide::Guide;
use tidepool_tests::server::{Engine, Options, Server, free_port};
use tidepool_tests::sql::{check, number, rows, run};

const FROM_BACKUP: &str = "A replica from a backup";
const FAILOVER: &str = "Failover";
const SWITCH: &str = "A planned switch";
const DELAYED: &str = "A delayed replica";
const MOVE: &str = "From InnoDB to Tidepool, and back";

/// Adds a server that has the page's options, and is not started.
fn create(guide: &mut Guide, name: &'static str, engine: Engine) {
    let port = free_port();
    let id = name.trim_start_matches("db");
    let mut options = Options::new(&format!("guide_{name}"))
        .engine(Engine::Tidepool)
        .args(["--skip-networking=0", "--bind-address=127.0.0.1"])
        .arg(format!("--port={port}"));
    options.args.extend(guide.options());
    options.args.push(format!("--server-id={id}"));
    options.args.push(format!("--default-storage-engine={}", engine.name()));
    guide.servers.insert(name, (Server::create(options), port));
}

fn launch(guide: &mut Guide, name: &'static str) {
    let server = &mut guide.servers.get_mut(name).expect("it was made").0;
    server.launch().unwrap_or_else(|error| panic!("{name}: {error}"));
    // mariadb-secure-installation removes it; it would come before accounts of any host.
    run(&mut server.connect(), &["SET sql_log_bin = 0", "DROP USER IF EXISTS ''@localhost"]);
}

fn text(server: &Server, query: &str) -> String {
    server.connect().query_first(query).expect("a value").expect("a row")
}

fn received(server: &Server) -> String {
    let row: Option<mysql::Row> = server.connect().query_first("SHOW SLAVE STATUS").expect("a row");
    row.and_then(|mut row| row.take("Gtid_IO_Pos")).expect("a position")
}

/// Waits until the replicas have what the primary has, and compares all rows of all tables.
fn compare(guide: &Guide, primary: &str, replicas: &[&str]) {
    let end = text(guide.server(primary), "SELECT @@gtid_binlog_pos");
    let mut here = guide.server(primary).connect();
    let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables
                  WHERE table_schema IN ('bank', 'shop') ORDER BY 1";
    let names: Vec<String> = here.query(tables).expect("names");
    assert!(!names.is_empty());
    for replica in replicas {
        let mut there = guide.server(replica).connect();
        let wait = format!("SELECT MASTER_GTID_WAIT('{end}', 60)");
        assert_eq!(number(&mut there, &wait), 0, "{:?}", rows(&mut there, "SHOW SLAVE STATUS"));
        assert_eq!(there.query::<String, _>(tables).expect("names"), names, "{replica}");
        for name in &names {
            let all = format!("SELECT * FROM {name} ORDER BY 1");
            assert!(rows(&mut there, &all) == rows(&mut here, &all), "{replica}: {name} differs");
            check(&mut there, name);
        }
    }
}

/// The value of a line of a backup's description.
fn place_of(guide: &Guide, backup: &str) -> String {
    let info = guide.backups.join(backup).join("tidepool_backup_info");
    let info = fs::read_to_string(info).expect("a backup has a description");
    let line = info.lines().find_map(|line| line.strip_prefix("gtid_binlog_pos = "));
    line.expect("a position").into()
}

#[test]
fn the_page_on_replication_is_right() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let backups = tempfile::tempdir().expect("a directory");
    let mut guide = Guide::open("operations/replication.md", backups.path());
    create(&mut guide, "db1", Engine::Tidepool);
    launch(&mut guide, "db1");
    let mut bank = Bank::open(guide.server("db1"), "");
    guide.step(FROM_BACKUP, "db1");
    bank.wait_for_commits(100);
    guide.values.insert("gtid_binlog_pos", place_of(&guide, "monday"));
    create(&mut guide, "db2", Engine::Tidepool);
    create(&mut guide, "db3", Engine::Tidepool);
    guide.step(FROM_BACKUP, "db2");
    launch(&mut guide, "db2");
    guide.step(FROM_BACKUP, "db2");
    guide.step(FROM_BACKUP, "db2");
    // The same again, as the page says.
    guide.again(FROM_BACKUP, "db2", "db3", 0);
    launch(&mut guide, "db3");
    guide.again(FROM_BACKUP, "db2", "db3", 1);
    guide.again(FROM_BACKUP, "db2", "db3", 2);
    bank.wait_for_commits(100);
    bank.close();
    compare(&guide, "db1", &["db2", "db3"]);
    let clients = guide.step(FROM_BACKUP, "db1");
    assert!(clients.contains('2'), "{clients}");
    let position_table = "SELECT engine FROM information_schema.tables
                          WHERE table_schema = 'mysql' AND table_name = 'gtid_slave_pos_Tidepool'";
    assert_eq!(text(guide.server("db2"), position_table), "Tidepool");

    fail_over(&mut guide);
    switch(&mut guide);
    delay(&mut guide);
    point_in_time(&mut guide);
    from_innodb_and_back(&mut guide);
    guide.end();
}

fn fail_over(guide: &mut Guide) {
    guide.servers.get_mut("db1").expect("a server").0.kill9();
    for replica in ["db2", "db3"] {
        run(&mut guide.server(replica).connect(), &["STOP SLAVE IO_THREAD"]);
        guide.values.insert("Gtid_IO_Pos", received(guide.server(replica)));
        guide.step(FAILOVER, replica);
    }
    guide.step(FAILOVER, "db2");
    guide.step(FAILOVER, "db3");
    let change = "UPDATE bank.checking SET balance = balance + 1 WHERE id = 1";
    let back = "UPDATE bank.saving SET balance = balance - 1 WHERE id = 1";
    run(&mut guide.server("db2").connect(), &["BEGIN", change, back, "COMMIT"]);
    let old = &mut guide.servers.get_mut("db1").expect("a server").0;
    let mut args = old.options().args.clone();
    args.push("--init-rpl-role=SLAVE".into());
    old.set_args(args);
    launch(guide, "db1");
    guide.step("The old primary returns", "db1");
    compare(guide, "db2", &["db1", "db3"]);
    assert_eq!(bank::total(guide.server("db1"), "bank"), bank::TOTAL);
}

fn switch(guide: &mut Guide) {
    guide.step(SWITCH, "db2");
    let end = text(guide.server("db2"), "SELECT @@gtid_binlog_pos");
    guide.values.insert("gtid_binlog_pos", end);
    for server in ["db1", "db2", "db3"] {
        guide.step(SWITCH, server);
    }
    run(&mut guide.server("db1").connect(), &["UPDATE bank.checking SET pad = 'x' WHERE id < 100"]);
    compare(guide, "db1", &["db2", "db3"]);
}

fn delay(guide: &mut Guide) {
    let mut primary = guide.server("db1").connect();
    run(
        &mut primary,
        &["CREATE DATABASE shop", "USE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)"],
    );
    compare(guide, "db1", &["db2", "db3"]);
    guide.step(DELAYED, "db3");
    let begun = Instant::now();
    run(&mut primary, &["INSERT INTO shop.orders SELECT seq FROM seq_1_to_500"]);
    let good = text(guide.server("db1"), "SELECT @@gtid_binlog_pos");
    let before = rows(&mut primary, "SELECT * FROM shop.orders");
    // Backups and logs from before the mistake are what the next section needs.
    let backup = guide.backups.join("tuesday");
    run(&mut primary, &[&format!("SET GLOBAL tidepool_backup_to = '{}'", backup.display())]);
    run(&mut primary, &["UPDATE bank.saving SET pad = 'late' WHERE id < 50"]);
    let last_good = text(guide.server("db1"), "SELECT @@gtid_binlog_pos");
    run(&mut primary, &["DROP TABLE shop.orders"]);
    guide.values.insert("the last good transaction", good);
    // The other replica has the mistake at once.
    let end = text(guide.server("db1"), "SELECT @@gtid_binlog_pos");
    let mut other = guide.server("db2").connect();
    assert_eq!(number(&mut other, &format!("SELECT MASTER_GTID_WAIT('{end}', 60)")), 0);
    assert!(other.query_drop("SELECT * FROM shop.orders").is_err());
    assert_eq!(number(&mut guide.server("db3").connect(), "SELECT COUNT(*) FROM shop.orders"), 0);
    assert!(begun.elapsed() < Duration::from_secs(3000));
    guide.step(DELAYED, "db3");
    guide.step(DELAYED, "db3");
    assert_eq!(rows(&mut primary, "SELECT * FROM shop.orders"), before);
    guide.values.insert("the last good transaction", last_good);
    run(&mut guide.server("db3").connect(), &["START SLAVE"]);
    compare(guide, "db1", &["db2", "db3"]);
}

fn point_in_time(guide: &mut Guide) {
    let logs = guide.backups.join("binlogs");
    fs::create_dir(&logs).expect("a directory");
    for entry in fs::read_dir(guide.server("db1").data_dir()).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with("binlog.0") {
            fs::copy(entry.path(), logs.join(entry.file_name())).expect("a log can be copied");
        }
    }
    guide.values.insert("gtid_binlog_pos", place_of(guide, "tuesday"));
    create(guide, "db4", Engine::Tidepool);
    let data_dir = guide.server("db4").data_dir();
    tidepool_tests::cluster::node::lay_over(&guide.backups.join("tuesday"), &data_dir);
    launch(guide, "db4");
    guide.step("A point in time", "db4");
    let mut there = guide.server("db4").connect();
    assert_eq!(number(&mut there, "SELECT COUNT(*) FROM shop.orders"), 500);
    let late = "SELECT * FROM bank.saving ORDER BY id";
    assert_eq!(rows(&mut there, late), rows(&mut guide.server("db1").connect(), late));
    assert_eq!(number(&mut there, "SELECT COUNT(*) FROM bank.saving WHERE pad = 'late'"), 50);
}

fn from_innodb_and_back(guide: &mut Guide) {
    for old in ["db1", "db2", "db3", "db4"] {
        guide.servers.remove(old);
    }
    create(guide, "db5", Engine::InnoDb);
    create(guide, "db6", Engine::Tidepool);
    launch(guide, "db5");
    launch(guide, "db6");
    let mut old = guide.server("db5").connect();
    run(
        &mut old,
        &[
            "SET GLOBAL read_only = OFF",
            "SET sql_log_bin = 0",
            "CREATE USER replica@'%' IDENTIFIED BY 'secret'",
            "GRANT REPLICATION SLAVE ON *.* TO replica@'%'",
            "SET sql_log_bin = 1",
            "CREATE DATABASE shop",
            "USE shop",
            "CREATE TABLE customer (id INT PRIMARY KEY, name VARCHAR(50), KEY (name))",
            "CREATE TABLE purchase (id INT PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL,
                 at DATETIME(3), what TEXT,
                 FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE)",
            "INSERT INTO customer SELECT seq, CONCAT('name ', seq % 17) FROM seq_1_to_200",
            "INSERT INTO purchase (customer, at, what)
             SELECT 1 + seq % 200, NOW(3), REPEAT(seq, 30) FROM seq_1_to_1000",
            // A row is no definition.
            "INSERT INTO purchase (customer, at, what) VALUES (1, NOW(3), 'a) ENGINE=InnoDB')",
        ],
    );
    guide.step(MOVE, "db6");
    guide.step(MOVE, "db6");
    run(
        &mut old,
        &["DELETE FROM customer WHERE id % 9 = 0", "UPDATE purchase SET what = NULL WHERE id < 50"],
    );
    compare(guide, "db5", &["db6"]);
    let engines =
        "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'shop'";
    assert_eq!(text(guide.server("db6"), engines), "Tidepool");
    assert_eq!(text(guide.server("db5"), engines), "InnoDB");

    // There, and back, as in a planned switch.
    run(
        &mut guide.server("db6").connect(),
        &[
            "SET sql_log_bin = 0",
            "GRANT REPLICATION SLAVE ON *.* TO replica@'%' IDENTIFIED BY 'secret'",
        ],
    );
    for (from, to) in [("db5", "db6"), ("db6", "db5")] {
        run(&mut guide.server(from).connect(), &["SET GLOBAL read_only = ON"]);
        let end = text(guide.server(from), "SELECT @@gtid_binlog_pos");
        let mut new = guide.server(to).connect();
        assert_eq!(number(&mut new, &format!("SELECT MASTER_GTID_WAIT('{end}', 60)")), 0);
        run(&mut new, &["STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF"]);
        let port = guide.servers[to].1;
        run(
            &mut guide.server(from).connect(),
            &[
                "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos",
                &format!(
                    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port},
                     MASTER_USER = 'replica', MASTER_PASSWORD = 'secret',
                     MASTER_USE_GTID = slave_pos"
                ),
                "START SLAVE",
            ],
        );
        run(
            &mut new,
            &[
                "USE shop",
                "UPDATE shop.purchase SET what = CONCAT(id, ' again') WHERE id % 5 = 0",
                "DELETE FROM shop.customer WHERE id % 11 = 0",
                "INSERT INTO shop.customer SELECT seq, 'late' FROM seq_300_to_320
                 ON DUPLICATE KEY UPDATE name = 'twice'",
            ],
        );
        compare(guide, to, &[from]);
    }
}
