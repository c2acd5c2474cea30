//! Character sets, collations, and strings that tell them apart.

use super::dice::Dice;

/// Which characters a character set holds, as far as [`STRINGS`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repertoire {
    /// U+0000–U+007F.
    Ascii,
    /// U+0000–U+00FF.
    Latin1,
    /// ASCII, and the kana and kanji below.
    Japanese,
    /// ASCII, and the kanji below.
    Chinese,
    /// U+0000–U+FFFF.
    Bmp,
    /// Everything.
    Full,
}

impl Repertoire {
    fn holds(self, c: char) -> bool {
        let japanese = ['日', '本', 'あ', 'ア'];
        match self {
            Repertoire::Ascii => c.is_ascii(),
            Repertoire::Latin1 => c <= '\u{ff}',
            Repertoire::Japanese => c.is_ascii() || japanese.contains(&c),
            Repertoire::Chinese => c.is_ascii() || japanese[..2].contains(&c),
            Repertoire::Bmp => c <= '\u{ffff}',
            Repertoire::Full => true,
        }
    }
}

/// A collation, with what is needed to generate strings and keys for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collation {
    /// The character set's name.
    pub charset: &'static str,
    /// The collation's name.
    pub name: &'static str,
    /// The characters.
    pub repertoire: Repertoire,
    /// The most bytes a character takes.
    pub bytes_max: usize,
}

const fn collation(
    charset: &'static str,
    name: &'static str,
    repertoire: Repertoire,
    bytes_max: usize,
) -> Collation {
    Collation { charset, name, repertoire, bytes_max }
}

/// The collations of text columns: of each kind of weights (one level, several levels,
/// contractions, expansions, ignorable characters), with PAD SPACE and NO PAD, of one byte, of
/// several, of two or four always.
pub const COLLATIONS: &[Collation] = &[
    collation("utf8mb4", "utf8mb4_general_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_general_nopad_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_unicode_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_unicode_nopad_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_bin", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_nopad_bin", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_unicode_520_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_spanish2_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_croatian_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_german2_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_hungarian_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_thai_520_w2", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_uca1400_ai_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_uca1400_as_cs", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_uca1400_nopad_ai_ci", Repertoire::Full, 4),
    collation("utf8mb4", "utf8mb4_uca1400_spanish_nopad_as_cs", Repertoire::Full, 4),
    collation("utf8mb3", "utf8mb3_general_ci", Repertoire::Bmp, 3),
    collation("utf8mb3", "utf8mb3_bin", Repertoire::Bmp, 3),
    collation("utf8mb3", "utf8mb3_unicode_ci", Repertoire::Bmp, 3),
    collation("latin1", "latin1_swedish_ci", Repertoire::Latin1, 1),
    collation("latin1", "latin1_swedish_nopad_ci", Repertoire::Latin1, 1),
    collation("latin1", "latin1_german1_ci", Repertoire::Latin1, 1),
    collation("latin1", "latin1_german2_ci", Repertoire::Latin1, 1),
    collation("latin1", "latin1_general_cs", Repertoire::Latin1, 1),
    collation("latin1", "latin1_bin", Repertoire::Latin1, 1),
    collation("latin1", "latin1_nopad_bin", Repertoire::Latin1, 1),
    collation("ascii", "ascii_general_ci", Repertoire::Ascii, 1),
    collation("latin2", "latin2_czech_cs", Repertoire::Ascii, 1),
    collation("cp1250", "cp1250_czech_cs", Repertoire::Ascii, 1),
    collation("tis620", "tis620_thai_ci", Repertoire::Ascii, 1),
    collation("ucs2", "ucs2_general_ci", Repertoire::Bmp, 2),
    collation("ucs2", "ucs2_unicode_ci", Repertoire::Bmp, 2),
    collation("ucs2", "ucs2_bin", Repertoire::Bmp, 2),
    collation("ucs2", "ucs2_nopad_bin", Repertoire::Bmp, 2),
    collation("utf16", "utf16_general_ci", Repertoire::Full, 4),
    collation("utf16", "utf16_unicode_ci", Repertoire::Full, 4),
    collation("utf16", "utf16_bin", Repertoire::Full, 4),
    collation("utf16le", "utf16le_general_ci", Repertoire::Full, 4),
    collation("utf32", "utf32_general_ci", Repertoire::Full, 4),
    collation("utf32", "utf32_unicode_520_ci", Repertoire::Full, 4),
    collation("cp932", "cp932_japanese_ci", Repertoire::Japanese, 2),
    collation("cp932", "cp932_bin", Repertoire::Japanese, 2),
    collation("sjis", "sjis_japanese_ci", Repertoire::Japanese, 2),
    collation("ujis", "ujis_japanese_ci", Repertoire::Japanese, 3),
    collation("gbk", "gbk_chinese_ci", Repertoire::Chinese, 2),
    collation("gbk", "gbk_bin", Repertoire::Chinese, 2),
    collation("big5", "big5_chinese_ci", Repertoire::Chinese, 2),
];

/// Strings near each other in one collation or another.
pub const STRINGS: &[&str] = &[
    "",
    " ",
    "  ",
    "a",
    "A",
    "a ",
    "a  ",
    "A ",
    "a\t",
    "a\u{1}",
    "a\u{0}",
    "a\u{1f}",
    "a!",
    "a \u{1}",
    "a b",
    "\u{0}",
    "\u{1}",
    "\t",
    "\n",
    "ab",
    "aB",
    "abc",
    "aa",
    "ae",
    "az",
    "b",
    "B",
    "ch",
    "c",
    "cz",
    "d",
    "cha",
    "CH",
    "Ch",
    "cs",
    "dz",
    "dž",
    "ll",
    "l",
    "lz",
    "m",
    "lj",
    "n",
    "o",
    "oe",
    "s",
    "ss",
    "ssa",
    "sz",
    "t",
    "ue",
    "u",
    "z",
    "Z",
    "zz",
    "~",
    "\u{7f}",
    "0",
    "00",
    "1",
    "10",
    "9",
    "%",
    "_",
    "\\",
    "'",
    "\"",
    "á",
    "ä",
    "Ä",
    "å",
    "æ",
    "ñ",
    "ö",
    "ü",
    "ÿ",
    "ß",
    "ßa",
    "\u{a0}",
    "a\u{a0}",
    "\u{ad}",
    "a\u{ad}",
    "e\u{301}",
    "é",
    "İ",
    "ı",
    "ŉ",
    "ĳ",
    "ﬁ",
    "fi",
    "\u{200b}",
    "a\u{200b}",
    "\u{200d}a",
    "ア",
    "あ",
    "日",
    "本",
    "日本",
    "日 ",
    "가",
    "ไก",
    "กไ",
    "\u{ffff}",
    "\u{fffd}",
    "😀",
    "😁",
    "😀 ",
    "a😀",
    "\u{10ffff}",
    "𝒜",
    "\u{20000}",
    "aaaaaaaa",
    "aaaaaaaaa",
    "aaaaaaaa ",
    "aaaaaaaab",
    "abababababababab",
    "The quick brown fox",
    "the quick brown fox ",
    "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs",
];

/// The literal of a string, in printable ASCII.
pub fn literal(text: &str) -> String {
    let plain = |c: char| (c == ' ' || c.is_ascii_graphic()) && c != '\'' && c != '\\' && c != ';';
    if text.chars().all(plain) {
        format!("'{text}'")
    } else {
        format!("_utf8mb4 x'{}'", hex(text.as_bytes()))
    }
}

/// The literal of a binary string.
pub fn binary_literal(bytes: &[u8]) -> String {
    format!("x'{}'", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Literals of strings that a column of `length_max` characters holds.
pub fn pool(dice: &mut Dice, collation: &Collation, length_max: usize, size: usize) -> Vec<String> {
    let holds = |text: &&&str| {
        text.chars().count() <= length_max && text.chars().all(|c| collation.repertoire.holds(c))
    };
    let fitting: Vec<&str> = STRINGS.iter().filter(holds).copied().collect();
    let mut strings: Vec<String> = (0..size).map(|_| (*dice.pick(&fitting)).to_string()).collect();
    if length_max >= 40 {
        // Longer than any fence or head: they differ at the end, or in the padding.
        let unit = *dice.pick(&fitting);
        let unit = if unit.is_empty() { "x" } else { unit };
        let long = unit.repeat((length_max - 2) / unit.chars().count());
        for end in ["", "a", "B", " "] {
            strings.push(format!("{long}{end}"));
        }
    }
    strings.into_iter().map(|text| literal(&text)).collect()
}

/// The literal of any of the strings, whether it fits or not.
pub fn any(dice: &mut Dice) -> String {
    literal(dice.pick::<&str>(STRINGS))
}
