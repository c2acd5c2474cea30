//! A private server for one run: a data directory that it is given, its own socket, its cgroups.
//!
//! The process dies with the thread that started it ([`spawn_tied`]), and its directory goes when
//! the [`Server`] is dropped. An experiment kills servers on purpose (or has the kernel do so), so
//! nothing here panics over a dead one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};

use crate::client::{Client, Connector, PostgresClient, SqlError};
use crate::engine::{Engine, PoolStatus, Program};
use crate::environment::Environment;
use crate::error::{Error, Result, tail};
use crate::postgres;
use crate::process::spawn_tied;

/// Recovery may take a while on a slow disk; a server that needs longer than this has hung.
const START_LIMIT: Duration = Duration::from_secs(300);
/// The same for an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(300);
/// The length of a Unix socket's path that is certainly allowed.
const SOCKET_PATH_MAX: usize = 100;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The default storage engine.
    pub engine: Engine,
    /// The data directory, which outlives the server.
    pub data_dir: PathBuf,
    /// More options for `mariadbd`.
    pub args: Vec<String>,
    /// `cgroup.procs` files of the groups that the server runs in.
    pub cgroup_procs: Vec<PathBuf>,
}

/// A running (or ended) server.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    dir: PathBuf,
    socket: PathBuf,
    child: Option<Child>,
    last_exit: Option<ExitStatus>,
}

impl Server {
    /// Starts a server; returns when it accepts connections.
    ///
    /// # Errors
    /// If the process ends before that, or does neither in time: the end of its error log.
    pub fn start(environment: &Environment, options: ServerOptions) -> Result<Server> {
        let mut server = Server::spawn(environment, options)?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Starts the process without waiting until it is ready.
    ///
    /// # Errors
    /// If the program can't be run.
    pub fn spawn(environment: &Environment, options: ServerOptions) -> Result<Server> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = environment.run_dir().join(unique.to_string());
        fs::create_dir_all(&dir).map_err(Error::at(&dir))?;
        let mut socket = dir.join("s.sock");
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let name = format!("tidepool-lab-{}-{unique}.sock", std::process::id());
            socket = std::env::temp_dir().join(name);
        }
        let log = dir.join("error.log");
        let log_file = File::create(&log).map_err(Error::at(&log))?;
        let also_log = log_file.try_clone().map_err(Error::at(&log))?;
        let mut command = match options.engine.program() {
            Program::Postgres => {
                socket = dir.join(postgres::SOCKET_NAME);
                if socket.as_os_str().len() > SOCKET_PATH_MAX {
                    let text = format!("{} is too long for a socket's path", socket.display());
                    return Err(Error::Missing(text + ": set TIDEPOOL_LAB_DIR"));
                }
                postgres::server(environment, &options.data_dir, &dir)?
            }
            program => {
                let mut command = sql_server(environment, program)?;
                command
                    .arg(format!("--datadir={}", options.data_dir.display()))
                    .arg(format!("--tmpdir={}", dir.display()))
                    .arg(format!("--socket={}", socket.display()))
                    .arg(format!("--pid-file={}", dir.join("pid").display()))
                    .arg(format!("--log-error={}", log.display()))
                    .args(["--skip-networking", "--performance-schema=OFF", "--local-infile=ON"]);
                if rustix::process::geteuid().is_root() {
                    command.arg("--user=root");
                }
                command
            }
        };
        command
            .args(options.engine.options(environment)?)
            .args(&options.args)
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(also_log);
        let child = spawn_tied(&mut command, &options.cgroup_procs)?;
        Ok(Server { options, dir, socket, child: Some(child), last_exit: None })
    }

    /// Returns when the server accepts connections.
    ///
    /// # Errors
    /// If the process ends before that, or does neither in time: the end of its error log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if self.client("").is_ok() {
                return Ok(());
            }
            if !self.is_running() {
                let status = self.last_exit.map_or("killed".into(), |status| status.to_string());
                return Err(self.failure(&format!("did not start ({status})")));
            }
            if Instant::now() > deadline {
                return Err(self.failure(&format!("did not start in {START_LIMIT:?}")));
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// A connection as the superuser, whatever the server's protocol.
    ///
    /// # Errors
    /// What the client says.
    pub fn client(&self, database: &str) -> Result<Box<dyn Client>> {
        self.connector(database)().map_err(Error::statement(self.socket.display().to_string()))
    }

    /// Makes such connections, for threads that don't hold the server.
    pub fn connector(&self, database: &str) -> Connector {
        let (socket, database) = (self.socket.clone(), database.to_string());
        if self.options.engine.program() == Program::Postgres {
            let directory = self.dir.clone();
            let database = if database.is_empty() { "postgres".into() } else { database };
            return Arc::new(move || {
                PostgresClient::connect(&directory, &database).map(|client| Box::new(client) as _)
            });
        }
        Arc::new(move || {
            let conn = connect(&socket, &database);
            conn.map(|conn| Box::new(conn) as _).map_err(|e| SqlError::other(e.to_string()))
        })
    }

    /// A connection as root to a server that speaks MariaDB's protocol.
    ///
    /// # Errors
    /// What the client says.
    pub fn connect(&self, database: &str) -> Result<Conn> {
        connect(&self.socket, database)
    }

    /// Runs one statement on a new connection.
    ///
    /// # Errors
    /// What the server says.
    pub fn execute(&self, statement: &str) -> Result<()> {
        let mut client = self.client("")?;
        client.query(statement).map(drop).map_err(Error::statement(statement))
    }

    /// The first column of the first row, as text; nothing if there is no row.
    ///
    /// # Errors
    /// What the server says.
    pub fn value(&self, query: &str) -> Result<Option<String>> {
        let rows = self.client("")?.query(query).map_err(Error::statement(query))?;
        Ok(rows.first().and_then(|row| row.text(0).ok()))
    }

    /// The state of the engine's buffer pool.
    ///
    /// # Errors
    /// What the server says.
    pub fn pool_status(&self) -> Result<PoolStatus> {
        pool_status(&mut self.connect("")?, self.options.engine)
    }

    /// The indexes that have pages in the buffer pool, as "schema.table.index", and how many;
    /// nothing of an engine that does not say.
    ///
    /// # Errors
    /// What the server says.
    pub fn pool_content(&self) -> Result<Vec<(String, u64)>> {
        let Some(query) = self.options.engine.pool_content_query() else { return Ok(Vec::new()) };
        Queryable::query(&mut self.connect("")?, query).map_err(Error::sql(query))
    }

    /// True while the process lives. How it ended is kept.
    pub fn is_running(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                self.last_exit = Some(status);
                self.child = None;
                false
            }
            Err(_) => false,
        }
    }

    /// Kills the server with SIGKILL: as much of a crash as a process can have.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            if self.options.engine.program() == Program::Postgres {
                // The processes of its connections outlive it if it is killed. This is an end
                // without a checkpoint as well: the next start recovers.
                let pid = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
                let deadline = Instant::now() + Duration::from_secs(6);
                while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
                    sleep(Duration::from_millis(10));
                }
            }
            let _ = child.kill();
            self.last_exit = child.wait().ok();
        }
    }

    /// Sends the process a signal, if it lives.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(child) = &self.child {
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Stops the server in order, as `systemctl stop` would.
    ///
    /// # Errors
    /// If it ends with an error, has ended before, or does not end in time (it is killed then).
    pub fn stop(mut self) -> Result<()> {
        if !self.is_running() {
            return Err(self.failure("was dead before it was stopped"));
        }
        self.signal(match self.options.engine.program() {
            // TERM would wait for connections to end.
            Program::Postgres => rustix::process::Signal::INT,
            _ => rustix::process::Signal::TERM,
        });
        let deadline = Instant::now() + STOP_LIMIT;
        while self.is_running() {
            if Instant::now() > deadline {
                self.kill9();
                return Err(self.failure(&format!("did not stop in {STOP_LIMIT:?}")));
            }
            sleep(Duration::from_millis(10));
        }
        match self.last_exit {
            Some(status) if !status.success() => Err(self.failure(&format!("ended with {status}"))),
            _ => Ok(()),
        }
    }

    fn failure(&self, what: &str) -> Error {
        let log = fs::read(self.dir.join("error.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let message = format!("{what}; the end of its log:\n{}", tail(&log, 30));
        Error::Program { program: format!("the {} server", self.options.engine.name()), message }
    }

    /// The Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The directory for what it needs while it runs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it was started with.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// The process id, while it is not known to have ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A connection as root over a socket, for a thread that does not hold the [`Server`].
///
/// # Errors
/// What the client says.
pub fn connect(socket: &Path, database: &str) -> Result<Conn> {
    let database = Some(database).filter(|name| !name.is_empty());
    let options = OptsBuilder::new()
        .socket(Some(socket.to_string_lossy().into_owned()))
        .user(Some("root"))
        .db_name(database)
        .tcp_connect_timeout(Some(Duration::from_secs(10)));
    Conn::new(options).map_err(Error::sql(socket.display().to_string()))
}

/// The state of the engine's buffer pool, over a connection.
///
/// # Errors
/// What the server says.
pub fn pool_status(conn: &mut Conn, engine: Engine) -> Result<PoolStatus> {
    let query = engine.status_query();
    let rows: Vec<(String, String)> = Queryable::query(conn, &query).map_err(Error::sql(query))?;
    Ok(engine.pool_status(&rows))
}

/// `mariadbd` or `mysqld`, with the options that name its own files.
fn sql_server(environment: &Environment, program: Program) -> Result<Command> {
    let mut command;
    if program == Program::MySql {
        // It finds its files beside itself.
        command = Command::new(environment.mysqld()?);
        command.args(["--no-defaults", "--mysqlx=OFF", "--skip-log-bin"]);
    } else {
        command = Command::new(environment.value("MARIADBD")?);
        command
            .arg("--no-defaults")
            .arg(format!("--basedir={}", environment.value("BASEDIR")?))
            .arg(format!("--lc-messages-dir={}", environment.value("SHARE")?))
            .arg(format!("--character-sets-dir={}", environment.value("CHARSETS")?));
    }
    Ok(command)
}

/// Makes an empty data directory for an engine's server.
///
/// # Errors
/// If the server's own program for it fails: what it prints.
pub fn install(environment: &Environment, engine: Engine, data_dir: &Path) -> Result<()> {
    let mut command = match engine.program() {
        Program::Postgres => return postgres::install(environment, data_dir),
        Program::MySql => {
            let mut command = Command::new(environment.mysqld()?);
            command
                .args(["--no-defaults", "--initialize-insecure", "--user=root"])
                .arg(format!("--datadir={}", data_dir.display()));
            command
        }
        Program::MariaDb => {
            let mut command = Command::new(environment.value("INSTALL_DB")?);
            command
                .arg("--no-defaults")
                .arg(format!("--basedir={}", environment.value("BASEDIR")?))
                .arg(format!("--datadir={}", data_dir.display()))
                .args(["--auth-root-authentication-method=normal", "--skip-name-resolve"])
                .args(["--innodb-log-file-size=10M", "--user=root"]);
            command
        }
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(Error::io(program.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    // MySQL's says it on the one, MariaDB's on the other.
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Program { program, message: tail(&String::from_utf8_lossy(&said), 20) })
}
