//! A background thread of an open database.
//!
//! The thread holds the database weakly, so dropping the last handle ends it too.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tidepool_pool::Wakeup;

use super::Inner;
use crate::error::Result;

/// The thread, if it was started, and what it sleeps on.
#[derive(Default)]
pub(super) struct Worker {
    wakeup: Arc<Wakeup>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts the thread. `run` sleeps on the wake-up between its steps, and returns when that is
    /// stopped or the database is gone.
    pub fn start(
        &self,
        name: &str,
        inner: &Arc<Inner>,
        run: fn(&Weak<Inner>, &Wakeup),
    ) -> Result<()> {
        let threads = inner.env.pool().threads();
        let (inner, wakeup) = (Arc::downgrade(inner), self.wakeup.clone());
        *self.thread.lock() = Some(threads.spawn(name, move || run(&inner, &wakeup))?);
        Ok(())
    }

    /// Ends the thread's sleep.
    pub fn wake(&self) {
        self.wakeup.wake();
    }

    /// Ends the thread and waits for it, unless it is the caller. False if there was none.
    pub fn stop(&self) -> bool {
        self.wakeup.stop();
        let Some(handle) = self.thread.lock().take() else { return false };
        let thread = handle.thread().clone();
        if thread.id() != std::thread::current().id() && handle.join().is_err() {
            tracing::error!("the thread {} had panicked", thread.name().unwrap_or_default());
        }
        true
    }

    /// Whether the thread was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.wakeup.is_stopped()
    }
}
