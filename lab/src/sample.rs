//! A run's time series: what sysbench, the server and the kernel say, once a second.
//!
//! sysbench's report of a second is the clock; the kernel's counters are read when it comes. The
//! server's status comes from a separate thread, since a server in trouble may not answer for a
//! while, which must not stop the clock.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::engine::{Engine, PoolStatus};
use crate::load::sysbench::Second;
use crate::machine::cgroup::Cgroup;
use crate::machine::counters::{
    DiskBytes, SwapBytes, cpu_seconds, disk_bytes, resident_bytes, swap_bytes,
};
use crate::record::Point;
use crate::server::{Server, connect, pool_status};

/// How often the server is asked.
const STATUS_EVERY: Duration = Duration::from_millis(500);

/// Asks a server for its pool's state, on a thread.
#[derive(Debug)]
struct StatusProbe {
    latest: Arc<Mutex<PoolStatus>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StatusProbe {
    fn start(socket: PathBuf, engine: Engine) -> StatusProbe {
        let latest = Arc::new(Mutex::new(PoolStatus::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (latest_2, stop_2) = (latest.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let mut conn = None;
            // There is nothing to ask for, perhaps not even in this protocol.
            if !engine.publishes_pool() {
                return;
            }
            while !stop_2.load(Ordering::Relaxed) {
                if conn.is_none() {
                    conn = connect(&socket, "").ok();
                }
                if let Some(open) = &mut conn {
                    match pool_status(open, engine) {
                        Ok(status) => {
                            *latest_2.lock().unwrap_or_else(PoisonError::into_inner) = status;
                        }
                        Err(_) => conn = None,
                    }
                }
                thread::park_timeout(STATUS_EVERY);
            }
        });
        StatusProbe { latest, stop, thread: Some(thread) }
    }

    fn latest(&self) -> PoolStatus {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StatusProbe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The kernel's counters at one time.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Instant,
    disk: DiskBytes,
    swap: SwapBytes,
    cpu_s: f64,
}

impl Counters {
    fn of(pid: u32) -> Counters {
        Counters {
            at: Instant::now(),
            disk: disk_bytes(pid).unwrap_or_default(),
            swap: swap_bytes(),
            cpu_s: cpu_seconds(pid).unwrap_or_default(),
        }
    }

    /// A server that has ended has none any more; the last ones stand.
    fn next(self, pid: u32) -> Counters {
        Counters {
            disk: disk_bytes(pid).unwrap_or(self.disk),
            cpu_s: cpu_seconds(pid).unwrap_or(self.cpu_s),
            at: Instant::now(),
            swap: swap_bytes(),
        }
    }
}

/// Reads the counters of one server.
#[derive(Debug)]
pub struct Sampler<'a> {
    pid: u32,
    cgroup: Option<&'a Cgroup>,
    status: StatusProbe,
    before: Counters,
}

impl<'a> Sampler<'a> {
    /// Begins to watch a server, which may be in a memory cgroup.
    pub fn new(server: &Server, cgroup: Option<&'a Cgroup>) -> Sampler<'a> {
        Sampler::of(server.pid().unwrap_or(0), server.socket(), server.options().engine, cgroup)
    }

    fn of(pid: u32, socket: &Path, engine: Engine, cgroup: Option<&'a Cgroup>) -> Sampler<'a> {
        let status = StatusProbe::start(socket.to_path_buf(), engine);
        Sampler { pid, cgroup, status, before: Counters::of(pid) }
    }

    /// The point of the second that sysbench has just reported.
    pub fn point(&mut self, at_s: f64, second: &Second, neighbour_bytes: u64) -> Point {
        let (then, now) = (self.before, self.before.next(self.pid));
        self.before = now;
        let seconds = (now.at - then.at).as_secs_f64().max(0.05);
        let mb_s = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e6 / seconds;
        let swap_in_mb_s = mb_s(then.swap.swapped_in, now.swap.swapped_in);
        let status = self.status.latest();
        Point {
            at_s,
            tps: second.tps,
            qps: second.qps,
            p95_ms: second.p95_ms,
            pool_bytes: status.size_bytes,
            target_bytes: status.target_bytes,
            data_bytes: status.data_bytes,
            resident_bytes: resident_bytes(self.pid).unwrap_or(0),
            cgroup_bytes: self.cgroup.map_or(0, |group| group.memory_use().usage_bytes),
            neighbour_bytes,
            disk_read_mb_s: (mb_s(then.disk.read, now.disk.read) - swap_in_mb_s).max(0.0),
            disk_write_mb_s: mb_s(then.disk.written, now.disk.written),
            swap_in_mb_s,
            swap_out_mb_s: mb_s(then.swap.swapped_out, now.swap.swapped_out),
            cpu_s_per_s: (now.cpu_s - then.cpu_s).max(0.0) / seconds,
            relative: None,
        }
    }

    /// The server's last answer.
    pub fn pool_status(&self) -> PoolStatus {
        self.status.latest()
    }
}
