//! A history: what sessions did to the lists, when, and what came back. Nothing here knows SQL or a
//! server.
//!
//! Every row is a list of the ids of the writes that made it, oldest first, and a bucket, which
//! only its last write decides. A list shows its own past, so its reader shows in which order
//! the writes took place. A write that deletes the row, or begins the list anew, knows the list
//! that it ends.
//!
//! Times are nanoseconds of one clock; a span is from before a statement was sent until after its
//! answer came, so whatever the server did happened inside.

use std::collections::HashSet;
use std::fmt;

/// The id of a write. The same statement writes it to each of the rows it changes.
pub type WriteId = u32;

/// A row's place: a table and a key in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Number of the table.
    pub table: u8,
    /// Number of the key, below 32.
    pub key: u8,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}[{}]", self.table, self.key)
    }
}

/// An isolation level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Each statement reads what is committed when it begins.
    ReadCommitted,
    /// Snapshot isolation: one snapshot, and no write over what it does not see.
    RepeatableRead,
    /// All reads lock, keys that are not there included.
    Serializable,
}

impl Level {
    /// All of them, the weakest first.
    pub const ALL: [Level; 3] = [Level::ReadCommitted, Level::RepeatableRead, Level::Serializable];

    pub fn sql(self) -> &'static str {
        match self {
            Level::ReadCommitted => "READ COMMITTED",
            Level::RepeatableRead => "REPEATABLE READ",
            Level::Serializable => "SERIALIZABLE",
        }
    }

    /// The level of this name (its initials, or as SQL has it, with `-` for the space); or a
    /// message for the user.
    pub fn by_name(name: &str) -> Result<Level, &'static str> {
        match name.to_lowercase().as_str() {
            "rc" | "read-committed" => Ok(Level::ReadCommitted),
            "rr" | "repeatable-read" => Ok(Level::RepeatableRead),
            "s" | "serializable" => Ok(Level::Serializable),
            _ => Err("neither rc, rr nor serializable"),
        }
    }
}

/// From before something was asked until after it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Not before this.
    pub from: u64,
    /// Not after this; `u64::MAX`: no answer came.
    pub to: u64,
}

/// A row as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where.
    pub key: Key,
    /// The writes that made it.
    pub list: Vec<WriteId>,
    /// The column that secondary indexes are on.
    pub bucket: u8,
}

/// The rows of one table that a read asks for: a set of keys and a set of buckets, bit by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub table: u8,
    pub keys: u32,
    /// Buckets; all of them if the read does not ask.
    pub buckets: u32,
}

impl Scope {
    /// One key, whatever its bucket.
    pub fn point(key: Key) -> Scope {
        Scope { table: key.table, keys: 1 << key.key, buckets: u32::MAX }
    }

    /// The keys it is about.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        let (table, keys) = (self.table, self.keys);
        (0..32).filter(move |key| keys >> key & 1 == 1).map(move |key| Key { table, key })
    }

    /// Whether a row of this bucket, at one of the keys, is asked for.
    pub fn admits(&self, bucket: u8) -> bool {
        self.buckets >> bucket & 1 == 1
    }
}

/// A read by one statement.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// What was asked for. A row in here that did not come was not there, or in another bucket.
    /// Empty: the read says nothing of rows that did not come.
    pub scopes: Vec<Scope>,
    /// The same, of rows that are so from the beginning of the statement to its end: other rows may
    /// be missing.
    pub lasting: Vec<Scope>,
    /// What came.
    pub rows: Vec<Row>,
    /// Whether it locked what it read, and so read what was newest.
    pub locking: bool,
}

/// What a write found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// A list that it did not see: the lists to come will tell.
    Unseen,
    /// No row.
    Nothing,
    /// The list that ends with this write.
    List(WriteId),
}

/// A write of one row.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where.
    pub key: Key,
    pub id: WriteId,
    /// The row's bucket from now on; none: the row is deleted.
    pub bucket: Option<u8>,
    /// Whether the list begins anew.
    pub fresh: bool,
    /// What was there before.
    pub follows: Follows,
}

/// What a statement was about, beside what it read and wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads and writes, in this order, which took place.
    Done,
    /// It failed, and must have changed nothing: its writes are only named.
    Failed,
    /// START TRANSACTION WITH CONSISTENT SNAPSHOT.
    Snapshot,
    Savepoint,
    /// ROLLBACK TO SAVEPOINT: all writes since the savepoint are undone.
    BackToSavepoint,
}

/// A statement of a transaction.
#[derive(Clone, Debug)]
pub struct Step {
    /// When.
    pub span: Span,
    /// For the reader of a report.
    pub sql: String,
    /// See there.
    pub kind: Kind,
    pub reads: Vec<Read>,
    /// What it wrote.
    pub writes: Vec<Write>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// COMMIT was answered.
    Committed,
    /// It was rolled back, or COMMIT was never sent.
    Aborted,
    /// COMMIT was sent, and the server died.
    Unknown,
}

/// A transaction, or a statement that is one by itself.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub session: u32,
    /// At which level.
    pub level: Level,
    /// Whether it is a single statement that commits by itself.
    pub autocommit: bool,
    /// Its statements.
    pub steps: Vec<Step>,
    /// When it ended: COMMIT, or whatever ended it.
    pub end: Span,
    /// How it ended.
    pub outcome: Outcome,
}

/// What became of a transaction whose COMMIT was not answered, as far as its mark shows
/// that it left.
#[derive(Clone, Debug, Default)]
pub struct AfterCrash {
    pub rows: Vec<Row>,
    /// Transactions (numbers in the history) that left a mark, if they were to leave one.
    pub marked: HashSet<usize>,
    /// Transactions that were to leave one.
    pub marking: HashSet<usize>,
}

/// All that happened between two moments at which nothing happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The rows at the beginning; the keys that are not among them have none.
    pub initial: Vec<Row>,
    pub transactions: Vec<Transaction>,
    /// If the server was killed at the end: what was there after its recovery.
    pub after_crash: Option<AfterCrash>,
}
