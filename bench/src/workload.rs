//! What is done to a store.
//!
//! Each thread repeats one operation until the time is up. What is read is checked within the
//! operation that is timed (some 50 ns of it, the same for all), and one look at the clock ends an
//! operation and begins the next.

mod ycsb;

use crate::error::{Error, Result};
use crate::figures::{Latencies, Timed};
use crate::row::{self, Key, LOADED, Random, Row};
use crate::store::{LOAD_ROWS, Session, Store};
use crate::task::Task;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows of a scan, of an update, and of the reads in one transaction.
const GROUP_ROWS: usize = 100;
/// How many of its newest writes a thread remembers, to look for them afterwards.
const REMEMBERED: usize = 1000;
/// How often the long read transaction reads.
const HELD_READ_EVERY: Duration = Duration::from_millis(5);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A load in key order.
    LoadInOrder,
    /// A load in random order.
    LoadAtRandom,
    /// Point reads.
    Reads,
    /// Point reads, many in one transaction.
    ReadsTogether,
    /// Point reads by as many threads as asked for.
    ReadsThreads,
    /// Point reads of more data than the store may cache.
    ReadsLarge,
    /// The same, and the kernel may not cache it either.
    ReadsConfined,
    /// Short range scans.
    Scans,
    /// Single-row commits by one thread.
    Commits,
    /// Single-row commits by eight threads.
    CommitsThreads,
    /// Updates of many rows in a transaction.
    Updates,
    /// The same beside an open read transaction.
    UpdatesHeld,
    /// Reads and single-row commits by eight threads.
    Mix,
    /// Short range scans of as much data as the store may cache.
    ScansFull,
    /// Short range scans of more data.
    ScansLarge,
    /// See [`ycsb`]; by eight threads.
    YcsbA,
    YcsbB,
    YcsbC,
    YcsbD,
    YcsbE,
    YcsbF,
}

/// How much data there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// It fits the memory: half of it, if not said otherwise.
    Fits,
    /// As much as the memory.
    Full,
    /// Twice the memory.
    Double,
    /// Four times the memory.
    Large,
}

impl Workload {
    /// All of them, in the order of the table.
    pub const ALL: [Workload; 21] = [
        Workload::LoadInOrder,
        Workload::LoadAtRandom,
        Workload::Reads,
        Workload::ReadsTogether,
        Workload::ReadsThreads,
        Workload::Scans,
        Workload::ReadsLarge,
        Workload::ReadsConfined,
        Workload::Commits,
        Workload::CommitsThreads,
        Workload::Updates,
        Workload::UpdatesHeld,
        Workload::Mix,
        Workload::ScansFull,
        Workload::ScansLarge,
        Workload::YcsbA,
        Workload::YcsbB,
        Workload::YcsbC,
        Workload::YcsbD,
        Workload::YcsbE,
        Workload::YcsbF,
    ];

    /// Its row in the table.
    pub fn name(self) -> &'static str {
        match self {
            Workload::LoadInOrder => "load in key order, 4 × memory, rows/s",
            Workload::LoadAtRandom => "load in random order, 2 × memory, rows/s",
            Workload::Reads => "point reads, data fits, reads/s",
            Workload::ReadsTogether => "the same, 100 in a transaction, reads/s",
            Workload::ReadsThreads => "point reads, data fits, N threads, reads/s",
            Workload::Scans => "scans of 100, data fits, rows/s",
            Workload::ReadsLarge => "point reads, 4 × memory, reads/s",
            Workload::ReadsConfined => "the same in a memory cgroup, reads/s",
            Workload::Commits => "durable commits of a row, 1 thread, commits/s",
            Workload::CommitsThreads => "durable commits of a row, 8 threads, commits/s",
            Workload::Updates => "durable updates of 100 rows, rows/s",
            Workload::UpdatesHeld => "the same beside a long read transaction, rows/s",
            Workload::Mix => "80 % reads, 20 % durable updates, 8 threads, operations/s",
            Workload::ScansFull => "scans of 100, 1 × memory, rows/s",
            Workload::ScansLarge => "scans of 100, 4 × memory, rows/s",
            Workload::YcsbA => "YCSB A: reads, half updates, operations/s",
            Workload::YcsbB => "YCSB B: reads, 5 % updates, operations/s",
            Workload::YcsbC => "YCSB C: reads, operations/s",
            Workload::YcsbD => "YCSB D: reads of the newest, 5 % inserts, operations/s",
            Workload::YcsbE => "YCSB E: scans, 5 % inserts, operations/s",
            Workload::YcsbF => "YCSB F: reads, half with an update, operations/s",
        }
    }

    /// How much data it needs.
    pub fn size(self) -> Size {
        match self {
            Workload::LoadInOrder
            | Workload::ReadsLarge
            | Workload::ReadsConfined
            | Workload::ScansLarge => Size::Large,
            Workload::ScansFull => Size::Full,
            Workload::LoadAtRandom => Size::Double,
            _ => Size::Fits,
        }
    }

    /// Whether it begins with nothing, and is over when all is there.
    pub fn is_load(self) -> bool {
        matches!(self, Workload::LoadInOrder | Workload::LoadAtRandom)
    }

    /// Whether it runs in a memory cgroup.
    pub fn is_confined(self) -> bool {
        self == Workload::ReadsConfined
    }

    /// Whether there is something to look for after the store was opened again.
    pub fn writes(self) -> bool {
        self.is_load() || self.rows_written() > 0
    }

    fn is_ycsb(self) -> bool {
        matches!(
            self,
            Workload::YcsbA
                | Workload::YcsbB
                | Workload::YcsbC
                | Workload::YcsbD
                | Workload::YcsbE
                | Workload::YcsbF
        )
    }

    fn rows_written(self) -> usize {
        match self {
            Workload::Commits | Workload::CommitsThreads | Workload::Mix => 1,
            mix if mix.is_ycsb() && mix != Workload::YcsbC => 1,
            Workload::Updates | Workload::UpdatesHeld => GROUP_ROWS,
            _ => 0,
        }
    }

    /// What is counted for each operation.
    fn count_per_operation(self) -> u64 {
        match self {
            Workload::ReadsTogether
            | Workload::Scans
            | Workload::ScansFull
            | Workload::ScansLarge
            | Workload::Updates
            | Workload::UpdatesHeld => GROUP_ROWS as u64,
            _ => 1,
        }
    }

    /// How many threads work, if `asked` are asked for.
    fn threads(self, asked: usize) -> usize {
        match self {
            Workload::ReadsThreads => asked,
            Workload::CommitsThreads | Workload::Mix => 8,
            mix if mix.is_ycsb() => 8,
            _ => 1,
        }
    }

    /// How many sessions are open at once.
    pub fn sessions(self, asked: usize) -> usize {
        self.threads(asked) + usize::from(self == Workload::UpdatesHeld)
    }

    /// Runs it on an open store.
    ///
    /// # Errors
    /// Of the store; or if it gives wrong data.
    pub fn run(self, store: &dyn Store, task: &Task) -> Result<Timed> {
        match self {
            Workload::LoadInOrder => load(task, || load_in_order(store, task)),
            Workload::LoadAtRandom => load_at_random(store, task),
            Workload::UpdatesHeld => self.beside_a_reader(store, task),
            _ => self.for_a_while(store, task),
        }
    }

    fn for_a_while(self, store: &dyn Store, task: &Task) -> Result<Timed> {
        let threads = self.threads(task.threads);
        let (together, next_number) = (Barrier::new(threads), AtomicU64::new(task.rows));
        let began = Instant::now();
        let workers = std::thread::scope(|scope| {
            let at_work: Vec<_> = (0..threads)
                .map(|thread| {
                    let worker = Worker::new(task, (thread, threads), &next_number);
                    let together = &together;
                    scope.spawn(move || self.work(store, worker, together))
                })
                .collect();
            let ended: Vec<_> = at_work.into_iter().map(|thread| thread.join()).collect();
            ended
                .into_iter()
                .map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Result<Vec<_>>>()
        })?;
        let mut timed = Timed::default();
        // What sessions need to open is not of the workload.
        let first = workers.iter().filter_map(|worker| worker.began).min();
        timed.seconds = first.unwrap_or(began).elapsed().as_secs_f64();
        for worker in workers {
            timed.latencies.add(&worker.latencies);
            timed.checked_rows += worker.checked_rows;
            timed.written.extend(worker.written);
        }
        timed.inserted = next_number.load(Ordering::Relaxed) - task.rows;
        timed.count = timed.latencies.operations() * self.count_per_operation();
        Ok(timed)
    }

    /// One thread.
    fn work<'a>(
        self,
        store: &dyn Store,
        mut worker: Worker<'a>,
        together: &Barrier,
    ) -> Result<Worker<'a>> {
        let session = store.session();
        // Before the error is looked at: the others would wait for ever.
        together.wait();
        let mut session = session?;
        let began = Instant::now();
        worker.began = Some(began);
        let mut now = began;
        while (now - began).as_secs_f64() < worker.task.seconds {
            self.operate(&mut *session, &mut worker)?;
            let end = Instant::now();
            worker.latencies.record(end - now);
            now = end;
        }
        Ok(worker)
    }

    fn operate(self, session: &mut dyn Session, worker: &mut Worker<'_>) -> Result<()> {
        match self {
            Workload::Reads
            | Workload::ReadsThreads
            | Workload::ReadsLarge
            | Workload::ReadsConfined => worker.read(session),
            Workload::ReadsTogether => worker.read_together(session),
            Workload::Scans | Workload::ScansFull | Workload::ScansLarge => worker.scan(session),
            mix if mix.is_ycsb() => worker.ycsb(mix, session),
            Workload::Mix if worker.random.below(100) < 80 => worker.read(session),
            Workload::Commits
            | Workload::CommitsThreads
            | Workload::Mix
            | Workload::Updates
            | Workload::UpdatesHeld => worker.update(session, self.rows_written()),
            Workload::LoadInOrder | Workload::LoadAtRandom => {
                unreachable!("a load is no repeated operation")
            }
            _ => unreachable!("the guard above has the six mixes"),
        }
    }

    /// Updates while this thread has a read transaction open, which must go on seeing what was
    /// there before.
    fn beside_a_reader(self, store: &dyn Store, task: &Task) -> Result<Timed> {
        let mut session = store.session()?;
        let mut snapshot = session.snapshot()?;
        let next_number = AtomicU64::new(task.rows);
        let mut reader = Worker::new(task, (1, 2), &next_number);
        let updates_end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let updates = scope.spawn(|| {
                let timed = self.for_a_while(store, task);
                updates_end.store(true, Ordering::Release);
                timed
            });
            while !updates_end.load(Ordering::Acquire) && !updates.is_finished() {
                let (number, key) = reader.any_row();
                let found = snapshot.get(&key, &mut reader.value)?;
                let version = reader.check(number, found)?;
                if version != LOADED {
                    return Err(Error::WrongData(format!(
                        "row {number}: a snapshot shows version {version}, which was committed after it was taken"
                    )));
                }
                std::thread::sleep(HELD_READ_EVERY);
            }
            let mut timed =
                updates.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            timed.checked_rows += reader.checked_rows;
            Ok(timed)
        })
    }
}

/// Loads all rows in key order.
///
/// # Errors
/// Of the store.
pub fn load_in_order(store: &dyn Store, task: &Task) -> Result<()> {
    let mut rows = (0..task.rows).map(|number| Row::new(number, LOADED, task.value_bytes));
    store.load_in_order(&mut rows)
}

fn load_at_random(store: &dyn Store, task: &Task) -> Result<Timed> {
    let rows = u32::try_from(task.rows).map_err(|_| {
        Error::Usage(format!("{} rows are too many for a load in random order", task.rows))
    })?;
    let order = Random::new(1).permutation(rows);
    let mut session = store.session()?;
    load(task, || {
        for numbers in order.chunks(LOAD_ROWS) {
            let row = |number: &u32| Row::new(u64::from(*number), LOADED, task.value_bytes);
            session.insert(&numbers.iter().map(row).collect::<Vec<_>>())?;
        }
        Ok(())
    })
}

fn load(task: &Task, load: impl FnOnce() -> Result<()>) -> Result<Timed> {
    let began = Instant::now();
    load()?;
    Ok(Timed { count: task.rows, seconds: began.elapsed().as_secs_f64(), ..Timed::default() })
}

/// One thread's state.
struct Worker<'a> {
    task: &'a Task,
    thread: u64,
    threads: u64,
    random: Random,
    began: Option<Instant>,
    latencies: Latencies,
    checked_rows: u64,
    value: Vec<u8>,
    versions: u64,
    /// Its newest writes, the oldest first: number and version.
    written: VecDeque<(u64, u64)>,
    /// Of the row that any thread inserts next.
    next_number: &'a AtomicU64,
    /// Rows that it has inserted, the oldest first.
    inserted: Vec<u64>,
}

impl<'a> Worker<'a> {
    /// Of `threads` the one with this number.
    fn new(
        task: &'a Task,
        (thread, threads): (usize, usize),
        next_number: &'a AtomicU64,
    ) -> Worker<'a> {
        Worker {
            task,
            thread: thread as u64,
            threads: threads as u64,
            random: Random::new(thread as u64 + 1),
            began: None,
            latencies: Latencies::default(),
            checked_rows: 0,
            value: Vec::new(),
            versions: LOADED,
            written: VecDeque::new(),
            next_number,
            inserted: Vec::new(),
        }
    }

    /// Remembers that the row was written in the newest version.
    fn remember(&mut self, number: u64) {
        if self.written.len() == REMEMBERED {
            self.written.pop_front();
        }
        self.written.push_back((number, self.versions));
    }

    fn any_row(&mut self) -> (u64, Key) {
        let number = self.random.below(self.task.rows);
        (number, number.to_be_bytes())
    }

    /// Checks what was read into `value`, and gives its version.
    fn check(&mut self, number: u64, found: bool) -> Result<u64> {
        if !found {
            return Err(Error::WrongData(format!("row {number} is missing")));
        }
        self.checked_rows += 1;
        row::check(number, &self.value, self.task.value_bytes)
    }

    fn read(&mut self, session: &mut dyn Session) -> Result<()> {
        let (number, key) = self.any_row();
        let found = session.get(&key, &mut self.value)?;
        self.check(number, found).map(drop)
    }

    fn read_together(&mut self, session: &mut dyn Session) -> Result<()> {
        let mut snapshot = session.snapshot()?;
        for _ in 0..GROUP_ROWS {
            let (number, key) = self.any_row();
            let found = snapshot.get(&key, &mut self.value)?;
            self.check(number, found)?;
        }
        Ok(())
    }

    fn scan(&mut self, session: &mut dyn Session) -> Result<()> {
        let first = self.random.below(self.task.rows - GROUP_ROWS as u64 + 1);
        let mut next = first;
        session.scan(&first.to_be_bytes(), GROUP_ROWS, &mut |key, value| {
            if key != next.to_be_bytes() {
                return Err(Error::WrongData(format!("key {key:?} where row {next} should be")));
            }
            row::check(next, value, self.task.value_bytes)?;
            next += 1;
            Ok(())
        })?;
        if next != first + GROUP_ROWS as u64 {
            return Err(Error::WrongData(format!("a scan from row {first} ended before {next}")));
        }
        self.checked_rows += GROUP_ROWS as u64;
        Ok(())
    }

    /// Updates rows that are this thread's alone. It is stores that are compared here, not how they
    /// treat writers that want the same row, and only so does a thread know the last version of a
    /// row.
    fn update(&mut self, session: &mut dyn Session, rows: usize) -> Result<()> {
        let own = self.task.rows / self.threads;
        let batch: Vec<Row> = (0..rows)
            .map(|_| {
                let number = self.random.below(own) * self.threads + self.thread;
                self.versions += 1;
                self.remember(number);
                Row::new(number, self.versions, self.task.value_bytes)
            })
            .collect();
        session.update(&batch)
    }
}
