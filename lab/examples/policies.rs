//! Prints miss ratios of every policy on the generated traces: `cargo run --release -p tidepool-lab --example policies`.

use tidepool_lab::policy::{generate, table};

fn main() {
    let traces = generate::all(20_000, 1_500_000, 1);
    let rows = table::measure(&traces, &[0.05, 0.1, 0.25, 0.5, 0.8], |row| {
        eprintln!("{} at {} pages", row.trace, row.capacity);
    });
    print!("{}", table::markdown(&rows));
}
