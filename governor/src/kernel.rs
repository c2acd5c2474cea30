//! The kernel's text files, read below a root.
//!
//! Reading is forgiving by design: a file that is missing or unreadable, or a line that is not as
//! expected, gives `None`. Whether that matters is for [`crate::signals::Reader`] to say, once, in
//! its notices.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where `/proc` and `/sys` are looked for. `/` on a real machine; a temporary directory in a test.
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

    /// Whether this is the machine itself.
    pub fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The text of a file, if it can be read.
    pub fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        read_text(&self.path(absolute)).ok()
    }

    /// A file that holds one number. `max` (cgroup version 2 for "no limit") is `u64::MAX`.
    pub fn number(&self, absolute: impl AsRef<Path>) -> Option<u64> {
        number(&self.text(absolute)?)
    }
}

/// The text of a file, whatever bytes are in it: a process, a group, or anything that is mounted
/// may have a name that is no text, and that must not hide the rest.
fn read_text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The number that is all of `text`. `max` (cgroup version 2 for "no limit") is `u64::MAX`.
pub fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    if text == "max" { Some(u64::MAX) } else { text.parse().ok() }
}

/// A file that is read again and again.
///
/// It is kept open: reading a cgroup's counter takes 0.2 µs, opening it ten times that. Below a
/// test's root it is opened each time, since there, unlike in the kernel's file systems, an open
/// file outlives its name.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    keep_open: bool,
    file: Option<File>,
    text: Vec<u8>,
}

impl Source {
    /// The file `absolute` below `root`, not opened yet.
    pub fn new(root: &Root, absolute: impl AsRef<Path>) -> Source {
        Source {
            path: root.path(absolute),
            keep_open: root.is_machine(),
            file: None,
            text: Vec::new(),
        }
    }

    /// The present text, if the file can be read. An open file that has gone (its cgroup was
    /// removed) is opened anew by the next call.
    pub fn text(&mut self) -> Option<&str> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path).ok()?);
        }
        let read = self.file.as_ref().map(|file| read_all(file, &mut self.text))?;
        if !self.keep_open || read.is_err() {
            self.file = None;
        }
        read.ok()?;
        if std::str::from_utf8(&self.text).is_err() {
            // As in `read_text`.
            self.text.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        std::str::from_utf8(&self.text).ok()
    }

    /// The present number, of a file that holds one.
    pub fn number(&mut self) -> Option<u64> {
        number(self.text()?)
    }
}

/// Reads the whole file from its start into `text`. The kernel makes such a file's contents anew at
/// each reading from offset 0.
fn read_all(file: &File, text: &mut Vec<u8>) -> io::Result<()> {
    let mut len = 0;
    loop {
        if text.len() < len + 4096 {
            text.resize(len + 8192, 0);
        }
        match file.read_at(&mut text[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(len);
    Ok(())
}

/// The value behind `key` in lines of the form `key value` or `key: value kB`, in the file's own
/// unit.
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
    fn a_source_follows_its_file_and_survives_its_absence() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = Source::new(&Root::new(dir.path()), "/a");
        assert_eq!(source.number(), None);
        for text in ["1\n", "max", "23", &"7".repeat(15)] {
            fs::write(dir.path().join("a"), text).unwrap();
            assert_eq!(source.number(), number(text));
        }
        fs::write(dir.path().join("a"), b"Name: gr\xf6\xdfe\nVmRSS: 1 kB\n").unwrap();
        assert_eq!(field_kib(source.text().unwrap(), "VmRSS"), Some(1024));
        let long = "x".repeat(100_000);
        fs::write(dir.path().join("a"), &long).unwrap();
        assert_eq!(source.text(), Some(&*long));
        fs::remove_file(dir.path().join("a")).unwrap();
        assert_eq!(source.text(), None);
    }

    #[test]
    fn an_open_source_shows_what_the_kernel_says_now() {
        let mut source = Source::new(&Root::default(), "/proc/uptime");
        let first = source.text().unwrap().to_owned();
        assert!(source.file.is_some(), "kept open");
        // Hundredths of a second.
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_ne!(source.text().unwrap(), first);
    }

    #[test]
    fn pressure_totals_are_read() {
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n";
        assert_eq!(pressure_some_total_us(text), Some(4711));
        assert_eq!(pressure_some_total_us("nonsense"), None);
    }
}
