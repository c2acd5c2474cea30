//! Keys as bytes that compare as the keys do.
//!
//! # Invariants
//! - *Order*: of two keys of a type, the lesser one has the lesser bytes.
//! - *No encoding is the beginning of another one* of the same type. So encodings can be put one
//!   behind the other: the bytes of a tuple are those of its elements, and compare as the tuple
//!   does. The bytes of its first elements are the beginning of all keys that begin with these.
//!
//! # Encodings
//! ```text
//! u8 … u128        big-endian
//! i8 … i128        the same, with the sign bit inverted
//! f32, f64         the bits, all inverted if the sign bit is set, else the sign bit alone:
//!                  the order of `total_cmp`
//! bool             0 or 1
//! char             its number, as a u32
//! String, Vec<u8>  the bytes, with 0 as 1 1 and 1 as 1 2; then 0
//! [T; N]           its elements
//! Option<T>        0, or 1 and the value
//! Reverse<T>       the bytes of the value, inverted
//! tuples           their elements
//! ```
//! They are part of the format on disk (`docs/internals/format/typed.md`).

use super::codec_error::{CodecError, take_array};
use std::cmp::Reverse;

/// A whole key, or what is encoded as one: a `str` for a `String`, `("Oslo", 7)` for a
/// `(String, u64)`.
///
/// A program's type of keys implements this for itself, and [`KeyCodec`]:
///
/// ```
/// use tidepool::typed::{CodecError, EncodeKey, KeyCodec};
///
/// struct UserId(u64);
///
/// impl EncodeKey for UserId {
///     fn encode_key(&self, bytes: &mut Vec<u8>) {
///         self.0.encode_key(bytes);
///     }
/// }
///
/// impl KeyCodec for UserId {
///     fn type_name() -> String {
///         "user id".into()
///     }
///     fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
///         Ok(UserId(u64::decode_key(bytes)?))
///     }
/// }
///
/// let mut bytes = Vec::new();
/// UserId(7).encode_key(&mut bytes);
/// assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 7]);
/// assert_eq!(UserId::decode_key(&mut &*bytes)?.0, 7);
/// # Ok::<(), CodecError>(())
/// ```
pub trait EncodeKey<K: ?Sized = Self> {
    /// Appends the key's bytes. Of two keys the lesser one must have the lesser bytes, and no key's
    /// bytes may be the beginning of another's.
    fn encode_key(&self, bytes: &mut Vec<u8>);
}

/// A type of keys: see [`EncodeKey`] for an example. The types of the standard library that are
/// keys: integers, floats (in the order of `total_cmp`), `bool`, `char`, `String`, `Vec<u8>`,
/// arrays, `Option`, [`Reverse`], and tuples of up to six elements.
pub trait KeyCodec: EncodeKey + Sized + 'static {
    /// Names the encoding. A table keeps the name, and refuses to be opened with another one.
    fn type_name() -> String;

    /// Takes a key off the front of `bytes`, and leaves what is behind it.
    ///
    /// # Errors
    /// That the bytes do not begin with a key. They may be any: this must not panic.
    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError>;
}

/// Where a range of keys begins or ends: a whole key, or the first elements of a tuple. As a bound
/// that belongs to the range, the latter means all keys that begin with these elements.
pub trait KeyBound<K> {
    /// Appends the bytes.
    fn encode_bound(&self, bytes: &mut Vec<u8>);
}

impl<K, Q: EncodeKey<K> + ?Sized> KeyBound<K> for Q {
    fn encode_bound(&self, bytes: &mut Vec<u8>) {
        self.encode_key(bytes);
    }
}

/// How keys begin: the first elements of a tuple, or the first bytes of a string. Of a tuple with
/// as many elements as the key, the last one is such a prefix itself.
pub trait KeyPrefix<K> {
    /// Appends the bytes.
    fn encode_prefix(&self, bytes: &mut Vec<u8>);
}

/// The bytes of a whole key.
pub(super) fn key_bytes<K, Q: EncodeKey<K> + ?Sized>(key: &Q) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

/// Decodes a key that is all of `bytes`.
pub(super) fn decode_whole<K: KeyCodec>(mut bytes: &[u8]) -> Result<K, CodecError> {
    let key = K::decode_key(&mut bytes)?;
    match bytes.len() {
        0 => Ok(key),
        left => Err(CodecError::left_over(left)),
    }
}

/// Integers: `mask` is what makes the order of signed ones that of unsigned ones.
macro_rules! integer_keys {
    ($($integer:ident as $unsigned:ident, $mask:expr;)*) => {$(
        impl EncodeKey for $integer {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&(*self as $unsigned ^ $mask).to_be_bytes());
            }
        }

        impl KeyCodec for $integer {
            fn type_name() -> String {
                stringify!($integer).into()
            }

            fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                Ok(($unsigned::from_be_bytes(take_array(bytes)?) ^ $mask) as $integer)
            }
        }
    )*};
}

integer_keys! {
    u8 as u8, 0;
    u16 as u16, 0;
    u32 as u32, 0;
    u64 as u64, 0;
    u128 as u128, 0;
    i8 as u8, 1 << 7;
    i16 as u16, 1 << 15;
    i32 as u32, 1 << 31;
    i64 as u64, 1 << 63;
    i128 as u128, 1 << 127;
}

macro_rules! float_keys {
    ($($float:ident as $unsigned:ident, $sign:expr;)*) => {$(
        impl EncodeKey for $float {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                let bits = self.to_bits();
                let ordered = if bits & $sign == 0 { bits | $sign } else { !bits };
                bytes.extend_from_slice(&ordered.to_be_bytes());
            }
        }

        impl KeyCodec for $float {
            fn type_name() -> String {
                stringify!($float).into()
            }

            fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                let ordered = $unsigned::from_be_bytes(take_array(bytes)?);
                let bits = if ordered & $sign == 0 { !ordered } else { ordered & !$sign };
                Ok($float::from_bits(bits))
            }
        }
    )*};
}

float_keys! {
    f32 as u32, 1 << 31;
    f64 as u64, 1 << 63;
}

impl EncodeKey for bool {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl KeyCodec for bool {
    fn type_name() -> String {
        "bool".into()
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        match take_array(bytes)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(CodecError::new(format!("{other} is no bool"))),
        }
    }
}

impl EncodeKey for char {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        u32::from(*self).encode_key(bytes);
    }
}

impl KeyCodec for char {
    fn type_name() -> String {
        "char".into()
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        let number = u32::decode_key(bytes)?;
        char::from_u32(number).ok_or_else(|| CodecError::new(format!("{number} is no char")))
    }
}

/// The end of a string.
const END: u8 = 0;
/// Before a byte that stands for [`END`] or for this one: the byte and one.
const ESCAPE: u8 = 1;

/// Appends the bytes of a string without its end.
fn escape(string: &[u8], bytes: &mut Vec<u8>) {
    bytes.reserve(string.len() + 1);
    for &byte in string {
        match byte {
            END | ESCAPE => bytes.extend_from_slice(&[ESCAPE, byte + 1]),
            _ => bytes.push(byte),
        }
    }
}

/// Takes a string and its end off the front.
fn unescape(bytes: &mut &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut string = Vec::new();
    loop {
        let special = bytes.iter().position(|byte| matches!(*byte, END | ESCAPE));
        let special = special.ok_or_else(CodecError::cut_short)?;
        string.extend_from_slice(&bytes[..special]);
        let is_end = bytes[special] == END;
        *bytes = &bytes[special + 1..];
        if is_end {
            return Ok(string);
        }
        match take_array(bytes)? {
            [escaped @ 1..=2] => string.push(escaped - 1),
            [other] => return Err(CodecError::new(format!("a string has 1 {other} in it"))),
        }
    }
}

macro_rules! string_keys {
    ($owned:ty: $([$($generic:tt)*] $borrowed:ty),*) => {$(
        impl<$($generic)*> EncodeKey<$owned> for $borrowed {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                let string: &[u8] = self.as_ref();
                escape(string, bytes);
                bytes.push(END);
            }
        }

        impl<$($generic)*> KeyPrefix<$owned> for $borrowed {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                let string: &[u8] = self.as_ref();
                escape(string, bytes);
            }
        }
    )*};
}

string_keys!(String: [] String, [] str, [] &str);
string_keys! {
    Vec<u8>: [] Vec<u8>, [] [u8], [] &[u8], [const N: usize] [u8; N], [const N: usize] &[u8; N]
}

impl KeyCodec for String {
    fn type_name() -> String {
        "string".into()
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        String::from_utf8(unescape(bytes)?).map_err(|error| error.utf8_error().into())
    }
}

impl KeyCodec for Vec<u8> {
    fn type_name() -> String {
        "bytes".into()
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        unescape(bytes)
    }
}

impl<T, Q: EncodeKey<T>, const N: usize> EncodeKey<[T; N]> for [Q; N] {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        for element in self {
            element.encode_key(bytes);
        }
    }
}

impl<T: KeyCodec, const N: usize> KeyCodec for [T; N] {
    fn type_name() -> String {
        format!("[{}; {N}]", T::type_name())
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        let mut elements = Vec::with_capacity(N);
        for _ in 0..N {
            elements.push(T::decode_key(bytes)?);
        }
        elements.try_into().map_err(|_| CodecError::cut_short())
    }
}

impl<T, Q: EncodeKey<T>> EncodeKey<Option<T>> for Option<Q> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        self.is_some().encode_key(bytes);
        if let Some(value) = self {
            value.encode_key(bytes);
        }
    }
}

impl<T: KeyCodec> KeyCodec for Option<T> {
    fn type_name() -> String {
        format!("option<{}>", T::type_name())
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        Ok(match bool::decode_key(bytes)? {
            true => Some(T::decode_key(bytes)?),
            false => None,
        })
    }
}

impl<T, Q: EncodeKey<T>> EncodeKey<Reverse<T>> for Reverse<Q> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        self.0.encode_key(bytes);
        bytes[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl<T: KeyCodec> KeyCodec for Reverse<T> {
    fn type_name() -> String {
        format!("reverse<{}>", T::type_name())
    }

    fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let mut rest = &*inverted;
        let value = T::decode_key(&mut rest)?;
        *bytes = &bytes[inverted.len() - rest.len()..];
        Ok(Reverse(value))
    }
}

/// Tuples: of each element its type, the type of what is encoded, and its position.
macro_rules! tuple_keys {
    ($(($T:ident $Q:ident $at:tt)),+) => {
        impl<$($T, $Q: EncodeKey<$T>),+> EncodeKey<($($T,)+)> for ($($Q,)+) {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_key(bytes);)+
            }
        }

        impl<$($T: KeyCodec),+> KeyCodec for ($($T,)+) {
            fn type_name() -> String {
                format!("({})", [$($T::type_name()),+].join(", "))
            }

            fn decode_key(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                Ok(($($T::decode_key(bytes)?,)+))
            }
        }
    };
}

tuple_keys!((A P 0));
tuple_keys!((A P 0), (B Q 1));
tuple_keys!((A P 0), (B Q 1), (C R 2));
tuple_keys!((A P 0), (B Q 1), (C R 2), (D S 3));
tuple_keys!((A P 0), (B Q 1), (C R 2), (D S 3), (E T 4));
tuple_keys!((A P 0), (B Q 1), (C R 2), (D S 3), (E T 4), (F U 5));

/// The first elements of longer tuples.
macro_rules! first_elements {
    ($($(($T:ident $Q:ident $at:tt)),+ of $($Rest:ident)+;)*) => {$(
        impl<$($T, $Q: EncodeKey<$T>,)+ $($Rest),+> KeyBound<($($T,)+ $($Rest,)+)> for ($($Q,)+) {
            fn encode_bound(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_key(bytes);)+
            }
        }

        impl<$($T, $Q: EncodeKey<$T>,)+ $($Rest),+> KeyPrefix<($($T,)+ $($Rest,)+)> for ($($Q,)+) {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_key(bytes);)+
            }
        }
    )*};
}

first_elements! {
    (A P 0) of B;
    (A P 0) of B C;
    (A P 0) of B C D;
    (A P 0) of B C D E;
    (A P 0) of B C D E F;
    (A P 0), (B Q 1) of C;
    (A P 0), (B Q 1) of C D;
    (A P 0), (B Q 1) of C D E;
    (A P 0), (B Q 1) of C D E F;
    (A P 0), (B Q 1), (C R 2) of D;
    (A P 0), (B Q 1), (C R 2) of D E;
    (A P 0), (B Q 1), (C R 2) of D E F;
    (A P 0), (B Q 1), (C R 2), (D S 3) of E;
    (A P 0), (B Q 1), (C R 2), (D S 3) of E F;
    (A P 0), (B Q 1), (C R 2), (D S 3), (E T 4) of F;
}

/// Tuples whose last element is the beginning of one.
macro_rules! last_is_a_prefix {
    ($($(($T:ident $Q:ident $at:tt)),* then ($Last:ident $L:ident $end:tt);)*) => {$(
        impl<$($T, $Q: EncodeKey<$T>,)* $Last, $L: KeyPrefix<$Last>>
            KeyPrefix<($($T,)* $Last,)> for ($($Q,)* $L,)
        {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_key(bytes);)*
                self.$end.encode_prefix(bytes);
            }
        }
    )*};
}

last_is_a_prefix! {
    then (A P 0);
    (A P 0) then (B Q 1);
    (A P 0), (B Q 1) then (C R 2);
    (A P 0), (B Q 1), (C R 2) then (D S 3);
    (A P 0), (B Q 1), (C R 2), (D S 3) then (E T 4);
    (A P 0), (B Q 1), (C R 2), (D S 3), (E T 4) then (F U 5);
}
