//! How a test says that this machine lacks what it needs.
//!
//! The test harness knows no test that skips itself: it counts one that returns as passed, and
//! hides what it prints. So these write a line past the harness, and `scripts/test` counts the
//! lines as skipped tests. `TIDEPOOL_NO_SKIPS=1` makes each a failure, for a machine that has all.

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;

/// Says that the test which runs on this thread, and returns now, has tested nothing.
///
/// # Panics
/// If `TIDEPOOL_NO_SKIPS` is 1.
#[track_caller]
pub fn skip(why: impl Display) {
    say("skipped", &why, Location::caller());
}

/// Says that the test does without a part, and goes on: it counts as one that ran.
///
/// # Panics
/// If `TIDEPOOL_NO_SKIPS` is 1.
#[track_caller]
pub fn skip_part(why: impl Display) {
    say("skipped in part", &why, Location::caller());
}

fn say(what: &str, why: &dyn Display, place: &Location<'_>) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("{what}: {test} ({}:{}): {why}\n", place.file(), place.line());
    assert!(std::env::var("TIDEPOOL_NO_SKIPS").as_deref() != Ok("1"), "{line}");
    // The harness hides what `eprint!` writes. If the line can't be written, no harm is done.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
