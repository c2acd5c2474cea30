//! One connection, and what kind of server is behind it.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, DriverError, Row, from_row_opt};
use serde::Serialize;

use crate::connect::{READ_TIMEOUT, Target};
use crate::exit::{Error, Result};
use crate::sql_text::literal;

/// Who made the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Flavour {
    /// MariaDB.
    MariaDb,
    /// Oracle's.
    MySql,
    /// Percona Server for MySQL: MySQL's versions and options.
    Percona,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavour::MariaDb => "MariaDB",
            Flavour::MySql => "MySQL",
            Flavour::Percona => "Percona Server",
        })
    }
}

/// Major, minor, patch.
pub type Version = (u32, u32, u32);

/// What the server says it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Who made it.
    pub flavour: Flavour,
    /// Its version's numbers.
    pub version: Version,
    /// Its version as it says it.
    pub version_text: String,
    /// Whether the storage engine Tidepool is loaded.
    pub tidepool: bool,
    /// Whether InnoDB is.
    pub innodb: bool,
}

impl Kind {
    /// From the server's own words.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what is neither MariaDB since 10.2 nor MySQL or Percona Server
    /// since 5.7.
    pub fn from_words(version_text: &str, comment: &str) -> Result<Kind> {
        // Old replicas of MariaDB put "5.5.5-" in front, for clients that know no two-digit
        // version.
        let text = version_text.strip_prefix("5.5.5-").unwrap_or(version_text);
        let maria = text.contains("MariaDB")
            || comment.contains("MariaDB")
            || comment.contains("mariadb.org");
        let flavour = match (maria, comment.contains("Percona")) {
            (true, _) => Flavour::MariaDb,
            (false, true) => Flavour::Percona,
            (false, false) => Flavour::MySql,
        };
        let mut numbers =
            text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let version = (next(), next(), next());
        let oldest = if maria { (10, 2, 0) } else { (5, 7, 0) };
        if version < oldest {
            return Err(Error::Unsupported(format!(
                "this is {flavour} {version_text}; the oldest supported are MariaDB 10.2 and MySQL 5.7"
            )));
        }
        let version_text = version_text.to_owned();
        Ok(Kind { flavour, version, version_text, tidepool: false, innodb: true })
    }

    /// Whether this is MariaDB of at least this version.
    pub fn is_mariadb_since(&self, version: Version) -> bool {
        self.flavour == Flavour::MariaDb && self.version >= version
    }

    /// Whether this is MySQL or Percona Server of at least this version.
    pub fn is_mysql_since(&self, version: Version) -> bool {
        self.flavour != Flavour::MariaDb && self.version >= version
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.flavour, self.version_text)?;
        if self.tidepool { f.write_str(" with Tidepool") } else { Ok(()) }
    }
}

/// Why the server did not carry out a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: u16,
    pub message: String,
}

impl Refusal {
    /// Whether there is no such table, or no such schema.
    pub fn is_of_missing_table(&self) -> bool {
        [1146, 1049].contains(&self.code)
    }

    /// Whether this user lacks a privilege.
    pub fn is_of_privilege(&self) -> bool {
        LACKS_PRIVILEGE.contains(&self.code)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.code, self.message)
    }
}

/// 1227: needs one of these privileges; 1142, 1143, 1044, 1370: no right to this table, column,
/// database, routine.
const LACKS_PRIVILEGE: [u16; 5] = [1227, 1142, 1143, 1044, 1370];

/// 1053: shutdown in progress; 1927, and of MySQL 3169: killed; 4031: of MySQL, idle for too long.
const ENDS_SESSION: [u16; 4] = [1053, 1927, 3169, 4031];

/// Names in lower case, values as text.
pub type Named = HashMap<String, String>;

/// One connection to one server.
#[derive(Debug)]
pub struct Server {
    conn: Conn,
    target: Target,
    kind: Kind,
    /// Statements sent since the last [`take_asked`](Server::take_asked).
    asked: u64,
}

impl Server {
    /// Connects and asks the server what it is.
    ///
    /// # Errors
    /// See [`Target::connect`] and [`Kind::from_words`].
    pub fn connect(target: &Target) -> Result<Server> {
        let mut conn = target.connect()?;
        let what = "asking for the version";
        let words: Option<Row> = conn
            .query_first("SELECT @@version, @@version_comment")
            .map_err(|e| explain(what, "", e))?;
        let words: Option<(String, String)> = words.map(|row| typed(what, row)).transpose()?;
        let (version, comment) = words.unwrap_or_default();
        let mut kind = Kind::from_words(&version, &comment)?;
        let engines: Vec<Row> =
            conn.query("SHOW ENGINES").map_err(|e| explain("SHOW ENGINES", "", e))?;
        let word = |row: &Row, column: usize| row.get_opt::<String, _>(column)?.ok();
        let on: Vec<String> = engines
            .iter()
            .filter(|row| word(row, 1).is_some_and(|s| s == "YES" || s == "DEFAULT"))
            .filter_map(|row| Some(word(row, 0)?.to_ascii_lowercase()))
            .collect();
        kind.tidepool = on.iter().any(|name| name == "tidepool");
        kind.innodb = on.iter().any(|name| name == "innodb");
        Ok(Server { conn, target: target.clone(), kind, asked: 0 })
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// How it was reached.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The process at the other end, if that is a Unix socket's, as this process's namespace of
    /// process ids calls it. Asked of the connection that there is: one that is made for it and
    /// says nothing would be an aborted one to the server, with a warning in its log.
    pub fn peer_pid(&self) -> Option<u32> {
        self.target.socket()?;
        // SAFETY: the connection owns the descriptor, and is borrowed for as long as this is.
        let socket = unsafe { BorrowedFd::borrow_raw(self.conn.as_raw_fd()) };
        let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// How many statements were sent since the last call: the server counts them among its own.
    pub fn take_asked(&mut self) -> u64 {
        std::mem::take(&mut self.asked)
    }

    /// Whether this user may set global variables, without setting anything new: the statement sets
    /// one to the value that it has. `what` it is for, in the error.
    ///
    /// # Errors
    /// [`Error::Privilege`] with the grant; if the server goes away.
    pub fn check_may_set(&mut self, what: &str) -> Result<()> {
        let name = match self.kind.innodb {
            true => "innodb_fast_shutdown",
            false => "tidepool_buffer_pool_dump_at_shutdown",
        };
        let same = format!("SET GLOBAL {name} = @@GLOBAL.{name}");
        self.execute(what, self.set_privilege(), &same)
    }

    /// The privilege that setting a global variable takes.
    pub fn set_privilege(&self) -> &'static str {
        match self.kind.is_mysql_since((8, 0, 0)) {
            true => "SYSTEM_VARIABLES_ADMIN",
            false => "SUPER",
        }
    }

    /// Rows of a query. `grant` is the privilege it needs beyond the right to connect, or "".
    ///
    /// # Errors
    /// [`Error::Privilege`] with the grant, [`Error::Gone`], [`Error::Refused`].
    pub fn rows<T: FromRow>(&mut self, what: &str, grant: &str, query: &str) -> Result<Vec<T>> {
        self.asked += 1;
        let rows: Result<Vec<Row>> =
            self.conn.query(query).map_err(|e| explain(what, &self.grant(grant), e));
        rows?.into_iter().map(|row| typed(what, row)).collect()
    }

    /// The first row of a query, if it has one.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn first<T: FromRow>(&mut self, what: &str, grant: &str, query: &str) -> Result<Option<T>> {
        self.asked += 1;
        let row: Result<Option<Row>> =
            self.conn.query_first(query).map_err(|e| explain(what, &self.grant(grant), e));
        row?.map(|row| typed(what, row)).transpose()
    }

    /// A statement without an answer.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn execute(&mut self, what: &str, grant: &str, statement: &str) -> Result<()> {
        self.asked += 1;
        self.conn.query_drop(statement).map_err(|e| explain(what, &self.grant(grant), e))
    }

    /// A statement that the server may refuse for a reason that the caller acts on: how many rows
    /// it changed, or the refusal.
    ///
    /// # Errors
    /// As [`rows`](Self::rows), for what is no refusal of the statement itself.
    pub fn attempt(
        &mut self,
        what: &str,
        statement: &str,
    ) -> Result<std::result::Result<u64, Refusal>> {
        self.asked += 1;
        match self.conn.query_drop(statement) {
            Ok(()) => Ok(Ok(self.conn.affected_rows())),
            Err(mysql::Error::MySqlError(error)) if !ENDS_SESSION.contains(&error.code) => {
                Ok(Err(Refusal { code: error.code, message: error.message }))
            }
            Err(error) => Err(explain(what, "", error)),
        }
    }

    /// The first row of a query that the server may refuse for a reason that the caller acts on, or
    /// the refusal.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt).
    pub fn attempt_first<T: FromRow>(
        &mut self,
        what: &str,
        query: &str,
    ) -> Result<std::result::Result<Option<T>, Refusal>> {
        self.asked += 1;
        match self.conn.query_first::<Row, _>(query) {
            Ok(row) => Ok(Ok(row.map(|row| typed(what, row)).transpose()?)),
            Err(mysql::Error::MySqlError(error)) if !ENDS_SESSION.contains(&error.code) => {
                Ok(Err(Refusal { code: error.code, message: error.message }))
            }
            Err(error) => Err(explain(what, "", error)),
        }
    }

    /// The connection's number, as the server's process list has it.
    pub fn connection_id(&self) -> u32 {
        self.conn.connection_id()
    }

    /// Lifts the limit that the server may set to the time of a statement: for statements that may
    /// have to wait, and must not be cut off just when the server is slow.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn lift_time_limit(&mut self) -> Result<()> {
        let name = match self.kind.flavour {
            Flavour::MariaDb => "max_statement_time",
            Flavour::MySql | Flavour::Percona => "max_execution_time",
        };
        self.execute("lifting the time limit", "", &format!("SET SESSION {name} = 0"))
    }

    /// All global variables.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn variables(&mut self) -> Result<Named> {
        self.named("SHOW GLOBAL VARIABLES")
    }

    /// All global status counters.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn status(&mut self) -> Result<Named> {
        self.named("SHOW GLOBAL STATUS")
    }

    /// Rows of name and value, from `SHOW GLOBAL …`.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn named(&mut self, query: &str) -> Result<Named> {
        let rows: Vec<(String, Option<Vec<u8>>)> = self.rows(query, "", query)?;
        let entry = |(name, value): (String, Option<Vec<u8>>)| {
            (name.to_ascii_lowercase(), text(value.unwrap_or_default()))
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    /// The statement that gives this account a privilege: of all schemas, unless the privilege says
    /// on what (`SELECT ON shop.*`).
    pub fn grant(&mut self, privilege: &str) -> String {
        if privilege.is_empty() {
            return String::new();
        }
        let all = if privilege.contains(" ON ") { "" } else { " ON *.*" };
        format!("GRANT {privilege}{all} TO {}", self.account())
    }

    /// `'user'@'host'` as the server sees this connection.
    pub fn account(&mut self) -> String {
        let account: Option<Row> = self.conn.query_first("SELECT CURRENT_USER()").unwrap_or(None);
        let account = account.and_then(|row| typed::<String>("the account", row).ok());
        let account = account.unwrap_or_else(|| self.target.user().to_owned());
        let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
        format!("{}@{}", literal(user), literal(host))
    }
}

/// A row in this program's types, where the driver alone would panic.
fn typed<T: FromRow>(what: &str, row: Row) -> Result<T> {
    from_row_opt(row).map_err(|error| {
        let why = format!("something that this program can't read: {error}");
        Error::Refused { what: what.into(), why }
    })
}

/// Names and values as text, whatever the server sends: to be wrong in a letter is better than to
/// end.
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The driver's error in this program's terms.
fn explain(what: &str, grant: &str, error: mysql::Error) -> Error {
    match error {
        mysql::Error::MySqlError(e) if LACKS_PRIVILEGE.contains(&e.code) => {
            let grant = if grant.is_empty() { e.message } else { grant.to_owned() };
            Error::Privilege { what: what.into(), grant }
        }
        mysql::Error::MySqlError(e) if ENDS_SESSION.contains(&e.code) => Error::Gone(e.message),
        mysql::Error::MySqlError(e) => Error::Refused { what: what.into(), why: e.message },
        mysql::Error::IoError(e) => Error::Gone(in_words(e.to_string())),
        mysql::Error::CodecError(e) => Error::Gone(in_words(e.to_string())),
        mysql::Error::DriverError(DriverError::CouldNotConnect(_) | DriverError::Timeout) => {
            Error::Gone("it does not answer".into())
        }
        other => Error::Refused { what: what.into(), why: other.to_string() },
    }
}

/// Of a read that has waited for too long the system says that a resource is unavailable.
pub(crate) fn in_words(why: String) -> String {
    let late = std::io::Error::from(rustix::io::Errno::AGAIN).to_string();
    if why.contains(&late) {
        return format!("it has not answered for {} s", READ_TIMEOUT.as_secs());
    }
    why
}

/// A number in a map of names; `None` when missing or not a number.
pub fn number(named: &Named, name: &str) -> Option<u64> {
    named.get(name)?.parse().ok()
}

/// A switch in a map of names: `ON`, `OFF`, `1`, `0`.
pub fn switch(named: &Named, name: &str) -> Option<bool> {
    match named.get(name)?.to_ascii_uppercase().as_str() {
        "ON" | "1" | "YES" => Some(true),
        "OFF" | "0" | "NO" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_their_words() {
        for (text, comment, flavour, version) in [
            ("10.11.18-MariaDB-0+deb12u1-log", "Debian 12", Flavour::MariaDb, (10, 11, 18)),
            (
                "5.5.5-10.6.7-MariaDB",
                "mariadb.org binary distribution",
                Flavour::MariaDb,
                (10, 6, 7),
            ),
            ("8.0.31-23", "Percona Server (GPL), Release 23", Flavour::Percona, (8, 0, 31)),
            ("9.7.4", "MySQL Community Server - GPL", Flavour::MySql, (9, 7, 4)),
        ] {
            let kind = Kind::from_words(text, comment).unwrap();
            assert_eq!((kind.flavour, kind.version), (flavour, version), "{text}");
        }
    }

    #[test]
    fn a_server_that_ends_the_session_has_gone_away() {
        let error = |code| {
            let (state, message) = ("HY000".into(), "the session ends".into());
            explain(
                "asking",
                "",
                mysql::Error::MySqlError(mysql::MySqlError { state, message, code }),
            )
        };
        for code in [1053, 1927, 3169, 4031] {
            assert_eq!(error(code).code(), 7, "{code}");
        }
        assert_eq!(error(1064).code(), 9);
    }

    #[test]
    fn a_server_that_does_not_answer_in_time_is_not_said_to_lack_a_resource() {
        let late = std::io::Error::from(rustix::io::Errno::AGAIN);
        let error = explain("asking", "", mysql::Error::IoError(late));
        assert_eq!(error.to_string(), "the server went away: it has not answered for 120 s");
        let cut = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(!explain("asking", "", mysql::Error::IoError(cut)).to_string().contains("120 s"));
    }

    #[test]
    fn old_servers_are_refused_by_name() {
        for (text, comment) in
            [("5.6.51", "MySQL Community Server"), ("10.1.48-MariaDB", ""), ("PostgreSQL", "")]
        {
            let error = Kind::from_words(text, comment).unwrap_err();
            assert_eq!(error.code(), 6, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
