//! PostgreSQL's binary form of `numeric`, to and from text.
//!
//! Four big-endian 16-bit fields (how many digits follow, the weight of the first, the sign, the
//! decimals to be shown), then digits to the base 10,000, each worth 10,000 to the power of its
//! weight (documented in the server's `src/backend/utils/adt/numeric.c`, `numeric_send`).

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;

/// Text as "-12.50"; nothing for what is no number, or cut off.
pub(super) fn to_text(bytes: &[u8]) -> Option<String> {
    let mut words = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let (count, weight) = (words.next()?, words.next()?.cast_signed());
    let (sign, decimals) = (words.next()?, usize::from(words.next()?));
    // So are the infinities.
    if sign >= NAN {
        return None;
    }
    let digits: Vec<u16> = words.collect();
    if digits.len() != usize::from(count) {
        return None;
    }
    let digit = |weight_of: i32| {
        let at = usize::try_from(i32::from(weight) - weight_of).ok()?;
        digits.get(at).copied()
    };
    let mut text: String = (0..=i32::from(weight).max(0))
        .rev()
        .map(|at| format!("{:04}", digit(at).unwrap_or(0)))
        .collect();
    let zeros = text.len() - text.trim_start_matches('0').len();
    text.drain(..zeros.min(text.len() - 1));
    if decimals > 0 {
        let groups = decimals.div_ceil(4) as i32;
        let fraction: String =
            (1..=groups).map(|at| format!("{:04}", digit(-at).unwrap_or(0))).collect();
        text = format!("{text}.{}", &fraction[..decimals]);
    }
    Some(if sign == NEGATIVE { format!("-{text}") } else { text })
}

/// The binary form of a text as "-12.50"; nothing if it is none.
pub(super) fn from_text(text: &str) -> Option<Vec<u8>> {
    let (sign, plain) = match text.strip_prefix('-') {
        Some(rest) => (NEGATIVE, rest),
        None => (0, text),
    };
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    let numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !numeric(whole) || !numeric(fraction) {
        return None;
    }
    let (before, after) = (whole.len().div_ceil(4), fraction.len().div_ceil(4));
    let padded =
        format!("{whole:0>before$}{fraction:0<after$}", before = before * 4, after = after * 4);
    let mut words = vec![(before + after) as u16, (before as u16).wrapping_sub(1), sign];
    words.push(fraction.len() as u16);
    for group in padded.as_bytes().chunks_exact(4) {
        words.push(group.iter().fold(0, |sum, byte| sum * 10 + u16::from(byte - b'0')));
    }
    Some(words.into_iter().flat_map(u16::to_be_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_survive_the_way_there_and_back() {
        for text in
            ["0", "0.00", "7", "-12.50", "9999.99", "10000", "123456789.0123", "0.0005", "-0.10"]
        {
            assert_eq!(to_text(&from_text(text).unwrap()).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_the_server_sends_is_read() {
        // 300000.00 has one digit and a weight of 1, for trailing zeros are not sent: 30 × 10,000.
        let bytes = [0, 1, 0, 1, 0, 0, 0, 2, 0, 30];
        assert_eq!(to_text(&bytes).as_deref(), Some("300000.00"));
        // 0.1234 has weight -1.
        let bytes = [0, 1, 0xff, 0xff, 0x40, 0, 0, 4, 0x04, 0xd2];
        assert_eq!(to_text(&bytes).as_deref(), Some("-0.1234"));
        // 0 has no digit.
        assert_eq!(to_text(&[0, 0, 0, 0, 0, 0, 0, 2]).as_deref(), Some("0.00"));
        assert_eq!(to_text(&[0, 0, 0, 0, 0xc0, 0, 0, 0]), None);
        assert_eq!(to_text(&[0, 2, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "-", "1.2.3", "x", ".5", "1e5"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
