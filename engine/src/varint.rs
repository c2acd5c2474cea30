//! Variable-length unsigned integers: seven bits a byte, lowest first, the high bit says "more".
//!
//! Page and space numbers are small most of the time, and a commit writes a few hundred bytes of
//! redo and undo, so these bytes count.

/// Longest encoding of a `u32`.
pub const MAX_U32_LEN: usize = 5;

/// Bytes [`put_u32`] will use for `value`.
pub const fn len_u32(value: u32) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        0x20_0000..=0xfff_ffff => 4,
        _ => 5,
    }
}

/// Appends `value` to `out`.
pub fn put_u32(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads an integer from the front of `bytes` and moves `bytes` past it.
///
/// `None` if the bytes end early, or if the encoding is not the shortest one: a value has exactly
/// one encoding, so that what was decoded encodes to the same bytes again.
pub fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for (i, &byte) in bytes.iter().take(MAX_U32_LEN).enumerate() {
        let bits = u32::from(byte & 0x7f);
        if i == 4 && bits > 0x0f {
            return None;
        }
        value |= bits << (7 * i);
        if byte & 0x80 == 0 {
            if byte == 0 && i > 0 {
                return None;
            }
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(value in prop_oneof![any::<u32>(), 0u32..0x8000, Just(u32::MAX)], tail in any::<[u8; 3]>()) {
            let mut bytes = Vec::new();
            put_u32(&mut bytes, value);
            prop_assert_eq!(bytes.len(), len_u32(value));
            bytes.extend_from_slice(&tail);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_u32(&mut rest), Some(value));
            prop_assert_eq!(rest, &tail[..]);
        }

        #[test]
        fn whatever_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..7)) {
            let mut rest = &bytes[..];
            if let Some(value) = take_u32(&mut rest) {
                let mut again = Vec::new();
                put_u32(&mut again, value);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }

    #[test]
    fn overlong_and_short_encodings_are_refused() {
        for bytes in [&[0x80, 0x00][..], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80], &[]] {
            assert_eq!(take_u32(&mut &bytes[..]), None, "{bytes:?}");
        }
    }
}
