//! Another program beside the server, in the same cgroup, which takes and frees memory by a
//! schedule.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::ballast::Ballast;
use super::counters::resident_bytes;
use crate::error::Result;
use crate::process::spawn_tied;
use crate::subprocess;

/// How often the neighbour follows its schedule.
const STEP: Duration = Duration::from_millis(50);
/// How often it uses all of its memory.
const TOUCH: Duration = Duration::from_secs(1);

/// How a neighbour's memory goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Evenly up over 10 s, held for 10 s, freed.
    Ramp,
    /// All at once, held for 15 s, freed.
    Step,
    /// Evenly up over 5 s and freed, again and again, for the given number of seconds.
    Sawtooth(u32),
    /// Slowly up over the given number of seconds, then freed, as if the leaking program had been
    /// restarted.
    Leak(u32),
}

impl Pattern {
    /// The name in results.
    pub fn key(self) -> &'static str {
        match self {
            Pattern::Ramp => "ramp",
            Pattern::Step => "step",
            Pattern::Sawtooth(_) => "sawtooth",
            Pattern::Leak(_) => "leak",
        }
    }

    /// Seconds until it has freed everything for good.
    pub fn duration_s(self) -> u32 {
        match self {
            Pattern::Ramp => 20,
            Pattern::Step => 15,
            Pattern::Sawtooth(seconds) | Pattern::Leak(seconds) => seconds,
        }
    }

    /// The share of the peak (0 to 1) that is held `at_s` seconds after the start.
    pub fn share(self, at_s: f64) -> f64 {
        if at_s < 0.0 || at_s >= f64::from(self.duration_s()) {
            return 0.0;
        }
        match self {
            Pattern::Ramp => (at_s / 10.0).min(1.0),
            Pattern::Step => 1.0,
            Pattern::Sawtooth(_) => (at_s % 5.0) / 5.0,
            Pattern::Leak(seconds) => at_s / f64::from(seconds),
        }
    }

    fn to_argument(self) -> String {
        format!("{}:{}", self.key(), self.duration_s())
    }

    fn from_argument(text: &str) -> Option<Pattern> {
        let (key, seconds) = text.split_once(':')?;
        let seconds = seconds.parse().ok()?;
        Some(match key {
            "ramp" => Pattern::Ramp,
            "step" => Pattern::Step,
            "sawtooth" => Pattern::Sawtooth(seconds),
            "leak" => Pattern::Leak(seconds),
            _ => return None,
        })
    }
}

/// A running neighbour; killed when dropped.
#[derive(Debug)]
pub struct Neighbour {
    child: Child,
}

impl Neighbour {
    /// Starts one, in these cgroups; its schedule begins at once.
    ///
    /// # Errors
    /// If this program can't be run again.
    pub fn start(pattern: Pattern, peak_bytes: u64, cgroup_procs: &[PathBuf]) -> Result<Neighbour> {
        let mut command = Command::new(subprocess::own_program()?);
        command
            .args([subprocess::NEIGHBOUR, &pattern.to_argument(), &peak_bytes.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Neighbour { child: spawn_tied(&mut command, cgroup_procs)? })
    }

    /// Bytes that it holds in memory now; 0 when it has ended.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.child.id()).unwrap_or(0)
    }

    /// True if it ended other than by its schedule: the kernel killed it.
    pub fn was_killed(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if !status.success())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The neighbour's main function.
pub fn main(arguments: &[String]) -> ExitCode {
    let [pattern, peak] = arguments else { return ExitCode::from(2) };
    let (Some(pattern), Ok(peak)) = (Pattern::from_argument(pattern), peak.parse::<usize>()) else {
        return ExitCode::from(2);
    };
    match follow(pattern, peak) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the neighbour: {error}");
            ExitCode::FAILURE
        }
    }
}

fn follow(pattern: Pattern, peak: usize) -> std::io::Result<()> {
    let mut ballast = Ballast::new(peak)?;
    let start = Instant::now();
    let mut touched = start;
    while start.elapsed().as_secs_f64() < f64::from(pattern.duration_s()) {
        ballast.hold((peak as f64 * pattern.share(start.elapsed().as_secs_f64())) as usize)?;
        if touched.elapsed() >= TOUCH {
            touched = Instant::now();
            ballast.touch();
        }
        sleep(STEP);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn schedules_rise_and_fall() {
        assert_eq!(Pattern::Ramp.share(5.0), 0.5);
        assert_eq!(Pattern::Ramp.share(15.0), 1.0);
        assert_eq!(Pattern::Ramp.share(20.0), 0.0);
        assert_eq!(Pattern::Step.share(0.0), 1.0);
        assert_eq!(Pattern::Step.share(15.0), 0.0);
        assert_eq!(Pattern::Sawtooth(120).share(5.0), 0.0);
        assert_eq!(Pattern::Sawtooth(120).share(117.5), 0.5);
        assert_eq!(Pattern::Sawtooth(120).share(120.0), 0.0);
        assert_eq!(Pattern::Leak(60).share(30.0), 0.5);
        assert_eq!(Pattern::Leak(60).share(-1.0), 0.0);
    }

    #[test]
    fn a_pattern_survives_the_command_line() {
        for pattern in [Pattern::Ramp, Pattern::Step, Pattern::Sawtooth(120), Pattern::Leak(45)] {
            assert_eq!(Pattern::from_argument(&pattern.to_argument()), Some(pattern));
        }
        assert_eq!(Pattern::from_argument("flood:3"), None);
    }
}
