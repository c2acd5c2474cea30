//! How far a command is: on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::printable;

/// A line that says it. Without a terminal nothing is written.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = "{percent:>3} % {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}  {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says where it is.
    pub fn tell(&self, what: &str, done_bytes: u64, total_bytes: u64) {
        self.0.set_length(total_bytes.max(done_bytes));
        self.0.set_position(done_bytes);
        let what = printable(what);
        if self.0.message() != what {
            self.0.set_message(what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
