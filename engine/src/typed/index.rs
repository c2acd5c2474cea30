//! Secondary indexes: functions from a row to a key.
//!
//! # Entries
//! ```text
//! unique       key: the index key             value: the row's key
//! not unique   key: the index key, row's key  value: nothing
//! ```

use super::codec_error::CodecError;
use super::key::KeyCodec;
use std::sync::Arc;

/// A secondary index of a [`TypedTable`](super::TypedTable): a function from a row's key and value
/// to the key that the index has of it. It must give equal keys for equal rows, at any time.
///
/// The table keeps the index as rows are put and removed, and reads rows by it:
///
/// ```
/// use tidepool::typed::{Index, TypedTable};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
/// // The value is a city and a name.
/// let by_city = Index::new("city", |_: &u64, (city, _): &(String, String)| city.clone());
/// let by_name = Index::unique("name", |_: &u64, (_, name): &(String, String)| name.clone());
/// let people = TypedTable::open_or_create(&db, "people", &[&by_city, &by_name])?;
///
/// db.write(|trx| {
///     people.put(trx, &1, &("Oslo".into(), "Nora".into()))?;
///     people.put(trx, &2, &("Oslo".into(), "Emil".into()))
/// })?;
/// db.read(|trx| {
///     assert_eq!(people.get_by(trx, &by_name, "Emil")?.unwrap().0, 2);
///     assert_eq!(people.range_by(trx, &by_city, "Oslo"..="Oslo").count(), 2);
///     Ok(())
/// })?;
/// # db.close()?;
/// # Ok::<(), tidepool::Error>(())
/// ```
pub struct Index<K, V, I> {
    name: String,
    unique: bool,
    version: u32,
    key: Arc<KeyFn<K, V, I>>,
}

type KeyFn<K, V, I> = dyn Fn(&K, &V) -> I + Send + Sync;

impl<K, V, I: KeyCodec> Index<K, V, I> {
    /// An index of this name, in which several rows may have the same key.
    pub fn new(
        name: impl Into<String>,
        key: impl Fn(&K, &V) -> I + Send + Sync + 'static,
    ) -> Index<K, V, I> {
        Index { name: name.into(), unique: false, version: 1, key: Arc::new(key) }
    }

    /// An index of this name that has each key once: a second row with the same key is refused
    /// ([`Error::NotUnique`](crate::Error::NotUnique)).
    pub fn unique(
        name: impl Into<String>,
        key: impl Fn(&K, &V) -> I + Send + Sync + 'static,
    ) -> Index<K, V, I> {
        Index { unique: true, ..Index::new(name, key) }
    }

    /// Numbers what the function does; 1 at first. The table keeps the number, and refuses to be
    /// opened with another one. So a function that is changed gets another number: the entries that
    /// are there are the old function's.
    ///
    /// ```
    /// # use tidepool::typed::{Index, TypedTable};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// let exact = Index::new("name", |_: &u64, name: &String| name.clone());
    /// TypedTable::open_or_create(&db, "people", &[&exact])?;
    /// let folded = Index::new("name", |_: &u64, name: &String| name.to_lowercase()).version(2);
    /// assert!(TypedTable::open(&db, "people", &[&folded]).is_err());
    ///
    /// db.drop_typed_index("people", "name")?;
    /// TypedTable::open(&db, "people", &[&folded])?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn version(self, version: u32) -> Index<K, V, I> {
        Index { version, ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What [`KeptIndex::is_of`] compares.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.key).cast::<()>().addr()
    }
}

/// An [`Index`] of a table of these keys and values, whatever its key is.
pub trait TableIndex<K, V>: declared::Declare<K, V> {}

impl<K: 'static, V: 'static, I: KeyCodec> TableIndex<K, V> for Index<K, V, I> {}

pub(super) mod declared {
    use super::super::key::KeyCodec;
    use super::{Index, KeptIndex};

    /// What only this crate implements and calls.
    pub trait Declare<K, V> {
        fn declare(&self) -> KeptIndex<K, V>;
    }

    impl<K: 'static, V: 'static, I: KeyCodec> Declare<K, V> for Index<K, V, I> {
        fn declare(&self) -> KeptIndex<K, V> {
            let key = self.key.clone();
            KeptIndex {
                name: self.name.clone(),
                unique: self.unique,
                version: self.version,
                key_type: I::type_name(),
                position: 0,
                address: self.address(),
                encode: Box::new(move |row_key, value, bytes| {
                    key(row_key, value).encode_key(bytes)
                }),
                skip: |bytes| I::decode_key(bytes).map(drop),
            }
        }
    }
}

type EncodeFn<K, V> = dyn Fn(&K, &V, &mut Vec<u8>) + Send + Sync;

/// An index as a table keeps it.
pub struct KeptIndex<K, V> {
    pub(super) name: String,
    pub(super) unique: bool,
    pub(super) version: u32,
    /// Names the encoding of its keys.
    pub(super) key_type: String,
    /// Position in the table's definition.
    pub(super) position: usize,
    /// Of the function, which lives as long as this.
    address: usize,
    /// Appends the index key of a row.
    encode: Box<EncodeFn<K, V>>,
    /// Takes an index key off the front.
    skip: fn(&mut &[u8]) -> Result<(), CodecError>,
}

impl<K, V> KeptIndex<K, V> {
    /// Whether it is that index, and not one that happens to have the same name.
    pub(super) fn is_of<I: KeyCodec>(&self, index: &Index<K, V, I>) -> bool {
        self.address == index.address()
    }

    /// The key of a row's entry. `row_key`: the bytes of `key`.
    pub(super) fn entry_key(&self, key: &K, value: &V, row_key: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        (self.encode)(key, value, &mut bytes);
        if !self.unique {
            bytes.extend_from_slice(row_key);
        }
        bytes
    }

    /// The value of a row's entry.
    pub(super) fn entry_value<'k>(&self, row_key: &'k [u8]) -> &'k [u8] {
        if self.unique { row_key } else { &[] }
    }

    /// The bytes of the key of the row that an entry is of.
    pub(super) fn row_key<'e>(
        &self,
        mut key: &'e [u8],
        value: &'e [u8],
    ) -> Result<&'e [u8], CodecError> {
        if self.unique {
            return Ok(value);
        }
        (self.skip)(&mut key)?;
        Ok(key)
    }
}
