//! The targets without a fuzzer: on every seed, on mutations of the seeds, and on what was found
//! before.

use rand::prelude::*;
use rand::rngs::StdRng;

use super::{TARGETS, seeds, target};

/// The bytes with a few changes, as a fuzzer would make them.
fn mutated(bytes: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.random_range(1..5) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..4) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => bytes[at] = *[0, 1, 127, 128, 255].choose(random).expect("there are some"),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

#[test]
fn every_target_has_seeds_and_passes_them_and_their_mutations() {
    let seeds = seeds::seeds();
    let mut random = StdRng::seed_from_u64(1);
    let mut failures = Vec::new();
    for (name, run) in TARGETS {
        let mut count = 0;
        for (_, bytes) in seeds.iter().filter(|(target, _)| *target == name) {
            run(bytes);
            count += 1;
            let mutations = if name == "directory" { 1 } else { 40 };
            for _ in 0..crate::test_cases(mutations) {
                let bytes = mutated(bytes, &mut random);
                let found = std::panic::catch_unwind(|| run(&bytes));
                if found.is_err() {
                    failures.push(format!("{name}, given {bytes:?}"));
                }
            }
        }
        assert!(count > 0, "{name} has no seed");
    }
    assert!(failures.is_empty(), "these panic:\n{}", failures.join("\n"));
}

/// What the fuzzer has found: file names are `target-what`.
#[test]
fn what_was_found_before_is_found_no_more() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/found");
    let mut count = 0;
    for entry in std::fs::read_dir(&dir).expect("the directory of findings is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().expect("has one").to_string_lossy().into_owned();
        let (target_name, _) = name.split_once('-').expect("a name is target-what");
        let run = target(target_name).unwrap_or_else(|| panic!("{name}: no such target"));
        run(&std::fs::read(&path).expect("it can be read"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", dir.display());
}
