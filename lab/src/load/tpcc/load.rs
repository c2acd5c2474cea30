//! Terminals: threads that each run the mix of transactions, each on its own connection, until they
//! are stopped or until the server is gone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::transactions::{Ending, Kind, body};
use super::{Scale, consistency};
use crate::client::{self, Client, Connector, Dialect, Row, SqlError, Value};
use crate::server::connect;

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
    pub retried: BTreeMap<String, u64>,
    /// Orders delivered by acknowledged transactions.
    pub delivered: u64,
    /// Orders entered by transactions whose COMMIT was sent but not answered: they may be there or
    /// not.
    pub new_orders_in_doubt: u64,
    /// The same for orders delivered.
    pub delivered_in_doubt: u64,
    /// Payments of which that is so.
    pub payments_in_doubt: u64,
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
        self.payments_in_doubt += other.payments_in_doubt;
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
    meter: Arc<Meter>,
    terminals: Vec<JoinHandle<Report>>,
}

impl Load {
    /// Starts the terminals on the database `tpcc` behind a socket of MariaDB or MySQL.
    pub fn start(socket: &Path, scale: Scale, options: LoadOptions) -> Load {
        let socket = socket.to_path_buf();
        let connector: Connector = Arc::new(move || {
            let conn = connect(&socket, consistency::DATABASE);
            conn.map(|conn| Box::new(conn) as _).map_err(|e| SqlError::other(e.to_string()))
        });
        Load::start_on(connector, scale, options)
    }

    /// The same on whatever the connector connects to.
    pub fn start_on(connector: Connector, scale: Scale, options: LoadOptions) -> Load {
        let (stop, meter) = (Arc::new(AtomicBool::new(false)), Arc::new(Meter::default()));
        let terminals = (0..options.terminals)
            .map(|number| {
                let (connector, stop, meter) = (connector.clone(), stop.clone(), meter.clone());
                thread::spawn(move || {
                    Terminal::new(meter, scale, options.seed, number).run(&connector, &stop)
                })
            })
            .collect();
        Load { stop, meter, terminals }
    }

    /// What was done since this was last called.
    pub fn take(&self) -> Done {
        self.meter.take()
    }

    /// False once all terminals have given up.
    pub fn is_running(&self) -> bool {
        self.terminals.iter().any(|terminal| !terminal.is_finished())
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

/// What the terminals did in a while.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Statements, with those that begin and end transactions.
    pub statements: u64,
    /// How long each transaction took that was committed, with its repetitions.
    pub latencies_ms: Vec<f64>,
}

/// Counts for all terminals.
#[derive(Debug, Default)]
struct Meter {
    statements: AtomicU64,
    latencies_ms: Mutex<Vec<f64>>,
}

impl Meter {
    fn committed(&self, latency_ms: f64) {
        self.latencies_ms.lock().unwrap_or_else(PoisonError::into_inner).push(latency_ms);
    }

    fn take(&self) -> Done {
        let mut latencies = self.latencies_ms.lock().unwrap_or_else(PoisonError::into_inner);
        Done {
            statements: self.statements.swap(0, Ordering::Relaxed),
            latencies_ms: std::mem::take(&mut latencies),
        }
    }
}

/// A connection whose statements are counted.
struct Counted {
    client: Box<dyn Client>,
    meter: Arc<Meter>,
}

impl Client for Counted {
    fn dialect(&self) -> Dialect {
        self.client.dialect()
    }

    fn query(&mut self, statement: &str) -> client::Result<Vec<Row>> {
        self.meter.statements.fetch_add(1, Ordering::Relaxed);
        self.client.query(statement)
    }

    fn exec(&mut self, statement: &str, values: &[Value]) -> client::Result<Vec<Row>> {
        self.meter.statements.fetch_add(1, Ordering::Relaxed);
        self.client.exec(statement, values)
    }
}

struct Terminal {
    meter: Arc<Meter>,
    scale: Scale,
    warehouse: u32,
    rng: StdRng,
    report: Report,
}

/// How an attempt ended.
enum Attempt {
    Done(Ending),
    Failed {
        error: SqlError,
        /// What a COMMIT was sent for.
        in_doubt: Option<Ending>,
    },
}

impl Terminal {
    fn new(meter: Arc<Meter>, scale: Scale, seed: u64, number: u32) -> Terminal {
        let rng =
            StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        Terminal {
            meter,
            scale,
            warehouse: number % scale.warehouses + 1,
            rng,
            report: Report::default(),
        }
    }

    fn run(mut self, connector: &Connector, stop: &AtomicBool) -> Report {
        match connector() {
            Ok(client) => {
                let mut conn = Counted { client, meter: self.meter.clone() };
                while !stop.load(Ordering::Relaxed) && self.transaction(&mut conn) {}
            }
            Err(error) => self.report.errors.push(format!("connect: {error}")),
        }
        self.report
    }

    /// One transaction, repeated until it is done. False when the terminal must end.
    fn transaction(&mut self, conn: &mut dyn Client) -> bool {
        let kind = Kind::random(&mut self.rng);
        // A repeated attempt makes the same choices.
        let choices = self.rng.clone();
        let begin = Instant::now();
        loop {
            self.rng = choices.clone();
            match self.attempt(kind, conn) {
                Attempt::Done(Ending::Commit { delivered }) => {
                    self.meter.committed(begin.elapsed().as_secs_f64() * 1e3);
                    *self.report.committed.entry(kind).or_default() += 1;
                    self.report.delivered += delivered;
                    return true;
                }
                Attempt::Done(Ending::Rollback) => {
                    self.report.rolled_back += 1;
                    return true;
                }
                Attempt::Failed { error: SqlError { retry: Some(code), .. }, .. } => {
                    *self.report.retried.entry(code).or_default() += 1;
                    // A lock wait timeout ends the statement only.
                    if conn.query("ROLLBACK").is_err() {
                        return false;
                    }
                }
                Attempt::Failed { error, in_doubt } => {
                    if let Some(Ending::Commit { delivered }) = in_doubt {
                        self.report.new_orders_in_doubt += u64::from(kind == Kind::NewOrder);
                        self.report.delivered_in_doubt += delivered;
                        self.report.payments_in_doubt += u64::from(kind == Kind::Payment);
                    }
                    self.report.errors.push(format!("{kind:?}: {error}"));
                    return false;
                }
            }
        }
    }

    fn attempt(&mut self, kind: Kind, conn: &mut dyn Client) -> Attempt {
        let run = |conn: &mut dyn Client, rng: &mut StdRng| {
            conn.query("START TRANSACTION")?;
            body(kind, conn, rng, &self.scale, self.warehouse)
        };
        match run(conn, &mut self.rng) {
            Err(error) => Attempt::Failed { error, in_doubt: None },
            Ok(ending) => {
                let statement = if ending == Ending::Rollback { "ROLLBACK" } else { "COMMIT" };
                match conn.query(statement) {
                    Ok(_) => Attempt::Done(ending),
                    Err(error) => Attempt::Failed { error, in_doubt: Some(ending) },
                }
            }
        }
    }
}
