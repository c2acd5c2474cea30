//! A short run of the crash loop; `cargo run -p tidepool-tests --bin crash-loop` is the long one.

use tidepool_tests::crash::{LoopOptions, run};
use tidepool_tests::server::Engine;

fn crash(rounds: u32, seed: u64) {
    let options = LoopOptions {
        rounds,
        seed,
        engine: Engine::from_environment(),
        load_ms_max: 2000,
        args: Vec::new(),
        verbose: true,
    };
    let summary = run(&options);
    assert!(summary.violations.is_empty(), "{}", summary.violations.join("\n"));
    assert!(summary.tally.committed > 50, "hardly anything ran: {summary:?}");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_appears() {
    crash(8, 20_260_101);
}

#[test]
fn nor_is_it_with_a_binary_log_that_is_rotated_and_reset() {
    crash(6, 20_260_102);
}
