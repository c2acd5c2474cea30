//! Why bytes are no key or value of a type.

use std::borrow::Cow;
use std::fmt;

/// Why a key or a value can't be decoded, or a value not encoded. The table that it is of makes an
/// [`Error::Codec`](crate::Error::Codec) of it, which names table and key.
///
/// ```
/// use tidepool::typed::CodecError;
///
/// assert_eq!(CodecError::new("it is cut short").to_string(), "it is cut short");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecError(Cow<'static, str>);

impl CodecError {
    /// An error with this reason.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }

    pub(super) fn cut_short() -> Self {
        Self::new("it is cut short")
    }

    pub(super) fn left_over(bytes: usize) -> Self {
        Self::new(format!("{bytes} bytes are left over"))
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

impl From<std::str::Utf8Error> for CodecError {
    fn from(error: std::str::Utf8Error) -> Self {
        Self::new(format!("it is not UTF-8: {error}"))
    }
}

/// Takes `n` bytes off the front.
pub(super) fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], CodecError> {
    let (front, rest) = bytes.split_at_checked(n).ok_or_else(CodecError::cut_short)?;
    *bytes = rest;
    Ok(front)
}

/// The same, of a length that is known when it is compiled.
pub(super) fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], CodecError> {
    let (front, rest) = bytes.split_first_chunk().ok_or_else(CodecError::cut_short)?;
    *bytes = rest;
    Ok(*front)
}
