//! What is measured.

use crate::error::{Error, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Latencies are kept to three digits, up to a minute.
const LATENCY_DIGITS: u8 = 3;
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Often enough for a workload of seconds; a look takes some 50 µs.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// How long operations took.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS);
        Latencies(histogram.expect("the bounds are in order and the digits few"))
    }
}

impl Latencies {
    /// Notes one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record((latency.as_nanos() as u64).clamp(1, LATENCY_NS_MAX));
    }

    /// Those of another thread as well.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn operations(&self) -> u64 {
        self.0.len()
    }

    fn microseconds(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1000.0
    }
}

/// What a workload gives.
#[derive(Debug, Clone, Default)]
pub struct Timed {
    /// Rows, reads, commits: what the workload counts.
    pub count: u64,
    pub seconds: f64,
    /// Of operations. None of a load.
    pub latencies: Latencies,
    /// Values that were read and right.
    pub checked_rows: u64,
    /// Newest writes, number and version; of the same number the last holds.
    pub written: Vec<(u64, u64)>,
    /// Rows that were added to those that had been loaded.
    pub inserted: u64,
}

/// What a task says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Rows, reads, commits a second.
    pub per_second: f64,
    /// Latencies of operations; none of a load.
    pub latency: Option<Percentiles>,
    /// The most memory of the process that was resident in the workload (VmHWM).
    pub peak_bytes: u64,
    /// How much of it was anonymous, heap and pools (RssAnon): the middle of what was seen.
    pub anonymous_bytes: u64,
    /// What the store's directory took on the disk before the workload.
    pub disk_before_bytes: u64,
    /// And the most that it took in the workload.
    pub disk_bytes: u64,
    /// Values that were read and right, in the workload and after the store was opened again.
    pub checked_rows: u64,
    /// Time that cores worked in this process for each row, read, commit, in microseconds.
    pub core_us: f64,
    /// The share of all cores that others had during the workload, kernel threads among them.
    pub others: f64,
}

/// Time of all cores since the machine started, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct CoreTime {
    all: u64,
    idle: u64,
    own: u64,
}

impl CoreTime {
    /// As it is now.
    ///
    /// # Errors
    /// If the kernel doesn't tell.
    pub fn now() -> Result<CoreTime> {
        let read =
            |path: &'static str| std::fs::read_to_string(path).map_err(Error::at(Path::new(path)));
        let (machine, own) = (read("/proc/stat")?, read("/proc/self/stat")?);
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().map_while(|number| number.parse().ok()).collect()
        };
        // user nice system idle iowait irq softirq steal; what comes then is in user already.
        let machine = numbers(machine.trim_start_matches("cpu"));
        // After the name in brackets, which may have blanks, and the state: fields 4 and on; 14 and
        // 15 are user and system.
        let own = own.rsplit_once(") ").map_or("", |(_, rest)| rest.get(2..).unwrap_or(""));
        let own = numbers(&own.replace("-1", "0"));
        let field = |of: &[u64], at: usize| of.get(at).copied().unwrap_or(0);
        Ok(CoreTime {
            all: machine.iter().take(8).sum(),
            idle: field(&machine, 3) + field(&machine, 4),
            own: field(&own, 10) + field(&own, 11),
        })
    }

    /// The time that cores have worked in this process since `earlier`, in seconds.
    pub fn own_seconds_since(&self, earlier: &CoreTime) -> f64 {
        (self.own - earlier.own) as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// The share of all cores that others have had since `earlier`.
    pub fn others_since(&self, earlier: &CoreTime) -> f64 {
        let all = self.all - earlier.all;
        let idle_or_own = self.idle - earlier.idle + self.own - earlier.own;
        all.saturating_sub(idle_or_own) as f64 / all.max(1) as f64
    }
}

/// Of latencies, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half are below.
    pub p50_us: f64,
    /// 99 of 100 are below.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Percentiles {
    /// None if there were no operations.
    pub fn of(latencies: &Latencies) -> Option<Percentiles> {
        (latencies.operations() > 0).then(|| Percentiles {
            p50_us: latencies.microseconds(50.0),
            p99_us: latencies.microseconds(99.0),
            max_us: latencies.microseconds(100.0),
        })
    }
}

/// Forgets the most memory so far: what it took to load the data is not of the workload. Where that
/// is forbidden it stays, for all stores alike.
pub fn forget_peak_memory() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory that was resident since then.
///
/// # Errors
/// If the kernel doesn't tell.
pub fn peak_memory_bytes() -> Result<u64> {
    memory_bytes("VmHWM")
}

fn memory_bytes(name: &str) -> Result<u64> {
    let path = Path::new("/proc/self/status");
    let status = std::fs::read_to_string(path).map_err(Error::at(path))?;
    field_kib(&status, name)
        .map(|kib| kib * 1024)
        .ok_or_else(|| Error::at(path)(std::io::Error::other(format!("it has no {name}"))))
}

/// What is looked at while a workload runs. At its end is too late: with its sessions a store may
/// let go of caches, and of logs.
#[derive(Debug, Default)]
pub struct Samples {
    anonymous_bytes: Vec<f64>,
    disk_bytes: u64,
}

impl Samples {
    /// Looks again and again while `work` works, and once in the end.
    ///
    /// # Errors
    /// Of `work`; or if there is nothing to be seen.
    pub fn during<T>(dir: &Path, work: impl FnOnce() -> Result<T>) -> Result<(T, Samples)> {
        let (over, hears) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let sampler = scope.spawn(move || {
                let mut samples = Samples::default();
                loop {
                    let wait = hears.recv_timeout(SAMPLE_EVERY);
                    samples.anonymous_bytes.push(memory_bytes("RssAnon")? as f64);
                    samples.disk_bytes = samples.disk_bytes.max(disk_bytes(dir)?);
                    if wait == Err(RecvTimeoutError::Disconnected) {
                        return Ok(samples);
                    }
                }
            });
            let result = work();
            drop(over);
            let samples: Result<Samples> =
                sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((result?, samples?))
        })
    }

    /// Anonymous memory: the middle of what was seen.
    pub fn anonymous_bytes(&self) -> u64 {
        median(self.anonymous_bytes.clone()) as u64
    }

    /// The most that was on the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }
}

fn field_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// What the files below `dir` take on the disk: blocks, not lengths, because stores set lengths far
/// ahead.
///
/// # Errors
/// If it can't be read.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).map_err(Error::at(dir))? {
        let path = entry.map_err(Error::at(dir))?.path();
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => sum += disk_bytes(&path)?,
            Ok(metadata) => sum += metadata.blocks() * 512,
            // Stores remove files in the background.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::at(&path)(error)),
        }
    }
    Ok(sum)
}

/// The middle of some values; of an even number the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "nothing has no middle");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let mut latencies = Latencies::default();
        assert_eq!(Percentiles::of(&latencies), None);
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let percentiles = Percentiles::of(&latencies).unwrap();
        assert!((percentiles.p50_us - 500.0).abs() < 1.0, "{percentiles:?}");
        assert!((percentiles.p99_us - 990.0).abs() < 2.0, "{percentiles:?}");
        assert!((percentiles.max_us - 1000.0).abs() < 2.0, "{percentiles:?}");
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "VmHWM:\t    1234 kB\nRssAnon:\t       7 kB\n";
        assert_eq!(field_kib(status, "VmHWM"), Some(1234));
        assert_eq!(field_kib(status, "RssAnon"), Some(7));
        assert_eq!(field_kib(status, "Vm"), None);
        assert!(peak_memory_bytes().unwrap() > 0);
    }

    #[test]
    fn disk_space_is_what_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let file = std::fs::File::create(dir.path().join("sub/sparse")).unwrap();
        file.set_len(1 << 30).unwrap();
        std::fs::write(dir.path().join("full"), vec![1; 8192]).unwrap();
        let bytes = disk_bytes(dir.path()).unwrap();
        assert!((8192..1 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_is_there_for_a_while_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let (given, samples) = Samples::during(dir.path(), || {
            std::fs::write(&file, vec![1; 1 << 20]).unwrap();
            std::thread::sleep(4 * SAMPLE_EVERY);
            std::fs::remove_file(&file).unwrap();
            Ok(7)
        })
        .unwrap();
        assert_eq!(given, 7);
        assert!(samples.disk_bytes() >= 1 << 20 && samples.anonymous_bytes() > 0, "{samples:?}");
    }

    #[test]
    fn ones_own_time_is_not_that_of_others() {
        let before = CoreTime::now().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let after = CoreTime::now().unwrap();
        assert!(after.own >= before.own + 5, "{before:?} {after:?}");
        assert!((0.0..=1.0).contains(&after.others_since(&before)), "{before:?} {after:?}");
    }
}
