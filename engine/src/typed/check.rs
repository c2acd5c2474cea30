//! CHECK of a typed table: its indexes are compared with its rows, in one snapshot.
//!
//! Each row is looked for in each index, and each entry's row is looked up. So an entry that is
//! missing, one that is too many and one that is another row's are found, in bounded memory.

use super::TypedTable;
use super::index::KeptIndex;
use super::key::KeyCodec;
use super::value::Encoding;
use crate::db::Transaction;
use crate::error::{Error, Result};
use crate::table::Table;
use crate::versioned::ReadRequest;
use std::ops::RangeFull;

/// Problems that a check lists.
const PROBLEMS_MAX: usize = 100;
/// Entries between two calls of what may end the check.
const ENTRIES_A_TURN: u64 = 1000;

/// What [`TypedTable::check`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypedCheck {
    /// Rows of the table.
    pub rows: u64,
    /// Entries of each secondary index, with its name.
    pub entries: Vec<(String, u64)>,
    /// What is wrong, each naming the table, the index and the key: the first hundred.
    pub problems: Vec<String>,
}

impl TypedCheck {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> TypedTable<K, V, E> {
    /// Compares the indexes with the rows, as the transaction sees them. Others may write.
    /// `go_on` is asked now and then; if it says no, the error is [`Error::Interrupted`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::{Index, TypedTable};
    /// let by_price = Index::new("price", |_: &String, price: &u32| *price);
    /// let prices = TypedTable::open_or_create(&db, "prices", &[&by_price])?;
    /// db.write(|trx| prices.put(trx, "apple", &3))?;
    /// let check = db.read(|trx| prices.check(trx, &mut || true))?;
    /// assert!(check.is_clean());
    /// assert_eq!((check.rows, check.entries), (1, vec![("price".into(), 1)]));
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// The pages are checked by [`Table::check`].
    ///
    /// # Errors
    /// Those of reading, and [`Error::InvalidOption`] at READ COMMITTED and below, where a
    /// transaction has no snapshot.
    pub fn check(
        &self,
        trx: &mut Transaction,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<TypedCheck> {
        if trx.isolation().is_by_statement() {
            return Err(Error::InvalidOption("a check needs a snapshot: REPEATABLE READ".into()));
        }
        let mut check = TypedCheck::default();
        self.check_rows(trx, &mut check, go_on)?;
        for index in &self.rows.indexes {
            let entries = self.check_index(trx, index, &mut check, go_on)?;
            check.entries.push((index.name.clone(), entries));
        }
        Ok(check)
    }

    /// Looks for each row in each index.
    fn check_rows(
        &self,
        trx: &mut Transaction,
        check: &mut TypedCheck,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let table = &self.rows.table;
        let mut rows = trx.range::<&[u8]>(table, RangeFull);
        let mut value = Vec::new();
        while let Some((row_key, row)) = rows.next_owned()? {
            take_turn(check.rows, go_on)?;
            check.rows += 1;
            let decoded = self.decode_key(&row_key);
            let decoded = decoded.and_then(|key| Ok((key, self.decode_value(&row_key, &row)?)));
            let (key, row) = match decoded {
                Ok(decoded) => decoded,
                Err(error) => {
                    check.add(error.to_string());
                    continue;
                }
            };
            for index in &self.rows.indexes {
                let entry = index.entry_key(&key, &row, &row_key);
                let request = ReadRequest::new(&entry, &mut value);
                let found = rows.transaction().read(table, index.position, request)?;
                if !found || value != index.entry_value(&row_key) {
                    check.add(self.problem(index, &entry, "it lacks the entry of a row"));
                }
            }
        }
        Ok(())
    }

    /// Looks up the row of each entry of an index; how many there are.
    fn check_index(
        &self,
        trx: &mut Transaction,
        index: &KeptIndex<K, V>,
        check: &mut TypedCheck,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let table = &self.rows.table;
        let mut entries = trx.range::<&[u8]>(table, RangeFull).of_index(index.position);
        let (mut count, mut row) = (0, Vec::new());
        while let Some((entry, value)) = entries.next_owned()? {
            take_turn(count, go_on)?;
            count += 1;
            let row_key = match index.row_key(&entry, &value) {
                Ok(row_key) => row_key,
                Err(why) => {
                    check.add(self.problem(index, &entry, &why.to_string()));
                    continue;
                }
            };
            let request = ReadRequest::new(row_key, &mut row);
            if !entries.transaction().read(table, Table::CLUSTERED, request)? {
                check.add(self.problem(
                    index,
                    &entry,
                    "it has an entry of a row that is not there",
                ));
                continue;
            }
            // A row that can't be decoded has been listed.
            let (Ok(key), Ok(row)) = (self.decode_key(row_key), self.decode_value(row_key, &row))
            else {
                continue;
            };
            if index.entry_key(&key, &row, row_key) != entry {
                check.add(self.problem(index, &entry, "its row asks for another entry"));
            }
        }
        Ok(count)
    }

    fn problem(&self, index: &KeptIndex<K, V>, entry: &[u8], why: &str) -> String {
        let (table, name) = (self.rows.table.name(), &index.name);
        format!("table '{table}', index '{name}', key {}: {why}", entry.escape_ascii())
    }
}

fn take_turn(entries: u64, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
    match entries.is_multiple_of(ENTRIES_A_TURN) && !go_on() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
