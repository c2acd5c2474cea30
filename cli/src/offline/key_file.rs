//! The keys of encrypted pages, from a file in the plain format of the server's
//! `file_key_management` plugin: a line for each key, its number and its bytes in hexadecimal
//! digits with a semicolon between; empty lines and lines that begin with `#` count for nothing.
//! All keys are of version 1, as in that plugin.

use std::path::Path;
use std::sync::Arc;

use tidepool::{KeySource, MemoryKeyring};

use crate::exit::{Error, Result};

/// The version that the plugin gives each of its keys.
const VERSION: u32 = 1;

/// Reads a file of keys.
///
/// # Errors
/// It can't be read, or a line is no key; it may be encrypted, which this does not read.
pub(super) fn read(file: &Path) -> Result<KeySource> {
    let text = std::fs::read_to_string(file).map_err(|error| Error::file(file, &error))?;
    let keyring = MemoryKeyring::default();
    for (at, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (id, key) = key_of(line).ok_or_else(|| {
            Error::Local(format!(
                "{}: line {at} is no key: it must be a number, a semicolon, and 32, 48 or 64 \
                 hexadecimal digits (a key file that is encrypted can't be read)",
                file.display()
            ))
        })?;
        keyring.insert(id, VERSION, key);
    }
    Ok(KeySource(Arc::new(keyring)))
}

fn key_of(line: &str) -> Option<(u32, Vec<u8>)> {
    let (id, digits) = line.split_once(';')?;
    let digits = digits.trim();
    if ![32, 48, 64].contains(&digits.len()) || !digits.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    let key = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some((id.trim().parse().ok()?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_number_and_a_key_of_one_of_three_lengths() {
        let digits = "0f".repeat(16);
        assert_eq!(key_of(&format!("7;{digits}")), Some((7, vec![15; 16])));
        assert_eq!(key_of(&format!("7 ; {}", "0f".repeat(32))), Some((7, vec![15; 32])));
        for wrong in ["7", "7;", &digits, &format!("x;{digits}"), &format!("7;{digits}0"), "7;zz"] {
            assert_eq!(key_of(wrong), None, "{wrong}");
        }
        assert_eq!(key_of(&format!("7;{}", "zz".repeat(16))), None);
        assert_eq!(key_of(&format!("7;{}", "é".repeat(16))), None);
    }

    #[test]
    fn comments_are_passed_over_and_a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let key = "0f".repeat(16);
        std::fs::write(&file, format!("# keys\n\n1;{key}\n")).unwrap();
        let KeySource(keyring) = read(&file).unwrap();
        assert_eq!(keyring.key(1, 1).unwrap(), vec![15; 16]);
        std::fs::write(&file, format!("1;{key}\nnonsense\n")).unwrap();
        let error = read(&file).err().unwrap().to_string();
        assert!(error.contains("line 2 is no key"), "{error}");
    }
}
