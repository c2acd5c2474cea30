//! Statements with the engine's figures, from the end of MariaDB's slow log.
//!
//! ```text
//! # User@Host: app[app] @ localhost []
//! # Thread_id: 5  Schema: shop  QC_hit: No
//! # Query_time: 0.248130  Lock_time: 0.000012  Rows_sent: 1  Rows_examined: 1048
//! # Pages_accessed: 184  Pages_read: 95  Pages_prefetched: 0  Pages_updated: 0  Old_rows_read: 0
//! # Pages_read_time: 17.0204  Engine_time: 248.1297
//! #
//! use shop;
//! SET timestamp=1700000000;
//! SELECT …;
//! ```
//!
//! A look reads what was written since the look before, but no more than [`PIECE`]. Another file of
//! the same name, or a shorter one, is read from its beginning: logrotate was there.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Cost, KEPT, Key, without_literals};

/// Bytes that are read in one look.
const PIECE: u64 = 4 << 20;

/// One log, and how far it was read.
#[derive(Debug)]
pub struct SlowLog {
    /// As the server names it.
    named: PathBuf,
    /// As this program reaches it.
    path: PathBuf,
    inode: u64,
    offset: u64,
    /// The beginning of an entry whose end was not written yet.
    rest: String,
}

impl SlowLog {
    /// Begins at the end. The file is the one that the server's process has under this name: it may
    /// be in a container.
    ///
    /// # Errors
    /// The system's words.
    pub fn open(named: &Path, pid: Option<u32>) -> Result<SlowLog, String> {
        let Some(pid) = pid else { return Err("the server runs on another machine".into()) };
        let inside = PathBuf::from(format!("/proc/{pid}/root{}", named.display()));
        let path = if fs::metadata(&inside).is_ok() { inside } else { named.to_owned() };
        let found = fs::metadata(&path).map_err(|error| error.to_string())?;
        File::open(&path).map_err(|error| error.to_string())?;
        let (inode, offset) = (found.ino(), found.len());
        Ok(SlowLog { named: named.to_owned(), path, inode, offset, rest: String::new() })
    }

    /// Whether it is the log of this name.
    pub fn is_of(&self, named: &Path) -> bool {
        self.named == named
    }

    /// What was written since the last call, by statement, without those of one connection: this
    /// program's. And whether that is all.
    ///
    /// # Errors
    /// The system's words.
    pub fn read(&mut self, own_connection: u32) -> Result<(HashMap<Key, Cost>, bool), String> {
        let piece = self.new_bytes().map_err(|error| error.to_string())?;
        let (piece, is_whole) = piece;
        self.rest.push_str(&String::from_utf8_lossy(&piece));
        let text = std::mem::take(&mut self.rest);
        // The last entry may go on.
        let end = text.rfind("\n# User@Host:").map_or(0, |at| at + 1);
        let is_ended = text.trim_end().ends_with(';');
        let (done, rest) = if is_ended { (text.as_str(), "") } else { text.split_at(end) };
        self.rest = rest.to_owned();
        if self.rest.len() as u64 > PIECE {
            self.rest.clear();
        }
        Ok((entries(done, own_connection), is_whole))
    }

    fn new_bytes(&mut self) -> std::io::Result<(Vec<u8>, bool)> {
        let mut file = File::open(&self.path)?;
        let found = file.metadata()?;
        if found.ino() != self.inode || found.len() < self.offset {
            (self.inode, self.offset) = (found.ino(), 0);
            self.rest.clear();
        }
        let came = found.len() - self.offset;
        let is_whole = came <= PIECE;
        if !is_whole {
            self.offset = found.len() - PIECE;
            self.rest.clear();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut piece = Vec::new();
        file.take(found.len() - self.offset).read_to_end(&mut piece)?;
        self.offset += piece.len() as u64;
        Ok((piece, is_whole))
    }
}

/// Complete entries, by statement.
fn entries(text: &str, own_connection: u32) -> HashMap<Key, Cost> {
    let mut found: HashMap<Key, Cost> = HashMap::new();
    let begin = if text.starts_with("# User@Host:") {
        0
    } else {
        text.find("\n# User@Host:").map_or(text.len(), |at| at + 1)
    };
    for entry in text[begin..].split("# User@Host:").skip(1) {
        let Some((key, cost)) = one_entry(entry, own_connection) else { continue };
        if found.len() < KEPT || found.contains_key(&key) {
            found.entry(key).or_default().add(&cost);
        }
    }
    found
}

/// `None` for one of this program's connection.
fn one_entry(entry: &str, own_connection: u32) -> Option<(Key, Cost)> {
    let mut cost = Cost { executions: 1, ..Cost::default() };
    let mut schema = String::new();
    let mut statement = Vec::new();
    for line in entry.lines().skip(1) {
        if let Some(figures) = line.strip_prefix('#').filter(|_| statement.is_empty()) {
            let mut words = figures.split_whitespace();
            while let Some(name) = words.next() {
                let Some(name) = name.strip_suffix(':') else { continue };
                let value = words.next().unwrap_or_default();
                match name {
                    "Thread_id" if value.parse() == Ok(own_connection) => return None,
                    // An empty one is followed by the next name.
                    "Schema" if value != "QC_hit:" => schema = value.to_owned(),
                    "Query_time" => cost.time_s = value.parse().unwrap_or(0.0),
                    "Rows_examined" => cost.rows_examined = value.parse().unwrap_or(0),
                    "Tmp_disk_tables" => cost.tmp_disk_tables = value.parse().ok(),
                    "Pages_accessed" => cost.pages_accessed = value.parse().ok(),
                    "Pages_read" => cost.pages_read = value.parse().ok(),
                    _ => {}
                }
            }
            continue;
        }
        let is_preamble = statement.is_empty()
            && (line.starts_with("use ") || line.starts_with("SET timestamp="));
        // The head that a server writes when it opens the log.
        if !is_preamble && !line.starts_with("# Time:") {
            statement.push(line);
        }
    }
    Some(((schema, without_literals(&statement.join("\n"))), cost))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn entry(id: u32, pages_read: u32) -> String {
        format!(
            "# Time: 261127 10:00:00\n# User@Host: app[app] @ localhost []\n\
             # Thread_id: 5  Schema: shop  QC_hit: No\n\
             # Query_time: 0.250000  Lock_time: 0.000012  Rows_sent: 1  Rows_examined: 8\n\
             # Rows_affected: 0  Bytes_sent: 60\n\
             # Pages_accessed: 20  Pages_read: {pages_read}  Pages_prefetched: 0  \
             Pages_updated: 0  Old_rows_read: 0\n\
             # Pages_read_time: 17.0204  Engine_time: 248.1297\n#\n\
             use shop;\nSET timestamp=1700000000;\n\
             SELECT *\nFROM orders\n# not a figure: 5\nWHERE id = {id};\n"
        )
    }

    #[test]
    fn entries_are_read_as_they_come_in_pieces_and_after_a_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slow.log");
        std::fs::write(&path, entry(1, 1000)).unwrap();
        let mut log = SlowLog::open(&path, Some(std::process::id())).unwrap();
        let mut read = || {
            let (found, is_whole) = log.read(9).unwrap();
            assert!(is_whole);
            found.into_values().map(|cost| (cost.executions, cost.pages_read)).collect::<Vec<_>>()
        };
        assert_eq!(read(), [], "what was there before");
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let third = entry(3, 40);
        let (begin, end) = third.split_at(third.len() / 2);
        append(&(entry(2, 95) + begin));
        assert_eq!(read(), [(1, Some(95))]);
        append(end);
        assert_eq!(read(), [(1, Some(40))]);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, entry(4, 7)).unwrap();
        assert_eq!(read(), [(1, Some(7))]);
    }

    #[test]
    fn statements_that_differ_in_literals_are_one() {
        assert!(entries(&entry(1, 10), 5).is_empty(), "one of this program's connection");
        let found = entries(&(entry(1, 10) + &entry(2, 5)), 9);
        let (key, cost) = found.iter().next().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(key.0, "shop");
        assert_eq!(key.1, "SELECT * FROM orders WHERE id = ?");
        assert_eq!((cost.executions, cost.pages_accessed), (2, Some(40)));
        assert_eq!((cost.time_s, cost.rows_examined), (0.5, 16));
    }
}
