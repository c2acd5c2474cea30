//! Values as bytes.
//!
//! ```text
//! u8 … i128, f32, f64   little-endian
//! bool                  0 or 1
//! String, Vec<u8>       the bytes
//! [u8; N]               the bytes
//! ()                    nothing
//! Option<T>             0, or 1 and the value
//! tuples                the elements as in keys (`key`): what is a key has an end
//! ```

use super::codec_error::{CodecError, take, take_array};
use super::key::KeyCodec;

/// A type of values, with its bytes. A program's type of values implements it:
///
/// ```
/// use tidepool::typed::{CodecError, ValueCodec};
///
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// impl ValueCodec for Point {
///     fn encode_value(&self, bytes: &mut Vec<u8>) {
///         self.x.encode_value(bytes);
///         self.y.encode_value(bytes);
///     }
///     fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
///         let (x, y) = bytes.split_at_checked(4).ok_or(CodecError::new("it has no y"))?;
///         Ok(Point { x: i32::decode_value(x)?, y: i32::decode_value(y)? })
///     }
/// }
///
/// let mut bytes = Vec::new();
/// Point { x: 1, y: -1 }.encode_value(&mut bytes);
/// assert_eq!(bytes, [1, 0, 0, 0, 255, 255, 255, 255]);
/// assert_eq!(Point::decode_value(&bytes)?.y, -1);
/// # Ok::<(), CodecError>(())
/// ```
///
/// [`Encoding`] is for types of other crates, and for all types that a library can encode.
pub trait ValueCodec: Sized {
    /// Appends the bytes.
    fn encode_value(&self, bytes: &mut Vec<u8>);

    /// The value that all of `bytes` is.
    ///
    /// # Errors
    /// That they are none. They may be any: this must not panic.
    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// A way to encode values of many types, as a [`TypedTable`](super::TypedTable)'s third parameter:
/// one implementation for all that a library encodes.
///
/// ```
/// use tidepool::typed::{CodecError, Encoding, TypedTable};
/// # use std::{fmt::Display, net::IpAddr, str::FromStr};
///
/// /// As text. With serde: `impl<V: Serialize + DeserializeOwned> Encoding<V> for Json`.
/// struct Text;
///
/// impl<V: Display + FromStr> Encoding<V> for Text {
///     fn encode(value: &V, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
///         bytes.extend_from_slice(value.to_string().as_bytes());
///         Ok(())
///     }
///     fn decode(bytes: &[u8]) -> Result<V, CodecError> {
///         std::str::from_utf8(bytes)?.parse().map_err(|_| CodecError::new("it does not parse"))
///     }
/// }
///
/// # let dir = tempfile::tempdir().unwrap();
/// let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
/// let hosts = TypedTable::<u64, IpAddr, Text>::open_or_create_encoded(&db, "hosts", &[])?;
/// db.write(|trx| hosts.put(trx, &1, &"::1".parse().unwrap()))?;
/// assert!(db.read(|trx| hosts.get(trx, &1))?.unwrap().is_loopback());
/// # db.close()?;
/// # Ok::<(), tidepool::Error>(())
/// ```
pub trait Encoding<V>: 'static {
    /// Appends the bytes of a value.
    ///
    /// # Errors
    /// That this value has none.
    fn encode(value: &V, bytes: &mut Vec<u8>) -> Result<(), CodecError>;

    /// The value that all of `bytes` is.
    ///
    /// # Errors
    /// That they are none. They may be any: this must not panic.
    fn decode(bytes: &[u8]) -> Result<V, CodecError>;
}

/// The encoding of types that have a [`ValueCodec`].
#[derive(Debug, Clone, Copy)]
pub struct OwnCodec;

impl<V: ValueCodec> Encoding<V> for OwnCodec {
    fn encode(value: &V, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        value.encode_value(bytes);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<V, CodecError> {
        V::decode_value(bytes)
    }
}

/// A type of values that can be read without a copy: what [`TypedRange::next_lent`] gives.
///
/// ```
/// use tidepool::typed::LendValue;
///
/// assert_eq!(String::lend_value(b"lent")?, "lent");
/// # Ok::<(), tidepool::typed::CodecError>(())
/// ```
///
/// [`TypedRange::next_lent`]: super::TypedRange::next_lent
pub trait LendValue: ValueCodec {
    /// The value, where the bytes are.
    type Lent<'a>;

    /// The value that all of `bytes` is.
    ///
    /// # Errors
    /// As [`ValueCodec::decode_value`].
    fn lend_value(bytes: &[u8]) -> Result<Self::Lent<'_>, CodecError>;
}

/// `bytes`, if they are as many as the value has.
fn all_of<const N: usize>(mut bytes: &[u8]) -> Result<[u8; N], CodecError> {
    let all = take_array(&mut bytes)?;
    match bytes.len() {
        0 => Ok(all),
        left => Err(CodecError::left_over(left)),
    }
}

macro_rules! number_values {
    ($($number:ident)*) => {$(
        impl ValueCodec for $number {
            fn encode_value(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
                Ok($number::from_le_bytes(all_of(bytes)?))
            }
        }
    )*};
}

number_values!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

impl ValueCodec for bool {
    fn encode_value(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        match all_of(bytes)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(CodecError::new(format!("{other} is no bool"))),
        }
    }
}

impl ValueCodec for () {
    fn encode_value(&self, _bytes: &mut Vec<u8>) {}

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        all_of::<0>(bytes).map(drop)
    }
}

impl ValueCodec for String {
    fn encode_value(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(std::str::from_utf8(bytes)?.into())
    }
}

impl LendValue for String {
    type Lent<'a> = &'a str;

    fn lend_value(bytes: &[u8]) -> Result<&str, CodecError> {
        Ok(std::str::from_utf8(bytes)?)
    }
}

impl ValueCodec for Vec<u8> {
    fn encode_value(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(bytes.into())
    }
}

impl LendValue for Vec<u8> {
    type Lent<'a> = &'a [u8];

    fn lend_value(bytes: &[u8]) -> Result<&[u8], CodecError> {
        Ok(bytes)
    }
}

impl<const N: usize> ValueCodec for [u8; N] {
    fn encode_value(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        all_of(bytes)
    }
}

impl<V: ValueCodec> ValueCodec for Option<V> {
    fn encode_value(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode_value(bytes);
        }
    }

    fn decode_value(mut bytes: &[u8]) -> Result<Self, CodecError> {
        let is_some = bool::decode_value(take(&mut bytes, 1)?)?;
        match (is_some, bytes.len()) {
            (true, _) => Ok(Some(V::decode_value(bytes)?)),
            (false, 0) => Ok(None),
            (false, left) => Err(CodecError::left_over(left)),
        }
    }
}

macro_rules! tuple_values {
    ($($T:ident $at:tt),+) => {
        impl<$($T: KeyCodec),+> ValueCodec for ($($T,)+) {
            fn encode_value(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_key(bytes);)+
            }

            fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
                super::key::decode_whole(bytes)
            }
        }
    };
}

tuple_values!(A 0);
tuple_values!(A 0, B 1);
tuple_values!(A 0, B 1, C 2);
tuple_values!(A 0, B 1, C 2, D 3);
tuple_values!(A 0, B 1, C 2, D 3, E 4);
tuple_values!(A 0, B 1, C 2, D 3, E 4, F 5);
