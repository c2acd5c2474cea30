//! System-versioned tables with partitions: they change at once, in place or by a rebuild, as
//! others do, and have the same history afterwards as InnoDB's. Where InnoDB's copy is refused, the
//! history is compared with that of before.

use mysql::Conn;
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{check, code_of, number, rows, run, sorted_rows};

/// How the tables are divided. CHECK TABLE of the server knows misplaced rows in none of these.
const PARTITIONS: [(&str, &str); 4] = [
    ("by_count", "SYSTEM_TIME LIMIT 5 PARTITIONS 4"),
    ("by_day", "SYSTEM_TIME INTERVAL 1 DAY STARTS '2020-09-10 00:00:00' PARTITIONS 20"),
    ("by_hash", "HASH (id) PARTITIONS 3"),
    (
        "in_two_ways",
        "SYSTEM_TIME LIMIT 500 SUBPARTITION BY HASH (id) SUBPARTITIONS 2 \
         (PARTITION p0 HISTORY, PARTITION p1 HISTORY, PARTITION pc CURRENT)",
    ),
];

/// A change, how Tidepool makes it, and whether InnoDB's is a copy of the server's.
const CHANGES: [(&str, &str, bool); 10] = [
    ("ADD COLUMN c INT NOT NULL DEFAULT 7", "INSTANT", false),
    ("ADD COLUMN d INT DEFAULT 3 AFTER id", "INSTANT", false),
    ("ADD INDEX ia (a)", "NOCOPY", false),
    ("DROP COLUMN b, DROP INDEX b", "INSTANT", false),
    ("DROP INDEX ia", "INSTANT", false),
    ("MODIFY a INT NULL", "INSTANT", false),
    ("MODIFY v VARCHAR(40)", "INSTANT", false),
    ("FORCE", "INPLACE", false),
    ("MODIFY a BIGINT", "INPLACE", true),
    ("RENAME COLUMN a TO aa", "INSTANT", false),
];

const UNSUPPORTED: [u16; 2] = [1845, 1846];

/// All rows, with their times, and with the columns that a change leaves as they are.
fn history(conn: &mut Conn, table: &str) -> Vec<String> {
    let times = "UNIX_TIMESTAMP(row_start), UNIX_TIMESTAMP(row_end)";
    sorted_rows(conn, &format!("SELECT t.*, {times} FROM {table} FOR SYSTEM_TIME ALL t"))
}

/// How many rows each partition has.
fn in_partitions(conn: &mut Conn, table: &str) -> Vec<String> {
    run(conn, &[&format!("ANALYZE TABLE {table} PERSISTENT FOR ALL")]);
    rows(
        conn,
        &format!(
            "SELECT PARTITION_NAME, SUBPARTITION_NAME, TABLE_ROWS FROM \
             information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND \
             TABLE_NAME = '{table}' ORDER BY 1, 2"
        ),
    )
}

#[test]
fn partitions_change_in_place_and_rows_of_the_past_keep_their_times() {
    let server = Server::start(Options::new("versioned_partitions"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["SET system_versioning_alter_history = KEEP, timestamp = 1600000000"]);
    let pairs = PARTITIONS.map(|(name, _)| [format!("{name}_t"), format!("{name}_i")]);
    for ((_, partitions), pair) in PARTITIONS.iter().zip(&pairs) {
        for (table, engine) in pair.iter().zip(["Tidepool", "InnoDB"]) {
            let create = format!(
                "CREATE TABLE {table} (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(20), \
                 v VARCHAR(20), KEY b (b)) ENGINE={engine} WITH SYSTEM VERSIONING PARTITION BY \
                 {partitions}"
            );
            let fill = format!(
                "INSERT INTO {table} SELECT seq, seq * 10, CONCAT('b', seq), 'v' FROM seq_1_to_12"
            );
            run(&mut conn, &[&create, &fill]);
        }
    }
    for (n, (change, algorithm, is_copied)) in CHANGES.into_iter().enumerate() {
        for pair in &pairs {
            for (table, own) in pair.iter().zip([true, false]) {
                let time = 1_600_000_000 + 70_000 * (n + 1);
                run(
                    &mut conn,
                    &[
                        &format!("SET timestamp = {time}"),
                        &format!("UPDATE {table} SET a = a + 1 WHERE id % 3 = {n} % 3"),
                        &format!("DELETE FROM {table} WHERE id = {}", n + 1),
                        &format!("SET timestamp = {time} + 10"),
                        &format!("INSERT INTO {table} (id, a) VALUES ({}, {n})", n + 100),
                    ],
                );
                let before = history(&mut conn, table);
                let alter = format!("ALTER TABLE {table} {change}");
                match (own, is_copied) {
                    (true, _) => run(&mut conn, &[&format!("{alter}, ALGORITHM={algorithm}")]),
                    (false, false) => run(&mut conn, &[&alter]),
                    (false, true) => {}
                }
                if is_copied {
                    assert_eq!(history(&mut conn, table), before, "{alter}");
                }
                check(&mut conn, table);
            }
            let [ours, theirs] = pair;
            let found = history(&mut conn, ours);
            assert_eq!(found, history(&mut conn, theirs), "{ours}: {change}");
            let placed = in_partitions(&mut conn, ours);
            assert_eq!(placed, in_partitions(&mut conn, theirs), "{ours}: {change}");
        }
    }
    for [ours, _] in &pairs {
        let past = format!("SELECT COUNT(*) FROM {ours} FOR SYSTEM_TIME ALL WHERE row_end < NOW()");
        assert!(number(&mut conn, &past) > 30, "{ours}");
    }
    // What places rows in partitions is the copy's.
    for statement in
        ["ALTER TABLE by_hash_t DROP SYSTEM VERSIONING", "ALTER TABLE by_hash_t MODIFY id BIGINT"]
    {
        let code = code_of(&mut conn, &format!("{statement}, ALGORITHM=INPLACE"));
        assert!(UNSUPPORTED.contains(&code), "{statement}: {code}");
    }
}
