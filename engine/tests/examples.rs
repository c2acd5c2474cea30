//! Every program in `examples/` runs to its end. They check their results themselves.

use std::path::Path;
use std::process::Command;

#[test]
fn every_example_runs() {
    // This test is DIRECTORY/deps/examples-…, the programs are DIRECTORY/examples/….
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut ran = 0;
    for source in std::fs::read_dir(sources).unwrap() {
        let name = source.unwrap().path().file_stem().unwrap().to_owned();
        let output = Command::new(built.join(&name)).output().unwrap_or_else(|error| {
            panic!("{name:?}: {error}: build it by `cargo build -p tidepool-engine --examples`")
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name:?}: {}: {errors}", output.status);
        ran += 1;
    }
    assert!(ran >= 11, "only {ran} examples");
}
