//! What the MariaDB plugin stores in the engine's trees, read without a server:
//! `docs/internals/format/rows.md`.
//!
//! | file | what |
//! |---|---|
//! | [`description`] | a table's columns and keys, as the plugin has described them |
//! | [`key`] | parts of keys: where they end, and back to the bytes of their columns |
//! | [`row`] | rows, of any version, to the bytes of each column |
//! | [`value`] | the bytes of a column to a value, as SQL or CSV writes it |

pub mod description;
pub mod key;
pub mod row;
pub mod value;

/// Takes fields off the front of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    /// A little-endian number.
    pub fn number(&mut self, width: usize) -> Option<u64> {
        let bytes = self.bytes(width)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(self.number(2)? as u16)
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(self.number(4)? as u32)
    }

    pub fn text(&mut self) -> Option<String> {
        let len = self.u32()? as usize;
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }

    /// A text with a length of two bytes.
    pub fn name(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }

    /// A length as rows have them, and that many bytes.
    pub fn value(&mut self) -> Option<&'a [u8]> {
        let len = match self.u8()? {
            short @ 0..=250 => u64::from(short),
            251 => self.number(2)?,
            252 => self.number(4)?,
            _ => return None,
        };
        self.bytes(usize::try_from(len).ok()?)
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
