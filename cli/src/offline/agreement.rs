//! Whether a table's indexes agree with its rows.
//!
//! Every row has one entry in each index. An entry leads to its row by the clustered key, and has
//! the row's columns. So each
//! index is reduced to a sum, over its entries, of a hash of the clustered key and of the columns
//! that can be read
//! back from the entry; and so are the rows. In whichever order they come, the sums are equal if
//! the entries are. There
//! is one sum for each of [`BUCKETS`] values of the hash, so that a difference leads to few keys,
//! which a second pass
//! lists.
//!
//! Columns that an index has through the weights of a collation, floating-point numbers, and
//! columns that are computed
//! are not compared: by them, only the clustered keys are.
//!
//! Memory: eight bytes for each bucket, and the keys of those that differ.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use tidepool::{Cursor, Db, LockMode, LockWait, Transaction, TransactionOptions};

use super::rows::description::{Description, Place, Tree};
use super::rows::hex;
use super::rows::row::{Rows, Stored};

const BUCKETS: usize = 1 << 16;
/// Keys, of those in buckets that differ, that the second pass looks at.
const KEYS_MAX: usize = 100_000;
/// The most differences of an index that a report lists.
const TOLD_MAX: usize = 10;

/// What is wrong between the table's indexes and its rows; empty if they agree.
///
/// # Errors
/// A tree can't be read; the walk over it reports that as well.
pub fn compare(
    db: &Db,
    name: &str,
    description: &Description,
    told: &mut dyn FnMut(),
) -> tidepool::Result<Vec<String>> {
    let mut comparison = Comparison {
        table: db.open_table(name)?,
        trx: db.begin(TransactionOptions::default()),
        description,
        rows: Rows::new(description),
        problems: Vec::new(),
        told,
    };
    comparison.run()?;
    Ok(comparison.problems)
}

struct Comparison<'d> {
    table: std::sync::Arc<tidepool::Table>,
    trx: Transaction,
    description: &'d Description,
    rows: Rows<'d>,
    problems: Vec<String>,
    told: &'d mut dyn FnMut(),
}

/// Sums of hashes, by bucket.
struct Sums(Vec<u64>);

impl Sums {
    fn new() -> Self {
        Self(vec![0; BUCKETS])
    }

    fn add(&mut self, hash: u64) {
        let sum = &mut self.0[bucket_of(hash)];
        *sum = sum.wrapping_add(hash);
    }
}

fn bucket_of(hash: u64) -> usize {
    (hash >> 48) as usize % BUCKETS
}

impl Comparison<'_> {
    fn run(&mut self) -> tidepool::Result<()> {
        let description = self.description;
        // What words a text has, and what rectangle a geometry, the server says: neither is
        // compared.
        let secondary = description.trees.iter().enumerate().skip(1);
        let is_compared = |tree: &Tree| !tree.fulltext && !tree.spatial;
        let secondary: Vec<(usize, &Tree)> =
            secondary.filter(|(_, tree)| is_compared(tree)).collect();
        if self.table.index_count() != description.trees.len() {
            self.problems.push("its description has not the indexes that it has".into());
            return Ok(());
        }
        let mut of_rows: Vec<Sums> = secondary.iter().map(|_| Sums::new()).collect();
        self.each_row(&mut |key, columns| {
            for ((_, tree), sums) in secondary.iter().zip(&mut of_rows) {
                sums.add(hash_of_row(description, tree, key, columns));
            }
        })?;
        for ((index, tree), of_rows) in secondary.into_iter().zip(of_rows) {
            let mut of_index = Sums::new();
            self.each_entry(index, tree, &mut |_, hash| of_index.add(hash))?;
            if of_index.0 != of_rows.0 {
                let differs: Vec<bool> =
                    of_index.0.iter().zip(&of_rows.0).map(|(a, b)| a != b).collect();
                self.tell_differences(index, tree, &differs)?;
            }
        }
        Ok(())
    }

    /// Lists the keys of entries without a row, and of rows without an entry.
    fn tell_differences(
        &mut self,
        index: usize,
        tree: &Tree,
        differs: &[bool],
    ) -> tidepool::Result<()> {
        let description = self.description;
        // How often each comes in the rows, less how often in the index.
        let mut found: HashMap<u64, (i64, Vec<u8>)> = HashMap::new();
        let mut note = |hash: u64, key: &[u8], count: i64| {
            if differs[bucket_of(hash)] && (found.len() < KEYS_MAX || found.contains_key(&hash)) {
                found.entry(hash).or_insert_with(|| (0, key.to_vec())).0 += count;
            }
        };
        self.each_row(&mut |key, columns| {
            note(hash_of_row(description, tree, key, columns), key, 1);
        })?;
        self.each_entry(index, tree, &mut |key, hash| note(hash, key, -1))?;
        let mut differing: Vec<_> = found.into_values().filter(|(count, _)| *count != 0).collect();
        differing.sort_by(|a, b| a.1.cmp(&b.1).then(a.0.cmp(&b.0)));
        let lacking = differing.iter().filter(|(count, _)| *count > 0).count();
        let surplus = differing.len() - lacking;
        let mut text = format!(
            "index '{}': {lacking} rows have no such entry, {surplus} entries have no such row: drop the index and add \
             it again. Clustered keys:",
            tree.name
        );
        for (count, key) in differing.iter().take(TOLD_MAX) {
            let what = if *count > 0 { "row" } else { "entry" };
            text.push_str(&format!(" {what} 0x{}", hex(key)));
        }
        if differing.len() > TOLD_MAX {
            text.push_str(" …");
        }
        self.problems.push(text);
        Ok(())
    }

    fn each_row(&mut self, see: &mut dyn FnMut(&[u8], &[Stored])) -> tidepool::Result<()> {
        let mut cursor = Cursor::new(self.table.clone(), 0, LockMode::None, LockWait::Wait);
        cursor.set_scan(true);
        let mut is_there = cursor.first(&mut self.trx)?;
        while is_there {
            (self.told)();
            match self.rows.read(cursor.key(), cursor.value()) {
                Ok(columns) => see(cursor.key(), &columns),
                Err(why) => {
                    self.tell_once(format!("the row with key 0x{}: {why}", hex(cursor.key())))
                }
            }
            is_there = cursor.next(&mut self.trx)?;
        }
        Ok(())
    }

    fn each_entry(
        &mut self,
        index: usize,
        tree: &Tree,
        see: &mut dyn FnMut(&[u8], u64),
    ) -> tidepool::Result<()> {
        let description = self.description;
        let mut cursor = Cursor::new(self.table.clone(), index, LockMode::None, LockWait::Wait);
        cursor.set_scan(true);
        let mut is_there = cursor.first(&mut self.trx)?;
        while is_there {
            (self.told)();
            let (key, value) = (cursor.key(), cursor.value());
            let row_key = tree.clustered_key(description.clustered(), key, value);
            match row_key.and_then(|row_key| {
                Some((hash_of_entry(description, tree, &row_key, key)?, row_key))
            }) {
                Some((hash, row_key)) => see(&row_key, hash),
                None => {
                    let text = format!(
                        "index '{}': the entry 0x{} can't be understood",
                        tree.name,
                        hex(key)
                    );
                    self.tell_once(text);
                }
            }
            is_there = cursor.next(&mut self.trx)?;
        }
        Ok(())
    }

    /// Both passes come to it.
    fn tell_once(&mut self, problem: String) {
        if self.problems.len() < TOLD_MAX && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// Positions of a key's own parts that are compared, and of their columns.
fn compared<'d>(
    description: &'d Description,
    tree: &'d Tree,
) -> impl Iterator<Item = (usize, usize)> + 'd {
    tree.parts[..tree.own_parts].iter().enumerate().filter_map(|(at, part)| {
        let column = part.column?;
        let is_stored = description.columns[column].place != Place::NotStored;
        (part.reversible && is_stored).then_some((at, column))
    })
}

fn mix(hasher: &mut DefaultHasher, value: Option<&[u8]>) {
    match value {
        None => hasher.write_u64(u64::MAX),
        Some(bytes) => {
            hasher.write_u64(bytes.len() as u64);
            hasher.write(bytes);
        }
    }
}

fn hash_of_row(description: &Description, tree: &Tree, key: &[u8], columns: &[Stored]) -> u64 {
    let mut hasher = DefaultHasher::new();
    mix(&mut hasher, Some(key));
    for (_, column) in compared(description, tree) {
        mix(&mut hasher, columns[column].as_deref());
    }
    hasher.finish()
}

fn hash_of_entry(
    description: &Description,
    tree: &Tree,
    row_key: &[u8],
    key: &[u8],
) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    mix(&mut hasher, Some(row_key));
    let parts = tree.split(key)?;
    for (at, _) in compared(description, tree) {
        let value = tree.parts[at].decode(parts.get(at)?)?;
        mix(&mut hasher, value.as_deref());
    }
    Some(hasher.finish())
}
