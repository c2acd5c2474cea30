//! A typed table is opened, and gets the indexes that it lacks.
//!
//! # Steps
//! ```text
//! open      the table, or a new one with all indexes
//! compare   types of the keys, and versions, with what the table keeps (`metadata`)
//! build     indexes that the table lacks, beside writers, by a change of its indexes
//! ```
//! The change of the indexes is committed with the new metadata at one moment. What a crash leaves
//! before is the table without the new indexes, which the next opening builds.
//!
//! # Patience
//! At its beginning, before its last round and at its end a change needs a moment at which no
//! transaction uses the table. It waits for each of these as long as a transaction waits for a
//! lock, and has who comes to the table wait for a moment now and then, so that those inside are
//! seen to leave. What is built by then is not given up.

use super::index::KeptIndex;
use super::index::TableIndex;
use super::key::{KeyCodec, decode_whole};
use super::metadata::Metadata;
use super::rows::codec_error;
use super::value::{Encoding, ValueCodec};
use super::{Rows, TypedTable};
use crate::catalog::{IndexDef, TableDef};
use crate::db::{ChangedIndex, Db, IndexChange};
use crate::error::{Error, Result};
use crate::table::Table;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the clustered index.
const CLUSTERED_NAME: &str = "key";
/// The last round, during which writes are refused, is of about this many rows at most.
const LAST_ROUND_WRITES: u64 = 500;
/// Rounds after which the next one is the last, however much is left.
const ROUNDS_MAX: u32 = 30;
/// In one try to find the table unused, those inside have this long to leave it, and who comes
/// waits.
const ENTRANCE_WAIT: Duration = Duration::from_millis(20);
/// Between two tries; twice as long before each further one, up to the second figure.
const REST: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(50);

impl<K: KeyCodec, V: ValueCodec + 'static> TypedTable<K, V> {
    /// Opens a table with these indexes, all that it has and any new ones. New ones are built,
    /// while others read and write the table. At the end of that, for a few milliseconds or as long
    /// as transactions inside the table take to leave it, writes get [`Error::TableBusy`], and who
    /// has not used the table yet may wait for a moment. Handles that were opened before are void
    /// then ([`Error::TableMissing`]).
    ///
    /// One opening adds [`IndexChange::INDEXES_MAX`] indexes to a table that is there, at most:
    /// open it with some of them first, and then with more.
    ///
    /// # Errors
    /// [`Error::TableMissing`] if there is none of this name. [`Error::InvalidOption`] if it is no
    /// typed table, if its key or an index is another one than declared, or if it has an index that
    /// is not declared: a row put without it would be missing there.
    /// [`Db::drop_typed_index`] drops one. [`Error::NotUnique`] if two rows have the same key in a
    /// new unique index. [`Error::TableBusy`] if a new index is built, and a transaction uses the
    /// table for longer than `lock_wait_timeout`.
    pub fn open(db: &Db, name: &str, indexes: &[&dyn TableIndex<K, V>]) -> Result<Self> {
        Self::open_with(db, name, indexes, Missing::IsAnError)
    }

    /// The same, and makes the table if there is none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// use tidepool::typed::{Index, TypedTable};
    ///
    /// let prices = TypedTable::<String, u32>::open_or_create(&db, "prices", &[])?;
    /// db.write(|trx| prices.put(trx, "apple", &3))?;
    /// drop(prices);
    ///
    /// // From the next start on with an index: it is built of the rows that are there.
    /// let by_price = Index::new("price", |_: &String, price: &u32| *price);
    /// let prices = TypedTable::open_or_create(&db, "prices", &[&by_price])?;
    /// assert_eq!(db.read(|trx| prices.get_by(trx, &by_price, &3))?, Some(("apple".into(), 3)));
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TypedTable::open`] and [`Db::create_table`].
    pub fn open_or_create(db: &Db, name: &str, indexes: &[&dyn TableIndex<K, V>]) -> Result<Self> {
        Self::open_with(db, name, indexes, Missing::IsMade)
    }
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> TypedTable<K, V, E> {
    /// [`TypedTable::open`] of a table whose values another [`Encoding`] encodes.
    ///
    /// # Errors
    /// As [`TypedTable::open`].
    pub fn open_encoded(db: &Db, name: &str, indexes: &[&dyn TableIndex<K, V>]) -> Result<Self> {
        Self::open_with(db, name, indexes, Missing::IsAnError)
    }

    /// [`TypedTable::open_or_create`] of a table whose values another [`Encoding`] encodes, which
    /// has an example.
    ///
    /// # Errors
    /// As [`TypedTable::open_or_create`].
    pub fn open_or_create_encoded(
        db: &Db,
        name: &str,
        indexes: &[&dyn TableIndex<K, V>],
    ) -> Result<Self> {
        Self::open_with(db, name, indexes, Missing::IsMade)
    }

    fn open_with(
        db: &Db,
        name: &str,
        indexes: &[&dyn TableIndex<K, V>],
        missing: Missing,
    ) -> Result<Self> {
        let mut declared: Vec<_> = indexes.iter().map(|index| index.declare()).collect();
        check_declared(&declared)?;
        let table = with_patience(db, || {
            let table = match db.open_table(name) {
                Err(Error::TableMissing(_)) if missing == Missing::IsMade => {
                    // Another thread may be faster: then its table is opened by the next try.
                    create::<K, V>(db, name, &declared)?
                }
                opened => opened?,
            };
            let mut metadata = Metadata::decode(name, table.def())?;
            match compare::<K, V>(name, table.def(), &metadata, &declared)? {
                new if new.is_empty() => Ok(table),
                new => {
                    metadata.indexes.extend(new.iter().map(|index| index.types()));
                    build::<K, V, E>(db, table, &new, &metadata)
                }
            }
        })?;
        for index in &mut declared {
            let position = position(table.def(), &index.name);
            index.position = position.ok_or_else(|| Error::TableChanged(name.into()))?;
        }
        declared.sort_by_key(|index| index.position);
        Ok(Self { rows: Arc::new(Rows { table, indexes: declared }), encoding: PhantomData })
    }
}

impl Db {
    /// Drops an index of a [`TypedTable`], which need not be open. Handles of the table are void
    /// then.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// use tidepool::typed::{Index, TypedTable};
    ///
    /// let by_price = Index::new("price", |_: &String, price: &u32| *price);
    /// TypedTable::open_or_create(&db, "prices", &[&by_price])?;
    /// db.drop_typed_index("prices", "price")?;
    /// TypedTable::<String, u32>::open(&db, "prices", &[])?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableMissing`] if there is no table of this name, [`Error::InvalidOption`] if it is
    /// no typed table, or has no such index. [`Error::TableBusy`] if a transaction uses the table
    /// for longer than `lock_wait_timeout`; others that write get it for a moment.
    pub fn drop_typed_index(&self, name: &str, index: &str) -> Result<()> {
        with_patience(self, || {
            let table = self.open_table(name)?;
            let def = table.def();
            let mut metadata = Metadata::decode(name, def)?;
            let at = position(def, index).ok_or_else(|| {
                Error::InvalidOption(format!("table '{name}' has no index '{index}'"))
            })?;
            metadata.indexes.remove(at - 1);
            let kept = (0..def.indexes.len()).filter(|&kept| kept != at);
            let kept = kept
                .map(|from| ChangedIndex { def: def.indexes[from].clone(), from: Some(from) })
                .collect::<Vec<_>>();
            let change = self.change_indexes_within(&table, &kept, ENTRANCE_WAIT)?;
            change.commit(&[(name, &metadata.encode())]).map(drop)
        })
    }
}

/// What [`TypedTable::open_with`] does about a table that is not there.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    IsAnError,
    IsMade,
}

impl<K, V> KeptIndex<K, V> {
    /// What the table's metadata have of it.
    fn types(&self) -> (u32, String) {
        (self.version, self.key_type.clone())
    }

    fn def(&self) -> IndexDef {
        IndexDef { name: self.name.clone(), unique: self.unique }
    }
}

/// Position of a secondary index in a table's definition.
fn position(def: &TableDef, name: &str) -> Option<usize> {
    let mut secondary = def.indexes.iter().enumerate().skip(1);
    secondary.find(|(_, index)| index.name == name).map(|(at, _)| at)
}

/// A line of the metadata is a type.
fn check_declared<K, V>(declared: &[KeptIndex<K, V>]) -> Result<()> {
    for (at, index) in declared.iter().enumerate() {
        let why = match () {
            () if index.key_type.contains('\n') => "its key type has a name of several lines",
            () if declared[..at].iter().any(|earlier| earlier.name == index.name) => {
                "it is declared twice"
            }
            () if index.name == CLUSTERED_NAME => "that is the name of the table's key",
            () => continue,
        };
        return Err(Error::InvalidOption(format!("index '{}': {why}", index.name)));
    }
    Ok(())
}

/// Calls `act` until the table is not busy, or for as long as a transaction waits for a lock.
fn with_patience<T>(db: &Db, mut act: impl FnMut() -> Result<T>) -> Result<T> {
    let (began, patience) = (Instant::now(), db.options().lock_wait_timeout);
    let mut rest = REST;
    loop {
        match act() {
            Err(Error::TableBusy(_) | Error::TableExists(_)) if began.elapsed() < patience => {
                std::thread::sleep(rest);
                rest = (2 * rest).min(REST_MAX);
            }
            result => return result,
        }
    }
}

fn create<K: KeyCodec, V>(db: &Db, name: &str, declared: &[KeptIndex<K, V>]) -> Result<Arc<Table>> {
    let key_type = K::type_name();
    if key_type.contains('\n') {
        return Err(Error::InvalidOption("the key type has a name of several lines".into()));
    }
    let metadata = Metadata { key_type, indexes: declared.iter().map(KeptIndex::types).collect() };
    let indexes = declared.iter().map(KeptIndex::def);
    let mut def = TableDef::new([IndexDef::unique(CLUSTERED_NAME)].into_iter().chain(indexes));
    def.metadata = metadata.encode();
    db.create_table(name, &def)
}

/// The declared indexes that the table lacks. An error if it is another table than declared.
fn compare<'d, K: KeyCodec, V>(
    name: &str,
    def: &TableDef,
    metadata: &Metadata,
    declared: &'d [KeptIndex<K, V>],
) -> Result<Vec<&'d KeptIndex<K, V>>> {
    let refuse = |why: String| Err(Error::InvalidOption(format!("table '{name}' {why}")));
    let (has, wants) = (&metadata.key_type, K::type_name());
    if *has != wants {
        return refuse(format!("has keys of the type {has}, not {wants}"));
    }
    let mut secondary = def.indexes.iter().skip(1);
    if let Some(other) = secondary.find(|has| !declared.iter().any(|index| index.name == has.name))
    {
        let index = &other.name;
        return refuse(format!(
            "has the index '{index}', which is not declared: declare it, or drop it by \
             `Db::drop_typed_index`"
        ));
    }
    let mut new = Vec::new();
    for index in declared {
        let Some(at) = position(def, &index.name) else {
            new.push(index);
            continue;
        };
        let describe = |unique: bool, (version, key_type): &(u32, String)| {
            let unique = if unique { "unique" } else { "not unique" };
            format!("{unique}, key type {key_type}, version {version}")
        };
        let has = describe(def.indexes[at].unique, &metadata.indexes[at - 1]);
        let wants = describe(index.unique, &index.types());
        if has != wants {
            let index = &index.name;
            return refuse(format!(
                "has another index '{index}' ({has}) than the one declared ({wants}): drop it by \
                 `Db::drop_typed_index`, and it is built anew"
            ));
        }
    }
    Ok(new)
}

/// Adds indexes to a table.
fn build<K: KeyCodec, V, E: Encoding<V>>(
    db: &Db,
    table: Arc<Table>,
    new: &[&KeptIndex<K, V>],
    metadata: &Metadata,
) -> Result<Arc<Table>> {
    let (name, first) = (table.name(), table.index_count());
    let kept = table.def().indexes.iter().enumerate();
    let kept = kept.map(|(at, def)| ChangedIndex { def: def.clone(), from: Some(at) });
    let added = new.iter().map(|index| ChangedIndex { def: index.def(), from: None });
    let indexes: Vec<_> = kept.chain(added).collect();
    let change = db.change_indexes_within(&table, &indexes, ENTRANCE_WAIT)?;
    let mut build = Build { change, name: &name, new, first, encoding: PhantomData::<E> };
    build.run(db).map_err(|error| match error {
        Error::DuplicateKey { index, .. } => {
            let key = build.change.duplicate().map(|duplicate| duplicate.key.clone());
            Error::not_unique(&name, &indexes[index].def.name, &key.unwrap_or_default())
        }
        error => error,
    })?;
    let metadata = metadata.encode();
    with_patience(db, || build.change.try_commit(&[(&name, &metadata)]))
}

/// New indexes on their way.
struct Build<'b, K, V, E> {
    change: IndexChange,
    name: &'b str,
    new: &'b [&'b KeptIndex<K, V>],
    /// Position of the first of them.
    first: usize,
    encoding: PhantomData<E>,
}

impl<K: KeyCodec, V, E: Encoding<V>> Build<'_, K, V, E> {
    /// Up to the commit.
    fn run(&mut self, db: &Db) -> Result<()> {
        while let Some((key, value)) = self.change.next_row()? {
            let (key, value) = (key.to_vec(), value.to_vec());
            for (index, entry) in self.entries(&key, &value)? {
                self.change.add(index, &entry.0, entry.1)?;
            }
        }
        self.change.build(&mut || true)?;
        for _ in 0..ROUNDS_MAX {
            if self.round()? <= LAST_ROUND_WRITES {
                break;
            }
        }
        with_patience(db, || self.change.stop_writes())?;
        self.round().map(drop)
    }

    /// Brings in what was written since the last round; how many writes are left.
    fn round(&mut self) -> Result<u64> {
        self.change.begin_round()?;
        while let Some(row) = self.change.next_changed_row()? {
            let key = row.key.to_vec();
            let (before, after) = (row.before.map(<[u8]>::to_vec), row.after.map(<[u8]>::to_vec));
            for (index, entry) in self.entries_of(&key, before.as_deref())? {
                self.change.remove(index, &entry.0, entry.1)?;
            }
            for (index, entry) in self.entries_of(&key, after.as_deref())? {
                self.change.add(index, &entry.0, entry.1)?;
            }
        }
        Ok(self.change.end_round(&mut || true)?.writes_left)
    }

    fn entries_of<'k>(&self, key: &'k [u8], value: Option<&[u8]>) -> Result<Vec<NewEntry<'k>>> {
        value.map_or(Ok(Vec::new()), |value| self.entries(key, value))
    }

    /// What the new indexes have of a row.
    fn entries<'k>(&self, row_key: &'k [u8], row: &[u8]) -> Result<Vec<NewEntry<'k>>> {
        let decoded = decode_whole::<K>(row_key).and_then(|key| Ok((key, E::decode(row)?)));
        let (key, value) = decoded.map_err(|why| codec_error(self.name, row_key, why))?;
        let entries = self.new.iter().enumerate().map(|(at, index)| {
            let entry = (index.entry_key(&key, &value, row_key), index.entry_value(row_key));
            (self.first + at, entry)
        });
        Ok(entries.collect())
    }
}

/// Position of an index, key and value of an entry.
type NewEntry<'k> = (usize, (Vec<u8>, &'k [u8]));
