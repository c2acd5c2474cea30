//! The 95th percentile of latency, from the best source that the server has, which is always named.
//!
//! | source | of what | where |
//! |---|---|---|
//! | statement histogram | every statement | MySQL and Percona Server 8.0 with performance_schema |
//! | response time plugin | every statement, in steps of a factor | MariaDB, Percona with `query_response_time_stats` on |
//! | own probe | a small read of this program | everywhere else: says whether the server stalls, not how long *your* statements take |

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::exit::{Error, Result};
use crate::server::{Named, Server, switch};

/// Probes a round, and rounds remembered.
const PROBES: usize = 5;
const ROUNDS: usize = 20;

/// Where the figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `performance_schema.events_statements_histogram_global`.
    StatementHistogram,
    /// `information_schema.QUERY_RESPONSE_TIME`.
    ResponseTimePlugin,
    /// Our own small read.
    OwnProbe,
}

impl Source {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Source::StatementHistogram => "all statements (performance_schema)",
            Source::ResponseTimePlugin => "all statements (response time plugin, coarse)",
            Source::OwnProbe => "a test read by this page, not your queries",
        }
    }
}

/// Upper bound in milliseconds, and how many so far.
type Bucket = (f64, u64);

/// Reads one source again and again.
#[derive(Debug)]
pub struct Latency {
    source: Source,
    before: Vec<Bucket>,
    probes: VecDeque<Duration>,
    probe: &'static str,
}

impl Latency {
    /// Finds the best source.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn new(server: &mut Server, variables: &Named) -> Result<Latency> {
        let table = "SELECT COUNT(*) FROM (SELECT 1 FROM mysql.innodb_table_stats LIMIT 1) t";
        let probe = if server.first::<u64>("ping", "", table).is_ok() { table } else { "DO 1" };
        let mut latency = Latency {
            source: Source::StatementHistogram,
            before: Vec::new(),
            probes: VecDeque::new(),
            probe,
        };
        let mut sources = vec![Source::StatementHistogram];
        if switch(variables, "query_response_time_stats") == Some(true) {
            sources.push(Source::ResponseTimePlugin);
        }
        for source in sources {
            latency.source = source;
            match latency.buckets(server) {
                Ok(buckets) if !buckets.is_empty() => {
                    latency.before = buckets;
                    return Ok(latency);
                }
                Err(error @ Error::Gone(_)) => return Err(error),
                _ => {}
            }
        }
        latency.source = Source::OwnProbe;
        Ok(latency)
    }

    /// Where the figure comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Since the last call, milliseconds; `None` when there was no statement.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn p95_ms(&mut self, server: &mut Server) -> Result<Option<f64>> {
        if self.source == Source::OwnProbe {
            return self.probed(server);
        }
        let now = self.buckets(server)?;
        let found = percentile(&self.before, &now, 0.95);
        self.before = now;
        Ok(found)
    }

    fn buckets(&self, server: &mut Server) -> Result<Vec<Bucket>> {
        match self.source {
            Source::StatementHistogram => server.rows(
                "the histogram of statements",
                "SELECT",
                "SELECT bucket_timer_high / 1000000000 + 0e0, count_bucket \
                 FROM performance_schema.events_statements_histogram_global ORDER BY bucket_number",
            ),
            Source::ResponseTimePlugin => {
                let rows: Vec<(String, u64)> = server.rows(
                    "the response times",
                    "PROCESS",
                    "SELECT time, count FROM information_schema.QUERY_RESPONSE_TIME",
                )?;
                // The last row is "TOO LONG".
                let bound =
                    |text: &str| text.trim().parse::<f64>().map_or(f64::INFINITY, |s| s * 1000.0);
                Ok(rows.iter().map(|(time, count)| (bound(time), *count)).collect())
            }
            Source::OwnProbe => Ok(Vec::new()),
        }
    }

    fn probed(&mut self, server: &mut Server) -> Result<Option<f64>> {
        for _ in 0..PROBES {
            let begin = Instant::now();
            let _: Option<mysql::Row> = server.first("ping", "", self.probe)?;
            self.probes.push_back(begin.elapsed());
        }
        while self.probes.len() > PROBES * ROUNDS {
            self.probes.pop_front();
        }
        let mut sorted: Vec<Duration> = self.probes.iter().copied().collect();
        sorted.sort();
        Ok(sorted.get(sorted.len() * 95 / 100).map(|ping| ping.as_secs_f64() * 1000.0))
    }
}

/// The bound of the bucket in which the percentile of what came between two readings lies.
fn percentile(before: &[Bucket], now: &[Bucket], share: f64) -> Option<f64> {
    let came = |(index, bucket): (usize, &Bucket)| {
        bucket.1.saturating_sub(before.get(index).map_or(0, |old| old.1))
    };
    let counts: Vec<u64> = now.iter().enumerate().map(came).collect();
    let all: u64 = counts.iter().sum();
    let wanted = (all as f64 * share).ceil() as u64;
    let mut seen = 0;
    let found = counts.iter().zip(now).find(|(count, _)| {
        seen += **count;
        seen >= wanted
    });
    let bound = found.filter(|_| all > 0)?.1.0;
    if bound.is_finite() {
        return Some(bound);
    }
    // Too long for the last bound: at least that.
    now.iter().rev().map(|bucket| bucket.0).find(|bound| bound.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_of_what_came_in_between() {
        let bounds = [0.1, 1.0, 10.0, f64::INFINITY];
        let with = |counts: [u64; 4]| -> Vec<Bucket> { bounds.into_iter().zip(counts).collect() };
        let before = with([1_000_000, 0, 0, 500]);
        assert_eq!(percentile(&before, &before, 0.95), None);
        assert_eq!(percentile(&before, &with([1_000_000, 95, 5, 500]), 0.95), Some(1.0));
        assert_eq!(percentile(&before, &with([1_000_000, 94, 6, 500]), 0.95), Some(10.0));
        assert_eq!(percentile(&before, &with([1_000_000, 0, 0, 501]), 0.95), Some(10.0));
        // The histogram was emptied in between.
        assert_eq!(percentile(&before, &with([10, 0, 0, 0]), 0.95), None);
    }
}
