//! A short run of the crash loop; `cargo run -p tidepool-tests --bin crash-loop` is the long one.

use tidepool_tests::crash::moment::Moment;
use tidepool_tests::crash::{LoopOptions, Summary, run};
use tidepool_tests::crash_points::calls::is_strace_there;
use tidepool_tests::server::Engine;

fn crash(rounds: u32, seed: u64, moment: Moment) -> Summary {
    let options = LoopOptions {
        rounds,
        seed,
        engine: Engine::from_environment(),
        load_ms_max: 2000,
        moment,
        args: Vec::new(),
        verbose: true,
    };
    let summary = run(&options);
    assert!(summary.violations.is_empty(), "{}", summary.violations.join("\n"));
    assert!(summary.tally.committed > 50, "hardly anything ran: {summary:?}");
    summary
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_appears() {
    crash(8, 20_260_101, Moment::Any);
}

#[test]
fn nor_is_it_with_a_binary_log_that_is_rotated_and_reset() {
    crash(6, 20_260_102, Moment::Any);
}

#[test]
fn nor_is_it_when_the_server_dies_as_it_writes_pages_or_copies_them() {
    if !is_strace_there() {
        tidepool_skip::skip("strace is not installed");
        return;
    }
    for moment in [Moment::PageWriter, Moment::Backup] {
        let summary = crash(3, 20_260_103, moment);
        assert!(summary.in_thread > 0, "{moment:?}: {summary:?}");
    }
}
