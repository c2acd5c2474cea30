//! The `information_schema` tables `TIDEPOOL_*`: what they say right after known operations, to
//! whom, and under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::server::{Engine, Options, Server, connect_to_socket};
use tidepool_tests::sql::StopOnDrop;

/// Tables of the library, beside the engine itself.
const TABLES: [&str; 9] = [
    "TIDEPOOL_BUFFER_POOL",
    "TIDEPOOL_BUFFER_POOL_BY_INDEX",
    "TIDEPOOL_CACHE_ADVICE",
    "TIDEPOOL_DEADLOCKS",
    "TIDEPOOL_LOCKS",
    "TIDEPOOL_MEMORY_DECISIONS",
    "TIDEPOOL_TABLESPACES_ENCRYPTION",
    "TIDEPOOL_TABLE_FILES",
    "TIDEPOOL_TRX",
];
const POOL_SIZE_BYTES: u64 = 64 << 20;

fn start(name: &str) -> Server {
    let options = Options::new(name).engine(Engine::Tidepool);
    Server::start(options.arg(Engine::Tidepool.pool_size_option(POOL_SIZE_BYTES)))
}

fn run(conn: &mut Conn, sql: &str) {
    conn.query_drop(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn number(conn: &mut Conn, sql: &str) -> f64 {
    let row: Option<f64> = conn.query_first(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    row.unwrap_or_else(|| panic!("{sql}: no row"))
}

fn status(conn: &mut Conn, name: &str) -> u64 {
    let row: Option<(String, u64)> =
        conn.query_first(format!("SHOW GLOBAL STATUS LIKE 'Tidepool_{name}'")).expect("a status");
    row.unwrap_or_else(|| panic!("no status variable Tidepool_{name}")).1
}

/// A table of `rows` rows of about 200 bytes, with a secondary index.
fn make_table(conn: &mut Conn, table: &str, rows: u64) {
    run(
        conn,
        &format!("CREATE TABLE {table} (id INT PRIMARY KEY, k INT, pad CHAR(180), KEY by_k (k))"),
    );
    run(
        conn,
        &format!(
            "INSERT INTO {table} SELECT seq, seq % 1000, REPEAT('x', 180) FROM seq_1_to_{rows}"
        ),
    );
}

#[test]
fn loading_the_library_brings_all_tables() {
    let server = start("i_s_load");
    let mut conn = server.connect();
    let found: Vec<String> = conn
        .query("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'TIDEPOOL%' ORDER BY 1")
        .expect("the list of tables can be read");
    assert_eq!(found, TABLES);
}

#[test]
fn the_buffer_pool_says_its_size_and_what_is_in_it() {
    let server = start("i_s_pool");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    let pool: Row = conn
        .query_first("SELECT * FROM information_schema.TIDEPOOL_BUFFER_POOL")
        .expect("a select works")
        .expect("there is a row");
    let number =
        |name: &str| pool.get::<u64, _>(name).unwrap_or_else(|| panic!("{name}: {pool:?}"));
    assert_eq!(pool.get::<String, _>("STATE").as_deref(), Some("idle"), "{pool:?}");
    assert_eq!(number("SIZE_BYTES"), POOL_SIZE_BYTES);
    assert_eq!(number("TARGET_BYTES"), POOL_SIZE_BYTES);
    assert_eq!(number("PAGES_TOTAL") * number("PAGE_SIZE"), POOL_SIZE_BYTES);
    let compressed = number("COMPRESSED_TIER_BYTES") / number("PAGE_SIZE");
    let used = number("PAGES_DATA") + compressed;
    assert_eq!(number("PAGES_FREE") + used, number("PAGES_TOTAL"));
    // 20,000 rows of 200 bytes are 4 MB at least, and all of them are there.
    let data = number("PAGES_DATA") * number("PAGE_SIZE");
    assert!((4 << 20..POOL_SIZE_BYTES).contains(&data), "{pool:?}");
    assert!((data..=POOL_SIZE_BYTES).contains(&number("RESIDENT_BYTES")), "{pool:?}");
    assert!(!pool.get::<String, _>("WHY").expect("a reason").is_empty());
    let hits: f64 = pool.get("HIT_RATIO").expect("there were accesses");
    assert!((0.5..=1.0).contains(&hits), "{pool:?}");
}

#[test]
fn pages_are_counted_by_index() {
    let mut server = start("i_s_by_index");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    make_table(&mut conn, "u", 10);
    let of_t = "SELECT INDEX_NAME, PAGES, MB, MB_HOT + MB_COLD - MB, MB_DIRTY
                FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX
                WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 't' ORDER BY INDEX_NAME";
    type Line = (Option<String>, u64, f64, f64, f64);
    let before: Vec<Line> = conn.query(of_t).expect("a select works");
    let names: Vec<_> = before.iter().map(|line| line.0.as_deref()).collect();
    assert_eq!(names, [None, Some("by_k"), Some("PRIMARY")], "{before:?}");
    assert!(before[2].2 >= 4.0 && before[2].2 < 12.0, "{before:?}");
    assert!(before[1].2 > 0.1 && before[1].2 < before[2].2, "{before:?}");
    for line in &before {
        assert!((line.2 - line.1 as f64 / 64.0).abs() < 0.001, "16 KiB a page: {line:?}");
        assert!(line.3.abs() < 0.0015 && line.4 <= line.2, "{line:?}");
    }
    // The sum is what the pool says of itself, except pages that come and go meanwhile.
    let sum = number(
        &mut conn,
        "SELECT SUM(PAGES) FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX",
    );
    let all = status(&mut conn, "buffer_pool_pages_data") as f64;
    assert!((sum - all).abs() <= 10.0, "{sum} pages by index, {all} in all");

    // After a cold restart nothing of it is there; then exactly what was read.
    server.restart_with(&[
        &Engine::Tidepool.pool_size_option(POOL_SIZE_BYTES),
        "--tidepool-buffer-pool-load-at-startup=OFF",
    ]);
    let mut conn = server.connect_to("test");
    run(&mut conn, "SELECT COUNT(k) FROM t FORCE INDEX (by_k) WHERE k >= 0");
    let after: Vec<Line> = conn.query(of_t).expect("a select works");
    let pages = |name: &str| {
        after.iter().find(|line| line.0.as_deref() == Some(name)).map_or(0, |line| line.1)
    };
    assert_eq!(pages("by_k"), before[1].1, "{after:?}");
    assert!(pages("PRIMARY") * 4 < before[2].1, "only read by the way: {after:?}");
    assert_eq!(after.iter().map(|line| line.4).sum::<f64>(), 0.0, "clean: {after:?}");

    run(&mut conn, "DROP TABLE t");
    assert_eq!(conn.query::<Line, _>(of_t).expect("a select works"), []);
}

/// DATA_LENGTH, INDEX_LENGTH, DATA_FREE, and the bytes of its rows in pages.
type Sizes = (u64, u64, u64, u64);

fn sizes_of(conn: &mut Conn, table: &str) -> Sizes {
    let sql = format!(
        "SELECT DATA_LENGTH, INDEX_LENGTH, DATA_FREE, TABLE_ROWS * AVG_ROW_LENGTH
         FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}'"
    );
    conn.query_first(sql).expect("a select works").expect("the table is there")
}

/// FILE_NAME, FILE_BYTES, OCCUPIED_BYTES, LIVE_BYTES, DEAD_BYTES.
type TableFile = (String, u64, u64, u64, u64);

fn file_of(conn: &mut Conn, table: &str) -> TableFile {
    let sql = format!(
        "SELECT FILE_NAME, FILE_BYTES, OCCUPIED_BYTES, LIVE_BYTES, DEAD_BYTES
         FROM information_schema.TIDEPOOL_TABLE_FILES
         WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}'"
    );
    conn.query_first(sql).expect("a select works").expect("the table has a file")
}

fn assert_about(found: u64, wanted: u64) {
    assert!(found.abs_diff(wanted) * 10 <= wanted, "{found} bytes, {wanted} are wanted");
}

/// `COMPRESSION` of a table is for its file, whatever `tidepool_page_compression` says for others.
#[test]
fn tables_are_compressed_as_their_option_says() {
    let mut server = start("i_s_compression");
    let mut conn = server.connect_to("test");
    const KINDS: [&str; 4] = ["OFF", "LZ4", "ZSTD", "DEFAULT"];
    for kind in KINDS {
        run(
            &mut conn,
            &format!("CREATE TABLE {kind}_t (id INT PRIMARY KEY, t TEXT) COMPRESSION={kind}"),
        );
        // Decimal digits that look random: LZ4 finds hardly anything there, Zstandard half.
        run(
            &mut conn,
            &format!(
                "INSERT INTO {kind}_t SELECT seq, CONCAT(REPEAT('x', 40), CRC32(seq), CRC32(-seq),
                 CRC32(seq * 7), CRC32(seq * 77)) FROM seq_1_to_20000"
            ),
        );
    }
    run(&mut conn, "ALTER TABLE DEFAULT_t ADD COLUMN n INT, ADD KEY (n)");
    let live = |server: &Server| {
        let mut conn = server.connect_to("test");
        KINDS.map(|kind| file_of(&mut conn, &format!("{kind}_t")).3)
    };
    // A stop writes all pages.
    server.restart();
    let [off, lz4, zstd, default] = live(&server);
    assert!(off > lz4 + lz4 / 4 && lz4 > zstd + zstd / 4, "{off}, {lz4} and {zstd} bytes");
    assert!(default < lz4, "{default} bytes by default");

    // What is written later, and in another life, is compressed so, too; and so are copies.
    let mut conn = server.connect_to("test");
    let (_, shown): (String, String) =
        conn.query_first("SHOW CREATE TABLE OFF_t").expect("it works").expect("a row");
    assert!(shown.contains("`COMPRESSION`=OFF"), "{shown}");
    for kind in KINDS {
        run(&mut conn, &format!("UPDATE {kind}_t SET t = REVERSE(t)"));
    }
    run(&mut conn, "SET GLOBAL tidepool_page_compression = 'OFF'");
    run(&mut conn, "ALTER TABLE OFF_t COMPRESSION=ZSTD");
    run(&mut conn, "TRUNCATE TABLE DEFAULT_t");
    run(&mut conn, "INSERT INTO DEFAULT_t (id, t) SELECT * FROM LZ4_t");
    run(&mut conn, "ALTER TABLE ZSTD_t FORCE");
    server.restart();
    let [was_off, lz4_again, zstd_again, _] = live(&server);
    assert!(was_off < lz4_again && zstd_again < lz4_again, "{was_off}, {lz4_again}, {zstd_again}");
    assert!(lz4_again < off, "{lz4_again} bytes");

    let mut conn = server.connect_to("test");
    let error = conn.query_drop("CREATE TABLE u (a INT) COMPRESSION=LZMA").unwrap_err().to_string();
    assert!(error.contains("COMPRESSION"), "{error}");
    for kind in KINDS {
        let check: Option<(String, String, String, String)> =
            conn.query_first(format!("CHECK TABLE {kind}_t EXTENDED")).expect("it works");
        assert_eq!(check.expect("an answer").3, "OK", "{kind}");
        assert_eq!(number(&mut conn, &format!("SELECT COUNT(*) FROM {kind}_t")), 20_000.0);
    }
}

#[test]
fn sizes_of_tables_are_those_of_their_files() {
    let mut server = start("i_s_table_files");
    make_table(&mut server.connect_to("test"), "t", 20_000);
    // A stop writes all pages.
    server.restart();
    let mut conn = server.connect_to("test");
    let unopened = file_of(&mut conn, "t");
    let before @ (data, index, free, rows) = sizes_of(&mut conn, "t");
    let file = file_of(&mut conn, "t");
    assert_eq!(unopened, file, "the same before the table is opened");
    let (name, file_bytes, occupied, live, dead) = &file;
    let (file_bytes, occupied, live, dead) = (*file_bytes, *occupied, *live, *dead);
    let path = server.data_dir().join("tidepool").join(name);
    assert_eq!(std::fs::metadata(path).expect("the file is there").len(), file_bytes);
    assert!(live <= occupied && occupied <= file_bytes && dead == file_bytes - live, "{file:?}");
    // Rows of 200 bytes, most of them the same letter.
    assert!(rows > 4_000_000 && live < rows / 4, "{before:?} {file:?}");
    assert!(0 < index && index < data, "{before:?}");
    assert_about(data + index, live);
    assert_about(free, dead);

    run(&mut conn, "DELETE FROM t WHERE id > 1000");
    wait_until("it is purged", || (status(&mut conn, "history_list_length") == 0).then_some(()));
    server.restart();
    let mut conn = server.connect_to("test");
    let after @ (data, index, free, _) = sizes_of(&mut conn, "t");
    let (_, new_file_bytes, _, live, dead) = file_of(&mut conn, "t");
    assert!(data + index < (before.0 + before.1) / 2, "{before:?}, then {after:?}");
    assert!(free > before.2 || new_file_bytes < file_bytes, "{before:?}, then {after:?}");
    assert_about(data + index, live);
    assert_about(free, dead);
}

/// UPDATE_TIME as seconds since 1970, and that as the server's clock is now.
fn changed_at(conn: &mut Conn, table: &str) -> (Option<u64>, u64) {
    let sql = format!(
        "SELECT UNIX_TIMESTAMP(UPDATE_TIME), UNIX_TIMESTAMP() FROM information_schema.TABLES
         WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}'"
    );
    conn.query_first(sql).expect("a select works").expect("the table is there")
}

#[test]
fn a_commit_that_changes_rows_is_the_time_of_the_last_change() {
    let mut server = start("i_s_update_time");
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut conn, "CREATE TABLE t (id INT PRIMARY KEY, v INT)");
    run(&mut conn, "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3");
    let unchanged = |conn: &mut Conn, table| assert_eq!(changed_at(conn, table).0, None);
    let changed = |conn: &mut Conn, table, since: u64| {
        let (at, now) = changed_at(conn, table);
        let at = at.unwrap_or_else(|| panic!("{table} was changed"));
        assert!((since..=now).contains(&at), "{since} to {now}: {at}");
    };
    unchanged(&mut conn, "t");
    // It counts when it is committed, and never if it is rolled back.
    run(&mut conn, "BEGIN");
    run(&mut conn, "INSERT INTO t VALUES (1, 1), (2, 2)");
    unchanged(&mut other, "t");
    run(&mut conn, "ROLLBACK");
    run(&mut conn, "SELECT COUNT(*) FROM t");
    unchanged(&mut other, "t");
    let (_, before) = changed_at(&mut conn, "t");
    run(&mut conn, "INSERT INTO t VALUES (1, 1), (2, 2)");
    changed(&mut other, "t", before);
    // A change that adds no row, more than a second later.
    let (first, _) = changed_at(&mut conn, "t");
    run(&mut conn, "DO SLEEP(1.1)");
    run(&mut conn, "SELECT * FROM t FOR UPDATE");
    assert_eq!(changed_at(&mut conn, "t").0, first);
    run(&mut conn, "UPDATE t SET v = 3 WHERE id = 2");
    changed(&mut other, "t", first.expect("changed") + 1);
    // A definition without a change of rows keeps it; one that copies them is a change.
    let (kept, _) = changed_at(&mut conn, "t");
    run(&mut conn, "ALTER TABLE t ADD KEY by_v (v)");
    assert_eq!(changed_at(&mut conn, "t").0, kept);
    // That of a partitioned table is that of the partition that was changed last.
    unchanged(&mut conn, "p");
    run(&mut conn, "INSERT INTO p VALUES (1)");
    changed(&mut other, "p", before);
    server.restart();
    let mut conn = server.connect_to("test");
    unchanged(&mut conn, "t");
}

/// A table that was never written out has the size of its pages in the pool.
#[test]
fn a_table_in_memory_alone_has_a_size() {
    let mut server = start("i_s_new_table");
    let mut conn = server.connect_to("test");
    run(&mut conn, "CREATE TABLE t (id INT PRIMARY KEY, v INT, KEY by_v (v))");
    run(&mut conn, "INSERT INTO t VALUES (1, 1)");
    let (data, indexes, ..) = sizes_of(&mut conn, "t");
    assert!(data > 0 && indexes > 0, "{data} and {indexes} bytes");
    server.restart();
    let mut conn = server.connect_to("test");
    let (data, indexes, ..) = sizes_of(&mut conn, "t");
    assert!(data > 0 && indexes > 0, "{data} and {indexes} bytes");
}

#[test]
fn options_that_change_nothing_are_warned_of() {
    let server = start("i_s_ignored_options");
    let mut conn = server.connect_to("test");
    let warnings = |conn: &mut Conn, sql: &str| {
        run(conn, sql);
        let lines: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("works");
        lines.into_iter().map(|line| line.2).collect::<Vec<_>>()
    };
    let made = warnings(
        &mut conn,
        "CREATE TABLE t (id INT PRIMARY KEY) ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
    );
    assert_eq!(made.len(), 2, "{made:?}");
    assert!(made[0].contains("ROW_FORMAT=COMPRESSED"), "{made:?}");
    assert!(made[1].contains("KEY_BLOCK_SIZE"), "{made:?}");
    let plain = warnings(&mut conn, "CREATE TABLE u (id INT PRIMARY KEY) ROW_FORMAT=DYNAMIC");
    assert_eq!(plain, [""; 0]);
    let altered = warnings(&mut conn, "ALTER TABLE u ROW_FORMAT=COMPRESSED");
    assert_eq!(altered.len(), 1, "{altered:?}");
    assert!(altered[0].contains("ROW_FORMAT=COMPRESSED"), "{altered:?}");
}

#[test]
fn a_partition_has_sizes_and_a_file_of_its_own() {
    let mut server = start("i_s_partition_files");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        "CREATE TABLE t (id INT PRIMARY KEY, pad CHAR(180)) PARTITION BY RANGE (id)
         (PARTITION few VALUES LESS THAN (1001), PARTITION many VALUES LESS THAN MAXVALUE)",
    );
    run(&mut conn, "INSERT INTO t SELECT seq, REPEAT('x', 180) FROM seq_1_to_20000");
    server.restart();
    let mut conn = server.connect_to("test");
    let mut size_of = |partition: &str| {
        let sql = format!(
            "SELECT DATA_LENGTH FROM information_schema.PARTITIONS
             WHERE TABLE_NAME = 't' AND PARTITION_NAME = '{partition}'"
        );
        number(&mut conn, &sql) as u64
    };
    let (few, many) = (size_of("few"), size_of("many"));
    assert!(few * 3 < many, "{few} and {many} bytes");
    assert_about(few, file_of(&mut conn, "t#P#few").3);
    assert_about(many, file_of(&mut conn, "t#P#many").3);
    assert_about(sizes_of(&mut conn, "t").0, few + many);
}

/// Those of shown sizes are compressed. A plan reads whole pages through the pool.
#[test]
fn a_scan_costs_whole_pages() {
    let mut server = start("i_s_scan_cost");
    let mut conn = server.connect_to("test");
    for (table, engine) in [("t", "TIDEPOOL"), ("i", "InnoDB")] {
        run(
            &mut conn,
            &format!(
                "CREATE TABLE {table} (id INT PRIMARY KEY, pad VARCHAR(3500)) ENGINE={engine}"
            ),
        );
        run(
            &mut conn,
            &format!("INSERT INTO {table} SELECT seq, REPEAT('x', 3500) FROM seq_1_to_2000"),
        );
    }
    server.restart();
    let mut conn = server.connect_to("test");
    let mut cost = |table: &str| {
        run(&mut conn, &format!("ANALYZE TABLE {table}"));
        // Sizes are shown by the handler that then runs the query.
        run(&mut conn, &format!("SHOW TABLE STATUS LIKE '{table}'"));
        run(&mut conn, &format!("SELECT COUNT(*) FROM {table} WHERE pad <> 'y'"));
        let cost: Option<(String, f64)> =
            conn.query_first("SHOW STATUS LIKE 'Last_query_cost'").expect("a status");
        cost.expect("a cost").1
    };
    let (ours, theirs) = (cost("t"), cost("i"));
    assert!((0.8..1.25).contains(&(ours / theirs)), "{ours}, InnoDB's is {theirs}");
}

#[test]
fn names_are_told_as_the_user_wrote_them() {
    let server = start("i_s_names");
    let mut conn = server.connect();
    let schema = "dä-t#a.b";
    let long = "ü".repeat(64);
    let tables = ["a b", "x/y", "quo'te", "#hash", "MiXed", "100% ¼", long.as_str(), "`tick`"];
    run(&mut conn, &format!("CREATE DATABASE `{schema}`"));
    for table in tables {
        let quoted = table.replace('`', "``");
        run(&mut conn, &format!("CREATE TABLE `{schema}`.`{quoted}` (a INT, KEY `ke y'ä` (a))"));
        run(&mut conn, &format!("INSERT INTO `{schema}`.`{quoted}` VALUES (1)"));
    }
    run(
        &mut conn,
        &format!(
            "CREATE TABLE `{schema}`.p (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 2"
        ),
    );
    run(&mut conn, &format!("INSERT INTO `{schema}`.p VALUES (1), (2)"));
    let found: Vec<(String, String)> = conn
        .exec(
            "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX
             WHERE TABLE_SCHEMA = ? AND INDEX_NAME IS NOT NULL",
            (schema,),
        )
        .expect("a select works");
    for table in tables {
        let indexes: Vec<&str> =
            found.iter().filter(|row| row.0 == table).map(|row| row.1.as_str()).collect();
        assert_eq!(indexes, ["#row_id", "ke y'ä"], "{table}: {found:?}");
    }
    for partition in ["p#P#p0", "p#P#p1"] {
        assert!(found.contains(&(partition.into(), "PRIMARY".into())), "{found:?}");
    }
    assert_eq!(found.len(), 2 * tables.len() + 2, "{found:?}");
}

/// The names of a table's indexes that have pages in memory, and of its partitions' if `table` ends
/// with a `%`.
fn cached_indexes(conn: &mut Conn, table: &str) -> Vec<String> {
    let query = format!(
        "SELECT DISTINCT INDEX_NAME FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX
         WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME LIKE '{table}' AND INDEX_NAME IS NOT NULL ORDER BY 1"
    );
    conn.query(query).expect("a select works")
}

#[test]
fn a_renamed_index_has_its_new_name() {
    let mut server = start("i_s_renamed");
    let mut conn = server.connect_to("test");
    run(&mut conn, "CREATE TABLE t (a INT, b INT, KEY x (a), KEY y (b))");
    run(
        &mut conn,
        "CREATE TABLE p (id INT PRIMARY KEY, a INT, KEY x (a)) PARTITION BY HASH (id) PARTITIONS 2",
    );
    run(&mut conn, "INSERT INTO t VALUES (1, 2)");
    run(&mut conn, "INSERT INTO p VALUES (1, 1), (2, 2)");
    let by_in_place = "ALGORITHM=INPLACE, LOCK=NONE";
    run(&mut conn, &format!("ALTER TABLE t RENAME INDEX x TO xx, {by_in_place}"));
    assert_eq!(cached_indexes(&mut conn, "t"), ["#row_id", "xx", "y"]);
    // Two that change their names with each other, and a name that differs by its case only.
    run(&mut conn, "ALTER TABLE t RENAME KEY xx TO y, RENAME KEY y TO xx");
    run(&mut conn, "ALTER TABLE t RENAME KEY xx TO XX");
    assert_eq!(cached_indexes(&mut conn, "t"), ["#row_id", "XX", "y"]);
    run(&mut conn, "ALTER TABLE t RENAME INDEX y TO z, RENAME TO u, ALTER a SET DEFAULT 7");
    assert_eq!(cached_indexes(&mut conn, "t"), [""; 0]);
    assert_eq!(cached_indexes(&mut conn, "u"), ["#row_id", "XX", "z"]);
    run(&mut conn, "RENAME TABLE u TO v");
    assert_eq!(cached_indexes(&mut conn, "v"), ["#row_id", "XX", "z"]);
    run(&mut conn, &format!("ALTER TABLE p RENAME INDEX x TO xx, {by_in_place}"));
    assert_eq!(cached_indexes(&mut conn, "p#P#p%"), ["PRIMARY", "xx"]);

    // Before anybody has opened the tables.
    let old_definition = std::fs::read(server.data_dir().join("test/v.frm")).expect("a .frm");
    run(&mut conn, "ALTER TABLE v RENAME INDEX z TO late");
    run(&mut conn, "SELECT * FROM v FORCE INDEX (XX, late) WHERE a = 1 OR b = 2");
    drop(conn);
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(cached_indexes(&mut conn, "v"), ["#row_id", "late", "XX"]);
    assert_eq!(cached_indexes(&mut conn, "p#P#p%"), ["PRIMARY", "xx"]);

    // As if a crash had come before the server's own definition was replaced: that is what it goes
    // by.
    drop(conn);
    server.stop();
    std::fs::write(server.data_dir().join("test/v.frm"), old_definition).expect("a .frm");
    server.launch().expect("it starts");
    let mut conn = server.connect_to("test");
    run(&mut conn, "SELECT * FROM v FORCE INDEX (z) WHERE a = 2");
    assert_eq!(cached_indexes(&mut conn, "v"), ["#row_id", "XX", "z"]);
}

type Trx = (u64, String, u64, u64, u64, String, Option<String>);

/// Transactions of connections, by id.
fn transactions(conn: &mut Conn) -> Vec<Trx> {
    conn.query(
        "SELECT trx_id, trx_state, trx_mysql_thread_id, trx_rows_locked, trx_rows_modified, trx_isolation_level,
                trx_requested_lock_id
         FROM information_schema.TIDEPOOL_TRX WHERE trx_mysql_thread_id IS NOT NULL ORDER BY trx_id",
    )
    .expect("a select works")
}

/// Asks until it is so; a transaction comes to wait when it does.
fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn transactions_are_told_from_their_first_operation_to_their_end() {
    let mut server = start("i_s_trx");
    let (mut watcher, mut a, mut b) =
        (server.connect(), server.connect_to("test"), server.connect_to("test"));
    make_table(&mut a, "t", 100);
    assert_eq!(transactions(&mut watcher), [], "no session is at work");
    run(&mut a, "START TRANSACTION");
    assert_eq!(transactions(&mut watcher), [], "it has done nothing yet");

    run(&mut a, "UPDATE t SET pad = 'y' WHERE id <= 3");
    run(&mut b, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    run(&mut b, "START TRANSACTION");
    run(&mut b, "SELECT * FROM t WHERE id IN (50, 51) FOR UPDATE");
    let seen = transactions(&mut watcher);
    let [of_a, of_b] = &seen[..] else { panic!("two are at work: {seen:?}") };
    assert_eq!(
        (of_a.1.as_str(), of_a.2, of_a.4),
        ("RUNNING", a.connection_id().into(), 3),
        "{seen:?}"
    );
    assert_eq!(of_a.5, "REPEATABLE READ", "{seen:?}");
    assert_eq!((of_b.1.as_str(), of_b.2), ("RUNNING", b.connection_id().into()), "{seen:?}");
    assert_eq!((of_b.3, of_b.4, of_b.5.as_str()), (2, 0, "READ COMMITTED"), "{seen:?}");
    assert!(of_a.0 < 1 << 48 && of_b.0 >= 1 << 48, "one has written: {seen:?}");
    let age = number(
        &mut watcher,
        "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW(6))) FROM information_schema.TIDEPOOL_TRX",
    );
    assert!((0.0..60.0).contains(&age), "begun a moment ago, not {age} s");
    run(&mut a, "ROLLBACK");
    run(&mut b, "COMMIT");
    assert_eq!(transactions(&mut watcher), []);

    // A prepared transaction outlives its connection, and the server.
    run(&mut a, "XA START 'left over'");
    run(&mut a, "UPDATE t SET pad = 'z' WHERE id = 9");
    run(&mut a, "XA END 'left over'");
    run(&mut a, "XA PREPARE 'left over'");
    drop(a);
    let orphans = "SELECT trx_state, trx_mysql_thread_id, trx_started, trx_query
                   FROM information_schema.TIDEPOOL_TRX";
    type Orphan = (String, Option<u64>, Option<String>, Option<String>);
    let expected: [Orphan; 1] = [("PREPARED".into(), None, None, None)];
    wait_until("the connection is gone", || {
        let seen: Vec<Orphan> = watcher.query(orphans).expect("a select works");
        (seen == expected).then_some(())
    });
    drop((watcher, b));
    server.kill9();
    server.restart();
    let mut watcher = server.connect();
    assert_eq!(watcher.query::<Orphan, _>(orphans).expect("a select works"), expected);
    run(&mut watcher, "XA COMMIT 'left over'");
    assert_eq!(watcher.query::<Orphan, _>(orphans).expect("a select works"), []);
}

#[test]
fn who_waits_for_whom_is_told() {
    let server = start("i_s_locks");
    let (mut watcher, mut holder) = (server.connect(), server.connect_to("test"));
    make_table(&mut holder, "t", 100);
    let count = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_LOCKS";
    assert_eq!(number(&mut watcher, count), 0.0);
    run(&mut holder, "START TRANSACTION");
    run(&mut holder, "UPDATE t SET pad = 'held' WHERE id = 7");
    assert_eq!(number(&mut watcher, count), 0.0, "what is written is locked without an entry");

    let statement = "UPDATE t SET pad = 'wanted' WHERE id = 7";
    let socket = server.socket().to_path_buf();
    let waiter = std::thread::spawn(move || {
        let mut conn = connect_to_socket(&socket, "test").expect("the server is there");
        conn.query_drop(statement)
    });
    type Wait = (String, u64, u64, String, String, String, String, String, u64, String, f64);
    let wait: Wait = wait_until("one waits", || {
        watcher
            .query_first(
                "SELECT l.lock_id, l.lock_trx_id, l.blocking_trx_id, l.lock_mode, l.table_schema, l.table_name,
                        l.index_name, l.lock_key, h.trx_mysql_thread_id, w.trx_query,
                        TIMESTAMPDIFF(SECOND, w.trx_wait_started, NOW(6))
                 FROM information_schema.TIDEPOOL_LOCKS l
                 JOIN information_schema.TIDEPOOL_TRX w ON w.trx_requested_lock_id = l.lock_id
                 JOIN information_schema.TIDEPOOL_TRX h ON h.trx_id = l.blocking_trx_id
                 WHERE l.lock_status = 'WAITING' AND w.trx_state = 'LOCK WAIT' AND l.lock_trx_id = w.trx_id",
            )
            .expect("a select works")
    });
    assert_eq!(
        (wait.3.as_str(), wait.4.as_str(), wait.5.as_str(), wait.6.as_str()),
        ("X", "test", "t", "PRIMARY")
    );
    assert_eq!(wait.7, "80000007", "the key of row 7, as it sorts: {wait:?}");
    assert_eq!(wait.8, u64::from(holder.connection_id()), "{wait:?}");
    assert_eq!(wait.9, statement);
    assert!((0.0..60.0).contains(&wait.10), "{wait:?}");
    let held: Vec<(u64, String, String)> = watcher
        .query(
            "SELECT lock_trx_id, lock_key, lock_type FROM information_schema.TIDEPOOL_LOCKS
             WHERE lock_status = 'GRANTED'",
        )
        .expect("a select works");
    assert_eq!(
        held,
        [(wait.2, wait.7.clone(), "RECORD".to_string())],
        "the holder's, made for the waiter"
    );

    run(&mut holder, "COMMIT");
    waiter.join().expect("no panic").expect("it got the lock");
    wait_until("all is over", || (number(&mut watcher, count) == 0.0).then_some(()));
}

#[test]
fn ranges_of_serializable_reads_are_told() {
    let server = start("i_s_ranges");
    let (mut watcher, mut holder) = (server.connect(), server.connect_to("test"));
    make_table(&mut holder, "t", 100);
    run(&mut holder, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE");
    run(&mut holder, "START TRANSACTION");
    run(&mut holder, "SELECT * FROM t WHERE id BETWEEN 200 AND 300");
    let range: (String, String, String, Option<String>) = watcher
        .query_first(
            "SELECT lock_mode, lock_type, lock_key, lock_key_last FROM information_schema.TIDEPOOL_LOCKS
             WHERE lock_type = 'RANGE'",
        )
        .expect("a select works")
        .expect("a range is locked");
    assert_eq!((range.0.as_str(), range.1.as_str()), ("S", "RANGE"), "{range:?}");
    let socket = server.socket().to_path_buf();
    let waiter = std::thread::spawn(move || {
        let mut conn = connect_to_socket(&socket, "test").expect("the server is there");
        conn.query_drop("INSERT INTO t VALUES (250, 1, 'phantom')")
    });
    let wait: (String, String, u64, u64) = wait_until("one waits", || {
        watcher
            .query_first(
                "SELECT l.lock_type, l.lock_mode, l.blocking_trxs, h.trx_mysql_thread_id
                 FROM information_schema.TIDEPOOL_LOCKS l
                 JOIN information_schema.TIDEPOOL_TRX h ON h.trx_id = l.blocking_trx_id
                 WHERE l.lock_status = 'WAITING'",
            )
            .expect("a select works")
    });
    assert_eq!(wait, ("RECORD".into(), "X".into(), 1, holder.connection_id().into()));
    run(&mut holder, "COMMIT");
    waiter.join().expect("no panic").expect("it got in");
}

#[test]
fn decisions_about_memory_are_told() {
    let server = start("i_s_decisions");
    let mut conn = server.connect();
    const SMALLER: u64 = 32 << 20;
    run(&mut conn, &format!("SET GLOBAL tidepool_buffer_pool_size = {SMALLER}"));
    type Decision = (String, u64, u64, String, Option<u64>, i64);
    let decision: Decision = wait_until("it is decided, and done", || {
        let last: Option<Decision> = conn
            .query_first(
                "SELECT SIGNAL_NAME, FROM_BYTES, TO_BYTES, REASON, DURATION_US,
                        TIMESTAMPDIFF(SECOND, DECIDED_AT, NOW(6))
                 FROM information_schema.TIDEPOOL_MEMORY_DECISIONS ORDER BY DECIDED_AT DESC LIMIT 1",
            )
            .expect("a select works");
        last.filter(|decision| decision.2 == SMALLER && decision.4.is_some())
    });
    assert_eq!(
        (decision.0.as_str(), decision.1),
        ("ceiling changed", POOL_SIZE_BYTES),
        "{decision:?}"
    );
    assert!((0..60).contains(&decision.5), "{decision:?}");
    let (why, target, governed): (String, u64, String) = conn
        .query_first(
            "SELECT WHY, TARGET_BYTES, GOVERNED FROM information_schema.TIDEPOOL_BUFFER_POOL",
        )
        .expect("a select works")
        .expect("a row");
    assert_eq!((why, target, governed.as_str()), (decision.3, SMALLER, "NO"));
}

#[test]
fn the_engines_status_begins_with_the_pools_state_in_words() {
    let server = start("engine_status");
    let mut conn = server.connect();
    let (_, _, text): (String, String, String) =
        conn.query_first("SHOW ENGINE TIDEPOOL STATUS").expect("it works").expect("a row");
    assert!(text.starts_with("BUFFER POOL AND MEMORY"), "{text}");
    assert!(text.contains("and may hold 64.0 MiB; its size was set."), "{text}");
    assert!(text.contains("Why: ") && text.contains("buffer_pool_read_requests"), "{text}");
    let syncs = text.lines().find(|line| line.contains("a sync of it")).expect("a line of waits");
    let figures: Vec<u64> = syncs.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [times, _ms, us_each] = figures[..] else { panic!("{syncs}") };
    assert!(times > 0 && us_each > 0, "the log of a new data directory was synced: {text}");
}

#[test]
fn advice_has_nine_sizes_around_the_present_one() {
    let server = start("i_s_advice");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    let rows: Vec<(f64, f64, f64, f64)> = conn
        .query("SELECT * FROM information_schema.TIDEPOOL_CACHE_ADVICE")
        .expect("a select works");
    assert!(rows.len() >= 9, "{rows:?}");
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0 && a.2 <= b.2 && a.3 >= b.3), "{rows:?}");
    for (size_mb, factor, hit_ratio, _) in &rows {
        let expected = factor * (POOL_SIZE_BYTES >> 20) as f64;
        assert!((size_mb - expected).abs() < 0.1, "{rows:?}");
        assert!((0.0..=1.0).contains(hit_ratio), "{rows:?}");
    }
    let ends = (rows[0].1, rows[rows.len() - 1].1);
    assert_eq!(ends, (0.25, 4.0), "{rows:?}");
}

/// As of InnoDB's tables: the very same answer, whatever that is.
#[test]
fn without_the_privilege_nothing_is_told() {
    let server = start("i_s_privilege");
    let mut root = server.connect();
    run(&mut root, "CREATE USER nobody@localhost");
    let answer = |table: &str| -> String {
        let output = server
            .client("CLIENT")
            .args(["--user=nobody", "--show-warnings", "--batch", "-e"])
            .arg(format!("SELECT COUNT(*) FROM information_schema.{table}"))
            .output()
            .expect("the client can be run");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).replace(table, "…")
    };
    let of_innodb = answer("INNODB_TRX");
    assert!(of_innodb.contains("PROCESS"), "{of_innodb}");
    for table in TABLES {
        assert_eq!(answer(table), of_innodb, "{table}");
    }
    run(&mut root, "GRANT PROCESS ON *.* TO nobody@localhost");
    for table in TABLES {
        let allowed = answer(table);
        assert!(!allowed.contains("PROCESS"), "{table}: {allowed}");
    }
}

/// Reading the tables again and again does no harm: writers, definition changes, and a pool too
/// small for the data.
#[test]
fn the_tables_can_be_read_under_load() {
    let server = start("i_s_load_test");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    let socket = server.socket().to_path_buf();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connect = || connect_to_socket(&socket, "test").expect("the server is there");
        for worker in 0..3 {
            let mut conn = connect();
            let done = &done;
            scope.spawn(move || {
                for round in 0u64.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = 1 + (round * 7919 + worker) % 20_000;
                    run(
                        &mut conn,
                        &format!("UPDATE t SET k = k + 1, pad = MD5({round}) WHERE id = {id}"),
                    );
                }
            });
        }
        let mut definer = connect();
        let done = &done;
        scope.spawn(move || {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                run(
                    &mut definer,
                    &format!("CREATE OR REPLACE TABLE short_lived (a INT) SELECT {round} AS a"),
                );
                run(&mut definer, "TRUNCATE TABLE short_lived");
            }
        });
        let _stop = StopOnDrop(done);
        let mut reader = connect();
        for _ in 0..100 {
            for table in TABLES {
                let rows: Vec<Row> = reader
                    .query(format!("SELECT * FROM information_schema.{table}"))
                    .unwrap_or_else(|error| panic!("{table}: {error}"));
                assert!(!rows.is_empty() || !table.starts_with("TIDEPOOL_BUFFER_POOL"), "{table}");
            }
        }
    });
    let check: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE t EXTENDED").expect("a check works");
    assert_eq!(check.last().map(|row| row.3.as_str()), Some("OK"), "{check:?}");
}
