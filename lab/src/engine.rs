//! The engines that experiments run on: which options they take, and under which names they publish
//! what.
//!
//! Tidepool and InnoDB take part in every experiment. The others are there to compare defaults
//! with: they need packages or programs that not every machine has.

use crate::environment::Environment;
use crate::error::{Error, Result};

/// A storage engine, with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Engine {
    /// The plugin of this project.
    Tidepool,
    /// The server's own engine.
    #[value(name = "innodb")]
    InnoDb,
    /// The LSM tree in Debian's `mariadb-plugin-rocksdb`.
    #[value(name = "myrocks")]
    MyRocks,
    /// InnoDB in a MySQL server that the user has.
    #[value(name = "mysql")]
    MySql,
    /// PostgreSQL, which has one kind of storage.
    Postgres,
}

/// Which program an engine is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `mariadbd`.
    MariaDb,
    /// `mysqld`.
    MySql,
    /// `postgres`.
    Postgres,
}

/// The status of an engine's buffer pool, as the server publishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolStatus {
    /// Bytes that the pool may use now.
    pub size_bytes: u64,
    /// Bytes that it is on the way to.
    pub target_bytes: u64,
    /// Bytes of pages that it holds now.
    pub data_bytes: u64,
    /// Page reads from the disk, both on demand and ahead, since the start.
    pub pages_read: u64,
    /// Requests for a page since the start.
    pub read_requests: u64,
    /// Requests that had to wait for the disk, since the start.
    pub reads: u64,
    /// The longest wait that a resize caused, where the engine publishes it.
    pub resize_longest_wait_us: Option<u64>,
}

impl Engine {
    /// The name in `ENGINE=…`.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Tidepool => "Tidepool",
            Engine::InnoDb | Engine::MySql => "InnoDB",
            Engine::MyRocks => "ROCKSDB",
            Engine::Postgres => "PostgreSQL",
        }
    }

    /// The version of its server, for the names of directories.
    ///
    /// # Errors
    /// If the server is missing.
    pub fn version(self, environment: &Environment) -> Result<String> {
        match self.program() {
            Program::MariaDb => Ok(environment.value("VERSION")?.to_string()),
            Program::Postgres => environment.postgres_version(),
            Program::MySql => environment.mysql_version(),
        }
    }

    /// The same, with the format of data directories, which may change within a version of the
    /// server.
    ///
    /// # Errors
    /// As [`Engine::version`].
    pub fn data_version(self, environment: &Environment) -> Result<String> {
        let version = self.version(environment)?;
        Ok(match self {
            Engine::Tidepool => format!("{version}-format{}", tidepool::FORMAT_VERSION),
            _ => version,
        })
    }

    pub fn program(self) -> Program {
        match self {
            Engine::Tidepool | Engine::InnoDb | Engine::MyRocks => Program::MariaDb,
            Engine::MySql => Program::MySql,
            Engine::Postgres => Program::Postgres,
        }
    }

    /// True if the server publishes counters of a buffer pool.
    pub fn publishes_pool(self) -> bool {
        matches!(self, Engine::Tidepool | Engine::InnoDb | Engine::MySql)
    }

    /// What the names of its options and counters begin with.
    fn prefix(self) -> &'static str {
        match self {
            Engine::Tidepool => "tidepool",
            Engine::InnoDb | Engine::MySql => "innodb",
            Engine::MyRocks => "rocksdb",
            Engine::Postgres => "",
        }
    }

    /// The name in results and on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Engine::Tidepool => "tidepool",
            Engine::InnoDb => "innodb",
            Engine::MyRocks => "myrocks",
            Engine::MySql => "mysql",
            Engine::Postgres => "postgres",
        }
    }

    /// The server options that make this engine the default.
    ///
    /// # Errors
    /// If the plugin has not been built, or its package is missing.
    pub fn options(self, environment: &Environment) -> Result<Vec<String>> {
        Ok(match self {
            Engine::Tidepool => {
                let plugin = environment.plugin_dir.join("ha_tidepool.so");
                if !plugin.exists() {
                    let text = format!("{} is missing: run scripts/build-plugin", plugin.display());
                    return Err(Error::Missing(text));
                }
                vec![
                    format!("--plugin-dir={}", environment.plugin_dir.display()),
                    "--plugin-load-add=ha_tidepool.so".into(),
                    "--default-storage-engine=Tidepool".into(),
                    // InnoDB is there too, as in any stock server, but has nothing to do.
                    "--innodb-buffer-pool-size=8M".into(),
                    "--innodb-log-file-size=10M".into(),
                ]
            }
            Engine::InnoDb => vec!["--default-storage-engine=InnoDB".into()],
            Engine::MySql => vec![
                "--default-storage-engine=InnoDB".into(),
                // It rounds sizes up to whole chunks, and the default of 128 MiB is a large part of
                // these machines.
                "--innodb-buffer-pool-chunk-size=8M".into(),
            ],
            Engine::MyRocks => {
                let directory = environment.value("STOCK_PLUGIN_DIR")?;
                if !std::path::Path::new(directory).join("ha_rocksdb.so").exists() {
                    let text =
                        "the package mariadb-plugin-rocksdb is missing: run scripts/deps --test";
                    return Err(Error::Missing(text.into()));
                }
                vec![
                    format!("--plugin-dir={directory}"),
                    "--plugin-load-add=ha_rocksdb.so".into(),
                    "--default-storage-engine=ROCKSDB".into(),
                    // It has no gap locks, and says so in every transaction that would need them.
                    "--transaction-isolation=READ-COMMITTED".into(),
                    "--innodb-buffer-pool-size=8M".into(),
                    "--innodb-log-file-size=10M".into(),
                ]
            }
            Engine::Postgres => Vec::new(),
        })
    }

    /// The option that sets the size of the buffer pool at the start.
    pub fn pool_size_option(self, size_bytes: u64) -> String {
        match self {
            Engine::MyRocks => format!("--rocksdb-block-cache-size={size_bytes}"),
            Engine::Postgres => format!("--shared_buffers={}kB", size_bytes >> 10),
            _ => format!("--{}-buffer-pool-size={size_bytes}", self.prefix()),
        }
    }

    /// The option that makes a start a cold one, where there is another kind.
    pub fn cold_start_option(self) -> Option<&'static str> {
        match self {
            Engine::Tidepool => Some("--loose-tidepool-buffer-pool-load-at-startup=OFF"),
            Engine::MyRocks | Engine::Postgres => None,
            _ => Some("--innodb-buffer-pool-load-at-startup=OFF"),
        }
    }

    /// The option that sets the capacity of the redo log.
    pub fn redo_option(self, size_bytes: u64) -> String {
        match self {
            Engine::Tidepool => format!("--tidepool-redo-log-capacity={size_bytes}"),
            Engine::InnoDb => format!("--innodb-log-file-size={size_bytes}"),
            Engine::MySql => format!("--innodb-redo-log-capacity={size_bytes}"),
            Engine::MyRocks => format!("--rocksdb-max-total-wal-size={size_bytes}"),
            Engine::Postgres => format!("--max_wal_size={}MB", size_bytes >> 20),
        }
    }

    /// The option that leaves flushing the log to the operating system, for filling tables.
    pub fn lazy_log_option(self) -> String {
        match self {
            Engine::Postgres => "--synchronous_commit=off".into(),
            _ => format!("--{}-flush-log-at-trx-commit=0", self.prefix()),
        }
    }

    /// The statement that changes the size of the buffer pool on line, of an engine that can.
    pub fn set_pool_size(self, size_bytes: u64) -> String {
        format!("SET GLOBAL {}_buffer_pool_size={size_bytes}", self.prefix())
    }

    /// The statement that lists what [`pool_status`](Self::pool_status) reads.
    pub fn status_query(self) -> String {
        format!("SHOW GLOBAL STATUS LIKE '{}\\_buffer\\_pool\\_%'", self.prefix())
    }

    /// The statement that lists the indexes in the buffer pool with their pages, where there is
    /// one.
    pub fn pool_content_query(self) -> Option<&'static str> {
        match self {
            Engine::Tidepool => Some(
                "SELECT CONCAT_WS('.', TABLE_SCHEMA, TABLE_NAME, INDEX_NAME), PAGES \
                 FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX",
            ),
            Engine::InnoDb | Engine::MySql => Some(
                "SELECT CONCAT_WS('.', REPLACE(TABLE_NAME, '`', ''), INDEX_NAME) AS name, COUNT(*) \
                 FROM information_schema.INNODB_BUFFER_PAGE WHERE TABLE_NAME IS NOT NULL GROUP BY name",
            ),
            Engine::MyRocks | Engine::Postgres => None,
        }
    }

    /// The rows of [`status_query`](Self::status_query), understood. A counter that is not there is
    /// 0.
    pub fn pool_status(self, rows: &[(String, String)]) -> PoolStatus {
        let prefix = self.prefix().len() + "_buffer_pool_".len();
        let text = |name: &str| {
            let row = rows.iter().find(|(key, _)| {
                key.get(prefix..).is_some_and(|rest| rest.eq_ignore_ascii_case(name))
            });
            row.map(|(_, value)| value.as_str())
        };
        let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
        let or_zero = |name: &str| number(name).unwrap_or(0);
        const PAGE: u64 = 16 * 1024;
        match self {
            Engine::Tidepool => {
                let by_pages = number("pages_total").map(|pages| pages * PAGE);
                let size = number("size_bytes").or(by_pages).unwrap_or(0);
                PoolStatus {
                    size_bytes: size,
                    target_bytes: number("target_bytes").unwrap_or(size),
                    data_bytes: or_zero("pages_data") * PAGE,
                    pages_read: or_zero("reads") + or_zero("read_ahead"),
                    read_requests: or_zero("read_requests"),
                    reads: or_zero("reads"),
                    resize_longest_wait_us: number("resize_longest_wait_us"),
                }
            }
            _ => {
                let size = or_zero("pages_total") * PAGE;
                PoolStatus {
                    size_bytes: size,
                    target_bytes: size,
                    data_bytes: or_zero("pages_data") * PAGE,
                    pages_read: or_zero("reads") + or_zero("read_ahead"),
                    read_requests: or_zero("read_requests"),
                    reads: or_zero("reads"),
                    resize_longest_wait_us: None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Engine;

    #[test]
    fn the_status_of_innodb_is_understood() {
        let rows = [
            ("Innodb_buffer_pool_pages_total", "8192"),
            ("Innodb_buffer_pool_reads", "100"),
            ("Innodb_buffer_pool_read_ahead", "20"),
            ("Innodb_buffer_pool_read_requests", "5000"),
            ("Innodb_buffer_pool_dump_status", ""),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()));
        let status = Engine::InnoDb.pool_status(&rows);
        assert_eq!(status.size_bytes, 128 << 20);
        assert_eq!((status.pages_read, status.reads, status.read_requests), (120, 100, 5000));
    }

    #[test]
    fn each_engine_has_its_own_name_for_the_size_of_its_cache() {
        let size = |engine: Engine| engine.pool_size_option(64 << 20);
        assert_eq!(size(Engine::Tidepool), "--tidepool-buffer-pool-size=67108864");
        assert_eq!(size(Engine::MySql), "--innodb-buffer-pool-size=67108864");
        assert_eq!(size(Engine::MyRocks), "--rocksdb-block-cache-size=67108864");
        assert_eq!(size(Engine::Postgres), "--shared_buffers=65536kB");
    }

    #[test]
    fn a_governed_pool_names_its_size_and_target() {
        let rows = [
            ("Tidepool_buffer_pool_size_bytes", "1048576"),
            ("Tidepool_buffer_pool_target_bytes", "2097152"),
            ("Tidepool_buffer_pool_resize_longest_wait_us", "17"),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()));
        let status = Engine::Tidepool.pool_status(&rows);
        assert_eq!((status.size_bytes, status.target_bytes), (1 << 20, 2 << 20));
        assert_eq!(status.resize_longest_wait_us, Some(17));
    }
}
