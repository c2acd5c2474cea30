//! Rows that tell by themselves whether they are right.
//!
//! ```text
//! key      number of the row, 8 bytes, big-endian: the order of the bytes is the order of the numbers
//! value    version, 8 bytes │ pseudo-random bytes that follow from number and version
//! ```
//! So a reader needs no copy of what was written: it takes the version from the value, and the rest
//! must follow. What that can't find, a value that is right but older than one that was committed,
//! is found by [`task`](crate::task), which remembers the last versions. The bytes don't compress:
//! otherwise a store that compresses would be measured with less data than the others.

use crate::error::{Error, Result};

/// A key's bytes.
pub type Key = [u8; 8];

/// Version of what a load writes. Updates write others.
pub const LOADED: u64 = 0;

/// Shortest value: a version and something to check it by.
pub const VALUE_BYTES_MIN: usize = 16;

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Key,
    pub value: Vec<u8>,
}

impl Row {
    /// The row of a number in a version.
    pub fn new(number: u64, version: u64, value_bytes: usize) -> Row {
        let mut value = Vec::with_capacity(value_bytes.next_multiple_of(8));
        value.extend_from_slice(&version.to_le_bytes());
        let mut words = words(number, version);
        while value.len() < value_bytes {
            value.extend_from_slice(&words.next().to_le_bytes());
        }
        value.truncate(value_bytes);
        Row { key: number.to_be_bytes(), value }
    }
}

fn words(number: u64, version: u64) -> Random {
    Random::new(number.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ version)
}

/// The version of a value that was read, once all of it is as it must be.
///
/// # Errors
/// [`Error::WrongData`].
pub fn check(number: u64, value: &[u8], value_bytes: usize) -> Result<u64> {
    let wrong = |what: &str| Error::WrongData(format!("row {number}: {what}"));
    if value.len() != value_bytes {
        return Err(wrong(&format!("its value has {} bytes, not {value_bytes}", value.len())));
    }
    let (version, rest) = value.split_first_chunk().ok_or_else(|| wrong("no version"))?;
    let version = u64::from_le_bytes(*version);
    let mut words = words(number, version);
    let (whole, tail) = rest.as_chunks::<8>();
    let mut same = whole.iter().all(|chunk| u64::from_le_bytes(*chunk) == words.next());
    same &= tail.is_empty() || words.next().to_le_bytes().starts_with(tail);
    if same { Ok(version) } else { Err(wrong("its value is not what was written")) }
}

/// Pseudo-random numbers, the same from the same seed: SplitMix64. Good enough to choose rows by,
/// and cheaper than any store.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and an Option would be in the way"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        // The high half of the product: without the division of a remainder, and evenly enough for
        // any number of rows.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// The numbers below `end`, each once, in any order.
    pub fn permutation(&mut self, end: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..end).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.below(at as u64 + 1) as usize);
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_right_for_its_row_alone() {
        for bytes in [16, 17, 23, 24, 200] {
            let row = Row::new(7, 3, bytes);
            assert_eq!(row.value.len(), bytes);
            assert_eq!(check(7, &row.value, bytes).unwrap(), 3);
            assert!(check(8, &row.value, bytes).is_err());
            assert!(check(7, &row.value[1..], bytes).is_err());
            for at in 0..bytes {
                let mut wrong = row.value.clone();
                wrong[at] ^= 1;
                assert!(check(7, &wrong, bytes).is_err(), "byte {at} of {bytes}");
            }
        }
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut numbers = Random::new(1).permutation(1000);
        assert_ne!(numbers, (0..1000).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_stay_below_the_end() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert!((0..10).all(|number| drawn.contains(&number)));
        assert!(drawn.iter().all(|number| *number < 10));
    }
}
