//! The reads of a session: which rows, by which index, with which locks.

use super::history::{Key, Level, Read, Row, Scope};
use super::schema::{ALL_KEYS, BUCKETS, TABLES, columns, k};
use super::session::{Session, Trouble};

/// What a read asks for.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// One key.
    Point,
    /// Some keys.
    Keys,
    /// Keys from one to another.
    KeyRange,
    /// The whole table.
    Table,
    /// A bucket, by an index that leads to the row.
    Bucket,
    /// Buckets from one to another, the same.
    BucketRange,
    /// A bucket, by an index that has all that is asked for.
    Covered,
    /// Buckets from one to another, the same.
    CoveredRange,
    /// A bucket, by an index that may not be there.
    Extra,
}

/// The clause for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    None,
    Share,
    Update,
    /// For update, and what others have locked is left out.
    SkipLocked,
    /// For update, and an error if others have locked it.
    NoWait,
}

impl Lock {
    fn sql(self) -> &'static str {
        match self {
            Lock::None => "",
            Lock::Share => " LOCK IN SHARE MODE",
            Lock::Update => " FOR UPDATE",
            Lock::SkipLocked => " FOR UPDATE SKIP LOCKED",
            Lock::NoWait => " FOR UPDATE NOWAIT",
        }
    }
}

impl Session {
    pub(super) fn any_key(&mut self) -> Key {
        let table = self.dice.range(0, usize::from(TABLES) - 1) as u8;
        // Some keys are hotter than others.
        let last = usize::from(self.load.keys) - 1;
        let key = self.dice.range(0, last).min(self.dice.range(0, last)) as u8;
        Key { table, key }
    }

    pub(super) fn any_bucket(&mut self) -> u8 {
        self.dice.range(0, usize::from(BUCKETS) - 1) as u8
    }

    /// The bucket that a write of a key gives it: mostly the same one.
    pub(super) fn bucket_for(&mut self, key: Key) -> u8 {
        if self.dice.percent(60) { key.key % BUCKETS } else { self.any_bucket() }
    }

    /// A read of any kind.
    pub(super) fn read(&mut self) -> Result<(), Trouble> {
        let lock = self.dice.weighted(&[
            (60, Lock::None),
            (12, Lock::Share),
            (12, Lock::Update),
            (3, Lock::SkipLocked),
            (3, Lock::NoWait),
        ]);
        if lock == Lock::None && self.dice.percent(20) {
            return self.read_both_tables();
        }
        let table = self.dice.range(0, usize::from(TABLES) - 1) as u8;
        let (sql, scope, fixed_place) = self.select(table);
        let clustered = !sql.contains("FORCE INDEX") || sql.contains("FORCE INDEX (PRIMARY)");
        let lock = if clustered || self.locks_by_any_index() { lock } else { Lock::None };
        let sql = format!("{sql}{}", lock.sql());
        let locking = lock != Lock::None;
        // What is not locked because it isn't there may have passed behind the reader's back, in an
        // index where it has no fixed place.
        let tells_absence = match lock {
            Lock::SkipLocked => false,
            Lock::None => true,
            _ => fixed_place || self.level == Level::Serializable,
        };
        let scopes = if tells_absence { vec![scope] } else { Vec::new() };
        let tells_misses = locking && lock != Lock::SkipLocked && !self.load.misses_moved_rows;
        let lasting = if tells_misses { vec![scope] } else { Vec::new() };
        let answer = self.ask_to_write(&sql, &[])?;
        let read = Read { scopes, lasting, rows: answer.rows, locking };
        self.note(answer.span, &sql, vec![read], Vec::new());
        Ok(())
    }

    /// Whether locking reads by secondary indexes keep what the level promises.
    pub(super) fn locks_by_any_index(&self) -> bool {
        !(self.load.clustered_only && self.level == Level::RepeatableRead)
    }

    /// One statement that reads both tables: at one moment, at any level.
    fn read_both_tables(&mut self) -> Result<(), Trouble> {
        let (mut parts, mut scopes) = (Vec::new(), Vec::new());
        for table in 0..TABLES {
            let (sql, scope, _) = self.select(table);
            parts.push(format!("({sql})"));
            scopes.push(scope);
        }
        self.select_and_note(&parts.join(" UNION ALL "), scopes, false)?;
        Ok(())
    }

    fn select_and_note(
        &mut self,
        sql: &str,
        scopes: Vec<Scope>,
        locking: bool,
    ) -> Result<Vec<Row>, Trouble> {
        let answer = self.ask_to_write(sql, &[])?;
        let lasting = Vec::new();
        let read = Read { scopes, lasting, rows: answer.rows.clone(), locking };
        self.note(answer.span, sql, vec![read], Vec::new());
        Ok(answer.rows)
    }

    /// Reads one row by its key.
    pub(super) fn read_row(&mut self, key: Key, lock: Lock) -> Result<Option<Row>, Trouble> {
        let sql = format!(
            "SELECT {} FROM t{} WHERE k = {}{}",
            columns(key.table, true),
            key.table,
            k(key.key),
            lock.sql()
        );
        let rows = self.select_and_note(&sql, vec![Scope::point(key)], lock != Lock::None)?;
        Ok(rows.into_iter().next())
    }

    /// A SELECT, what it asks for, and whether each row has one place, whatever its content, in the
    /// part of the index that is read.
    fn select(&mut self, table: u8) -> (String, Scope, bool) {
        let path = self.dice.weighted(&[
            (25, Path::Point),
            (10, Path::Keys),
            (10, Path::KeyRange),
            (10, Path::Table),
            (12, Path::Bucket),
            (8, Path::BucketRange),
            (12, Path::Covered),
            (8, Path::CoveredRange),
            (if self.load.extra_index { 15 } else { 0 }, Path::Extra),
        ]);
        let (all, last) = (ALL_KEYS, self.load.keys - 1);
        let (key, other) = (self.any_key().key, self.dice.range(0, usize::from(last)) as u8);
        let (low, high) = (key.min(other), key.max(other));
        let (b, c) = (self.any_bucket(), self.any_bucket());
        let (b_low, b_high) = (b.min(c), b.max(c));
        let backward = if self.dice.percent(25) { " DESC" } else { "" };
        let bits = |low: u8, high: u8| ((1u32 << (high + 1)) - 1) & !((1u32 << low) - 1);
        let any = u32::MAX;
        let (place, keys, buckets, fixed) = match path {
            Path::Point => (format!("WHERE k = {}", k(key)), 1 << key, any, true),
            Path::Keys => {
                let list = format!("WHERE k IN ({}, {})", k(key), k(other));
                (list, 1 << key | 1 << other, any, true)
            }
            Path::KeyRange => {
                let index = "FORCE INDEX (PRIMARY)";
                let (from, to) = (k(low), k(high));
                let place = format!(
                    "{index} WHERE k BETWEEN {from} AND {to} AND l <> '' ORDER BY k{backward}"
                );
                (place, bits(low, high), any, true)
            }
            Path::Table => {
                let order = if backward.is_empty() { "" } else { " ORDER BY k DESC" };
                (format!("FORCE INDEX (PRIMARY) WHERE l <> ''{order}"), all, any, true)
            }
            Path::Bucket => {
                let place = format!(
                    "FORCE INDEX (by_bucket) WHERE b = {b} AND l <> '' ORDER BY b{backward}, k{backward}"
                );
                (place, all, 1 << b, true)
            }
            Path::BucketRange => {
                let index = "FORCE INDEX (by_bucket)";
                let place = format!(
                    "{index} WHERE b BETWEEN {b_low} AND {b_high} AND l <> '' ORDER BY b{backward}"
                );
                (place, all, bits(b_low, b_high), false)
            }
            Path::Covered => {
                let place = format!(
                    "FORCE INDEX (cover) WHERE b = {b} AND l <> '' ORDER BY b{backward}, k{backward}"
                );
                (place, all, 1 << b, false)
            }
            Path::CoveredRange => {
                let index = "FORCE INDEX (cover)";
                let place = format!(
                    "{index} WHERE b BETWEEN {b_low} AND {b_high} AND l <> '' ORDER BY b{backward}"
                );
                (place, all, bits(b_low, b_high), false)
            }
            Path::Extra => {
                (format!("FORCE INDEX (extra) WHERE b = {b} AND l <> ''"), all, 1 << b, false)
            }
        };
        let covered = matches!(path, Path::Covered | Path::CoveredRange | Path::Extra);
        let with_pad = !covered && self.dice.percent(30);
        let sql = format!("SELECT {} FROM t{table} {place}", columns(table, with_pad));
        (sql, Scope { table, keys, buckets }, fixed)
    }
}
