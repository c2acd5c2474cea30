//! What a typed table keeps of its types, as the table's metadata: lines of text.
//!
//! ```text
//! typed table 1
//! TYPE OF THE KEY
//! VERSION TYPE OF THE INDEX KEY     for each index, in the order of the table's definition
//! ```

use crate::catalog::TableDef;
use crate::error::{Error, Result};

const FIRST_LINE: &str = "typed table 1";

/// The types of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Metadata {
    pub key_type: String,
    /// Of each secondary index: the version of its function, the type of its key.
    pub indexes: Vec<(u32, String)>,
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("{FIRST_LINE}\n{}\n", self.key_type);
        for (version, key_type) in &self.indexes {
            text.push_str(&format!("{version} {key_type}\n"));
        }
        text.into_bytes()
    }

    /// Decodes the metadata of table `name`.
    pub fn decode(name: &str, def: &TableDef) -> Result<Metadata> {
        let decoded = std::str::from_utf8(&def.metadata).ok().and_then(decode);
        let fits = |metadata: &Metadata| metadata.indexes.len() + 1 == def.indexes.len();
        decoded.filter(fits).ok_or_else(|| {
            Error::InvalidOption(format!(
                "table '{name}' is no typed table of this version: open it by `Db::open_table`"
            ))
        })
    }
}

fn decode(text: &str) -> Option<Metadata> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let key_type = lines.next()?.to_string();
    let indexes = lines.map(|line| {
        let (version, key_type) = line.split_once(' ')?;
        Some((version.parse().ok()?, key_type.to_string()))
    });
    Some(Metadata { key_type, indexes: indexes.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::IndexDef;

    #[test]
    fn metadata_survive_the_round_trip() {
        let metadata = Metadata {
            key_type: "u64".into(),
            indexes: vec![(1, "(string, u64)".into()), (7, "bool".into())],
        };
        let mut def = TableDef::new(["key", "a", "b"].map(IndexDef::unique));
        def.metadata = metadata.encode();
        assert_eq!(Metadata::decode("t", &def).unwrap(), metadata);
        def.indexes.pop();
        assert!(Metadata::decode("t", &def).is_err());
    }

    #[test]
    fn other_metadata_are_refused() {
        for other in ["", "typed table 1", "typed table 2\nu64\n", "typed table 1\nu64\nx\n"] {
            let def = TableDef { metadata: other.into(), ..TableDef::map() };
            let error = Metadata::decode("t", &def).unwrap_err().to_string();
            assert!(error.contains("table 't' is no typed table"), "{error}");
        }
    }
}
