//! A table's entry in the catalog: the bytes stored under its name.
//!
//! ```text
//! version u8 = 1 | flags u8 (bit 0: lost changes, bit 1: has notes,
//! bits 2-3: compression, bit 4: encryption, bit 5: discarded) | table id u64 | space id u32
//! index count u16
//! per index: tree id u32 | root page u32 | flags u8 (bit 0: unique) | name length u16 | name
//! metadata length u32 | metadata
//! if bit 4 of the flags is set: encryption u8 (0 by option, 1 yes, 2 no) | key id u32
//! ```
//! All little-endian, nothing after that. An unknown version or flag is refused: a newer
//! Tidepool wrote it, and guessing at a definition would corrupt the table. Index 0 is the
//! clustered one.

use super::attachment::KEY_SUFFIX_LEN;
use crate::encryption::{EncryptionChoice, TableEncryption};
use crate::error::{Error, Remedy, Result};
use tidepool_pool::PageCompression;

/// Version of the record format that this build writes, and the newest that it reads.
const RECORD_VERSION: u8 = 1;
const FLAG_LOST_CHANGES: u8 = 1;
const FLAG_HAS_NOTES: u8 = 2;
const FLAG_ENCRYPTION: u8 = 16;
const FLAG_DISCARDED: u8 = 32;
/// Bits 2 and 3: 0 as the option `page_compression` has it, else the number of a
/// [`PageCompression`] that is not `Auto`.
const COMPRESSION_SHIFT: u8 = 2;
const COMPRESSION_MASK: u8 = 3 << COMPRESSION_SHIFT;
const INDEX_FLAG_UNIQUE: u8 = 1;

/// Most indexes a table may have, the clustered one included.
pub const INDEXES_MAX: usize = 128;
/// Longest table or index name, in bytes.
pub const NAME_LEN_MAX: usize = 1024;
/// Longest [`TableDef::metadata`], in bytes.
pub const METADATA_LEN_MAX: usize = 1 << 20;

/// What a table is created from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableDef {
    /// Its indexes; the first is the clustered one.
    pub indexes: Vec<IndexDef>,
    /// Bytes that mean something to the layer above only; kept with the table.
    pub metadata: Vec<u8>,
    /// Whether it is encrypted.
    pub encryption: TableEncryption,
    /// How its pages are compressed; `Auto`: as the option
    /// [`page_compression`](crate::Options::page_compression) has it.
    pub compression: PageCompression,
}

/// One index of a [`TableDef`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDef {
    /// Name, unique in the table.
    pub name: String,
    /// Whether the layer above means its keys to be unique. The tree's keys are always unique: for
    /// an index that is not, the layer above makes them so (it appends the primary key).
    pub unique: bool,
}

impl TableDef {
    /// A table with these indexes, the first of them clustered, and no metadata.
    pub fn new(indexes: impl IntoIterator<Item = IndexDef>) -> Self {
        Self { indexes: indexes.into_iter().collect(), ..Self::default() }
    }

    /// A table that is an ordered map: one index, the clustered one.
    pub fn map() -> Self {
        Self::new([IndexDef::unique("key")])
    }

    /// Checks counts, lengths and names.
    pub fn validate(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::InvalidOption(why));
        if self.indexes.is_empty() || self.indexes.len() > INDEXES_MAX {
            let count = self.indexes.len();
            return refuse(format!(
                "table definition has {count} indexes: must be 1 to {INDEXES_MAX}"
            ));
        }
        for (at, index) in self.indexes.iter().enumerate() {
            if index.name.is_empty() || index.name.len() > NAME_LEN_MAX {
                let len = index.name.len();
                return refuse(format!("index name of {len} bytes: must be 1 to {NAME_LEN_MAX}"));
            }
            if self.indexes[..at].iter().any(|earlier| earlier.name == index.name) {
                return refuse(format!("table definition has two indexes named '{}'", index.name));
            }
        }
        if self.metadata.len() > METADATA_LEN_MAX {
            let len = self.metadata.len();
            return refuse(format!(
                "table metadata of {len} bytes: must be at most {METADATA_LEN_MAX}"
            ));
        }
        Ok(())
    }
}

impl IndexDef {
    /// An index whose keys are unique.
    pub fn unique(name: impl Into<String>) -> Self {
        Self { name: name.into(), unique: true }
    }

    /// An index whose keys are not unique by themselves.
    pub fn non_unique(name: impl Into<String>) -> Self {
        Self { name: name.into(), unique: false }
    }
}

/// Checks a table's name.
pub(crate) fn check_table_name(name: &str, key_len_max: usize) -> Result<()> {
    let max = NAME_LEN_MAX.min(key_len_max - KEY_SUFFIX_LEN);
    if name.is_empty() || name.len() > max {
        return Err(Error::InvalidOption(format!(
            "table name of {} bytes: must be 1 to {max}",
            name.len()
        )));
    }
    Ok(())
}

/// A table as the catalog knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableRecord {
    /// Never reused; the same for life, also across TRUNCATE.
    pub id: u64,
    /// Space that holds its trees now. Never reused; TRUNCATE gives a new one.
    pub space: u32,
    /// Its file was missing while the redo log held changes of it: a copy that turns up later is
    /// not whole.
    pub lost_changes: bool,
    /// Its file's header may name trees that no index has: a change of its indexes is under way, or
    /// was not finished.
    pub has_notes: bool,
    /// Its rows were discarded: it is empty, and takes none but those that are imported.
    pub is_discarded: bool,
    /// Where its trees are, in the order of `def.indexes`.
    pub trees: Vec<TreeRecord>,
    /// Definition as created.
    pub def: TableDef,
}

/// Where one index lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeRecord {
    /// Never reused.
    pub tree: u32,
    /// Root page, fixed for the tree's life.
    pub root: u32,
}

impl TableRecord {
    /// The record with these names of its indexes, in their order; none if they have them.
    pub fn with_index_names(&self, names: &[&str]) -> Result<Option<TableRecord>> {
        let indexes = &self.def.indexes;
        if names.len() != indexes.len() {
            let (count, has) = (names.len(), indexes.len());
            return Err(Error::InvalidOption(format!(
                "{count} names for the {has} indexes of a table"
            )));
        }
        if indexes.iter().map(|index| &index.name).eq(names) {
            return Ok(None);
        }
        let mut renamed = self.clone();
        for (index, name) in renamed.def.indexes.iter_mut().zip(names) {
            index.name = name.to_string();
        }
        renamed.def.validate()?;
        Ok(Some(renamed))
    }

    /// Encodes; `decode` gives the same back.
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.trees.len(), self.def.indexes.len(), "an index is a tree");
        let mut out = Vec::with_capacity(64 + self.def.metadata.len());
        out.push(RECORD_VERSION);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let encryption = self.def.encryption;
        let says_encryption = encryption != TableEncryption::default();
        out.push(
            flag(self.lost_changes, FLAG_LOST_CHANGES)
                | flag(self.has_notes, FLAG_HAS_NOTES)
                | flag(says_encryption, FLAG_ENCRYPTION)
                | flag(self.is_discarded, FLAG_DISCARDED)
                | (self.def.compression as u8) << COMPRESSION_SHIFT,
        );
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.space.to_le_bytes());
        out.extend_from_slice(&(self.trees.len() as u16).to_le_bytes());
        for (tree, index) in self.trees.iter().zip(&self.def.indexes) {
            out.extend_from_slice(&tree.tree.to_le_bytes());
            out.extend_from_slice(&tree.root.to_le_bytes());
            out.push(if index.unique { INDEX_FLAG_UNIQUE } else { 0 });
            out.extend_from_slice(&(index.name.len() as u16).to_le_bytes());
            out.extend_from_slice(index.name.as_bytes());
        }
        out.extend_from_slice(&(self.def.metadata.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.def.metadata);
        if says_encryption {
            out.push(encryption.choice as u8);
            out.extend_from_slice(&encryption.key_id.to_le_bytes());
        }
        out
    }

    /// Decodes the record of table `name` (for the error's text only).
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let (result, remedy) = match bytes.first() {
            Some(version) if *version != RECORD_VERSION => {
                let why =
                    format!("record version {version}, this program reads {RECORD_VERSION} only");
                (Err(why), Remedy::UseItsVersion)
            }
            _ => (Reader { rest: bytes }.record(), Remedy::RestoreDirectory),
        };
        result.map_err(|why| {
            let why = format!("catalog entry of table '{name}': {why}");
            Error::lost(crate::files::SYSTEM_FILE, why, remedy)
        })
    }
}

/// Takes fields off the front of a record.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn record(mut self) -> Result<TableRecord, String> {
        let version = self.u8()?;
        debug_assert_eq!(version, RECORD_VERSION);
        let flags = self.u8()?;
        let known = FLAG_LOST_CHANGES
            | FLAG_HAS_NOTES
            | FLAG_ENCRYPTION
            | FLAG_DISCARDED
            | COMPRESSION_MASK;
        if flags & !known != 0 {
            return Err(format!("unknown flags {flags:#04x}"));
        }
        let lost_changes = flags & FLAG_LOST_CHANGES != 0;
        let has_notes = flags & FLAG_HAS_NOTES != 0;
        let is_discarded = flags & FLAG_DISCARDED != 0;
        let (id, space, count) = (self.u64()?, self.u32()?, self.u16()?);
        let mut trees = Vec::with_capacity(usize::from(count));
        let mut def = TableDef::default();
        for _ in 0..count {
            trees.push(TreeRecord { tree: self.u32()?, root: self.u32()? });
            let flags = self.u8()?;
            if flags & !INDEX_FLAG_UNIQUE != 0 {
                return Err(format!("unknown index flags {flags:#04x}"));
            }
            let name_len = usize::from(self.u16()?);
            let name = std::str::from_utf8(self.bytes(name_len)?)
                .map_err(|_| "an index name is not UTF-8".to_string())?;
            def.indexes
                .push(IndexDef { name: name.into(), unique: flags & INDEX_FLAG_UNIQUE != 0 });
        }
        let metadata_len = self.u32()? as usize;
        def.metadata = self.bytes(metadata_len)?.to_vec();
        let compression = usize::from((flags & COMPRESSION_MASK) >> COMPRESSION_SHIFT);
        def.compression = PageCompression::ALL[compression];
        if flags & FLAG_ENCRYPTION != 0 {
            def.encryption = self.encryption()?;
        }
        if !self.rest.is_empty() {
            return Err(format!("{} bytes too many", self.rest.len()));
        }
        def.validate().map_err(|e| e.to_string())?;
        Ok(TableRecord { id, space, lost_changes, has_notes, is_discarded, trees, def })
    }

    fn encryption(&mut self) -> Result<TableEncryption, String> {
        let choice = match self.u8()? {
            0 => EncryptionChoice::Default,
            1 => EncryptionChoice::Yes,
            2 => EncryptionChoice::No,
            other => return Err(format!("unknown encryption {other}")),
        };
        let encryption = TableEncryption { choice, key_id: self.u32()? };
        match encryption == TableEncryption::default() {
            true => Err("it says of its encryption what needs no saying".into()),
            false => Ok(encryption),
        }
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (front, rest) = self.rest.split_at_checked(len).ok_or("cut short")?;
        self.rest = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.bytes(N)?.try_into().expect("N bytes were taken"))
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    fn u16(&mut self) -> Result<u16, String> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = TableRecord> {
        let index = (any::<u32>(), any::<u32>(), any::<bool>(), "[a-zé]{0,8}");
        let indexes = prop::collection::vec(index, 1..6);
        let metadata = prop::collection::vec(any::<u8>(), 0..200);
        let choices = [EncryptionChoice::Default, EncryptionChoice::Yes, EncryptionChoice::No];
        let encryption = (prop::sample::select(choices.to_vec()), 1..4u32)
            .prop_map(|(choice, key_id)| TableEncryption { choice, key_id });
        let compression = prop::sample::select(PageCompression::ALL.to_vec());
        (any::<u64>(), any::<u32>(), indexes, metadata, encryption, compression).prop_map(
            |(id, space, indexes, metadata, encryption, compression)| {
                let mut record = TableRecord {
                    id,
                    space,
                    lost_changes: id % 3 == 0,
                    has_notes: id % 5 == 0,
                    is_discarded: id % 7 == 0,
                    trees: vec![],
                    def: TableDef { metadata, encryption, compression, ..TableDef::default() },
                };
                for (at, (tree, root, unique, name)) in indexes.into_iter().enumerate() {
                    record.trees.push(TreeRecord { tree, root });
                    record.def.indexes.push(IndexDef { name: format!("{name}{at}"), unique });
                }
                record
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_survives_the_round_trip(record in any_record()) {
            prop_assert_eq!(TableRecord::decode("t", &record.encode()).unwrap(), record);
        }

        #[test]
        fn a_cut_record_is_refused(record in any_record(), keep in 0.0..1.0f64) {
            let bytes = record.encode();
            let keep = (bytes.len() as f64 * keep) as usize;
            prop_assert!(TableRecord::decode("t", &bytes[..keep]).is_err());
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = TableRecord::decode("t", &bytes);
        }
    }

    #[test]
    fn a_newer_record_version_is_named() {
        let error = TableRecord::decode("shop/orders", &[2, 0]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "system.tpd: catalog entry of table 'shop/orders': record version 2, this program reads 1 only: \
             use the version of Tidepool that wrote it"
        );
    }

    #[test]
    fn a_definition_is_checked() {
        let refusal = |def: TableDef| def.validate().unwrap_err().to_string();
        assert_eq!(
            refusal(TableDef::default()),
            "invalid option: table definition has 0 indexes: must be 1 to 128"
        );
        assert_eq!(
            refusal(TableDef::new([IndexDef::unique("a"), IndexDef::non_unique("a")])),
            "invalid option: table definition has two indexes named 'a'"
        );
        assert_eq!(
            refusal(TableDef::new([IndexDef::unique("")])),
            "invalid option: index name of 0 bytes: must be 1 to 1024"
        );
        let mut def = TableDef::new([IndexDef::unique("pk")]);
        def.metadata = vec![0; METADATA_LEN_MAX + 1];
        assert_eq!(
            refusal(def),
            "invalid option: table metadata of 1048577 bytes: must be at most 1048576"
        );
        assert_eq!(
            check_table_name("", 3500).unwrap_err().to_string(),
            "invalid option: table name of 0 bytes: must be 1 to 1024"
        );
    }
}
