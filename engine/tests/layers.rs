//! The layers that `lib.rs` draws: a module uses only modules below its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// From the bottom up. Modules in one row know nothing of each other.
const LAYERS: [&[&str]; 20] = [
    &["files", "pause"],
    &["error"],
    &["encryption"],
    &["csn", "governor", "memory", "newest_runs", "options", "redo", "sort"],
    &["format", "hot_list"],
    &["page_op"],
    &["lock", "mirror"],
    &["page_files"],
    &["recovery"],
    &["env"],
    &["backup", "mtr"],
    &["space"],
    &["btree", "overflow", "undo"],
    &["trx"],
    &["versioned"],
    &["catalog", "status"],
    &["table"],
    &["db"],
    &["explain", "inspect"],
    &["fuzzing"],
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy();
        // Tests go through everything.
        if name.contains("test") || name.ends_with("simulation") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The modules that a source file names as `crate::…`, but for those in comments and in tests at
/// its end.
fn used(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).next().unwrap())
}

#[test]
fn modules_use_what_is_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rows =
        (0..).zip(LAYERS).flat_map(|(row, names)| names.iter().map(move |name| (*name, row)));
    let rows: HashMap<&str, i32> = rows.collect();
    let mut files = Vec::new();
    sources(&src, &mut files);
    let (mut upward, mut seen) = (Vec::new(), 0);
    for path in files {
        let place = path.strip_prefix(&src).unwrap();
        let module = place.iter().next().unwrap().to_string_lossy();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let row = rows.get(module).unwrap_or_else(|| panic!("{module} has no layer: give it one"));
        for name in used(&std::fs::read_to_string(&path).unwrap()) {
            // What is re-exported by `lib.rs` begins with a capital or is a function of tests.
            let Some(target) = rows.get(name) else { continue };
            seen += 1;
            if name != module && target >= row {
                upward.push(format!("{} uses {name}, which is not below it", place.display()));
            }
        }
    }
    assert!(seen > 200, "only {seen} uses were found: the test looks in the wrong place");
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}
