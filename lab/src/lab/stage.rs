//! What an experiment can do in the middle of a run.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;

use crate::error::{Error, Result};
use crate::govern::Governing;
use crate::load::sysbench::{Job, Silence};
use crate::machine::cgroup::Cgroup;
use crate::machine::neighbour::{Neighbour, Pattern};
use crate::record::{Event, Outcome, Point, Record};
use crate::server::{Server, connect};

/// A `SET` that has not returned by then, after the load's end, is not waited for.
const SET_LIMIT: Duration = Duration::from_secs(300);

/// When an experiment may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The number of measured seconds that have passed; first 0.
    After(u32),
    /// The load has ended as planned, and the server is still there.
    End,
}

/// What an experiment can do in the middle of a run.
#[derive(Debug)]
pub struct Stage<'a> {
    /// The server under load.
    pub server: &'a mut Server,
    /// Its memory cgroup.
    pub memory: Option<&'a Cgroup>,
    /// The second that has just passed.
    pub point: Point,
    pub(super) governing: Option<Governing>,
    neighbour: Option<Neighbour>,
    neighbour_killed: bool,
    events: Vec<Event>,
    pub(super) next_job: Option<Job>,
    /// The run ends with this second, before its planned end.
    pub(super) is_over: bool,
    /// Statements on their way, which return how long they took.
    resizes: Vec<JoinHandle<Option<Duration>>>,
    /// Limits of the memory cgroup that are being written, in the same way.
    limits: Vec<JoinHandle<Option<Duration>>>,
}

impl<'a> Stage<'a> {
    /// Nothing has been done yet.
    pub(super) fn new(
        server: &'a mut Server,
        memory: Option<&'a Cgroup>,
        governing: Option<Governing>,
    ) -> Stage<'a> {
        Stage {
            server,
            memory,
            governing,
            neighbour: None,
            neighbour_killed: false,
            events: Vec::new(),
            point: Point::default(),
            next_job: None,
            is_over: false,
            resizes: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// Waits for what is on its way, and adds to the record what was done in the run.
    pub(super) fn finish(self, record: &mut Record) {
        let mut count = |name: &str, statements: usize| {
            if statements > 0 {
                record.summary.insert(name.into(), statements as f64);
            }
        };
        let is_pending = |thread: &&JoinHandle<_>| !thread.is_finished();
        count("set_pending", self.resizes.iter().filter(is_pending).count());
        let deadline = Instant::now() + SET_LIMIT;
        while Instant::now() < deadline && self.resizes.iter().any(|thread| is_pending(&thread)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = self.resizes.into_iter().filter(|thread| thread.is_finished());
        let took: Vec<Option<Duration>> =
            ended.map(|thread| thread.join().ok().flatten()).collect();
        count("set_failed", took.iter().filter(|took| took.is_none()).count());
        if let Some(slowest) = took.into_iter().flatten().max() {
            record.summary.insert("set_returned_ms".into(), slowest.as_secs_f64() * 1e3);
        }
        let written: Vec<Option<Duration>> =
            self.limits.into_iter().map(|thread| thread.join().ok().flatten()).collect();
        if !written.is_empty() {
            let refused = written.iter().filter(|took| took.is_none()).count();
            record.summary.insert("limits_refused".into(), refused as f64);
        }
        if let Some(slowest) = written.into_iter().flatten().max() {
            record.summary.insert("limit_written_ms".into(), slowest.as_secs_f64() * 1e3);
        }
        record.events = self.events;
        let neighbour_killed = f64::from(u8::from(self.neighbour_killed));
        record.summary.insert("neighbour_killed".into(), neighbour_killed);
    }

    /// Replaces the load from the next second on.
    pub fn change_load(&mut self, job: Job) {
        self.note(format!("load moves to {}", job.database));
        self.next_job = Some(job);
    }

    /// Changes the pool's size on line; does not wait for the statement to return.
    ///
    /// # Errors
    /// If the server takes no connection.
    pub fn set_pool_size(&mut self, size_bytes: u64) -> Result<()> {
        let statement = self.server.options().engine.set_pool_size(size_bytes);
        let mut conn = self.server.connect("")?;
        self.note(format!("pool → {} MiB", size_bytes >> 20));
        self.resizes.push(std::thread::spawn(move || timed(&mut conn, &statement)));
        Ok(())
    }

    /// Changes the limit of the server's memory cgroup; does not wait for the kernel, which
    /// reclaims first what is above a lower limit. It may also refuse.
    pub fn limit_memory(&mut self, limit_bytes: u64) {
        let Some(file) = self.memory.map(Cgroup::memory_limit) else { return };
        self.note(format!("limit → {} MiB", limit_bytes >> 20));
        self.limits.push(std::thread::spawn(move || {
            let start = Instant::now();
            let written = std::fs::write(&file, limit_bytes.to_string());
            if let Err(error) = &written {
                tracing::info!("{}: {error}", file.display());
            }
            written.ok().map(|()| start.elapsed())
        }));
    }

    /// Sends a `SET GLOBAL` of another kind; waits neither for the statement nor for a connection,
    /// which a server that swaps may not give for long.
    pub fn set(&mut self, statement: &str) {
        let (socket, statement) = (self.server.socket().to_path_buf(), statement.to_string());
        self.note(statement.clone());
        self.resizes.push(std::thread::spawn(move || match connect(&socket, "") {
            Ok(mut conn) => timed(&mut conn, &statement),
            Err(error) => {
                tracing::warn!("{statement}: {error}");
                None
            }
        }));
    }

    /// Starts `tidepool govern` in the middle of the run; does not wait until it looks after the
    /// server.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start_governing(&mut self) -> Result<()> {
        self.governing = Some(Governing::spawn(self.server, self.server.dir())?);
        self.note("tidepool govern");
        Ok(())
    }

    /// Ends the run with this second.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Ends the neighbour, if there is one.
    pub fn stop_neighbour(&mut self) {
        self.neighbour = None;
    }

    /// Steps that `tidepool govern` has taken so far, if there is one.
    pub fn governor_steps(&self) -> u64 {
        self.governing.as_ref().map_or(0, |governing| governing.steps().count)
    }

    /// Notes that something is done now.
    pub fn note(&mut self, what: impl Into<String>) {
        self.events.push(Event { at_s: self.point.at_s.max(0.0), what: what.into() });
    }

    /// Starts a neighbour in the server's memory cgroup.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start_neighbour(&mut self, pattern: Pattern, peak_bytes: u64) -> Result<()> {
        let groups: Vec<PathBuf> = self.memory.map(Cgroup::procs).into_iter().collect();
        self.neighbour = Some(Neighbour::start(pattern, peak_bytes, &groups)?);
        self.note(format!("neighbour: {}", pattern.key()));
        Ok(())
    }

    /// Memory that the neighbour has now, 0 without one.
    pub(super) fn neighbour_bytes(&mut self) -> u64 {
        let Some(neighbour) = &mut self.neighbour else { return 0 };
        self.neighbour_killed |= neighbour.was_killed();
        neighbour.resident_bytes()
    }

    /// What goes wrong because the server has died is not an error: the load will notice as well.
    pub(super) fn unless_dead(&mut self, error: Error) -> Result<()> {
        std::thread::sleep(Duration::from_millis(200));
        if self.server.is_running() { Err(error) } else { Ok(()) }
    }

    /// Why the load says nothing any more.
    pub(super) fn why_silent(&mut self, silence: Silence) -> Outcome {
        let oom_killed = self.memory.is_some_and(|group| group.memory_use().oom_kills > 0);
        // A killed process is gone a moment later.
        std::thread::sleep(Duration::from_millis(200));
        match (self.server.is_running(), silence) {
            (false, _) if oom_killed => Outcome::OomKilled,
            (false, _) => Outcome::Failed("the server has died".into()),
            (true, Silence::Ended) => Outcome::Failed("sysbench gave up".into()),
            (true, Silence::Stuck) => Outcome::Failed("sysbench was silent for 10 s".into()),
        }
    }
}

/// How long a statement took; nothing if it failed.
fn timed(conn: &mut Conn, statement: &str) -> Option<Duration> {
    let start = Instant::now();
    match conn.query_drop(statement) {
        Ok(()) => Some(start.elapsed()),
        Err(error) => {
            tracing::warn!("{statement}: {error}");
            None
        }
    }
}
