//! The layers that ARCHITECTURE.md draws: a module uses only modules below its own.
//!
//! The picture is the rule. It stands between `<!-- layers: DIRECTORY -->` and the end of the code
//! block after it. A line that begins in the first column names the modules of a row, and may have
//! a description behind two spaces; a row that ends with a comma or a plus goes on in the next
//! line. Modules that a comma separates know nothing of each other; those that a plus joins use
//! each other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where a module is.
#[derive(Clone, Copy, PartialEq)]
struct Layer {
    /// From the top down.
    row: usize,
    /// Modules of the row may use each other.
    is_group: bool,
}

impl Layer {
    fn may_use(self, other: Layer) -> bool {
        self.row < other.row || (self.row == other.row && self.is_group)
    }
}

/// The layer of each module of `directory`, by ARCHITECTURE.md.
fn layers(directory: &str) -> HashMap<String, Layer> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let marker = format!("<!-- layers: {directory} -->");
    let picture = text.split(&marker).nth(1).unwrap_or_else(|| panic!("no {marker}"));
    let picture = picture.split("```").nth(1).unwrap().trim_start_matches("text\n");
    let (mut layers, mut row, mut goes_on) = (HashMap::new(), String::new(), false);
    for line in picture.lines() {
        if line.starts_with(' ') && !goes_on {
            continue;
        }
        let names = line.trim_start().split("  ").next().unwrap().trim_end();
        row.push_str(names);
        row.push(' ');
        goes_on = names.ends_with([',', '+']);
        if goes_on {
            continue;
        }
        let layer = Layer { row: layers.len(), is_group: row.contains('+') };
        for name in row.split([',', '+', ' ']).filter(|name| !name.is_empty()) {
            assert!(layers.insert(name.to_string(), layer).is_none(), "{name} stands there twice");
        }
        row.clear();
    }
    layers
}

/// The source files below `dir`, except tests, which go through everything.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy();
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

/// The modules that a source file names as `crate::…`, except in comments and in tests at its end.
fn used(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).next().unwrap())
}

/// Holds the modules of `directory` to their layers; at least `uses_min` uses must be found.
fn check(directory: &str, uses_min: usize) {
    let src = root().join(directory);
    let layers = layers(directory);
    let mut files = Vec::new();
    sources(&src, &mut files);
    let (mut upward, mut uses) = (Vec::new(), 0);
    for path in files {
        let place = path.strip_prefix(&src).unwrap();
        let module = place.iter().next().unwrap().to_string_lossy();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let Some(layer) = layers.get(module) else {
            panic!("{directory}/{module} has no layer: give it one in ARCHITECTURE.md");
        };
        for name in used(&std::fs::read_to_string(&path).unwrap()) {
            // A name that `lib.rs` re-exports is no module.
            let Some(target) = layers.get(name) else { continue };
            uses += 1;
            if name != module && !layer.may_use(*target) {
                upward.push(format!("{} uses {name}, which is not below it", place.display()));
            }
        }
    }
    assert!(uses >= uses_min, "only {uses} uses were found: the test looks in the wrong place");
    assert!(upward.is_empty(), "{}", upward.join("\n"));
    for name in layers.keys() {
        let exists = src.join(name).is_dir() || src.join(format!("{name}.rs")).is_file();
        assert!(exists, "ARCHITECTURE.md draws {directory}/{name}, which is gone");
    }
}

#[test]
fn modules_of_the_engine_use_what_is_below_them() {
    check("engine/src", 200);
}

#[test]
fn modules_of_the_pool_use_what_is_below_them() {
    check("pool/src", 80);
}
