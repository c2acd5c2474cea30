//! `convert` on real servers: there and back, and on after the command or the server was killed.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use serde_json::Value;
use tidepool_tests::server::{Server, wait_until};

use crate::tidepool_server::server;
use crate::{innodb, stderr, stdout, tidepool};

const PATIENCE: Duration = Duration::from_secs(120);

/// Foreign keys within and across schemas, of one table to itself, and in a cycle; names with
/// everything that a name may have; rows that a copy could change.
const SCHEMA: &str = include_str!("convert.sql");

/// Every base table, in the order of their names' bytes.
fn tables(conn: &mut Conn) -> Vec<(String, String)> {
    let mut names: Vec<(String, String)> = conn
        .query(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE LIKE \
         '%BASE%' AND BINARY TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', \
         'performance_schema', 'tidepool_convert')",
        )
        .unwrap();
    names.sort();
    names
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A definition without what may change: the engine, and the places of the indexes that the server
/// has made for foreign keys. (InnoDB forgets to double the backticks in a foreign key's columns.)
fn comparable(create: &str) -> Vec<String> {
    let create = create.replace("ENGINE=Tidepool", "ENGINE=InnoDB").replace("``", "`");
    let create = create.replace("ENGINE = Tidepool", "ENGINE = InnoDB");
    let mut lines: Vec<String> =
        create.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
    let is_key = |line: &String| line.starts_with("  KEY ");
    let first = lines.iter().position(is_key).unwrap_or(0);
    let count = lines[first..].iter().take_while(|line| is_key(line)).count();
    lines[first..first + count].sort();
    lines
}

/// Definitions and rows. CHECKSUM TABLE counts bits of virtual columns that nothing has set.
fn content(server: &Server) -> Vec<(String, Vec<String>, Vec<String>)> {
    let mut conn = server.connect();
    let names = tables(&mut conn);
    let of = |(schema, table): (String, String)| {
        let name = format!("{}.{}", quoted(&schema), quoted(&table));
        let (_, create): (String, String) =
            conn.query_first(format!("SHOW CREATE TABLE {name}")).unwrap().unwrap();
        let columns: Vec<String> = conn
            .exec(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND \
                 TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
                (&schema, &table),
            )
            .unwrap();
        let texts: Vec<String> = columns
            .iter()
            .map(|column| format!("IFNULL(HEX(CAST({} AS BINARY)), '-')", quoted(column)))
            .collect();
        let query =
            format!("SELECT CONCAT_WS(',', {}) AS t FROM {name} ORDER BY t", texts.join(", "));
        let rows = conn.query(query).unwrap();
        (name, comparable(&create), rows)
    };
    names.into_iter().map(of).collect()
}

/// Compares without printing thousands of rows.
fn is_as_before(server: &Server, before: &[(String, Vec<String>, Vec<String>)]) {
    let now = content(server);
    assert_eq!(now.len(), before.len());
    for (now, before) in now.iter().zip(before) {
        assert_eq!((&now.0, &now.1), (&before.0, &before.1));
        let differ = now.2.iter().zip(&before.2).find(|(now, before)| now != before);
        assert_eq!((now.2.len(), differ), (before.2.len(), None), "{}", now.0);
    }
}

fn engines(server: &Server) -> Vec<String> {
    let query = "SELECT DISTINCT ENGINE FROM information_schema.TABLES WHERE TABLE_TYPE LIKE \
                 '%BASE%' AND TABLE_SCHEMA IN ('shop', 'we`ird.db')";
    server.connect().query(query).unwrap()
}

/// How many foreign keys there are, and how many the journal has.
fn constraints(server: &Server) -> (u64, u64) {
    let mut conn = server.connect();
    let query = "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS";
    let there = conn.query_first(query).unwrap().unwrap();
    let noted = conn.query_first("SELECT COUNT(*) FROM tidepool_convert.constraints");
    (there, noted.ok().flatten().unwrap_or(0))
}

fn fill(server: &Server) {
    let mut conn = server.connect();
    conn.query_drop("SET default_storage_engine = InnoDB, sql_mode = ''").unwrap();
    for statement in SCHEMA.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()) {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

fn command(socket: &Path, args: &[&str]) -> Command {
    let mut command = tidepool(socket);
    command.arg("convert").args(args);
    command
}

fn convert(server: &Server, args: &[&str]) -> Output {
    command(server.socket(), args).output().unwrap()
}

/// The same, again as long as the lock of a command that was killed is held.
fn convert_when_free(server: &Server, args: &[&str]) -> Output {
    let since = Instant::now();
    loop {
        let output = convert(server, args);
        if !stderr(&output).contains("another conversion runs") || since.elapsed() > PATIENCE {
            return output;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ends_with(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(output), stderr(output));
}

fn report(server: &Server, args: &[&str]) -> Value {
    let output = convert(server, &[&["--format=json"], args].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The command, while it runs.
fn begin(server: &Server, args: &[&str]) -> Child {
    let mut command = command(server.socket(), args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A transaction that has read a table keeps its ALTER waiting: the command stops in the middle.
fn hold(server: &Server, table: &str) -> Conn {
    let mut conn = server.connect();
    conn.query_drop("BEGIN").unwrap();
    let _: Option<u64> = conn.query_first(format!("SELECT COUNT(*) FROM {table}")).unwrap();
    conn
}

fn wait_for_alter(server: &Server, table: &str) {
    let mut conn = server.connect();
    wait_until(PATIENCE, "the ALTER waits", || {
        let query = format!(
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for \
             table metadata lock' AND INFO LIKE 'ALTER TABLE {table} ENGINE%'"
        );
        conn.query_first::<u64, _>(query).unwrap() == Some(1)
    });
}

#[test]
fn tables_become_tidepools_and_innodbs_again_and_nothing_else_changes() {
    let server = server("convert-there-and-back", &[]);
    fill(&server);
    let before = content(&server);
    let (keys, _) = constraints(&server);
    assert_eq!(keys, 7);
    let look = report(&server, &[]);
    assert_eq!(look["groups"].as_array().unwrap().len(), 5, "{look:#}");
    assert_eq!(engines(&server), ["InnoDB"], "looking changes nothing");
    let trial =
        "SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE 'tidepool%'";
    assert_eq!(server.connect().query_first(trial).unwrap(), Some(0));
    for (direction, engine) in [(&[][..], "Tidepool"), (&["--back"][..], "InnoDB")] {
        let output = convert(&server, &[&["--apply", "--verify"], direction].concat());
        ends_with(&output, 0);
        assert!(stdout(&output).contains("checksum equal"), "{}", stdout(&output));
        assert_eq!(engines(&server), [engine]);
        is_as_before(&server, &before);
        assert_eq!(constraints(&server), (keys, 0));
        assert_eq!(server.connect().query_first(trial).unwrap(), Some(0), "no journal is left");
        let output = convert(&server, &[&["--apply"], direction].concat());
        ends_with(&output, 0);
        assert!(stdout(&output).contains("\n0 tables to convert"), "{}", stdout(&output));
    }
    // What a foreign key does is what it did.
    ends_with(&convert(&server, &["--apply"]), 0);
    let mut conn = server.connect();
    conn.query_drop("DELETE FROM shop.of_pairs WHERE x = 1; ").unwrap();
    let error = conn.query_drop("DELETE FROM shop.heads WHERE id = 5").unwrap_err().to_string();
    assert!(error.contains("1451"), "{error}");
    conn.query_drop("DELETE FROM shop.pairs WHERE a = 2").unwrap();
    let left: Option<u64> = conn.query_first("SELECT COUNT(*) FROM shop.of_pairs").unwrap();
    assert_eq!(left, Some(48), "the deletion cascades");
}

/// Carries out a script as the guide says.
fn feed(server: &Server, script: &str) {
    let mut client = server.client("CLIENT");
    let mut child = client.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, script.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{script}");
}

#[test]
fn the_printed_script_does_the_same() {
    let server = server("convert-script", &[]);
    fill(&server);
    let before = content(&server);
    feed(&server, &stdout(&convert(&server, &["--format=sql"])));
    assert_eq!(engines(&server), ["Tidepool"]);
    is_as_before(&server, &before);
}

fn run_all(server: &Server, statements: &[&str]) -> Conn {
    let mut conn = server.connect();
    for statement in statements {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    conn
}

#[test]
fn the_printed_script_keeps_a_foreign_key_whose_parent_is_not_there() {
    let server = server("convert-script-headless", &[]);
    run_all(
        &server,
        &[
            "CREATE DATABASE shop",
            "SET foreign_key_checks = 0",
            "CREATE TABLE shop.c (p INT, KEY (p), CONSTRAINT fk FOREIGN KEY (p) REFERENCES gone \
             (id)) ENGINE=InnoDB",
        ],
    );
    let before = content(&server);
    for (args, engine) in [(&[][..], "Tidepool"), (&["--back", "--no-lock-tables"], "InnoDB")] {
        for locks in [&[][..], &["--no-lock-tables"]] {
            let script = stdout(&convert(&server, &[&["--format=sql"], args, locks].concat()));
            feed(&server, &script);
            assert_eq!((engines(&server), constraints(&server)), (vec![engine.into()], (1, 0)));
            is_as_before(&server, &before);
            if args.is_empty() && locks.is_empty() {
                ends_with(&convert(&server, &["--apply", "--back"]), 0);
            }
        }
    }
}

#[test]
fn schemas_may_have_foreign_keys_of_equal_names() {
    let server = server("convert-equal-names", &[]);
    // Two installations of one application; and a name that has no room for another letter.
    let long = "n".repeat(64);
    for schema in ["production", "staging"] {
        run_all(
            &server,
            &[
                &format!("CREATE DATABASE {schema}"),
                &format!("CREATE TABLE {schema}.p (id INT PRIMARY KEY) ENGINE=InnoDB"),
                &format!(
                    "CREATE TABLE {schema}.c (p INT, q INT, r INT, KEY (q), CONSTRAINT fk FOREIGN \
                     KEY (p) REFERENCES p (id), FOREIGN KEY (q) REFERENCES p (id), CONSTRAINT \
                     {long} FOREIGN KEY (r) REFERENCES p (id)) ENGINE=InnoDB"
                ),
            ],
        );
    }
    let before = content(&server);
    for direction in [&[][..], &["--back"]] {
        ends_with(&convert(&server, &[&["--apply"], direction].concat()), 0);
        assert_eq!(constraints(&server), (6, 0));
        is_as_before(&server, &before);
    }
}

#[test]
fn names_that_differ_in_an_accent_or_in_case_are_different_tables() {
    let server = server("convert-similar-names", &[]);
    for (schema, key) in [("cafe", "fk"), ("café", "fk"), ("Sys", "a"), ("Café", "b")] {
        run_all(
            &server,
            &[
                &format!("CREATE DATABASE `{schema}`"),
                &format!("CREATE TABLE `{schema}`.p (a INT, b INT, KEY (a, b)) ENGINE=InnoDB"),
                &format!(
                    "CREATE TABLE `{schema}`.c (x INT, y INT, CONSTRAINT {key} FOREIGN KEY (x, y) \
                     REFERENCES p (a, b) ON DELETE CASCADE) ENGINE=InnoDB"
                ),
            ],
        );
    }
    let before = content(&server);
    for (direction, engine) in [(&[][..], "Tidepool"), (&["--back"], "InnoDB")] {
        ends_with(&convert(&server, &[&["--apply"], direction].concat()), 0);
        assert_eq!(constraints(&server), (4, 0));
        is_as_before(&server, &before);
        let query = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME IN ('p', 'c') \
                     AND ENGINE = ?";
        assert_eq!(server.connect().exec_first(query, (engine,)).unwrap(), Some(8));
    }
}

/// A run that gets to the foreign key `fk` of `shop.c` after these statements of others, and what
/// it leaves: the key's action, and what the run has printed.
fn behind(name: &str, statements: &[&str]) -> (Server, Option<String>, String) {
    let server = server(name, &[]);
    run_all(
        &server,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.first (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE shop.p (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE shop.c (p INT, CONSTRAINT fk FOREIGN KEY (p) REFERENCES p (id) ON DELETE \
             CASCADE) ENGINE=InnoDB",
        ],
    );
    let holder = hold(&server, "shop.first");
    let child = begin(&server, &["--apply"]);
    wait_for_alter(&server, "`shop`.`first`");
    run_all(&server, statements);
    drop(holder);
    let output = child.wait_with_output().unwrap();
    let query = "SELECT DELETE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS";
    let rule = server.connect().query_first(query).unwrap();
    (server, rule, format!("{}{}", stdout(&output), stderr(&output)))
}

#[test]
fn a_foreign_key_that_others_have_changed_since_the_look_keeps_its_new_definition() {
    let changes = [
        "ALTER TABLE shop.c DROP FOREIGN KEY fk",
        "ALTER TABLE shop.c ADD CONSTRAINT fk FOREIGN KEY (p) REFERENCES shop.p (id)",
    ];
    let (server, rule, text) = behind("convert-changed-key", &changes);
    assert_eq!((rule.as_deref(), noted(&server)), (Some("RESTRICT"), None), "{text}");
}

#[test]
fn a_foreign_key_that_others_have_dropped_since_the_look_does_not_come_back() {
    let changes = ["ALTER TABLE shop.c DROP FOREIGN KEY fk", "INSERT INTO shop.c VALUES (77)"];
    let (server, rule, text) = behind("convert-dropped-key", &changes);
    assert_eq!((rule, noted(&server)), (None, None), "{text}");
}

#[test]
fn what_others_change_after_the_look_is_left_and_the_rest_is_converted() {
    for locks in [&[][..], &["--no-lock-tables"]] {
        let server = server(&format!("convert-changed-{}", locks.len()), &[]);
        let mut conn = run_all(
            &server,
            &[
                "CREATE DATABASE shop",
                "USE shop",
                "SET default_storage_engine = InnoDB",
                // The smallest group comes first.
                "CREATE TABLE shop.first (id INT PRIMARY KEY)",
            ],
        );
        let of = ["changed", "dropped", "added", "without_child", "large"];
        for name in of {
            for statement in [
                format!("CREATE TABLE shop.{name}_p (id INT PRIMARY KEY)"),
                format!(
                    "CREATE TABLE shop.{name}_c (p INT, CONSTRAINT {name} FOREIGN KEY (p) \
                     REFERENCES {name}_p (id) ON DELETE CASCADE)"
                ),
            ] {
                conn.query_drop(statement).unwrap();
            }
        }
        conn.query_drop("CREATE TABLE shop.without_key (p INT, KEY (p), q TEXT)").unwrap();
        conn.query_drop("INSERT INTO large_p SELECT seq FROM seq_1_to_10000").unwrap();
        conn.query_drop("INSERT INTO large_c SELECT seq FROM seq_1_to_10000").unwrap();
        let holder = hold(&server, "shop.first");
        let child = begin(&server, &[&["--apply"], locks].concat());
        wait_for_alter(&server, "`shop`.`first`");
        for statement in [
            "ALTER TABLE changed_c DROP FOREIGN KEY changed",
            "ALTER TABLE changed_c ADD CONSTRAINT changed FOREIGN KEY (p) REFERENCES changed_p \
             (id)",
            "ALTER TABLE dropped_c DROP FOREIGN KEY dropped",
            "INSERT INTO dropped_c VALUES (77)",
            "ALTER TABLE added_c ADD CONSTRAINT more FOREIGN KEY (p) REFERENCES changed_p (id)",
            "DROP TABLE without_child_c",
            "ALTER TABLE without_key ADD CONSTRAINT new FOREIGN KEY (p) REFERENCES added_p (id)",
        ] {
            conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        drop(holder);
        let output = child.wait_with_output().unwrap();
        ends_with(&output, 11);
        let text = stdout(&output);
        for name in ["changed_c", "dropped_c", "added_c", "without_key"] {
            let words = format!("the foreign keys of `shop`.`{name}` were changed since the look");
            assert!(text.contains(&words), "{name}: {text}");
        }
        assert!(text.contains("Not converted: `shop`.`changed_p`, `shop`.`changed_c`"), "{text}");
        assert!(text.contains("without_child_c"), "{text}");
        let query = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop' \
                     AND ENGINE = 'Tidepool' ORDER BY 1";
        let done: Vec<String> = conn.query(query).unwrap();
        assert_eq!(done, ["first", "large_c", "large_p"], "{text}");
        let keys = |conn: &mut Conn| -> Vec<String> {
            let query = "SELECT CONCAT_WS(' ', TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE) FROM \
                         information_schema.REFERENTIAL_CONSTRAINTS ORDER BY 1";
            conn.query(query).unwrap()
        };
        let others_made = [
            "added_c added CASCADE",
            "added_c more RESTRICT",
            "changed_c changed RESTRICT",
            "large_c large CASCADE",
            "without_key new RESTRICT",
        ];
        assert_eq!((keys(&mut conn), noted(&server)), (others_made.map(Into::into).into(), None));
        // The next run sees what is there now.
        conn.query_drop("DELETE FROM dropped_c").unwrap();
        ends_with(&convert(&server, &["--apply"]), 0);
        assert_eq!(engines(&server), ["Tidepool"]);
        assert_eq!(keys(&mut conn), others_made);
    }
}

#[test]
fn tables_that_come_and_go_while_it_looks_do_not_end_it() {
    let server = server("convert-come-and-go", &[]);
    let mut conn = run_all(&server, &["CREATE DATABASE shop"]);
    for number in 0..50 {
        let statement = format!("CREATE TABLE shop.t{number:02} (id INT) ENGINE=InnoDB");
        conn.query_drop(statement).unwrap();
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                conn.query_drop("CREATE TABLE shop.u (id INT) ENGINE=InnoDB").unwrap();
                conn.query_drop("DROP TABLE shop.u").unwrap();
            }
        });
        let outputs: Vec<Output> = (0..15).map(|_| convert(&server, &[])).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        outputs.iter().for_each(|output| ends_with(output, 0));
    });
}

#[test]
fn a_table_whose_definition_cannot_be_seen_stays() {
    let server = server("convert-unseen-table", &[]);
    run_all(
        &server,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.seen (id INT) ENGINE=InnoDB",
            "CREATE TABLE shop.unseen (id INT) ENGINE=InnoDB",
            "CREATE USER narrow@localhost",
            "GRANT ALL ON shop.seen TO narrow@localhost",
            "GRANT INSERT (id) ON shop.unseen TO narrow@localhost",
            "GRANT ALL ON `tidepool_convert%`.* TO narrow@localhost",
        ],
    );
    let narrow = |args: &[&str]| {
        let mut narrow = tidepool(server.socket());
        narrow.args(["--user=narrow", "convert"]).args(args).output().unwrap()
    };
    let output = narrow(&[]);
    ends_with(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("`shop`.`unseen`\n    its definition can't be seen"), "{text}");
    assert!(text.contains("1 table to convert"), "{text}");
}

#[test]
fn what_the_server_refuses_stays_with_what_foreign_keys_connect_with_it() {
    let server = server("convert-blocked", &[]);
    fill(&server);
    let mut conn = server.connect();
    for statement in [
        "CREATE TABLE shop.history (id INT PRIMARY KEY) ENGINE=InnoDB WITH SYSTEM VERSIONING",
        "CREATE TABLE shop.by_id (x INT, s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, e BIGINT \
         UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) ENGINE=InnoDB WITH \
         SYSTEM VERSIONING",
        "CREATE TABLE shop.map (id INT PRIMARY KEY, g GEOMETRY NOT NULL, SPATIAL INDEX (g), \
         FOREIGN KEY (id) REFERENCES shop.pairs (a)) ENGINE=InnoDB",
        "CREATE TABLE shop.narrow (t VARCHAR(20) CHARACTER SET latin1, KEY (t)) ENGINE=InnoDB",
        "CREATE TABLE shop.isam (id INT) ENGINE=MyISAM",
        "CREATE SEQUENCE shop.numbers ENGINE=InnoDB",
    ] {
        conn.query_drop(statement).unwrap();
    }
    // What an engine takes changes with its version: the server's own answer counts.
    conn.query_drop("CREATE TABLE shop.try LIKE shop.map").unwrap();
    let has_spatial = conn.query_drop("ALTER TABLE shop.try ENGINE=Tidepool").is_ok();
    conn.query_drop("DROP TABLE shop.try").unwrap();
    let look = report(&server, &[]);
    let verdict = |name: &str| {
        let tables = look["tables"].as_array().unwrap();
        let table = tables.iter().find(|table| table["table"] == name);
        let rules = |table: &Value| {
            let found = table["findings"].as_array().unwrap().iter();
            found.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        table.map(|table| (table["verdict"].as_str().unwrap().to_owned(), rules(table)))
    };
    for (name, rule) in [("history", "versioned"), ("by_id", "transaction_precise")] {
        let (verdict, rules) = verdict(name).unwrap();
        assert_eq!(verdict, "blocked", "{name}");
        assert!(rules.iter().any(|found| found == rule), "{name}: {rules:?}");
    }
    assert_eq!(verdict("narrow").unwrap().0, "convert");
    for (name, rule) in [("map", "refused"), ("pairs", "connected"), ("of_pairs", "connected")] {
        let (verdict, rules) = verdict(name).unwrap();
        assert_eq!(verdict == "blocked", !has_spatial, "{name}: {rules:?}");
        assert_eq!(rules.iter().any(|found| found == rule), !has_spatial, "{name}: {rules:?}");
    }
    assert_eq!(look["other_engines"]["MyISAM"], 1);
    assert_eq!((look["sequences"].as_u64(), look["views"].as_u64()), (Some(1), Some(1)));
    let text = stdout(&convert(&server, &[]));
    let (_, to_know) = text.split_once("Good to know:").unwrap();
    assert!(to_know.contains("no PRIMARY KEY") && !to_know.contains("by_id"), "{text}");
    // The rest is converted, and the exit code says that something stayed.
    let output = convert(&server, &["--apply"]);
    ends_with(&output, 11);
    let text = stdout(&output);
    assert!(text.contains("Not converted: 1 table of MyISAM (--from MyISAM)"), "{text}");
    let engine = |name: &str| -> String {
        let query = format!(
            "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop' AND \
             TABLE_NAME = '{name}'"
        );
        server.connect().query_first(query).unwrap().unwrap()
    };
    let of_map = if has_spatial { "Tidepool" } else { "InnoDB" };
    for (name, expected) in [
        ("history", "InnoDB"),
        ("map", of_map),
        ("pairs", of_map),
        ("of_pairs", of_map),
        ("orders", "Tidepool"),
        ("isam", "MyISAM"),
    ] {
        assert_eq!(engine(name), expected, "{name}");
    }
    assert_eq!(constraints(&server), (8, 0));
    ends_with(&convert(&server, &["shop.isam", "--from=myisam", "--apply"]), 0);
    assert_eq!(engine("isam"), "Tidepool");
}

#[test]
fn a_choice_that_leaves_a_parent_out_is_not_converted() {
    let server = server("convert-choice", &[]);
    fill(&server);
    let output = convert(&server, &["shop.orders", "shop.parts", "--apply"]);
    ends_with(&output, 11);
    let text = stdout(&output);
    assert!(text.contains("foreign keys connect it with") && text.contains("chosen"), "{text}");
    assert_eq!(constraints(&server), (7, 0));
    let script = stdout(&convert(&server, &["shop.orders", "--format=sql"]));
    assert!(script.contains("-- Left out: `shop`.`orders`: foreign keys connect it"), "{script}");
    ends_with(&convert(&server, &["shop", "--exclude=shop.heads", "--exclude=shop.bodies"]), 0);
    for (args, code, words) in [
        (&["nowhere"][..], 2, "`nowhere`: no such schema"),
        (&["shop.nothing"], 2, "`shop`.`nothing`: no such"),
        (&["shop", "--exclude=shop.head"], 2, "`shop`.`head`: no such"),
        (&["a.b.c"], 2, "write SCHEMA or SCHEMA.TABLE"),
        (&["--from=tidepool"], 2, "that is what tables are to become"),
        (&["--from=InnoDB,Frob"], 2, "--from Frob: the server has no such engine; it has "),
        (&["--from="], 2, "no such engine"),
        (&["--format=sql", "--apply"], 2, "instead of running"),
        (&["--lock-wait=0"], 2, "from 1 to"),
    ] {
        let output = convert(&server, args);
        ends_with(&output, code);
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_command_that_was_killed_is_finished_by_the_next() {
    let server = server("convert-killed", &[]);
    fill(&server);
    let before = content(&server);
    let holder = hold(&server, "shop.customers");
    let mut child = begin(&server, &["--apply", "--no-lock-tables"]);
    wait_for_alter(&server, "`shop`.`customers`");
    let (there, noted) = constraints(&server);
    assert!(noted > 0 && there < 7, "it is in the middle: {there} there, {noted} noted");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(holder);
    let output = convert_when_free(&server, &["--apply"]);
    ends_with(&output, 0);
    assert_eq!(engines(&server), ["Tidepool"]);
    assert_eq!(constraints(&server), (7, 0));
    is_as_before(&server, &before);
}

#[test]
fn a_command_that_was_killed_can_be_turned_back() {
    let server = server("convert-turned", &[]);
    fill(&server);
    let before = content(&server);
    let holder = hold(&server, "shop.customers");
    let mut child = begin(&server, &["--apply", "--no-lock-tables"]);
    wait_for_alter(&server, "`shop`.`customers`");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(holder);
    let output = convert_when_free(&server, &["--apply", "--back"]);
    ends_with(&output, 0);
    assert_eq!(engines(&server), ["InnoDB"]);
    assert_eq!(constraints(&server), (7, 0));
    is_as_before(&server, &before);
}

#[test]
fn a_server_that_was_killed_is_converted_by_the_next_command() {
    // The journal is on disk also where commits are not.
    let mut server = server("convert-server-killed", &["--innodb-flush-log-at-trx-commit=0"]);
    fill(&server);
    let before = content(&server);
    for (args, engine) in [(&["--apply"][..], "Tidepool"), (&["--apply", "--back"][..], "InnoDB")] {
        let holder = hold(&server, "shop.customers");
        let child = begin(&server, &[args, &["--no-lock-tables"]].concat());
        wait_for_alter(&server, "`shop`.`customers`");
        server.kill9();
        let output = child.wait_with_output().unwrap();
        ends_with(&output, 7);
        assert!(stderr(&output).contains("run the command again"), "{}", stderr(&output));
        drop(holder);
        server.restart();
        let (there, noted) = constraints(&server);
        assert!(there < 7 && there + noted >= 7, "{there} there, {noted} noted");
        ends_with(&convert(&server, args), 0);
        assert_eq!(engines(&server), [engine]);
        assert_eq!(constraints(&server), (7, 0));
        is_as_before(&server, &before);
    }
}

#[test]
fn an_interrupt_ends_it_after_the_running_table() {
    let server = server("convert-interrupted", &[]);
    fill(&server);
    let before = content(&server);
    let mut holder = hold(&server, "shop.customers");
    let child = begin(&server, &["--apply", "--no-lock-tables", "--exclude=shop.odd"]);
    wait_for_alter(&server, "`shop`.`customers`");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    holder.query_drop("COMMIT").unwrap();
    let output = child.wait_with_output().unwrap();
    ends_with(&output, 11);
    let text = stdout(&output);
    assert!(text.contains("`shop`.`customers`: 1903 rows") && text.contains("Stopped"), "{text}");
    // Those between tables of one engine are back at once; the others are noted.
    assert_eq!(constraints(&server), (5, 2), "{text}");
    assert!(text.contains("2 foreign keys missing until then"), "{text}");
    let look = report(&server, &[]);
    assert_eq!(look["missing_foreign_keys"].as_array().unwrap().len(), 2);
    ends_with(&convert(&server, &["--apply"]), 0);
    assert_eq!(constraints(&server), (7, 0));
    is_as_before(&server, &before);
}

#[test]
fn a_table_in_use_ends_it_with_its_foreign_keys_in_place() {
    let server = server("convert-in-use", &[]);
    fill(&server);
    let before = content(&server);
    let holder = hold(&server, "shop.customers");
    let output = convert(&server, &["--apply", "--lock-wait=1"]);
    ends_with(&output, 9);
    let text = stderr(&output);
    assert!(text.contains("another session uses the table") && !text.contains("missing"), "{text}");
    assert_eq!(constraints(&server), (7, 0));
    drop(holder);
    is_as_before(&server, &before);
    // Without the lock it fails in the middle of a group, whose tables are in both engines then.
    let holder = hold(&server, "shop.customers");
    let output = convert(&server, &["--apply", "--lock-wait=1", "--no-lock-tables"]);
    ends_with(&output, 9);
    assert!(stderr(&output).contains("foreign keys are missing now"), "{}", stderr(&output));
    drop(holder);
    ends_with(&convert(&server, &["--apply"]), 0);
    assert_eq!(constraints(&server), (7, 0));
    is_as_before(&server, &before);
}

#[test]
fn a_foreign_key_whose_drop_is_refused_is_not_said_to_be_missing() {
    let server = server("convert-refused-drop", &[]);
    fill(&server);
    let holder = hold(&server, "shop.of_pairs");
    let args = ["shop.pairs", "shop.of_pairs", "--apply", "--lock-wait=1", "--no-lock-tables"];
    let output = convert(&server, &args);
    ends_with(&output, 9);
    let text = stderr(&output);
    assert!(text.contains("DROP FOREIGN KEY") && !text.contains("missing"), "{text}");
    assert_eq!(constraints(&server), (7, 0));
    drop(holder);
}

#[test]
fn a_foreign_key_whose_parent_was_dropped_meanwhile_is_not_added() {
    let server = server("convert-lost-parent", &[]);
    fill(&server);
    let holder = hold(&server, "shop.pairs");
    let args = ["shop.pairs", "shop.of_pairs", "--apply", "--no-lock-tables"];
    let mut child = begin(&server, &args);
    wait_for_alter(&server, "`shop`.`pairs`");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(holder);
    // Looking waits until the statement of the command that was killed has ended.
    ends_with(&convert_when_free(&server, &["shop.odd", "--apply", "--from=MEMORY"]), 11);
    assert_eq!(constraints(&server), (6, 1));
    server.connect().query_drop("DROP TABLE shop.pairs").unwrap();
    let output = convert(&server, &["shop.of_pairs", "--apply"]);
    ends_with(&output, 9);
    let text = stderr(&output);
    assert!(text.contains("existed when the key was dropped"), "{text}");
    assert!(text.contains("--leave-orphans"), "{text}");
    assert_eq!(constraints(&server), (6, 1));
    server.connect().query_drop("INSERT INTO shop.of_pairs VALUES (999, 999)").unwrap();
    ends_with(&convert(&server, &["shop.of_pairs", "--apply", "--leave-orphans"]), 0);
    assert_eq!(constraints(&server), (7, 0));
}

#[test]
fn a_foreign_key_whose_parent_cannot_be_seen_is_not_dropped() {
    let server = server("convert-unseen-parent", &[]);
    fill(&server);
    let mut conn = server.connect();
    conn.query_drop("CREATE USER narrow@localhost").unwrap();
    for schema in ["`we``ird.db`", "`tidepool_convert%`"] {
        conn.query_drop(format!("GRANT ALL ON {schema}.* TO narrow@localhost")).unwrap();
    }
    let mut narrow = tidepool(server.socket());
    let output = narrow.args(["--user=narrow", "convert", "--apply"]).output().unwrap();
    ends_with(&output, 9);
    let text = stderr(&output);
    assert!(text.contains("`shop`.`orders` exists can't be seen"), "{text}");
    assert_eq!((engines(&server), constraints(&server)), (vec!["InnoDB".into()], (7, 0)));
}

#[test]
fn a_trial_drops_what_others_have_left_and_nothing_else() {
    let server = server("convert-trials", &[]);
    fill(&server);
    let mut conn = server.connect();
    for end in ["4000001", "4000002", "of_a_user"] {
        let name = format!("tidepool_convert_trial_{end}");
        conn.query_drop(format!("CREATE DATABASE {name}")).unwrap();
        conn.query_drop(format!("CREATE TABLE {name}.t0 (id INT PRIMARY KEY)")).unwrap();
    }
    // One runs on.
    conn.query_drop("DO GET_LOCK('tidepool_convert_trial_4000001', 0)").unwrap();
    ends_with(&convert(&server, &["shop"]), 0);
    let left: Vec<String> = conn
        .query(
            "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE \
             '%trial%' ORDER BY 1",
        )
        .unwrap();
    assert_eq!(left, ["tidepool_convert_trial_4000001", "tidepool_convert_trial_of_a_user"]);
}

#[test]
fn rows_that_lost_their_parent_meanwhile_are_found() {
    let server = server("convert-orphans", &[]);
    fill(&server);
    let holder = hold(&server, "shop.customers");
    let mut child = begin(&server, &["--apply", "--no-lock-tables"]);
    wait_for_alter(&server, "`shop`.`customers`");
    // While the foreign key is missing nothing refuses this.
    let mut conn = server.connect();
    conn.query_drop("INSERT INTO `we``ird.db`.`a ``b.c` VALUES (9999, 77777777, 1)").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(holder);
    let output = convert_when_free(&server, &["--apply"]);
    ends_with(&output, 9);
    let text = stderr(&output);
    assert!(text.contains("rows without a parent") && text.contains("`f k`"), "{text}");
    assert_eq!(constraints(&server), (6, 1));
    conn.query_drop("DELETE FROM `we``ird.db`.`a ``b.c` WHERE `i d` = 9999").unwrap();
    ends_with(&convert(&server, &["--apply"]), 0);
    assert_eq!(constraints(&server), (7, 0));
}

#[test]
fn a_server_without_tidepool_is_looked_at_and_not_converted() {
    let server = innodb("convert-without", &[]);
    fill(&server);
    let output = convert(&server, &[]);
    ends_with(&output, 0);
    assert!(stdout(&output).contains("INSTALL SONAME 'ha_tidepool'"), "{}", stdout(&output));
    let output = convert(&server, &["--apply"]);
    ends_with(&output, 6);
    assert!(stderr(&output).contains("Tidepool is not loaded"), "{}", stderr(&output));
    assert_eq!(constraints(&server), (7, 0));
}

#[test]
fn a_user_without_privileges_changes_nothing() {
    let server = server("convert-poor", &[]);
    fill(&server);
    let mut conn = server.connect();
    conn.query_drop("CREATE USER poor@localhost").unwrap();
    conn.query_drop("GRANT SELECT ON shop.* TO poor@localhost").unwrap();
    let mut poor = tidepool(server.socket());
    let output = poor.args(["--user=poor", "convert", "--apply"]).output().unwrap();
    ends_with(&output, 5);
    assert!(stderr(&output).contains("ON `tidepool_convert%`.* TO 'poor'"), "{}", stderr(&output));
    assert_eq!((engines(&server), constraints(&server)), (vec!["InnoDB".into()], (7, 0)));
    let mut poor = tidepool(server.socket());
    let output = poor.args(["--user=poor", "convert"]).output().unwrap();
    ends_with(&output, 0);
    assert!(stdout(&output).contains("not all could be tried"), "{}", stdout(&output));
    // The journal and the trial are there, and the tables may not be altered.
    conn.query_drop("GRANT ALL ON `tidepool_convert%`.* TO poor@localhost").unwrap();
    for table in ["shop.odd", "shop.pairs"] {
        let mut poor = tidepool(server.socket());
        poor.args(["--user=poor", "convert", "--apply", table]);
        let output =
            poor.args((table == "shop.pairs").then_some("shop.of_pairs")).output().unwrap();
        ends_with(&output, 5);
        let grant = "GRANT ALTER, CREATE, DROP, INSERT, SELECT, LOCK TABLES, REFERENCES ON \
                     `shop`.* TO 'poor'@'localhost'";
        assert!(stderr(&output).contains(grant), "{}", stderr(&output));
    }
    assert_eq!((engines(&server), constraints(&server)), (vec!["InnoDB".into()], (7, 0)));
}

#[test]
fn the_documented_privileges_are_enough() {
    let page = include_str!("../../../docs/reference/cli.md");
    let row = page.lines().find(|line| line.contains("| `convert --apply` |")).unwrap();
    let (own, beside) = row.split_once(" on the schemas; these").unwrap();
    let (beside, global) = beside.split_once(" on `tidepool_convert%`").unwrap();
    // Each second part is between backticks.
    let listed = |text: &str| {
        let words: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        words.join(", ")
    };
    let global = listed(global.split_once('|').unwrap().0);
    let server = server("convert-privileges", &[]);
    fill(&server);
    let mut conn = server.connect();
    conn.query_drop("CREATE USER careful@localhost").unwrap();
    for (privileges, schema) in [
        (listed(own), "shop.*"),
        (listed(own), "`we``ird.db`.*"),
        (format!("{}, {}", listed(own), listed(beside)), "`tidepool_convert%`.*"),
        (global, "*.*"),
    ] {
        conn.query_drop(format!("GRANT {privileges} ON {schema} TO careful@localhost")).unwrap();
    }
    let before = content(&server);
    for (args, engine) in [(&["--apply"][..], "Tidepool"), (&["--apply", "--back"], "InnoDB")] {
        let mut careful = tidepool(server.socket());
        let output = careful.args(["--user=careful", "convert"]).args(args).output().unwrap();
        ends_with(&output, 0);
        assert_eq!((engines(&server), constraints(&server)), (vec![engine.into()], (7, 0)));
    }
    is_as_before(&server, &before);
}

#[test]
fn the_guide_copies_a_versioned_table_with_its_history() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/from-innodb.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let statements = guide.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next());
    let server = server("convert-versioned", &[]);
    let mut conn = server.connect();
    for statement in [
        "CREATE DATABASE shop",
        "CREATE TABLE shop.prices (id INT PRIMARY KEY, price INT, twice INT AS (price * 2) STORED) \
         ENGINE=InnoDB WITH SYSTEM VERSIONING",
        "INSERT INTO shop.prices (id, price) VALUES (1, 10), (2, 20)",
        "UPDATE shop.prices SET price = price + 1",
        "DELETE FROM shop.prices WHERE id = 2",
    ] {
        conn.query_drop(statement).unwrap();
    }
    let history = |conn: &mut Conn| -> Vec<(u64, u64, u64, String, String)> {
        let query = "SELECT id, price, twice, CAST(row_start AS CHAR), CAST(row_end AS CHAR) FROM \
                     shop.prices FOR SYSTEM_TIME ALL ORDER BY 1, 4";
        conn.query(query).unwrap()
    };
    let before = history(&mut conn);
    assert_eq!(before.len(), 4);
    assert_eq!(report(&server, &[])["tables"][0]["verdict"], "blocked");
    for statement in statements.unwrap().split(";\n").filter(|text| !text.trim().is_empty()) {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    assert_eq!(history(&mut conn), before);
    let (_, create): (String, String) =
        conn.query_first("SHOW CREATE TABLE shop.prices").unwrap().unwrap();
    assert!(create.contains("ENGINE=Tidepool") && create.contains("SYSTEM VERSIONING"), "{create}");
}

/// How many foreign keys the journal has. (To look at foreign keys themselves waits for an ALTER.)
fn noted(server: &Server) -> Option<u64> {
    let query = "SELECT COUNT(*) FROM tidepool_convert.constraints";
    server.try_connect("").ok()?.query_first(query).ok().flatten()
}

#[test]
fn kills_while_the_tables_are_locked_lose_nothing() {
    let mut server = server("convert-locked-kills", &[]);
    fill(&server);
    let before = content(&server);
    let mut cut_off = 0;
    for (round, is_server) in [false, true, false, true].into_iter().enumerate() {
        let back: &[&str] = if round % 2 == 0 { &["--apply"] } else { &["--apply", "--back"] };
        let mut child = begin(&server, back);
        let patience = Instant::now();
        while noted(&server).is_none_or(|noted| noted == 0) && child.try_wait().unwrap().is_none() {
            assert!(patience.elapsed() < PATIENCE, "the journal is written before the first DROP");
            std::thread::sleep(Duration::from_millis(2));
        }
        if is_server {
            server.kill9();
            ends_with(&child.wait_with_output().unwrap(), 7);
            server.restart();
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        cut_off += u64::from(noted(&server).is_some_and(|noted| noted > 0));
        ends_with(&convert_when_free(&server, back), 0);
        assert_eq!(constraints(&server), (7, 0));
        is_as_before(&server, &before);
    }
    assert!(cut_off > 0, "no kill came in the middle");
}

#[test]
fn replicas_can_be_left_out() {
    let server =
        server("convert-log-bin", &["--log-bin=bin", "--server-id=1", "--binlog-format=ROW"]);
    fill(&server);
    let events = |server: &Server| -> Vec<String> {
        let rows: Vec<(String, u64, String, u64, u64, String)> =
            server.connect().query("SHOW BINLOG EVENTS").unwrap();
        rows.into_iter().map(|row| row.5).collect()
    };
    let before = events(&server).len();
    ends_with(&convert(&server, &[]), 0);
    ends_with(&convert(&server, &["--apply", "--skip-log-bin"]), 0);
    assert_eq!(engines(&server), ["Tidepool"]);
    assert_eq!(events(&server)[before..], Vec::<String>::new());
    // Else they get what changes the tables, and neither the trial nor the journal.
    ends_with(&convert(&server, &["--apply", "--back"]), 0);
    let after = events(&server)[before..].join("\n");
    assert!(after.contains("ALTER TABLE `shop`.`orders` ENGINE=InnoDB"), "{after}");
    assert!(!after.contains("tidepool_convert"), "{after}");
}
