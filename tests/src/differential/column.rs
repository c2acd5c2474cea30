//! Columns: every type, the values at its edges, and how its values are compared in a query.

use super::dice::Dice;
use super::text::{self, COLLATIONS, Collation};

/// A family of types, as far as generation cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TINYINT … BIGINT.
    Integer {
        /// 8, 16, 24, 32, 64.
        bits: u32,
        unsigned: bool,
    },
    /// DECIMAL(digits, scale).
    Decimal {
        digits: usize,
        /// Of these, behind the point.
        scale: usize,
        unsigned: bool,
    },
    /// FLOAT, DOUBLE.
    Float {
        double: bool,
    },
    Bit {
        /// 1 … 64.
        bits: u32,
    },
    Date,
    /// TIME(fraction).
    Time,
    /// DATETIME(fraction).
    DateTime,
    /// TIMESTAMP(fraction).
    Timestamp,
    Year,
    /// CHAR, VARCHAR, the TEXT family.
    Text {
        collation: Collation,
        /// In characters.
        length: usize,
        /// TINYTEXT … LONGTEXT.
        blob: bool,
    },
    /// BINARY, VARBINARY, the BLOB family.
    Binary {
        /// In bytes.
        length: usize,
        /// TINYBLOB … LONGBLOB.
        blob: bool,
    },
    Enum {
        /// The members' literals.
        members: Vec<String>,
    },
    Set,
    Json,
    Uuid,
    Inet6,
    Inet4,
    /// GEOMETRY and its subtypes.
    Geometry,
}

/// How a generated column comes to its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    pub expression: String,
    /// STORED, or VIRTUAL.
    pub stored: bool,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// The family.
    pub kind: Kind,
    /// The type, with its attributes that belong to the type (`INT UNSIGNED`, `CHAR(5) COLLATE …`).
    pub sql_type: String,
    /// NULL is allowed.
    pub nullable: bool,
    /// What follows the type and NOT NULL: DEFAULT, CHECK, INVISIBLE.
    pub attributes: String,
    /// A generated column.
    pub generated: Option<Generated>,
    pub auto_increment: bool,
    /// Literals that the column takes as they are, without a warning.
    pub pool: Vec<String>,
}

const INTEGER_TYPES: [(&str, u32); 5] =
    [("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)];
const BLOB_LENGTHS: [(&str, usize); 4] =
    [("TINY", 255), ("", 65535), ("MEDIUM", 16_777_215), ("LONG", 4_294_967_295)];

impl Column {
    /// A column of any type.
    pub fn random(dice: &mut Dice, name: String) -> Column {
        type Make = fn(&mut Dice) -> (Kind, String, Vec<String>);
        let make: Make = dice.weighted(&[
            (20, integer as Make),
            (6, decimal),
            (5, float),
            (4, bit),
            (3, date),
            (4, time),
            (5, date_time),
            (4, timestamp),
            (2, year),
            (26, character),
            (8, text_blob),
            (8, binary),
            (6, binary_blob),
            (4, enumeration),
            (3, set),
            (2, json),
            (3, uuid),
            (3, inet),
            (2, geometry),
        ]);
        let (kind, sql_type, pool) = make(dice);
        let nullable = dice.percent(65);
        let mut column = Column {
            name,
            kind,
            sql_type,
            nullable,
            attributes: String::new(),
            generated: None,
            auto_increment: false,
            pool,
        };
        column.attributes = column.random_attributes(dice);
        column
    }

    /// An integer column of at least `bits` bits.
    pub fn integer_of(name: &str, sql_type: &str, bits: u32) -> Column {
        let unsigned = sql_type.contains("UNSIGNED");
        Column {
            name: name.into(),
            kind: Kind::Integer { bits, unsigned },
            sql_type: sql_type.into(),
            nullable: false,
            attributes: String::new(),
            generated: None,
            auto_increment: false,
            pool: (1..=40).map(|number: u32| number.to_string()).collect(),
        }
    }

    fn random_attributes(&self, dice: &mut Dice) -> String {
        let mut attributes = String::new();
        let has_default = dice.percent(45);
        if has_default {
            // BLOB-like and geometric defaults must be expressions.
            let value = dice.pick(&self.pool);
            attributes = match self.kind {
                Kind::Geometry => String::new(),
                _ if value.contains('x') || value.contains("REPEAT") => {
                    format!(" DEFAULT ({value})")
                }
                _ => format!(" DEFAULT {value}"),
            };
        }
        if matches!(self.kind, Kind::Timestamp | Kind::DateTime) && !has_default && dice.percent(30)
        {
            let fraction = self.sql_type.find('(').map_or("", |at| &self.sql_type[at..]);
            attributes = format!(
                " DEFAULT CURRENT_TIMESTAMP{fraction} ON UPDATE CURRENT_TIMESTAMP{fraction}"
            );
        }
        if let Kind::Integer { bits, .. } = self.kind
            && bits >= 16
            && dice.percent(8)
        {
            attributes.push_str(&format!(" CHECK ({} <> 42)", self.name));
        }
        attributes
    }

    /// The definition in CREATE TABLE.
    pub fn definition(&self) -> String {
        let Column { name, sql_type, attributes, .. } = self;
        if let Some(Generated { expression, stored }) = &self.generated {
            let storage = if *stored { "STORED" } else { "VIRTUAL" };
            return format!("{name} {sql_type} GENERATED ALWAYS AS ({expression}) {storage}");
        }
        let null = match (self.nullable, &self.kind) {
            (false, _) => " NOT NULL",
            // Without it a TIMESTAMP may become NOT NULL.
            (true, Kind::Timestamp) => " NULL",
            (true, _) => "",
        };
        let auto_increment = if self.auto_increment { " AUTO_INCREMENT" } else { "" };
        format!("{name} {sql_type}{null}{auto_increment}{attributes}")
    }

    /// A literal to write: mostly from the pool, sometimes NULL, rarely one that does not fit.
    pub fn value(&self, dice: &mut Dice) -> String {
        // What becomes of NULL for a NOT NULL geometry is the engine's affair: there is no empty
        // geometry.
        let not_null = if self.kind == Kind::Geometry { 0 } else { 1 };
        if dice.percent(if self.nullable { 12 } else { not_null }) {
            return "NULL".into();
        }
        if dice.percent(2) {
            return self.odd_value(dice);
        }
        dice.pick(&self.pool).clone()
    }

    /// A literal that may be out of range, too long, or of another type.
    fn odd_value(&self, dice: &mut Dice) -> String {
        let odd = match self.kind {
            Kind::Integer { .. } | Kind::Decimal { .. } | Kind::Year => {
                &["-99999999999999999999", "99999999999999999999", "1.5", "'1x'", "''"][..]
            }
            Kind::Float { .. } => &["1e308", "'-1e400'", "'x'"][..],
            Kind::Bit { .. } => &["18446744073709551615", "-1", "'abc'"][..],
            Kind::Date | Kind::Time | Kind::DateTime | Kind::Timestamp => {
                &["'2023-02-30'", "'x'", "'99:99:99'", "0", "'10000-01-01 00:00:00'"][..]
            }
            Kind::Text { .. } => return text::any(dice),
            Kind::Binary { .. } => &["x'00'", "'much longer than most'", "''"][..],
            Kind::Enum { .. } | Kind::Set => &["'none of them'", "''", "1", "999"][..],
            Kind::Json => &["'{'", "''", "'[1, 2'"][..],
            Kind::Uuid | Kind::Inet6 | Kind::Inet4 => &["'zz'", "''", "x'00'"][..],
            Kind::Geometry => &["'no geometry'", "x'00'"][..],
        };
        (*dice.pick(odd)).to_string()
    }

    /// A literal to compare with; it never causes a warning.
    pub fn constant(&self, dice: &mut Dice) -> String {
        dice.pick(&self.pool).clone()
    }

    /// Whether queries compare its values.
    pub fn is_comparable(&self) -> bool {
        self.kind != Kind::Geometry
    }

    /// Whether equal values may look different: which of them GROUP BY shows is open.
    pub fn has_faces(&self) -> bool {
        matches!(
            self.kind,
            Kind::Text { .. } | Kind::Float { .. } | Kind::Json | Kind::Enum { .. } | Kind::Set
        )
    }

    /// An expression with the same value for, and only for, values that sort alike.
    pub fn rank(&self) -> String {
        let name = &self.name;
        match self.kind {
            Kind::Text { .. } | Kind::Json => format!("HEX(WEIGHT_STRING(RTRIM({name})))"),
            // Minus zero becomes zero.
            Kind::Float { .. } => format!("{name} + 0e0"),
            Kind::Binary { .. } | Kind::Bit { .. } => format!("HEX({name})"),
            _ => name.clone(),
        }
    }

    /// An expression that differs for values that differ at all.
    pub fn identity(&self) -> String {
        let name = &self.name;
        match self.kind {
            Kind::Text { blob: true, .. } | Kind::Binary { blob: true, .. } => {
                format!("MD5({name})")
            }
            Kind::Text { .. }
            | Kind::Binary { .. }
            | Kind::Bit { .. }
            | Kind::Enum { .. }
            | Kind::Set
            | Kind::Json
            | Kind::Geometry => format!("HEX({name})"),
            _ => format!("CONCAT({name}, '')"),
        }
    }

    /// What a query selects to show the value: the column, or a digest where it may be megabytes.
    pub fn shown(&self) -> String {
        match self.kind {
            Kind::Text { blob: true, .. } | Kind::Binary { blob: true, .. } => self.identity(),
            _ => self.name.clone(),
        }
    }

    /// The bytes that a whole column takes in a key, at most; `None` if it needs a prefix length.
    pub fn key_bytes(&self) -> Option<usize> {
        match &self.kind {
            Kind::Text { blob: true, .. } | Kind::Binary { blob: true, .. } => None,
            Kind::Json | Kind::Geometry => None,
            Kind::Text { collation, length, .. } => Some(collation.bytes_max * length + 3),
            Kind::Binary { length, .. } => Some(length + 3),
            Kind::Decimal { digits, .. } => Some(digits / 2 + 3),
            Kind::Uuid | Kind::Inet6 => Some(17),
            _ => Some(9),
        }
    }

    /// The bytes of a prefix of `length` characters; `None` if the type has no prefixes.
    pub fn prefix_bytes(&self, length: usize) -> Option<usize> {
        match &self.kind {
            Kind::Text { collation, length: longest, .. } if length < *longest => {
                Some(collation.bytes_max * length + 3)
            }
            Kind::Binary { length: longest, .. } if length < *longest => Some(length + 3),
            Kind::Json => Some(4 * length + 3),
            _ => None,
        }
    }
}

fn literals(values: &[&str]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn quoted(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| format!("'{value}'")).collect()
}

fn integer(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let &(name, bits) = dice.pick(&INTEGER_TYPES);
    let unsigned = dice.percent(40);
    let mut sql_type = name.to_string();
    if unsigned {
        sql_type.push_str(" UNSIGNED");
        if dice.percent(20) {
            sql_type.push_str(" ZEROFILL");
        }
    }
    let half = 1i128 << (bits - 1);
    let (low, high) = if unsigned { (0, 2 * half - 1) } else { (-half, half - 1) };
    let mut values: Vec<i128> = vec![low, low + 1, high, high - 1, half - 1, half.min(high), 0];
    values.extend([1, 2, 3, 5, 7, 8, 16, 100, 127]);
    if !unsigned {
        values.extend([-1, -2, -3, -100]);
    }
    for shift in [8, 16, 24, 32] {
        values.extend([(1i128 << shift) - 1, 1i128 << shift].iter().filter(|v| **v <= high));
    }
    let some = dice.range(6, 24);
    let pool = dice.some(&values, some).iter().map(ToString::to_string).collect();
    (Kind::Integer { bits, unsigned }, sql_type, pool)
}

fn decimal(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let digits = *dice.pick(&[1, 2, 4, 5, 9, 10, 11, 18, 19, 20, 27, 38, 65]);
    let scale = dice.range(0, digits.min(38));
    let unsigned = dice.percent(15);
    let whole = digits - scale;
    let number = |whole_digits: &str, fraction_digits: &str| match (whole, scale) {
        (0, _) => format!("0.{fraction_digits}"),
        (_, 0) => whole_digits.to_string(),
        _ => format!("{whole_digits}.{fraction_digits}"),
    };
    let random_digits = |dice: &mut Dice, count: usize| -> String {
        (0..count).map(|_| char::from(b'0' + dice.range(0, 9) as u8)).collect()
    };
    let mut pool = vec!["0".to_string(), number(&"9".repeat(whole), &"9".repeat(scale))];
    pool.push(number("0", &format!("{}1", "0".repeat(scale.saturating_sub(1)))));
    if whole > 0 {
        pool.extend(["1".to_string(), number("1", &"0".repeat(scale))]);
    }
    for _ in 0..6 {
        let shorter = dice.range(1, whole.max(1));
        let whole_digits = random_digits(dice, shorter);
        pool.push(number(&whole_digits, &random_digits(dice, scale)));
    }
    if !unsigned {
        let negative: Vec<String> = pool.iter().map(|value| format!("-{value}")).collect();
        pool.extend(negative);
    }
    let attribute = if unsigned { " UNSIGNED" } else { "" };
    let sql_type = format!("DECIMAL({digits},{scale}){attribute}");
    (Kind::Decimal { digits, scale, unsigned }, sql_type, pool)
}

fn float(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let double = dice.percent(50);
    let mut pool = literals(&[
        "0e0",
        "-0e0",
        "'-0'",
        "1e0",
        "-1e0",
        "0.5e0",
        "-0.5e0",
        "1e10",
        "-1e10",
        "3e0",
        "0.1e0",
        "100e0",
        "1.25e-5",
        "16777216e0",
    ]);
    pool.extend(if double {
        literals(&[
            "4.9e-324",
            "-4.9e-324",
            "2.2250738585072014e-308",
            "1.7976931348623157e308",
            "-1.7976931348623157e308",
            "9007199254740993e0",
        ])
    } else {
        literals(&["1.4e-45", "-1.4e-45", "1.17549435e-38", "3.4028234e38", "-3.4028234e38"])
    });
    (Kind::Float { double }, if double { "DOUBLE" } else { "FLOAT" }.into(), pool)
}

fn bit(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let bits = *dice.pick(&[1u32, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64]);
    let ones = "1".repeat(bits as usize);
    let mut pool = literals(&["b'0'", "b'1'"]);
    pool.push(format!("b'{ones}'"));
    pool.push(format!("b'1{}'", "0".repeat(bits as usize - 1)));
    for _ in 0..5 {
        let width = dice.range(1, bits as usize);
        let digits: String = (0..width).map(|_| if dice.percent(50) { '1' } else { '0' }).collect();
        pool.push(format!("b'{digits}'"));
    }
    (Kind::Bit { bits }, format!("BIT({bits})"), pool)
}

fn date(_: &mut Dice) -> (Kind, String, Vec<String>) {
    let pool = quoted(&[
        "0000-00-00",
        "1000-01-01",
        "9999-12-31",
        "1969-12-31",
        "1970-01-01",
        "2024-02-29",
        "2000-01-01",
        "2023-00-00",
        "2023-05-00",
        "0001-01-01",
        "2023-12-31",
        "2024-01-01",
        "2024-01-02",
    ]);
    (Kind::Date, "DATE".into(), pool)
}

/// A type with a number of fractional digits, and values cut to that number.
fn with_fraction(dice: &mut Dice, name: &str, values: &[&str]) -> (String, Vec<String>) {
    let fraction = *dice.pick(&[0usize, 0, 1, 2, 3, 4, 5, 6, 6]);
    let sql_type = if fraction == 0 { name.to_string() } else { format!("{name}({fraction})") };
    let cut = |value: &&str| match value.split_once('.') {
        Some((seconds, _)) if fraction == 0 => seconds.to_string(),
        Some((seconds, digits)) => format!("{seconds}.{}", &digits[..fraction]),
        None => value.to_string(),
    };
    (sql_type, values.iter().map(|value| format!("'{}'", cut(value))).collect())
}

fn time(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let values = [
        "-838:59:59.999999",
        "838:59:59.999999",
        "00:00:00.000000",
        "-00:00:00.111111",
        "-00:00:01.500000",
        "-00:00:01.499999",
        "00:00:00.111111",
        "12:34:56.789012",
        "23:59:59.999999",
        "24:00:00",
        "-12:34:56.789012",
        "-01:00:00",
        "01:00:00",
        "-23:59:59.123456",
        "100:00:00.000001",
    ];
    let (sql_type, pool) = with_fraction(dice, "TIME", &values);
    (Kind::Time, sql_type, pool)
}

fn date_time(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let values = [
        "0000-00-00 00:00:00.000000",
        "1000-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "1970-01-01 00:00:00.111111",
        "2024-02-29 12:34:56.789012",
        "2024-02-29 12:34:56.789013",
        "2023-00-00 00:00:00",
        "2000-01-01 00:00:00",
        "2024-02-29 12:34:56",
        "0001-01-01 01:01:01.111111",
        "2024-01-01 23:59:59.999999",
    ];
    let (sql_type, pool) = with_fraction(dice, "DATETIME", &values);
    (Kind::DateTime, sql_type, pool)
}

fn timestamp(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let values = [
        "0000-00-00 00:00:00.000000",
        "1970-01-01 00:00:01.111111",
        "2038-01-19 03:14:07.999999",
        "2024-02-29 12:34:56.789012",
        "2024-02-29 12:34:56.789013",
        "2024-02-29 12:34:56",
        "2000-01-01 00:00:00",
        "1999-12-31 23:59:59.999999",
        "2023-10-29 02:30:00",
    ];
    let (sql_type, pool) = with_fraction(dice, "TIMESTAMP", &values);
    (Kind::Timestamp, sql_type, pool)
}

fn year(_: &mut Dice) -> (Kind, String, Vec<String>) {
    (Kind::Year, "YEAR".into(), literals(&["0", "1901", "1970", "2000", "2024", "2155", "'1999'"]))
}

/// A collation; the first few, which people use, more often.
fn any_collation(dice: &mut Dice) -> Collation {
    if dice.percent(25) { *dice.pick(&COLLATIONS[..6]) } else { *dice.pick(COLLATIONS) }
}

fn character(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let fixed = dice.percent(35);
    let mut collation = any_collation(dice);
    if fixed && collation.name.contains("nopad") {
        // The server compares such a CHAR without its padding, sorts it with it, and InnoDB's
        // indexes do as sorting does.
        collation = COLLATIONS[0];
    }
    let Collation { charset, name, bytes_max, .. } = collation;
    let lengths: &[usize] =
        if fixed { &[1, 2, 5, 10, 40] } else { &[1, 3, 8, 20, 64, 100, 255, 700] };
    let length = *dice.pick(lengths);
    let length = length.min(2800 / bytes_max);
    let type_name = if fixed { "CHAR" } else { "VARCHAR" };
    let size = dice.range(8, 30);
    let pool = text::pool(dice, &collation, length, size);
    let compressed = if !fixed && dice.percent(3) { " COMPRESSED" } else { "" };
    // A compressed column can't be a key: it is as good as a blob.
    let blob = !compressed.is_empty();
    let sql_type =
        format!("{type_name}({length}){compressed} CHARACTER SET {charset} COLLATE {name}");
    (Kind::Text { collation, length, blob }, sql_type, pool)
}

fn text_blob(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let collation = any_collation(dice);
    let &(size, bytes) = dice.pick(&BLOB_LENGTHS);
    let length = bytes / collation.bytes_max;
    let mut pool = text::pool(dice, &collation, length.min(60), 16);
    let repeats: &[usize] = if bytes > 300 { &[500, 2000, 4000, 10_000] } else { &[60] };
    for _ in 0..3 {
        let times = *dice.pick(repeats);
        pool.push(format!("REPEAT('{}', {times})", dice.pick(&["a", "b", "z", "q"])));
    }
    if bytes > 100_000 && dice.percent(20) {
        pool.push("REPEAT('0123456789abcde ', 60000)".into());
    }
    let sql_type =
        format!("{size}TEXT CHARACTER SET {} COLLATE {}", collation.charset, collation.name);
    (Kind::Text { collation, length, blob: true }, sql_type, pool)
}

const BYTE_STRINGS: &[&[u8]] = &[
    b"",
    b"\0",
    b"\0\0",
    b"\x01",
    b" ",
    b"a",
    b"A",
    b"a ",
    b"a\0",
    b"a\0\0",
    b"a\0b",
    b"ab",
    b"b",
    b"\x7f",
    b"\x80",
    b"\xfe",
    b"\xff",
    b"\xff\xff",
    b"\xff\0",
    b"\0\xff",
    b"12345678",
    b"123456789",
    b"12345678\0",
    b"123456781",
    b"1234567812345678",
    b"\0\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
];

fn byte_pool(dice: &mut Dice, length: usize) -> Vec<String> {
    let fitting: Vec<&[u8]> = BYTE_STRINGS.iter().filter(|b| b.len() <= length).copied().collect();
    let mut pool: Vec<String> = (0..20)
        .map(|_| {
            let bytes: &[u8] = dice.pick::<&[u8]>(&fitting);
            text::binary_literal(bytes)
        })
        .collect();
    if length >= 40 {
        let times = length.min(3000) - 1;
        pool.push(format!("REPEAT(x'FF', {times})"));
        pool.push(format!("CONCAT(REPEAT(x'00', {times}), x'01')"));
        pool.push(format!("REPEAT(x'61', {times})"));
    }
    pool
}

fn binary(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let fixed = dice.percent(40);
    let lengths: &[usize] = if fixed { &[1, 2, 8, 9, 16] } else { &[1, 4, 8, 9, 40, 255, 1500] };
    let length = *dice.pick(lengths);
    let type_name = if fixed { "BINARY" } else { "VARBINARY" };
    let pool = byte_pool(dice, length);
    (Kind::Binary { length, blob: false }, format!("{type_name}({length})"), pool)
}

fn binary_blob(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let &(size, length) = dice.pick(&BLOB_LENGTHS);
    let mut pool = byte_pool(dice, length.min(255));
    if length > 300 {
        let times = *dice.pick(&[1000, 5000, 8000, 20_000]);
        pool.push(format!("REPEAT(x'00FF61', {times})"));
    }
    if length > 100_000 && dice.percent(20) {
        pool.push("REPEAT(x'000102030405060708090A0B0C0D0E0F', 200000)".into());
    }
    (Kind::Binary { length, blob: true }, format!("{size}BLOB"), pool)
}

fn enumeration(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let members = quoted(if dice.percent(50) { &["b", "a", "c", "z y"] } else { &["x", "", "X1"] });
    let mut list = members.join(", ");
    if dice.percent(15) {
        // More than 255 members take two bytes.
        for number in 0..300 {
            list.push_str(&format!(", 'm{number}'"));
        }
    }
    (Kind::Enum { members: members.clone() }, format!("ENUM({list})"), members)
}

fn set(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let count = *dice.pick(&[2usize, 8, 9, 17, 33, 64]);
    let list: Vec<String> = (0..count).map(|number| format!("'s{number}'")).collect();
    let last = count - 1;
    let pool = vec![
        "''".to_string(),
        "'s0'".into(),
        "'s1'".into(),
        "'s0,s1'".into(),
        format!("'s{last}'"),
        format!("'s0,s{last}'"),
    ];
    (Kind::Set, format!("SET({})", list.join(", ")), pool)
}

fn json(_: &mut Dice) -> (Kind, String, Vec<String>) {
    let values = [
        "{}",
        "[]",
        "null",
        "1",
        "[1, 2, 3]",
        "{\"a\": 1}",
        "{\"a\": 2, \"b\": [true, false]}",
        "\"text\"",
        "[1,2,3]",
    ];
    (Kind::Json, "JSON".into(), quoted(&values))
}

fn uuid(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let mut pool = quoted(&[
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "00000001-0000-1000-8000-000000000000",
        "00000000-0001-1000-8000-000000000000",
        "00000000-0000-1001-8000-000000000000",
        "00000000-0000-1000-8001-000000000000",
        "00000000-0000-1000-8000-000000000001",
        "00000000-0000-7000-8000-000000000001",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    ]);
    for _ in 0..4 {
        let (high, low) = (dice.u64(), dice.u64());
        pool.push(format!(
            "'{:08x}-{:04x}-{:04x}-{:04x}-{:012x}'",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        ));
    }
    (Kind::Uuid, "UUID".into(), pool)
}

fn inet(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    if dice.percent(30) {
        let values =
            ["0.0.0.0", "255.255.255.255", "127.0.0.1", "10.0.0.1", "10.0.0.2", "128.0.0.0"];
        return (Kind::Inet4, "INET4".into(), quoted(&values));
    }
    let values = [
        "::",
        "::1",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "::ffff:1.2.3.4",
        "2001:db8::1",
        "2001:db8::2",
        "fe80::1",
        "7fff::",
        "8000::",
    ];
    (Kind::Inet6, "INET6".into(), quoted(&values))
}

fn geometry(dice: &mut Dice) -> (Kind, String, Vec<String>) {
    let points = ["POINT(0 0)", "POINT(1 2)", "POINT(-1.5 1e10)"];
    let others = ["LINESTRING(0 0, 1 1, 2 0)", "POLYGON((0 0, 4 0, 4 4, 0 4, 0 0))"];
    let (name, texts) = if dice.percent(50) {
        ("POINT", points.to_vec())
    } else {
        ("GEOMETRY", [&points[..], &others[..]].concat())
    };
    let pool = texts.iter().map(|text| format!("ST_GeomFromText('{text}')")).collect();
    (Kind::Geometry, name.into(), pool)
}
