// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The C header `shim/bridge.h` and the functions that `src/` exports must agree: a slip between
//! them is undefined behaviour, and neither compiler sees both sides.
//!
//! `header` reads the header, `exports` the Rust sources; both give the same description (`abi`),
//! which is compared here: names, parameters, results, struct fields in order, and constants.

mod abi;
mod exports;
mod header;

use std::collections::BTreeMap;
use std::path::PathBuf;

use abi::{Interface, Signature, Type};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn c_side() -> Interface {
    let path = directory().join("shim/bridge.h");
    header::read(&std::fs::read_to_string(path).expect("bridge.h can be read"))
}

fn rust_side() -> Interface {
    exports::read(&directory().join("src"))
}

/// Which Rust type stands for which C type, as the signatures show.
#[derive(Default)]
struct Names {
    of_c: BTreeMap<String, String>,
    of_rust: BTreeMap<String, String>,
}

impl Names {
    /// Whether the two may be the same type: neither stands for another one already.
    fn agree(&mut self, c: &str, rust: &str) -> bool {
        let known = self.of_c.entry(c.to_owned()).or_insert_with(|| rust.to_owned()) == rust;
        let back = self.of_rust.entry(rust.to_owned()).or_insert_with(|| c.to_owned()) == c;
        known && back
    }
}

fn same_type(names: &mut Names, c: &Type, rust: &Type) -> bool {
    match (c, rust) {
        (Type::Void, Type::Void) => true,
        (Type::Plain(c), Type::Plain(rust)) => c == rust,
        (Type::Named(c), Type::Named(rust)) => names.agree(c, rust),
        (Type::Pointer { to: c, is_const }, Type::Pointer { to: rust, is_const: rust_const }) => {
            // What C promises not to change, Rust must not change. The other way round is Rust's
            // own restraint.
            let target: &Type = match (&**c, &**rust) {
                // A pointer to an array's first value is one to the array.
                (Type::Plain(_), Type::Array(first, _)) => first,
                _ => rust,
            };
            (!is_const || *rust_const) && same_type(names, c, target)
        }
        (Type::Array(c, len), Type::Array(rust, rust_len)) => {
            len == rust_len && same_type(names, c, rust)
        }
        (Type::Function(c), Type::Function(rust)) => same_signature(names, c, rust),
        _ => false,
    }
}

fn same_signature(names: &mut Names, c: &Signature, rust: &Signature) -> bool {
    c.parameters.len() == rust.parameters.len()
        && same_type(names, &c.result, &rust.result)
        && c.parameters.iter().zip(&rust.parameters).all(|(c, rust)| same_type(names, c, rust))
}

#[test]
fn header_and_exports_declare_the_same_functions_and_structs() {
    let (c, rust) = (c_side(), rust_side());
    assert!(c.functions.len() > 100, "the header was not understood: {}", c.functions.len());
    let c_names: Vec<_> = c.functions.keys().collect();
    let rust_names: Vec<_> = rust.functions.keys().collect();
    assert_eq!(c_names, rust_names, "functions of bridge.h and of src/");
    let mut names = Names::default();
    for (name, signature) in &c.functions {
        let exported = &rust.functions[name];
        assert!(
            same_signature(&mut names, signature, exported),
            "{name} differs:\n  bridge.h: {signature:?}\n  src/:     {exported:?}"
        );
    }
    // A struct may be named by another one's field alone.
    let mut rest: Vec<_> = c.structs.iter().collect();
    while !rest.is_empty() {
        let before = rest.len();
        rest.retain(|(name, fields)| {
            let Some(rust_name) = names.of_c.get(*name).cloned() else { return true };
            let rust_fields = rust.structs.get(&rust_name);
            let rust_fields = rust_fields.unwrap_or_else(|| panic!("{rust_name} is not repr(C)"));
            let same = fields.len() == rust_fields.len()
                && fields.iter().zip(rust_fields).all(|((c_name, c), (rust_name, rust))| {
                    (rust_name.is_empty() || c_name == rust_name) && same_type(&mut names, c, rust)
                });
            let differ = "differs:\n  bridge.h:";
            assert!(same, "{name} {differ} {fields:?}\n  src/:     {rust_fields:?}");
            false
        });
        let unused: Vec<_> = rest.iter().map(|(name, _)| name).collect();
        assert!(rest.len() < before, "nothing uses {unused:?}");
    }
}

#[test]
fn constants_have_the_same_values_on_both_sides() {
    let (c, rust) = (c_side(), rust_side());
    assert!(c.constants.len() > 50, "the header was not understood: {}", c.constants.len());
    assert_eq!(c.constants, rust.constants, "constants of bridge.h and of src/");
}

#[test]
fn the_shim_calls_every_function_of_the_header() {
    let mut sources = String::new();
    for entry in std::fs::read_dir(directory().join("shim")).expect("shim/ is a directory") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name != "bridge.h") {
            sources.push_str(&std::fs::read_to_string(path).expect("a source file is text"));
        }
    }
    let is_called = |name: &str| {
        sources.match_indices(name).any(|(at, _)| {
            let rest = &sources[at + name.len()..];
            !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
        })
    };
    let unused: Vec<_> = c_side().functions.into_keys().filter(|name| !is_called(name)).collect();
    assert_eq!(unused, Vec::<String>::new(), "no code of the shim uses these");
}

#[test]
fn a_difference_is_found() {
    let one = |c: &str, rust: &str| {
        let c = header::read(c);
        let rust = exports::read_source(rust);
        let (c, rust) = (&c.functions["tp_f"], &rust.functions["tp_f"]);
        same_signature(&mut Names::default(), c, rust)
    };
    let c = "int tp_f(const tp_a *a, size_t len, uint8_t *out, void (*f)(void *x, uint64_t n));";
    let rust = |a: &str, len: &str, out: &str, f: &str| {
        format!(
            "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn tp_f(a: {a}, len: {len}, out: {out}, f: extern \"C\" fn({f})) -> c_int {{ 0 }}"
        )
    };
    let call = "*mut c_void, u64";
    assert!(one(c, &rust("*const A", "usize", "*mut u8", call)));
    assert!(one(c, &rust("*const A", "usize", "*const u8", call)));
    assert!(!one(c, &rust("*mut A", "usize", "*mut u8", call)), "const is not kept");
    assert!(!one(c, &rust("*const A", "u32", "*mut u8", call)));
    assert!(!one(c, &rust("*const A", "usize", "*mut i8", call)));
    assert!(!one(c, &rust("*const A", "usize", "*mut u8", "*mut c_void, u32")));
    assert!(!one(c, &rust("A", "usize", "*mut u8", call)));
}
