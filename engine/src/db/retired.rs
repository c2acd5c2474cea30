//! Files of tables that have got other ones are removed, and closed.
//!
//! That takes a few syncs, and the system frees the blocks when the last descriptor is closed: of a
//! large file tenths of a second. Who has rebuilt the table keeps all others away from it at that
//! moment, so a thread in the background does both, the latter when no other handle is left.
//! Without background threads the file is removed at once.
//!
//! What a crash or an error leaves is a file that the log knows to be pending, as for DROP; a close
//! removes it.

use super::Inner;
use super::worker::Worker;
use crate::table::Table;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidepool_pool::Wakeup;

const THREAD: &str = "tidepool-remove";
/// Between two looks at whether others still have handles.
const REST: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Retired {
    /// Tables whose files are in use no more.
    to_remove: Mutex<Vec<Arc<Table>>>,
    /// Those whose files are removed.
    to_close: Mutex<Vec<Arc<Table>>>,
    worker: Worker,
    is_started: AtomicBool,
}

impl Inner {
    /// Removes the file of a table that the catalog has no more, soon or at once.
    pub(super) fn retire(self: &Arc<Self>, table: &Arc<Table>) {
        let retired = &self.retired;
        let mut in_background = self.options.read().background;
        if in_background
            && !retired.is_started.swap(true, Ordering::AcqRel)
            && let Err(error) = retired.worker.start(THREAD, self, run)
        {
            tracing::warn!(%error, "files of rebuilt tables are removed at once");
            retired.is_started.store(false, Ordering::Release);
            in_background = false;
        }
        if in_background {
            retired.to_remove.lock().push(table.clone());
            retired.worker.wake();
        } else {
            self.delete_space(table.space_id(), Some(table));
        }
    }

    fn remove_retired(&self) {
        // It stays in a list until it is removed: the close finds it there.
        loop {
            let next = self.retired.to_remove.lock().first().cloned();
            let Some(table) = next else { return };
            self.delete_space(table.space_id(), Some(&table));
            self.retired.to_remove.lock().retain(|other| !Arc::ptr_eq(other, &table));
            self.retired.to_close.lock().push(table);
        }
    }

    /// Drops the handles that are the last ones; false if there are no others.
    fn close_retired(&self) -> bool {
        let (others, last) = std::mem::take(&mut *self.retired.to_close.lock())
            .into_iter()
            .partition::<Vec<_>, _>(|table| Arc::strong_count(table) > 1);
        drop(last);
        let mut tables = self.retired.to_close.lock();
        tables.extend(others);
        !tables.is_empty()
    }

    /// For the close: removes what is left, and gives all handles back.
    pub(super) fn stop_retired(&self) {
        self.retired.worker.stop();
        self.remove_retired();
        let tables = std::mem::take(&mut *self.retired.to_close.lock());
        drop(tables);
    }
}

fn run(inner: &Weak<Inner>, signal: &Wakeup) {
    let mut pause = Duration::ZERO;
    while signal.sleep(pause) {
        let Some(inner) = inner.upgrade() else { return };
        inner.remove_retired();
        pause = if inner.close_retired() { REST } else { Duration::MAX };
    }
}
