//! What was seen of one server: the thread that looks writes it, all others read it.
//!
//! Locking: the mutexes around [`Seen`] and [`About`] are held for copies only, never across a
//! query to the server. The lock order is [`Seen`]'s, then [`About`]'s.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::archive::Archive;
use super::counters::Counters;
use super::pool_content::{self, Decision};
use super::replication::Replication;
use super::sample::{About, Curve, History};
use super::setter::Setter;
use super::statements::Top;
use crate::connect::Target;

/// There is a look each second. A server that has kept one waiting for so long does not answer: the
/// look itself fails minutes later.
pub const STALE: Duration = Duration::from_secs(10);

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// The graph.
    pub history: History,
    /// What was counted so far.
    pub counters: Counters,
    /// Hit ratios by size.
    pub curve: Curve,
    /// By table and index.
    pub content: Vec<pool_content::Row>,
    /// When the content was read, milliseconds since 1970.
    pub content_at_ms: Option<u64>,
    /// Why there is no content.
    pub content_note: Option<String>,
    /// By the servers that this one replicates from.
    pub replication: Replication,
    /// The most expensive ones of the last minute.
    pub statements: Top,
    /// Newest first.
    pub decisions: Vec<Decision>,
    /// Why the engine's own are not among them.
    pub decisions_note: Option<String>,
    /// Why the last look failed, if it did.
    pub error: Option<String>,
    /// When the server last answered.
    pub looked_at: Option<Instant>,
}

impl Seen {
    /// After the server was away: its pool's earlier content is gone, and of another engine's pool
    /// all figures are.
    pub fn returned(&mut self, with_another_engine: bool) {
        self.content.clear();
        self.content_at_ms = None;
        if with_another_engine {
            *self = Seen { error: self.error.take(), ..Seen::default() };
        }
    }

    /// Why the newest sample is old, if it is.
    pub fn trouble(&self) -> Option<String> {
        let silent = || {
            let silence = self.looked_at?.elapsed();
            let seconds = silence.as_secs();
            (silence >= STALE).then(|| format!("the server has not answered for {seconds} s"))
        };
        self.error.clone().or_else(silent)
    }
}

/// What all threads share.
#[derive(Debug)]
pub struct Watched {
    /// What the user calls the server; `None` where it is the only one.
    pub name: Option<String>,
    /// How to reach the server.
    pub target: Target,
    /// Sets the pool's size.
    pub setter: Setter,
    /// Whether to stop.
    pub stop: Arc<AtomicBool>,
    /// What is kept over days, in a file.
    pub archive: Option<Archive>,
    about: Mutex<Arc<About>>,
    seen: Mutex<Seen>,
}

impl Watched {
    /// Of a server of which nothing was seen yet but, if it answers, what it is.
    pub fn new(
        name: Option<String>,
        target: Target,
        about: About,
        archive: Option<Archive>,
        stop: Arc<AtomicBool>,
    ) -> Watched {
        Watched {
            name,
            setter: Setter::start(&target),
            target,
            stop,
            archive,
            about: Mutex::new(Arc::new(about)),
            seen: Mutex::default(),
        }
    }

    /// What doesn't change while the server runs.
    pub fn about(&self) -> Arc<About> {
        Arc::clone(&self.about.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server was away. What is there now may be another version of it, with other settings and
    /// other data.
    pub fn is_back(&self, now: &About) {
        let before = self.about();
        // Under the lock, so that no reader gets figures of one pool with a description of the
        // other's.
        let mut seen = self.seen();
        seen.returned(before.engine != now.engine);
        *self.about.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(now.clone());
    }

    /// What was seen so far; hold it shortly.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_of_another_engines_pool_is_gone_and_the_graph_of_the_same_one_stays() {
        let seen = || {
            let mut seen = Seen { decisions_note: Some("note".into()), ..Seen::default() };
            seen.history.push(crate::watch::sample::Sample::default());
            seen.error = Some("away".into());
            seen
        };
        let mut same = seen();
        same.returned(false);
        assert!(same.history.last().is_some() && same.decisions_note.is_some());
        let mut other = seen();
        other.returned(true);
        assert!(other.history.last().is_none() && other.decisions_note.is_none());
        assert_eq!(other.error.as_deref(), Some("away"), "until the next look");
    }
}
