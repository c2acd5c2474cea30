//! Rows, of any version, to the bytes of each column.

use super::Reader;
use super::description::{Description, Place, Storage};

/// The bytes of a column, or NULL.
pub type Stored = Option<Vec<u8>>;

/// Reads rows of one table.
#[derive(Debug)]
pub struct Rows<'d> {
    description: &'d Description,
    /// Positions of the columns that rows of the newest version store, in their order.
    stored: Vec<usize>,
}

impl<'d> Rows<'d> {
    /// Reads rows of the table that is described so.
    pub fn new(description: &'d Description) -> Self {
        Self { description, stored: description.stored() }
    }

    /// Each column of a row, in the order of the table; those that are not stored are left out as
    /// NULL.
    ///
    /// # Errors
    /// What can't be understood, in words.
    pub fn read(&self, key: &[u8], row: &[u8]) -> Result<Vec<Stored>, String> {
        let mut columns = vec![None; self.description.columns.len()];
        self.read_key(key, &mut columns).ok_or("its key can't be understood")?;
        let tag = *row.first().ok_or("a row of no bytes")?;
        let version = match tag {
            1 => 0,
            0x81..=0xfe => usize::from(tag - 0x80),
            _ => return Err(format!("a row that begins with {tag:02x}")),
        };
        let newest = self.description.versions.len().saturating_sub(1);
        let read = match version {
            _ if version > newest => return Err(format!("a row of version {version}")),
            _ if version == newest => self.read_newest(&row[1..], &mut columns),
            _ => self.read_older(version, &row[1..], &mut columns),
        };
        read.ok_or("a row that is cut short")?;
        Ok(columns)
    }

    fn read_key(&self, key: &[u8], columns: &mut [Stored]) -> Option<()> {
        let mut rest = key;
        for part in &self.description.clustered().parts {
            let (bytes, behind) = part.split(rest)?;
            rest = behind;
            if let Some(at) = part.column
                && self.description.columns[at].place == Place::Key
                && let Some(value) = part.decode(bytes)
            {
                columns[at] = value;
            }
        }
        Some(())
    }

    fn read_newest(&self, row: &[u8], columns: &mut [Stored]) -> Option<()> {
        let all = &self.description.columns;
        let nullable = self.stored.iter().filter(|at| all[**at].nullable).count();
        let mut from = Reader(row);
        let mut nulls = Nulls { bits: from.bytes(nullable.div_ceil(8))?, next: 0 };
        for &at in &self.stored {
            if all[at].nullable && nulls.next()? {
                continue;
            }
            columns[at] = Some(value(&mut from, all[at].storage)?);
        }
        Some(())
    }

    fn read_older(&self, version: usize, row: &[u8], columns: &mut [Stored]) -> Option<()> {
        let stored = &self.description.versions[version];
        let newest = self.description.versions.last()?;
        let place_of = |id: u16| newest.iter().position(|column| column.id == id);
        for (id, default) in &self.description.defaults {
            if !stored.iter().any(|column| column.id == *id)
                && let Some(place) = place_of(*id)
            {
                columns[self.stored[place]].clone_from(default);
            }
        }
        let nullable = stored.iter().filter(|column| column.nullable).count();
        let mut from = Reader(row);
        let mut nulls = Nulls { bits: from.bytes(nullable.div_ceil(8))?, next: 0 };
        for column in stored {
            if column.nullable && nulls.next()? {
                continue;
            }
            let bytes = value(&mut from, column.storage)?;
            // It was dropped since, if it is not among them.
            if let Some(place) = place_of(column.id) {
                columns[self.stored[place]] = Some(bytes);
            }
        }
        Some(())
    }
}

/// The bits that say which columns are NULL.
struct Nulls<'r> {
    bits: &'r [u8],
    next: usize,
}

impl Nulls<'_> {
    fn next(&mut self) -> Option<bool> {
        let bit = self.bits.get(self.next / 8)? >> (self.next % 8) & 1;
        self.next += 1;
        Some(bit == 1)
    }
}

fn value(from: &mut Reader<'_>, storage: Storage) -> Option<Vec<u8>> {
    let bytes = match storage {
        Storage::Fixed(len) => from.bytes(len),
        Storage::WithLength => from.value(),
    };
    bytes.map(<[u8]>::to_vec)
}
