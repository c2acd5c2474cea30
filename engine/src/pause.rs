//! Pause points: named places at which a unit test may step in, to hold the thread up or to let
//! somebody else act. So a race is lost every time, not once in a million runs. Outside of unit
//! tests they are nothing.

/// The place that a thread has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PausePoint {
    /// A waiter has given the holder of an implicit lock the explicit one; its own request comes
    /// next.
    HolderMadeExplicit,
    /// A write is in the redo log, and its leaf's latch is gone.
    WriteCommitted,
    /// A locking scan knows whether the entry before it is deleted for certain; it has not asked
    /// for its lock yet.
    ScanJudgedEntry,
    /// A reader is about to go from a version to the one before.
    VersionPassed,
    /// Purge has walked to who overwrote a deletion; the entry's leaf is not latched again yet.
    OverwriterFound,
    /// How a transaction has committed can be asked; new views do not see it yet.
    CommitStored,
    /// A rollback has read the newest undo record; what that is about is not latched yet.
    UndoRecordRead,
    /// A prepared transaction without a session has ended; the tables that it has used are still
    /// kept.
    PreparedEnded,
    /// A DROP or TRUNCATE has found that its table is not open; the catalog still has it.
    TableFoundClosed,
    /// Which indexes a change keeps is known; its turn has not come yet.
    IndexChangePlanned,
    /// A change of indexes is committed, or given up: what it holds goes.
    IndexChangeEnds,
    /// A change of indexes is over or has been taken back: another of the same table may begin.
    IndexChangeOver,
    /// A thread that wants to close a table has found no transaction inside; some may still enter.
    EntranceFoundUnused,
    /// From here on none enters a table until the thread knows whether one is inside.
    EntranceUndecided,
    /// A table logs writes from here on; whether a transaction came in just before is not known
    /// yet.
    WritesLogged,
    /// A table that no transaction was inside refuses writes from here on; whether one came in just
    /// before is still to be asked.
    WritesRefused,
    /// A round of a build has its view; it has not taken the log of written rows yet.
    RoundViewOpen,
    /// A table that will be filled has been found empty.
    TableFoundEmpty,
    /// A change of a definition is committed; it is not durable yet.
    DefinitionCommitted,
    /// The file of a new table is there; the catalog does not have the table yet.
    TableMade,
    /// The catalog has durably lost a table; its file is still there.
    TableUnlisted,
    /// A piece of a new redo file is about to be filled.
    RedoFileFilling,
    /// A new size of the pool is among the options; the governor does not know it yet.
    OptionNoted,
    /// A redo file was made ahead of need, without the ring's mutex; it is not listed yet.
    RedoFileMade,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn reach(_: PausePoint) {}

#[cfg(test)]
pub(crate) use hook::{reach, with_hook};

#[cfg(test)]
mod hook {
    use std::cell::RefCell;

    use super::PausePoint;

    type Hook = Box<dyn FnMut(PausePoint)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Calls this thread's hook. While it runs, there is none: what it does may reach points too.
    pub(crate) fn reach(point: PausePoint) {
        let Some(mut hook) = HOOK.with_borrow_mut(Option::take) else { return };
        hook(point);
        HOOK.with_borrow_mut(|slot| *slot = Some(hook));
    }

    /// Runs `body`, with `hook` called at each point that this thread comes to.
    pub(crate) fn with_hook<R>(
        hook: impl FnMut(PausePoint) + 'static,
        body: impl FnOnce() -> R,
    ) -> R {
        HOOK.with_borrow_mut(|slot| *slot = Some(Box::new(hook)));
        let outcome = body();
        HOOK.with_borrow_mut(|slot| *slot = None);
        outcome
    }
}
