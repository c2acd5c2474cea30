//! The bytes of a column to a value, as SQL or CSV writes it.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::description::{Column, Kind};
use super::hex;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    /// Digits that SQL takes without quotes.
    Number(String),
    /// Text, of whatever character set.
    Text(String),
    /// Bytes, or text of a character set that this program does not know.
    Bytes {
        /// That character set.
        charset: Option<String>,
        /// All of them.
        bytes: Vec<u8>,
    },
}

impl Value {
    /// As an SQL statement has it.
    pub fn sql(&self, out: &mut String) {
        match self {
            Value::Null => out.push_str("NULL"),
            Value::Number(digits) => out.push_str(digits),
            // A client may change line ends, and refuse zeroes.
            Value::Text(text) if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') => {
                let _ = write!(out, "_utf8mb4 x'{}'", hex(text.as_bytes()));
            }
            Value::Text(text) => {
                out.push('\'');
                for c in text.chars() {
                    match c {
                        '\'' => out.push_str("''"),
                        '\\' => out.push_str("\\\\"),
                        c => out.push(c),
                    }
                }
                out.push('\'');
            }
            Value::Bytes { charset, bytes } => {
                // Writing to a string never fails.
                let _ = match charset {
                    Some(charset) => write!(out, "_{charset} x'{}'", hex(bytes)),
                    None => write!(out, "x'{}'", hex(bytes)),
                };
            }
        }
    }

    /// As a field of a CSV file: NULL and numbers as they are, text in quotes, bytes as 0x….
    pub fn csv(&self, out: &mut String) {
        match self {
            Value::Null => out.push_str("NULL"),
            Value::Number(digits) => out.push_str(digits),
            Value::Text(text) => {
                out.push('"');
                out.push_str(&text.replace('"', "\"\""));
                out.push('"');
            }
            Value::Bytes { bytes, .. } => {
                let _ = write!(out, "0x{}", hex(bytes));
            }
        }
    }
}

/// The value of a column.
///
/// # Errors
/// The bytes are not those of such a column.
pub fn value(column: &Column, bytes: Option<&[u8]>) -> Result<Value, String> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    let wrong = || format!("column '{}': {} bytes that are no value", column.name, bytes.len());
    decode(column, bytes).ok_or_else(wrong)
}

fn decode(column: &Column, bytes: &[u8]) -> Option<Value> {
    let number = |text: String| Some(Value::Number(text));
    let text = |text: String| Some(Value::Text(text));
    match column.kind {
        Kind::Integer if column.unsigned => number(unsigned(bytes)?.to_string()),
        Kind::Integer => number(signed(bytes)?.to_string()),
        // As a double, of which the server makes the same float again.
        Kind::Float => {
            number(format!("{:e}", f64::from(f32::from_le_bytes(bytes.try_into().ok()?))))
        }
        Kind::Double => number(format!("{:e}", f64::from_le_bytes(bytes.try_into().ok()?))),
        Kind::Decimal => number(decimal(bytes, column.precision.into(), column.decimals.into())?),
        Kind::Year => {
            let year = *bytes.first()?;
            number(if year == 0 { "0000".into() } else { (1900 + u32::from(year)).to_string() })
        }
        Kind::Date => text(date(unsigned(bytes)?)),
        Kind::Time => text(time(bytes, column.decimals)?),
        Kind::DateTime => text(datetime(bytes, column.decimals)?),
        Kind::Timestamp => text(timestamp(bytes, column.decimals)?),
        Kind::Enum => Some(match unsigned(bytes)? {
            0 => Value::Number("0".into()),
            at => Value::Text(column.values.get(at as usize - 1)?.clone()),
        }),
        Kind::Set => {
            let bits = unsigned(bytes)?;
            let is_set = |at: &usize| bits >> at & 1 == 1;
            let set: Vec<_> =
                (0..64).filter(is_set).map(|at| column.values.get(at)).collect::<Option<_>>()?;
            text(set.into_iter().map(String::as_str).collect::<Vec<_>>().join(","))
        }
        Kind::Inet4 => text(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string()),
        Kind::Inet6 => text(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        Kind::Uuid => text(uuid(bytes.try_into().ok()?)),
        Kind::Bit | Kind::Other => Some(Value::Bytes { charset: None, bytes: bytes.to_vec() }),
        Kind::Binary | Kind::Text if column.compressed => {
            Some(string(column, decompressed(bytes)?))
        }
        Kind::Binary | Kind::Text => Some(string(column, bytes.to_vec())),
    }
}

/// Whether each value of the column is [`Value::Bytes`], or NULL.
pub fn is_always_bytes(column: &Column) -> bool {
    match column.kind {
        Kind::Binary | Kind::Bit | Kind::Other => true,
        Kind::Text => {
            !["utf8mb4", "utf8mb3", "utf8", "ascii", "latin1"].contains(&column.charset.as_str())
        }
        _ => false,
    }
}

/// Text if the character set is known and the bytes are of it.
fn string(column: &Column, bytes: Vec<u8>) -> Value {
    if column.kind == Kind::Binary {
        return Value::Bytes { charset: None, bytes };
    }
    let text = match column.charset.as_str() {
        "utf8mb4" | "utf8mb3" | "utf8" => std::str::from_utf8(&bytes).ok().map(str::to_string),
        "ascii" if bytes.is_ascii() => std::str::from_utf8(&bytes).ok().map(str::to_string),
        "latin1" => Some(bytes.iter().map(|byte| latin1(*byte)).collect()),
        _ => None,
    };
    let charset = Some(column.charset.clone());
    text.map_or(Value::Bytes { charset, bytes }, Value::Text)
}

/// A character of the server's latin1, which is cp1252.
fn latin1(byte: u8) -> char {
    const HIGH: [u32; 32] = [
        0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160, 0x2039,
        0x152, 0x8d, 0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
        0x2dc, 0x2122, 0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178,
    ];
    match byte {
        0x80..=0x9f => char::from_u32(HIGH[usize::from(byte - 0x80)]).expect("all are characters"),
        _ => char::from(byte),
    }
}

fn unsigned(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8)
        .then(|| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn signed(bytes: &[u8]) -> Option<i64> {
    let unused = 64 - 8 * u32::try_from(bytes.len()).ok()?.clamp(1, 8);
    Some((unsigned(bytes)? << unused) as i64 >> unused)
}

/// A big-endian number.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// DECIMAL: groups of nine digits in four bytes, the sign bit inverted, all of it inverted if
/// negative.
fn decimal(bytes: &[u8], precision: usize, decimals: usize) -> Option<String> {
    const BYTES_OF_DIGITS: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
    let whole = precision.checked_sub(decimals)?;
    let mut bytes = bytes.to_vec();
    let first = bytes.first_mut()?;
    *first ^= 0x80;
    let is_negative = *first & 0x80 != 0;
    if is_negative {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let mut rest = bytes.as_slice();
    let mut take = |digits: usize, out: &mut String| -> Option<()> {
        let (group, behind) = rest.split_at_checked(BYTES_OF_DIGITS[digits])?;
        rest = behind;
        if digits > 0 {
            let _ = write!(out, "{:0digits$}", big_endian(group));
        }
        Some(())
    };
    let mut integer = String::new();
    take(whole % 9, &mut integer)?;
    for _ in 0..whole / 9 {
        take(9, &mut integer)?;
    }
    let mut fraction = String::new();
    for _ in 0..decimals / 9 {
        take(9, &mut fraction)?;
    }
    take(decimals % 9, &mut fraction)?;
    let integer = integer.trim_start_matches('0');
    let integer = if integer.is_empty() { "0" } else { integer };
    let sign = if is_negative { "-" } else { "" };
    Some(match fraction.is_empty() {
        true => format!("{sign}{integer}"),
        false => format!("{sign}{integer}.{fraction}"),
    })
}

fn date(packed: u64) -> String {
    format!("{:04}-{:02}-{:02}", packed >> 9, packed >> 5 & 15, packed & 31)
}

/// Bytes of the fraction of a time.
fn fraction_bytes(decimals: u8) -> usize {
    usize::from(decimals).div_ceil(2)
}

/// The fraction that is behind a time's seconds, with its point.
fn fraction(micros: u64, decimals: u8) -> String {
    match decimals {
        0 => String::new(),
        _ => format!(".{:06}", micros)[..=usize::from(decimals)].to_string(),
    }
}

/// Microseconds from the bytes of a fraction, which has two, four or six digits.
fn micros(bytes: &[u8]) -> u64 {
    big_endian(bytes) * [1_000_000, 10_000, 100, 1][bytes.len().min(3)]
}

fn time(bytes: &[u8], decimals: u8) -> Option<String> {
    let len = fraction_bytes(decimals);
    if bytes.len() != 3 + len {
        return None;
    }
    let number = big_endian(bytes) as i64 - (0x80_0000 << (8 * len));
    let magnitude = number.unsigned_abs();
    let (hms, part) = (magnitude >> (8 * len), magnitude & ((1 << (8 * len)) - 1));
    let micros = micros(&part.to_be_bytes()[8 - len..]);
    let sign = if number < 0 { "-" } else { "" };
    let (hours, minutes, seconds) = (hms >> 12 & 1023, hms >> 6 & 63, hms & 63);
    Some(format!("{sign}{hours:02}:{minutes:02}:{seconds:02}{}", fraction(micros, decimals)))
}

fn datetime(bytes: &[u8], decimals: u8) -> Option<String> {
    let (whole, part) = bytes.split_at_checked(5)?;
    let number = big_endian(whole).checked_sub(0x80_0000_0000)?;
    let (ymd, hms) = (number >> 17, number & 0x1_ffff);
    let (months, day) = (ymd >> 5, ymd & 31);
    Some(format!(
        "{:04}-{:02}-{day:02} {:02}:{:02}:{:02}{}",
        months / 13,
        months % 13,
        hms >> 12,
        hms >> 6 & 63,
        hms & 63,
        fraction(micros(part), decimals)
    ))
}

/// In UTC.
fn timestamp(bytes: &[u8], decimals: u8) -> Option<String> {
    let (whole, part) = bytes.split_at_checked(4)?;
    let (seconds, micros) = (big_endian(whole), micros(part));
    let fraction = fraction(micros, decimals);
    if seconds == 0 && micros == 0 {
        return Some(format!("0000-00-00 00:00:00{fraction}"));
    }
    let (year, month, day) = civil_date(seconds / 86_400);
    let second = seconds % 86_400;
    Some(format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}{fraction}",
        second / 3600,
        second / 60 % 60,
        second % 60
    ))
}

/// Year, month and day of a day since 1970.
fn civil_date(mut day: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    (year, month, day + 1)
}

/// UUIDs of versions 1 to 5 are stored with their groups in the opposite order, so that those of
/// one time are together.
fn uuid(stored: [u8; 16]) -> String {
    let is_reversed = stored[6] & 0x80 != 0 && (1..0x60).contains(&stored[8]);
    let mut bytes = stored;
    if is_reversed {
        let groups = [(12, 4), (10, 2), (8, 2), (6, 2), (0, 6)];
        let all = groups.iter().flat_map(|&(from, len)| &stored[from..from + len]);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    }
    let text = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// A compressed column: a byte that says how, the length with the highest byte first, and the rest.
fn decompressed(bytes: &[u8]) -> Option<Vec<u8>> {
    const ZLIB: u8 = 8;
    let Some((&head, rest)) = bytes.split_first() else { return Some(Vec::new()) };
    if head >> 4 == 0 {
        return Some(rest.to_vec());
    }
    let (len, packed) = rest.split_at_checked(usize::from(head & 7))?;
    if head >> 4 != ZLIB {
        return None;
    }
    let len = big_endian(len);
    let mut out = Vec::new();
    let read = match head & 8 {
        0 => flate2::read::ZlibDecoder::new(packed).take(len + 1).read_to_end(&mut out),
        _ => flate2::read::DeflateDecoder::new(packed).take(len + 1).read_to_end(&mut out),
    };
    (read.ok()? as u64 == len).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(kind: Kind) -> Column {
        Column { values: vec!["a".into(), "b".into()], ..Column::of_kind(kind) }
    }

    fn sql(column: &Column, bytes: &[u8]) -> String {
        let mut out = String::new();
        value(column, Some(bytes)).unwrap().sql(&mut out);
        out
    }

    #[test]
    fn numbers() {
        assert_eq!(sql(&column(Kind::Integer), &[0xff, 0xff, 0x7f]), "8388607");
        assert_eq!(sql(&column(Kind::Integer), &[0, 0, 0x80]), "-8388608");
        assert_eq!(
            sql(&Column { unsigned: true, ..column(Kind::Integer) }, &[0xff; 8]),
            u64::MAX.to_string()
        );
        assert_eq!(sql(&column(Kind::Double), &(-0.0f64).to_le_bytes()), "-0e0");
        assert_eq!(sql(&column(Kind::Float), &0.1f32.to_le_bytes()), "1.0000000149011612e-1");
        let decimal = Column { precision: 14, decimals: 4, ..column(Kind::Decimal) };
        let stored = [0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2];
        assert_eq!(sql(&decimal, &stored), "1234567890.1234");
        let negative: Vec<u8> = stored.iter().map(|byte| !byte).collect();
        assert_eq!(sql(&decimal, &negative), "-1234567890.1234");
        assert_eq!(sql(&column(Kind::Year), &[0]), "0000");
        assert!(value(&column(Kind::Double), Some(&[1])).is_err());
    }

    #[test]
    fn times() {
        assert_eq!(sql(&column(Kind::Timestamp), &[0; 4]), "'0000-00-00 00:00:00'");
        let micros = Column { decimals: 6, ..column(Kind::Timestamp) };
        let stored = [0x7f, 0xff, 0xff, 0xff, 0x0f, 0x42, 0x3f];
        assert_eq!(sql(&micros, &stored), "'2038-01-19 03:14:07.999999'");
        assert_eq!(
            sql(&column(Kind::Timestamp), &951_782_400u32.to_be_bytes()),
            "'2000-02-29 00:00:00'"
        );
        let tenths = Column { decimals: 1, ..column(Kind::Time) };
        // −00:00:00.5
        assert_eq!(sql(&tenths, &[0x7f, 0xff, 0xff, 0xce]), "'-00:00:00.5'");
    }

    #[test]
    fn text_is_quoted_so_that_a_client_changes_nothing() {
        assert_eq!(sql(&column(Kind::Text), "it's \\ \n".as_bytes()), "'it''s \\\\ \n'");
        assert_eq!(sql(&column(Kind::Text), b"a\0"), "_utf8mb4 x'6100'");
        assert_eq!(sql(&column(Kind::Text), b"\xff"), "_utf8mb4 x'ff'");
        assert_eq!(
            sql(&Column { charset: "latin1".into(), ..column(Kind::Text) }, b"\x80\xe4"),
            "'€ä'"
        );
        assert_eq!(
            sql(&Column { charset: "koi8r".into(), ..column(Kind::Text) }, b"a"),
            "_koi8r x'61'"
        );
        assert_eq!(sql(&column(Kind::Set), &[3]), "'a,b'");
        assert_eq!(sql(&column(Kind::Enum), &[0]), "0");
        let mut out = String::new();
        Value::Text("a \"b\"".into()).csv(&mut out);
        assert_eq!(out, "\"a \"\"b\"\"\"");
    }
}
