// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! What the engine has to know of the server's `.frm` files without the server: whose table a
//! definition is of.
//!
//! ```text
//! offset   bytes
//!      0       2   0xFE, 1 (a view has text)
//!      3       1   the engine by number: 20 = partitions, whose engine is named below; engines
//!                  without a number in the file have 43 and up
//!      4       2   length of the segment of extras, which begins at 64: pieces of a type (1), a
//!                  length (1; or 0 and 2 more), and a value
//!      6       2   where the keys begin
//!     14       2   their length; 0xFFFF: it is the 4 bytes at 47
//!     16       2   length of the record of default values, which is behind the keys
//!     55       4   length of the segment behind that: the connection (2 + n), the engine's name
//!                  (2 + n), and more
//! ```

/// Bytes that tell whether the rest is worth a look.
pub(crate) const HEADER_BYTES: usize = 64;

const PARTITIONS: u8 = 20;
const FIRST_WITHOUT_NUMBER: u8 = 43;
/// The type of the piece that names the engine of partitions.
const PARTITIONS_ENGINE: u8 = 1;

/// Whether a definition that begins so may be of an engine without a number.
pub(crate) fn may_be_ours(header: &[u8]) -> bool {
    header.len() >= HEADER_BYTES
        && header[..2] == [0xFE, 1]
        && (header[3] == PARTITIONS || header[3] >= FIRST_WITHOUT_NUMBER)
}

/// The name of the engine of a table, or of its partitions, if that is an engine without a number.
pub(crate) fn engine_name(frm: &[u8]) -> Option<&[u8]> {
    if !may_be_ours(frm) {
        return None;
    }
    if frm[3] == PARTITIONS { engine_of_partitions(frm) } else { named_engine(frm) }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?).try_into().ok()
}

fn named_engine(frm: &[u8]) -> Option<&[u8]> {
    let keys_len = match u16_at(frm, 14)? {
        0xFFFF => u32_at(frm, 47)?,
        len => len,
    };
    let start = u16_at(frm, 6)?.checked_add(keys_len)?.checked_add(u16_at(frm, 16)?)?;
    let segment = frm.get(start..)?;
    let segment = segment.get(..u32_at(frm, 55)?)?;
    let name_at = 2 + u16_at(segment, 0)?;
    segment.get(name_at + 2..)?.get(..u16_at(segment, name_at)?)
}

fn engine_of_partitions(frm: &[u8]) -> Option<&[u8]> {
    let mut extras = frm.get(HEADER_BYTES..)?.get(..u16_at(frm, 4)?)?;
    loop {
        let (kind, rest) = extras.split_first()?;
        let (len, rest) = rest.split_first()?;
        let (len, rest) = match len {
            0 => (u16_at(rest, 0)?, rest.get(2..)?),
            len => (usize::from(*len), rest),
        };
        let value = rest.get(..len)?;
        if *kind == PARTITIONS_ENGINE {
            return Some(value);
        }
        extras = &rest[len..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A definition with keys of 300 bytes and a record of 40.
    fn table(engine: &[u8]) -> Vec<u8> {
        let mut frm = vec![0; 64];
        frm[..4].copy_from_slice(&[0xFE, 1, 10, FIRST_WITHOUT_NUMBER]);
        frm[6..8].copy_from_slice(&100u16.to_le_bytes());
        frm[14..16].copy_from_slice(&300u16.to_le_bytes());
        frm[16..18].copy_from_slice(&40u16.to_le_bytes());
        frm.resize(440, 0xAB);
        let segment = [
            &3u16.to_le_bytes()[..],
            b"abc",
            &(engine.len() as u16).to_le_bytes(),
            engine,
            b"more",
        ]
        .concat();
        frm[55..59].copy_from_slice(&(segment.len() as u32).to_le_bytes());
        frm.extend(segment);
        frm
    }

    fn partitioned(engine: &[u8]) -> Vec<u8> {
        let mut frm = vec![0; 64];
        frm[..4].copy_from_slice(&[0xFE, 1, 10, PARTITIONS]);
        let long = [0, 0, 0x2C, 1].into_iter().chain([9; 300]);
        let extras: Vec<u8> =
            long.chain([PARTITIONS_ENGINE, engine.len() as u8]).chain(engine.to_vec()).collect();
        frm[4..6].copy_from_slice(&(extras.len() as u16).to_le_bytes());
        frm.extend(extras);
        frm
    }

    #[test]
    fn the_engine_of_a_definition_is_found() {
        assert_eq!(engine_name(&table(b"Tidepool")), Some(&b"Tidepool"[..]));
        assert_eq!(engine_name(&partitioned(b"Tidepool")), Some(&b"Tidepool"[..]));
        let mut long_keys = table(b"other");
        long_keys[14..16].copy_from_slice(&[0xFF, 0xFF]);
        long_keys[47..51].copy_from_slice(&300u32.to_le_bytes());
        assert_eq!(engine_name(&long_keys), Some(&b"other"[..]));
        let mut numbered = table(b"Tidepool");
        numbered[3] = 12;
        assert_eq!(engine_name(&numbered), None);
        assert_eq!(engine_name(&[&b"TYPE=VIEW\n"[..], &[b'x'; 200]].concat()), None);
    }

    #[test]
    fn what_is_cut_or_broken_has_none() {
        for whole in [table(b"Tidepool"), partitioned(b"Tidepool")] {
            for len in 0..whole.len() {
                let _ = engine_name(&whole[..len]);
                let mut broken = whole.clone();
                for byte in [0, 0x7F, 0xFF] {
                    broken[len] = byte;
                    let _ = engine_name(&broken);
                }
            }
            assert_eq!(engine_name(&whole[..HEADER_BYTES]), None);
        }
    }
}
