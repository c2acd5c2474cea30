//! A short run of the damage campaign; `scripts/damage` is the long one.

use tidepool_tests::damage::verdict::Verdict;
use tidepool_tests::damage::{Settings, run};
use tidepool_tests::server::Engine;

#[test]
fn damaged_files_crash_nothing_and_give_no_wrong_rows_and_are_named() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let settings = Settings { trials: 12, seed: 127, only: None, args: Vec::new(), verbose: true };
    let summary = run(&settings);
    assert!(summary.faults.is_empty(), "{}", summary.faults.join("\n"));
    let trials: u64 = summary.counts.values().flat_map(|cell| cell.values()).sum();
    assert_eq!(trials, settings.trials);
    let verdicts = summary.counts.values().flat_map(|cell| cell.iter());
    let felt: u64 =
        verdicts.filter(|(verdict, _)| **verdict != Verdict::Nothing).map(|(_, n)| n).sum();
    assert!(felt > 0, "no damage was felt: {:?}", summary.counts);
}
