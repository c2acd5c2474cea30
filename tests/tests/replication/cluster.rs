//! A short run of `scripts/soak-cluster`: all of its events once, and more by the seed.

use std::time::Duration;

use tidepool_tests::cluster::{Soak, run_soak};
use tidepool_tests::server::Engine;

#[test]
fn nothing_acknowledged_is_lost_and_all_servers_have_the_same_rows() {
    // Backups are Tidepool's.
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let soak = Soak { seed: 7, events: 9, duration: Duration::from_secs(300), verbose: true };
    let summary = run_soak(&soak);
    assert!(summary.violations.is_empty(), "{}", summary.violations.join("\n"));
    assert_eq!(summary.events, soak.events);
    assert_eq!(summary.promotions, 3);
    assert!(summary.commits > 500, "hardly anything ran: {summary}");
}
