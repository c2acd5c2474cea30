//! How far this server is behind the servers that it replicates from.

use mysql::Row;
use serde::Serialize;

use crate::exit::{Error, Result};
use crate::server::{Flavour, Kind, Server};

/// One source of changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Channel {
    /// Its name; most servers have one channel, without a name.
    pub name: String,
    /// `host:port` of the source.
    pub source: String,
    /// Seconds behind; `None` while it does not run, or does not know.
    pub lag_s: Option<f64>,
    /// Whether both threads run: the one that fetches and the one that applies.
    pub is_running: bool,
    /// The last error of either thread.
    pub error: Option<String>,
}

/// What is known of replication.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Replication {
    /// Empty on a server that is no replica.
    pub channels: Vec<Channel>,
    /// Why nothing is known, with the grant.
    pub note: Option<String>,
}

impl Replication {
    /// Of the channel that is farthest behind.
    pub fn lag_s(&self) -> Option<f64> {
        self.channels.iter().filter_map(|channel| channel.lag_s).reduce(f64::max)
    }

    /// Channels that do not run; `None` where there is no channel.
    pub fn stopped(&self) -> Option<usize> {
        let stopped = self.channels.iter().filter(|channel| !channel.is_running).count();
        (!self.channels.is_empty()).then_some(stopped)
    }

    /// Asks the server.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn read(server: &mut Server) -> Result<Replication> {
        let (statement, privilege) = statement(server.kind());
        match server.rows::<Row>("the state of replication", privilege, statement) {
            Ok(rows) => {
                let channels = rows.iter().map(channel).collect();
                Ok(Replication { channels, note: None })
            }
            Err(error @ Error::Gone(_)) => Err(error),
            Err(error) => Ok(Replication { channels: Vec::new(), note: Some(error.to_string()) }),
        }
    }
}

/// The statement that this server has for it, and the privilege.
fn statement(kind: &Kind) -> (&'static str, &'static str) {
    match kind.flavour {
        Flavour::MariaDb if kind.version >= (10, 5, 9) => {
            ("SHOW ALL SLAVES STATUS", "SLAVE MONITOR")
        }
        Flavour::MariaDb => ("SHOW ALL SLAVES STATUS", "REPLICATION CLIENT"),
        Flavour::MySql | Flavour::Percona if kind.version >= (8, 0, 22) => {
            ("SHOW REPLICA STATUS", "REPLICATION CLIENT")
        }
        Flavour::MySql | Flavour::Percona => ("SHOW SLAVE STATUS", "REPLICATION CLIENT"),
    }
}

/// One row: MySQL since 8.0.22 has other words in its columns' names.
fn channel(row: &Row) -> Channel {
    let word = |names: &[&str]| -> Option<String> {
        names.iter().find_map(|name| row.get_opt::<Option<String>, _>(*name)?.ok().flatten())
    };
    let runs = |names: &[&str]| word(names).is_some_and(|word| word == "Yes");
    let errors = [word(&["Last_IO_Error"]), word(&["Last_SQL_Error"])];
    let port = word(&["Master_Port", "Source_Port"]).unwrap_or_default();
    Channel {
        name: word(&["Connection_name", "Channel_Name"]).unwrap_or_default(),
        source: format!("{}:{port}", word(&["Master_Host", "Source_Host"]).unwrap_or_default()),
        lag_s: word(&["Seconds_Behind_Master", "Seconds_Behind_Source"])
            .and_then(|word| word.parse().ok()),
        is_running: runs(&["Slave_IO_Running", "Replica_IO_Running"])
            && runs(&["Slave_SQL_Running", "Replica_SQL_Running"]),
        error: errors.into_iter().flatten().find(|error| !error.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_that_of_the_slowest_channel() {
        let channel = |lag_s, is_running| Channel { lag_s, is_running, ..Channel::default() };
        let of = |channels: Vec<Channel>| Replication { channels, note: None };
        assert_eq!((of(vec![]).lag_s(), of(vec![]).stopped()), (None, None));
        let two = of(vec![channel(Some(3.0), true), channel(Some(9.0), true)]);
        assert_eq!((two.lag_s(), two.stopped()), (Some(9.0), Some(0)));
        let one_stopped = of(vec![channel(None, false), channel(Some(1.0), true)]);
        assert_eq!((one_stopped.lag_s(), one_stopped.stopped()), (Some(1.0), Some(1)));
    }

    #[test]
    fn each_server_is_asked_in_its_own_words() {
        let asked = |version: &str, comment: &str| {
            statement(&Kind::from_words(version, comment).unwrap()).0
        };
        assert_eq!(asked("10.11.18-MariaDB", ""), "SHOW ALL SLAVES STATUS");
        assert_eq!(asked("8.0.21", "MySQL"), "SHOW SLAVE STATUS");
        assert_eq!(asked("9.7.0", "MySQL"), "SHOW REPLICA STATUS");
    }
}
