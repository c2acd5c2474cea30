//! Logging in to MySQL: `caching_sha2_password`, which is what it has, the socket's peer, and what
//! this program can't do.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use mysql::prelude::Queryable;
use serde_json::Value;

use super::mysql;
use crate::{stderr, tidepool};

/// `advise` as this user, with a password if there is one.
fn advise(command: &mut Command, user: &str, password: Option<&str>) -> Output {
    command.arg(format!("--user={user}")).args(["advise", "--json", "--interval=0.1"]);
    if let Some(password) = password {
        command.env("MYSQL_PWD", password);
    }
    command.output().unwrap()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn passwords_over_the_socket_and_over_loopback() {
    let port = format!("--port={}", free_port());
    let args = [
        "--skip-networking=OFF",
        "--bind-address=127.0.0.1",
        &port,
        "--innodb-buffer-pool-size=96M",
    ];
    let Some(server) = mysql("mysql-password", &args) else { return };
    let mut conn = server.connect();
    let over_tcp = || {
        let mut command = tidepool(Path::new("/nonexistent"));
        command.args(["--host=127.0.0.1", &port]);
        command
    };
    let by_port_alone = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
        command.args(["--defaults-file=/dev/null", &port]);
        command
    };
    for (name, place) in [("one", "tcp"), ("two", "socket"), ("three", "port")] {
        conn.query_drop(format!("CREATE USER {name} IDENTIFIED BY 'ri#ght'")).unwrap();
        let command = || match place {
            "tcp" => over_tcp(),
            "port" => by_port_alone(),
            _ => tidepool(server.socket()),
        };
        let output = advise(&mut command(), name, Some("wr0ng-secret"));
        assert_eq!(output.status.code(), Some(4), "{place}: {}", stderr(&output));
        assert!(!stderr(&output).contains("wr0ng-secret"));
        // The first time the server needs the password itself, then it has it in its cache.
        for _ in 0..2 {
            let output = advise(&mut command(), name, Some("ri#ght"));
            assert!(output.status.success(), "{place}: {}", stderr(&output));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let pid = report["facts"]["machine"]["pid"].as_u64();
            assert_eq!(pid, server.pid().map(u64::from), "{place}: the server's process is found");
        }
    }
    // An account, then a server, that wants what this program can't do.
    conn.query_drop("CREATE USER careful IDENTIFIED BY 'ri#ght' REQUIRE SSL").unwrap();
    let output = advise(&mut over_tcp(), "careful", Some("ri#ght"));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    conn.query_drop("SET GLOBAL require_secure_transport = ON").unwrap();
    let output = advise(&mut over_tcp(), "one", Some("ri#ght"));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("or the Unix socket"), "{}", stderr(&output));
    assert!(advise(&mut tidepool(server.socket()), "one", Some("ri#ght")).status.success());
}

#[test]
fn refusals_are_no_missing_servers() {
    let Some(server) = mysql("mysql-refusal", &["--innodb-buffer-pool-size=96M"]) else { return };
    let mut conn = server.connect();
    let why = |user: &str| {
        let output = advise(&mut tidepool(server.socket()), user, Some("ri#ght"));
        assert_eq!(output.status.code(), Some(4), "{user}: {}", stderr(&output));
        stderr(&output)
    };
    conn.query_drop("CREATE USER locked IDENTIFIED BY 'ri#ght' ACCOUNT LOCK").unwrap();
    assert!(why("locked").contains("locked"));
    conn.query_drop("CREATE USER expired IDENTIFIED BY 'ri#ght' PASSWORD EXPIRE").unwrap();
    assert!(why("expired").contains("expired"));
    // For names that are not there MySQL asks for one method or another, always the same for a
    // name.
    for name in ["anna", "bert", "carl", "dora", "emil", "fritz", "gerd", "hanna"] {
        let text = why(name);
        assert!(text.contains("Access denied") || text.contains("wrong names"), "{text}");
    }
}

#[test]
fn the_sockets_peer_is_proof_enough_where_the_account_says_so() {
    let Some(server) = mysql("mysql-peer", &["--innodb-buffer-pool-size=96M"]) else { return };
    let output = Command::new("id").arg("-un").output().unwrap();
    let me = String::from_utf8(output.stdout).unwrap();
    // As root's account is in the packages of Debian and Ubuntu.
    let mut conn = server.connect();
    conn.query_drop("INSTALL PLUGIN auth_socket SONAME 'auth_socket.so'").unwrap();
    let statement = format!("CREATE USER admin IDENTIFIED WITH auth_socket AS '{}'", me.trim());
    conn.query_drop(statement).unwrap();
    conn.query_drop("CREATE USER other IDENTIFIED WITH auth_socket AS 'someone-else'").unwrap();
    let output = advise(&mut tidepool(server.socket()), "admin", None);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(advise(&mut tidepool(server.socket()), "other", None).status.code(), Some(4));
}
