//! The top of a map: where the parts of the file's tables are.
//!
//! ```text
//!  0  segments  u32
//!  4  rows      u32
//!  8  …         28 bytes each: object (12 bytes), entry (16 bytes)
//! ```
//!
//! If the parts are more than a top has room for, the rows are put into lists, and the top has the
//! rows of the lists.

use super::entry::{ENTRY_BYTES, Entry, Object};
use super::segments::Segments;

/// Objects and where their images are.
pub type Rows = Vec<(Object, Entry)>;

const HEADER: usize = 8;
const OBJECT_BYTES: usize = 12;
const ROW: usize = OBJECT_BYTES + ENTRY_BYTES;
/// Rows of the top, or of a list. Tests have small ones.
const ROWS_MAX: usize = if cfg!(test) { 16 } else { 2048 };

/// Bytes of the lists and the top for `parts` parts of tables.
pub fn lens(parts: usize) -> Vec<usize> {
    if parts <= ROWS_MAX {
        return vec![HEADER + parts * ROW];
    }
    let starts = (0..parts).step_by(ROWS_MAX);
    let mut lens: Vec<usize> = starts.map(|start| (parts - start).min(ROWS_MAX) * ROW).collect();
    lens.push(HEADER + lens.len() * ROW);
    lens
}

/// The rows of each list; none if the top has room for all.
pub fn lower_lists(rows: &[(Object, Entry)]) -> impl Iterator<Item = &[(Object, Entry)]> {
    let rows = if rows.len() <= ROWS_MAX { &[] } else { rows };
    rows.chunks(ROWS_MAX)
}

/// The image of the top.
pub fn encode(segments: u32, rows: &[(Object, Entry)]) -> Vec<u8> {
    let mut bytes = segments.to_le_bytes().to_vec();
    bytes.extend((rows.len() as u32).to_le_bytes());
    bytes.extend(encode_rows(rows));
    debug_assert_eq!(decode(&bytes), Some((segments, rows.to_vec())), "a start reads the same top");
    bytes
}

/// The image of a list.
pub fn encode_rows(rows: &[(Object, Entry)]) -> Vec<u8> {
    let row = |(object, entry): &(Object, Entry)| {
        let mut row = [0; ROW];
        row[..OBJECT_BYTES].copy_from_slice(&object.encode());
        row[OBJECT_BYTES..].copy_from_slice(&Entry::encode(Some(*entry)));
        row
    };
    rows.iter().flat_map(row).collect()
}

/// The inverse of [`encode`]: how many segments, and the rows.
pub fn decode(bytes: &[u8]) -> Option<(u32, Rows)> {
    let (header, rows) = bytes.split_at_checked(HEADER)?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let rows = decode_rows(rows)?;
    (rows.len() == word(4) as usize).then(|| (word(0), rows))
}

/// The inverse of [`encode_rows`].
pub fn decode_rows(bytes: &[u8]) -> Option<Rows> {
    let (rows, rest) = bytes.as_chunks::<ROW>();
    let row = |row: &[u8; ROW]| {
        let (object, entry) = row.split_at(OBJECT_BYTES);
        let object = Object::decode(object.try_into().expect("12 bytes"))?;
        let entry = Entry::decode(entry.try_into().expect("16 bytes")).ok()??;
        Some((object, entry))
    };
    rest.is_empty().then(|| rows.iter().map(row).collect())?
}

/// Whether these are the parts of both tables, each once and in order, if the
/// file has `segments` segments.
pub fn is_complete(parts: &[(Object, Entry)], segments: u32) -> bool {
    let is_directory = |(object, _): &&(Object, Entry)| matches!(object, Object::Directory { .. });
    let spaces = parts.iter().take_while(is_directory).count() as u32;
    let of_segments = Segments::part_lens(segments).count() as u32;
    let directory = (0..spaces).map(|part| Object::Directory { part });
    let expected = directory.chain((0..of_segments).map(|part| Object::Segments { part }));
    parts.iter().map(|(object, _)| *object).eq(expected)
}

#[cfg(test)]
mod tests {
    use super::super::codec::Codec;
    use super::super::entry::Seal;
    use super::*;

    #[test]
    fn a_top_survives_its_bytes_and_names_all_parts() {
        for (spaces, segments) in [(0, 0), (2, 5000), (40, 100_000)] {
            let directory = (0..spaces).map(|part| Object::Directory { part });
            let parts = Segments::part_lens(segments).count() as u32;
            let objects = directory.chain((0..parts).map(|part| Object::Segments { part }));
            let entry =
                |unit| Entry { unit, len: 9, codec: Codec::Raw, seal: Seal::NONE, crc: 1, run: 1 };
            let rows: Rows = objects.zip((300..).map(entry)).collect();
            assert_eq!(decode(&encode(segments, &rows)), Some((segments, rows.clone())));
            assert!(is_complete(&rows, segments));
            assert!(!is_complete(&rows, segments + 4096));
            for at in 0..rows.len() {
                let mut rows = rows.clone();
                rows.remove(at);
                assert_eq!(is_complete(&rows, segments), at + 1 == spaces as usize, "row {at}");
            }
            let lists: Vec<Rows> = lower_lists(&rows).map(<[_]>::to_vec).collect();
            assert_eq!(lists.is_empty(), rows.len() <= ROWS_MAX);
            let mut bytes: Vec<usize> = lists.iter().map(|list| encode_rows(list).len()).collect();
            let upper = if lists.is_empty() { rows.len() } else { lists.len() };
            bytes.push(encode(0, &rows[..upper]).len());
            assert_eq!(lens(rows.len()), bytes);
        }
    }
}
