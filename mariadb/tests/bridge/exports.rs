// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Reads what the Rust sources export: `no_mangle` functions, `repr(C)` structs and `TP_`
//! constants.

use std::collections::HashMap;
use std::path::Path;

use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Expr, Fields, FnArg, Ident, Item, Lit, ReturnType, Token};

use crate::abi::{Interface, Signature, Type};

/// Reads every file below a directory.
pub fn read(directory: &Path) -> Interface {
    let mut interface = Interface::default();
    for entry in std::fs::read_dir(directory).expect("src/ is a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let below = read(&path);
            interface.functions.extend(below.functions);
            interface.structs.extend(below.structs);
            interface.constants.extend(below.constants);
        } else {
            let text = std::fs::read_to_string(&path).expect("a source file is text");
            read_into(&mut interface, &text);
        }
    }
    interface
}

/// Reads one file's text.
pub fn read_source(text: &str) -> Interface {
    let mut interface = Interface::default();
    read_into(&mut interface, text);
    interface
}

fn read_into(interface: &mut Interface, text: &str) {
    let items = syn::parse_file(text).expect("a source file is Rust").items;
    let aliases = items.iter().filter_map(|item| match item {
        Item::Type(alias) if matches!(&*alias.ty, syn::Type::BareFn(_)) => {
            Some((alias.ident.to_string(), of(&alias.ty)))
        }
        _ => None,
    });
    let aliases: HashMap<String, Type> = aliases.collect();
    let of = |rust: &syn::Type| match of(rust) {
        Type::Named(name) => aliases.get(&name).cloned().unwrap_or(Type::Named(name)),
        known => known,
    };
    let mut templates = HashMap::new();
    for item in items {
        match item {
            Item::Fn(function) if is_exported(&function.attrs) => {
                export(interface, &function.sig, &of);
            }
            Item::Struct(item) if has(&item.attrs, "repr", "C") => {
                let fields = match &item.fields {
                    Fields::Named(fields) => &fields.named,
                    Fields::Unnamed(fields) => &fields.unnamed,
                    Fields::Unit => continue,
                };
                let fields = fields.iter().map(|field| {
                    (field.ident.as_ref().map_or(String::new(), Ident::to_string), of(&field.ty))
                });
                interface.structs.insert(item.ident.to_string(), fields.collect());
            }
            Item::Const(item) if item.ident.to_string().starts_with("TP_") => {
                let Expr::Lit(value) = &*item.expr else {
                    panic!("{} is no plain number", item.ident)
                };
                let Lit::Int(value) = &value.lit else { panic!("{} is no number", item.ident) };
                let value = value.base10_parse().expect("a number");
                interface.constants.insert(item.ident.to_string(), value);
            }
            Item::Macro(item) if item.ident.is_some() => {
                if let Some(template) = template_of(&item.mac.tokens.to_string()) {
                    let name = item.ident.as_ref().expect("asked for above").to_string();
                    templates.insert(name, template);
                }
            }
            Item::Macro(item) => {
                let name = item.mac.path.get_ident().map_or(String::new(), Ident::to_string);
                let Some(template) = templates.get(&name) else { continue };
                for made in item.mac.parse_body::<Made>().expect("a list of functions").0 {
                    let text =
                        template.replace("$name", &made.name).replace("$type", &made.parameter);
                    let text = text.replace('$', "");
                    let signature: syn::Signature =
                        syn::parse_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                    export(interface, &signature, &of);
                }
            }
            _ => {}
        }
    }
}

fn export(interface: &mut Interface, function: &syn::Signature, of: &dyn Fn(&syn::Type) -> Type) {
    let name = function.ident.to_string();
    assert!(function.abi.is_some(), "{name} must be extern \"C\"");
    let parameters = function.inputs.iter().map(|argument| match argument {
        FnArg::Typed(typed) => of(&typed.ty),
        FnArg::Receiver(_) => panic!("{name} takes self"),
    });
    let parameters = parameters.collect();
    let signature = Signature { parameters, result: result_of(&function.output) };
    let before = interface.functions.insert(name.clone(), signature);
    assert!(before.is_none(), "{name} is exported twice");
}

/// The signature that a macro gives to the functions that it makes, with the macro's variables in
/// it.
fn template_of(definition: &str) -> Option<String> {
    let start = definition
        .find("extern \"C\" fn $name")
        .or_else(|| definition.find("extern \"C\" fn $ name"))?;
    let end = definition[start..].find('{')? + start;
    Some(definition[start..end].replace("$ ", "$"))
}

/// The functions that a use of such a macro makes: `name …;` or `name(…, parameter: Type) …;`.
struct Made(Vec<MadeFunction>);

struct MadeFunction {
    name: String,
    /// The type of the last parameter in parentheses, if it has one.
    parameter: String,
}

impl Parse for Made {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut all = Vec::new();
        while !input.is_empty() {
            input.call(Attribute::parse_outer)?;
            let name = input.parse::<Ident>()?.to_string();
            let mut parameter = String::new();
            if input.peek(syn::token::Paren) {
                let arguments;
                syn::parenthesized!(arguments in input);
                let text = arguments.parse::<proc_macro2::TokenStream>()?.to_string();
                if let Some((_, found)) = text.split_once(':') {
                    parameter = found.to_owned();
                }
            }
            while !input.peek(Token![;]) {
                input.parse::<proc_macro2::TokenTree>()?;
            }
            input.parse::<Token![;]>()?;
            all.push(MadeFunction { name, parameter });
        }
        Ok(Self(all))
    }
}

fn is_exported(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("no_mangle"))
        || has(attributes, "unsafe", "no_mangle")
}

/// Whether there is `#[name(argument)]`.
fn has(attributes: &[Attribute], name: &str, argument: &str) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident(name) && attribute.parse_args::<Ident>().is_ok_and(|found| found == argument)
    })
}

fn result_of(output: &ReturnType) -> Type {
    match output {
        ReturnType::Default => Type::Void,
        ReturnType::Type(_, result) => of(result),
    }
}

fn of(rust: &syn::Type) -> Type {
    match rust {
        syn::Type::Ptr(pointer) => Type::Pointer {
            to: Box::new(of(&pointer.elem)),
            is_const: pointer.mutability.is_none(),
        },
        syn::Type::Reference(reference) => Type::Pointer {
            to: Box::new(of(&reference.elem)),
            is_const: reference.mutability.is_none(),
        },
        syn::Type::Array(array) => {
            let Expr::Lit(len) = &array.len else { panic!("an array without a plain length") };
            let Lit::Int(len) = &len.lit else { panic!("an array without a plain length") };
            Type::Array(Box::new(of(&array.elem)), len.base10_parse().expect("a number"))
        }
        syn::Type::BareFn(function) => {
            assert!(function.abi.is_some(), "a function pointer must be extern \"C\"");
            let parameters = function.inputs.iter().map(|argument| of(&argument.ty)).collect();
            let result = result_of(&function.output);
            Type::Function(Box::new(Signature { parameters, result }))
        }
        syn::Type::Path(path) => of_path(path),
        other => panic!("a type that C does not have: {other:?}"),
    }
}

fn of_path(path: &syn::TypePath) -> Type {
    let last = path.path.segments.last().expect("a path has a last part");
    if last.ident == "Option" {
        let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
            panic!("Option of nothing")
        };
        let Some(syn::GenericArgument::Type(inner)) = arguments.args.first() else {
            panic!("Option of no type")
        };
        let inner = of(inner);
        assert!(matches!(inner, Type::Function(_)), "only function pointers may be optional");
        return inner;
    }
    let mut name = last.ident.to_string();
    if let syn::PathArguments::AngleBracketed(arguments) = &last.arguments {
        for argument in &arguments.args {
            let syn::GenericArgument::Type(inner) = argument else { continue };
            name.push_str(&format!("<{:?}>", of(inner)));
        }
    }
    let plain = match &*name {
        "c_void" => return Type::Void,
        "c_int" | "i32" => "int",
        "c_char" => "char",
        "f64" => "double",
        "usize" => "size_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        _ => return Type::Named(name),
    };
    Type::Plain(plain.into())
}
