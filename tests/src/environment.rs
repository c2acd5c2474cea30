//! Where things are: the unpacked MariaDB server (from `var/mariadb.env`, which `scripts/deps`
//! writes), the plugin, and a MySQL server.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tidepool_lab::environment;

/// The paths that tests need.
#[derive(Debug)]
pub struct Environment {
    root: PathBuf,
    values: HashMap<String, String>,
}

impl Environment {
    /// The environment of this checkout, read once.
    ///
    /// # Panics
    /// If `scripts/deps` has not run.
    pub fn get() -> &'static Environment {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("has a parent");
            let file = root.join("var/mariadb.env");
            let text = std::fs::read_to_string(&file)
                .unwrap_or_else(|e| panic!("{}: {e}; run scripts/deps --test", file.display()));
            Environment { root: root.to_path_buf(), values: environment::parse(&text) }
        })
    }

    /// A value of `var/mariadb.env`, as a path.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn path(&self, key: &str) -> PathBuf {
        PathBuf::from(self.value(key))
    }

    /// A value of `var/mariadb.env`.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn value(&self, key: &str) -> &str {
        self.values.get(key).unwrap_or_else(|| panic!("var/mariadb.env has no {key}"))
    }

    /// The top of the checkout.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A MySQL server, if `scripts/deps --test` could have one, and its version.
    pub fn mysqld(&self) -> Option<(PathBuf, String)> {
        let mysqld = self.root.join(environment::MYSQLD);
        let version = environment::mysql_version(&mysqld).ok()?;
        Some((mysqld, version))
    }

    /// The directory for what tests leave behind; made on demand.
    pub fn test_dir(&self) -> PathBuf {
        let dir = self.root.join("var/test");
        std::fs::create_dir_all(&dir).expect("var/test can be made");
        dir
    }

    /// The directory with `ha_tidepool.so`: `TIDEPOOL_PLUGIN_DIR`, or `target/release`.
    pub fn plugin_dir(&self) -> PathBuf {
        match std::env::var_os("TIDEPOOL_PLUGIN_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => self.root.join("target/release"),
        }
    }
}
