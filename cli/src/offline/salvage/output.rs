//! Rows to SQL, CSV, or hexadecimal.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Format;
use super::names::TableName;
use crate::exit::{Error, Result};
use crate::offline::rows::description::{Column, Description, Place};
use crate::offline::rows::hex;
use crate::offline::rows::row::Rows;
use crate::offline::rows::value::{Value, is_always_bytes, value};
use crate::sql_text::{identifier, literal};

/// An INSERT statement ends when it has this many rows, or bytes.
const BATCH_ROWS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// Rows that are listed as not understood.
const REFUSED_MAX: usize = 1000;

/// What is said first in a file of SQL: values are taken as they were, whatever the server's
/// settings.
const PREAMBLE: &str = "\
SET NAMES utf8mb4;
SET time_zone = '+00:00';
SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';
SET foreign_key_checks = 0, unique_checks = 0, check_constraint_checks = 0;
";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    pub files: Vec<PathBuf>,
    /// Rows in them, as values.
    pub rows: u64,
    /// Rows in them, as hexadecimal bytes.
    pub raw_rows: u64,
    /// Why rows that should be values are bytes, by key: the first ones.
    pub refused: Vec<(Vec<u8>, String)>,
    /// The longest INSERT statement.
    pub statement_max_bytes: u64,
}

/// Writes a small file that the user alone may read.
///
/// # Errors
/// It can't be written.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .map_err(|error| Error::file(path, &error))
}

/// The files of a table.
pub struct Output<'d> {
    base: PathBuf,
    values: Option<Values<'d>>,
    /// Rows as bytes: made when the first one comes.
    raw: Option<(BufWriter<File>, PathBuf)>,
    written: Written,
}

/// The file of a table whose columns are known.
struct Values<'d> {
    file: BufWriter<File>,
    path: PathBuf,
    format: Format,
    rows: Rows<'d>,
    /// The columns that are written, and their positions.
    columns: Vec<(usize, &'d Column)>,
    /// What an INSERT statement begins with.
    insert: String,
    batch: String,
    batch_rows: usize,
    statement_max_bytes: u64,
}

impl<'d> Output<'d> {
    /// Makes the files.
    ///
    /// # Errors
    /// They can't be made.
    pub fn create(
        dir: &Path,
        name: &TableName,
        format: Format,
        description: Option<&'d Description>,
    ) -> Result<Self> {
        let base = dir.join(name.file());
        if let Some(parent) = base.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|error| Error::file(parent, &error))?;
        }
        let mut output = Self { base, values: None, raw: None, written: Written::default() };
        if let Some(description) = description {
            output.values = Some(output.begin(name, format, description)?);
        }
        Ok(output)
    }

    /// The path of one of the table's files.
    fn path(&self, extension: &str) -> PathBuf {
        let mut path = self.base.clone().into_os_string();
        path.push(extension);
        path.into()
    }

    fn open(&mut self, extension: &str) -> Result<(BufWriter<File>, PathBuf)> {
        let path = self.path(extension);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| Error::file(&path, &error))?;
        self.written.files.push(path.clone());
        Ok((BufWriter::with_capacity(1 << 18, file), path))
    }

    fn begin(
        &mut self,
        name: &TableName,
        format: Format,
        description: &'d Description,
    ) -> Result<Values<'d>> {
        let is_written = |column: &Column| {
            column.place != Place::NotStored && !column.generated && !column.hidden
                || column.versioning
        };
        let columns: Vec<_> = description
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| is_written(column))
            .collect();
        let names: Vec<_> = columns.iter().map(|(_, column)| identifier(&column.name)).collect();
        let table = name.sql();
        let mut settings = PREAMBLE.to_string();
        if columns.iter().any(|(_, column)| column.versioning) {
            settings.push_str("SET system_versioning_insert_history = 1;\n");
        }
        let mut head = settings.clone();
        if let Some(database) = name.sql_database() {
            head.push_str(&format!("CREATE DATABASE IF NOT EXISTS {database};\n"));
        }
        // Each partition has a file, and any of them may be loaded first.
        let unless_there = if name.is_partition() { "IF NOT EXISTS " } else { "" };
        head.push_str(&format!("CREATE TABLE {unless_there}{table} {};\n", description.create));
        let (mut file, path) = match format {
            Format::Sql => self.open(".sql")?,
            Format::Csv => {
                let (mut create, path) = self.open(".create.sql")?;
                let written = create.write_all(head.as_bytes()).and_then(|()| create.flush());
                written.map_err(|error| Error::file(&path, &error))?;
                let (mut load, path) = self.open(".load.sql")?;
                let csv = self.path(".csv");
                // The client reads the file, from whatever directory it runs in.
                let csv = std::path::absolute(&csv).unwrap_or(csv);
                let columns_only: Vec<_> = columns.iter().map(|(_, column)| *column).collect();
                let text = settings + &load_statement(&table, &csv, &columns_only);
                let written = load.write_all(text.as_bytes()).and_then(|()| load.flush());
                written.map_err(|error| Error::file(&path, &error))?;
                let header: Vec<_> = columns
                    .iter()
                    .map(|(_, column)| format!("\"{}\"", column.name.replace('"', "\"\"")))
                    .collect();
                head = format!("{}\n", header.join(","));
                self.open(".csv")?
            }
        };
        file.write_all(head.as_bytes()).map_err(|error| Error::file(&path, &error))?;
        Ok(Values {
            file,
            path,
            format,
            rows: Rows::new(description),
            columns,
            insert: format!("INSERT INTO {table} ({}) VALUES\n", names.join(", ")),
            batch: String::new(),
            batch_rows: 0,
            statement_max_bytes: 0,
        })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        let refused = match &mut self.values {
            None => None,
            Some(values) => match values.values_of(key, row) {
                Ok(all) => {
                    self.written.rows += 1;
                    return values.write(&all).map_err(|error| Error::file(&values.path, &error));
                }
                Err(why) => Some(why),
            },
        };
        if let Some(why) = refused
            && self.written.refused.len() < REFUSED_MAX
        {
            self.written.refused.push((key.to_vec(), why));
        }
        self.raw_row(key, row)
    }

    fn raw_row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        if self.raw.is_none() {
            let (mut file, path) = self.open(".raw.csv")?;
            file.write_all(b"\"key\",\"row\"\n").map_err(|error| Error::file(&path, &error))?;
            self.raw = Some((file, path));
        }
        let (file, path) = self.raw.as_mut().expect("made above");
        self.written.raw_rows += 1;
        writeln!(file, "0x{},0x{}", hex(key), hex(row)).map_err(|error| Error::file(path, &error))
    }

    /// Ends the files.
    ///
    /// # Errors
    /// They can't be written.
    pub fn finish(mut self) -> Result<Written> {
        if let Some(values) = &mut self.values {
            let ended = values.end_batch().and_then(|()| values.file.flush());
            ended.map_err(|error| Error::file(&values.path, &error))?;
            self.written.statement_max_bytes = values.statement_max_bytes;
        }
        if let Some((file, path)) = &mut self.raw {
            file.flush().map_err(|error| Error::file(path, &error))?;
        }
        Ok(self.written)
    }
}

impl Values<'_> {
    fn values_of(&self, key: &[u8], row: &[u8]) -> std::result::Result<Vec<Value>, String> {
        let stored = self.rows.read(key, row)?;
        let one = |(at, column): &(usize, &Column)| {
            let value = value(column, stored[*at].as_deref())?;
            let is_bytes = matches!(value, Value::Bytes { .. });
            // LOAD DATA reads a column in one way, and can't see which fields have quotes.
            if self.format == Format::Csv && is_bytes && !is_always_bytes(column) {
                return Err(format!("column '{}': no text of {}", column.name, column.charset));
            }
            Ok(value)
        };
        self.columns.iter().map(one).collect()
    }

    fn write(&mut self, row: &[Value]) -> std::io::Result<()> {
        match self.format {
            Format::Sql => {
                let begin = if self.batch_rows == 0 { "(" } else { ",\n(" };
                self.batch.push_str(begin);
                for (at, value) in row.iter().enumerate() {
                    if at > 0 {
                        self.batch.push_str(", ");
                    }
                    value.sql(&mut self.batch);
                }
                self.batch.push(')');
                self.batch_rows += 1;
                match self.batch_rows >= BATCH_ROWS || self.batch.len() >= BATCH_BYTES {
                    true => self.end_batch(),
                    false => Ok(()),
                }
            }
            Format::Csv => {
                self.batch.clear();
                for (at, value) in row.iter().enumerate() {
                    if at > 0 {
                        self.batch.push(',');
                    }
                    value.csv(&mut self.batch);
                }
                self.batch.push('\n');
                self.file.write_all(self.batch.as_bytes())
            }
        }
    }

    fn end_batch(&mut self) -> std::io::Result<()> {
        if self.batch_rows > 0 {
            let bytes = (self.insert.len() + self.batch.len() + 1) as u64;
            self.statement_max_bytes = self.statement_max_bytes.max(bytes);
            self.file.write_all(self.insert.as_bytes())?;
            self.file.write_all(self.batch.as_bytes())?;
            self.file.write_all(b";\n")?;
        }
        self.batch.clear();
        self.batch_rows = 0;
        Ok(())
    }
}

/// The statement that loads a file of CSV. Columns that have bytes go through a variable.
fn load_statement(table: &str, csv: &Path, columns: &[&Column]) -> String {
    let (mut places, mut sets) = (Vec::new(), Vec::new());
    for (at, column) in columns.iter().enumerate() {
        let name = identifier(&column.name);
        if is_always_bytes(column) {
            places.push(format!("@c{at}"));
            sets.push(format!("{name} = UNHEX(SUBSTR(@c{at}, 3))"));
        } else {
            places.push(name);
        }
    }
    let sets = match sets.is_empty() {
        true => String::new(),
        false => format!("\nSET {}", sets.join(", ")),
    };
    format!(
        "LOAD DATA LOCAL INFILE {} INTO TABLE {table} CHARACTER SET utf8mb4\n\
         FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY ''\n\
         LINES TERMINATED BY '\\n' IGNORE 1 LINES\n({}){sets};\nSHOW WARNINGS;\n",
        literal(&csv.to_string_lossy()),
        places.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::rows::description::Kind;

    fn column(name: &str, kind: Kind, charset: &str) -> Column {
        Column { name: name.into(), charset: charset.into(), ..Column::of_kind(kind) }
    }

    #[test]
    fn a_file_of_csv_is_loaded_by_its_columns_and_bytes_are_decoded() {
        let columns = [
            column("id", Kind::Integer, "binary"),
            column("b`", Kind::Binary, "binary"),
            column("t", Kind::Text, "utf8mb4"),
            column("k", Kind::Text, "koi8r"),
        ];
        let columns: Vec<&Column> = columns.iter().collect();
        let text = load_statement("`a`.`b`", Path::new("/it's/b.csv"), &columns);
        assert_eq!(
            text,
            "LOAD DATA LOCAL INFILE '/it''s/b.csv' INTO TABLE `a`.`b` CHARACTER SET utf8mb4\n\
             FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY ''\n\
             LINES TERMINATED BY '\\n' IGNORE 1 LINES\n(`id`, @c1, `t`, @c3)\nSET `b``` = UNHEX(SUBSTR(@c1, 3)), `k` = \
             UNHEX(SUBSTR(@c3, 3));\nSHOW WARNINGS;\n"
        );
        let text = load_statement("`b`", Path::new("b.csv"), &columns[..1]);
        assert!(text.contains("\n(`id`);\n"), "{text}");
    }
}
