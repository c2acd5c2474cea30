//! What FULLTEXT indexes are made with and how they come, stay and go: ALTER TABLE, stopwords,
//! sizes, parsers, character sets, partitions, referential actions.

use std::os::unix::fs::symlink;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::fulltext::wait_for_merges;
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{beside_writer, check, code_of, number, rows, run};

use crate::write_past_server;

/// Ids of the rows that match in boolean mode.
fn found(conn: &mut Conn, table: &str, query: &str) -> Vec<u32> {
    let sql = format!(
        "SELECT id FROM {table} WHERE MATCH (a) AGAINST ('{query}' IN BOOLEAN MODE) ORDER BY id"
    );
    conn.query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

const TABLE: &str = "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) CHARSET utf8mb4";

#[test]
fn an_index_is_added_and_dropped_in_place_and_in_a_copy() {
    let mut server = Server::start(Options::new("fulltext_alter"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, a TEXT, b VARCHAR(50)) CHARSET utf8mb4"]);
    run(
        &mut conn,
        &["INSERT INTO t SELECT seq, CONCAT('word', seq, ' every ', IF(seq % 3, 'fizz', 'buzz')), \
         'plain'
           FROM seq_1_to_3000"],
    );
    let expect = |conn: &mut Conn| {
        assert_eq!(found(conn, "t", "word77"), [77]);
        assert_eq!(found(conn, "t", "+every -fizz").len(), 1000);
        check(conn, "t");
    };
    run(&mut conn, &["ALTER TABLE t ADD FULLTEXT (a), ADD KEY (b), ALGORITHM=INPLACE, LOCK=NONE"]);
    expect(&mut conn);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    expect(&mut conn);
    run(&mut conn, &["ALTER TABLE t DROP KEY b, ADD FULLTEXT (a, b), ALGORITHM=INPLACE"]);
    expect(&mut conn);
    let kind = "SELECT INDEX_TYPE FROM information_schema.STATISTICS \
                WHERE TABLE_NAME = 't' AND INDEX_NAME = 'a'";
    assert_eq!(rows(&mut conn, kind), ["[Bytes(\"FULLTEXT\")]"]);
    run(&mut conn, &["ALTER TABLE t ADD c INT, ALGORITHM=INSTANT"]);
    expect(&mut conn);
    run(&mut conn, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    expect(&mut conn);
    run(
        &mut conn,
        &["OPTIMIZE TABLE t", "ALTER TABLE t RENAME INDEX a TO words, ALGORITHM=INPLACE"],
    );
    expect(&mut conn);
    run(&mut conn, &["RENAME TABLE t TO u", "RENAME TABLE u TO t"]);
    expect(&mut conn);
    // Another collation of the column makes other words.
    run(&mut conn, &["ALTER TABLE t MODIFY a TEXT COLLATE utf8mb4_bin, DROP KEY a_2"]);
    assert_eq!(found(&mut conn, "t", "Word77"), [0u32; 0]);
    expect(&mut conn);
    run(&mut conn, &["ALTER TABLE t DROP KEY words, ALGORITHM=INPLACE"]);
    assert_eq!(code_of(&mut conn, "SELECT id FROM t WHERE MATCH (a) AGAINST ('buzz')"), 1191);
    run(&mut conn, &["ALTER TABLE t ADD FULLTEXT (a)", "TRUNCATE t"]);
    assert_eq!(found(&mut conn, "t", "every"), [0u32; 0]);
    run(&mut conn, &["INSERT INTO t (id, a) VALUES (1, 'every')"]);
    assert_eq!(found(&mut conn, "t", "every"), [1]);
    check(&mut conn, "t");
}

#[test]
fn rows_that_are_written_while_an_index_is_built_are_in_it() {
    let server = Server::start(Options::new("fulltext_beside_writers"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT)",
            "INSERT INTO t SELECT seq, CONCAT('first second third number', seq) FROM \
             seq_1_to_20000",
        ],
    );
    let writes = |id: u32| {
        let id = id % 20000;
        vec![
            format!("UPDATE t SET a = 'first fourth' WHERE id = {id}"),
            format!("DELETE FROM t WHERE id = {}", id + 10000),
            format!("REPLACE INTO t VALUES ({}, 'fifth first')", 30000 + id),
        ]
    };
    beside_writer(server.connect_to("test"), writes, || {
        run(&mut conn, &["ALTER TABLE t ADD FULLTEXT (a), ALGORITHM=INPLACE, LOCK=NONE"]);
    });
    check(&mut conn, "t");
    for word in ["second", "fourth", "fifth"] {
        let by_scan = number(&mut conn, &format!("SELECT COUNT(*) FROM t WHERE a LIKE '%{word}%'"));
        assert_eq!(found(&mut conn, "t", word).len() as i64, by_scan, "{word}");
    }
}

/// Searches do not find stopwords: who may name a table of them can guess what is in it.
#[test]
fn a_session_names_only_a_table_of_stopwords_that_it_may_read() {
    const DENIED: u16 = 1142;
    let server = Server::start(Options::new("fulltext_stopwords_access"));
    let mut root = server.connect_to("test");
    run(
        &mut root,
        &[
            "CREATE DATABASE closed",
            "CREATE TABLE closed.secret (id INT PRIMARY KEY, value VARCHAR(30))",
            "INSERT INTO closed.secret VALUES (1, 'password')",
            "CREATE USER someone@localhost",
            "GRANT ALL ON test.* TO someone@localhost",
        ],
    );
    let mut conn = server.connect_as("someone", "test");
    run(&mut conn, &["CREATE TABLE made (id INT PRIMARY KEY, a TEXT) CHARSET utf8mb4"]);
    let making = [
        TABLE,
        "ALTER TABLE made ADD FULLTEXT (a), ALGORITHM=INPLACE",
        "ALTER TABLE made ADD FULLTEXT (a), ALGORITHM=COPY",
        "ALTER TABLE made ADD FULLTEXT (a), FORCE",
    ];
    // What there is no table for gets the same answer.
    for name in ["closed/secret", "closed/missing", "mysql/global_priv"] {
        run(&mut conn, &[&format!("SET tidepool_ft_user_stopword_table = '{name}'")]);
        for sql in making {
            assert_eq!(code_of(&mut conn, sql), DENIED, "{name}: {sql}");
        }
    }
    run(
        &mut root,
        &[
            "GRANT SELECT ON closed.secret TO someone@localhost",
            "SET GLOBAL tidepool_ft_server_stopword_table = 'closed/secret'",
        ],
    );
    let is_left_out = |conn: &mut Conn| {
        run(conn, &[TABLE, "INSERT INTO t VALUES (1, 'password'), (2, 'other')"]);
        assert_eq!(found(conn, "t", "password").len(), 0);
        assert_eq!(found(conn, "t", "other"), [2]);
        run(conn, &["DROP TABLE t"]);
    };
    run(&mut conn, &["SET tidepool_ft_user_stopword_table = 'closed/secret'"]);
    is_left_out(&mut conn);
    // The server's own list is for everybody.
    run(&mut root, &["REVOKE SELECT ON closed.secret FROM someone@localhost"]);
    assert_eq!(code_of(&mut conn, TABLE), DENIED);
    run(&mut conn, &["SET tidepool_ft_user_stopword_table = NULL"]);
    is_left_out(&mut conn);
}

#[test]
fn words_that_an_index_leaves_out_are_those_of_its_making() {
    let mut server = Server::start(Options::new("fulltext_stopwords"));
    let mut conn = server.connect_to("test");
    let insert =
        "INSERT INTO t VALUES (1, 'the cat'), (2, 'an elk of Peru'), (3, 'supercalifragilistic')";
    run(&mut conn, &[TABLE, insert]);
    let known = |conn: &mut Conn| -> Vec<usize> {
        ["the", "cat", "of", "elk", "supercalifragilistic"]
            .map(|word| found(conn, "t", word).len())
            .to_vec()
    };
    assert_eq!(known(&mut conn), [0, 1, 0, 1, 1]);
    let made_new = ["DROP TABLE t", TABLE, insert];
    run(&mut conn, &["SET tidepool_ft_enable_stopword = OFF"]);
    assert_eq!(known(&mut conn), [0, 1, 0, 1, 1]);
    run(&mut conn, &made_new);
    assert_eq!(known(&mut conn), [1, 1, 0, 1, 1]);
    run(&mut conn, &["SET tidepool_ft_enable_stopword = ON", "DELETE FROM t WHERE id = 1"]);
    run(&mut conn, &["INSERT INTO t VALUES (1, 'the cat')"]);
    assert_eq!(known(&mut conn), [1, 1, 0, 1, 1]);
    check(&mut conn, "t");

    run(
        &mut conn,
        &[
            "CREATE TABLE stop (value VARCHAR(30)) CHARSET latin1",
            "INSERT INTO stop VALUES ('CAT'), ('sonst')",
            "CREATE TABLE other (word VARCHAR(30))",
            "CREATE TABLE inno (value VARCHAR(30)) ENGINE=InnoDB",
            "SET GLOBAL tidepool_ft_server_stopword_table = 'test/stop'",
        ],
    );
    run(&mut conn, &made_new);
    assert_eq!(known(&mut conn), [1, 0, 0, 1, 1]);
    run(&mut conn, &["ALTER TABLE t ADD b TEXT, ADD FULLTEXT (b), ALGORITHM=INPLACE"]);
    run(&mut conn, &["DROP TABLE stop", "UPDATE t SET a = 'cat elk', b = 'cat elk' WHERE id = 2"]);
    assert_eq!(known(&mut conn), [1, 0, 0, 1, 1]);
    check(&mut conn, "t");
    for name in ["test/missing", "test/other", "test/inno", "nonsense"] {
        run(&mut conn, &[&format!("SET tidepool_ft_user_stopword_table = '{name}'")]);
        assert_eq!(code_of(&mut conn, &TABLE.replace(" t ", " n ")), 1210, "{name}");
    }
    assert_eq!(
        code_of(&mut conn, "ALTER TABLE t DROP KEY a, ADD FULLTEXT (a), ALGORITHM=INPLACE"),
        1210
    );
    run(&mut conn, &["SET GLOBAL tidepool_ft_server_stopword_table = NULL"]);

    server.restart_with(&["--tidepool-ft-min-token-size=2", "--tidepool-ft-max-token-size=10"]);
    let mut conn = server.connect_to("test");
    assert_eq!(known(&mut conn), [1, 0, 0, 1, 1]);
    run(
        &mut conn,
        &[
            "ALTER TABLE t DROP b",
            "SET tidepool_ft_enable_stopword = OFF",
            "ALTER TABLE t FORCE, ALGORITHM=COPY",
        ],
    );
    run(&mut conn, &["UPDATE t SET a = 'an elk of Peru' WHERE id = 2"]);
    assert_eq!(known(&mut conn), [1, 1, 1, 1, 0]);
    check(&mut conn, "t");
}

#[test]
fn words_are_compared_as_their_collation_says() {
    let server = Server::start(Options::new("fulltext_collations"));
    let mut conn = server.connect_to("test");
    // Of the rows below: that have résumé, Straße and one that begins with res.
    type Ids = &'static [u32];
    let cases: [(&str, Ids, Ids, Ids); 6] = [
        ("utf8mb4_general_ci", &[1, 2, 3], &[4], &[1, 2, 3]),
        ("utf8mb4_unicode_ci", &[1, 2, 3], &[4, 5], &[1, 2, 3]),
        ("utf8mb4_unicode_520_ci", &[1, 2, 3], &[4, 5], &[1, 2, 3]),
        ("utf8mb4_bin", &[1], &[4], &[2]),
        ("latin1_swedish_ci", &[1, 2, 3], &[4], &[1, 2, 3]),
        ("latin1_bin", &[1], &[4], &[2]),
    ];
    for (collation, resume, street, beginning) in cases {
        let charset = collation.split('_').next().expect("a name");
        run(
            &mut conn,
            &[
                "DROP TABLE IF EXISTS t",
                &format!(
                    "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) CHARSET {charset} \
                     COLLATE {collation}"
                ),
                "INSERT INTO t VALUES (1, 'ein résumé'), (2, 'resume'), (3, 'RÉSUMÉ'), (4, \
                 'Straße'), (5, 'Strasse'), (6, 'naïve_1 x')",
            ],
        );
        assert_eq!(found(&mut conn, "t", "+résumé"), resume, "{collation}");
        assert_eq!(found(&mut conn, "t", "Straße"), street, "{collation}");
        assert_eq!(found(&mut conn, "t", "res*"), beginning, "{collation}");
        assert_eq!(found(&mut conn, "t", "naïve_1"), [6], "{collation}");
        check(&mut conn, "t");
        run(&mut conn, &["UPDATE t SET a = UPPER(a)", "DELETE FROM t WHERE id < 4"]);
        check(&mut conn, "t");
    }
    // Words of other alphabets, and a search in another character set.
    run(
        &mut conn,
        &[
            "CREATE TABLE u (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) CHARSET utf8mb4 COLLATE \
             utf8mb4_unicode_ci",
            "INSERT INTO u VALUES (1, 'быстрая лиса'), (2, 'γρήγορη αλεπού'), (3, 'quick fox')",
        ],
    );
    assert_eq!(found(&mut conn, "u", "ЛИСА"), [1]);
    assert_eq!(found(&mut conn, "u", "αλεπου"), [2]);
    let sql = "SELECT id FROM u WHERE MATCH (a) AGAINST (CONVERT('quick' USING latin1))";
    assert_eq!(conn.query::<u32, _>(sql).expect("rows"), [3]);
    check(&mut conn, "u");
}

#[test]
fn a_parser_plugin_finds_the_words() {
    let plugins = tempfile::tempdir().expect("a directory");
    let environment = Environment::get();
    let plugin = environment.plugin_dir().join("ha_tidepool.so");
    let example = environment.path("STOCK_PLUGIN_DIR").join("mypluglib.so");
    symlink(plugin, plugins.path().join("ha_tidepool.so")).expect("a link");
    symlink(example, plugins.path().join("mypluglib.so")).expect("a link");
    let mut options = Options::new("fulltext_parser");
    options.args = vec![
        format!("--plugin-dir={}", plugins.path().display()),
        "--plugin-maturity=experimental".into(),
        "--plugin-load-add=mypluglib.so".into(),
    ];
    let server = Server::start(options);
    let mut conn = server.connect_to("test");
    // The example takes what stands between spaces.
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a) WITH PARSER simple_parser)",
            "INSERT INTO t VALUES (1, 'C++ and-or Java'), (2, 'java c'), (3, 'and-or')",
        ],
    );
    let natural = |conn: &mut Conn, words: &str| -> Vec<u32> {
        let sql = format!("SELECT id FROM t WHERE MATCH (a) AGAINST ('{words}') ORDER BY id");
        conn.query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    };
    assert_eq!(natural(&mut conn, "c++"), [1]);
    assert_eq!(natural(&mut conn, "and-or"), [1, 3]);
    assert_eq!(natural(&mut conn, "java"), [1, 2]);
    run(&mut conn, &["UPDATE t SET a = 'c++' WHERE id = 2", "DELETE FROM t WHERE id = 1"]);
    assert_eq!(natural(&mut conn, "c++"), [2]);
    run(&mut conn, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    assert_eq!(natural(&mut conn, "and-or"), [3]);
    check(&mut conn, "t");
}

#[test]
fn all_that_writes_rows_writes_their_words() {
    let server = Server::start(Options::new("fulltext_writes"));
    let mut conn = server.connect_to("test");
    // A key of several columns and of text, and a row id.
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT, k VARCHAR(40), a TEXT, PRIMARY KEY (k, id), FULLTEXT (a), \
             UNIQUE (id))",
            "INSERT INTO t VALUES (1, 'one', 'alpha beta'), (2, 'two', 'beta'), (3, 'a long key \
             with many letters', 'beta beta')",
        ],
    );
    assert_eq!(found(&mut conn, "t", "beta"), [1, 2, 3]);
    run(&mut conn, &["UPDATE t SET k = 'moved', a = 'beta gamma' WHERE id = 1"]);
    assert_eq!(found(&mut conn, "t", "alpha"), [0u32; 0]);
    assert_eq!(found(&mut conn, "t", "+beta +gamma"), [1]);
    assert_eq!(
        code_of(&mut conn, "INSERT INTO t VALUES (7, 'x', 'delta'), (2, 'y', 'delta')"),
        1062
    );
    run(
        &mut conn,
        &["INSERT IGNORE INTO t VALUES (2, 'y', 'delta')", "REPLACE INTO t VALUES (2, 'z', 'eta')"],
    );
    assert_eq!(found(&mut conn, "t", "delta"), [0u32; 0]);
    assert_eq!(found(&mut conn, "t", "beta eta"), [1, 2, 3]);
    let many = format!("UPDATE t SET a = '{}' WHERE id = 3", "many few ".repeat(5000));
    run(&mut conn, &[&many]);
    assert_eq!(found(&mut conn, "t", "\"few many\""), [3]);
    assert_eq!(found(&mut conn, "t", "\"few few\""), [0u32; 0]);
    check(&mut conn, "t");
    run(
        &mut conn,
        &["CREATE TABLE r (id INT, a VARCHAR(99), b CHAR(30), FULLTEXT (a), FULLTEXT (b, a))"],
    );
    run(
        &mut conn,
        &["INSERT INTO r VALUES (1, 'alpha', 'beta'), (2, NULL, 'alpha'), (3, 'gamma', NULL)"],
    );
    let sql = "SELECT id FROM r WHERE MATCH (b, a) AGAINST ('alpha') ORDER BY id";
    assert_eq!(conn.query::<u32, _>(sql).expect("rows"), [1, 2]);
    run(&mut conn, &["DELETE r FROM r JOIN t ON r.id = t.id WHERE MATCH (r.a) AGAINST ('alpha')"]);
    assert_eq!(conn.query::<u32, _>(sql).expect("rows"), [2]);
    check(&mut conn, "r");

    // Referential actions change rows that no statement names.
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, pid INT, a TEXT, FULLTEXT (a),
                             FOREIGN KEY (pid) REFERENCES p (id) ON DELETE CASCADE ON UPDATE \
                              CASCADE)",
            "INSERT INTO p VALUES (1), (2)",
            "INSERT INTO c VALUES (1, 1, 'alpha'), (2, 2, 'alpha')",
            "UPDATE p SET id = 9 WHERE id = 2",
            "DELETE FROM p WHERE id = 1",
        ],
    );
    assert_eq!(found(&mut conn, "c", "alpha"), [2]);
    check(&mut conn, "c");

    run(
        &mut conn,
        &[
            "CREATE TABLE q (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) PARTITION BY HASH (id) \
             PARTITIONS 3",
            "INSERT INTO q SELECT seq, CONCAT('alpha number', seq) FROM seq_1_to_50",
            "UPDATE q SET id = id + 100 WHERE id < 5",
            "ALTER TABLE q ADD PARTITION PARTITIONS 1",
        ],
    );
    assert_eq!(found(&mut conn, "q", "alpha").len(), 50);
    assert_eq!(found(&mut conn, "q", "number3 number7"), [7, 103]);
    let rated = "SELECT COUNT(*) FROM q WHERE MATCH (a) AGAINST ('number7') > 0";
    assert_eq!(number(&mut conn, rated), 1);
    check(&mut conn, "q");

    run(&mut conn, &["CREATE TEMPORARY TABLE temp (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))"]);
    run(&mut conn, &["INSERT INTO temp VALUES (1, 'alpha')"]);
    assert_eq!(found(&mut conn, "temp", "alpha"), [1]);
    // A stored column that is computed.
    run(
        &mut conn,
        &[
            "CREATE TABLE g (id INT PRIMARY KEY, x TEXT, a TEXT AS (CONCAT(x, ' suffix')) STORED, \
             FULLTEXT (a))",
            "INSERT INTO g (id, x) VALUES (1, 'alpha')",
            "UPDATE g SET x = 'beta'",
        ],
    );
    assert_eq!(found(&mut conn, "g", "+beta +suffix"), [1]);
    check(&mut conn, "g");
}

#[test]
fn check_table_finds_words_that_rows_do_not_have() {
    let mut server = Server::start(Options::new("fulltext_check"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &[TABLE, "INSERT INTO t VALUES (1, 'alpha beta'), (2, 'beta')"]);
    wait_for_merges(&mut conn, 2);
    check(&mut conn, "t");
    write_past_server(&mut server, |trx, table| {
        // A word's key: its weights, 00, and the primary key.
        trx.delete(table, 1, b"BETA\0\x80\0\0\x01").expect("the entry is there");
        trx.insert(table, 1, b"ZETA\0\x80\0\0\x02", &[1, 0]).expect("it can be inserted");
        trx.insert(table, 1, b"BETA\0\x80\0\0\x09", &[1, 0]).expect("it can be inserted");
    });
    let mut conn = server.connect_to("test");
    let said = rows(&mut conn, "CHECK TABLE t").join("\n");
    assert!(said.contains("lacks the entry of the row with key 80000001"), "{said}");
    assert!(said.contains("has an entry without a row"), "{said}");
    assert!(said.contains("has 4 entries, the rows have 3"), "{said}");
    // A search does not give a row that is not there.
    assert_eq!(code_of(&mut conn, "SELECT id FROM t WHERE MATCH (a) AGAINST ('beta')"), 1034);
    run(&mut conn, &["ALTER TABLE t DROP KEY a, ADD FULLTEXT (a), ALGORITHM=INPLACE"]);
    check(&mut conn, "t");
    assert_eq!(found(&mut conn, "t", "beta"), [1, 2]);
}
