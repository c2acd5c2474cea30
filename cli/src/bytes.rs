//! Sizes as people write them: `512M`, `1.5G`, `128 MiB`.

/// 2^10.
pub const KIB: u64 = 1 << 10;
/// 2^20.
pub const MIB: u64 = 1 << 20;
/// 2^30.
pub const GIB: u64 = 1 << 30;

/// A size from `4096`, `64k`, `512M`, `1.5G`, `2T`, with or without `B` or `iB`; always powers of
/// two, as in my.cnf.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{text}: unknown unit; write it like 512M or 1.5G")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text}: not a size; write it like 512M or 1.5G"))?;
    let bytes = number * (1_u64 << shift) as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(format!("{text}: too large")) }
}

/// A size for people: three significant digits, binary units.
pub fn human(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..KIB => return format!("{bytes} B"),
        KIB..MIB => (KIB, "KiB"),
        MIB..GIB => (MIB, "MiB"),
        GIB..0x100_0000_0000 => (GIB, "GiB"),
        _ => (1 << 40, "TiB"),
    };
    let value = bytes as f64 / unit as f64;
    let decimals = if value >= 100.0 || value.fract() < 0.005 { 0 } else { 1 };
    format!("{value:.decimals$} {name}")
}

/// A change of size for people, both in MiB: steps may be small beside the sizes.
pub fn change(from_bytes: u64, to_bytes: u64) -> String {
    format!("{} MiB -> {} MiB", from_bytes / MIB, to_bytes / MIB)
}

/// A size for an option file: whole GiB or MiB where it is one (`12G`, `1536M`), else bytes.
pub fn option(bytes: u64) -> String {
    if bytes >= GIB && bytes.is_multiple_of(GIB) {
        format!("{}G", bytes / GIB)
    } else if bytes >= MIB && bytes.is_multiple_of(MIB) {
        format!("{}M", bytes / MIB)
    } else {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64k", 64 * KIB),
            ("512M", 512 * MIB),
            ("1.5G", 1536 * MIB),
            ("128 MiB", 128 * MIB),
            ("2 gb", 2 * GIB),
            ("1T", 1024 * GIB),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "12X", "1.2.3M", "-5M", "99999999T", "80%"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_for_people_and_for_option_files() {
        assert_eq!(human(5), "5 B");
        assert_eq!(human(128 * MIB), "128 MiB");
        assert_eq!(human(1536 * MIB), "1.5 GiB");
        assert_eq!(human(23 * GIB + 600 * MIB), "23.6 GiB");
        assert_eq!(change(1536 * MIB, 1504 * MIB), "1536 MiB -> 1504 MiB");
        assert_eq!(option(12 * GIB), "12G");
        assert_eq!(option(1536 * MIB), "1536M");
        assert_eq!(option(100), "100");
        for size in [12 * GIB, 1536 * MIB, 100] {
            assert_eq!(parse(&option(size)), Ok(size));
        }
    }
}
