//! A value on cache lines that it shares with no other.

use std::ops::Deref;

/// Keeps what threads of many cores write apart from what is beside it: a store to a cache line
/// takes the whole line away from the other cores. 128 bytes, since processors fetch lines in
/// pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
