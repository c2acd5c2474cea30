//! Going down from the root without latching what is only passed through.
//!
//! An inner node is read optimistically: its version is noted, bytes are read while others may
//! write them, and the version is checked before anything read is believed. Only the node that the
//! caller asked for is latched; its parent's version, checked once more behind that latch, proves
//! that it is still the node for the key. Whatever changes a node's range holds that node and its
//! parent exclusively, and a node that leaves the tree has its bytes changed too, so a reader that
//! stands on it notices.
//!
//! An optimistic reader can be starved: by writers, or by a pool so small that loading a child
//! evicts its parent each time. After some attempts it therefore goes down with shared latches, the
//! parent's held until the child's is there.

use super::Tree;
use crate::error::{Error, Result};
use crate::format::node::{self, Node, Seek};
use std::cmp::Ordering;
use tidepool_pool::{
    Access, ExclusiveGuard, OptimisticGuard, PageView, Pool, Retry, SharedGuard, Space,
};

/// How the node at the end of a descent is latched.
pub(super) trait Latch: Sized {
    type Guard<'a>: std::ops::Deref<Target = [u8]>;

    fn latch<'a>(
        pool: &'a Pool,
        space: &'a Space,
        no: u32,
        access: Access,
    ) -> tidepool_pool::Result<Self::Guard<'a>>;

    fn upgrade(guard: OptimisticGuard<'_>) -> Result<Self::Guard<'_>, Retry>;
}

/// Latched for reading.
pub(super) struct Shared;

/// Latched for changing.
pub(super) struct Exclusive;

impl Latch for Shared {
    type Guard<'a> = SharedGuard<'a>;

    #[inline]
    fn latch<'a>(
        pool: &'a Pool,
        space: &'a Space,
        no: u32,
        access: Access,
    ) -> tidepool_pool::Result<SharedGuard<'a>> {
        pool.shared(space, no, access)
    }

    fn upgrade(guard: OptimisticGuard<'_>) -> Result<SharedGuard<'_>, Retry> {
        guard.upgrade_shared()
    }
}

impl Latch for Exclusive {
    type Guard<'a> = ExclusiveGuard<'a>;

    #[inline]
    fn latch<'a>(
        pool: &'a Pool,
        space: &'a Space,
        no: u32,
        access: Access,
    ) -> tidepool_pool::Result<ExclusiveGuard<'a>> {
        pool.exclusive(space, no, access)
    }

    fn upgrade(guard: OptimisticGuard<'_>) -> Result<ExclusiveGuard<'_>, Retry> {
        guard.upgrade_exclusive()
    }
}

/// A node passed on the way down: read under its version, or under a shared latch.
pub(super) trait Standing<'a>: PageView + Sized {
    fn on(pool: &'a Pool, space: &'a Space, no: u32, access: Access)
    -> tidepool_pool::Result<Self>;

    /// Whether all that was read so far can be believed.
    fn validate(&self) -> Result<(), Retry>;

    /// Latches the node, as it was last validated, for reading.
    fn into_shared(self) -> Result<SharedGuard<'a>, Retry>;

    /// Latches the root; it may have changed since it was last validated.
    fn latch_root<L: Latch>(self, pool: &'a Pool, space: &'a Space) -> Result<L::Guard<'a>, Stop>;
}

impl<'a> Standing<'a> for OptimisticGuard<'a> {
    #[inline]
    fn on(
        pool: &'a Pool,
        space: &'a Space,
        no: u32,
        access: Access,
    ) -> tidepool_pool::Result<Self> {
        pool.optimistic(space, no, access)
    }

    #[inline]
    fn validate(&self) -> Result<(), Retry> {
        OptimisticGuard::validate(self)
    }

    fn into_shared(self) -> Result<SharedGuard<'a>, Retry> {
        self.upgrade_shared()
    }

    fn latch_root<L: Latch>(self, _: &'a Pool, _: &'a Space) -> Result<L::Guard<'a>, Stop> {
        Ok(L::upgrade(self)?)
    }
}

/// A node held by a shared latch while its child is latched.
pub(super) struct Coupled<'a>(SharedGuard<'a>);

impl<'a> Standing<'a> for Coupled<'a> {
    fn on(
        pool: &'a Pool,
        space: &'a Space,
        no: u32,
        access: Access,
    ) -> tidepool_pool::Result<Self> {
        pool.shared(space, no, access).map(Coupled)
    }

    fn validate(&self) -> Result<(), Retry> {
        Ok(())
    }

    fn into_shared(self) -> Result<SharedGuard<'a>, Retry> {
        Ok(self.0)
    }

    fn latch_root<L: Latch>(self, pool: &'a Pool, space: &'a Space) -> Result<L::Guard<'a>, Stop> {
        let no = self.0.page_id().no;
        drop(self);
        Ok(L::latch(pool, space, no, Access::Normal)?)
    }
}

impl PageView for Coupled<'_> {
    fn size(&self) -> usize {
        self.0.size()
    }

    fn u8_at(&self, offset: usize) -> Result<u8, Retry> {
        self.0.u8_at(offset)
    }

    fn u16_at(&self, offset: usize) -> Result<u16, Retry> {
        self.0.u16_at(offset)
    }

    fn u32_at(&self, offset: usize) -> Result<u32, Retry> {
        self.0.u32_at(offset)
    }

    fn u64_at(&self, offset: usize) -> Result<u64, Retry> {
        self.0.u64_at(offset)
    }

    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Result<Ordering, Retry> {
        self.0.compare(offset, len, other)
    }

    fn copy_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Retry> {
        self.0.copy_to(offset, len, out)
    }
}

/// Why one descent did not arrive.
pub(super) enum Stop {
    /// Something changed on the way.
    Retry,
    /// The tree has no such level.
    TooLow,
    /// It cannot go on.
    Failed(Error),
}

impl From<Retry> for Stop {
    fn from(_: Retry) -> Stop {
        Stop::Retry
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl From<tidepool_pool::Error> for Stop {
    fn from(error: tidepool_pool::Error) -> Stop {
        Stop::Failed(error.into())
    }
}

/// From this many failed attempts on, a descent latches what it passes.
const OPTIMISTIC_ATTEMPTS: u32 = 10;

/// Waits a little longer each time a descent had to start over.
#[derive(Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    /// Whether optimism has failed too often.
    pub fn is_exhausted(&self) -> bool {
        self.0 >= OPTIMISTIC_ATTEMPTS
    }

    pub fn wait(&mut self) {
        self.0 += 1;
        if self.0 < 8 {
            (0..1 << self.0).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
    }
}

impl Tree {
    /// Latches the node at `level` that `seek` leads to; `None` when the tree is not that high.
    pub(super) fn descend<L: Latch>(
        &self,
        seek: Seek<'_>,
        level: usize,
        access: Access,
    ) -> Result<Option<L::Guard<'_>>> {
        let mut backoff = Backoff::default();
        loop {
            let outcome = if backoff.is_exhausted() {
                self.try_descend::<Coupled<'_>, L>(seek, level, access)
            } else {
                self.try_descend::<OptimisticGuard<'_>, L>(seek, level, access)
            };
            match outcome {
                Ok(guard) => return Ok(Some(guard)),
                Err(Stop::Retry) => backoff.wait(),
                Err(Stop::TooLow) => return Ok(None),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    #[inline]
    fn try_descend<'t, S: Standing<'t>, L: Latch>(
        &'t self,
        seek: Seek<'_>,
        target: usize,
        access: Access,
    ) -> Result<L::Guard<'t>, Stop> {
        let (pool, space) = (self.env.pool(), &*self.space);
        let mut no = self.root;
        let mut node = S::on(pool, space, no, Access::Normal)?;
        let mut level = self.read(&node, no, |node| node.u16_at(node::LEVEL))? as usize;
        if level <= target {
            node.validate()?;
            if level < target {
                return Err(Stop::TooLow);
            }
            let guard = node.latch_root::<L>(pool, space)?;
            if Node::new(&guard).is_ok_and(|root| root.level() != target) {
                return Err(Stop::Retry);
            }
            self.check_node(&guard, no, level)?;
            return Ok(guard);
        }
        loop {
            let child_no =
                self.read(&node, no, |node| node::child(node, node::child_index(node, seek)?))?;
            // A page number that no one vouches for must not be asked of the pool.
            node.validate()?;
            level -= 1;
            if level == target {
                let guard = L::latch(pool, space, child_no, access)?;
                node.validate()?;
                self.check_node(&guard, child_no, level)?;
                self.check_covers(&guard, child_no, seek)?;
                return Ok(guard);
            }
            node = self.step_down(node, child_no, level, Access::Normal)?;
            no = child_no;
        }
    }

    /// From a node to one of its children, an inner node or a leaf, which must be at `level`.
    #[inline]
    pub(super) fn step_down<'t, S: Standing<'t>>(
        &'t self,
        node: S,
        child_no: u32,
        level: usize,
        access: Access,
    ) -> Result<S, Stop> {
        let child = S::on(self.env.pool(), &self.space, child_no, access)?;
        node.validate()?;
        let found = usize::from(self.read(&child, child_no, |child| child.u16_at(node::LEVEL))?);
        if found != level {
            child.validate()?;
            let why = format!("a node of level {found}, not {level}");
            return Err(Stop::Failed(self.corrupt(child_no, why)));
        }
        Ok(child)
    }

    /// Reads from a page that may be changing. Nonsense found on a page that has not changed is
    /// corruption.
    #[inline]
    pub(super) fn read<'t, S: Standing<'t>, T>(
        &'t self,
        page: &S,
        no: u32,
        read: impl FnOnce(&S) -> Result<T, Retry>,
    ) -> Result<T, Stop> {
        read(page).map_err(|Retry| match page.validate() {
            Err(Retry) => Stop::Retry,
            Ok(()) => {
                Stop::Failed(self.corrupt(no, "an offset in the node points outside the page"))
            }
        })
    }

    /// Checks that a latched page is a node of this tree at this level, with a sane header.
    #[inline]
    pub(super) fn check_node(&self, page: &[u8], no: u32, level: usize) -> Result<()> {
        self.env.check_whole()?;
        let why = match Node::new(page) {
            Err(why) => why.to_string(),
            Ok(node) if node.tree_id() != self.id => {
                format!("a node of tree {}, not {}", node.tree_id(), self.id)
            }
            Ok(node)
                if node.level() != level
                    || node.page_type() != node::page_type_at(level as u16) =>
            {
                format!(
                    "page type {}, level {}; not a node of level {level}",
                    node.page_type().0,
                    node.level()
                )
            }
            Ok(_) => return Ok(()),
        };
        Err(self.corrupt(no, why))
    }

    /// Checks that a node which was checked is the one that `seek` wants. Its parent said so; but
    /// an older copy of the node has other fences, and a scan that goes from fence to fence would
    /// turn in a circle.
    #[inline]
    fn check_covers(&self, page: &[u8], no: u32, seek: Seek<'_>) -> Result<()> {
        let node = Node::trusted(page);
        let (lower, upper) = (node.lower_fence(), node.upper_fence());
        let is_wanted = match seek {
            Seek::Key(key) => lower <= key && upper.is_none_or(|upper| key < upper),
            Seek::Before(key) => {
                (lower.is_empty() || lower < key) && upper.is_none_or(|upper| key <= upper)
            }
            Seek::First => lower.is_empty(),
            Seek::Last => upper.is_none(),
        };
        if is_wanted {
            return Ok(());
        }
        Err(self.corrupt(no, "its fences are not those that its parent has for it"))
    }

    pub(super) fn corrupt(&self, no: u32, why: impl std::fmt::Display) -> Error {
        Error::corrupt(self.space.name(), no, why)
    }
}
