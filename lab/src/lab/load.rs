//! What the user chose of the load, in place of what an experiment has.
//!
//! Not every experiment can take it: one that does something at certain seconds of a run has the
//! length that it has. What was chosen is in the configuration of a run, and so in its hash: other
//! runs are not its repeats.

/// What was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Load {
    /// Client threads of the load, in place of the experiment's 8 or 16. Not of sideload,
    /// queries and traces.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub threads: Option<u32>,
    /// Seconds that a run of swap, advice, defaults or cluster is measured for. Others do things at
    /// certain seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub seconds: Option<u32>,
    /// Warehouses of TPC-C in defaults, 100 MB each [default: twice the memory's worth].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub warehouses: Option<u32>,
}

/// What of it an experiment can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Client threads.
    pub threads: bool,
    /// Seconds of measuring.
    pub seconds: bool,
    pub warehouses: bool,
}

impl Load {
    /// What of it can be taken.
    pub fn taken(self, takes: Takes) -> Load {
        Load {
            threads: self.threads.filter(|_| takes.threads),
            seconds: self.seconds.filter(|_| takes.seconds),
            warehouses: self.warehouses.filter(|_| takes.warehouses),
        }
    }

    /// The options that were given, as `--threads 32`.
    pub fn options(self) -> Vec<String> {
        let option = |name: &str, value: Option<u32>| Some(format!("--{name} {}", value?));
        let options = [
            option("threads", self.threads),
            option("seconds", self.seconds),
            option("warehouses", self.warehouses),
        ];
        options.into_iter().flatten().collect()
    }
}
