//! The same SQL on two engines: a short random run, and the scripts of what was found once.
//!
//! `TIDEPOOL_DIFFERENTIAL_SEED` and `TIDEPOOL_DIFFERENTIAL_MINUTES` change the random run;
//! `cargo run -p tidepool-tests --bin differential` is the long one.

use std::path::Path;
use std::time::Duration;

use tidepool_tests::differential::{Settings, replay_all, run};
use tidepool_tests::server::Engine;

/// Cases of the short run.
const CASES: u64 = 30;

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    assert!(parsed.is_some(), "{name}={value} can't be read");
    parsed
}

#[test]
fn random_statements_give_the_same_on_both_engines() {
    let seed = from_environment("TIDEPOOL_DIFFERENTIAL_SEED").unwrap_or(1_000);
    let mut settings = Settings::new(Engine::from_environment().name(), seed);
    if let Some(minutes) = from_environment::<f64>("TIDEPOOL_DIFFERENTIAL_MINUTES") {
        settings.duration = Duration::from_secs_f64(60.0 * minutes);
    } else {
        // A number of cases, not a time: a faster machine must not run into cases that a slower one
        // never met.
        settings.duration = Duration::from_secs(600);
        settings.cases_max = CASES;
    }
    let summary = run(&settings);
    println!(
        "{} cases, {} statements, {} refused by both",
        summary.cases, summary.statements, summary.refused
    );
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    assert!(summary.statements > 500, "hardly anything ran: {summary:?}");
}

#[test]
fn what_differed_once_gives_the_same_now() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql/differential_scripts");
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(&directory).expect("the scripts can be listed") {
        let path = entry.expect("an entry can be read").path();
        let text = std::fs::read_to_string(&path).expect("a script can be read");
        scripts.push((path.display().to_string(), text));
    }
    scripts.sort();
    assert!(!scripts.is_empty(), "{} holds no script", directory.display());
    let differences = replay_all(Engine::from_environment().name(), &scripts);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
