//! The priority of the threads that see memory getting short and give it back.
//!
//! They take little CPU time; but while one of them waits for a CPU others go on taking memory, and
//! queries wait for the latches that it holds. Who isn't root may raise a priority as far as
//! `RLIMIT_NICE` allows, which by default is not at all. A refusal harms nothing but what the
//! priority was for, so it is no error; the error log reports it.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::process::{getpriority_process, setpriority_process};

/// How many nice values such a thread is before the rest of its process.
const STEPS: i32 = 10;
/// The least nice value there is.
const NICE_MIN: i32 = -20;
/// Below all nice values: no thread has asked yet.
const UNKNOWN: i32 = i32::MIN;

/// How the kernel schedules the threads that see memory getting short and give it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryThreads {
    /// As the other threads of the process.
    #[default]
    AsOthers,
    /// Before the others, by a lower nice value, if the kernel allows it: for a process that is a
    /// server and nothing else.
    First,
}

/// What the kernel has granted to such threads of one pool.
#[derive(Debug)]
pub struct Priority {
    wanted: MemoryThreads,
    nice: AtomicI32,
    is_refusal_told: AtomicBool,
}

impl Priority {
    pub(crate) fn new(wanted: MemoryThreads) -> Priority {
        Priority { wanted, nice: AtomicI32::new(UNKNOWN), is_refusal_told: AtomicBool::new(false) }
    }

    /// Asks the kernel to run the calling thread before the others of its process, if that is
    /// wanted. The first refusal is logged.
    pub fn raise(&self) {
        if self.wanted == MemoryThreads::First
            && let Some(refusal) = self.ask()
        {
            tracing::info!("{refusal}");
        }
    }

    /// The nice value of the threads that have asked, the largest if they differ; none before the
    /// first has, and where none asks.
    pub fn nice(&self) -> Option<i32> {
        Some(self.nice.load(Ordering::Relaxed)).filter(|&nice| nice != UNKNOWN)
    }

    /// Asks; what there is to tell.
    fn ask(&self) -> Option<String> {
        // On Linux this is about a thread, and no id means the caller.
        let before = getpriority_process(None).unwrap_or(0);
        let wanted = (before - STEPS).max(NICE_MIN);
        let outcome = setpriority_process(None, wanted);
        let nice = if outcome.is_ok() { wanted } else { before };
        self.nice.fetch_max(nice, Ordering::Relaxed);
        let error = outcome.err()?;
        (!self.is_refusal_told.swap(true, Ordering::Relaxed)).then(|| {
            format!(
                "the threads that give memory back run at the nice value {before}, not at {wanted}: {error}. When all CPUs are busy the \
                 process may be swapped before they get one. LimitNICE={wanted:+} in its systemd service allows it, from the next start on"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// What two threads get that ask, with the privilege for it if there is one, or without.
    fn ask_twice(with_privilege: bool) -> (i32, Option<i32>, [Option<String>; 2]) {
        let priority = Priority::new(MemoryThreads::First);
        assert_eq!(priority.nice(), None);
        let ask = || {
            if !with_privilege {
                let mut mine = capabilities(None).unwrap();
                mine.effective.remove(CapabilitySet::SYS_NICE);
                set_capabilities(None, mine).unwrap();
            }
            priority.ask()
        };
        // Separate threads: neither the priority nor the lost privilege may stay.
        let answers = [(); 2]
            .map(|()| std::thread::scope(|scope| scope.spawn(ask).join().expect("no panic")));
        (getpriority_process(None).unwrap(), priority.nice(), answers)
    }

    #[test]
    fn a_refusal_is_told_once() {
        if getrlimit(Resource::Nice).current != Some(0) {
            return tidepool_skip::skip("here everyone may raise priorities");
        }
        let (before, nice, [first, second]) = ask_twice(false);
        assert_eq!((nice, second), (Some(before), None));
        let first = first.expect("a refusal");
        let wanted = (before - STEPS).max(NICE_MIN);
        assert!(first.contains(&format!("the nice value {before}, not at {wanted}: ")), "{first}");
        assert!(first.contains(&format!("LimitNICE={wanted:+} ")), "{first}");
    }

    #[test]
    fn the_process_keeps_its_nice_values_unless_asked() {
        let priority = Priority::new(MemoryThreads::AsOthers);
        let raised = std::thread::scope(|scope| {
            let raise = || {
                priority.raise();
                getpriority_process(None).unwrap()
            };
            scope.spawn(raise).join().expect("no panic")
        });
        assert_eq!((raised, priority.nice()), (getpriority_process(None).unwrap(), None));
    }

    #[test]
    fn what_is_granted_is_known() {
        if !capabilities(None).unwrap().effective.contains(CapabilitySet::SYS_NICE) {
            return tidepool_skip::skip("no CAP_SYS_NICE");
        }
        let (before, nice, answers) = ask_twice(true);
        assert_eq!((nice, answers), (Some((before - STEPS).max(NICE_MIN)), [None, None]));
    }
}
