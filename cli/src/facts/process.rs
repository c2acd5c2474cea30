//! Which process is the server's.
//!
//! What is wrong here is wrong in all that follows: another process's memory and limits would be
//! taken for the server's. So a process is known by the moment at which it began, too, for its
//! number is another's one day; and the server's word for its number, its pid file, counts only
//! where that process is as old as the server is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidepool_governor::kernel::Root;

use crate::exit::{Error, Result};
use crate::server::{Named, Server, text};

/// From the beginning of a server's process until it begins to count its uptime: a container's
/// process may have been a script before.
const BEGINS: Duration = Duration::from_secs(60);
/// The server counts in whole seconds.
const SECOND: Duration = Duration::from_secs(2);

/// A process that was found running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Process id.
    pub pid: u32,
    /// When it began, in the kernel's ticks since the machine's start.
    began: u64,
}

impl Running {
    /// The process that has this number now.
    pub fn find(root: &Root, pid: u32) -> Option<Running> {
        let stat = root.text(format!("/proc/{pid}/stat"))?;
        // The name is in parentheses, and may have some itself. The 22nd field is the 20th behind
        // it.
        let began = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
        Some(Running { pid, began })
    }

    /// The process that the user named.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none.
    pub fn named(pid: u32) -> Result<Running> {
        let none =
            || Error::Usage(format!("--pid {pid}: no such process can be seen in /proc here"));
        Running::find(&Root::default(), pid).ok_or_else(none)
    }

    /// A text that no other process has, now or later: its number and when it began.
    pub fn key(self) -> String {
        format!("{}-{}", self.pid, self.began)
    }

    /// Whether it still runs. Another one of its number is not it.
    pub fn runs(self, root: &Root) -> bool {
        Running::find(root, self.pid) == Some(self)
    }

    fn age(self) -> Option<Duration> {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?);
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        Some(now.saturating_sub(Duration::from_secs_f64(self.began as f64 / ticks_per_s)))
    }
}

/// The server's process as seen from here, if the server is on this machine.
///
/// A Unix socket's peer is known to the kernel, and translated into our namespace of process ids:
/// right even when the server is in a container. Over loopback TCP, and of a socket that somebody
/// else listens on, there is only the server's own word, its pid file, which is believed when such
/// a process runs here, has a server's name, and is as old as the server. (Both ends of a tunnel
/// may have the same host name, and each its own server.)
pub fn server_process(server: &mut Server, variables: &Named) -> Option<Running> {
    let root = Root::default();
    if server.target().socket().is_none() {
        return server.target().is_loopback().then(|| by_file(server, variables)).flatten();
    }
    let pid = server.peer_pid()?;
    match is_server_of_listener(process_name(pid).as_deref()) {
        true => Running::find(&root, pid),
        false => by_file(server, variables),
    }
}

/// The server's process: the one that was found, or that the user named and that can be it.
///
/// # Errors
/// [`Error::Usage`] where the user named a process that the server is not: its memory and limits
/// would be taken for the server's.
pub fn chosen_process(
    server: &mut Server,
    variables: &Named,
    named: Option<Running>,
) -> Result<Option<Running>> {
    let found = server_process(server, variables);
    let Some(named) = named else { return Ok(found) };
    let pid = named.pid;
    if let Some(found) = found {
        return match found == named {
            true => Ok(Some(named)),
            false => Err(Error::Usage(format!(
                "--pid {pid}: the server at {} is process {}",
                server.target().place(),
                found.pid
            ))),
        };
    }
    // A name that can't be seen says nothing against it.
    if let Some(name) = process_name(pid).filter(|name| !is_server(name)) {
        return Err(Error::Usage(format!("--pid {pid}: that is {name:?}, and no database server")));
    }
    if let (Some(age), Some(uptime)) = (named.age(), uptime(server)?)
        && !is_as_old(age, uptime)
    {
        return Err(Error::Usage(format!(
            "--pid {pid}: that process runs for {} s, and the server at {} for {} s: it is another",
            age.as_secs(),
            server.target().place(),
            uptime.as_secs()
        )));
    }
    Ok(Some(named))
}

fn uptime(server: &mut Server) -> Result<Option<Duration>> {
    let query = "SHOW GLOBAL STATUS LIKE 'Uptime'";
    let row: Option<(String, u64)> = server.first("the uptime", "", query)?;
    Ok(row.map(|(_, seconds)| Duration::from_secs(seconds)))
}

/// Whether a process of this name that began to listen on the server's socket is the server itself.
/// It is unless systemd made the socket for it (`mariadb.socket`), or something stands between:
/// `ssh -L`, a proxy, whose server may be on another machine. Whose memory and limits would be
/// taken for the server's then are others'.
fn is_server_of_listener(name: Option<&str>) -> bool {
    name.is_none_or(is_server)
}

/// Whether a process of this name is a server: `mysqld`, one for debugging, or one that is called
/// after its version. Not `mysqld_safe`, `mariadbd-multi` and `mysqld_exporter`, which run beside
/// servers.
pub fn is_server(name: &str) -> bool {
    ["mariadbd", "mysqld"].iter().filter_map(|program| name.strip_prefix(program)).any(|rest| {
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        rest == "debug" || rest.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

/// The server's own word, where such a process runs here, has a server's name and its age.
fn by_file(server: &mut Server, variables: &Named) -> Option<Running> {
    let here = rustix::system::uname();
    if variables.get("hostname").map(String::as_str) != here.nodename().to_str().ok() {
        return None;
    }
    let file = Path::new(variables.get("pid_file")?);
    let file = Path::new(variables.get("datadir")?).join(file);
    let pid: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    let process =
        is_server(&process_name(pid)?).then(|| Running::find(&Root::default(), pid))??;
    is_as_old(process.age()?, uptime(server).ok()??).then_some(process)
}

/// Whether a process of this age can be the server that has been up for so long.
fn is_as_old(age: Duration, uptime: Duration) -> bool {
    (uptime.saturating_sub(SECOND)..=uptime + SECOND + BEGINS).contains(&age)
}

fn process_name(pid: u32) -> Option<String> {
    Some(text(fs::read(format!("/proc/{pid}/comm")).ok()?).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_of_the_same_number_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let begins = |began: u64| {
            fs::create_dir_all(directory.path().join("proc/7")).unwrap();
            let stat =
                format!("7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 9 0 {began} 5 6\n");
            fs::write(directory.path().join("proc/7/stat"), stat).unwrap();
        };
        assert_eq!(Running::find(&root, 7), None);
        begins(4711);
        let first = Running::find(&root, 7).unwrap();
        assert_eq!(first, Running { pid: 7, began: 4711 });
        assert!(first.runs(&root));
        begins(4712);
        assert!(!first.runs(&root));
    }

    #[test]
    fn a_process_is_as_old_as_it_is() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Running::named(child.id()).unwrap();
        assert!(process.runs(&Root::default()));
        assert!(process.age().unwrap() < Duration::from_secs(60), "{:?}", process.age());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.runs(&Root::default()));
        // The kernel's largest process id is 2^22.
        assert_eq!(Running::named(1 << 23).unwrap_err().code(), 2);
    }

    #[test]
    fn a_server_is_no_older_than_its_process_and_hardly_younger() {
        let of = |age, uptime| is_as_old(Duration::from_secs_f64(age), Duration::from_secs(uptime));
        assert!(of(1000.9, 1000) && of(1000.0, 1001) && of(0.1, 0));
        // A container's entrypoint.
        assert!(of(1040.0, 1000));
        // Of the same host name, behind a tunnel.
        assert!(!of(500.0, 1000) && !of(86_400.0, 1000));
    }

    #[test]
    fn who_made_the_socket_is_not_taken_for_the_server_behind_it() {
        for name in ["ssh", "sshd", "proxysql", "haproxy", "mysql", "mysqlrouter", "systemd"] {
            assert!(!is_server_of_listener(Some(name)), "{name}");
        }
        // The kernel cuts a name to 15 characters.
        for name in ["mysqld_safe", "mysqld_multi", "mysqld_exporter", "mysqld_safe_hel"] {
            assert!(!is_server(name), "{name}");
        }
        for name in ["mariadbd-safe", "mariadbd-safe-h", "mariadbd-multi", "mysqld-agent"] {
            assert!(!is_server(name), "{name}");
        }
        for name in ["mysqld-debug", "mysqld-8.0.36", "mysqld8", "mariadbd-11.4"] {
            assert!(is_server(name), "{name}");
        }
        // One that can't be seen, as of another user where /proc hides them, is.
        for name in [Some("mysqld"), Some("mariadbd"), None] {
            assert!(is_server_of_listener(name), "{name:?}");
        }
    }
}
