//! One of the two sides: a database whose tables are all of one engine, two sessions in it, and
//! what came out of a statement there.

use std::path::Path;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, Value};

/// A server that does not answer for so long has hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);

/// A row's values as text; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// What a statement gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A result set: the columns' types, and the rows.
    Rows {
        /// Type codes of the protocol.
        types: Vec<u8>,
        rows: Vec<Row>,
    },
    /// Success without rows.
    Done {
        /// Affected rows.
        affected: u64,
        /// LAST_INSERT_ID().
        insert_id: u64,
        /// "Records: …".
        info: String,
    },
    /// An error of the server.
    Failed {
        /// Its number.
        code: u16,
        /// Its text.
        message: String,
    },
    /// The connection is gone: the server died, or hung.
    Lost(String),
}

/// A line of SHOW WARNINGS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// Note, Warning, Error.
    pub level: String,
    /// The number.
    pub code: u16,
    /// The text.
    pub message: String,
}

/// What a statement gave, with its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub answer: Answer,
    /// The warnings, the error among them.
    pub warnings: Vec<Warning>,
}

impl Outcome {
    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        matches!(self.answer, Answer::Rows { .. } | Answer::Done { .. })
    }

    /// The first value of the first row, as text.
    pub fn first_value(&self) -> Option<String> {
        let Answer::Rows { rows, .. } = &self.answer else { return None };
        let value = rows.first()?.first()?.as_ref()?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Whether the server died.
    pub fn is_lost(&self) -> bool {
        matches!(self.answer, Answer::Lost(_))
    }
}

/// One engine's database and sessions.
#[derive(Debug)]
pub struct Side {
    /// The engine's name.
    pub engine: String,
    /// The database's name.
    pub database: String,
    /// A directory for the files of SELECT … INTO OUTFILE.
    directory: String,
    sessions: [Option<Conn>; 2],
}

impl Side {
    /// A side without sessions. `directory` exists.
    pub fn new(engine: &str, database: &str, directory: &Path) -> Side {
        Side {
            engine: engine.into(),
            database: database.into(),
            directory: directory.display().to_string(),
            sessions: [None, None],
        }
    }

    /// Ends both sessions.
    pub fn disconnect(&mut self) {
        self.sessions = [None, None];
    }

    /// Starts with an empty database.
    ///
    /// # Errors
    /// If the server refuses: it died, or a table can't be dropped.
    pub fn reset(&mut self, socket: &Path) -> Result<(), String> {
        self.disconnect();
        let mut conn = connect(socket).map_err(|e| e.to_string())?;
        self.forget_prepared(&mut conn)?;
        for verb in ["DROP DATABASE IF EXISTS", "CREATE DATABASE"] {
            let sql = format!("{verb} {}", self.database);
            conn.query_drop(&sql).map_err(|e| format!("{sql}: {e}"))?;
        }
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        self.connect(socket)
    }

    /// Rolls back what XA PREPARE has left: its locks would keep the database.
    fn forget_prepared(&self, conn: &mut Conn) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let prepared: Vec<(u64, u64, u64, String)> =
                conn.query("XA RECOVER").map_err(|e| e.to_string())?;
            if !prepared.iter().any(|(_, _, _, name)| *name == self.database) {
                return Ok(());
            }
            // The session that prepared it may not have ended yet: then it is unknown to others.
            if let Err(error) = conn.query_drop(format!("XA ROLLBACK '{}'", self.database))
                && Instant::now() > deadline
            {
                return Err(format!("XA ROLLBACK: {error}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts both sessions.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn connect(&mut self, socket: &Path) -> Result<(), String> {
        for session in &mut self.sessions {
            let mut conn = connect(socket).map_err(|e| e.to_string())?;
            for sql in session_setup(&self.engine, &self.database) {
                conn.query_drop(&sql).map_err(|e| format!("{sql}: {e}"))?;
            }
            *session = Some(conn);
        }
        Ok(())
    }

    /// The rows of all tables and views, in no order; nothing of what can't be read. (CHECKSUM
    /// TABLE is no use: with a virtual column, that of the same rows of an InnoDB table is another
    /// one after some restarts.)
    pub fn contents(&mut self) -> Vec<(String, Option<Vec<Row>>)> {
        let names: Vec<String> = match self.run(0, "SHOW TABLES").answer {
            Answer::Rows { rows, .. } => {
                let name = |row: Row| row.into_iter().next().flatten();
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                rows.into_iter().filter_map(name).map(text).collect()
            }
            _ => Vec::new(),
        };
        let rows = |name: String| {
            let rows = match self.run(0, &format!("SELECT * FROM {name}")).answer {
                Answer::Rows { mut rows, .. } => {
                    rows.sort();
                    Some(rows)
                }
                _ => None,
            };
            (name, rows)
        };
        names.into_iter().map(rows).collect()
    }

    /// Runs a statement.
    ///
    /// # Panics
    /// If the side is not connected.
    pub fn run(&mut self, session: usize, sql: &str) -> Outcome {
        let sql = sql.replace("{dir}", &self.directory);
        // Both sides are in one server, where a transaction's XA name is that of one transaction.
        let sql = sql.replace("{side}", &self.database).replace("{engine}", &self.engine);
        let conn = self.sessions[session].as_mut().expect("the side is connected");
        let (answer, count) = answer(conn, &sql);
        let mut outcome = Outcome { answer, warnings: Vec::new() };
        if count > 0 || matches!(outcome.answer, Answer::Failed { .. }) {
            match conn.query::<(String, u16, String), _>("SHOW WARNINGS") {
                Ok(lines) => {
                    outcome.warnings = lines
                        .into_iter()
                        .map(|(level, code, message)| Warning { level, code, message })
                        .collect();
                }
                Err(e) => outcome.answer = Answer::Lost(e.to_string()),
            }
        }
        outcome
    }
}

/// What makes a session's statements mean the same on both sides, at any time.
pub fn session_setup(engine: &str, database: &str) -> Vec<String> {
    let mut setup = vec![
        format!("USE {database}"),
        "SET NAMES utf8mb4".into(),
        // Values come as they are stored.
        "SET character_set_results = NULL".into(),
        format!("SET default_storage_engine = {engine}, default_tmp_storage_engine = {engine}"),
        "SET timestamp = 1700000000, time_zone = '+00:00', rand_seed1 = 1, rand_seed2 = 2".into(),
        "SET max_statement_time = 60, lock_wait_timeout = 2, innodb_lock_wait_timeout = 2".into(),
        // Sorting looks at whole values.
        "SET max_sort_length = 8192, max_error_count = 500, note_verbosity = ''".into(),
        "SET system_versioning_alter_history = KEEP".into(),
    ];
    if engine.eq_ignore_ascii_case("Tidepool") {
        setup.push("SET tidepool_lock_wait_timeout = 2".into());
    }
    setup
}

fn connect(socket: &Path) -> Result<Conn, mysql::Error> {
    let options = OptsBuilder::new()
        .socket(Some(socket.to_string_lossy().into_owned()))
        .user(Some("root"))
        .read_timeout(Some(ANSWER_LIMIT))
        .max_allowed_packet(Some(64 << 20))
        .tcp_connect_timeout(Some(Duration::from_secs(10)));
    Conn::new(options)
}

/// The answer, and the number of warnings.
fn answer(conn: &mut Conn, sql: &str) -> (Answer, u16) {
    let mut result = match conn.query_iter(sql) {
        Ok(result) => result,
        Err(e) => return (failure(e), 0),
    };
    let types: Vec<u8> =
        result.columns().as_ref().iter().map(|column| column.column_type() as u8).collect();
    if types.is_empty() {
        let done = Answer::Done {
            affected: result.affected_rows(),
            insert_id: result.last_insert_id().unwrap_or(0),
            info: result.info_str().into_owned(),
        };
        return (done, result.warnings());
    }
    let mut rows = Vec::new();
    for row in result.by_ref() {
        match row {
            Ok(row) => rows.push(row.unwrap().into_iter().map(bytes).collect()),
            Err(e) => return (failure(e), 0),
        }
    }
    let warnings = result.warnings();
    (Answer::Rows { types, rows }, warnings)
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(bytes),
        // Text protocol: nothing else comes.
        other => Some(format!("{other:?}").into_bytes()),
    }
}

fn failure(error: mysql::Error) -> Answer {
    match error {
        mysql::Error::MySqlError(error) => {
            Answer::Failed { code: error.code, message: error.message }
        }
        other => Answer::Lost(other.to_string()),
    }
}
