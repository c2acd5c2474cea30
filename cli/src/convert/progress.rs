//! How far an ALTER is, from the server's process list, while another connection runs it.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::connect::Target;
use crate::server::Server;

/// How often the process list is read.
const EVERY: Duration = Duration::from_millis(500);
/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Does the work, and shows until its end how far the statement of the connection `id` is.
pub fn watched<T>(target: &Target, id: u32, label: &str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        scope.spawn(move || {
            let mut shown = Shown::new(label);
            let mut server = None;
            while is_done.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // To show nothing harms nothing.
                server = server.or_else(|| Server::connect(target).ok());
                let stage = server.as_mut().and_then(|server| stage(server, id));
                shown.update(stage);
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// The stage, how many there are, and the percent of it that are done.
fn stage(server: &mut Server, id: u32) -> Option<(u32, u32, f64)> {
    let query = format!(
        "SELECT STAGE, MAX_STAGE, PROGRESS FROM information_schema.PROCESSLIST WHERE ID = {id}"
    );
    server.first("the progress", "", &query).ok().flatten()
}

struct Shown {
    bar: Option<ProgressBar>,
    label: String,
    start: Instant,
    line_at: Instant,
}

impl Shown {
    fn new(label: &str) -> Shown {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1000);
            if let Ok(style) = ProgressStyle::with_template("{msg}  {bar:24} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(label.to_owned());
            bar
        });
        Shown { bar, label: label.to_owned(), start: Instant::now(), line_at: Instant::now() }
    }

    fn update(&mut self, stage: Option<(u32, u32, f64)>) {
        let how_far = stage.map_or(String::new(), |(stage, stages, percent)| match stages {
            0 => String::new(),
            _ => format!("stage {stage} of {stages}, {percent:.0} %"),
        });
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} {how_far}", self.label));
            if let Some((_, _, percent)) = stage {
                bar.set_position((percent * 10.0) as u64);
            }
        } else if self.line_at.elapsed() >= LINE_EVERY {
            self.line_at = Instant::now();
            let seconds = self.start.elapsed().as_secs();
            eprintln!("{}: {how_far} after {seconds} s", self.label);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
