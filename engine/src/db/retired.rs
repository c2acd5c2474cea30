//! Tables that have got another file, until all handles of the old one are gone.
//!
//! The old file is removed by then, and the system frees its blocks when the last descriptor is
//! closed: of a large file that takes tenths of a second. Who has rebuilt the table keeps all
//! others away from it at that moment, so a thread in the background has the last handle. Without
//! background threads the file is closed at once.

use super::Inner;
use super::worker::Worker;
use crate::table::Table;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidepool_pool::Wakeup;

const THREAD: &str = "tidepool-close";
/// Between two looks at whether others still have handles.
const REST: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Retired {
    tables: Mutex<Vec<Arc<Table>>>,
    worker: Worker,
    is_started: AtomicBool,
}

impl Inner {
    /// Keeps a handle of a table whose file is removed, until it is the last one.
    pub(super) fn retire(self: &Arc<Self>, table: &Arc<Table>) {
        if !self.options.read().background {
            return;
        }
        let retired = &self.retired;
        if !retired.is_started.swap(true, Ordering::AcqRel)
            && let Err(error) = retired.worker.start(THREAD, self, run)
        {
            tracing::warn!(%error, "files of rebuilt tables are closed at once");
            retired.is_started.store(false, Ordering::Release);
            return;
        }
        retired.tables.lock().push(table.clone());
        retired.worker.wake();
    }

    /// Drops the handles that are the last ones; false if there are no others.
    fn close_retired(&self) -> bool {
        let (others, last) = std::mem::take(&mut *self.retired.tables.lock())
            .into_iter()
            .partition::<Vec<_>, _>(|table| Arc::strong_count(table) > 1);
        drop(last);
        let mut tables = self.retired.tables.lock();
        tables.extend(others);
        !tables.is_empty()
    }

    /// For the close: gives all handles back.
    pub(super) fn stop_retired(&self) {
        self.retired.worker.stop();
        let tables = std::mem::take(&mut *self.retired.tables.lock());
        drop(tables);
    }
}

fn run(inner: &Weak<Inner>, signal: &Wakeup) {
    let mut pause = Duration::ZERO;
    while signal.sleep(pause) {
        let Some(inner) = inner.upgrade() else { return };
        pause = if inner.close_retired() { REST } else { Duration::MAX };
    }
}
