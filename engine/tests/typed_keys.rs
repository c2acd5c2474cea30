//! Keys of the usual types: the order of their bytes is their order, and bytes come back as keys.

use std::cmp::{Ordering, Reverse};
use std::fmt::Debug;

use proptest::prelude::*;
use tidepool::typed::{CodecError, KeyBound, KeyCodec, KeyPrefix, ValueCodec};

fn encoded<K: KeyCodec>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

/// Of two keys in the order `expected`: order, round trip, no encoding begins with another one,
/// what is behind a key is left, and a key that is cut short is refused.
fn check<K: KeyCodec + Debug>(a: &K, b: &K, expected: Ordering) -> Result<(), TestCaseError> {
    let (left, right) = (encoded(a), encoded(b));
    prop_assert_eq!(left.cmp(&right), expected);
    prop_assert_eq!(left.starts_with(&right), expected == Ordering::Equal);
    for (key, bytes) in [(a, &left), (b, &right)] {
        let followed = [&**bytes, b"\0\x01\xff"].concat();
        let mut rest = &*followed;
        let decoded = K::decode_key(&mut rest).unwrap();
        prop_assert_eq!(rest, b"\0\x01\xff");
        prop_assert_eq!(encoded(&decoded), bytes.clone(), "{:?}", key);
        for len in 0..bytes.len() {
            prop_assert!(K::decode_key(&mut &bytes[..len]).is_err());
        }
    }
    Ok(())
}

/// The same of keys whose order is that of their type.
fn check_ord<K: KeyCodec + Debug + Ord>(a: &K, b: &K) -> Result<(), TestCaseError> {
    check(a, b, a.cmp(b))?;
    prop_assert_eq!(&K::decode_key(&mut &*encoded(a)).unwrap(), a);
    // A key is a bound of itself.
    let mut bound = Vec::new();
    KeyBound::<K>::encode_bound(a, &mut bound);
    prop_assert_eq!(bound, encoded(a));
    Ok(())
}

/// Strings in which the bytes that have a meaning are frequent.
fn text() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec!['\0', '\u{1}', '\u{2}', 'a', 'é', '\u{10ffff}']);
    prop::collection::vec(prop_oneof![4 => special, 1 => any::<char>()], 0..6)
        .prop_map(String::from_iter)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => 0..=2u8, 1 => Just(255), 1 => any::<u8>()], 0..6)
}

macro_rules! integers {
    ($($test:ident $integer:ident)*) => {
        proptest! {$(
            #[test]
            fn $test(a: $integer, b: $integer) {
                check_ord(&a, &b)?;
                for edge in [$integer::MIN, $integer::MAX, 0, 1] {
                    check_ord(&a, &edge)?;
                    check_ord(&Reverse(a), &Reverse(edge))?;
                }
            }
        )*}
    };
}

integers! {
    u8s u8 u16s u16 u32s u32 u64s u64 u128s u128
    i8s i8 i16s i16 i32s i32 i64s i64 i128s i128
}

proptest! {
    #[test]
    fn floats_are_in_total_order(a: u64, b: u64) {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        let floats = [a, b, 0.0, -0.0, f64::INFINITY, f64::NAN, -1.5];
        for (a, b) in floats.iter().flat_map(|a| floats.iter().map(move |b| (a, b))) {
            check(a, b, a.total_cmp(b))?;
            prop_assert_eq!(f64::decode_key(&mut &*encoded(a)).unwrap().to_bits(), a.to_bits());
            let (a, b) = (*a as f32, *b as f32);
            check(&a, &b, a.total_cmp(&b))?;
        }
    }

    #[test]
    fn strings(a in text(), b in text()) {
        check_ord(&a, &b)?;
        check_ord(&Reverse(a), &Reverse(b))?;
    }

    #[test]
    fn byte_strings(a in bytes(), b in bytes()) {
        check_ord(&a, &b)?;
        check_ord(&Some(a), &Some(b))?;
    }

    #[test]
    fn options(a: Option<i32>, b: Option<i32>) {
        check_ord(&a, &b)?;
    }

    #[test]
    fn bools_and_chars(a: bool, b: bool, c: char, d: char) {
        check_ord(&a, &b)?;
        check_ord(&c, &d)?;
    }

    #[test]
    fn arrays(a: [i16; 3], b: [i16; 3], c in [text(), text()], d in [text(), text()]) {
        check_ord(&a, &b)?;
        check_ord(&c, &d)?;
    }

    #[test]
    fn tuples(a in (text(), bytes(), any::<i8>()), b in (text(), bytes(), any::<i8>())) {
        check_ord(&a, &b)?;
        check_ord(&(a.0.clone(),), &(b.0.clone(),))?;
        check_ord(&(a.0.clone(), a.2), &(b.0.clone(), b.2))?;
        check_ord(&(Reverse(a.0.clone()), a.1.clone()), &(Reverse(b.0.clone()), b.1.clone()))?;
        check_ord(&((a.0.clone(), a.2), a.1.clone()), &((b.0.clone(), b.2), b.1.clone()))?;
    }

    #[test]
    fn long_tuples(
        a in (text(), any::<bool>(), any::<Option<u8>>(), text(), any::<u16>(), bytes()),
        b in (text(), any::<bool>(), any::<Option<u8>>(), text(), any::<u16>(), bytes()),
        same in 0..6usize,
    ) {
        // Often the first elements are equal.
        let mut b = b;
        if same > 0 { b.0 = a.0.clone(); }
        if same > 1 { b.1 = a.1; }
        if same > 2 { b.2 = a.2; }
        if same > 3 { b.3 = a.3.clone(); }
        if same > 4 { b.4 = a.4; }
        check_ord(&a, &b)?;
        let short = |t: &(String, bool, Option<u8>, String, u16, Vec<u8>)| {
            (t.0.clone(), t.1, t.2, t.3.clone(), t.4)
        };
        check_ord(&short(&a), &short(&b))?;
        check_ord(&(a.0, a.1, a.2, a.3), &(b.0, b.1, b.2, b.3))?;
    }

    #[test]
    fn first_elements_are_how_tuples_begin(
        key in (text(), bytes(), any::<u32>()),
        other in text(),
    ) {
        let bytes = encoded(&key);
        let mut first = Vec::new();
        KeyBound::<(String, Vec<u8>, u32)>::encode_bound(&(&*key.0, &*key.1), &mut first);
        prop_assert!(bytes.starts_with(&first));
        let mut one = Vec::new();
        KeyPrefix::<(String, Vec<u8>, u32)>::encode_prefix(&(&*other,), &mut one);
        prop_assert_eq!(bytes.starts_with(&one), key.0 == other);
    }

    #[test]
    fn a_prefix_is_how_strings_begin(key in (any::<u8>(), text()), prefix in text()) {
        let mut bytes = Vec::new();
        KeyPrefix::<(u8, String)>::encode_prefix(&(key.0, &*prefix), &mut bytes);
        prop_assert_eq!(encoded(&key).starts_with(&bytes), key.1.starts_with(&prefix));
        let mut bytes = Vec::new();
        KeyPrefix::<String>::encode_prefix(&*prefix, &mut bytes);
        prop_assert_eq!(encoded(&key.1).starts_with(&bytes), key.1.starts_with(&prefix));
    }

    /// No panic, and what is decoded has these bytes.
    #[test]
    fn any_bytes_are_a_key_or_an_error(bytes in bytes()) {
        fn decode<K: KeyCodec>(bytes: &[u8]) {
            let mut rest = bytes;
            if let Ok(key) = K::decode_key(&mut rest) {
                assert_eq!(encoded(&key), bytes[..bytes.len() - rest.len()]);
            }
        }
        decode::<u16>(&bytes);
        decode::<f32>(&bytes);
        decode::<bool>(&bytes);
        decode::<char>(&bytes);
        decode::<String>(&bytes);
        decode::<Vec<u8>>(&bytes);
        decode::<[i8; 2]>(&bytes);
        decode::<Option<String>>(&bytes);
        decode::<Reverse<(bool, String)>>(&bytes);
        decode::<(String, u8, Option<bool>)>(&bytes);
    }

    #[test]
    fn values_come_back(number: i64, float: f64, text in text(), bytes in bytes(), flag: bool) {
        fn check<V: ValueCodec + PartialEq + Debug>(value: V) -> Result<(), TestCaseError> {
            let mut bytes = Vec::new();
            value.encode_value(&mut bytes);
            prop_assert_eq!(V::decode_value(&bytes).unwrap(), value);
            Ok(())
        }
        check(number)?;
        check(float.to_bits())?;
        check(flag)?;
        check(())?;
        check([number.to_le_bytes(), number.to_le_bytes()].concat())?;
        check(number.to_le_bytes())?;
        check((text.clone(), flag, Reverse(bytes.clone())))?;
        check(Some(text.clone()))?;
        check(None::<String>)?;
        check(text)?;
        check(bytes)?;
    }
}

#[test]
fn values_that_are_cut_short_or_too_long_are_refused() {
    assert_eq!(u32::decode_value(&[1, 2]), Err(CodecError::new("it is cut short")));
    assert_eq!(u8::decode_value(&[1, 2]), Err(CodecError::new("1 bytes are left over")));
    assert_eq!(bool::decode_value(&[2]), Err(CodecError::new("2 is no bool")));
    assert!(Option::<u8>::decode_value(&[0, 1]).is_err());
    assert!(Option::<u8>::decode_value(&[]).is_err());
    assert!(<(String, u8)>::decode_value(b"a\0").is_err());
    assert!(String::decode_value(&[255]).unwrap_err().to_string().starts_with("it is not UTF-8"));
}
