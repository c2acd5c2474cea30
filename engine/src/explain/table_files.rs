//! What the file of each table takes on disk.
//!
//! A file that is open knows its sizes. Another one is opened to be read, and closed again: that
//! reads its root and its table of segments.

use crate::db::Db;
use crate::files::space_file_name;
use crate::table::FileUsage;

/// The file of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableFile {
    /// The table.
    pub table: String,
    /// The file, relative to the data directory.
    pub file: String,
    /// What it takes; `None` if it is missing, can't be opened, or was removed a moment ago.
    pub usage: Option<FileUsage>,
}

impl Db {
    /// What the file of each table takes, in the order of the tables' names.
    pub fn table_files(&self) -> Vec<TableFile> {
        let env = self.inner.env();
        let file_of = |(table, space)| {
            let source = env.source(space);
            let usage = source.ok().map(|source| FileUsage::of(source.file()));
            TableFile { table, file: space_file_name(space), usage }
        };
        let tables = self.catalog().tables();
        tables.into_iter().map(|(table, record)| file_of((table, record.space))).collect()
    }
}
