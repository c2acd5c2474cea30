//! PostgreSQL's programs: a private cluster, reached through its socket only. Clusters of the
//! system are not touched.
//!
//! PostgreSQL refuses to run as root. The lab needs root for cgroups, so it starts the cluster
//! under the account `postgres` if the system has one, else `nobody`.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::environment::Environment;
use crate::error::{Error, Result, tail};

/// The name of the socket in its directory: PostgreSQL appends the number of a port, whether or not
/// it listens there.
pub const SOCKET_NAME: &str = ".s.PGSQL.5432";

/// The user and group that the cluster runs as; nothing where that is who runs the lab.
fn account() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let list = Path::new("/etc/passwd");
    let text = fs::read_to_string(list).map_err(Error::at(list))?;
    find_account(&text).map(Some).ok_or_else(|| {
        Error::Missing(
            "PostgreSQL can't run as root, and there is no user postgres or nobody".into(),
        )
    })
}

fn find_account(passwd: &str) -> Option<(u32, u32)> {
    let of = |name: &str| {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [found, _, user, group, ..] = fields[..] else { return None };
            if found != name {
                return None;
            }
            Some((user.parse().ok()?, group.parse().ok()?))
        })
    };
    of("postgres").or_else(|| of("nobody"))
}

/// Gives a directory to the account.
pub(crate) fn hand_over(dir: &Path) -> Result<()> {
    match account()? {
        Some((user, group)) => chown(dir, Some(user), Some(group)).map_err(Error::at(dir)),
        None => Ok(()),
    }
}

fn as_account(program: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    if let Some((user, group)) = account()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// The server of a cluster, with its socket in `dir`.
///
/// # Errors
/// If the programs have not been unpacked, or there is no account for it.
pub(crate) fn server(environment: &Environment, data_dir: &Path, dir: &Path) -> Result<Command> {
    hand_over(dir)?;
    let data_dir = fs::canonicalize(data_dir).map_err(Error::at(data_dir))?;
    let dir = fs::canonicalize(dir).map_err(Error::at(dir))?;
    let mut command = as_account(&environment.postgres_programs()?.join("postgres"))?;
    command.arg("-D").arg(&data_dir).arg("-k").arg(dir).arg("--listen_addresses=");
    Ok(command)
}

/// Makes an empty cluster.
///
/// # Errors
/// If `initdb` fails: what it prints.
pub(crate) fn install(environment: &Environment, data_dir: &Path) -> Result<()> {
    fs::create_dir_all(data_dir).map_err(Error::at(data_dir))?;
    hand_over(data_dir)?;
    let data_dir = fs::canonicalize(data_dir).map_err(Error::at(data_dir))?;
    let program = environment.postgres_programs()?.join("initdb");
    let output = as_account(&program)?
        .arg("-D")
        .arg(&data_dir)
        .args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(Error::at(&program))?;
    if output.status.success() {
        return Ok(());
    }
    let message = tail(&String::from_utf8_lossy(&output.stderr), 20);
    Err(Error::Program { program: "initdb".into(), message })
}

#[cfg(test)]
mod tests {
    use super::find_account;

    #[test]
    fn the_account_is_the_servers_own_if_there_is_one() {
        let nobody = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533::/:/usr/sbin/nologin\n";
        assert_eq!(find_account(nobody), Some((65534, 65533)));
        let both = format!("{nobody}postgres:x:101:104::/var/lib/postgresql:/bin/bash\n");
        assert_eq!(find_account(&both), Some((101, 104)));
        assert_eq!(find_account("root:x:0:0::/:/bin/sh\nbroken\n"), None);
    }
}
