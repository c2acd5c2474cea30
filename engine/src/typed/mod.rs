//! Tables of typed rows, whose secondary indexes the engine keeps.
//!
//! A [`TypedTable`] is a [`Table`] whose keys and values are of Rust types. Keys are bytes in the
//! order of the keys ([`KeyCodec`]), values are bytes by [`ValueCodec`] or by an [`Encoding`] for
//! many types. Its secondary indexes are functions ([`Index`]).
//!
//! ```
//! use tidepool::typed::{Index, TypedTable};
//! use tidepool::{Db, Options};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path();
//! let db = Db::open(dir, Options::default())?;
//! // Rows are a number, a city and a name. The index has the city, then the name.
//! let by_city = Index::new("city", |_: &u64, row: &(String, String)| row.clone());
//! let people = TypedTable::open_or_create(&db, "people", &[&by_city])?;
//! db.write(|trx| {
//!     people.put(trx, &1, &("Oslo".into(), "Nora".into()))?;
//!     people.put(trx, &2, &("Bergen".into(), "Emil".into()))?;
//!     people.put(trx, &3, &("Oslo".into(), "Aksel".into()))
//! })?;
//! let in_oslo = db.read(|trx| {
//!     let rows = people.prefix_by(trx, &by_city, &("Oslo",));
//!     rows.map(|row| Ok(row?.1.1)).collect::<tidepool::Result<Vec<String>>>()
//! })?;
//! assert_eq!(in_oslo, ["Aksel", "Nora"]);
//! # db.close()?;
//! # Ok::<(), tidepool::Error>(())
//! ```
//!
//! # Contents
//! - `key`, `value`: encodings; `codec_error`: why bytes are none.
//! - `index`: secondary indexes and their entries.
//! - `metadata`: what a table keeps of its types; `open`: opening, and building indexes.
//! - `rows`: rows are read, put and removed, with their entries; `range`: ranges of rows.
//! - `check`: indexes are compared with rows.
//!
//! # Invariant
//! In every snapshot a secondary index has the entry of each row, and no other entry. A row and its
//! entries change in one transaction, and an operation that fails changes none of them.
//!
//! # Locking order
//! A write locks the row, then its entries in the order of the indexes. A locking read by an index
//! locks the entry, then the row: two such transactions may be a deadlock, and one of them runs
//! again.

mod check;
mod codec_error;
mod index;
mod key;
mod metadata;
mod open;
#[cfg(test)]
mod open_tests;
mod range;
mod rows;
mod value;

pub use check::TypedCheck;
pub use codec_error::CodecError;
pub use index::{Index, TableIndex};
pub use key::{EncodeKey, KeyBound, KeyCodec, KeyPrefix};
pub use range::TypedRange;
pub use value::{Encoding, LendValue, OwnCodec, ValueCodec};

use crate::table::Table;
use index::KeptIndex;
use std::marker::PhantomData;
use std::sync::Arc;

/// A table of rows with keys of the type `K` and values of the type `V`, as `E` encodes them. See
/// the [module](self) for an example.
///
/// Clones are handles on the same table. Rows are read and written by it alone: what
/// [`Transaction`](crate::Transaction) writes to its [`table`](Self::table) is in no index.
pub struct TypedTable<K, V, E = OwnCodec> {
    rows: Arc<Rows<K, V>>,
    encoding: PhantomData<fn() -> E>,
}

/// What clones share.
struct Rows<K, V> {
    table: Arc<Table>,
    /// In the order of the table's definition.
    indexes: Vec<KeptIndex<K, V>>,
}

impl<K, V, E> Clone for TypedTable<K, V, E> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), encoding: PhantomData }
    }
}

impl<K, V, E> std::fmt::Debug for TypedTable<K, V, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TypedTable").field(&self.rows.table).finish()
    }
}
