//! Terminals: threads that each run the mix of transactions on a connection of their own, until told to stop
//! or until the server is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::transactions::{Ending, Kind, body};
use super::{Scale, consistency};
use crate::server::connect;

/// A deadlock, a lock wait timeout, a row changed since the snapshot: to be tried again, by SQL's rules.
const RETRY_CODES: [u16; 3] = [1213, 1205, 1020];

/// How a load is run.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Terminals; they are spread over the warehouses.
    pub terminals: u32,
    /// Seeds the terminals' choices.
    pub seed: u64,
}

/// What the terminals did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Transactions whose commit was acknowledged.
    pub committed: BTreeMap<Kind, u64>,
    /// Orders rolled back because of an unknown item.
    pub rolled_back: u64,
    /// Attempts that ended with a deadlock or the like, and were repeated.
    pub retried: BTreeMap<u16, u64>,
    /// Orders delivered by acknowledged transactions.
    pub delivered: u64,
    /// Orders entered by transactions whose COMMIT was sent but not answered: they may be there or not.
    pub new_orders_in_doubt: u64,
    /// The same for orders delivered.
    pub delivered_in_doubt: u64,
    /// What went wrong otherwise.
    pub errors: Vec<String>,
}

impl Report {
    /// Adds what another run did.
    pub fn add(&mut self, other: Report) {
        for (kind, count) in other.committed {
            *self.committed.entry(kind).or_default() += count;
        }
        for (code, count) in other.retried {
            *self.retried.entry(code).or_default() += count;
        }
        self.rolled_back += other.rolled_back;
        self.delivered += other.delivered;
        self.new_orders_in_doubt += other.new_orders_in_doubt;
        self.delivered_in_doubt += other.delivered_in_doubt;
        self.errors.extend(other.errors);
    }

    /// Acknowledged transactions of a kind.
    pub fn committed(&self, kind: Kind) -> u64 {
        self.committed.get(&kind).copied().unwrap_or(0)
    }

    /// All acknowledged transactions.
    pub fn total(&self) -> u64 {
        self.committed.values().sum()
    }
}

/// A load that runs. See the [module](self).
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    terminals: Vec<JoinHandle<Report>>,
}

impl Load {
    /// Starts the terminals on the database `tpcc` behind a socket.
    pub fn start(socket: &Path, scale: Scale, options: LoadOptions) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let terminals = (0..options.terminals)
            .map(|number| {
                let (socket, stop) = (socket.to_path_buf(), Arc::clone(&stop));
                thread::spawn(move || Terminal::new(socket, scale, options.seed, number).run(&stop))
            })
            .collect();
        Load { stop, terminals }
    }

    /// Stops the terminals, each after its current transaction, and sums up.
    ///
    /// # Panics
    /// If a terminal panicked.
    pub fn finish(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for terminal in self.terminals {
            report.add(terminal.join().expect("a terminal doesn't panic"));
        }
        report
    }
}

struct Terminal {
    socket: PathBuf,
    scale: Scale,
    warehouse: u32,
    rng: StdRng,
    report: Report,
}

/// How an attempt ended.
enum Attempt {
    Done(Ending),
    Failed {
        error: mysql::Error,
        /// What a COMMIT was sent for.
        in_doubt: Option<Ending>,
    },
}

impl Terminal {
    fn new(socket: PathBuf, scale: Scale, seed: u64, number: u32) -> Terminal {
        let rng =
            StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        Terminal {
            socket,
            scale,
            warehouse: number % scale.warehouses + 1,
            rng,
            report: Report::default(),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Report {
        match connect(&self.socket, consistency::DATABASE) {
            Ok(mut conn) => while !stop.load(Ordering::Relaxed) && self.transaction(&mut conn) {},
            Err(error) => self.report.errors.push(format!("connect: {error}")),
        }
        self.report
    }

    /// One transaction, repeated until it is done. False when the terminal must end.
    fn transaction(&mut self, conn: &mut Conn) -> bool {
        let kind = Kind::random(&mut self.rng);
        // A repeated attempt makes the same choices.
        let choices = self.rng.clone();
        loop {
            self.rng = choices.clone();
            match self.attempt(kind, conn) {
                Attempt::Done(Ending::Commit { delivered }) => {
                    *self.report.committed.entry(kind).or_default() += 1;
                    self.report.delivered += delivered;
                    return true;
                }
                Attempt::Done(Ending::Rollback) => {
                    self.report.rolled_back += 1;
                    return true;
                }
                Attempt::Failed { error: mysql::Error::MySqlError(e), .. }
                    if RETRY_CODES.contains(&e.code) =>
                {
                    *self.report.retried.entry(e.code).or_default() += 1;
                    // A lock wait timeout ends the statement only.
                    if conn.query_drop("ROLLBACK").is_err() {
                        return false;
                    }
                }
                Attempt::Failed { error, in_doubt } => {
                    if let Some(Ending::Commit { delivered }) = in_doubt {
                        self.report.new_orders_in_doubt += u64::from(kind == Kind::NewOrder);
                        self.report.delivered_in_doubt += delivered;
                    }
                    self.report.errors.push(format!("{kind:?}: {error}"));
                    return false;
                }
            }
        }
    }

    fn attempt(&mut self, kind: Kind, conn: &mut Conn) -> Attempt {
        let run = |conn: &mut Conn, rng: &mut StdRng| {
            conn.query_drop("START TRANSACTION")?;
            body(kind, conn, rng, &self.scale, self.warehouse)
        };
        match run(conn, &mut self.rng) {
            Err(error) => Attempt::Failed { error, in_doubt: None },
            Ok(ending) => {
                let statement = if ending == Ending::Rollback { "ROLLBACK" } else { "COMMIT" };
                match conn.query_drop(statement) {
                    Ok(()) => Attempt::Done(ending),
                    Err(error) => Attempt::Failed { error, in_doubt: Some(ending) },
                }
            }
        }
    }
}
