//! Changes of a table, in every ALGORITHM and LOCK.

use std::collections::BTreeMap;
use std::fmt::Write;

use mysql::Conn;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::Engine;
use tidepool_tests::sql::{code_of, run};

use super::{ENGINES, assert_reasoned, server, text};

const ALGORITHMS: [&str; 4] = ["INSTANT", "NOCOPY", "INPLACE", "COPY"];
const LOCKS: [&str; 3] = ["NONE", "SHARED", "EXCLUSIVE"];
/// The server's codes for an algorithm or a lock that the change can't have, without and with the
/// reason.
const UNSUPPORTED: [u16; 2] = [1845, 1846];
const PAGE: &str = "docs/reference/compatibility.md";
const BEGIN: &str = "<!-- alter table: begin -->\n";
const END: &str = "<!-- alter table: end -->";

/// What all changes are made to.
const TABLE: &str = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) NOT NULL, d INT, n \
                     INT NOT NULL, v VARCHAR(20), t TEXT, c CHAR(10), m DECIMAL(10,2), e \
                     ENUM('a','b','c'), w DATETIME, u VARCHAR(20) CHARACTER SET utf8mb3, l \
                     VARCHAR(20) CHARACTER SET latin1, r INT, INDEX i_a (a), UNIQUE INDEX u_b (b), \
                     INDEX i_r (r), CONSTRAINT ck CHECK (n < 2000)) CHARACTER SET utf8mb4";

const PARENT: &str = "CREATE TABLE p (id INT PRIMARY KEY)";

const ROWS: &str = "INSERT INTO t (id, a, b, d, n, v, t, c, m, e, w, u, l, r) VALUES (1, 1, 'one', \
                    1, 1, 'v', 't', 'c', 1, 'a', '2020-01-01', 'u', 'l', 1), (2, 2, 'two', 2, 2, \
                    'v', 't', 'c', 2, 'b', '2020-01-02', 'u', 'l', 2)";

/// The answers of one engine to one change: by algorithm and lock, the error's number, or 0.
type Answers = BTreeMap<(usize, usize), u16>;

/// What kind of table a change is made to.
#[derive(Clone, Copy)]
enum Shape {
    Plain,
    Generated,
    /// With a foreign key.
    Child,
    /// Without the UNIQUE index, which partitions don't go with.
    OneKey,
    /// Without a key that could be the primary one.
    NoKey,
    Versioned,
    VersionedPartitions,
    /// With an index on a virtual column.
    GeneratedKey,
}

impl Shape {
    fn statement(self) -> Option<&'static str> {
        match self {
            Shape::Plain => None,
            Shape::Generated => Some(
                "ALTER TABLE t ADD COLUMN g INT AS (a + 1) VIRTUAL, ADD COLUMN s INT AS (a * 2) \
                 STORED",
            ),
            Shape::Child => {
                Some("ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES p (id)")
            }
            Shape::OneKey => Some("ALTER TABLE t DROP INDEX u_b"),
            Shape::NoKey => Some("ALTER TABLE t DROP PRIMARY KEY, DROP INDEX u_b"),
            Shape::Versioned => Some("ALTER TABLE t ADD SYSTEM VERSIONING"),
            Shape::VersionedPartitions => Some(
                "ALTER TABLE t ADD SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 1000 \
                 PARTITIONS 3",
            ),
            Shape::GeneratedKey => {
                Some("ALTER TABLE t ADD COLUMN g INT AS (a + 1) VIRTUAL, ADD INDEX i_g (g)")
            }
        }
    }
}

struct Change {
    name: String,
    clause: String,
    shape: Shape,
}

fn changes() -> Vec<Change> {
    let text = text("alters.txt");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, clause) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
            let (clause, shape) = match clause.rsplit_once(" | ") {
                None => (clause, Shape::Plain),
                Some((clause, "with generated columns")) => (clause, Shape::Generated),
                Some((clause, "with a foreign key")) => (clause, Shape::Child),
                Some((clause, "with one unique key")) => (clause, Shape::OneKey),
                Some((clause, "with no unique key")) => (clause, Shape::NoKey),
                Some((clause, "with system versioning")) => (clause, Shape::Versioned),
                Some((clause, "with partitions of system time")) => {
                    (clause, Shape::VersionedPartitions)
                }
                Some((clause, "with an index on a virtual column")) => {
                    (clause, Shape::GeneratedKey)
                }
                Some((_, other)) => panic!("{line}: {other}"),
            };
            Change { name: name.into(), clause: clause.into(), shape }
        })
        .collect()
}

/// The database, with what the table references.
fn make_database(conn: &mut Conn, engine: Engine) {
    let default = format!("SET default_storage_engine = {}", engine.name());
    let database = ["DROP DATABASE IF EXISTS alters", "CREATE DATABASE alters", "USE alters"];
    run(conn, &database);
    run(conn, &["SET system_versioning_alter_history = KEEP"]);
    run(conn, &[&default, PARENT, "INSERT INTO p VALUES (1), (2)"]);
}

/// The table anew.
fn make(conn: &mut Conn, change: &Change) {
    run(conn, &["DROP TABLE IF EXISTS t, t_renamed", TABLE, ROWS]);
    if let Some(statement) = change.shape.statement() {
        run(conn, &[statement]);
    }
}

/// All answers to one change. A table that was changed is made anew.
fn answers(conn: &mut Conn, engine: Engine, change: &Change) -> Answers {
    let clause = change.clause.replace("{engine}", engine.name());
    let mut answers = Answers::new();
    for (at_algorithm, algorithm) in ALGORITHMS.iter().enumerate() {
        for (at_lock, lock) in LOCKS.iter().enumerate() {
            let how = format!("ALGORITHM={algorithm}, LOCK={lock}");
            // This one comes last, without a comma.
            let statement = match clause.starts_with("PARTITION") {
                true => format!("ALTER TABLE t {how} {clause}"),
                false => format!("ALTER TABLE t {clause}, {how}"),
            };
            let code = code_of(conn, &statement);
            assert_ne!(code, 1064, "{statement}");
            answers.insert((at_algorithm, at_lock), code);
            if code == 0 {
                make(conn, change);
            }
        }
    }
    answers
}

/// `INSTANT NSE, COPY SE`: the algorithms that work, with the letters of their locks; or the codes.
fn summary(answers: &Answers) -> String {
    let mut parts = Vec::new();
    for (at, algorithm) in ALGORITHMS.iter().enumerate() {
        let of = |lock: usize| answers[&(at, lock)];
        let locks: String = LOCKS
            .iter()
            .enumerate()
            .filter(|(lock, _)| of(*lock) == 0)
            .map(|(_, l)| &l[..1])
            .collect();
        let mut codes: Vec<u16> = (0..LOCKS.len())
            .map(of)
            .filter(|code| *code != 0 && !UNSUPPORTED.contains(code))
            .collect();
        codes.dedup();
        let codes: String = codes.iter().map(|code| format!(" error {code}")).collect();
        if !locks.is_empty() || !codes.is_empty() {
            parts.push(format!("{algorithm} {locks}{codes}"));
        }
    }
    if parts.is_empty() { "refused".into() } else { parts.join(", ") }
}

/// How a change works where nothing is asked for: the first algorithm that does, and its weakest
/// lock.
fn how(answers: &Answers) -> String {
    let works = |key: &(usize, usize)| answers[key] == 0;
    let Some((algorithm, lock)) = answers.keys().copied().find(works) else {
        let code = answers.values().last().copied().unwrap_or_default();
        return format!("error {code}");
    };
    let algorithm = match ALGORITHMS[algorithm] {
        "INSTANT" => return "instant".into(),
        "COPY" => "copy",
        _ => "in place",
    };
    let others = match LOCKS[lock] {
        "NONE" => "others write",
        "SHARED" => "others read",
        _ => "others wait",
    };
    format!("{algorithm}, {others}")
}

/// The rows of the page.
fn table(changes: &[Change], all: &[[Answers; 2]]) -> String {
    let mut table = "| change | Tidepool | InnoDB |\n|---|---|---|\n".to_owned();
    for (change, [tidepool, innodb]) in changes.iter().zip(all) {
        let _ = writeln!(table, "| {} | {} | {} |", change.name, how(tidepool), how(innodb));
    }
    table
}

#[test]
fn alter_table_works_as_the_page_says_and_as_innodbs_except_for_reasons() {
    let server = server("compatibility-alters");
    let mut conn = server.connect();
    let changes = changes();
    assert!(changes.len() >= 67, "{}", changes.len());
    let [tidepool, innodb] = ENGINES.map(|engine| -> Vec<Answers> {
        make_database(&mut conn, engine);
        changes
            .iter()
            .map(|change| {
                make(&mut conn, change);
                answers(&mut conn, engine, change)
            })
            .collect()
    });
    let all: Vec<[Answers; 2]> = tidepool.into_iter().zip(innodb).map(|(t, i)| [t, i]).collect();
    let version: Option<String> =
        mysql::prelude::Queryable::query_first(&mut conn, "SELECT VERSION()").expect("a version");
    let mut differences = BTreeMap::new();
    for (change, [tidepool, innodb]) in changes.iter().zip(&all) {
        let (tidepool, innodb) = (summary(tidepool), summary(innodb));
        if tidepool != innodb {
            let difference = format!("    Tidepool: {tidepool}\n    InnoDB:   {innodb}");
            differences.insert(change.name.clone(), difference);
        }
    }
    // The lists are of one version.
    if version.is_some_and(|version| version.starts_with("10.11.")) {
        check_page(&table(&changes, &all));
        assert_reasoned("alters.allowed", &differences);
    }
}

fn check_page(table: &str) {
    let path = Environment::get().root().join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap_or_else(|| panic!("{PAGE}: no {BEGIN}"));
    let (found, after) = rest.split_once(END).unwrap_or_else(|| panic!("{PAGE}: no {END}"));
    if found == table {
        return;
    }
    if std::env::var_os("TIDEPOOL_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    let differ: Vec<(&str, &str)> =
        found.lines().zip(table.lines()).filter(|(found, now)| found != now).collect();
    panic!("{PAGE} says otherwise (TIDEPOOL_UPDATE=1 writes it anew): {differ:#?}");
}
