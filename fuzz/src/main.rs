//! One program for all targets: `TIDEPOOL_FUZZ_TARGET` says which. With `TIDEPOOL_FUZZ_SEEDS` it
//! writes the seeds of all
//! targets into that directory and ends. `scripts/fuzz` sets both.

#![no_main]

use std::process::exit;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tidepool::fuzzing::{TARGETS, Target, seeds, target};

/// The target that the environment names.
fn chosen() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("TIDEPOOL_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("TIDEPOOL_FUZZ_TARGET must be one of {}", names.join(", "));
            exit(2)
        })
    })
}

fn write_seeds() {
    let Some(dir) = std::env::var_os("TIDEPOOL_FUZZ_SEEDS") else { return };
    match seeds::write(dir.as_ref()) {
        Ok(count) => {
            println!("{count} seeds");
            exit(0)
        }
        Err(error) => {
            eprintln!("{}: {error}", dir.display());
            exit(1)
        }
    }
}

fuzz_target!(
    init: write_seeds(),
    |bytes: &[u8]| chosen()(bytes)
);
