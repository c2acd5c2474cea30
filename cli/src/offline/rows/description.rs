//! A table's description: `mariadb/shim/description.h` writes it.

use tidepool::inspect::Inspection;
use tidepool::{IndexDef, TableDef};

use super::Reader;

/// The version that this program reads.
const VERSION: u8 = 1;
/// The first byte of the plugin's metadata, less the bit that says that there are foreign keys.
const KEY_FORMAT: u8 = 1;
/// That bit.
const HAS_FOREIGN_KEYS: u8 = 0x80;
/// The bit that says that what FULLTEXT indexes were made with comes before the list of versions.
const HAS_FULLTEXT: u8 = 0x40;
/// The bit that says that there are SPATIAL indexes.
const HAS_SPATIAL: u8 = 0x20;
/// Bytes of the metadata before the list of versions.
const METADATA_HEAD: usize = 10;

/// Where a column's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: it is computed.
    NotStored,
    /// In the clustered key alone.
    Key,
    /// In the row.
    Row,
}

/// How a column lies in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// As this many bytes.
    Fixed(usize),
    /// With its length before it; CHAR without trailing spaces.
    WithLength,
}

/// How the bytes of a column are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Other,
    Integer,
    Float,
    Double,
    Decimal,
    Bit,
    Year,
    Date,
    Time,
    DateTime,
    Timestamp,
    Enum,
    Set,
    Text,
    Binary,
    Inet4,
    Inet6,
    Uuid,
}

#[cfg(test)]
impl Column {
    /// One without anything that is rare.
    pub(crate) fn of_kind(kind: Kind) -> Column {
        Column {
            name: "c".into(),
            place: Place::Row,
            storage: Storage::WithLength,
            kind,
            nullable: true,
            unsigned: false,
            generated: false,
            versioning: false,
            hidden: false,
            compressed: false,
            decimals: 0,
            precision: 0,
            charset: "utf8mb4".into(),
            values: Vec::new(),
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// How it lies there.
    pub storage: Storage,
    /// How it is read.
    pub kind: Kind,
    /// Whether it can be NULL.
    pub nullable: bool,
    /// Whether it has no sign.
    pub unsigned: bool,
    /// Whether it is computed from others: no statement sets it.
    pub generated: bool,
    /// Whether it is a period's begin or end of system versioning.
    pub versioning: bool,
    /// Whether no statement can name it.
    pub hidden: bool,
    /// Whether its bytes may be compressed.
    pub compressed: bool,
    /// Digits behind the point; of a time, of its seconds.
    pub decimals: u8,
    /// Digits of a DECIMAL.
    pub precision: u8,
    /// Character set.
    pub charset: String,
    /// Of ENUM and SET.
    pub values: Vec<String>,
}

/// How a part of a key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    Raw,
    Unsigned,
    Signed,
    Float,
    Double,
    String,
    Sorted,
    RowId,
    TextWords,
    Cell,
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its column's position; none: a row id.
    pub column: Option<usize>,
    /// How it is written.
    pub image: Image,
    /// Whether the column can be read back from it.
    pub reversible: bool,
    /// Whether its bytes are inverted.
    pub descending: bool,
    /// Whether it begins with a byte that says if it is NULL.
    pub nullable: bool,
    /// Bytes without that one; 0: varies.
    pub image_len: usize,
    /// How each level of a string ends: by a space of these bytes, or, if there are none, by 00 00.
    pub levels: Vec<Vec<u8>>,
}

/// A key, or the clustered index of a table without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The key's name; empty: row ids.
    pub name: String,
    /// Whether entries are unique by the key's own parts.
    pub unique: bool,
    /// Whether entries without NULL have the clustered key in their value.
    pub bare_entries: bool,
    /// Whether it has an entry for each word of a row.
    pub fulltext: bool,
    /// Whether its entries have rectangles of geometries.
    pub spatial: bool,
    /// How many parts are the key's own.
    pub own_parts: usize,
    /// All parts, those of the clustered key among them.
    pub parts: Vec<Part>,
    /// Which parts the clustered key is made of, and whether they are inverted; none: of the
    /// appended ones.
    pub pieces: Vec<(usize, u8)>,
}

/// A table's columns and keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The CREATE TABLE statement behind the table's name.
    pub create: String,
    /// Columns in the order of the table.
    pub columns: Vec<Column>,
    /// Keys in the order of the engine's trees, the clustered one first.
    pub trees: Vec<Tree>,
    /// The versions that rows are of; empty: all are of version 0, and as `columns` say.
    pub versions: Vec<Vec<StoredColumn>>,
    /// What older rows have in columns that were added later, by the column's number.
    pub defaults: Vec<(u16, Option<Vec<u8>>)>,
    /// What the table refers to.
    pub foreign_keys: Vec<ForeignKey>,
}

/// A foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// Its name.
    pub name: String,
    /// The engine's name of the table that it refers to.
    pub parent: String,
    /// What happens to rows whose parent goes, and whose parent changes, in SQL's words.
    pub actions: [&'static str; 2],
    /// Its columns, each with that of the parent.
    pub columns: Vec<(String, String)>,
}

/// A column in the rows of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredColumn {
    /// The number that no other column of the table ever had.
    pub id: u16,
    /// Whether it can be NULL.
    pub nullable: bool,
    /// How it lies there.
    pub storage: Storage,
}

/// The kind of attachment that the plugin keeps descriptions as.
const ATTACHMENT: u8 = 3;

/// The description of a table of the engine, if the plugin has made it.
///
/// # Errors
/// It can't be read, or not be understood: in words.
pub fn of_table(
    inspection: &Inspection,
    name: &str,
    def: &TableDef,
) -> Result<Option<Description>, String> {
    // Partitions have that of their table.
    let table = name.split_once("#P#").map_or(name, |(table, _)| table);
    let bytes = inspection.attachment(table, ATTACHMENT).map_err(|error| error.to_string())?;
    let Some(bytes) = bytes else { return Ok(None) };
    let mut description = Description::read(&bytes, &def.metadata)?;
    description.order_trees(def);
    Ok(Some(description))
}

impl Description {
    /// Puts the keys in the order of the table's trees, by their names: a table may have them in
    /// another order than
    /// its server has, and each partition in its own.
    fn order_trees(&mut self, def: &TableDef) {
        if self.trees.len() != def.indexes.len() {
            return;
        }
        let place_of = |tree: &Tree| {
            let is_it = |index: &IndexDef| index.name.eq_ignore_ascii_case(&tree.name);
            def.indexes.iter().position(is_it)
        };
        let places: Vec<Option<usize>> = self.trees[1..].iter().map(place_of).collect();
        let mut sorted: Vec<_> = places.iter().flatten().collect();
        sorted.sort_unstable();
        sorted.dedup();
        // The clustered one is the first in any case. A name that is not found may be an older one.
        if sorted.len() == self.trees.len() - 1 && !sorted.contains(&&0) {
            let clustered = self.trees.remove(0);
            let mut others: Vec<_> = places.iter().zip(std::mem::take(&mut self.trees)).collect();
            others.sort_by_key(|(place, _)| **place);
            self.trees = std::iter::once(clustered)
                .chain(others.into_iter().map(|(_, tree)| tree))
                .collect();
        }
    }

    /// Reads a description, and the versions of rows from the table's metadata.
    ///
    /// # Errors
    /// What can't be understood, in words.
    pub fn read(description: &[u8], metadata: &[u8]) -> Result<Description, String> {
        if description.first().is_some_and(|version| *version != VERSION) {
            return Err("its description is of a newer version: use a newer program".into());
        }
        let cut = || "its description is cut short".to_string();
        let mut read = Self::parse(Reader(description)).ok_or_else(cut)?;
        let is_known = metadata.len() >= METADATA_HEAD
            && metadata[0] & !(HAS_FOREIGN_KEYS | HAS_FULLTEXT | HAS_SPATIAL) == KEY_FORMAT;
        match (is_known, metadata.get(1)) {
            (true, Some(1)) => {}
            (true, Some(2)) => {
                let list = versions_in(metadata).and_then(|list| read.parse_versions(list));
                list.ok_or("its list of versions can't be read")?;
            }
            _ => return Err("its metadata are of another format: use a newer program".into()),
        }
        if metadata[0] & HAS_FOREIGN_KEYS != 0 {
            read.foreign_keys =
                foreign_keys(metadata).ok_or("its foreign keys can't be understood")?;
        }
        read.check()?;
        Ok(read)
    }

    fn parse(mut from: Reader<'_>) -> Option<Description> {
        from.u8()?;
        let create = from.text()?;
        let columns = (0..from.u16()?).map(|_| column(&mut from)).collect::<Option<_>>()?;
        let trees = (0..from.u16()?).map(|_| tree(&mut from)).collect::<Option<_>>()?;
        if !from.0.is_empty() {
            return None;
        }
        let (versions, defaults, foreign_keys) = Default::default();
        Some(Description { create, columns, trees, versions, defaults, foreign_keys })
    }

    fn parse_versions(&mut self, mut from: Reader<'_>) -> Option<()> {
        let len = from.u32()? as usize;
        let mut from = Reader(from.bytes(len)?);
        if from.u8()? != 1 {
            return None;
        }
        from.u32()?;
        for _ in 0..from.u8()? {
            let mut version = Vec::new();
            for _ in 0..from.u16()? {
                let (id, flags, size) = (from.u16()?, from.u8()?, from.u32()?);
                let storage = match flags & 2 {
                    0 => Storage::Fixed(size as usize),
                    _ => Storage::WithLength,
                };
                version.push(StoredColumn { id, nullable: flags & 1 != 0, storage });
            }
            self.versions.push(version);
        }
        for _ in 0..from.u16()? {
            let (id, is_null, len) = (from.u16()?, from.u8()? != 0, from.u32()?);
            let bytes = from.bytes(len as usize)?.to_vec();
            self.defaults.push((id, (!is_null).then_some(bytes)));
        }
        Some(())
    }

    /// Whether parts and pieces name what there is.
    fn check(&self) -> Result<(), String> {
        let newest = self.versions.last();
        let stored = self.columns.iter().filter(|column| column.place == Place::Row).count();
        let parts = self.trees.iter().flat_map(|tree| &tree.parts);
        let is_sound = !self.trees.is_empty()
            && newest.is_none_or(|newest| newest.len() == stored)
            && parts.clone().all(|part| part.column.is_none_or(|at| at < self.columns.len()))
            && self.trees.iter().all(|tree| {
                tree.own_parts <= tree.parts.len()
                    && tree.pieces.iter().all(|(part, _)| *part < tree.parts.len())
            });
        match is_sound {
            true => Ok(()),
            false => Err("its description does not fit its list of versions".into()),
        }
    }

    /// The clustered index.
    pub fn clustered(&self) -> &Tree {
        &self.trees[0]
    }

    /// Positions of the columns that rows have, in the order in which rows of the newest version
    /// store them.
    pub fn stored(&self) -> Vec<usize> {
        let is_plain =
            |column: &Column| matches!(column.storage, Storage::Fixed(_)) && !column.nullable;
        let stored = (0..self.columns.len()).filter(|at| self.columns[*at].place == Place::Row);
        let (mut plain, others): (Vec<_>, Vec<_>) =
            stored.partition(|at| is_plain(&self.columns[*at]));
        plain.extend(others);
        plain
    }
}

/// Where the list of versions begins: behind what FULLTEXT indexes were made with.
fn versions_in(metadata: &[u8]) -> Option<Reader<'_>> {
    let mut from = Reader(metadata.get(METADATA_HEAD..)?);
    if metadata[0] & HAS_FULLTEXT != 0 {
        let len = from.u32()? as usize;
        from.bytes(len)?;
    }
    Some(from)
}

/// The foreign keys at the end of the metadata.
fn foreign_keys(metadata: &[u8]) -> Option<Vec<ForeignKey>> {
    const ACTIONS: [&str; 4] = ["RESTRICT", "NO ACTION", "CASCADE", "SET NULL"];
    let (front, len) = metadata.split_last_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let mut from = Reader(front.get(front.len().checked_sub(len)?..)?);
    if from.u8()? != 1 {
        return None;
    }
    let mut keys = Vec::new();
    for _ in 0..from.u16()? {
        let (name, parent) = (from.name()?, from.name()?);
        let mut action = || ACTIONS.get(usize::from(from.u8()?)).copied();
        let actions = [action()?, action()?];
        let columns = (0..from.u16()?)
            .map(|_| Some((from.name()?, from.name()?)))
            .collect::<Option<Vec<_>>>()?;
        // One without columns is a note that an ALTER TABLE under way has left.
        if !columns.is_empty() {
            keys.push(ForeignKey { name, parent, actions, columns });
        }
    }
    Some(keys)
}

fn column(from: &mut Reader<'_>) -> Option<Column> {
    let name = from.text()?;
    let (place, flags, storage, kind) = (from.u8()?, from.u8()?, from.u8()?, from.u8()?);
    let (decimals, precision, size) = (from.u8()?, from.u8()?, from.u32()?);
    let charset = from.text()?;
    let values = (0..from.u16()?).map(|_| from.text()).collect::<Option<_>>()?;
    Some(Column {
        name,
        place: [Place::NotStored, Place::Key, Place::Row].get(usize::from(place)).copied()?,
        storage: match storage {
            0 => Storage::Fixed(size as usize),
            1..=3 => Storage::WithLength,
            _ => return None,
        },
        kind: kind_of(kind)?,
        nullable: flags & 1 != 0,
        unsigned: flags & 2 != 0,
        generated: flags & 4 != 0,
        versioning: flags & 8 != 0,
        hidden: flags & 16 != 0,
        compressed: flags & 32 != 0,
        decimals,
        precision,
        charset,
        values,
    })
}

fn kind_of(number: u8) -> Option<Kind> {
    use Kind::*;
    let all = [
        Other, Integer, Float, Double, Decimal, Bit, Year, Date, Time, DateTime, Timestamp, Enum,
        Set, Text, Binary, Inet4, Inet6, Uuid,
    ];
    all.get(usize::from(number)).copied()
}

fn tree(from: &mut Reader<'_>) -> Option<Tree> {
    let (name, flags) = (from.text()?, from.u8()?);
    let (own_parts, count) = (usize::from(from.u16()?), from.u16()?);
    let parts = (0..count).map(|_| part(from)).collect::<Option<_>>()?;
    let pieces = (0..from.u16()?)
        .map(|_| Some((usize::from(from.u16()?), from.u8()?)))
        .collect::<Option<_>>()?;
    Some(Tree {
        name,
        unique: flags & 1 != 0,
        bare_entries: flags & 2 != 0,
        fulltext: flags & 4 != 0,
        spatial: flags & 8 != 0,
        own_parts,
        parts,
        pieces,
    })
}

fn part(from: &mut Reader<'_>) -> Option<Part> {
    use Image::*;
    let (column, image, unpack) = (from.u16()?, from.u8()?, from.u8()?);
    let all = [Raw, Unsigned, Signed, Float, Double, String, Sorted, RowId, TextWords, Cell];
    let image = all.get(usize::from(image)).copied()?;
    let (flags, _length, image_len) = (from.u8()?, from.u32()?, from.u32()?);
    let levels = (0..from.u8()?)
        .map(|_| {
            let unit = from.u8()?;
            Some(from.bytes(usize::from(unit))?.to_vec())
        })
        .collect::<Option<_>>()?;
    Some(Part {
        column: (column != 0xffff).then_some(usize::from(column)),
        image,
        reversible: flags & 1 != 0 && unpack == 0 && image != RowId,
        descending: flags & 2 != 0,
        nullable: flags & 4 != 0,
        image_len: image_len as usize,
        levels,
    })
}
