//! What a power cut leaves of a server's data directory: the tests' own means first.

use std::fs;

use tidepool_tests::power_cut::{FileSystem, Machine};
use tidepool_tests::server::Options;

/// Without this, tests that cut the power would pass for the wrong reason.
#[test]
fn a_power_cut_takes_what_was_not_synced_and_leaves_the_rest() {
    for kind in FileSystem::ALL {
        let options = Options::new(&format!("power-{}", kind.name()));
        let Some(mut machine) = Machine::create(options, kind) else { continue };
        let dir = machine.server.data_dir();
        fs::write(dir.join("kept"), "old").unwrap();
        machine.sync_disk();

        fs::write(dir.join("new"), "new").unwrap();
        fs::rename(dir.join("new"), dir.join("kept")).unwrap();
        fs::write(dir.join("unsynced"), "new").unwrap();
        machine.cut_power();

        assert_eq!(fs::read_to_string(dir.join("kept")).unwrap(), "old", "{}", kind.name());
        assert!(!dir.join("unsynced").exists(), "{}", kind.name());
        assert!(dir.join("mysql").is_dir(), "{}: the data directory is gone", kind.name());
    }
}
