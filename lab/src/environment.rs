//! Where the programs are: the unpacked MariaDB server (`var/mariadb.env`, which `scripts/deps` writes), the
//! plugin, and the directory in which experiments work.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The paths that experiments need.
#[derive(Clone, Debug)]
pub struct Environment {
    values: HashMap<String, String>,
    file: PathBuf,
    /// Holds `ha_tidepool.so`.
    pub plugin_dir: PathBuf,
    /// Data directories that are kept, and one directory a running server.
    pub work_dir: PathBuf,
}

impl Environment {
    /// Reads `var/mariadb.env` of the checkout: the one around the current directory, else the one this program was
    /// built from.
    ///
    /// `TIDEPOOL_PLUGIN_DIR` and `TIDEPOOL_LAB_DIR` override where the plugin and the working directory are.
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
                Error::Missing("var/mariadb.env is missing: run scripts/deps --test".into())
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
            file,
        })
    }

    /// The directory for what the servers of this process need while they run.
    pub fn run_dir(&self) -> PathBuf {
        self.work_dir.join(format!("tidepool-lab-{}", std::process::id()))
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
    use super::parse;

    #[test]
    fn values_are_unquoted_and_comments_skipped() {
        let values = parse("# a=b\nVERSION=\"10.11.18\"\nINCLUDES=\"-Ia -Db=c\"\n");
        assert_eq!(values.len(), 2);
        assert_eq!(values["VERSION"], "10.11.18");
        assert_eq!(values["INCLUDES"], "-Ia -Db=c");
    }
}
