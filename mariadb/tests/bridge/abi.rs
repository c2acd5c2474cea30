// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! A description of an interface that both languages can be read into.

use std::collections::BTreeMap;

/// A type as the calling convention sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// No value; behind a pointer: anything.
    Void,
    /// A number, by its C name: `int`, `char`, `double`, `size_t`, `uintptr_t`, `uint8_t` …
    Plain(String),
    /// A struct, by the name that it has in its language.
    Named(String),
    Pointer {
        /// What it points to.
        to: Box<Type>,
        /// Whether the target may not be changed through it.
        is_const: bool,
    },
    /// An array of a type.
    Array(Box<Type>, usize),
    /// A pointer to a function.
    Function(Box<Signature>),
}

/// What a function takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The types of its parameters, in order.
    pub parameters: Vec<Type>,
    /// The type of its result.
    pub result: Type,
}

/// Everything that an interface declares, by name.
#[derive(Debug, Default)]
pub struct Interface {
    pub functions: BTreeMap<String, Signature>,
    /// Structs with known fields: names (empty in a tuple struct) and types, in order.
    pub structs: BTreeMap<String, Vec<(String, Type)>>,
    /// Constants whose names begin with `TP_`.
    pub constants: BTreeMap<String, i64>,
}
