//! What a worker expects, and its journal: a text file beside the data directory that survives the
//! crash.
//!
//! ```text
//! ? r12=5 r16=- t9=3,4,50      changes of a transaction, written before COMMIT (or XA PREPARE) is sent
//! !                            XA PREPARE was acknowledged, XA COMMIT is sent next
//! +                            acknowledged        (or "-": refused)
//! ```
//!
//! A trailing `?` line without an answer is the transaction in doubt; with a `!` behind it, it is
//! only to be committed. After a verification the journal is written anew as one acknowledged
//! transaction that makes the whole state.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A worker's own table, which its DDL statements make and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTable {
    /// It is renamed between two names.
    pub renamed: bool,
    /// It has the additional column.
    pub wide: bool,
    /// Its rows are numbered from 1.
    pub rows: u32,
}

/// A transfer between accounts: from, to, amount.
pub type Transfer = (u32, u32, i64);

/// All that belongs to a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Rows of `record`: key → version.
    pub records: BTreeMap<u32, u64>,
    /// Rows of `loose`, the table without a primary key.
    pub loose: BTreeMap<u32, u64>,
    /// Rows of `transfer`.
    pub transfers: BTreeMap<u32, Transfer>,
    /// The worker's own table, if there is one.
    pub own: Option<OwnTable>,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A row of `record` has this version, or is gone.
    Record(u32, Option<u64>),
    /// The same for `loose`.
    Loose(u32, Option<u64>),
    /// A transfer was booked.
    Transfer(u32, Transfer),
    /// The worker's own table is so, or is gone.
    Own(Option<OwnTable>),
}

impl State {
    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        fn set(map: &mut BTreeMap<u32, u64>, id: u32, version: Option<u64>) {
            match version {
                Some(version) => map.insert(id, version),
                None => map.remove(&id),
            };
        }
        match change {
            Change::Record(id, version) => set(&mut self.records, *id, *version),
            Change::Loose(id, version) => set(&mut self.loose, *id, *version),
            Change::Transfer(number, transfer) => {
                self.transfers.insert(*number, *transfer);
            }
            Change::Own(own) => self.own.clone_from(own),
        }
    }

    /// The state after all these changes.
    pub fn with(&self, changes: &[Change]) -> State {
        let mut state = self.clone();
        changes.iter().for_each(|change| state.apply(change));
        state
    }

    /// Changes that make this state from nothing.
    fn changes(&self) -> Vec<Change> {
        let records = self.records.iter().map(|(id, version)| Change::Record(*id, Some(*version)));
        let loose = self.loose.iter().map(|(id, version)| Change::Loose(*id, Some(*version)));
        let transfers =
            self.transfers.iter().map(|(number, transfer)| Change::Transfer(*number, *transfer));
        records.chain(loose).chain(transfers).chain([Change::Own(self.own.clone())]).collect()
    }

    /// Where another state differs, described; at most a few places.
    pub fn differences(&self, actual: &State) -> Vec<String> {
        let mut found = Vec::new();
        maps("record", &self.records, &actual.records, &mut found);
        maps("loose", &self.loose, &actual.loose, &mut found);
        maps("transfer", &self.transfers, &actual.transfers, &mut found);
        if self.own != actual.own {
            found.push(format!("own table: expected {:?}, found {:?}", self.own, actual.own));
        }
        found
    }
}

fn maps<V: PartialEq + fmt::Debug>(
    what: &str,
    expected: &BTreeMap<u32, V>,
    actual: &BTreeMap<u32, V>,
    found: &mut Vec<String>,
) {
    let lost = expected.iter().filter(|(id, value)| actual.get(id) != Some(*value));
    let places: Vec<String> = lost
        .map(|(id, value)| format!("{id}: expected {value:?}, found {:?}", actual.get(id)))
        .collect();
    let phantoms: Vec<String> = actual
        .iter()
        .filter(|(id, _)| !expected.contains_key(id))
        .map(|(id, value)| format!("{id}: phantom {value:?}"))
        .collect();
    let all: Vec<String> = places.into_iter().chain(phantoms).collect();
    if !all.is_empty() {
        found.push(format!(
            "{what}: {} rows differ: {}",
            all.len(),
            all[..all.len().min(5)].join("; ")
        ));
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: &Option<u64>| version.map_or("-".into(), |v| v.to_string());
        match self {
            Change::Record(id, v) => write!(f, "r{id}={}", version(v)),
            Change::Loose(id, v) => write!(f, "l{id}={}", version(v)),
            Change::Transfer(number, (from, to, amount)) => {
                write!(f, "t{number}={from},{to},{amount}")
            }
            Change::Own(None) => write!(f, "o=-"),
            Change::Own(Some(own)) => {
                write!(f, "o={},{},{}", u8::from(own.renamed), u8::from(own.wide), own.rows)
            }
        }
    }
}

impl Change {
    fn parse(text: &str) -> Option<Change> {
        let (key, value) = text.split_once('=')?;
        let (kind, id) = key.split_at(1);
        let version = || if value == "-" { Some(None) } else { value.parse().ok().map(Some) };
        let numbers: Vec<i64> = value.split(',').filter_map(|n| n.parse().ok()).collect();
        let small = |n: i64| u32::try_from(n).ok();
        match (kind, numbers.as_slice()) {
            ("r", _) => Some(Change::Record(id.parse().ok()?, version()?)),
            ("l", _) => Some(Change::Loose(id.parse().ok()?, version()?)),
            ("t", [from, to, amount]) => {
                Some(Change::Transfer(id.parse().ok()?, (small(*from)?, small(*to)?, *amount)))
            }
            ("o", [renamed, wide, rows]) => Some(Change::Own(Some(OwnTable {
                renamed: *renamed == 1,
                wide: *wide == 1,
                rows: small(*rows)?,
            }))),
            ("o", _) if value == "-" => Some(Change::Own(None)),
            _ => None,
        }
    }
}

/// A worker's journal. See the [module](self).
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// What is certain.
    pub state: State,
    /// The changes that were sent and not answered.
    pub in_doubt: Option<Vec<Change>>,
    /// These were prepared: they can't be gone.
    pub is_prepared: bool,
}

impl Journal {
    /// Opens a journal, or begins one.
    ///
    /// # Panics
    /// If it cannot be read, or is not one.
    pub fn open(path: &Path) -> Journal {
        let text = fs::read_to_string(path).unwrap_or_default();
        let file =
            File::options().create(true).append(true).open(path).expect("a journal can be opened");
        let mut journal = Journal {
            path: path.into(),
            file,
            state: State::default(),
            in_doubt: None,
            is_prepared: false,
        };
        for line in text.lines() {
            match line.split_at(1) {
                ("?", changes) => {
                    let parse =
                        |c| Change::parse(c).unwrap_or_else(|| panic!("{}: {c}", path.display()));
                    journal.in_doubt = Some(changes.split_whitespace().map(parse).collect());
                }
                ("!", _) => journal.is_prepared = true,
                (answer, _) => journal.resolve(answer == "+"),
            }
        }
        journal
    }

    /// Notes what is about to be sent.
    ///
    /// # Panics
    /// If the journal cannot be written.
    pub fn sending(&mut self, changes: Vec<Change>) {
        assert!(self.in_doubt.is_none(), "the last transaction has no answer");
        let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
        self.write(&format!("? {}\n", words.join(" ")));
        self.in_doubt = Some(changes);
    }

    /// Notes that what was sent is prepared, and is going to be committed.
    ///
    /// # Panics
    /// If the journal cannot be written.
    pub fn prepared(&mut self) {
        self.write("!\n");
        self.is_prepared = true;
    }

    /// Notes the answer.
    ///
    /// # Panics
    /// If the journal cannot be written.
    pub fn answered(&mut self, committed: bool) {
        self.write(if committed { "+\n" } else { "-\n" });
        self.resolve(committed);
    }

    fn write(&mut self, line: &str) {
        self.file.write_all(line.as_bytes()).expect("the journal can be written");
    }

    fn resolve(&mut self, committed: bool) {
        let changes = self.in_doubt.take().expect("an answer follows a question");
        self.is_prepared = false;
        if committed {
            changes.iter().for_each(|change| self.state.apply(change));
        }
    }

    /// Writes the journal anew, now that the doubt is resolved.
    ///
    /// # Panics
    /// If the journal cannot be written.
    pub fn settle(mut self, in_doubt_was_committed: bool) {
        if self.in_doubt.is_some() {
            self.resolve(in_doubt_was_committed);
        }
        let words: Vec<String> = self.state.changes().iter().map(ToString::to_string).collect();
        fs::write(&self.path, format!("? {}\n+\n", words.join(" ")))
            .expect("the journal can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_survives_its_text() {
        let own = OwnTable { renamed: true, wide: false, rows: 7 };
        let changes = [
            Change::Record(12, Some(5)),
            Change::Loose(3, None),
            Change::Transfer(9, (1, 2, -50)),
            Change::Own(Some(own)),
            Change::Own(None),
        ];
        for change in changes {
            assert_eq!(Change::parse(&change.to_string()), Some(change));
        }
    }

    #[test]
    fn an_unanswered_transaction_is_in_doubt() {
        let dir = std::env::temp_dir().join(format!("tidepool-journal-{}", std::process::id()));
        let mut journal = Journal::open(&dir);
        journal.sending(vec![Change::Record(1, Some(1))]);
        journal.answered(true);
        journal.sending(vec![Change::Record(2, Some(1))]);
        journal.answered(false);
        journal.sending(vec![Change::Record(1, None)]);
        drop(journal);
        let journal = Journal::open(&dir);
        assert_eq!(journal.state.records, BTreeMap::from([(1, 1)]));
        assert_eq!(journal.in_doubt, Some(vec![Change::Record(1, None)]));
        journal.settle(true);
        let mut journal = Journal::open(&dir);
        assert_eq!(journal.state, State::default());
        journal.sending(vec![Change::Record(3, Some(1))]);
        journal.prepared();
        drop(journal);
        assert!(Journal::open(&dir).is_prepared);
        fs::remove_file(&dir).expect("the journal can be removed");
    }
}
