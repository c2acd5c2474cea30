//! Rows of one table on several Tidepool servers, by MariaDB's Spider engine. The steps are those
//! of `docs/operations/sharding.md`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server, connect_to_socket, free_port, wait_until};
use tidepool_tests::sql::{check, number, rows, run};

/// Rows of each node.
const ROWS: u64 = 500;

/// A server that holds a part of the rows. Spider knows the members of a transaction by their host,
/// so each has another address.
struct Shard {
    server: Server,
    number: u64,
    port: u16,
}

impl Shard {
    fn start(number: u64) -> Shard {
        let port = free_port();
        let options = Options::new(&format!("shard{number}"))
            .arg("--skip-networking=0")
            .arg(format!("--bind-address={}", host(number)))
            .arg(format!("--port={port}"));
        let server = Server::start(options);
        run(
            &mut server.connect(),
            &[
                "CREATE DATABASE shop",
                "CREATE TABLE shop.account (id BIGINT NOT NULL, owner INT NOT NULL,
                     balance BIGINT NOT NULL, PRIMARY KEY (id), KEY (owner))",
                // All addresses of this machine have that name.
                "CREATE USER spider@localhost IDENTIFIED BY 'x'",
                "GRANT ALL ON shop.* TO spider@localhost",
            ],
        );
        Shard { server, number, port }
    }

    fn prepared(&self) -> Vec<String> {
        let query = "XA RECOVER FORMAT='SQL'";
        let found: Vec<(i64, i64, i64, String)> =
            self.server.connect().query(query).expect("a list");
        found.into_iter().map(|(.., xid)| xid).collect()
    }
}

fn host(number: u64) -> String {
    format!("127.0.0.{}", 10 + number)
}

/// Whether this machine's server has the plugin.
fn is_spider_there() -> bool {
    Environment::get().path("STOCK_PLUGIN_DIR").join("ha_spider.so").exists()
}

/// A server without rows, whose table leads to those of the shards.
fn front(shards: &[&Shard]) -> Server {
    let plugins = Environment::get().path("STOCK_PLUGIN_DIR");
    let options = Options::new("front")
        .engine(Engine::InnoDb)
        .arg(format!("--plugin-dir={}", plugins.display()))
        .args(["--plugin-load-add=ha_spider.so", "--spider-internal-xa=ON"])
        // Aria has what Spider knows about transactions.
        .arg("--aria-recover-options=BACKUP,QUICK");
    let server = Server::start(options);
    let mut conn = server.connect();
    wait_until(Duration::from_secs(30), "Spider's tables", || {
        number(
            &mut conn,
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'spider_xa'",
        ) == 1
    });
    run(&mut conn, &["CREATE DATABASE shop", "USE shop"]);
    shards.iter().for_each(|shard| add_server(&mut conn, shard));
    let partitions: Vec<String> = shards
        .iter()
        .map(|shard| {
            let (n, end) = (shard.number, shard.number * ROWS);
            format!("PARTITION p{n} VALUES LESS THAN ({end}) COMMENT = 'srv \"node{n}\"'")
        })
        .collect();
    run(
        &mut conn,
        &[&format!(
            "CREATE TABLE account (id BIGINT NOT NULL, owner INT NOT NULL, balance BIGINT NOT NULL,
                 PRIMARY KEY (id), KEY (owner))
             ENGINE = Spider COMMENT = 'wrapper \"mysql\", table \"account\"'
             PARTITION BY RANGE (id) ({})",
            partitions.join(", ")
        )],
    );
    server
}

fn add_server(conn: &mut Conn, shard: &Shard) {
    let (n, port) = (shard.number, shard.port);
    let create = format!(
        "CREATE SERVER node{n} FOREIGN DATA WRAPPER mysql
         OPTIONS (HOST '{}', PORT {port}, DATABASE 'shop', USER 'spider', PASSWORD 'x')",
        host(n)
    );
    run(conn, &[&create]);
}

/// All rows of the shards, which must be those that the front has.
fn all_rows(front: &Server, shards: &[&Shard]) -> Vec<String> {
    let query = "SELECT id, owner, balance FROM shop.account ORDER BY id";
    let mut found = Vec::new();
    for shard in shards {
        let mut conn = shard.server.connect_to("shop");
        check(&mut conn, "account");
        found.extend(rows(&mut conn, query));
    }
    assert_eq!(rows(&mut front.connect(), query), found);
    found
}

fn sum(shards: &[&Shard]) -> i64 {
    let query = "SELECT CAST(SUM(balance) AS SIGNED) FROM shop.account";
    shards.iter().map(|shard| number(&mut shard.server.connect(), query)).sum()
}

/// Ends what a lost node has left prepared, as the front has decided: it notes a decision to commit
/// before the first node commits.
fn resolve(front: &Server, shards: &[&Shard]) -> (u32, u32) {
    let decided = "SELECT HEX(LEFT(data, gtrid_length + bqual_length))
                   FROM mysql.spider_xa WHERE status = 'COMMIT'";
    let decided: Vec<String> = front.connect().query(decided).expect("decisions");
    let (mut committed, mut rolled_back) = (0, 0);
    for shard in shards {
        let found: Vec<(i64, usize, usize, Vec<u8>)> =
            shard.server.connect().query("XA RECOVER").expect("a list");
        for (format, gtrid, bqual, data) in found {
            let hex: String = data.iter().map(|byte| format!("{byte:02X}")).collect();
            let (gtrid, bqual) = (&hex[..2 * gtrid], &hex[2 * gtrid..2 * (gtrid + bqual)]);
            let verb = if decided.contains(&hex) { "COMMIT" } else { "ROLLBACK" };
            *(if verb == "COMMIT" { &mut committed } else { &mut rolled_back }) += 1;
            run(
                &mut shard.server.connect(),
                &[&format!("XA {verb} X'{gtrid}', X'{bqual}', {format}")],
            );
        }
    }
    (committed, rolled_back)
}

#[test]
fn rows_on_several_nodes_change_together_or_not_at_all() {
    if !is_spider_there() {
        tidepool_skip::skip("the server's packages have no Spider");
        return;
    }
    let (one, mut two) = (Shard::start(1), Shard::start(2));
    let front = front(&[&one, &two]);
    let mut conn = front.connect_to("shop");
    let last = 2 * ROWS - 1;
    run(
        &mut conn,
        &[&format!("INSERT INTO account SELECT seq, seq % 10, 100 FROM seq_1_to_{last}")],
    );
    let total = 100 * last as i64;
    assert_eq!(all_rows(&front, &[&one, &two]).len() as u64, last);

    // A node dies between the two phases.
    let transfer = |conn: &mut Conn, xid: &str| {
        run(
            conn,
            &[
                &format!("XA START '{xid}'"),
                "UPDATE account SET balance = balance - 7 WHERE id = 5",
                "UPDATE account SET balance = balance + 7 WHERE id = 900",
                &format!("XA END '{xid}'"),
                &format!("XA PREPARE '{xid}'"),
            ],
        );
    };
    transfer(&mut conn, "both");
    two.server.kill9();
    let answer = conn.query_drop("XA COMMIT 'both'");
    assert!(answer.is_err(), "the client learns that a node is missing");
    two.server.restart();
    assert_eq!((one.prepared().len(), two.prepared().len()), (0, 1), "half is done");
    assert_eq!(resolve(&front, &[&one, &two]), (1, 0), "the front had decided to commit");
    assert_eq!(sum(&[&one, &two]), total);

    // The rows that were not on the lost node can be had all the while.
    two.server.kill9();
    let mut conn = front.connect_to("shop");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM account WHERE id < 400"), 399);
    let all = conn.query::<i64, _>("SELECT SUM(balance) FROM account");
    assert!(all.is_err(), "node 2 is lost");
    two.server.restart();
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM account"), last as i64);

    joins_are_pushed_down(&front, &one);
    writers_and_kills(&front, &one, &mut two, total);
    add_a_node(&front, &one, &two, last);
}

/// Sessions move money between the nodes while one of them is killed again and again.
fn writers_and_kills(front: &Server, one: &Shard, two: &mut Shard, total: i64) {
    let (commits, in_doubt) = (AtomicU64::new(0), AtomicU64::new(0));
    for round in 0..2 {
        let stop = AtomicBool::new(false);
        let (commits, in_doubt, stop_flag) = (&commits, &in_doubt, &stop);
        thread::scope(|scope| {
            for writer in 0..3_u64 {
                let socket = front.socket().to_path_buf();
                scope.spawn(move || {
                    let mut n = round * 1000 + writer;
                    while !stop_flag.load(Ordering::Relaxed) {
                        let Ok(mut conn) = connect_to_socket(&socket, "shop") else { continue };
                        while !stop_flag.load(Ordering::Relaxed) {
                            n += 3;
                            // Each writer keeps to its rows.
                            let from = 3 * (n % 150) + writer + 1;
                            let to = from + ROWS;
                            let moved = ["BEGIN".to_owned(), book(from, -3), book(to, 3)];
                            if moved.iter().any(|statement| conn.query_drop(statement).is_err()) {
                                break;
                            }
                            if conn.query_drop("COMMIT").is_err() {
                                in_doubt.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            commits.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let before = commits.load(Ordering::Relaxed);
            let since = Instant::now();
            while commits.load(Ordering::Relaxed) < before + 40 && since.elapsed().as_secs() < 30 {
                thread::sleep(Duration::from_millis(5));
            }
            two.server.kill9();
            stop.store(true, Ordering::Relaxed);
        });
        two.server.restart();
        let resolved = resolve(front, &[one, two]);
        println!("{commits:?} commits, {in_doubt:?} in doubt, ended by hand: {resolved:?}");
        assert_eq!(sum(&[one, two]), total, "a transfer is there by half");
    }
    assert!(commits.load(Ordering::Relaxed) > 60, "hardly anything ran");
}

fn book(account: u64, amount: i64) -> String {
    format!("UPDATE account SET balance = balance + {amount} WHERE id = {account}")
}

/// The upper half of the second node's rows moves to a third. REORGANIZE PARTITION of a Spider
/// table changes where the front looks for rows, and moves none.
fn add_a_node(front: &Server, one: &Shard, two: &Shard, last: u64) {
    let three = Shard::start(3);
    let mut conn = front.connect_to("shop");
    add_server(&mut conn, &three);
    let before = all_rows(front, &[one, two]);
    let (from, end) = (ROWS + ROWS / 2, 2 * ROWS);
    // Its rows can be read, and don't change.
    run(&mut two.server.connect(), &["SET GLOBAL read_only = ON"]);
    let refused = conn.query_drop("UPDATE account SET balance = 0 WHERE id = 999");
    assert!(refused.is_err(), "the node takes no writes of the front");
    run(
        &mut conn,
        &[
            "CREATE TABLE moving (id BIGINT NOT NULL, owner INT NOT NULL, balance BIGINT NOT NULL,
                 PRIMARY KEY (id), KEY (owner))
             ENGINE = Spider COMMENT = 'wrapper \"mysql\", srv \"node3\", table \"account\"'",
            &format!("INSERT INTO moving SELECT * FROM account WHERE id >= {from}"),
            &format!(
                "ALTER TABLE account REORGANIZE PARTITION p2 INTO (
                     PARTITION p2 VALUES LESS THAN ({from}) COMMENT = 'srv \"node2\"',
                     PARTITION p3 VALUES LESS THAN ({end}) COMMENT = 'srv \"node3\"')"
            ),
            "DROP TABLE moving",
        ],
    );
    let delete = format!("DELETE FROM shop.account WHERE id >= {from}");
    run(&mut two.server.connect(), &[&delete, "SET GLOBAL read_only = OFF"]);
    assert_eq!(all_rows(front, &[one, two, &three]), before);
    let there = number(&mut three.server.connect(), "SELECT COUNT(*) FROM shop.account");
    assert_eq!(there as u64, last + 1 - from);
    run(&mut conn, &["UPDATE account SET balance = balance + 1 WHERE id = 999"]);
    let balance = "SELECT balance FROM shop.account WHERE id = 999";
    assert_eq!(rows(&mut three.server.connect(), balance), rows(&mut front.connect(), balance));
}

/// A join of tables that are on one node is that node's; so is a sum.
fn joins_are_pushed_down(front: &Server, one: &Shard) {
    let mut node = one.server.connect_to("shop");
    let columns = "id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(20) NOT NULL";
    run(
        &mut node,
        &[
            &format!("CREATE TABLE owner ({columns})"),
            "INSERT INTO owner SELECT seq, CONCAT('owner ', seq) FROM seq_0_to_9",
            "CREATE TABLE purse LIKE account",
            "INSERT INTO purse SELECT seq, seq % 10, seq FROM seq_1_to_200",
            "SET GLOBAL log_output = 'TABLE'",
            "SET GLOBAL general_log = ON",
        ],
    );
    let mut conn = front.connect_to("shop");
    run(
        &mut conn,
        &[
            &format!(
                "CREATE TABLE owner ({columns}) ENGINE = Spider
                 COMMENT = 'wrapper \"mysql\", srv \"node1\", table \"owner\"'"
            ),
            "CREATE TABLE purse (id BIGINT NOT NULL, owner INT NOT NULL, balance BIGINT NOT NULL,
                 PRIMARY KEY (id), KEY (owner))
             ENGINE = Spider COMMENT = 'wrapper \"mysql\", srv \"node1\", table \"purse\"'",
        ],
    );
    let query =
        "SELECT owner.name, SUM(purse.balance) FROM owner JOIN purse ON purse.owner = owner.id
                 GROUP BY owner.name ORDER BY owner.name";
    assert_eq!(rows(&mut conn, query), rows(&mut node, query));
    let pushed = "SELECT COUNT(*) FROM mysql.general_log WHERE user_host LIKE 'spider%'
                  AND argument LIKE '%`owner`%' AND argument LIKE '%`purse`%'
                  AND argument LIKE '%sum(%'";
    assert_eq!(number(&mut node, pushed), 1, "the node did the join");
    run(&mut node, &["SET GLOBAL general_log = OFF"]);
}
