//! The thread "tidepool-govern": when the next step is due.
//!
//! Memory can't vanish faster than it can be touched, so how soon to look again follows from how
//! much room there is. Between two full readings it *glances*: one number of one file that is open,
//! at a cost of less than a microsecond. Room that grows asks for a reading as well: the kernel may
//! be swapping the process's memory, and while it does, a full reading comes every
//! [`SWAPPING_EVERY`]. Where the kernel offers triggers, they end a sleep early.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidepool_governor::Reader;
use tidepool_governor::cgroup::Version;
use tidepool_governor::trigger::{Bell, Trigger, Waiter, Woken};
use tidepool_pool::StepRunner;

use super::PoolGovernor;
use crate::error::Result;

/// The longest time between two full readings: a limit that is lowered must be seen, and answered,
/// within 100 ms.
const READ_EVERY: Duration = Duration::from_millis(50);
/// The time between two full readings while memory of the process goes to swap: the kernel swaps up
/// to 1 GB/s.
const SWAPPING_EVERY: Duration = Duration::from_millis(5);
/// The shortest time between two glances.
const GLANCE_EVERY_MIN: Duration = Duration::from_millis(2);
/// How fast others may take memory, bytes a second: twice what one process was seen to touch.
const VANISH_BYTES_PER_S: u64 = 4 << 30;
/// Looks that the room must outlast if it vanishes at that speed.
const LOOKS: u32 = 4;
/// A change of the room below this is not worth a full reading, in bytes.
const GLANCE_MIN_BYTES: u64 = 2 << 20;
const THREAD: &str = "tidepool-govern";

/// The running thread.
pub(super) struct Thread {
    handle: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Thread {
    /// Starts it. It holds the governor weakly while it sleeps.
    pub(super) fn start(governor: &Arc<PoolGovernor>) -> Result<Thread> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, bell, stopped) = (Arc::downgrade(governor), governor.bell.clone(), stop.clone());
        let threads = governor.pool.threads();
        let handle = threads.spawn(THREAD, move || run(&weak, bell, &stopped))?;
        Ok(Thread { handle, stop })
    }

    /// Ends it, and waits for that (unless it is the caller).
    pub(super) fn stop(self, bell: &Bell) {
        self.stop.store(true, Ordering::Release);
        bell.ring();
        if self.handle.thread().id() != std::thread::current().id() && self.handle.join().is_err() {
            tracing::error!("the thread tidepool-govern had panicked");
        }
    }
}

/// What the last full reading saw, as far as the sleep after it is concerned.
#[derive(Clone, Copy, Default)]
struct Seen {
    room_bytes: Option<u64>,
    is_swapping: bool,
}

impl Seen {
    /// How long to sleep before the next glance.
    fn pause(self) -> Duration {
        // Blind: nothing to glance at.
        let Some(room) = self.room_bytes else { return self.longest_pause() };
        let vanishes_in = Duration::from_secs_f64(room as f64 / VANISH_BYTES_PER_S as f64);
        (vanishes_in / LOOKS).clamp(GLANCE_EVERY_MIN, self.longest_pause())
    }

    /// The longest time until the next full reading.
    fn longest_pause(self) -> Duration {
        if self.is_swapping { SWAPPING_EVERY } else { READ_EVERY }
    }

    /// Whether a glance that finds `now` asks for a full reading.
    fn calls_for_reading(self, now: Option<u64>) -> bool {
        match (self.room_bytes, now) {
            (Some(then), Some(now)) => {
                now + (then / 8).max(GLANCE_MIN_BYTES) < then
                    || now > then.saturating_add(GLANCE_MIN_BYTES)
            }
            _ => false,
        }
    }
}

fn run(governor: &Weak<PoolGovernor>, bell: Bell, stop: &AtomicBool) {
    let started = Instant::now();
    let mut waiter = Waiter::new(bell);
    let mut steps = StepRunner::new(THREAD);
    let mut pressure = Pressure::default();
    if let Some(governor) = governor.upgrade() {
        governor.pool.priority().raise();
        // Without a trigger it polls.
        let _ = steps.run(|| pressure.follow(&governor.control.lock().reader, &mut waiter));
    }
    let mut seen = Seen::default();
    let mut read_at = Duration::ZERO;
    let mut pause = seen.pause();
    while !stop.load(Ordering::Acquire) {
        let woken = waiter.wait(pause).unwrap_or_else(|_| {
            std::thread::sleep(READ_EVERY);
            Woken::Timeout
        });
        let Some(governor) = governor.upgrade() else { return };
        let step = || {
            let mut control = governor.control.lock();
            let now = started.elapsed();
            let is_due = woken != Woken::Timeout || now - read_at >= seen.longest_pause();
            if is_due || seen.calls_for_reading(control.reader.glance()) {
                control.step(&governor.pool, now);
                read_at = now;
                seen = Seen {
                    room_bytes: control.signals.room().map(|room| room.bytes()),
                    is_swapping: control.governor.is_swapping(),
                };
                pressure.follow(&control.reader, &mut waiter);
            }
        };
        pause = steps.run(step).map_or_else(|rest| rest, |()| seen.pause());
    }
}

/// The pressure file that wakes the thread: that of the process's own cgroup, or else the
/// machine's.
#[derive(Default)]
struct Pressure {
    /// The own cgroup's directory, if it has one, when the trigger was armed last.
    armed_in: Option<Option<PathBuf>>,
    /// The kernel offered a trigger then.
    is_offered: bool,
}

impl Pressure {
    /// Arms the trigger, if the process is in another cgroup than the last time, or the trigger's
    /// file has gone with its cgroup.
    fn follow(&mut self, reader: &Reader, waiter: &mut Waiter) {
        let own = reader
            .hierarchy()
            .filter(|hierarchy| hierarchy.version == Version::V2)
            .and_then(|hierarchy| hierarchy.directories.first());
        let has_moved = self.armed_in.as_ref().is_none_or(|armed| armed.as_ref() != own);
        let has_gone = self.is_offered && !waiter.has_trigger();
        if !has_moved && !has_gone {
            return;
        }
        self.armed_in = Some(own.cloned());
        let armed = match own {
            Some(own) => Trigger::open(&reader.root().path(own.join("memory.pressure"))),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let armed = armed.or_else(|_| Trigger::open(&reader.root().path("/proc/pressure/memory")));
        self.is_offered = armed.is_ok();
        if let Err(error) = &armed {
            tracing::debug!(%error, "no pressure trigger: polling only");
        }
        waiter.set_trigger(armed.ok());
    }
}

#[cfg(test)]
mod tests {
    use tidepool_governor::kernel::Root;

    use super::*;

    #[test]
    fn the_less_room_the_sooner_the_next_look() {
        let seen = |room_bytes, is_swapping| Seen { room_bytes, is_swapping };
        let pause = |room_bytes| seen(room_bytes, false).pause();
        assert_eq!(pause(None), READ_EVERY);
        assert_eq!(pause(Some(0)), GLANCE_EVERY_MIN);
        assert_eq!(pause(Some(64 << 20)), Duration::from_micros(15_625) / LOOKS);
        assert_eq!(pause(Some(1 << 40)), READ_EVERY);
        assert_eq!(seen(Some(1 << 40), true).pause(), SWAPPING_EVERY);
        assert_eq!(seen(None, true).pause(), SWAPPING_EVERY);
        assert_eq!(seen(Some(0), true).pause(), GLANCE_EVERY_MIN);
    }

    /// The kernel takes a trigger's condition as it would take any text.
    #[test]
    fn the_trigger_is_that_of_the_cgroup_that_the_process_is_in_now() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/db\n");
        let is_armed = |group: &str| {
            let text = std::fs::read_to_string(dir.path().join("cg").join(group));
            text.unwrap().starts_with("some ")
        };
        for group in ["db", "other"] {
            write(&format!("cg/{group}/memory.current"), "1\n");
            write(&format!("cg/{group}/memory.pressure"), "");
        }
        let (db, other) = ("db/memory.pressure", "other/memory.pressure");
        let mut reader = Reader::new(Root::new(dir.path()), None);
        let mut waiter = Waiter::new(Bell::new().unwrap());
        let mut pressure = Pressure::default();
        pressure.follow(&reader, &mut waiter);
        assert_eq!((is_armed(db), is_armed(other)), (true, false));
        write("proc/self/cgroup", "0::/other\n");
        reader.read(Duration::from_secs(60));
        pressure.follow(&reader, &mut waiter);
        assert!(is_armed(other));
        // No more often than the process moves, or the file goes.
        write("cg/other/memory.pressure", "");
        pressure.follow(&reader, &mut waiter);
        assert!(!is_armed(other));
        waiter.set_trigger(None);
        pressure.follow(&reader, &mut waiter);
        assert!(is_armed(other));
    }

    #[test]
    fn a_glance_calls_for_a_reading_when_room_went_or_came() {
        let seen = Seen { room_bytes: Some(40 << 20), is_swapping: false };
        assert!(!seen.calls_for_reading(None));
        assert!(!seen.calls_for_reading(Some(39 << 20)));
        assert!(!seen.calls_for_reading(Some(41 << 20)));
        assert!(seen.calls_for_reading(Some(43 << 20)), "it may have gone to swap");
        assert!(seen.calls_for_reading(Some(30 << 20)));
        assert!(!Seen::default().calls_for_reading(Some(0)));
    }
}
