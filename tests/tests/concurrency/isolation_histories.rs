//! Random transactions in many sessions, their history checked for isolation anomalies: a short
//! run; `cargo run -p tidepool-tests --bin isolation` is the long one.

use std::time::Duration;

use tidepool_tests::isolation::anomaly::Name;
use tidepool_tests::isolation::history::Level;
use tidepool_tests::isolation::{Settings, run};
use tidepool_tests::server::Engine;

#[test]
fn the_levels_keep_what_they_promise() {
    let mut settings = Settings::new(Engine::from_environment(), 20_260_101);
    // Each level alone, and all in one, twice.
    settings.rounds_max = 8;
    settings.round = Duration::from_millis(1500);
    settings.kill_every = 3;
    settings.alters = true;
    settings.verbose = true;
    let summary = run(&settings);
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    assert!(summary.kills >= 2, "{summary:?}");
    let beside = [summary.alters, summary.interrupts, summary.bulk];
    assert!(beside.iter().all(|done| *done > 0), "alters, interrupts, bulk: {beside:?}");
    let tally = summary.tally;
    assert!(
        tally.committed > 500 && tally.deadlocks > 0 && tally.changed > 0,
        "hardly anything ran: {tally:?}"
    );
}

/// The checker sees what there is to see: what a level allows is found when a stronger one is
/// claimed.
#[test]
fn a_level_that_claims_too_much_is_caught() {
    let found = |level, claim, careless| {
        let mut settings = Settings::new(Engine::from_environment(), 1);
        (settings.level, settings.claim) = (Some(level), Some(claim));
        settings.careless = careless;
        settings.rounds_max = 4;
        settings.round = Duration::from_secs(2);
        run(&settings).names
    };
    let names = found(Level::ReadCommitted, Level::ReadCommitted, true);
    assert!(names.contains(&Name::LostUpdate), "{names:?}");
    let names = found(Level::ReadCommitted, Level::RepeatableRead, false);
    assert!(names.contains(&Name::GSingle), "{names:?}");
    let names = found(Level::RepeatableRead, Level::Serializable, false);
    let skew = |name: &Name| matches!(name, Name::G2Item | Name::G2 | Name::GSingle);
    assert!(names.iter().any(skew), "{names:?}");
}
