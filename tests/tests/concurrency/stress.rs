//! Writers with models of their rows beside ALTERs, KILLs and changing settings: a short run;
//! `cargo run -p tidepool-tests --bin stress` is the long one, with crashes.

use std::time::Duration;

use tidepool_tests::server::Engine;
use tidepool_tests::stress::stage::Count;
use tidepool_tests::stress::{Settings, run};

#[test]
fn rows_and_indexes_stay_what_their_writers_made_them() {
    let mut settings = Settings::new(Engine::from_environment(), 20_260_101);
    settings.crashes = false;
    settings.load = Duration::from_secs(2);
    settings.statements_max = 500;
    let summary = run(&settings);
    assert!(summary.differences.is_empty(), "{}", summary.differences.join("\n\n"));
    let counts = summary.counts;
    let kinds = [Count::Commits, Count::Alters, Count::Kills, Count::Checks];
    for what in kinds.into_iter().chain([Count::Rereads, Count::Prepared]) {
        assert!(counts.of(what) > 0, "no {what:?}: {counts}");
    }
}
