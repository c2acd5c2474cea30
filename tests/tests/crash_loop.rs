//! A short run of the crash loop; `cargo run -p tidepool-tests --bin crash-loop` is the long one.

use tidepool_tests::crash::{LoopOptions, run};
use tidepool_tests::server::Engine;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_appears() {
    let options = LoopOptions {
        rounds: 8,
        seed: 20_260_101,
        engine: Engine::from_environment(),
        load_ms_max: 2000,
        args: Vec::new(),
        verbose: true,
    };
    let summary = run(&options);
    assert!(summary.violations.is_empty(), "{}", summary.violations.join("\n"));
    assert!(summary.tally.committed > 50, "hardly anything ran: {summary:?}");
}
