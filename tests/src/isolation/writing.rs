//! The writes of a session.
//!
//! Whatever ends a list (a deletion, a list begun anew) is done by a statement that returns it, or
//! after a locking read, so that the history knows which list it was. What only adds to a list may
//! be blind.

use super::history::{Follows, Key, Level, Read, Row, Scope, Write, WriteId};
use super::reading::Lock;
use super::schema::{ALL_KEYS, columns, filler, k, pad_sql};
use super::session::{Session, Trouble};

/// From this length on, a list that is written whole begins anew.
const LIST_MAX: usize = 12;

#[derive(Clone, Copy)]
enum Operation {
    Read,
    Append,
    Upsert,
    ReadModifyWrite,
    Insert,
    Delete,
    AppendToBucket,
    DeleteBucket,
    Noise,
}

fn put(key: Key, id: WriteId, bucket: u8, follows: Follows) -> Write {
    Write { key, id, bucket: Some(bucket), fresh: follows == Follows::Nothing, follows }
}

impl Session {
    /// One operation within a transaction: a statement, or a few.
    pub(super) fn operation(&mut self) -> Result<(), Trouble> {
        let operation = self.dice.weighted(&[
            (45, Operation::Read),
            (14, Operation::Append),
            (8, Operation::Upsert),
            (16, Operation::ReadModifyWrite),
            (3, Operation::Insert),
            (4, Operation::Delete),
            (5, Operation::AppendToBucket),
            (1, Operation::DeleteBucket),
            (4, Operation::Noise),
        ]);
        let key = self.any_key();
        match operation {
            Operation::Read => self.read(),
            Operation::Append => self.append(key),
            Operation::Upsert => self.upsert(key),
            Operation::ReadModifyWrite => self.read_modify_write(key),
            Operation::Insert => self.insert(key),
            Operation::Delete => self.delete(key),
            Operation::AppendToBucket => self.append_to_bucket(key.table),
            Operation::DeleteBucket => self.delete_bucket(key.table),
            Operation::Noise => self.noise(key.table),
        }
    }

    /// A statement that is a transaction by itself.
    pub(super) fn single(&mut self) -> Result<(), Trouble> {
        let key = self.any_key();
        match self.dice.range(0, 9) {
            0..=5 => self.read(),
            6..=7 => self.append(key),
            _ => self.upsert(key),
        }
    }

    /// Adds to a list without having read it.
    fn append(&mut self, key: Key) -> Result<(), Trouble> {
        let (id, bucket) = (self.id(), self.bucket_for(key));
        let sql = format!(
            "UPDATE t{} SET b = {bucket}, l = CONCAT(l, ' {id}'), pad = {} WHERE k = {}",
            key.table,
            pad_sql(id),
            k(key.key)
        );
        self.update(&sql, put(key, id, bucket, Follows::Unseen))
    }

    /// An UPDATE of one row, if it is there.
    fn update(&mut self, sql: &str, write: Write) -> Result<(), Trouble> {
        let answer = self.ask_to_write(sql, &[write])?;
        match answer.affected {
            0 => {
                // The id is recorded, for it must never be seen.
                self.fail(answer.span, sql, &[write]);
                let scopes = vec![Scope::point(write.key)];
                let read = self.if_certain(Read { scopes, locking: true, ..Read::default() });
                self.note(answer.span, sql, vec![read], Vec::new());
            }
            1 => self.note(answer.span, sql, Vec::new(), vec![write]),
            rows => return Err(Trouble::Wrong(format!("{sql}: {rows} rows changed"))),
        }
        Ok(())
    }

    /// What a write that has found no row says of rows that are not there.
    fn if_certain(&self, read: Read) -> Read {
        let certain = !self.load.interrupts;
        if certain { read } else { Read { scopes: Vec::new(), lasting: Vec::new(), ..read } }
    }

    /// Adds to a list, or begins it.
    fn upsert(&mut self, key: Key) -> Result<(), Trouble> {
        let (id, bucket) = (self.id(), self.bucket_for(key));
        let sql = format!(
            "INSERT INTO t{} VALUES ({}, {bucket}, '{id}', {})
             ON DUPLICATE KEY UPDATE b = VALUES(b), l = CONCAT(l, ' {id}'), pad = VALUES(pad)",
            key.table,
            k(key.key),
            pad_sql(id)
        );
        let write = put(key, id, bucket, Follows::Unseen);
        let answer = self.ask_to_write(&sql, &[write])?;
        let write = match answer.affected {
            1 => put(key, id, bucket, Follows::Nothing),
            2 => write,
            rows => return Err(Trouble::Wrong(format!("{sql}: {rows} rows changed"))),
        };
        self.note(answer.span, &sql, Vec::new(), vec![write]);
        Ok(())
    }

    fn insert(&mut self, key: Key) -> Result<(), Trouble> {
        self.insert_by("INSERT", key, Follows::Nothing)
    }

    fn insert_by(&mut self, verb: &str, key: Key, follows: Follows) -> Result<(), Trouble> {
        let (id, bucket) = (self.id(), self.bucket_for(key));
        let sql = format!(
            "{verb} INTO t{} VALUES ({}, {bucket}, '{id}', {})",
            key.table,
            k(key.key),
            pad_sql(id)
        );
        let write = Write { fresh: true, ..put(key, id, bucket, follows) };
        let answer = self.ask_to_write(&sql, &[write])?;
        self.note(answer.span, &sql, Vec::new(), vec![write]);
        Ok(())
    }

    /// Reads a row and writes it anew, whole.
    fn read_modify_write(&mut self, key: Key) -> Result<(), Trouble> {
        let may_be_unlocked = self.level != Level::ReadCommitted || self.load.careless;
        let lock = match self.dice.range(0, 9) {
            0..=4 if may_be_unlocked => Lock::None,
            5 => Lock::Share,
            _ => Lock::Update,
        };
        let Some(row) = self.read_row(key, lock)? else { return self.insert(key) };
        let last = *row.list.last().expect("a row has a list");
        let anew = row.list.len() > LIST_MAX || self.dice.percent(10);
        if anew && (lock != Lock::None || self.level != Level::ReadCommitted) {
            return self.begin_anew(key, last);
        }
        self.write_whole(key, &row.list, last)
    }

    fn write_whole(&mut self, key: Key, list: &[WriteId], last: WriteId) -> Result<(), Trouble> {
        let (id, bucket) = (self.id(), self.bucket_for(key));
        let list: String = list.iter().map(|id| format!("{id} ")).collect();
        let sql = format!(
            "UPDATE t{} SET b = {bucket}, l = '{list}{id}', pad = {} WHERE k = {}",
            key.table,
            pad_sql(id),
            k(key.key)
        );
        let follows = Follows::List(last);
        self.update(&sql, Write { fresh: list.is_empty(), ..put(key, id, bucket, follows) })
    }

    /// Ends a list that was read, and mostly begins another.
    fn begin_anew(&mut self, key: Key, last: WriteId) -> Result<(), Trouble> {
        match self.dice.range(0, 3) {
            0 => self.write_whole(key, &[], last),
            1 => self.insert_by("REPLACE", key, Follows::List(last)),
            2 => self.delete(key),
            _ => {
                self.delete(key)?;
                self.insert(key)
            }
        }
    }

    fn delete(&mut self, key: Key) -> Result<(), Trouble> {
        let scope = Scope::point(key);
        let asked = Read { scopes: vec![scope], locking: true, ..Read::default() };
        self.delete_where(key.table, &format!("k = {}", k(key.key)), asked)
    }

    fn delete_bucket(&mut self, table: u8) -> Result<(), Trouble> {
        let bucket = self.any_bucket();
        // The server chooses the index, and may choose one in which rows have no fixed place.
        let scope = Scope { table, keys: ALL_KEYS, buckets: 1 << bucket };
        let scopes = if self.level == Level::Serializable { vec![scope] } else { Vec::new() };
        let lasting = if self.load.misses_moved_rows { Vec::new() } else { vec![scope] };
        let asked = Read { scopes, lasting, locking: true, ..Read::default() };
        self.delete_where(table, &format!("b = {bucket} AND l <> ''"), asked)
    }

    fn delete_where(&mut self, table: u8, which: &str, asked: Read) -> Result<(), Trouble> {
        let id = self.id();
        let sql = format!("DELETE FROM t{table} WHERE {which} RETURNING {}", columns(table, true));
        let answer = self.ask_to_write(&sql, &[])?;
        let delete = |row: &Row| {
            let follows = Follows::List(*row.list.last().expect("a row has a list"));
            Write { key: row.key, id, bucket: None, fresh: true, follows }
        };
        let writes = answer.rows.iter().map(delete).collect();
        let asked = if answer.rows.is_empty() { self.if_certain(asked) } else { asked };
        let read = Read { rows: answer.rows, ..asked };
        self.note(answer.span, &sql, vec![read], writes);
        Ok(())
    }

    /// Adds to all lists of a bucket, whichever these are, and perhaps moves them; then looks which
    /// these were.
    fn append_to_bucket(&mut self, table: u8) -> Result<(), Trouble> {
        let (id, bucket) = (self.id(), self.any_bucket());
        let indexes: &[&str] = &["PRIMARY", "by_bucket", "cover"];
        let indexes = if self.locks_by_any_index() { indexes } else { &indexes[..1] };
        let index = *self.dice.pick(indexes);
        let moves_to = self.dice.percent(30).then(|| self.any_bucket());
        let set = moves_to.map_or(String::new(), |to| format!("b = {to}, "));
        let sql = format!(
            "UPDATE t{table} FORCE INDEX ({index}) SET {set}l = CONCAT(l, ' {id}'), pad = {}
             WHERE b = {bucket} AND l <> ''",
            pad_sql(id)
        );
        let write = |key| put(key, id, moves_to.unwrap_or(bucket), Follows::Unseen);
        let all = Scope { table, keys: ALL_KEYS, buckets: 1 << bucket };
        let planned: Vec<Write> = all.keys().map(write).collect();
        let answer = self.ask_to_write(&sql, &planned)?;
        let found = format!(
            "SELECT {} FROM t{table} FORCE INDEX (PRIMARY) WHERE l = '{id}' OR l LIKE '% {id}'",
            columns(table, true)
        );
        let mut written = Vec::new();
        let mut look = None;
        if answer.affected > 0 {
            let looked = match self.ask_to_write(&found, &[]) {
                // What was written is not known now.
                Err(Trouble::Refused) => return Err(Trouble::RollBack),
                looked => looked?,
            };
            if looked.rows.len() as u64 != answer.affected {
                let (rows, affected) = (looked.rows, answer.affected);
                return Err(Trouble::Wrong(format!(
                    "{sql}: {affected} rows changed, but {rows:?} found"
                )));
            }
            written = looked.rows.iter().map(|row| write(row.key)).collect();
            look = Some(looked);
        }
        let mut others = all;
        written.iter().for_each(|write| others.keys &= !(1 << write.key.key));
        let tells_absence = index != "cover" || self.level == Level::Serializable;
        let scopes = if tells_absence { vec![others] } else { Vec::new() };
        let lasting = if self.load.misses_moved_rows { Vec::new() } else { vec![others] };
        let read = Read { scopes, lasting, locking: true, ..Read::default() };
        let read = if written.is_empty() { self.if_certain(read) } else { read };
        let unwritten: Vec<Write> = others.keys().map(write).collect();
        self.fail(answer.span, &sql, &unwritten);
        self.note(answer.span, &sql, vec![read], written);
        if let Some(looked) = look {
            let locking = self.level == Level::Serializable;
            let read = Read { rows: looked.rows, locking, ..Read::default() };
            self.note(looked.span, &found, vec![read], Vec::new());
        }
        Ok(())
    }

    /// Writes rows that only fill the table: leaves split and merge, and purge has work.
    fn noise(&mut self, table: u8) -> Result<(), Trouble> {
        let (at, bucket) = (filler(&mut self.dice, self.load.keys), self.any_bucket());
        let len = self.dice.range(0, 2500);
        let sql = match self.dice.range(0, 3) {
            0 => format!("DELETE FROM t{table} WHERE k BETWEEN {at} AND {} AND l = ''", at + 5),
            1 => {
                format!("UPDATE t{table} SET b = {bucket}, pad = REPEAT('-', {len}) WHERE k = {at}")
            }
            _ => format!("REPLACE INTO t{table} VALUES ({at}, {bucket}, '', REPEAT('-', {len}))"),
        };
        // The step says nothing of rows with lists, but it may have failed, and says so.
        let answer = self.ask_to_write(&sql, &[])?;
        self.note(answer.span, &sql, Vec::new(), Vec::new());
        Ok(())
    }
}
