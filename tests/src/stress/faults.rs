//! What disturbs the sessions: KILL, settings that change, a server that hangs or is killed.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

use super::stage::{Count, Stage};
use crate::server::{Engine, connect_to_socket};
use crate::sql::row_text;

/// A run in which no statement has ended for this long hangs.
const HANG: Duration = Duration::from_secs(60);

/// The settings that change, and their values.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("tidepool_redo_log_capacity", &["8388608", "16777216", "67108864"]),
    ("tidepool_buffer_pool_size", &["5242880", "8388608", "33554432"]),
    ("tidepool_page_compression", &["AUTO", "OFF", "LZ4", "ZSTD"]),
];

/// Has random sessions killed until the stage ends.
pub fn kill_sessions(stage: &Stage, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut conn = None;
    while !stage.has_ended() {
        sleep(Duration::from_millis(rng.random_range(0..200)));
        let _turn = stage.turn();
        let victim = rng.random_range(0..stage.sessions.len());
        let session = stage.sessions[victim].load(Ordering::SeqCst);
        let dice = rng.random_range(0..10);
        let how = match dice {
            0 => "CONNECTION",
            1 => "HARD QUERY",
            2 => "SOFT QUERY",
            _ => "QUERY",
        };
        // After a restart of the server, an old number may be that of this connection.
        if session == 0 || conn.as_ref().is_none_or(|own: &Conn| own.connection_id() == session) {
            conn = conn.or_else(|| connect_to_socket(&stage.socket, "").ok());
            continue;
        }
        stage.note_kill(victim);
        if disturb(stage, &mut conn, &format!("KILL {how} {session}")) {
            stage.count(Count::Kills);
        }
        stage.note_kill(victim);
    }
}

/// Changes settings of the engine until the stage ends.
pub fn change_settings(stage: &Stage, seed: u64, engine: Engine) {
    if engine != Engine::Tidepool {
        return;
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut conn = None;
    while !stage.has_ended() {
        sleep(Duration::from_millis(rng.random_range(0..500)));
        let _turn = stage.turn();
        let (name, values) = SETTINGS.choose(&mut rng).expect("there are some");
        let value = values.choose(&mut rng).expect("there are some");
        let value =
            if value.parse::<u64>().is_ok() { (*value).into() } else { format!("'{value}'") };
        if disturb(stage, &mut conn, &format!("SET GLOBAL {name} = {value}")) {
            stage.count(Count::Settings);
        }
    }
}

/// Runs a statement in a session that no other kills; answers whether it succeeded.
fn disturb(stage: &Stage, conn: &mut Option<Conn>, sql: &str) -> bool {
    if conn.is_none() {
        *conn = connect_to_socket(&stage.socket, "").ok();
    }
    let Some(open) = conn else { return false };
    let answer = open.query_drop(sql);
    stage.count(Count::Statements);
    match answer {
        Ok(()) => true,
        // The session to kill is there no longer.
        Err(mysql::Error::MySqlError(error)) if error.code == 1094 => false,
        Err(mysql::Error::MySqlError(error)) if ![1053, 1927].contains(&error.code) => {
            stage.report(format!("{sql}: {error}"));
            false
        }
        Err(_) => {
            *conn = None;
            false
        }
    }
}

/// Watches until the run is over. If no statement ends for a minute, reports what the sessions wait
/// for, and has the server killed: else they would wait for ever.
pub fn watch(stage: &Stage, engine: Engine) {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        let Some(server) = process(stage) else { return };
        sleep(Duration::from_millis(100));
        let now = stage.counts().of(Count::Statements);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > HANG {
            stage.report(format!("no statement ended for {HANG:?}:\n{}", sessions(stage, engine)));
            stage.end();
            let _ = kill_process(server, Signal::KILL);
            return;
        }
    }
}

fn process(stage: &Stage) -> Option<Pid> {
    Pid::from_raw(stage.process.load(Ordering::SeqCst).cast_signed())
}

/// The server's sessions, and what the engine says of them.
fn sessions(stage: &Stage, engine: Engine) -> String {
    let Ok(mut conn) = connect_to_socket(&stage.socket, "") else {
        return "the server takes no connection".into();
    };
    let status = format!("SHOW ENGINE {} STATUS", engine.name());
    let mut lines = Vec::new();
    for sql in ["SHOW FULL PROCESSLIST", &status] {
        match conn.query::<Row, _>(sql) {
            Ok(rows) => lines.extend(rows.into_iter().map(row_text)),
            Err(error) => lines.push(format!("{sql}: {error}")),
        }
    }
    lines.join("\n")
}
