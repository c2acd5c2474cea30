//! A private server for one test: its own data directory, its own socket, gone when the test ends.
//!
//! ```text
//! var/test/template-<version>/     made once by the server's own means
//! var/test/<name>-<pid>-<n>/       one server
//!     data/                        copied from the template
//!     error.log
//!     s.sock
//! ```
//!
//! The server dies with the thread that started it, whatever becomes of that thread
//! (`PR_SET_PDEATHSIG`), so a test that is itself killed leaves no process behind. The directory is
//! removed when the [`Server`] is dropped, unless the thread is panicking: what a failed test
//! leaves is evidence.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::{Conn, OptsBuilder};

use crate::environment::Environment;
use crate::panics::kill_with_this_thread;

/// Recovery may take a while on a slow disk; a server that needs longer than this has hung.
const START_LIMIT: Duration = Duration::from_secs(180);
/// The same for an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(180);
/// Lines of an error log that no test expects of a server that started.
const PANICS: [&str; 2] = ["panicked at", "got signal"];
/// The length of a Unix socket's path that is certainly allowed.
const SOCKET_PATH_MAX: usize = 100;

/// The storage engine that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The plugin of this project.
    Tidepool,
    /// The server's own engine, for comparison.
    InnoDb,
}

impl Engine {
    /// The name in `ENGINE=…`.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Tidepool => "Tidepool",
            Engine::InnoDb => "InnoDB",
        }
    }

    /// The engine of this name, in any case; or a message for the user.
    pub fn by_name(name: &str) -> Result<Engine, &'static str> {
        let mut engines = [Engine::Tidepool, Engine::InnoDb].into_iter();
        let found = engines.find(|engine| engine.name().eq_ignore_ascii_case(name));
        found.ok_or("neither Tidepool nor InnoDB")
    }

    /// The engine that `TIDEPOOL_TEST_ENGINE` names, or Tidepool.
    ///
    /// # Panics
    /// If the variable names another engine.
    pub fn from_environment() -> Engine {
        match std::env::var("TIDEPOOL_TEST_ENGINE") {
            Ok(name) => Engine::by_name(&name)
                .unwrap_or_else(|error| panic!("TIDEPOOL_TEST_ENGINE={name}: {error}")),
            Err(_) => Engine::Tidepool,
        }
    }

    /// The server options that make this engine the default.
    fn options(self) -> Vec<String> {
        let plugin_dir = Environment::get().plugin_dir();
        match self {
            Engine::Tidepool => {
                let plugin = plugin_dir.join("ha_tidepool.so");
                assert!(
                    plugin.exists(),
                    "{} is missing; run scripts/build-plugin",
                    plugin.display()
                );
                vec![
                    format!("--plugin-dir={}", plugin_dir.display()),
                    "--plugin-load-add=ha_tidepool.so".into(),
                    "--default-storage-engine=Tidepool".into(),
                    // InnoDB is there too, as in any stock server, but has nothing to do.
                    "--innodb-buffer-pool-size=8M".into(),
                    "--innodb-log-file-size=10M".into(),
                ]
            }
            Engine::InnoDb => vec!["--default-storage-engine=InnoDB".into()],
        }
    }

    /// The option that sets the size of this engine's buffer pool.
    pub fn pool_size_option(self, size_bytes: u64) -> String {
        match self {
            Engine::Tidepool => format!("--tidepool-buffer-pool-size={size_bytes}"),
            Engine::InnoDb => format!("--innodb-buffer-pool-size={size_bytes}"),
        }
    }
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// MariaDB, with or without the plugin.
    MariaDb,
    /// MySQL, where [`Environment::mysqld`] has one.
    MySql,
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Goes into the name of the directory.
    pub name: String,
    /// The default storage engine.
    pub engine: Engine,
    /// The server itself.
    pub program: Program,
    /// More options for it.
    pub args: Vec<String>,
    /// The file of a cgroup through which the process joins it.
    pub cgroup_procs: Option<PathBuf>,
    /// A program, with its options, that becomes the server by `exec`.
    pub wrapper: Vec<String>,
}

impl Options {
    /// The engine that the environment asks for, and no further option.
    pub fn new(name: &str) -> Options {
        Options {
            name: name.into(),
            engine: Engine::from_environment(),
            program: Program::MariaDb,
            args: Vec::new(),
            cgroup_procs: None,
            wrapper: Vec::new(),
        }
    }

    /// The same in a cgroup, by its `cgroup.procs`.
    pub fn cgroup(mut self, procs: PathBuf) -> Options {
        self.cgroup_procs = Some(procs);
        self
    }

    /// The same, started by a program that changes what a process inherits.
    pub fn wrapper(mut self, wrapper: &[&str]) -> Options {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
        self
    }

    /// The same with another engine.
    pub fn engine(mut self, engine: Engine) -> Options {
        self.engine = engine;
        self
    }

    /// The same on MySQL, whose engine is InnoDB.
    pub fn mysql(mut self) -> Options {
        (self.program, self.engine) = (Program::MySql, Engine::InnoDb);
        self
    }

    /// The same with one more server option.
    pub fn arg(mut self, arg: impl Into<String>) -> Options {
        self.args.push(arg.into());
        self
    }

    /// The same with more server options.
    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Options {
        self.args.extend(args.map(str::to_owned));
        self
    }
}

/// A port that was free a moment ago.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0");
    listener.and_then(|listener| listener.local_addr()).expect("there is a free port").port()
}

/// A server that a test owns. See the [module](self).
#[derive(Debug)]
pub struct Server {
    options: Options,
    dir: PathBuf,
    socket: PathBuf,
    child: Option<Child>,
    /// Lets a panic of the thread that started the process kill it.
    owned: Option<Arc<OwnedFd>>,
    /// Where the error log of the process begins.
    log_start: u64,
    keep: bool,
}

impl Server {
    /// Makes a data directory and starts a server on it; returns when it accepts connections.
    ///
    /// # Panics
    /// If it does not start; the end of its error log is in the message.
    pub fn start(options: Options) -> Server {
        let mut server = Server::create(options);
        server.launch().unwrap_or_else(|e| panic!("{e}"));
        server
    }

    /// Makes the data directory only, for a test that wants to see a start fail.
    pub fn create(options: Options) -> Server {
        Server::create_on(options, |_| true).expect("nothing was to be made")
    }

    /// The same, where `make` has made the data directory itself, or mounted something there.
    /// `None` if it answers that it could not.
    pub fn create_on(options: Options, make: impl FnOnce(&Path) -> bool) -> Option<Server> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir_name = format!("{}-{}-{unique}", options.name, std::process::id());
        let dir = Environment::get().test_dir().join(&dir_name);
        fs::create_dir_all(&dir).expect("the test's directory can be made");
        let mut socket = dir.join("s.sock");
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            socket = std::env::temp_dir().join(format!("tidepool-{dir_name}.sock"));
        }
        let data_dir = dir.join("data");
        if !make(&data_dir) {
            let _ = fs::remove_dir_all(&dir);
            return None;
        }
        copy_tree(&template(options.program), &data_dir);
        Some(Server { options, dir, socket, child: None, owned: None, log_start: 0, keep: false })
    }

    /// Starts a server that was created, stopped or killed.
    ///
    /// # Errors
    /// If the process ends before it accepts connections: the end of the error log.
    ///
    /// # Panics
    /// If it neither ends nor accepts connections in time.
    pub fn launch(&mut self) -> Result<(), String> {
        let log_start = self.spawn();
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if self.try_connect("").is_ok() {
                return Ok(());
            }
            let child = self.child.as_mut().expect("was spawned");
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                self.child = None;
                let log = self.error_log_from(log_start);
                return Err(format!("the server did not start ({status}):\n{}", tail(&log, 40)));
            }
            if Instant::now() > deadline {
                let log = self.error_log_from(log_start);
                panic!("the server did not start in {START_LIMIT:?}:\n{}", tail(&log, 40));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Starts the process without waiting until it is ready. Returns where its part of the error
    /// log begins.
    pub fn spawn(&mut self) -> u64 {
        assert!(self.child.is_none(), "the server runs already");
        let log = self.log_path();
        let log_start = fs::metadata(&log).map_or(0, |m| m.len());
        let log_file =
            File::options().create(true).append(true).open(&log).expect("a log can be opened");
        // A write beyond the limit of files' sizes must be an error, not the end of the process.
        let mut command = Command::new("env");
        command.arg("--ignore-signal=XFSZ").args(&self.options.wrapper);
        command.args(command_line(self.options.program));
        if rustix::process::geteuid().is_root() {
            command.arg("--user=root");
        }
        command
            .arg(format!("--datadir={}", self.data_dir().display()))
            .arg(format!("--tmpdir={}", self.dir.display()))
            .arg(format!("--socket={}", self.socket.display()))
            .arg(format!("--pid-file={}", self.dir.join("pid").display()))
            .arg(format!("--log-error={}", log.display()))
            .args(["--skip-networking", "--max-connections=500"])
            .args(self.options.engine.options())
            .args(&self.options.args)
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().expect("a file can be cloned"))
            .stderr(log_file);
        let _ = fs::remove_file(&self.socket);
        let child = spawn_tied_to_thread(&mut command);
        if let Some(procs) = &self.options.cgroup_procs {
            // It has hardly begun, so next to nothing is charged to the group it comes from.
            fs::write(procs, child.id().to_string()).expect("a server can join the cgroup");
        }
        self.owned = Some(kill_with_this_thread(&child));
        self.child = Some(child);
        self.log_start = log_start;
        log_start
    }

    /// A connection as root with no default database.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn connect(&self) -> Conn {
        self.connect_to("")
    }

    /// A connection as root with a default database.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn connect_to(&self, database: &str) -> Conn {
        self.try_connect(database).unwrap_or_else(|e| panic!("cannot connect: {e}"))
    }

    /// A connection as a user without a password, with a default database.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn connect_as(&self, user: &str, database: &str) -> Conn {
        connect_to_socket_as(&self.socket, user, database)
            .unwrap_or_else(|e| panic!("cannot connect as {user}: {e}"))
    }

    /// A connection as root, if the server is there.
    ///
    /// # Errors
    /// What the client says.
    pub fn try_connect(&self, database: &str) -> Result<Conn, mysql::Error> {
        connect_to_socket(&self.socket, database)
    }

    /// Kills the server with SIGKILL: as much of a crash as a process can have.
    ///
    /// # Panics
    /// If it has ended by itself, or one of its threads has panicked: the kill would hide that.
    pub fn kill9(&mut self) {
        let Some(status) = self.end() else { return };
        assert_eq!(
            status.signal(),
            Some(libc_sigkill()),
            "the server ended with {status} before it was killed:\n{}",
            tail(&self.error_log(), 40)
        );
        self.assert_no_thread_panicked();
    }

    /// A thread that panics does not always end the server.
    fn assert_no_thread_panicked(&self) {
        let log = self.error_log_from(self.log_start);
        let found = log.lines().position(|line| PANICS.iter().any(|text| line.contains(text)));
        if let Some(line) = found {
            let all: Vec<&str> = log.lines().skip(line).take(40).collect();
            panic!("the server's log has:\n{}", all.join("\n"));
        }
    }

    /// Ends the server, if it runs, and does not mind if it has ended by itself; gives what the
    /// process ended with.
    ///
    /// # Panics
    /// If it can't be killed.
    pub fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        child.kill().expect("a child can be killed");
        Some(child.wait().expect("a child can be waited for"))
    }

    /// Stops the server in order, as `systemctl stop` would.
    ///
    /// # Panics
    /// If it does not stop in time, or ends with an error, or one of its threads has panicked.
    pub fn stop(&mut self) {
        let status = self.terminate();
        assert!(
            status.success(),
            "the server ended with {status}:\n{}",
            tail(&self.error_log(), 40)
        );
        self.assert_no_thread_panicked();
    }

    /// The same, however it ends.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("can be signalled");
        wait_until_exit(&mut child)
    }

    /// Lets each write fail from now on that ends beyond `bytes` of its file; `None`: no longer.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        use rustix::process::{Resource, Rlimit, prlimit};
        let pid = rustix::process::Pid::from_child(self.child.as_ref().expect("the server runs"));
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(pid), Resource::Fsize, limit).expect("a child can be limited");
    }

    /// Starts again after [`kill9`](Self::kill9) or [`stop`](Self::stop), or stops first if it
    /// runs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        if self.child.is_some() {
            self.stop();
        }
        self.launch().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Starts again with other options.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_with(&mut self, args: &[&str]) {
        self.options.args = args.iter().map(ToString::to_string).collect();
        self.restart();
    }

    /// What it was started with, or will be.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Changes the options of the next start.
    pub fn set_args(&mut self, args: Vec<String>) {
        self.options.args = args;
    }

    /// Keeps the directory when the server is dropped: it is evidence.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Whether a drop would leave the directory.
    pub fn is_kept(&self) -> bool {
        self.keep || std::thread::panicking()
    }

    /// How the process ended, if it did: `None` while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().expect("a child can be waited for")
    }

    /// Everything the server has logged since the directory was made.
    pub fn error_log(&self) -> String {
        self.error_log_from(0)
    }

    fn error_log_from(&self, start: u64) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(self.log_path()) {
            let _ = file.seek(SeekFrom::Start(start));
            let _ = file.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("error.log")
    }

    /// The directory of this server; a test may keep its files in it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The default storage engine.
    pub fn engine(&self) -> Engine {
        self.options.engine
    }

    /// The server's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// One of MariaDB's client programs (a key of `var/mariadb.env`: `CLIENT`, `DUMP`, `ADMIN`),
    /// set to reach this server.
    pub fn client(&self, key: &str) -> Command {
        let mut command = Command::new(Environment::get().path(key));
        command
            .arg("--no-defaults")
            .arg(format!("--socket={}", self.socket.display()))
            .arg("--user=root");
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let status = self.end();
        let _ = fs::remove_file(&self.socket);
        let crash = status.and_then(|status| status.signal()).filter(|it| *it != libc_sigkill());
        if crash.is_some() {
            self.keep = true;
        }
        if self.is_kept() {
            eprintln!("kept for inspection: {}", self.dir.display());
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
        if let Some(signal) = crash
            && !std::thread::panicking()
        {
            let log = self.error_log();
            panic!("the server ended by signal {signal} by itself:\n{}", tail(&log, 40));
        }
    }
}

/// A connection as root over a socket, for a thread that does not hold the [`Server`].
///
/// # Errors
/// What the client says.
pub fn connect_to_socket(socket: &Path, database: &str) -> Result<Conn, mysql::Error> {
    connect_to_socket_as(socket, "root", database)
}

fn connect_to_socket_as(socket: &Path, user: &str, database: &str) -> Result<Conn, mysql::Error> {
    let database = Some(database).filter(|name| !name.is_empty());
    let options = OptsBuilder::new()
        .socket(Some(socket.to_string_lossy().into_owned()))
        .user(Some(user))
        .db_name(database)
        .tcp_connect_timeout(Some(Duration::from_secs(10)));
    Conn::new(options)
}

/// Starts a process that the kernel kills when the calling thread ends.
pub fn spawn_tied_to_thread(command: &mut Command) -> Child {
    // SAFETY: the closure runs in the child between fork and exec, and makes one async-signal-safe
    // system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                .map_err(Into::into)
        });
    }
    command.spawn().unwrap_or_else(|e| panic!("{}: {e}", command.get_program().display()))
}

/// Looks until it is so, every 20 ms.
///
/// # Panics
/// If that takes longer than `patience`; the text has `what` was waited for.
pub fn wait_until(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < patience, "not within {} s: {what}", patience.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a process that was asked to end.
fn wait_until_exit(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + STOP_LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
            return ExitStatus::from_raw(libc_sigkill());
        }
        sleep(Duration::from_millis(10));
    }
}

/// The wait status of a process that SIGKILL ended.
fn libc_sigkill() -> i32 {
    rustix::process::Signal::KILL.as_raw()
}

/// The program, and the options of each of its servers.
fn command_line(program: Program) -> Vec<String> {
    let environment = Environment::get();
    match program {
        Program::MariaDb => vec![
            environment.value("MARIADBD").into(),
            "--no-defaults".into(),
            format!("--basedir={}", environment.value("BASEDIR")),
            format!("--lc-messages-dir={}", environment.value("SHARE")),
            format!("--character-sets-dir={}", environment.value("CHARSETS")),
            "--performance-schema=OFF".into(),
        ],
        // It finds its files beside itself. performance_schema stays on, as in any installation of
        // it.
        Program::MySql => vec![
            mysqld().0.display().to_string(),
            "--no-defaults".into(),
            "--mysqlx=OFF".into(),
            "--skip-log-bin".into(),
        ],
    }
}

fn mysqld() -> (PathBuf, String) {
    Environment::get().mysqld().expect("the caller has looked whether MySQL is there")
}

/// The data directory that all others are copied from; made once per version of the server.
fn template(program: Program) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_thread = MAKING.lock();
    let environment = Environment::get();
    let base = environment.test_dir();
    let name = match program {
        Program::MariaDb => format!("template-{}", environment.value("VERSION")),
        Program::MySql => format!("template-mysql-{}", mysqld().1),
    };
    let template = base.join(name);
    // Several test programs may run at once.
    let lock = File::create(base.join("template.lock")).expect("a lock file can be made");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("a lock can be had");
    if template.exists() {
        return template;
    }
    let new = base.join("template.new");
    let _ = fs::remove_dir_all(&new);
    let mut command = match program {
        Program::MariaDb => {
            let mut command = Command::new(environment.path("INSTALL_DB"));
            command
                .arg("--no-defaults")
                .arg(format!("--basedir={}", environment.value("BASEDIR")))
                .args(["--auth-root-authentication-method=normal", "--skip-name-resolve"])
                .args(["--innodb-log-file-size=10M", "--user=root"]);
            command
        }
        Program::MySql => {
            let mut command = Command::new(mysqld().0);
            command.args(["--no-defaults", "--initialize-insecure"]);
            if rustix::process::geteuid().is_root() {
                command.arg("--user=root");
            }
            command
        }
    };
    let output = command
        .arg(format!("--datadir={}", new.display()))
        .stdin(Stdio::null())
        .output()
        .expect("the program that makes a data directory can be run");
    assert!(
        output.status.success(),
        "no data directory could be made: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&new, &template).expect("the template can be named");
    template
}

/// Copies what is in a directory to another, which is made if need be.
fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .args(["-a", "-T", "--reflink=auto", "--sparse=always"])
        .arg(from)
        .arg(to)
        .status();
    assert!(
        status.is_ok_and(|s| s.success()),
        "{} could not be copied to {}",
        from.display(),
        to.display()
    );
}

/// The last lines of a text.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
