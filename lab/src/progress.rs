//! A bar with the time left. Silent where the output is no terminal; then a line a run goes to the
//! log.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How far an experiment is, in planned seconds.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    total_s: f64,
    done_s: f64,
    started: Instant,
}

impl Progress {
    /// An experiment whose runs are planned to take this long.
    pub fn new(total_s: u32) -> Progress {
        let bar = ProgressBar::new(u64::from(total_s.max(1)));
        let style =
            ProgressStyle::with_template("{bar:24} {percent:>3} %  {prefix} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress { bar, total_s: f64::from(total_s.max(1)), done_s: 0.0, started: Instant::now() }
    }

    /// For a run beside another one, which has the bar.
    pub fn hidden() -> Progress {
        let bar = ProgressBar::hidden();
        Progress { bar, total_s: 1.0, done_s: 0.0, started: Instant::now() }
    }

    /// What is being done.
    pub fn say(&self, text: &str) {
        self.bar.set_message(text.to_string());
        if self.bar.is_hidden() {
            tracing::info!("{text}");
        }
    }

    /// The share of a step that has no place in the plan, as loading data.
    pub fn say_share(&self, text: &str, share: f64) {
        self.bar.set_message(format!("{text}: {:.0} %", share * 100.0));
    }

    /// A planned second has passed.
    pub fn second(&mut self) {
        self.done_s = (self.done_s + 1.0).min(self.total_s);
        self.bar.set_position(self.done_s as u64);
        let rate = self.started.elapsed().as_secs_f64() / self.done_s;
        self.bar.set_prefix(minutes(rate * (self.total_s - self.done_s)));
    }

    /// The time that has passed was not of the experiment itself: it says nothing about the time
    /// left.
    pub fn forget_time(&mut self) {
        self.started = Instant::now() - Duration::from_secs_f64(self.done_s);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn minutes(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_left_is_in_minutes() {
        assert_eq!(super::minutes(61.4), "1:01");
        assert_eq!(super::minutes(3600.0), "60:00");
    }
}
