//! Prints miss ratios of every policy on the generated traces:
//! `cargo run --release -p tidepool-lab --example policies [PAGES REQUESTS SEED]` (20,000 pages, 1,500,000 requests, seed 1).

use tidepool_lab::policy::{generate, table};

fn main() {
    let number = |at: usize, otherwise: u64| match std::env::args().nth(at) {
        Some(text) => text.parse().expect("PAGES, REQUESTS and SEED are numbers"),
        None => otherwise,
    };
    let (pages, requests, seed) = (number(1, 20_000), number(2, 1_500_000), number(3, 1));
    let traces = generate::all(pages, requests as usize, seed);
    let rows = table::measure(&traces, &[0.05, 0.1, 0.25, 0.5, 0.8], |row| {
        eprintln!("{} at {} pages", row.trace, row.capacity);
    });
    print!("{}", table::markdown(&rows));
}
