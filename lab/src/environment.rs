//! Where the programs are: the unpacked MariaDB server (`var/mariadb.env`, which `scripts/deps`
//! writes), the plugin, and the directory in which experiments work.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Where `scripts/deps` puts a MySQL server, below the top of a checkout.
pub const MYSQLD: &str = "var/mysql/mysqld";

/// The paths that experiments need.
#[derive(Clone, Debug)]
pub struct Environment {
    values: HashMap<String, String>,
    file: PathBuf,
    /// Holds PostgreSQL's programs, unpacked.
    postgres: PathBuf,
    /// A MySQL server, if there is one: the one that was unpacked, unless the user names another.
    pub mysqld: Option<PathBuf>,
    /// Holds `ha_tidepool.so`.
    pub plugin_dir: PathBuf,
    /// Data directories that are kept, and one directory a running server.
    pub work_dir: PathBuf,
}

impl Environment {
    /// Reads `var/mariadb.env` of the checkout: the one around the current directory, else the one
    /// this program was built from.
    ///
    /// `TIDEPOOL_PLUGIN_DIR` and `TIDEPOOL_LAB_DIR` override where the plugin and the working
    /// directory are.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn find() -> Result<Environment> {
        let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let here = std::env::current_dir().map_err(Error::io("the current directory"))?;
        let root = here
            .ancestors()
            .chain(built_in)
            .find(|root| root.join("var/mariadb.env").exists())
            .ok_or_else(|| {
                Error::Missing(format!(
                    "var/mariadb.env is neither below {} or a directory above it, nor below {}: \
                     run this in a checkout of Tidepool, after scripts/deps --test",
                    here.display(),
                    built_in.map_or("/".into(), |root| root.display().to_string())
                ))
            })?;
        let file = root.join("var/mariadb.env");
        let text = std::fs::read_to_string(&file).map_err(Error::at(&file))?;
        let directory = |variable: &str, default: &str| {
            std::env::var_os(variable).map_or_else(|| root.join(default), PathBuf::from)
        };
        Ok(Environment {
            values: parse(&text),
            plugin_dir: directory("TIDEPOOL_PLUGIN_DIR", "target/release"),
            work_dir: directory("TIDEPOOL_LAB_DIR", "var/lab"),
            postgres: root.join("var/postgresql/usr/lib/postgresql"),
            mysqld: Some(root.join(MYSQLD)).filter(|path| path.is_file()),
            file,
        })
    }

    /// A machine without any program, and with this working directory.
    #[cfg(test)]
    pub fn in_directory(work_dir: &Path) -> Environment {
        Environment {
            values: parse("VERSION=10.11.18"),
            file: work_dir.join("mariadb.env"),
            postgres: work_dir.join("postgresql"),
            mysqld: None,
            plugin_dir: work_dir.to_path_buf(),
            work_dir: work_dir.to_path_buf(),
        }
    }

    /// The directory for what the servers of this process need while they run.
    pub fn run_dir(&self) -> PathBuf {
        self.work_dir.join(format!("tidepool-lab-{}", std::process::id()))
    }

    /// The directory with PostgreSQL's programs, of the newest version that is there.
    ///
    /// # Errors
    /// If none has been unpacked.
    pub fn postgres_programs(&self) -> Result<PathBuf> {
        self.postgres().map(|(_, programs)| programs)
    }

    fn postgres(&self) -> Result<(u32, PathBuf)> {
        newest_postgres(&self.postgres).ok_or_else(|| {
            Error::Missing(
                "PostgreSQL (Debian's package postgresql) is missing: run scripts/deps --lab"
                    .into(),
            )
        })
    }

    /// The MySQL server.
    ///
    /// # Errors
    /// If none has been unpacked and the user has named none, or what is not there.
    pub fn mysqld(&self) -> Result<&Path> {
        match &self.mysqld {
            Some(path) if path.is_file() => Ok(path),
            Some(path) => Err(Error::Missing(format!("--mysqld: {} is no file", path.display()))),
            None => Err(Error::Missing(
                "a MySQL server is needed: run scripts/deps --test, or name its mysqld by --mysqld PATH"
                    .into(),
            )),
        }
    }

    /// The version of the PostgreSQL that was unpacked.
    ///
    /// # Errors
    /// If none was.
    pub fn postgres_version(&self) -> Result<String> {
        self.postgres().map(|(version, _)| version.to_string())
    }

    /// The version of the MySQL server.
    ///
    /// # Errors
    /// As [`mysqld`](Self::mysqld), and if it can't be run.
    pub fn mysql_version(&self) -> Result<String> {
        mysql_version(self.mysqld()?)
    }

    /// A value of `var/mariadb.env`.
    ///
    /// # Errors
    /// If it has no such key.
    pub fn value(&self, key: &str) -> Result<&str> {
        self.values.get(key).map(String::as_str).ok_or_else(|| {
            Error::Missing(format!("{} has no {key}: run scripts/deps", self.file.display()))
        })
    }
}

/// The highest version below a directory as `usr/lib/postgresql`, and its programs.
fn newest_postgres(directory: &Path) -> Option<(u32, PathBuf)> {
    let versions = std::fs::read_dir(directory).ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("postgres").is_file().then_some((version, programs))
    });
    versions.max_by_key(|(version, _)| *version)
}

/// What a `mysqld` says that it is.
///
/// # Errors
/// If it can't be run, or says nothing like a version of MySQL.
pub fn mysql_version(mysqld: &Path) -> Result<String> {
    let output = Command::new(mysqld).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(Error::at(mysqld))?;
    version_in(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        Error::Missing(format!("{} --version prints no version of MySQL", mysqld.display()))
    })
}

/// "8.4.6" of "mysqld  Ver 8.4.6 for Linux on x86_64". A MariaDB server is none.
fn version_in(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Ver ").filter(|_| !text.contains("MariaDB"))?;
    let version = rest.split_whitespace().next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_string())
}

/// The values of `var/mariadb.env`: lines `KEY="value"`; anything else is a comment.
pub fn parse(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_string(), value.trim_matches('"').to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_unquoted_and_comments_skipped() {
        let values = parse("# a=b\nVERSION=\"10.11.18\"\nINCLUDES=\"-Ia -Db=c\"\n");
        assert_eq!(values.len(), 2);
        assert_eq!(values["VERSION"], "10.11.18");
        assert_eq!(values["INCLUDES"], "-Ia -Db=c");
    }

    #[test]
    fn the_newest_postgresql_that_is_whole_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest_postgres(dir.path()), None);
        for version in ["9", "15", "17"] {
            std::fs::create_dir_all(dir.path().join(version).join("bin")).unwrap();
        }
        for version in ["9", "15"] {
            std::fs::write(dir.path().join(version).join("bin/postgres"), b"").unwrap();
        }
        assert_eq!(newest_postgres(dir.path()), Some((15, dir.path().join("15/bin"))));
    }

    #[test]
    fn a_mysql_server_tells_its_version_and_mariadb_is_none() {
        let mysql =
            "/usr/sbin/mysqld  Ver 8.4.6 for Linux on x86_64 (MySQL Community Server - GPL)";
        assert_eq!(version_in(mysql).as_deref(), Some("8.4.6"));
        let mariadb =
            "mysqld  Ver 10.11.18-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(version_in(mariadb), None);
        assert_eq!(version_in("usage"), None);
    }
}
