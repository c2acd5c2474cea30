//! The kernel's text files, read below a root.
//!
//! Reading is forgiving by design: a file that is missing or unreadable, or a line that is not as expected, gives `None`. Whether
//! that matters is for [`crate::signals::Reader`] to say, once, in its notices.

use std::fs;
use std::path::{Path, PathBuf};

/// Where `/proc` and `/sys` are looked for. `/` on a real machine; a directory of its own in a test.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Root(PathBuf::from("/"))
    }
}

impl Root {
    /// A root at `path`, which stands for `/`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Root(path.into())
    }

    /// The real path of an absolute path.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let p = absolute.as_ref();
        self.0.join(p.strip_prefix("/").unwrap_or(p))
    }

    /// The text of a file, if it can be read.
    pub fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok()
    }

    /// A file that holds one number. `max` (cgroup version 2 for "no limit") is `u64::MAX`.
    pub fn number(&self, absolute: impl AsRef<Path>) -> Option<u64> {
        let text = self.text(absolute)?;
        let text = text.trim();
        if text == "max" { Some(u64::MAX) } else { text.parse().ok() }
    }
}

/// The value behind `key` in lines of the form `key value` or `key: value kB`, in the file's own unit.
pub fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        if !rest.starts_with([' ', '\t']) {
            return None;
        }
        rest.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// `field`, where the file counts in KiB (`/proc/meminfo`, `/proc/self/status`); in bytes.
pub fn field_kib(text: &str, key: &str) -> Option<u64> {
    field(text, key).map(|kib| kib.saturating_mul(1024))
}

/// The running total of microseconds in which at least one task stalled on memory, from a PSI file.
pub fn pressure_some_total_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whole() {
        let text = "MemTotal:       24576 kB\nMemFree:  12 kB\ninactive_file 4096\n";
        assert_eq!(field_kib(text, "MemTotal"), Some(24576 * 1024));
        assert_eq!(field(text, "inactive_file"), Some(4096));
        assert_eq!(field(text, "inactive"), None);
        assert_eq!(field(text, "Mem"), None);
    }

    #[test]
    fn pressure_totals_are_read() {
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n";
        assert_eq!(pressure_some_total_us(text), Some(4711));
        assert_eq!(pressure_some_total_us("nonsense"), None);
    }
}
