//! Room on the disk and time: what a table will take, before it is altered.
//!
//! A table and its copy are on disk together, so each ALTER needs room for one more copy; the old
//! files go at its end. The first tables are estimated from their present size, the later ones from
//! what the first have shown.

use std::path::{Path, PathBuf};

use crate::bytes::{MIB, human};
use crate::exit::{Error, Result};
use crate::facts::machine::free_bytes;
use crate::facts::process::server_process;
use crate::server::{Named, Server};
use crate::sql_text::literal;

use super::names::TableName;
use super::schema::Table;
use super::statements::Direction;

/// What is kept free beyond the copy: redo, undo and files of sorts.
const MARGIN_BYTES: u64 = 128 * MIB;
/// Tables smaller than this show nothing about the others.
const LARGE_ENOUGH_BYTES: u64 = 8 * MIB;
/// Bytes of the present table a second, before any table has been measured: small machines and
/// disks of virtual ones do about that.
const ASSUMED_BYTES_PER_S: f64 = 25e6;
/// How much larger a table becomes, before any has been measured. InnoDB's pages are not
/// compressed, so a table of Tidepool grows on the way back.
const ASSUMED_GROWTH_TO_INNODB: f64 = 8.0;
/// And one whose InnoDB pages were compressed.
const ASSUMED_GROWTH_OF_COMPRESSED: f64 = 2.0;
/// A row of InnoDB with its index entries.
const ASSUMED_ROW_BYTES: u64 = 100;

/// Where the free room can be read.
#[derive(Debug)]
enum Disk {
    /// The server is on this machine.
    Here {
        pid: u32,
        directory: PathBuf,
    },
    /// The server's plugin DISKS says it.
    Plugin {
        directory: PathBuf,
    },
    Unknown,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Space {
    disk: Disk,
    /// The largest growth of a table that is large enough to count.
    growth_max: Option<f64>,
    done_bytes: u64,
    done_s: f64,
}

impl Space {
    /// Finds the disk that the new tables will be on.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn new(server: &mut Server, direction: Direction) -> Result<Space> {
        let variables = server.named(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'pid_file', 'hostname', \
             'tidepool_data_home_dir')",
        )?;
        let directory = directory_of(&variables, direction);
        let disk = match server_process(server, &variables) {
            Some(process) => Disk::Here { pid: process.pid, directory },
            None => Disk::Plugin { directory },
        };
        let mut space = Space { disk, growth_max: None, done_bytes: 0, done_s: 0.0 };
        if space.free(server)?.is_none() {
            space.disk = Disk::Unknown;
        }
        Ok(space)
    }

    /// Free bytes for the server; `None` where that can't be seen.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn free(&self, server: &mut Server) -> Result<Option<u64>> {
        match &self.disk {
            Disk::Here { pid, directory } => Ok(free_bytes(*pid, directory)),
            Disk::Plugin { directory } => by_plugin(server, directory),
            Disk::Unknown => Ok(None),
        }
    }

    /// What the new table will take.
    pub fn needed(&self, table: &Table, direction: Direction) -> u64 {
        let is_compressed = table.row_format.eq_ignore_ascii_case("compressed")
            || table.has_option("PAGE_COMPRESSED");
        let growth = match (self.growth_max, direction) {
            // With something to spare: tables compress differently.
            (Some(growth), Direction::ToInnodb) => (growth * 1.5).max(1.0),
            (None, Direction::ToInnodb) => ASSUMED_GROWTH_TO_INNODB,
            (_, Direction::ToTidepool) if is_compressed => ASSUMED_GROWTH_OF_COMPRESSED,
            (_, Direction::ToTidepool) => 1.0,
        };
        let needed = (table.bytes() as f64 * growth) as u64;
        match direction {
            Direction::ToTidepool => needed,
            // What has not been written out yet is not in the size.
            Direction::ToInnodb => needed.max(table.rows * ASSUMED_ROW_BYTES),
        }
    }

    /// Before a table is altered.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no room for it.
    pub fn check(&self, server: &mut Server, table: &Table, direction: Direction) -> Result<()> {
        let needed = self.needed(table, direction);
        match self.free(server)? {
            Some(free) if free < needed + MARGIN_BYTES => Err(no_room(table, needed, free)),
            _ => Ok(()),
        }
    }

    /// The same for all tables in the order of their conversion, before the first of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no room for one of them.
    pub fn check_all<'a>(
        &self,
        free: u64,
        tables: impl Iterator<Item = &'a Table>,
        direction: Direction,
    ) -> Result<()> {
        let mut free = i128::from(free);
        for table in tables {
            let needed = self.needed(table, direction);
            if free < i128::from(needed + MARGIN_BYTES) {
                let free = u64::try_from(free).unwrap_or_default();
                return Err(no_room(table, needed, free));
            }
            free += i128::from(table.bytes()) - i128::from(needed);
        }
        Ok(())
    }

    /// What the conversion of a table has shown.
    pub fn learn(&mut self, bytes_before: u64, bytes_after: u64, seconds: f64) {
        if bytes_before >= LARGE_ENOUGH_BYTES && bytes_after > 0 {
            let growth = bytes_after as f64 / bytes_before as f64;
            self.growth_max = Some(self.growth_max.map_or(growth, |max| max.max(growth)));
        }
        self.done_bytes += bytes_before;
        self.done_s += seconds;
    }

    /// How long tables of this size take, at the pace so far.
    pub fn seconds(&self, bytes: u64) -> f64 {
        let pace = match self.done_bytes {
            0..LARGE_ENOUGH_BYTES => ASSUMED_BYTES_PER_S,
            done => done as f64 / self.done_s.max(0.001),
        };
        bytes as f64 / pace
    }

    /// What a table takes on disk now, as its engine says.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn size(&self, server: &mut Server, name: &TableName) -> Result<u64> {
        let columns = "IFNULL(DATA_LENGTH, 0) + IFNULL(INDEX_LENGTH, 0)";
        Ok(server.first("its size", "", &of_table(columns, name))?.unwrap_or_default())
    }

    /// A table's engine; `None` if there is no such table.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn engine(&self, server: &mut Server, name: &TableName) -> Result<Option<String>> {
        server.first("its engine", "", &of_table("IFNULL(ENGINE, '')", name))
    }
}

/// Where the engine makes its files.
fn directory_of(variables: &Named, direction: Direction) -> PathBuf {
    let variable = |name: &str| variables.get(name).map(String::as_str).unwrap_or_default();
    let data = PathBuf::from(variable("datadir"));
    match direction {
        // An empty one is a directory in the data directory. An absolute one replaces that.
        Direction::ToTidepool => data.join(variable("tidepool_data_home_dir")),
        Direction::ToInnodb => data,
    }
}

fn of_table(columns: &str, name: &TableName) -> String {
    format!(
        "SELECT {columns} FROM information_schema.TABLES WHERE TABLE_SCHEMA = {} AND TABLE_NAME = \
         {}",
        literal(&name.schema),
        literal(&name.table)
    )
}

fn no_room(table: &Table, needed: u64, free: u64) -> Error {
    Error::Unsupported(format!(
        "{} may need {} and {} are free: make room (the copy and the table are on disk together), \
         or if you know better use --no-space-check",
        table.name,
        human(needed + MARGIN_BYTES),
        human(free)
    ))
}

/// From the file system with the longest mount point above the directory.
fn by_plugin(server: &mut Server, directory: &Path) -> Result<Option<u64>> {
    let query = "SELECT COUNT(*) FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'DISKS' AND \
                 PLUGIN_STATUS = 'ACTIVE'";
    if server.first::<u64>("looking for the plugin DISKS", "", query)? != Some(1) {
        return Ok(None);
    }
    let query = "SELECT Path, Available FROM information_schema.DISKS";
    let rows: Vec<(String, u64)> = server.rows("the free room of the disks", "FILE", query)?;
    let above = rows.into_iter().filter(|(path, _)| directory.starts_with(path));
    Ok(above.max_by_key(|(path, _)| path.len()).map(|(_, kib)| kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::plain;
    use super::*;
    use crate::bytes::GIB;

    fn space() -> Space {
        Space { disk: Disk::Unknown, growth_max: None, done_bytes: 0, done_s: 0.0 }
    }

    fn table(bytes: u64) -> Table {
        Table { data_bytes: bytes, ..plain("a", "b") }
    }

    #[test]
    fn a_table_and_its_copy_must_have_room_together() {
        let check = |free, sizes: &[u64], direction| {
            let tables: Vec<Table> = sizes.iter().map(|size| table(*size)).collect();
            space().check_all(free, tables.iter(), direction)
        };
        let to = Direction::ToTidepool;
        assert!(check(2 * GIB, &[GIB, GIB, GIB], to).is_ok(), "each gives back what it took");
        let error = check(GIB, &[100, GIB], to).unwrap_err();
        assert_eq!(error.code(), 6, "{error}");
        // On the way back tables grow, and what has grown is gone.
        let back = Direction::ToInnodb;
        assert!(check(15 * GIB + 200 * MIB, &[GIB, GIB], back).is_ok());
        assert!(check(15 * GIB, &[GIB, GIB], back).is_err());
    }

    #[test]
    fn room_is_looked_for_where_the_engine_makes_its_files() {
        let of = |home: Option<&str>, direction| {
            let mut variables = Named::from([("datadir".to_owned(), "/data/".to_owned())]);
            variables.extend(home.map(|home| ("tidepool_data_home_dir".into(), home.into())));
            directory_of(&variables, direction)
        };
        for home in [None, Some("")] {
            assert!(of(home, Direction::ToTidepool) == *"/data/");
        }
        assert!(of(Some("/fast/tidepool"), Direction::ToTidepool) == *"/fast/tidepool");
        assert!(of(Some("../tidepool"), Direction::ToTidepool) == *"/data/../tidepool");
        assert!(of(Some("/fast/tidepool"), Direction::ToInnodb) == *"/data");
    }

    #[test]
    fn the_first_tables_say_how_long_and_how_large_the_rest_will_be() {
        let mut space = space();
        assert_eq!(space.seconds(50_000_000), 2.0);
        space.learn(100 * MIB, 200 * MIB, 10.0);
        assert_eq!(space.seconds(100 * MIB), 10.0);
        assert_eq!(space.needed(&table(MIB), Direction::ToInnodb), 3 * MIB);
        let compressed = Table { row_format: "Compressed".into(), ..table(MIB) };
        assert_eq!(space.needed(&compressed, Direction::ToTidepool), 2 * MIB);
    }
}
