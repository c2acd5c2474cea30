//! What a row holds, given its key and its version: so a worker need only remember versions, and
//! any byte that is wrong shows.

/// The columns of a row of `record` that its key and version determine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Indexed, not unique.
    pub small: u32,
    /// Indexed, unique.
    pub name: String,
    /// Indexed by a prefix.
    pub tag: String,
    /// From nothing to many pages.
    pub data: Option<Vec<u8>>,
}

/// The content of the row with this key and version.
pub fn content(id: u32, version: u64) -> Content {
    let hash = mix((u64::from(id) << 32) ^ version);
    let data = match hash % 20 {
        0..6 => None,
        6..13 => Some((hash >> 8) % 200),
        13..19 => Some(1_000 + (hash >> 8) % 8_000),
        _ => Some(20_000 + (hash >> 8) % 80_000),
    };
    Content {
        small: u32::try_from((hash >> 16) % 1000).expect("is small"),
        name: format!("name {id} {}", hash % 5),
        tag: letters(hash, usize::try_from((hash >> 24) % 60).expect("is small")),
        data: data
            .map(|length| letters(hash, usize::try_from(length).expect("is small")).into_bytes()),
    }
}

/// Letters that differ by seed and position, so that a page in the wrong place shows.
fn letters(seed: u64, length: usize) -> String {
    let mut text = String::with_capacity(length + 8);
    let mut state = seed;
    while text.len() < length {
        state = mix(state.wrapping_add(1));
        text.extend(state.to_le_bytes().map(|byte| char::from(b'a' + byte % 26)));
    }
    text.truncate(length);
    text
}

/// Scrambles a number (the finalizer of SplitMix64).
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
