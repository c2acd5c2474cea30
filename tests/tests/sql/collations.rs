//! Every collation of the server: which strings are one key, and which comes first. InnoDB, which
//! compares strings instead of making bytes of them, says what is right.

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::run;

/// Characters of each character set, beside all those of one byte.
const CHARACTERS: u32 = 600;
/// The encodings that repeat the collations of utf8mb4. Of these, the languages' own are left out.
const OTHER_UNICODE: [&str; 5] = ["utf8mb3", "ucs2", "utf16", "utf16le", "utf32"];

/// Strings of one character and of several, with spaces, and with what sorts below a space, before
/// and behind them.
fn make_strings(conn: &mut Conn, charset: &str) {
    let step = 0x1_1000 / CHARACTERS;
    run(
        conn,
        &[
            "SET sql_mode = ''",
            "DROP TABLE IF EXISTS characters, strings",
            &format!("CREATE TABLE characters (c VARCHAR(1) CHARACTER SET {charset}) ENGINE=MEMORY"),
            &format!(
                "INSERT IGNORE INTO characters
                 SELECT u FROM (
                     SELECT CONVERT(UNHEX(LPAD(HEX(seq), 8, '0')) USING utf32) u FROM (
                         SELECT seq FROM seq_1_to_591
                         UNION ALL
                         SELECT seq FROM seq_592_to_69631_step_{step} WHERE seq NOT BETWEEN 55296 AND 57343
                         UNION ALL
                         SELECT seq FROM seq_19968_to_20267
                     ) codes
                 ) unicode
                 WHERE CONVERT(CONVERT(u USING {charset}) USING utf32) COLLATE utf32_bin = u COLLATE utf32_bin"
            ),
            &format!(
                "CREATE TABLE strings (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(4) CHARACTER SET {charset}) ENGINE=MyISAM"
            ),
            "INSERT INTO strings (s) SELECT c FROM characters ORDER BY HEX(c)",
            &format!(
                "INSERT INTO strings (s)
             SELECT CONCAT(CONVERT(before_it USING {charset}), c, CONVERT(behind_it USING {charset}))
             FROM (SELECT c, ROW_NUMBER() OVER (ORDER BY HEX(c)) n FROM characters) numbered,
                  (SELECT '' before_it, ' ' behind_it UNION SELECT '', '  a' UNION SELECT 'a', CHAR(9 USING ascii)
                   UNION SELECT ' ', CHAR(1 USING ascii) UNION SELECT 'a', '' UNION SELECT '', 'h') others
             WHERE n % 4 = 0 ORDER BY HEX(c), before_it, behind_it"
            ),
        ],
    );
}

/// The strings that a unique key keeps, in its order.
fn keys(conn: &mut Conn, engine: Engine, charset: &str, collation: &str) -> Vec<String> {
    run(
        conn,
        &[
            &format!(
                "CREATE OR REPLACE TABLE keyed (s VARCHAR(4) CHARACTER SET {charset} COLLATE {collation} PRIMARY KEY) ENGINE={}",
                engine.name()
            ),
            "INSERT IGNORE INTO keyed SELECT s FROM strings ORDER BY id",
        ],
    );
    conn.query("SELECT HEX(s) FROM keyed FORCE INDEX (PRIMARY) ORDER BY s").expect("the keys")
}

/// What is found by the key that [`keys`] has made: each string of all, and those that begin as
/// some of them do.
fn found(conn: &mut Conn, collation: &str) -> Vec<String> {
    let mut found: Vec<String> = conn
        .query(format!(
            "SELECT CONCAT(HEX(strings.s), ' is ', COALESCE(HEX(keyed.s), 'nothing'))
             FROM strings LEFT JOIN keyed FORCE INDEX (PRIMARY) ON keyed.s = strings.s COLLATE {collation}
             ORDER BY strings.id"
        ))
        .expect("each string");
    let beginnings: Vec<String> = conn
        .query("SELECT DISTINCT HEX(LEFT(s, 1)) FROM strings WHERE id % 131 = 0 AND s > '' ORDER BY id")
        .expect("beginnings");
    for beginning in beginnings {
        let pattern =
            format!("CONCAT((SELECT s FROM strings WHERE HEX(s) = '{beginning}' LIMIT 1), '%')");
        run(conn, &[&format!("SET @pattern = {pattern} COLLATE {collation}")]);
        let like = "SELECT CONCAT(HEX(@pattern), ' is like ', HEX(s)) FROM keyed FORCE INDEX (PRIMARY) WHERE s LIKE @pattern ORDER BY s";
        found.extend(conn.query::<String, _>(like).expect("what is like it"));
    }
    found
}

#[test]
fn keys_are_what_innodb_compares() {
    let options = Options::new("collations").engine(Engine::Tidepool);
    let server = Server::start(
        options
            .arg("--innodb-flush-log-at-trx-commit=0")
            .arg("--tidepool-flush-log-at-trx-commit=0"),
    );
    let mut conn = server.connect_to("test");
    let collations: Vec<(String, String)> = conn
        .query(
            "SELECT CHARACTER_SET_NAME, FULL_COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY
             WHERE CHARACTER_SET_NAME <> 'binary' ORDER BY 1, 2",
        )
        .expect("the collations");
    let mut last = String::new();
    let (mut compared, mut different) = (0, Vec::new());
    for (charset, collation) in &collations {
        let language = collation.trim_start_matches(charset.as_str()).matches('_').count() > 2;
        if OTHER_UNICODE.contains(&charset.as_str()) && language {
            continue;
        }
        if *charset != last {
            make_strings(&mut conn, charset);
            last.clone_from(charset);
        }
        let [innodb, tidepool] = [Engine::InnoDb, Engine::Tidepool].map(|engine| {
            let mut all = keys(&mut conn, engine, charset, collation);
            all.extend(found(&mut conn, collation));
            all
        });
        compared += 1;
        if innodb != tidepool {
            let at = innodb.iter().zip(&tidepool).take_while(|(a, b)| a == b).count();
            different.push(format!(
                "{collation}: {} and {} keys, strings found and like others; from {at} on {:?}, {:?}",
                innodb.len(),
                tidepool.len(),
                innodb[at..].iter().take(3).collect::<Vec<_>>(),
                tidepool[at..].iter().take(3).collect::<Vec<_>>()
            ));
        }
    }
    assert!(different.is_empty(), "{} of {compared}: {different:#?}", different.len());
}
