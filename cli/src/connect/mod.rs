//! Where the server is and who asks: the options that every command has.
//!
//! They mean what they mean to the `mariadb` client: any host but `localhost` is TCP; no host or
//! `localhost` is the Unix socket, unless the command line has a port, or the protocol says
//! otherwise. What the command line leaves open is taken from the option files ([`defaults_file`]),
//! but a port in a file does not lead away from the socket; what those leave open from
//! `MYSQL_UNIX_PORT` and `MYSQL_TCP_PORT`. [`tls`] has the encryption. The password comes from an
//! option file, from `MYSQL_PWD`, or from the terminal; never from the command line, where every
//! user of the machine could read it.

pub mod command_line;
pub mod defaults_file;
pub mod names;
pub mod password;
pub mod tls;
pub mod without_server;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mysql::{Conn, DriverError, OptsBuilder};
use rustix::fs::OFlags;

use crate::exit::{Error, Result};
use crate::server::in_words;
use defaults_file::{Sources, Values};
use password::ask_password;
use tls::{Mode, Tls, Wish};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A query that takes longer than this has met a server that hangs.
pub const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// After this long without a word the system asks whether the other side is still there.
const KEEPALIVE_MS: u32 = 60_000;
/// The host that the clients reach by the socket.
const LOCALHOST: &str = "localhost";
/// What every session begins with, whatever the server has for its clients.
const SESSION: [&str; 3] = [
    // With it off the first small read would begin a transaction that lasts as long as the program,
    // and keeps purge from every version since.
    "SET SESSION autocommit = 1",
    // A mode changes what statements mean, and the limit cuts the rows of SHOW VARIABLES and SHOW
    // STATUS.
    "SET SESSION sql_mode = '', sql_select_limit = 18446744073709551615",
    // A server may not heed what the driver asks for (`skip-character-set-client-handshake`).
    "SET NAMES utf8mb4",
];
/// Where servers put their socket by default.
const SOCKETS: [&str; 4] = [
    "/run/mysqld/mysqld.sock",
    "/var/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
];

const PASSWORD_IN_SIGHT: &str = "a password on the command line can be read by everyone on this machine: use -p alone to be asked, \
     an option file, or MYSQL_PWD";

const ACCESS_DENIED: u16 = 1045;
const SECURE_TRANSPORT_REQUIRED: u16 = 3159;
/// The server is there, but not for this user: 1045: wrong password; 1698: the account wants
/// another way of proof (a Unix socket's peer, say); 1130: this host may not connect; 1862: the
/// password has expired; 3118 and, of MariaDB, 4151: the account is locked.
const DENIED: [u16; 7] = [ACCESS_DENIED, 1698, 1130, 1862, 3118, 4151, SECURE_TRANSPORT_REQUIRED];

/// The connection's options.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct Options {
    /// Unix socket of the server
    #[arg(long, short = 'S', global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Host; none or "localhost" means the Unix socket, unless there is --port or --protocol=tcp
    #[arg(long, short = 'h', global = true)]
    pub host: Option<String>,
    /// TCP port [default: 3306]
    #[arg(long, short = 'P', global = true)]
    pub port: Option<u16>,
    /// "tcp" or "socket": how to reach "localhost"
    #[arg(long, global = true)]
    pub protocol: Option<Protocol>,
    /// User [default: the name of the system's user]
    #[arg(long, short = 'u', global = true)]
    pub user: Option<String>,
    /// Ask for the password on the terminal. It can't be given here: use an option file, or
    /// MYSQL_PWD
    // Words that may be one are refused before this is parsed (`command_line`).
    #[arg(long, short = 'p', global = true)]
    password: bool,
    /// Read only this option file (group `[client]`) instead of /etc/my.cnf, /etc/mysql/my.cnf and
    /// ~/.my.cnf
    #[arg(long, global = true, value_name = "FILE")]
    pub defaults_file: Option<PathBuf>,
    /// Read this option file too, after those in /etc
    #[arg(long, global = true, value_name = "FILE")]
    pub defaults_extra_file: Option<PathBuf>,
    /// Read no option file
    #[arg(long, global = true, conflicts_with_all = ["defaults_file", "defaults_extra_file"])]
    pub no_defaults: bool,
    /// Read the groups with this at the end of their names too
    #[arg(
        long,
        global = true,
        value_name = "SUFFIX",
        env = "MYSQL_GROUP_SUFFIX",
        hide_env_values = true
    )]
    pub defaults_group_suffix: Option<String>,
    /// Encrypt the connection (over TCP)
    #[arg(long, global = true)]
    pub ssl: bool,
    /// Do not encrypt, whatever an option file says
    #[arg(long, global = true, conflicts_with_all = ["ssl", "ssl_mode", "ssl_verify_server_cert"])]
    pub skip_ssl: bool,
    /// DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY
    #[arg(long, global = true, value_name = "MODE")]
    pub ssl_mode: Option<Mode>,
    /// Certificate authorities that may have signed the server's certificate
    #[arg(long, global = true, value_name = "FILE")]
    pub ssl_ca: Option<PathBuf>,
    /// Certificate of this client
    #[arg(long, global = true, value_name = "FILE")]
    pub ssl_cert: Option<PathBuf>,
    /// Key of this client's certificate
    #[arg(long, global = true, value_name = "FILE")]
    pub ssl_key: Option<PathBuf>,
    /// The server's certificate must name the host
    #[arg(long, global = true)]
    pub ssl_verify_server_cert: bool,
}

/// How to reach a server on this machine. Any host but `localhost` is reached by TCP, whatever this
/// says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    /// The Unix socket.
    Socket,
}

/// As the clients do, takes capitals and beginnings too.
impl std::str::FromStr for Protocol {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Protocol, &'static str> {
        let text = text.to_ascii_lowercase();
        [("tcp", Protocol::Tcp), ("socket", Protocol::Socket)]
            .into_iter()
            .find(|(name, _)| !text.is_empty() && name.starts_with(&text))
            .map(|(_, protocol)| protocol)
            .ok_or("tcp or socket is wanted")
    }
}

/// How to reach the server, all questions answered: can be used again and again.
#[derive(Clone)]
pub struct Target {
    place: Place,
    user: String,
    password: Option<String>,
    tls: Tls,
    connect_timeout: Duration,
    /// How long an answer may take; `None`: as long as the statement does.
    answer_timeout: Option<Duration>,
}

#[derive(Clone)]
enum Place {
    Socket(PathBuf),
    Tcp(String, u16),
}

/// Never shows the password.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({}@{})", self.user, self.place())
    }
}

impl Options {
    /// Looks up what the options leave open, and asks for the password if that is wanted.
    ///
    /// # Errors
    /// If an option file can't be used, no socket can be found, or there is no terminal to ask on.
    pub fn target(&self) -> Result<Target> {
        let values = with_environment(defaults_file::read(&self.sources())?)?;
        for notice in &values.notices {
            tracing::warn!("{notice}");
        }
        let place = self.place(&values)?;
        let user = self
            .user
            .clone()
            .or(values.user)
            .or_else(|| std::env::var("USER").ok().filter(|user| !user.is_empty()))
            .unwrap_or_else(|| "root".into());
        let tls = self.tls().or(values.tls).resolve()?;
        let tls = match place {
            Place::Tcp(..) => tls,
            Place::Socket(_) => {
                if tls.mode > Mode::Preferred {
                    tracing::warn!(
                        "TLS is not used on a Unix socket, which stays within this machine; \
                         --protocol=tcp uses it"
                    );
                }
                Tls::default()
            }
        };
        let is_asked_for = values.asks_password && std::env::var_os("MYSQL_PWD").is_none();
        let password = if self.password || is_asked_for {
            Some(ask_password(&user)?)
        } else {
            values.password.or_else(|| std::env::var("MYSQL_PWD").ok())
        };
        let connect_timeout = values.connect_timeout_s.map_or(CONNECT_TIMEOUT, Duration::from_secs);
        let answer_timeout = Some(READ_TIMEOUT);
        Ok(Target { place, user, password, tls, connect_timeout, answer_timeout })
    }

    /// The server that the groups `[client_NAME]` lead to. What the other groups say holds too, so
    /// a name that no group has would silently be the default server: it is refused.
    ///
    /// # Errors
    /// As [`target`](Self::target); for a name without a group, and where the command line names a
    /// place, which all names would share.
    pub fn named_target(&self, name: &str) -> Result<Target> {
        if self.socket.is_some() || self.host.is_some() || self.port.is_some() {
            let why = "--server: the place of each server comes from its option group, not from \
                       --socket, --host and --port";
            return Err(Error::Usage(why.into()));
        }
        let suffix = format!("_{name}");
        let options = Options { defaults_group_suffix: Some(suffix), ..self.clone() };
        if !defaults_file::read(&options.sources())?.has_suffixed_group {
            return Err(Error::Local(format!(
                "--server={name}: no option file has the group [client_{name}]"
            )));
        }
        options.target()
    }

    fn sources(&self) -> Sources {
        Sources {
            only: self.defaults_file.clone(),
            extra: self.defaults_extra_file.clone(),
            none: self.no_defaults,
            suffix: self.defaults_group_suffix.clone().filter(|suffix| !suffix.is_empty()),
        }
    }

    fn tls(&self) -> Wish {
        let on = if self.skip_ssl { Some(false) } else { self.ssl.then_some(true) };
        Wish {
            mode: self.ssl_mode,
            on,
            verify: self.ssl_verify_server_cert.then_some(true),
            ca: self.ssl_ca.clone(),
            cert: self.ssl_cert.clone(),
            key: self.ssl_key.clone(),
            refused: Vec::new(),
        }
    }

    fn place(&self, values: &Values) -> Result<Place> {
        let port = self.port.or(values.port).unwrap_or(3306);
        // A port or a socket on the command line says how, too. Of both the client takes the last;
        // which that is can't be seen here, and the socket is taken.
        let protocol = match (self.protocol, &self.socket, self.port) {
            (Some(protocol), ..) => Some(protocol),
            (None, Some(_), _) => Some(Protocol::Socket),
            (None, None, Some(_)) => Some(Protocol::Tcp),
            (None, None, None) => values.protocol,
        };
        // What is on the command line outranks every file, whichever of the two it names.
        let by_socket = self.socket.is_some() && protocol == Some(Protocol::Socket);
        let host = self.host.as_ref().or(values.host.as_ref().filter(|_| !by_socket));
        if let Some(host) = host.filter(|host| *host != LOCALHOST && !host.is_empty()) {
            // An address of IPv6 may be written as in a URL.
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            return Ok(Place::Tcp(bare.unwrap_or(host).to_owned(), port));
        }
        if protocol == Some(Protocol::Tcp) {
            return Ok(Place::Tcp(LOCALHOST.into(), port));
        }
        if let Some(socket) = self.socket.clone().or_else(|| values.socket.clone()) {
            return Ok(Place::Socket(socket));
        }
        let found = SOCKETS.iter().map(Path::new).find(|path| path.exists());
        found.map(|path| Place::Socket(path.to_owned())).ok_or_else(|| Error::NoServer {
            place: "any of the usual sockets".into(),
            why: format!(
                "none of {} exists; say where it is with --socket, --host or --port",
                SOCKETS.join(", ")
            ),
        })
    }
}

/// What the files leave open, from the variables that the clients have for it.
fn with_environment(mut values: Values) -> Result<Values> {
    let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    values.socket = values.socket.or_else(|| of("MYSQL_UNIX_PORT").map(PathBuf::from));
    if let (None, Some(port)) = (values.port, of("MYSQL_TCP_PORT")) {
        let port = port.to_str().and_then(|port| port.parse().ok());
        values.port = Some(port.ok_or_else(|| Error::Usage("MYSQL_TCP_PORT: not a port".into()))?);
    }
    Ok(values)
}

impl Target {
    /// The socket's path, or `host:port`.
    pub fn place(&self) -> String {
        match &self.place {
            Place::Socket(path) => path.display().to_string(),
            Place::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp(host, port) => format!("{host}:{port}"),
        }
    }

    /// The socket's path, if it is one.
    pub fn socket(&self) -> Option<&Path> {
        match &self.place {
            Place::Socket(path) => Some(path),
            Place::Tcp(..) => None,
        }
    }

    /// Whether the host is this machine by its address, or by the name that every machine has for
    /// itself.
    pub fn is_loopback(&self) -> bool {
        match &self.place {
            Place::Socket(_) => true,
            Place::Tcp(host, _) => {
                host.eq_ignore_ascii_case(LOCALHOST)
                    || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// The same for statements that may take hours. A server that is gone is noticed by the
    /// system's probes of the connection.
    pub fn without_answer_timeout(&self) -> Target {
        Target { answer_timeout: None, ..self.clone() }
    }

    /// The account.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// A new connection.
    ///
    /// # Errors
    /// [`Error::NoServer`], [`Error::Denied`], or [`Error::Refused`] for any other answer.
    pub fn connect(&self) -> Result<Conn> {
        let options = OptsBuilder::new()
            .user(Some(&self.user))
            .pass(self.password.as_deref())
            .prefer_socket(false)
            // Given, so that the driver does not ask the server before we know what it is.
            .max_allowed_packet(Some(16 << 20))
            .init(SESSION.to_vec())
            .tcp_connect_timeout(Some(self.connect_timeout))
            .tcp_keepalive_time_ms(self.answer_timeout.is_none().then_some(KEEPALIVE_MS))
            .read_timeout(self.answer_timeout)
            .write_timeout(Some(READ_TIMEOUT));
        let connected = match &self.place {
            Place::Socket(path) => match path.to_str() {
                Some(path) => Conn::new(options.socket(Some(path))),
                None => by_descriptor(path, |path| Conn::new(options.socket(Some(path)))),
            },
            Place::Tcp(host, port) => {
                let options = options.tcp_port(*port);
                let encrypted = options.clone().ssl_opts(self.tls.options());
                match self.by_tcp(host, encrypted) {
                    Err(mysql::Error::DriverError(DriverError::TlsNotSupported))
                        if self.tls.mode == Mode::Preferred =>
                    {
                        self.by_tcp(host, options)
                    }
                    connected => connected,
                }
            }
        };
        connected.map_err(|error| self.refusal(error))
    }

    /// By the first address of the host at which there is a server.
    fn by_tcp(&self, host: &str, options: OptsBuilder) -> mysql::Result<Conn> {
        let Place::Tcp(_, port) = self.place else { unreachable!("it is TCP") };
        if !self.tls.names_host() {
            return first_reached(addresses(host, port), |address| {
                Conn::new(options.clone().ip_or_hostname(Some(address)))
            });
        }
        // The driver compares the certificate with the name that it connects to. With a local
        // address given, it tries each of the name's addresses of that kind.
        let own: [SocketAddr; 2] =
            [(Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::UNSPECIFIED, 0).into()];
        first_reached(own.to_vec(), |own| {
            Conn::new(options.clone().ip_or_hostname(Some(host)).bind_address(Some(own)))
        })
    }

    fn refusal(&self, error: mysql::Error) -> Error {
        let place = self.place();
        if let Some(why) = self.tls.failure(&error) {
            return Error::Insecure { place, why };
        }
        let is_encrypted = self.tls.mode != Mode::Disabled;
        match error {
            mysql::Error::MySqlError(e) if DENIED.contains(&e.code) => {
                let hint = match (e.code, &self.password) {
                    (SECURE_TRANSPORT_REQUIRED, _) => {
                        " (it wants an encrypted connection: --ssl, or the Unix socket)"
                    }
                    (_, None) => " (no password was given)",
                    // Of an account with REQUIRE SSL, and of MariaDB's require_secure_transport, no
                    // server says more than this.
                    (ACCESS_DENIED, Some(_)) if !is_encrypted => {
                        " (wrong password, or the account requires TLS: --ssl, which takes TCP)"
                    }
                    _ => "",
                };
                Error::Denied {
                    place,
                    user: self.user.clone(),
                    why: format!("{}{hint}", e.message),
                }
            }
            // It is there, and says why not: too many connections, say.
            mysql::Error::MySqlError(e) => {
                Error::Refused { what: format!("connecting to {place}"), why: e.message }
            }
            mysql::Error::DriverError(DriverError::UnknownAuthPlugin(name)) => Error::Denied {
                place,
                user: self.user.clone(),
                // MySQL makes a method up for accounts that are not there, lest their names be
                // guessed.
                why: format!(
                    "the server asks for {name}, which this program can't speak; MySQL does that for some wrong names of users too"
                ),
            },
            other => Error::NoServer { place, why: plain(&other) },
        }
    }
}

/// The driver takes text for a path. One that is none has another by the kernel's grace, for as
/// long as the file is open.
fn by_descriptor<T>(
    path: &Path,
    connect: impl FnOnce(String) -> mysql::Result<T>,
) -> mysql::Result<T> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
        .map_err(std::io::Error::from)?;
    connect(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The addresses of a host with several, or the host as it is.
fn addresses(host: &str, port: u16) -> Vec<String> {
    let found: Vec<_> = (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if found.len() > 1 {
        found.iter().map(|address| address.ip().to_string()).collect()
    } else {
        vec![host.to_owned()]
    }
}

/// By the first address at which there is a server. The driver by itself tries no other than a
/// name's first, which of `localhost` is `::1` on many machines, and a server may listen at
/// `127.0.0.1` alone.
fn first_reached<A, T>(
    addresses: Vec<A>,
    mut connect: impl FnMut(A) -> mysql::Result<T>,
) -> mysql::Result<T> {
    let mut result = Err(mysql::Error::DriverError(DriverError::CouldNotConnect(None)));
    for address in addresses {
        result = connect(address);
        let is_nobody_there = matches!(
            result,
            Err(mysql::Error::DriverError(
                DriverError::CouldNotConnect(_) | DriverError::ConnectTimeout
            ))
        );
        if !is_nobody_there {
            break;
        }
    }
    result
}

/// The driver wraps the system's words in its own.
fn plain(error: &mysql::Error) -> String {
    match error {
        mysql::Error::IoError(e) => in_words(e.to_string()),
        mysql::Error::CodecError(e) => in_words(e.to_string()),
        mysql::Error::DriverError(DriverError::CouldNotConnect(Some((_, why, _)))) => why.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(place: Place) -> Target {
        let (user, tls) = (String::new(), Tls::default());
        let connect_timeout = CONNECT_TIMEOUT;
        Target { place, user, password: None, tls, connect_timeout, answer_timeout: None }
    }

    fn place(options: &Options, values: &Values) -> String {
        target(options.place(values).unwrap()).place()
    }

    #[test]
    fn the_command_line_outranks_the_files() {
        let files = Values {
            host: Some("db.example".into()),
            port: Some(3307),
            socket: Some("/run/file.sock".into()),
            ..Values::default()
        };
        let options = Options::default();
        assert_eq!(place(&options, &files), "db.example:3307");
        let options = Options { socket: Some("/run/line.sock".into()), ..Options::default() };
        assert_eq!(place(&options, &files), "/run/line.sock");
        let options = Options { host: Some("localhost".into()), ..Options::default() };
        assert_eq!(place(&options, &files), "/run/file.sock");
        let options =
            Options { host: Some("127.0.0.1".into()), port: Some(1), ..Options::default() };
        assert_eq!(place(&options, &files), "127.0.0.1:1");
    }

    #[test]
    fn a_port_on_the_command_line_is_tcp_and_one_in_a_file_is_not() {
        let nothing = Values::default();
        let files =
            Values { port: Some(3308), socket: Some("/run/file.sock".into()), ..Values::default() };
        let with_port = Options { port: Some(3307), ..Options::default() };
        assert_eq!(place(&with_port, &nothing), "localhost:3307");
        assert_eq!(place(&with_port, &files), "localhost:3307");
        for host in ["localhost", ""] {
            let options = Options { host: Some(host.into()), ..with_port.clone() };
            assert_eq!(place(&options, &files), "localhost:3307");
        }
        let elsewhere = Values { host: Some("db.example".into()), ..files.clone() };
        assert_eq!(place(&with_port, &elsewhere), "db.example:3307");
        let options = Options { host: Some("localhost".into()), ..with_port.clone() };
        assert_eq!(place(&options, &elsewhere), "localhost:3307");
        let options = Options { socket: Some("/run/line.sock".into()), ..with_port };
        assert_eq!(place(&options, &files), "/run/line.sock");
        assert_eq!(place(&Options::default(), &files), "/run/file.sock");
    }

    #[test]
    fn the_protocol_says_how_to_reach_localhost() {
        let tcp = Values {
            protocol: Some(Protocol::Tcp),
            socket: Some("/run/file.sock".into()),
            ..Values::default()
        };
        assert_eq!(place(&Options::default(), &tcp), "localhost:3306");
        assert_eq!(
            place(&Options::default(), &Values { port: Some(3307), ..tcp.clone() }),
            "localhost:3307"
        );
        let options = Options { socket: Some("/run/line.sock".into()), ..Options::default() };
        assert_eq!(place(&options, &tcp), "/run/line.sock");
        let options = Options { protocol: Some(Protocol::Tcp), ..options };
        assert_eq!(place(&options, &Values::default()), "localhost:3306");
        let socket = Values { protocol: Some(Protocol::Socket), ..tcp };
        assert_eq!(place(&Options::default(), &socket), "/run/file.sock");
        let options = Options { port: Some(3307), ..Options::default() };
        assert_eq!(place(&options, &socket), "localhost:3307");
        let options = Options { protocol: Some(Protocol::Socket), ..options };
        assert_eq!(place(&options, &socket), "/run/file.sock");
        let elsewhere = Values { host: Some("db.example".into()), ..socket };
        assert_eq!(place(&Options::default(), &elsewhere), "db.example:3306");
    }

    #[test]
    fn localhost_is_this_machine_however_it_is_reached() {
        let loopback = |host: &str| {
            let place = Place::Tcp(host.into(), 3306);
            target(place).is_loopback()
        };
        assert!(loopback("localhost") && loopback("127.0.0.1") && loopback("::1"));
        assert!(!loopback("localhost.example") && !loopback("192.0.2.1"));
        for host in ["::1", "[::1]"] {
            let options = Options { host: Some(host.into()), ..Options::default() };
            let place = options.place(&Values::default()).unwrap();
            let target = target(place);
            assert!(target.is_loopback());
            assert_eq!(target.place(), "[::1]:3306");
        }
    }

    #[test]
    fn a_server_is_sought_at_each_address_until_one_answers() {
        let addresses = || vec!["::1".to_owned(), "127.0.0.1".to_owned()];
        let nobody = || mysql::Error::DriverError(DriverError::CouldNotConnect(None));
        let found = first_reached(addresses(), |address| match address.as_str() {
            "127.0.0.1" => Ok(address),
            _ => Err(nobody()),
        });
        assert_eq!(found.unwrap(), "127.0.0.1");
        assert!(first_reached::<_, ()>(addresses(), |_| Err(nobody())).is_err());
        let mut tried = 0;
        let answered = first_reached::<_, ()>(addresses(), |_| {
            tried += 1;
            Err(mysql::Error::DriverError(DriverError::PacketTooLarge))
        });
        assert!(answered.is_err() && tried == 1);
    }

    #[test]
    fn a_socket_is_found_whatever_bytes_its_path_has() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(OsStr::from_bytes(b"gr\xf6\xdfe.sock"));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            use std::io::Write;
            let (mut client, _) = listener.accept().unwrap();
            // "Too many connections", in the protocol's words.
            client.write_all(b"\x17\0\0\0\xff\x10\x04Too many connections").unwrap();
        });
        let target = target(Place::Socket(path.clone()));
        let error = target.connect().unwrap_err();
        assert_eq!(error.code(), 9, "{error}");
        server.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(target.connect().unwrap_err().code(), 3);
    }
}
