//! Fills tables that are identical to sysbench's, several times as fast as sysbench does, and keeps
//! the data directories for the next run.
//!
//! ```text
//! <work>/data/<engine>-<version and format>-<name>-<hash of what is in it>/     a data directory, stopped in order
//! ```
//!
//! Experiments that only read leave a directory as it is; those that write replace rows by rows of
//! the same size, so the next run finds the same number of rows and as good as the same pages. A
//! server that was killed on such a directory recovers at the next start.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Instant;

use mysql::LocalInfileHandler;
use mysql::prelude::Queryable;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::engine::Engine;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::load::{tpcc, tpch};
use crate::record::fnv64;
use crate::server::{Server, ServerOptions, install};

/// Bytes of rows that go to the server in one statement and transaction.
const BATCH_BYTES: u64 = 24 << 20;
/// Bytes of a sysbench row with its share of both indexes, roughly: for sizing only.
pub const ROW_BYTES: u64 = 235;
/// Bytes of a TPC-C warehouse with its share of the rest, roughly.
const WAREHOUSE_BYTES: u64 = 120 << 20;
/// Bytes of a wide row: half a page.
const WIDE_ROW_BYTES: u64 = 8192;
/// Bytes of the text in a wide row.
const WIDE_TEXT_BYTES: usize = 7500;

/// A table to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its database; the table itself is `sbtest1`.
    pub database: String,
    /// How many rows it gets, with ids from 1.
    pub rows: u64,
    /// Two rows to a page of 16 KiB and no second index, in place of sysbench's rows: for filling a
    /// pool fast.
    pub wide: bool,
}

impl Table {
    /// A table like sysbench's.
    pub fn new(database: &str, rows: u64) -> Table {
        Table { database: database.into(), rows, wide: false }
    }

    fn size_bytes(&self) -> u64 {
        self.rows * if self.wide { WIDE_ROW_BYTES } else { ROW_BYTES }
    }
}

/// A data directory to be made.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// Goes into the directory's name.
    pub name: String,
    /// Its tables of sysbench's kind.
    pub tables: Vec<Table>,
    /// Warehouses of TPC-C, in the database that the load uses; 0 for none.
    pub warehouses: u32,
    /// The tables of TPC-H, in their database.
    pub tpch: Option<tpch::Scale>,
}

impl DataSet {
    /// One table in the database `sbtest`.
    pub fn one(name: &str, rows: u64) -> DataSet {
        DataSet::of_tables(name, vec![Table::new("sbtest", rows)])
    }

    /// One table of wide rows.
    pub fn wide(name: &str, size_bytes: u64) -> DataSet {
        let table = Table { wide: true, ..Table::new("wide", size_bytes / WIDE_ROW_BYTES) };
        DataSet::of_tables(name, vec![table])
    }

    /// Tables of sysbench's kind.
    pub fn of_tables(name: &str, tables: Vec<Table>) -> DataSet {
        DataSet { name: name.into(), tables, warehouses: 0, tpch: None }
    }

    /// The tables of TPC-C.
    pub fn tpcc(warehouses: u32) -> DataSet {
        DataSet { warehouses, ..DataSet::of_tables("tpcc", Vec::new()) }
    }

    /// The tables of TPC-H.
    pub fn tpch(scale: tpch::Scale) -> DataSet {
        DataSet { tpch: Some(scale), ..DataSet::of_tables("tpch", Vec::new()) }
    }

    /// Where its directory is.
    fn dir(&self, environment: &Environment, engine: Engine) -> Result<PathBuf> {
        let mut content: String = self
            .tables
            .iter()
            .map(|table| format!("{}:{}:{} ", table.database, table.rows, table.wide))
            .collect();
        if self.warehouses > 0 {
            content += &format!("warehouses:{}", self.warehouses);
        }
        if let Some(scale) = self.tpch {
            content += &format!("tpch:{}", scale.thousandths);
        }
        let version = engine.data_version(environment)?;
        let hash = fnv64(content.as_bytes()) & 0xffff_ffff;
        let name = format!("{}-{version}-{}-{hash:08x}", engine.key(), self.name);
        Ok(environment.work_dir.join("data").join(name))
    }

    /// Its size on the disk, roughly.
    fn size_bytes(&self) -> u64 {
        let tables: u64 = self.tables.iter().map(Table::size_bytes).sum();
        let tpch = self.tpch.map_or(0, tpch::Scale::size_bytes);
        tables + u64::from(self.warehouses) * WAREHOUSE_BYTES + tpch
    }
}

/// The directory with this data, made if it is not there yet. `progress` gets the share that is
/// done.
///
/// # Errors
/// If there is no room for it, the server fails, or another process is making it.
pub fn prepare(
    environment: &Environment,
    engine: Engine,
    data: &DataSet,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<PathBuf> {
    let dir = data.dir(environment, engine)?;
    if dir.exists() {
        return Ok(dir);
    }
    let parent = environment.work_dir.join("data");
    fs::create_dir_all(&parent).map_err(Error::at(&parent))?;
    // Else what another run has made so far would be removed below its server.
    let _lock = lock(&dir)?;
    if dir.exists() {
        return Ok(dir);
    }
    check_room(&parent, data.size_bytes())?;
    let unfinished = beside(&dir, "new");
    let _ = fs::remove_dir_all(&unfinished);
    install(environment, engine, &unfinished)?;
    let mut args = vec![
        engine.pool_size_option(data.size_bytes().clamp(256 << 20, 2 << 30)),
        engine.redo_option(256 << 20),
        engine.lazy_log_option(),
    ];
    if matches!(engine, Engine::InnoDb | Engine::MySql) {
        args.push("--innodb-doublewrite=OFF".into());
    }
    let options =
        ServerOptions { engine, data_dir: unfinished.clone(), args, cgroup_procs: Vec::new() };
    let server = Server::start(environment, options)?;
    let start = Instant::now();
    let all: u64 = data.tables.iter().map(|table| table.rows).sum();
    let mut before = 0;
    for table in &data.tables {
        fill(&server, table, &mut |rows| {
            let text = format!("loading {} rows into {}", table.rows, engine.name());
            progress(&text, (before + rows) as f64 / all as f64);
        })?;
        before += table.rows;
    }
    if data.warehouses > 0 {
        progress("filling the tables of TPC-C", 0.0);
        server.execute(&format!("CREATE DATABASE {}", tpcc::consistency::DATABASE))?;
        let mut client = server.client(tpcc::consistency::DATABASE)?;
        let scale = tpcc::Scale::full(data.warehouses);
        tpcc::population::populate(client.as_mut(), &scale, 1)
            .map_err(Error::statement("the tables of TPC-C"))?;
    }
    if let Some(scale) = data.tpch {
        tpch::schema::fill(&mut server.connect("")?, scale, progress)?;
    }
    server.stop()?;
    tracing::info!("{} is filled, after {:.0} s", dir.display(), start.elapsed().as_secs_f64());
    fs::rename(&unfinished, &dir).map_err(Error::at(&dir))?;
    Ok(dir)
}

/// A file of this name next to a data directory, locked: two runs can't use the same directory.
///
/// # Errors
/// If another process has it.
pub fn lock(dir: &Path) -> Result<File> {
    let path = beside(dir, "lock");
    let file = File::create(&path).map_err(Error::at(&path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(
        |_| Error::Missing(format!("{} is in use by another run of the lab", dir.display())),
    )?;
    Ok(file)
}

/// Copies a data directory that no server has open, in place of whatever is at `to`.
///
/// # Errors
/// If there is no room for it, or a file can't be copied.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).map_err(Error::at(to))?;
    }
    fs::create_dir_all(to).map_err(Error::at(to))?;
    keep_owner(from, to)?;
    for entry in fs::read_dir(from).map_err(Error::at(from))? {
        let entry = entry.map_err(Error::at(from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().map_err(Error::at(&path))?.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(Error::at(&target))?;
            keep_owner(&path, &target)?;
        }
    }
    Ok(())
}

/// Gives a copy the owner and the mode of the original: PostgreSQL insists on both.
fn keep_owner(from: &Path, to: &Path) -> Result<()> {
    let (original, copy) = (from.metadata(), to.metadata());
    let (original, copy) = (original.map_err(Error::at(from))?, copy.map_err(Error::at(to))?);
    if original.uid() != copy.uid() {
        chown(to, Some(original.uid()), Some(original.gid())).map_err(Error::at(to))?;
    }
    fs::set_permissions(to, original.permissions()).map_err(Error::at(to))
}

/// Writes a directory's files to the disk and drops them from the page cache, so that a server in a
/// memory cgroup finds nothing there that it was not charged for.
///
/// # Errors
/// If a file can't be read or written out.
pub fn drop_from_cache(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::at(dir))? {
        let entry = entry.map_err(Error::at(dir))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::at(dir))?);
        if kind.is_dir() {
            drop_from_cache(&path)?;
        } else if kind.is_file() {
            let file = File::open(&path).map_err(Error::at(&path))?;
            file.sync_data().map_err(Error::at(&path))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .map_err(|errno| Error::at(&path)(errno.into()))?;
        }
    }
    Ok(())
}

/// The path with ".suffix" after its name: `with_extension` would cut a version number.
fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_os_string();
    name.push(format!(".{suffix}"));
    name.into()
}

fn check_room(dir: &Path, size_bytes: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).map_err(|errno| Error::at(dir)(errno.into()))?;
    let free = stat.f_bavail * stat.f_frsize;
    // Loading needs the log, and sorting for the secondary index, besides.
    let needed = size_bytes + size_bytes / 4 + (2 << 30);
    if free < needed {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        return Err(Error::Missing(format!(
            "{} has {:.1} GiB free, and this experiment's data needs {:.1}: free some, choose a smaller --memory, \
             or set TIDEPOOL_LAB_DIR",
            dir.display(),
            gib(free),
            gib(needed)
        )));
    }
    Ok(())
}

/// Makes one table and fills it. `progress` gets the rows that are there.
///
/// # Errors
/// What the server says.
pub fn fill(server: &Server, table: &Table, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let engine = server.options().engine;
    server.execute(&format!("CREATE DATABASE IF NOT EXISTS {}", table.database))?;
    let mut conn = server.connect(&table.database)?;
    let mut run = |statement: &str| conn.query_drop(statement).map_err(Error::sql(statement));
    let columns = if table.wide {
        format!("c VARCHAR({WIDE_TEXT_BYTES}) CHARACTER SET latin1 NOT NULL")
    } else {
        "k INTEGER DEFAULT '0' NOT NULL, c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL"
            .into()
    };
    run(&format!(
        "CREATE TABLE sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, {columns}, PRIMARY KEY (id)) ENGINE={}",
        engine.name()
    ))?;
    run("SET SESSION foreign_key_checks=0, unique_checks=0")?;
    // MariaDB's InnoDB fills an empty table in bulk, but in one statement only.
    let batch = match engine {
        Engine::InnoDb => table.rows,
        _ => (BATCH_BYTES / (table.size_bytes() / table.rows.max(1)).max(1)).max(1),
    };
    let mut first = 1;
    while first <= table.rows {
        let last = table.rows.min(first + batch - 1);
        let (rows, wide) = (table.rows, table.wide);
        conn.set_local_infile_handler(Some(LocalInfileHandler::new(move |_, stream| {
            if wide {
                write_wide_rows(stream, first..=last)
            } else {
                write_rows(stream, first..=last, rows)
            }
        })));
        let load = "LOAD DATA LOCAL INFILE 'rows' INTO TABLE sbtest1";
        conn.query_drop(load).map_err(Error::sql(load))?;
        progress(last * 9 / 10);
        first = last + 1;
    }
    let mut run = |statement: &str| conn.query_drop(statement).map_err(Error::sql(statement));
    if !table.wide {
        run("CREATE INDEX k_1 ON sbtest1(k)")?;
    }
    run("ANALYZE TABLE sbtest1")?;
    progress(table.rows);
    Ok(())
}

/// Rows with a number and a long text.
fn write_wide_rows(
    stream: &mut dyn Write,
    ids: std::ops::RangeInclusive<u64>,
) -> std::io::Result<()> {
    let text = vec![b'x'; WIDE_TEXT_BYTES];
    for id in ids {
        write!(stream, "{id}\t")?;
        stream.write_all(&text)?;
        stream.write_all(b"\n")?;
    }
    Ok(())
}

/// Rows as sysbench makes them: k evenly in 1..=rows, c of ten and pad of five groups of eleven
/// digits.
fn write_rows(
    stream: &mut dyn Write,
    ids: std::ops::RangeInclusive<u64>,
    rows: u64,
) -> std::io::Result<()> {
    let mut random = SmallRng::seed_from_u64(*ids.start());
    let mut line = Vec::with_capacity(256);
    for id in ids {
        line.clear();
        write!(line, "{id}\t{}\t", random.random_range(1..=rows))?;
        digits(&mut line, &mut random, 10);
        line.push(b'\t');
        digits(&mut line, &mut random, 5);
        line.push(b'\n');
        stream.write_all(&line)?;
    }
    Ok(())
}

fn digits(line: &mut Vec<u8>, random: &mut SmallRng, groups: u32) {
    for group in 0..groups {
        if group > 0 {
            line.push(b'-');
        }
        let mut number: u64 = random.random_range(0..100_000_000_000);
        let at = line.len();
        line.resize(at + 11, b'0');
        for place in (at..at + 11).rev() {
            line[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_directory_holds_what_it_holds_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/page"), b"16k").unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("stale"), b"").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("inner/page")).unwrap(), b"16k");
        assert!(!to.join("stale").exists());
    }

    #[test]
    fn what_another_run_is_making_stays_as_it_is() {
        let work = tempfile::tempdir().unwrap();
        let environment = Environment::in_directory(work.path());
        let data = DataSet::one("small", 10);
        let dir = data.dir(&environment, Engine::Tidepool).unwrap();
        let page = beside(&dir, "new").join("page");
        fs::create_dir_all(page.parent().unwrap()).unwrap();
        fs::write(&page, b"16k").unwrap();
        let making = lock(&dir).unwrap();
        let error = prepare(&environment, Engine::Tidepool, &data, &mut |_, _| ()).unwrap_err();
        assert!(error.to_string().contains("in use by another run"), "{error}");
        assert_eq!(fs::read(&page).unwrap(), b"16k");
        drop(making);
    }

    #[test]
    fn rows_look_like_those_of_sysbench() {
        let mut text = Vec::new();
        write_rows(&mut text, 5..=7, 1000).unwrap();
        let text = String::from_utf8(text).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows.len(), 3);
        for (row, id) in rows.iter().zip(5u64..) {
            let [row_id, k, c, pad] = row[..] else { panic!("{row:?}") };
            assert_eq!(row_id.parse::<u64>().unwrap(), id);
            assert!((1..=1000).contains(&k.parse::<u64>().unwrap()));
            assert_eq!((c.len(), pad.len()), (119, 59));
            let group = |text: &str| text.len() == 11 && text.bytes().all(|b| b.is_ascii_digit());
            assert!(c.split('-').all(group) && pad.split('-').all(group));
        }
        assert_ne!(rows[0][2], rows[1][2]);
    }
}
