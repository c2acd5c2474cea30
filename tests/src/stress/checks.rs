//! The whole table while nothing else runs: CHECK TABLE, and every index against the rows.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::model::WORDS;
use super::stage::{Count, DATABASE, Stage};
use crate::server::Server;
use crate::sql::{CheckAnswer, check_answers};

/// A killed connection ends within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compares, and reports what differs. The caller has the stage alone.
///
/// # Panics
/// If the server refuses to be asked.
pub fn check(server: &Server, stage: &Stage) {
    let mut conn = server.connect_to(DATABASE);
    if let Err(error) = wait_for_others(&mut conn, stage).and_then(|()| compare(&mut conn, stage)) {
        stage.report(format!("the table can't be compared: {error}"));
    }
    stage.count(Count::Checks);
}

/// Waits until the server has ended the connections that were killed, and an ALTER of one of them.
fn wait_for_others(conn: &mut Conn, stage: &Stage) -> mysql::Result<()> {
    let sql = "SELECT ID FROM information_schema.PROCESSLIST \
               WHERE DB = DATABASE() AND ID <> CONNECTION_ID()";
    let since = Instant::now();
    loop {
        let known = |id: &u32| stage.sessions.iter().any(|s| s.load(Ordering::SeqCst) == *id);
        let ids: Vec<u32> = conn.query(sql)?;
        // Each connection that the sessions have lost has ended before they have another.
        if ids.iter().all(known) {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            stage.report(format!("killed connections stay: {ids:?}"));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn compare(conn: &mut Conn, stage: &Stage) -> mysql::Result<()> {
    let answers = check_answers(conn, "m")?;
    stage.count(Count::Statements);
    if !answers.last().is_some_and(CheckAnswer::is_ok) {
        stage.report(format!("CHECK TABLE: {answers:?}"));
    }
    let ids = sorted(conn, "SELECT id FROM m USE INDEX ()")?;
    let indexes: Vec<(String, String)> = conn.query(
        "SELECT DISTINCT INDEX_NAME, INDEX_TYPE FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'm' ORDER BY 1",
    )?;
    for (index, kind) in indexes {
        let differences = match kind.as_str() {
            "FULLTEXT" => full_text(conn)?,
            "SPATIAL" => spatial(conn, &index)?,
            _ => ordered(conn, &index, &ids)?,
        };
        stage.count(Count::Statements);
        for difference in differences {
            stage.report(format!("index {index}: {difference}"));
        }
    }
    Ok(())
}

/// Each row is found by its values, and an index of whole columns has an entry for each row alone.
fn ordered(conn: &mut Conn, index: &str, ids: &[u64]) -> mysql::Result<Vec<String>> {
    let parts: Vec<(String, Option<u64>)> = conn.query(format!(
        "SELECT COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'm' AND INDEX_NAME = '{index}' \
         ORDER BY SEQ_IN_INDEX"
    ))?;
    // The end of a row's period is a part of the keys of a table with system versioning.
    let names: Vec<&str> =
        parts.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "row_end").collect();
    let mut differences = Vec::new();
    let on: Vec<String> = names.iter().map(|name| format!("b.{name} <=> a.{name}")).collect();
    let found = sorted(
        conn,
        &format!(
            "SELECT b.id FROM m a STRAIGHT_JOIN m b FORCE INDEX ({index}) ON {} WHERE b.id = a.id",
            on.join(" AND ")
        ),
    )?;
    if found != ids {
        differences.push(format!("its keys find other rows: {}", unlike(&found, ids)));
    }
    if parts.iter().all(|(_, length)| length.is_none()) {
        let order = names.join(", ");
        let found =
            sorted(conn, &format!("SELECT id FROM m FORCE INDEX ({index}) ORDER BY {order}"))?;
        if found != ids {
            differences.push(format!("its entries are other rows: {}", unlike(&found, ids)));
        }
    }
    Ok(differences)
}

fn full_text(conn: &mut Conn) -> mysql::Result<Vec<String>> {
    let mut differences = Vec::new();
    for word in WORDS {
        let by_index = format!("SELECT id FROM m WHERE MATCH(t) AGAINST('{word}' IN BOOLEAN MODE)");
        let by_rows = format!("SELECT id FROM m USE INDEX () WHERE t LIKE '%{word}%'");
        let (found, expected) = (sorted(conn, &by_index)?, sorted(conn, &by_rows)?);
        if found != expected {
            differences.push(format!("{word}: {}", unlike(&found, &expected)));
        }
    }
    Ok(differences)
}

fn spatial(conn: &mut Conn, index: &str) -> mysql::Result<Vec<String>> {
    let mut differences = Vec::new();
    for (left, right) in [(-21, 21), (-21, -5), (-3, 9), (8, 15)] {
        let window = format!(
            "MBRWithin(p, ST_GeomFromText('POLYGON(({left} {left}, {right} {left}, \
             {right} {right}, {left} {right}, {left} {left}))'))"
        );
        let by = |hint: &str| format!("SELECT id FROM m {hint} WHERE {window}");
        let found = sorted(conn, &by(&format!("FORCE INDEX ({index})")))?;
        let expected = sorted(conn, &by("USE INDEX ()"))?;
        if found != expected {
            differences.push(format!("{window}: {}", unlike(&found, &expected)));
        }
    }
    Ok(differences)
}

/// The ids that a query gives, in order.
fn sorted(conn: &mut Conn, sql: &str) -> mysql::Result<Vec<u64>> {
    let mut ids: Vec<u64> = conn.query(sql)?;
    ids.sort_unstable();
    Ok(ids)
}

/// The first ids that only one of two lists has, or has more often.
fn unlike(found: &[u64], expected: &[u64]) -> String {
    let only = |these: &[u64], others: &[u64]| -> Vec<u64> {
        these.iter().copied().filter(|id| others.binary_search(id).is_err()).take(5).collect()
    };
    let (more, fewer) = (only(found, expected), only(expected, found));
    format!(
        "{} ids instead of {}; not expected: {more:?}; missing: {fewer:?}",
        found.len(),
        expected.len()
    )
}
