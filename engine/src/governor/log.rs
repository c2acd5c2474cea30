//! Decisions in the log: every one that matters, and never a flood of them.

use std::time::Duration;

use tidepool_governor::{Decision, Signal};

/// Changes below this share of the size last logged are only counted.
const SHARE: u64 = 16;
/// Lines are at least this far apart.
const EVERY: Duration = Duration::from_secs(1);

/// Says decisions, the small and the hasty ones together with the next that counts.
#[derive(Default)]
pub(super) struct LogGate {
    said: Option<Said>,
    /// What has not been said: how many decisions, and the last of them.
    waiting: u32,
    last: Option<Decision>,
}

struct Said {
    at: Duration,
    size_bytes: u64,
}

impl LogGate {
    /// Takes a decision; says it if it is time.
    pub(super) fn say(&mut self, at: Duration, decision: &Decision) {
        self.waiting += 1;
        self.last = Some(decision.clone());
        self.flush(at);
    }

    /// Says what is waiting, if it is worth a line and time for one.
    pub(super) fn flush(&mut self, at: Duration) {
        if let Some(line) = self.take(at) {
            tracing::info!("{line}");
        }
    }

    fn take(&mut self, at: Duration) -> Option<String> {
        let last = self.last.as_ref()?;
        let from = match &self.said {
            Some(said) => {
                let worth_a_line = last.to_bytes.abs_diff(said.size_bytes)
                    > said.size_bytes / SHARE
                    || matches!(last.signal, Signal::OwnSwap | Signal::Stall | Signal::Ceiling);
                if !worth_a_line || at.saturating_sub(said.at) < EVERY {
                    return None;
                }
                said.size_bytes
            }
            None => last.from_bytes,
        };
        let mib = |bytes: u64| bytes >> 20;
        let mut line = if last.signal == Signal::Start {
            format!("the buffer pool may have {} MiB: {}", mib(last.to_bytes), last.reason)
        } else {
            let (signal, reason) = (last.signal, &last.reason);
            format!(
                "buffer pool from {} to {} MiB: {signal}: {reason}",
                mib(from),
                mib(last.to_bytes)
            )
        };
        if self.waiting > 1 {
            line.push_str(&format!(" ({} decisions)", self.waiting));
        }
        self.said = Some(Said { at, size_bytes: last.to_bytes });
        (self.waiting, self.last) = (0, None);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(signal: Signal, from_mib: u64, to_mib: u64) -> Decision {
        Decision {
            signal,
            from_bytes: from_mib << 20,
            to_bytes: to_mib << 20,
            reason: "because".into(),
        }
    }

    #[test]
    fn many_small_steps_make_few_lines_and_none_is_lost() {
        let mut gate = LogGate::default();
        let mut lines = Vec::new();
        let mut say = |ms: u64, decision: Option<&Decision>| {
            if let Some(decision) = decision {
                gate.waiting += 1;
                gate.last = Some(decision.clone());
            }
            lines.extend(gate.take(Duration::from_millis(ms)));
        };
        say(0, Some(&decision(Signal::Start, 0, 1000)));
        // 100 steps of 5 MiB within a second, then nothing.
        for step in 0..100 {
            let size = 1000 - 5 * step;
            say(10 + 5 * step, Some(&decision(Signal::RoomShrank, size, size - 5)));
        }
        say(900, None);
        say(1010, None);
        say(5000, None);
        // Small ones stay unsaid, trouble does not.
        say(6000, Some(&decision(Signal::RoomLasted, 500, 510)));
        say(8000, Some(&decision(Signal::Stall, 510, 505)));
        assert_eq!(
            lines,
            [
                "the buffer pool may have 1000 MiB: because",
                "buffer pool from 1000 to 500 MiB: room shrank: because (100 decisions)",
                "buffer pool from 500 to 505 MiB: memory stall: because (2 decisions)",
            ]
        );
    }
}
