//! Names of tables.

use std::fmt;

use serde::Serialize;

use crate::sql_text::identifier;

/// A table and its schema.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TableName {
    pub schema: String,
    pub table: String,
}

impl TableName {
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> TableName {
        TableName { schema: schema.into(), table: table.into() }
    }
}

/// As a statement needs it: both parts in backticks.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", identifier(&self.schema), identifier(&self.table))
    }
}

/// What the user chose: a schema, or one table of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub schema: String,
    /// `None`: all tables of the schema.
    pub table: Option<String>,
}

impl Chosen {
    pub fn covers(&self, name: &TableName) -> bool {
        self.schema == name.schema && self.table.as_ref().is_none_or(|table| *table == name.table)
    }

    /// The same with the letters of the names that there are, on a server that takes upper and
    /// lower case for the same (`lower_case_table_names`).
    pub fn spelled<'n>(&self, mut names: impl Iterator<Item = &'n TableName>) -> Chosen {
        let is_same = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
        let found = names.find(|name| {
            is_same(&self.schema, &name.schema)
                && self.table.as_ref().is_none_or(|table| is_same(table, &name.table))
        });
        found.map_or_else(
            || self.clone(),
            |name| Chosen {
                schema: name.schema.clone(),
                table: self.table.as_ref().map(|_| name.table.clone()),
            },
        )
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.table {
            None => f.write_str(&identifier(&self.schema)),
            Some(table) => write!(f, "{}.{}", identifier(&self.schema), identifier(table)),
        }
    }
}

/// Reads `schema`, `schema.table`, and both with backticks, where a name has a dot.
impl std::str::FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Chosen, String> {
        let wrong =
            || format!("{text}: write SCHEMA or SCHEMA.TABLE (`a.b`.`c` for names with dots)");
        let (schema, rest) = part(text).ok_or_else(wrong)?;
        if rest.is_empty() {
            return Ok(Chosen { schema, table: None });
        }
        let (table, rest) = rest.strip_prefix('.').and_then(part).ok_or_else(wrong)?;
        match rest.is_empty() {
            true => Ok(Chosen { schema, table: Some(table) }),
            false => Err(wrong()),
        }
    }
}

/// One name at the start of the text, and what follows it.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('`') else {
        let end = text.find('.').unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let mut name = String::new();
    loop {
        let end = rest.find('`')?;
        name.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('`') {
            Some(after) => {
                name.push('`');
                rest = after;
            }
            None => return (!name.is_empty()).then_some((name, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_of_a_name_are_quoted() {
        assert_eq!(TableName::new("a`b", "c.d").to_string(), "`a``b`.`c.d`");
    }

    #[test]
    fn a_choice_is_read_with_and_without_backticks() {
        let read = |text: &str| text.parse::<Chosen>();
        let one = |schema: &str, table: Option<&str>| {
            Ok(Chosen { schema: schema.into(), table: table.map(Into::into) })
        };
        assert_eq!(read("shop"), one("shop", None));
        assert_eq!(read("shop.orders"), one("shop", Some("orders")));
        assert_eq!(read("`a.b`.`c``d`"), one("a.b", Some("c`d")));
        assert_eq!(read("`a.b`"), one("a.b", None));
        for text in ["", ".", "a.", ".b", "a.b.c", "`a", "`a`b", "``"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_choice_may_be_spelled_in_other_letters_where_the_server_sees_no_difference() {
        let names = [TableName::new("shop", "orders"), TableName::new("shop", "äpfel")];
        for (text, expected) in [
            ("Shop", "`shop`"),
            ("SHOP.Orders", "`shop`.`orders`"),
            ("shop.ÄPFEL", "`shop`.`äpfel`"),
            ("shop.Nothing", "`shop`.`Nothing`"),
        ] {
            let chosen: Chosen = text.parse().unwrap();
            assert_eq!(chosen.spelled(names.iter()).to_string(), expected);
        }
    }

    #[test]
    fn what_a_choice_prints_is_what_it_reads() {
        for (schema, table) in [("a", None), ("a.b", Some("c`")), ("`", Some("."))] {
            let chosen = Chosen { schema: schema.into(), table: table.map(Into::into) };
            assert_eq!(chosen.to_string().parse(), Ok(chosen));
        }
    }
}
