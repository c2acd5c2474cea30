//! InnoDB's pool as the governor sees it from outside: its state, and a way to set its size.
//!
//! MariaDB since 10.11.12 (11.4.6, 11.8.2) resizes inside the `SET GLOBAL` statement, in any whole
//! number of MiB, and gives up after 15 s without progress. MySQL, Percona Server and older MariaDB
//! return at once and resize in a thread, by chunks, and report the
//! progress in `Innodb_buffer_pool_resize_status`; we wait until that says that it is done.
//!
//! Before it makes itself smaller, MariaDB is [prepared](super::mariadb_shrink), so that it keeps
//! its pages. Each step is taken under a [lock], so that no other program's step is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::exit::{Error, Result};
use crate::facts::gather::{innodb_files, kept_free, resizing};
use crate::facts::is_full;
use crate::facts::promised::COUNTERS;
use crate::server::{Named, Server, number};

use super::lock::{self, Contention, Held, Lock};
use super::mariadb_shrink::{Before, Shrink};
use super::reserve::Reserve;

/// A resize that reports no progress for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// Misses below this share of the reads are not worth memory.
const MISS_SHARE_WORTH_IT: f64 = 0.001;
/// Nor are fewer reads from disk a second than this.
const READS_PER_S_WORTH_IT: f64 = 20.0;
/// How long a step down may wait until the queries have made enough pages young for it.
pub const PREPARE: Duration = Duration::from_millis(400);
/// The same when memory runs out now.
pub const PREPARE_URGENT: Duration = Duration::from_millis(200);
/// The lengths of the pool's lists, and what moves in them.
const PAGES: &str = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages%'";
/// What a step down changes for a moment.
const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_lru_scan_depth', \
     'innodb_old_blocks_pct', 'innodb_old_blocks_time', 'innodb_max_dirty_pages_pct_lwm')";
const MADE_YOUNG: &str = "innodb_buffer_pool_pages_made_young";
/// How often the sizes of the files are looked up.
const DATA_EVERY: Duration = Duration::from_secs(60);
/// The same when nothing but they speaks against a larger pool: a server that has just started
/// knows the files it has opened so far.
const DATA_AGAIN: Duration = Duration::from_secs(3);

/// Another's step, which may change the settings that are read at the start, is waited for so long,
/// seconds.
const LOOK_WAITS_S: u64 = 2;
/// The same before the settings of a step that was cut off are set back: MariaDB gives up a step
/// after 15 s without progress.
const BACK_WAITS_S: u64 = 20;

/// The outcome of setting a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// The pool has this size now, bytes.
    Done(u64),
    /// Nothing was done, for another connection (of this id, if it is known) is resizing the pool.
    Busy(Option<u64>),
}

/// The pool at one moment, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// `innodb_buffer_pool_size`.
    pub size_bytes: u64,
    /// Memory it has touched since it was last made smaller.
    pub held_bytes: u64,
    /// Whether a larger one would save reads.
    pub wants_more: bool,
    /// Logical reads ever.
    pub requests: u64,
    /// Reads from disk ever.
    pub reads: u64,
}

/// The pool of one server.
#[derive(Debug)]
pub struct InnodbPool {
    server: Server,
    /// It can only be a multiple of this.
    pub unit_bytes: u64,
    /// The least it can be without a restart of the server.
    pub least_bytes: u64,
    /// The most it can be without a restart of the server.
    pub size_max_bytes: u64,
    page_bytes: u64,
    kept_free_bytes: u64,
    /// Whether SET GLOBAL returns when the resize is done.
    synchronous: bool,
    held_bytes: u64,
    data_bytes: Option<u64>,
    data_read_at: Option<Instant>,
    /// Pages made young, ever, when the last step down was over.
    made_young_at_last: Option<u64>,
    last: Option<(Instant, State)>,
    /// What the server has reserved beside the pool.
    pub reserve: Reserve,
    contention: Contention,
    /// A step is under way, which must be finished.
    is_stepping: Arc<AtomicBool>,
    notices: Vec<String>,
    /// The statement that sets back what a step has changed, where nothing could yet.
    set_back: Option<String>,
}

impl InnodbPool {
    /// Looks at the server's kind and settings.
    ///
    /// # Errors
    /// [`Error::Unsupported`], with the reason, where the pool can't be resized while the server
    /// runs.
    pub fn new(mut server: Server) -> Result<InnodbPool> {
        let kind = server.kind().clone();
        if !kind.innodb {
            return Err(Error::Unsupported(
                "this server runs without InnoDB: there is no pool to govern".into(),
            ));
        }
        server.lift_time_limit()?;
        let lock = lock::take(&mut server, LOOK_WAITS_S)?;
        let variables = server.variables()?;
        if lock == Lock::Held {
            lock::release(&mut server);
        }
        let can = resizing(&kind, &variables);
        if let Some(why) = can.why_not(&kind) {
            return Err(Error::Unsupported(why));
        }
        Ok(InnodbPool {
            server,
            unit_bytes: can.unit_bytes,
            least_bytes: can.least_bytes,
            size_max_bytes: can.most_bytes.unwrap_or(u64::MAX),
            page_bytes: number(&variables, "innodb_page_size").unwrap_or(16384),
            kept_free_bytes: kept_free(&variables),
            synchronous: can.at_once,
            held_bytes: 0,
            data_bytes: None,
            data_read_at: None,
            made_young_at_last: None,
            last: None,
            reserve: Reserve::default(),
            contention: Contention::default(),
            is_stepping: Arc::default(),
            notices: Vec::new(),
            set_back: None,
        })
    }

    /// The connection, for other questions.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Makes sure that this user may set the size, without setting anything new.
    ///
    /// # Errors
    /// [`Error::Privilege`] with the grant.
    pub fn check_privilege(&mut self) -> Result<()> {
        self.server.check_may_set("setting the pool's size (--apply)")
    }

    fn set_privilege(&self) -> &'static str {
        self.server.set_privilege()
    }

    /// Whether a step is under way, for another thread.
    pub fn is_stepping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_stepping)
    }

    /// What the user should know of the steps since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Goes on with another connection to the same server, and sets back what a step left behind.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn go_on_with(&mut self, mut server: Server) -> Result<()> {
        server.lift_time_limit()?;
        self.server = server;
        if let Some(statement) = self.set_back.clone() {
            lock::take(&mut self.server, BACK_WAITS_S)?;
            let grant = self.set_privilege();
            self.server.execute("setting the LRU list's settings back", grant, &statement)?;
            lock::release(&mut self.server);
            self.set_back = None;
            self.notices.push("the settings of the step that was cut off are restored".into());
        }
        Ok(())
    }

    /// Its size now, bytes.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn size(&mut self) -> Result<u64> {
        let query = "SELECT @@GLOBAL.innodb_buffer_pool_size";
        let size: Option<u64> = self.server.first("the pool's size", "", query)?;
        Ok(size.unwrap_or(0))
    }

    /// Looks at it now; what it says of misses is of the time since the last look.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn state(&mut self) -> Result<State> {
        let now = Instant::now();
        let status = self.server.named(&looked_at())?;
        self.reserve.observe(&mut self.server, &status)?;
        let size_bytes = self.size()?;
        let free = number(&status, "innodb_buffer_pool_pages_free").unwrap_or(0) * self.page_bytes;
        let full = is_full(size_bytes, free, self.kept_free_bytes);
        // Pages given free stay in memory until the pool is made smaller, so a full pool holds all
        // of its size.
        let used = if full { size_bytes } else { size_bytes.saturating_sub(free) };
        self.held_bytes = self.held_bytes.max(used).min(size_bytes);
        let mut state = State {
            size_bytes,
            held_bytes: self.held_bytes,
            wants_more: false,
            requests: number(&status, "innodb_buffer_pool_read_requests").unwrap_or(0),
            reads: number(&status, "innodb_buffer_pool_reads").unwrap_or(0),
        };
        if let Some((then, last)) = self.last {
            let elapsed = (now - then).as_secs_f64().max(0.001);
            let reads = state.reads.saturating_sub(last.reads) as f64;
            let requests = state.requests.saturating_sub(last.requests) as f64;
            let missing =
                reads / elapsed >= READS_PER_S_WORTH_IT && reads >= requests * MISS_SHARE_WORTH_IT;
            let useful = full && missing;
            self.look_at_data(
                now,
                if useful && !self.data_left(size_bytes) { DATA_AGAIN } else { DATA_EVERY },
            )?;
            state.wants_more = useful && self.data_left(size_bytes);
        }
        self.last = Some((now, state));
        Ok(state)
    }

    /// Whether there is more than a pool of this size holds, as far as that is known.
    fn data_left(&self, size_bytes: u64) -> bool {
        self.data_bytes.is_none_or(|data| data > size_bytes)
    }

    fn look_at_data(&mut self, now: Instant, every: Duration) -> Result<()> {
        if self.data_read_at.is_some_and(|at| now - at < every) {
            return Ok(());
        }
        self.data_read_at = Some(now);
        let query = innodb_files(self.server.kind());
        match self.server.first::<Option<u64>>("the data's size", "PROCESS", &query) {
            Ok(bytes) => self.data_bytes = bytes.flatten(),
            Err(error @ Error::Gone(_)) => return Err(error),
            // Without the privilege only the misses say whether more is wanted.
            Err(_) => {}
        }
        Ok(())
    }

    /// Sets the size and waits until the pool has it. For a smaller one, queries may have to make
    /// pages young first: that is waited for, `patience` at most.
    ///
    /// # Errors
    /// [`Error::Refused`] when the server gives up: the pool then keeps a size between the two.
    /// [`Error::Gone`].
    pub fn set_size(&mut self, bytes: u64, patience: Duration) -> Result<Set> {
        let lock = lock::take(&mut self.server, 0)?;
        if let Lock::Taken(holder) = lock {
            let is_urgent = patience <= PREPARE_URGENT;
            let goes_on = !self.synchronous && self.resize()?.progress() == Progress::GoingOn;
            let (server, contention) = (&mut self.server, &mut self.contention);
            let held = Held { holder, is_resizing: goes_on, is_urgent };
            match contention.ignores(server, held)? {
                None => return Ok(Set::Busy(holder)),
                Some(why) => self.notices.push(why),
            }
        } else {
            self.contention.over();
        }
        let is_prepared = !matches!(lock, Lock::Taken(_));
        self.is_stepping.store(true, Ordering::Relaxed);
        let set = self.set_size_alone(bytes, is_prepared.then_some(patience));
        self.is_stepping.store(false, Ordering::Relaxed);
        if lock == Lock::Held {
            lock::release(&mut self.server);
        }
        let size = set?;
        self.held_bytes = self.held_bytes.min(size);
        Ok(Set::Done(size))
    }

    /// Without `patience` the size alone is changed, and no setting beside it.
    fn set_size_alone(&mut self, bytes: u64, patience: Option<Duration>) -> Result<u64> {
        let grant = self.set_privilege();
        let statement = format!("SET GLOBAL innodb_buffer_pool_size = {bytes}");
        // Read anew, because a caller that takes several steps need not look at the state in
        // between.
        let now = self.size()?;
        if !self.synchronous {
            let before = self.resize()?;
            self.server.execute("setting the pool's size", grant, &statement)?;
            self.wait(&before)?;
        } else if let Some(patience) = patience.filter(|_| bytes < now) {
            self.shrink(now, bytes, patience)?;
        } else {
            self.server.execute("setting the pool's size", grant, &statement)?;
        }
        self.size()
    }

    /// A step down of a MariaDB that resizes inside the statement.
    fn shrink(&mut self, from: u64, to: u64, patience: Duration) -> Result<()> {
        let grant = self.set_privilege();
        let settings = self.server.named(SETTINGS)?;
        let pages = self.server.named(PAGES)?;
        let before = Before {
            free: number(&pages, "innodb_buffer_pool_pages_free").unwrap_or(0),
            data: number(&pages, "innodb_buffer_pool_pages_data").unwrap_or(0),
            made_young: number(&pages, MADE_YOUNG).unwrap_or(0),
            made_young_at_last: self.made_young_at_last,
            old_percent: number(&settings, "innodb_old_blocks_pct").unwrap_or(0),
        };
        let shrink = Shrink::new(to, (from - to).div_ceil(self.page_bytes), &before, patience);
        // The grammar of the mode ORACLE has no such block.
        self.server.execute("setting sql_mode", "", "SET SESSION sql_mode = ''")?;
        let done = self.server.execute("setting the pool's size", grant, &shrink.statement());
        if let Err(error) = done {
            // The block's own handler does not run when the statement or the connection is killed.
            return Err(match self.set_back(&settings) {
                Ok(()) => error,
                Err(statement) => {
                    let why = match error {
                        Error::Gone(why) => why,
                        other => other.to_string(),
                    };
                    let why = format!(
                        "{why}; if the server still runs, restore its settings with {statement}"
                    );
                    self.set_back = Some(statement);
                    Error::Gone(why)
                }
            });
        }
        self.made_young_at_last = number(&self.server.named(PAGES)?, MADE_YOUNG);
        Ok(())
    }

    /// Sets back what a step changes, on another connection if this one is gone. The error is the
    /// statement that would.
    fn set_back(&mut self, settings: &Named) -> std::result::Result<(), String> {
        let (what, grant) = ("setting the LRU list's settings back", self.set_privilege());
        let back = settings.iter().map(|(name, value)| format!("GLOBAL {name} = {value}"));
        let back = format!("SET {}", back.collect::<Vec<_>>().join(", "));
        if self.server.execute(what, grant, &back).is_ok() {
            return Ok(());
        }
        // One try: a server that can't be reached at once has most likely ended, and the settings
        // with it. The next process has its own.
        let again = || -> Result<()> {
            let mut server = Server::connect(self.server.target())?;
            // The old connection has the lock until its statement has ended. A step of others that
            // came in between sets back what it found, which is not the user's.
            lock::take(&mut server, BACK_WAITS_S)?;
            server.execute(what, grant, &back)
        };
        again().map_err(|_| back.clone())
    }

    fn wait(&mut self, before: &Resize) -> Result<()> {
        let (mut seen, mut since) = (before.clone(), Instant::now());
        let begin = since;
        loop {
            let now = self.resize()?;
            // What it says may still be of the resize before. The words tell the second, and a
            // resize that fails leaves the pages as they were: two that ended alike in one second
            // can only be distinguished after that second.
            if now != *before || begin.elapsed() > Duration::from_millis(1500) {
                match now.progress() {
                    Progress::Done => return Ok(()),
                    Progress::Failed => return Err(refused(now.words)),
                    Progress::GoingOn => {}
                }
            }
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                let why = format!("no progress for {} s: {}", PATIENCE.as_secs(), seen.words);
                return Err(refused(why));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn resize(&mut self) -> Result<Resize> {
        let status = self.server.named(
            "SHOW GLOBAL STATUS WHERE Variable_name IN \
             ('Innodb_buffer_pool_resize_status', 'Innodb_buffer_pool_pages_total')",
        )?;
        let pages = number(&status, "innodb_buffer_pool_pages_total").unwrap_or(0);
        let words = status.get("innodb_buffer_pool_resize_status").cloned().unwrap_or_default();
        Ok(Resize { words, pages })
    }
}

/// The counters of one look.
fn looked_at() -> String {
    format!(
        "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Innodb_buffer_pool%' OR Variable_name IN \
         ('Tidepool_buffer_pool_bytes_data', 'Tidepool_buffer_pool_limit_bytes', '{}')",
        COUNTERS.join("', '")
    )
}

fn refused(why: String) -> Error {
    Error::Refused { what: "resizing the pool".into(), why }
}

/// What a server that resizes in the background says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Resize {
    /// `Innodb_buffer_pool_resize_status`.
    words: String,
    /// `Innodb_buffer_pool_pages_total`.
    pages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    GoingOn,
    Done,
    Failed,
}

impl Resize {
    /// From the words of MySQL or of MariaDB before 10.11.12. (MySQL has a code beside them, but
    /// only since 8.0.31.)
    fn progress(&self) -> Progress {
        let words = self.words.to_ascii_lowercase();
        if words.contains("failed") {
            Progress::Failed
        } else if words.is_empty()
            || words.starts_with("completed")
            || words.starts_with("size did not change")
            || words.contains("is already")
        {
            Progress::Done
        } else {
            Progress::GoingOn
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, Resize};

    #[test]
    fn the_servers_words_are_understood() {
        for (words, progress) in [
            ("", Progress::Done),
            ("Completed resizing buffer pool at 260101 10:00:09.", Progress::Done),
            (
                "Size did not change (old size = new size = 134217728. Nothing to do.",
                Progress::Done,
            ),
            ("Resizing buffer pool from 1 to 2 (unit=134217728).", Progress::GoingOn),
            ("buffer pool 0 : resizing with chunks 2 to 3.", Progress::GoingOn),
            ("Withdrawing blocks to be shrunken.", Progress::GoingOn),
            ("Latching whole of buffer pool.", Progress::GoingOn),
            ("Failed to validate requested buffer pool size.", Progress::Failed),
            (
                "Resizing buffer pool failed, finished resizing at 260101 10:00:09.",
                Progress::Failed,
            ),
        ] {
            assert_eq!(Resize { words: words.into(), pages: 0 }.progress(), progress, "{words}");
        }
    }
}
