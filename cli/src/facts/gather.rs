//! Asks the server and the machine.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::machine::{Directories, Look};
use super::process::server_process;
use super::promised::caches;
use super::{
    AdviceRow, Connections, Data, Facts, LargeBuffer, Pool, Redo, Settings, Tidepool, Unseen,
};
use crate::bytes::{GIB, MIB};
use crate::exit::{Error, Result};
use crate::server::{Flavour, Kind, Named, Server, number, switch, text};

/// Looks at the server's counters twice, `interval` apart, and at everything else once.
///
/// # Errors
/// If the server goes away. A missing privilege is no error: it is noted in [`Facts::unseen`].
pub fn gather(server: &mut Server, interval: Duration) -> Result<Facts> {
    // To sum up the sizes of all tables takes its time, and a limit is for the statements of the
    // application.
    server.lift_time_limit()?;
    let variables = server.variables()?;
    let look = server_process(server, &variables).map(|process| Look::begin(process.pid));
    let start = Instant::now();
    let before = server.status()?;
    sleep(interval);
    let now = server.status()?;
    let elapsed = start.elapsed();
    let remote = || "run this on the server's machine, best through its Unix socket".to_owned();
    let directory = |name: &str| variables.get(name).map(String::as_str);
    let directories =
        Directories { data: directory("datadir"), redo: directory("innodb_log_group_home_dir") };
    let machine = look.ok_or_else(remote).and_then(|look| look.end(elapsed, directories));
    let mut unseen = Vec::new();
    if let Err(remedy) = &machine {
        let what = "the server's machine: memory, cgroup, swap, disk".into();
        unseen.push(Unseen { what, remedy: remedy.clone() });
    }
    let kind = server.kind().clone();
    let rates = Rates { before: &before, now: &now, elapsed };
    let data = data(server, &mut unseen)?;
    let tidepool =
        kind.tidepool.then(|| tidepool(server, &variables, &rates, &mut unseen)).transpose()?;
    Ok(Facts {
        uptime_s: number(&now, "uptime").unwrap_or(0),
        machine: machine.ok(),
        pool: kind.innodb.then(|| pool(&kind, &variables, &rates)),
        tidepool,
        redo: kind.innodb.then(|| redo(&kind, &variables, &rates)),
        connections: connections(&kind, &variables, &now),
        promised: caches(&kind, &variables, &now),
        data,
        settings: Settings {
            pool_size_is_set: pool_size_is_set(server)?,
            persisted: persisted(server)?,
            ..settings(&variables)
        },
        unseen,
        kind,
    })
}

struct Rates<'a> {
    before: &'a Named,
    now: &'a Named,
    elapsed: Duration,
}

impl Rates<'_> {
    fn ever(&self, name: &str) -> u64 {
        number(self.now, name).unwrap_or(0)
    }

    fn per_s(&self, name: &str) -> f64 {
        let before = number(self.before, name).unwrap_or(0);
        self.ever(name).saturating_sub(before) as f64 / self.elapsed.as_secs_f64().max(0.001)
    }
}

/// Whether and how the pool can be resized while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resizing {
    /// Whether at all.
    pub online: bool,
    /// Whether SET GLOBAL returns when the resize is done: so it is where the pool has no chunks.
    pub at_once: bool,
    /// Sizes are multiples of this.
    pub unit_bytes: u64,
    /// The smallest.
    pub least_bytes: u64,
    /// The largest, where there is such a bound.
    pub most_bytes: Option<u64>,
}

impl Resizing {
    /// Why a server of this kind can't do it.
    pub fn why_not(&self, kind: &Kind) -> Option<String> {
        match (self.online, self.at_once) {
            (true, _) => None,
            // A server that resizes at once can do so, except in these cases.
            (false, true) => Some(
                "this server uses large pages, and MariaDB can't resize such a pool while it runs; start it with large_pages=0"
                    .into(),
            ),
            (false, false) => {
                Some(format!("{kind} can't resize the InnoDB buffer pool while it runs"))
            }
        }
    }
}

/// What the server's settings say about it.
pub fn resizing(kind: &Kind, variables: &Named) -> Resizing {
    let most_bytes = number(variables, "innodb_buffer_pool_size_max").filter(|&max| max > 0);
    let chunk = chunk_bytes(variables);
    let instances = number(variables, "innodb_buffer_pool_instances").unwrap_or(1).max(1);
    let unit_bytes = if chunk == 0 { MIB } else { chunk * instances };
    // Several instances have a GiB at least; with less a server starts with one.
    let least_bytes = if chunk > 0 && instances > 1 { GIB } else { unit_bytes.max(5 * MIB) };
    let online = kind.flavour != Flavour::MariaDb || kind.version >= (10, 2, 2);
    let at_once = online && kind.flavour == Flavour::MariaDb && chunk == 0;
    // MariaDB refuses it then.
    let online = online && !(at_once && switch(variables, "large_pages") == Some(true));
    let least_bytes = least_bytes.next_multiple_of(unit_bytes);
    Resizing { online, at_once, unit_bytes, least_bytes, most_bytes }
}

/// The size of the chunks that the pool consists of; 0 where it has none. MariaDB since 10.11.12
/// (and the releases of that day of the other series) resizes without them. The option is still
/// there, and reports the value of an old option file, but has no effect: those versions are known
/// by the bound that came with them.
fn chunk_bytes(variables: &Named) -> u64 {
    match variables.contains_key("innodb_buffer_pool_size_max") {
        true => 0,
        false => number(variables, "innodb_buffer_pool_chunk_size").unwrap_or(0),
    }
}

/// What the page cleaner keeps free at the end of each instance's list, bytes.
pub fn kept_free(variables: &Named) -> u64 {
    let of = |name: &str| number(variables, name);
    let pages = of("innodb_lru_scan_depth").unwrap_or(0)
        * of("innodb_buffer_pool_instances").unwrap_or(1).max(1);
    pages * of("innodb_page_size").unwrap_or(16384)
}

fn pool(kind: &Kind, variables: &Named, rates: &Rates<'_>) -> Pool {
    let can = resizing(kind, variables);
    let page = number(variables, "innodb_page_size").unwrap_or(16384);
    Pool {
        size_bytes: number(variables, "innodb_buffer_pool_size").unwrap_or(0),
        size_max_bytes: can.most_bytes,
        least_bytes: can.least_bytes,
        unit_bytes: can.unit_bytes,
        online: can.online,
        described: chunk_bytes(variables) > 0,
        data_bytes: rates.ever("innodb_buffer_pool_bytes_data"),
        free_bytes: rates.ever("innodb_buffer_pool_pages_free") * page,
        kept_free_bytes: kept_free(variables),
        requests_per_s: rates.per_s("innodb_buffer_pool_read_requests"),
        reads_per_s: rates.per_s("innodb_buffer_pool_reads"),
        requests_ever: rates.ever("innodb_buffer_pool_read_requests"),
        reads_ever: rates.ever("innodb_buffer_pool_reads"),
        is_loaded_at_start: switch(variables, "innodb_buffer_pool_load_at_startup") == Some(true),
        wait_free_ever: rates.ever("innodb_buffer_pool_wait_free"),
        old_blocks_time_ms: number(variables, "innodb_old_blocks_time"),
    }
}

fn redo(kind: &Kind, variables: &Named, rates: &Rates<'_>) -> Redo {
    let setting = number(variables, "innodb_redo_log_capacity");
    let file = number(variables, "innodb_log_file_size").unwrap_or(0);
    let files = number(variables, "innodb_log_files_in_group").unwrap_or(1).max(1);
    // Where only the old options are set, MySQL's log has their size, and the setting still shows
    // its own default. The counter has the real size.
    let capacity = number(rates.now, "innodb_redo_log_capacity_resized")
        .filter(|&capacity| capacity > 0)
        .or(setting);
    let mysql_capacity = capacity.filter(|_| kind.is_mysql_since((8, 0, 30)));
    let written = rates.ever("innodb_os_log_written");
    // MySQL does not say where writers wait: with its margins that is at about five sixths.
    let mysql_max = mysql_capacity.map(|capacity| capacity / 6 * 5);
    Redo {
        capacity_bytes: mysql_capacity.unwrap_or(file * files),
        files: if mysql_capacity.is_some() { 1 } else { files },
        option: if mysql_capacity.is_some() {
            "innodb_redo_log_capacity"
        } else {
            "innodb_log_file_size"
        },
        // MariaDB's log must be able to hold what its buffer does.
        least_bytes: number(variables, "innodb_log_buffer_size")
            .filter(|_| kind.is_mariadb_since((10, 9, 0)))
            .unwrap_or(0),
        online: mysql_capacity.is_some() || kind.is_mariadb_since((10, 9, 0)),
        written_per_s: rates.per_s("innodb_os_log_written"),
        // The first minutes of a server are no average: loading a dump is not its life.
        written_per_s_ever: written as f64 / rates.ever("uptime").max(3600) as f64,
        checkpoint_age_bytes: checkpoint_age(rates.now, "innodb"),
        checkpoint_max_bytes: number(rates.now, "innodb_checkpoint_max_age").or(mysql_max),
    }
}

/// Redo since the last checkpoint of the engine with this prefix. MySQL says how much of its log is
/// in use.
pub fn checkpoint_age(status: &Named, prefix: &str) -> Option<u64> {
    number(status, &format!("{prefix}_checkpoint_age"))
        .or_else(|| number(status, &format!("{prefix}_redo_log_logical_size")))
}

/// What the settings and the counters say of the clients.
pub fn connections(kind: &Kind, variables: &Named, now: &Named) -> Connections {
    const BUFFERS: [&str; 5] = [
        "sort_buffer_size",
        "join_buffer_size",
        "read_buffer_size",
        "read_rnd_buffer_size",
        "binlog_cache_size",
    ];
    // The defaults are 2 MiB at most.
    const LARGE_BYTES: u64 = 16 * MIB;
    let of = |name: &str| number(variables, name).unwrap_or(0);
    // A thread touches a part of its stack only, and frees the network buffer's growth after each
    // statement.
    let idle = of("net_buffer_length") + of("thread_stack") / 2;
    // Each of them can be set to all that there is of numbers.
    let busy = BUFFERS.iter().fold(idle, |sum, name| sum.saturating_add(of(name)));
    let large = BUFFERS.into_iter().map(|name| LargeBuffer { name, bytes: of(name) });
    let mut large: Vec<LargeBuffer> = large.filter(|buffer| buffer.bytes >= LARGE_BYTES).collect();
    large.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    Connections {
        allowed: number(variables, "max_connections").unwrap_or(0),
        used_max: number(now, "max_used_connections").unwrap_or(0),
        connected: number(now, "threads_connected").unwrap_or(0),
        busy_bytes: busy,
        idle_bytes: idle,
        tmp_table_bytes: tmp_table_bytes(kind, variables),
        tmp_tables_max_bytes: number(variables, "temptable_max_ram"),
        running: number(now, "threads_running").unwrap_or(0),
        // MySQL's own has come with a plugin, by that name.
        pooled: variables.get("thread_handling").is_some_and(|handling| {
            ["pool-of-threads", "loaded-dynamically"].contains(&handling.as_str())
        }),
        large,
    }
}

/// The largest temporary table that stays in memory. MySQL's engine for them heeds the one option
/// since 8.0.28.
fn tmp_table_bytes(kind: &Kind, variables: &Named) -> u64 {
    let of = |name: &str| number(variables, name);
    let (table, heap) = (of("tmp_table_size").unwrap_or(0), of("max_heap_table_size"));
    let has_one_bound = kind.is_mysql_since((8, 0, 28));
    heap.filter(|_| !has_one_bound).map_or(table, |heap| heap.min(table))
}

fn settings(variables: &Named) -> Settings {
    Settings {
        flush_method: variables.get("innodb_flush_method").cloned(),
        data_file_buffering: switch(variables, "innodb_data_file_buffering"),
        dump_at_shutdown: switch(variables, "innodb_buffer_pool_dump_at_shutdown"),
        load_at_startup: switch(variables, "innodb_buffer_pool_load_at_startup"),
        dump_pct: number(variables, "innodb_buffer_pool_dump_pct"),
        dedicated_server: switch(variables, "innodb_dedicated_server"),
        container_aware: switch(variables, "container_aware"),
        pool_size_is_set: None,
        locked: switch(variables, "locked_in_memory"),
        read_only: switch(variables, "innodb_read_only"),
        persisted: Vec::new(),
    }
}

/// Where the pool's size comes from. MySQL 5.7 does not report it, nor does one whose
/// performance_schema is off.
fn pool_size_is_set(server: &mut Server) -> Result<Option<bool>> {
    let query = match server.kind().flavour {
        Flavour::MariaDb => {
            "SELECT global_value_origin FROM information_schema.system_variables \
             WHERE variable_name = 'INNODB_BUFFER_POOL_SIZE'"
        }
        Flavour::MySql | Flavour::Percona => {
            "SELECT variable_source FROM performance_schema.variables_info \
             WHERE variable_name = 'innodb_buffer_pool_size'"
        }
    };
    match server.first::<Option<String>>("where the pool's size comes from", "", query) {
        Ok(origin) => Ok(origin.flatten().map(|origin| is_chosen(&origin))),
        Err(error @ Error::Gone(_)) => Err(error),
        Err(_) => Ok(None),
    }
}

fn persisted(server: &mut Server) -> Result<Vec<String>> {
    if !server.kind().is_mysql_since((8, 0, 0)) {
        return Ok(Vec::new());
    }
    let query = "SELECT variable_name FROM performance_schema.persisted_variables";
    match server.rows::<String>("what SET PERSIST has written", "", query) {
        Err(error @ Error::Gone(_)) => Err(error),
        names => Ok(names.unwrap_or_default()),
    }
}

/// Whether a variable of this origin, in MariaDB's words or MySQL's, has a value that somebody
/// chose.
fn is_chosen(origin: &str) -> bool {
    !matches!(origin.to_ascii_uppercase().as_str(), "COMPILE-TIME" | "COMPILED" | "AUTO")
}

/// Bytes of the pages of Tidepool's tables, which is what a pool holds. The sizes that the server
/// shows are those of compressed images; lengths of rows are of pages. An index is to the rows as
/// its images are to theirs.
fn tidepool_pages(server: &mut Server) -> Result<u64> {
    // A partitioned table as a whole shows a length of compressed rows; its partitions do not.
    let bytes: Option<u64> = server.first(
        "the tables' sizes",
        "SELECT",
        "SELECT CAST(COALESCE(SUM(p.table_rows * p.avg_row_length \
         * (1 + COALESCE(p.index_length / NULLIF(p.data_length, 0), 0))), 0) AS UNSIGNED) \
         FROM information_schema.partitions p \
         JOIN information_schema.tables t USING (table_schema, table_name) \
         WHERE t.engine = 'Tidepool'",
    )?;
    Ok(bytes.unwrap_or(0))
}

/// Sizes of everything stored. The files' sizes need PROCESS; rows and indexes need SELECT on the
/// tables, as `information_schema.tables` leaves out, silently, what the user may not see.
fn data(server: &mut Server, unseen: &mut Vec<Unseen>) -> Result<Data> {
    let mut data = Data::default();
    if server.kind().is_mysql_since((8, 0, 0)) {
        // Else it answers from what it wrote down up to a day ago, and writes down what it had to
        // look up.
        let afresh = "SET SESSION information_schema_stats_expiry = 0";
        if let Err(error @ Error::Gone(_)) = server.execute("the tables' sizes", "", afresh) {
            return Err(error);
        }
    }
    let tables: Vec<(Option<String>, u64, u64, u64)> = server.rows(
        "the tables' sizes",
        "SELECT",
        "SELECT engine, COUNT(*), CAST(COALESCE(SUM(data_length), 0) AS UNSIGNED), \
         CAST(COALESCE(SUM(index_length), 0) AS UNSIGNED) FROM information_schema.tables \
         WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE') GROUP BY engine",
    )?;
    for (engine, count, rows, indexes) in tables {
        data.tables += count;
        match engine.unwrap_or_default().to_ascii_lowercase().as_str() {
            "innodb" => (data.innodb_data_bytes, data.innodb_index_bytes) = (rows, indexes),
            "tidepool" => data.tidepool_tables = count,
            name => {
                data.other_bytes += rows + indexes;
                if name == "myisam" {
                    data.myisam_index_bytes = indexes;
                }
            }
        }
    }
    if server.kind().innodb {
        let query = innodb_files(server.kind());
        match server.first::<Option<u64>>("the sizes of InnoDB's files", "PROCESS", &query) {
            Ok(bytes) => data.innodb_file_bytes = bytes.flatten(),
            Err(Error::Privilege { what, grant }) => unseen.push(Unseen { what, remedy: grant }),
            // Old servers have no such column: the tables' sizes must do.
            Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if data.tidepool_tables > 0 {
        data.tidepool_bytes = tidepool_pages(server)?;
    }
    // For InnoDB the files are enough. Tidepool has no such table of its files.
    let (no_files, tidepool) = (data.innodb_file_bytes.is_none(), server.kind().tidepool);
    data.is_partial = (no_files || tidepool) && !may_see_all_tables(server)?;
    if data.is_partial {
        let whose = if no_files { "all tables" } else { "Tidepool's tables" };
        let privilege = if tidepool { "SELECT" } else { "PROCESS" };
        unseen.push(Unseen {
            what: format!("the size of {whose} (only those that this user may read were counted)"),
            remedy: format!("GRANT {privilege} ON *.* TO {}", server.account()),
        });
    }
    Ok(data)
}

/// The query for the size of InnoDB's files, without those of temporary tables, which no pool needs
/// to hold. It needs PROCESS.
pub fn innodb_files(kind: &Kind) -> String {
    let table = match kind.is_mysql_since((8, 0, 0)) {
        true => "INNODB_TABLESPACES",
        false => "INNODB_SYS_TABLESPACES",
    };
    format!(
        "SELECT CAST(COALESCE(SUM(file_size), 0) AS UNSIGNED) FROM information_schema.{table} \
         WHERE name NOT LIKE 'innodb\\_temp%'"
    )
}

fn may_see_all_tables(server: &mut Server) -> Result<bool> {
    let grants: Vec<Vec<u8>> = server.rows("SHOW GRANTS", "", "SHOW GRANTS")?;
    Ok(grants.into_iter().map(text).any(|grant| {
        let privileges = grant.split(" ON *.* ").next().filter(|part| part.len() < grant.len());
        privileges.is_some_and(|p| p.contains("ALL PRIVILEGES") || p.contains("SELECT"))
    }))
}

fn tidepool(
    server: &mut Server,
    variables: &Named,
    rates: &Rates<'_>,
    unseen: &mut Vec<Unseen>,
) -> Result<Tidepool> {
    let advice = match tidepool_advice(server) {
        Err(Error::Privilege { what, grant }) => {
            unseen.push(Unseen { what, remedy: grant });
            Vec::new()
        }
        advice => advice?,
    };
    let replacement = variables.get("tidepool_buffer_pool_replacement").map(String::as_str);
    Ok(Tidepool {
        size_setting_bytes: number(variables, "tidepool_buffer_pool_size").unwrap_or(0),
        guarded: switch(variables, "tidepool_memory_guard") != Some(false),
        limit_bytes: rates.ever("tidepool_buffer_pool_limit_bytes"),
        data_bytes: rates.ever("tidepool_buffer_pool_bytes_data"),
        requests_per_s: rates.per_s("tidepool_buffer_pool_read_requests"),
        reads_per_s: rates.per_s("tidepool_buffer_pool_reads"),
        requests_ever: rates.ever("tidepool_buffer_pool_read_requests"),
        reads_ever: rates.ever("tidepool_buffer_pool_reads"),
        read_us: read_us(rates),
        dump_at_shutdown: switch(variables, "tidepool_buffer_pool_dump_at_shutdown"),
        load_at_startup: switch(variables, "tidepool_buffer_pool_load_at_startup"),
        direct_io: switch(variables, "tidepool_use_direct_io"),
        old_blocks_time_ms: number(variables, "tidepool_old_blocks_time")
            .filter(|_| replacement == Some("midpoint")),
        advice,
    })
}

/// Fewer reads a second say nothing of how long one takes.
const TIMED_READS_PER_S: f64 = 20.0;

/// What a read waits, microseconds.
fn read_us(rates: &Rates<'_>) -> Option<f64> {
    let (reads, us) = ("tidepool_buffer_pool_reads", "tidepool_buffer_pool_reads_us");
    let recent = rates.per_s(reads);
    if recent >= TIMED_READS_PER_S {
        return Some(rates.per_s(us) / recent);
    }
    let ever = rates.ever(reads) as f64;
    (ever >= TIMED_READS_PER_S).then(|| rates.ever(us) as f64 / ever)
}

/// The engine's miss-ratio curve, smallest size first; empty where this build of it has none.
///
/// # Errors
/// [`Error::Privilege`] with the grant; if the server goes away.
pub fn tidepool_advice(server: &mut Server) -> Result<Vec<AdviceRow>> {
    let rows: Result<Vec<(u64, f64, f64, f64)>> = server.rows(
        "Tidepool's miss-ratio curve",
        "PROCESS",
        "SELECT CAST(SIZE_MB * 1048576 AS UNSIGNED), SIZE_FACTOR + 0e0, \
         PREDICTED_HIT_RATIO + 0e0, \
         PREDICTED_READS_PER_SECOND + 0e0 \
         FROM information_schema.TIDEPOOL_CACHE_ADVICE ORDER BY SIZE_MB",
    );
    match rows {
        Ok(rows) => Ok(rows
            .into_iter()
            .map(|(size_bytes, size_factor, hit_ratio, reads_per_s)| AdviceRow {
                size_bytes,
                size_factor: Some(size_factor),
                hit_ratio,
                reads_per_s,
            })
            .collect()),
        Err(error @ (Error::Gone(_) | Error::Privilege { .. })) => Err(error),
        Err(_) => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> Kind {
        Kind::from_words("10.11.18-MariaDB", "").unwrap()
    }

    #[test]
    fn a_pool_is_resized_by_what_its_server_can_do() {
        let of = |version: &str, settings: &[(&str, u64)]| {
            let kind = Kind::from_words(version, "").unwrap();
            let named =
                settings.iter().map(|(name, value)| ((*name).to_owned(), value.to_string()));
            resizing(&kind, &named.collect())
        };
        let chunk = ("innodb_buffer_pool_chunk_size", 128 * MIB);
        let one = of("9.7.4", &[chunk, ("innodb_buffer_pool_instances", 1)]);
        assert_eq!((one.unit_bytes, one.least_bytes, one.most_bytes), (128 * MIB, 128 * MIB, None));
        let three = of("9.7.4", &[chunk, ("innodb_buffer_pool_instances", 3)]);
        assert_eq!((three.unit_bytes, three.least_bytes), (384 * MIB, 1152 * MIB));
        // It has no chunks any more, says so with a 0, and reserves its address space.
        let settings = [("innodb_buffer_pool_chunk_size", 0), ("innodb_buffer_pool_size_max", GIB)];
        let maria = of("10.11.18-MariaDB", &settings);
        assert_eq!((maria.unit_bytes, maria.least_bytes), (MIB, 5 * MIB));
        assert_eq!((maria.online, maria.at_once, maria.most_bytes), (true, true, Some(GIB)));
        // An option file from before.
        assert_eq!(of("10.11.18-MariaDB", &[chunk, settings[1]]), maria);
        assert!(!of("10.11.11-MariaDB", &[chunk]).at_once && !one.at_once);
        assert!(!of("10.2.1-MariaDB", &[]).online);
    }

    #[test]
    fn a_redo_log_of_mysql_is_as_large_as_the_server_made_it() {
        let of = |now: &[(&str, u64)]| {
            let named = |pairs: &[(&str, u64)]| -> Named {
                pairs.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
            };
            let variables = named(&[
                ("innodb_redo_log_capacity", 100 * MIB),
                ("innodb_log_file_size", 4 * GIB),
                ("innodb_log_files_in_group", 2),
            ]);
            let now = named(now);
            let rates = Rates { before: &now, now: &now, elapsed: Duration::from_secs(1) };
            let redo = redo(&Kind::from_words("8.0.36", "").unwrap(), &variables, &rates);
            assert_eq!((redo.option, redo.files), ("innodb_redo_log_capacity", 1));
            (redo.capacity_bytes, redo.checkpoint_max_bytes.unwrap())
        };
        let made = of(&[("innodb_redo_log_capacity_resized", 8 * GIB)]);
        assert_eq!(made, (8 * GIB, 8 * GIB / 6 * 5));
        assert_eq!(of(&[]).0, 100 * MIB);
    }

    #[test]
    fn a_pool_in_large_pages_is_resized_by_a_restart_where_mariadb_has_no_chunks() {
        let online = |version: &str, sizes: (&str, u64)| {
            let kind = Kind::from_words(version, "").unwrap();
            let named = [("large_pages", "ON".to_owned()), (sizes.0, sizes.1.to_string())];
            let named = named.map(|(name, value)| (name.to_owned(), value));
            resizing(&kind, &Named::from(named)).online
        };
        assert!(!online("10.11.18-MariaDB", ("innodb_buffer_pool_size_max", GIB)));
        assert!(online("10.11.11-MariaDB", ("innodb_buffer_pool_chunk_size", 128 * MIB)));
        assert!(online("9.7.4", ("innodb_buffer_pool_chunk_size", 128 * MIB)));
    }

    #[test]
    fn a_pool_of_threads_is_known_by_the_servers_word() {
        let pooled = |handling: &str| {
            let named = [("thread_handling".to_owned(), handling.to_owned())];
            connections(&kind(), &Named::from(named), &Named::new()).pooled
        };
        assert!(pooled("pool-of-threads") && pooled("loaded-dynamically"));
        assert!(!pooled("one-thread-per-connection") && !pooled("no-threads"));
    }

    #[test]
    fn buffers_as_large_as_numbers_go_are_added_up() {
        let named = [
            ("sort_buffer_size", u64::MAX),
            ("join_buffer_size", u64::MAX),
            ("read_buffer_size", 131_072),
            ("max_connections", 100),
        ];
        let named = named.map(|(name, value)| (name.to_owned(), value.to_string()));
        let found = connections(&kind(), &Named::from(named), &Named::new());
        assert_eq!(found.busy_bytes, u64::MAX);
        let large: Vec<_> = found.large.iter().map(|buffer| buffer.name).collect();
        assert_eq!(large, ["sort_buffer_size", "join_buffer_size"]);
    }
}
