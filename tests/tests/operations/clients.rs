//! Real clients, unchanged: the `mariadb` command-line client, SQLAlchemy over PyMySQL, the MariaDB
//! JDBC driver.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output};

use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Options, Server, free_port};

fn clients() -> PathBuf {
    Environment::get().root().join("tests/clients")
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a client that judges by itself.
fn assert_succeeds(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{:?}: {e}; run scripts/deps --test", command.get_program()));
    let text = text_of(&output);
    println!("{text}");
    assert!(output.status.success(), "{text}");
}

#[test]
fn the_command_line_client() {
    let server = Server::start(Options::new("cli"));
    let script = File::open(clients().join("cli.sql")).expect("the script is there");
    let output = server
        .client("CLIENT")
        .args(["--default-character-set=utf8mb4", "--table"])
        .stdin(script)
        .output()
        .expect("the client can be run");
    let actual = text_of(&output);
    assert!(output.status.success(), "{actual}");
    let expected_file = clients().join("cli.expected");
    if std::env::var_os("TIDEPOOL_ACCEPT").is_some() {
        fs::write(&expected_file, &actual).expect("the expected output can be written");
    }
    let expected = fs::read_to_string(&expected_file).expect("the expected output is there");
    assert_eq!(actual, expected, "\n{actual}");
}

#[test]
fn sqlalchemy_over_pymysql() {
    let server = Server::start(Options::new("sqlalchemy").arg("--max-allowed-packet=64M"));
    let python = Environment::get().root().join("var/tools/python/bin/python");
    assert_succeeds(
        Command::new(python).arg(clients().join("sqlalchemy_client.py")).arg(server.socket()),
    );
}

#[test]
fn the_jdbc_driver() {
    let driver = Environment::get().root().join("var/tools/jdbc");
    if !driver.exists() {
        tidepool_skip::skip("scripts/deps found no Java to run it with");
        return;
    }
    let port = free_port();
    let server = Server::start(
        Options::new("jdbc")
            .arg("--skip-networking=0")
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--port={port}"))
            .arg("--max-allowed-packet=64M"),
    );
    let mut conn = server.connect();
    conn.query_drop("CREATE DATABASE jdbc CHARACTER SET utf8mb4")
        .expect("a database can be created");
    for host in ["localhost", "127.0.0.1"] {
        conn.query_drop(format!("GRANT ALL ON jdbc.* TO tester@'{host}' IDENTIFIED BY 'x'"))
            .expect("a user can be made");
    }
    assert_succeeds(
        Command::new("java")
            .args(["-Xmx256m", "-cp"])
            .arg(format!("{}/*", driver.display()))
            .arg(clients().join("jdbc/JdbcClient.java"))
            .arg(format!("jdbc:mariadb://127.0.0.1:{port}/jdbc?user=tester&password=x")),
    );
}
