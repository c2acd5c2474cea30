//! Sizes as people write them: `64M`, `1.5G`.

/// 2^20.
pub const MIB: u64 = 1 << 20;
/// 2^30.
pub const GIB: u64 = 1 << 30;

/// A size from `4096`, `64k`, `512M`, `1.5G`; powers of two.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text}: not a size; write it like 64M or 1.5G");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * (1_u64 << shift) as f64;
    // Beyond this a float no longer holds every number, and no machine has it.
    if bytes < (1_u64 << 52) as f64 { Ok(bytes as u64) } else { Err(format!("{text}: too large")) }
}

/// A size for people: in MiB below 10 GiB, in GiB above.
pub fn human(bytes: u64) -> String {
    if bytes < 10 * GIB {
        format!("{:.0} MiB", bytes as f64 / MIB as f64)
    } else {
        format!("{:.0} GiB", bytes as f64 / GIB as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64k", 65536),
            ("64M", 64 * MIB),
            ("64MiB", 64 * MIB),
            ("1.5G", 1536 * MIB),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "12X", "1.2.3M", "-5M", "99999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(human(64 * MIB), "64 MiB");
        assert_eq!(human(64 * GIB), "64 GiB");
    }
}
