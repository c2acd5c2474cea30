// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Reads the subset of C that `bridge.h` is written in: opaque and plain structs, enums with
//! values, functions. Anything else is an error of the test, not passed over.

use crate::abi::{Interface, Signature, Type};

/// Reads a header.
pub fn read(text: &str) -> Interface {
    let mut tokens = Tokens { all: tokens(text), at: 0 };
    let mut interface = Interface::default();
    while !tokens.is_at_end() {
        match tokens.peek() {
            "typedef" => read_typedef(&mut tokens, &mut interface),
            "enum" => read_enum(&mut tokens, &mut interface),
            _ => {
                let result = tokens.base_type();
                let result = tokens.pointers(result);
                let name = tokens.next();
                let parameters = tokens.parameters();
                tokens.expect(";");
                let signature = Signature { parameters, result };
                let before = interface.functions.insert(name.clone(), signature);
                assert!(before.is_none(), "{name} is declared twice");
            }
        }
    }
    interface
}

fn read_typedef(tokens: &mut Tokens, interface: &mut Interface) {
    tokens.expect("typedef");
    tokens.expect("struct");
    if tokens.peek() != "{" {
        let (tag, name) = (tokens.next(), tokens.next());
        assert_eq!(tag, name, "an opaque struct has one name");
        return tokens.expect(";");
    }
    tokens.expect("{");
    let mut fields = Vec::new();
    while tokens.peek() != "}" {
        fields.push(tokens.declaration());
        tokens.expect(";");
    }
    tokens.expect("}");
    interface.structs.insert(tokens.next(), fields);
    tokens.expect(";");
}

fn read_enum(tokens: &mut Tokens, interface: &mut Interface) {
    tokens.expect("enum");
    if tokens.peek() != "{" {
        tokens.next();
    }
    tokens.expect("{");
    while tokens.peek() != "}" {
        let name = tokens.next();
        tokens.expect("=");
        let value = tokens.next().parse().unwrap_or_else(|_| panic!("{name} has no plain value"));
        interface.constants.insert(name, value);
        if tokens.peek() == "," {
            tokens.next();
        }
    }
    tokens.expect("}");
    tokens.expect(";");
}

struct Tokens {
    all: Vec<String>,
    at: usize,
}

impl Tokens {
    fn is_at_end(&self) -> bool {
        self.at == self.all.len()
    }

    fn peek(&self) -> &str {
        self.all.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        let token = self.peek().to_owned();
        assert!(!token.is_empty(), "the header ends in the middle of a declaration");
        self.at += 1;
        token
    }

    fn expect(&mut self, wanted: &str) {
        let found = self.next();
        let around = &self.all[self.at.saturating_sub(8)..self.at];
        assert_eq!(found, wanted, "in bridge.h behind {}", around.join(" "));
    }

    /// A type without its stars, and whether it is const.
    fn base_type(&mut self) -> (Type, bool) {
        let is_const = self.peek() == "const";
        if is_const {
            self.next();
        }
        let name = self.next();
        let plain = matches!(&*name, "int" | "char" | "double") || name.ends_with("_t");
        let base = match &*name {
            "void" => Type::Void,
            // On every platform of the server.
            "uintptr_t" => Type::Plain("size_t".into()),
            _ if plain => Type::Plain(name),
            _ => Type::Named(name),
        };
        (base, is_const)
    }

    /// The type with the stars that follow.
    fn pointers(&mut self, (mut base, mut is_const): (Type, bool)) -> Type {
        while self.peek() == "*" {
            self.next();
            base = Type::Pointer { to: Box::new(base), is_const };
            is_const = self.peek() == "const";
            if is_const {
                self.next();
            }
        }
        base
    }

    /// A parameter or a field: name and type.
    fn declaration(&mut self) -> (String, Type) {
        let base = self.base_type();
        let base = self.pointers(base);
        if self.peek() == "(" {
            self.expect("(");
            self.expect("*");
            let name = self.next();
            self.expect(")");
            let signature = Signature { parameters: self.parameters(), result: base };
            return (name, Type::Function(Box::new(signature)));
        }
        let name = self.next();
        if self.peek() == "[" {
            self.expect("[");
            let len = self.next().parse().expect("an array has a plain length");
            self.expect("]");
            return (name, Type::Array(Box::new(base), len));
        }
        (name, base)
    }

    fn parameters(&mut self) -> Vec<Type> {
        self.expect("(");
        let mut all = Vec::new();
        if self.peek() == "void" && self.all.get(self.at + 1).is_some_and(|next| next == ")") {
            self.next();
        }
        while self.peek() != ")" {
            all.push(self.declaration().1);
            if self.peek() == "," {
                self.next();
            }
        }
        self.expect(")");
        all
    }
}

/// Words and signs, without comments, preprocessor lines and the `extern "C"` around all.
fn tokens(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        plain.push_str(&rest[..start]);
        let end = rest[start..].find("*/").expect("a comment ends") + start + 2;
        plain.push(' ');
        rest = &rest[end..];
    }
    plain.push_str(rest);
    // The brace of `extern "C" {` opens and closes between #ifdef and #endif.
    let mut code = String::new();
    let mut is_cplusplus = false;
    for line in plain.lines() {
        match line.trim() {
            "#ifdef __cplusplus" => is_cplusplus = true,
            "#endif" => is_cplusplus = false,
            trimmed if is_cplusplus || trimmed.starts_with('#') => {}
            trimmed => {
                code.push_str(trimmed);
                code.push('\n');
            }
        }
    }
    let mut all = Vec::new();
    let mut word = String::new();
    for sign in code.chars() {
        if sign.is_ascii_alphanumeric() || sign == '_' {
            word.push(sign);
            continue;
        }
        if !word.is_empty() {
            all.push(std::mem::take(&mut word));
        }
        if !sign.is_whitespace() {
            all.push(sign.to_string());
        }
    }
    all
}
