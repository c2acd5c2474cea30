//! Identifiers and text as SQL writes them.

/// An identifier in backticks.
pub fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Identifiers in backticks with commas between them.
pub fn identifiers<'n>(names: impl IntoIterator<Item = &'n String>) -> String {
    names.into_iter().map(|name| identifier(name)).collect::<Vec<_>>().join(", ")
}

/// A string literal, for sessions without `NO_BACKSLASH_ESCAPES`.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_and_text_are_quoted() {
        assert_eq!(literal(r"it's \ here"), r"'it''s \\ here'");
        assert_eq!(identifiers(&["a".into(), "b`".into()]), "`a`, `b```");
    }
}
