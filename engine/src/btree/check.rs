//! Walking a whole tree and verifying it, while others use it.
//!
//! Level by level from the root down, each inner node is read under its version, not its latch: a
//! copy is verified, then each child is latched shared and compared with what the copy says of it,
//! and the node's version is checked once more. Where it has changed meanwhile, the walk goes on
//! from the last fence it knows to be good. Only where it gets no further so, it keeps the node
//! latched while it loads one child, and then goes on as before. So a check blocks no other thread
//! for longer than it takes to load and verify one page, and reports nothing that was only in flux.
//!
//! Verified: page type, tree id and level of every page; slot order, heads, prefix, fences and heap
//! of every node; that a child's fences are exactly the parent's separators around it. So no two
//! parents can share a child, for their ranges differ.

use super::Tree;
use super::descent::{Backoff, Coupled, Shared, Standing, Stop};
use crate::error::Result;
use crate::format::node::{self, Node, Seek};
use tidepool_pool::{Access, OptimisticGuard};

/// What a check found of a sound tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Levels, leaves included.
    pub depth: usize,
    /// Leaves.
    pub leaf_pages: u64,
    /// Inner nodes, the root included if it is one.
    pub inner_pages: u64,
    /// Entries in leaves.
    pub entries: u64,
    /// Bytes that entries and their slots take in the leaves.
    pub entry_bytes: u64,
    /// Page numbers of all nodes, unsorted. Exact only if the tree did not change during the check.
    pub pages: Vec<u32>,
}

/// One step of the walk over the inner nodes of a level.
enum Step {
    Next,
    End,
}

impl Tree {
    /// Verifies the whole tree and shows every leaf to `visitor`, in key order, with the first slot
    /// that it has not seen yet: 0, unless leaves were merged meanwhile. The visitor runs under the
    /// leaf's latch: it must not touch this tree nor wait. The first thing found wrong, or the
    /// visitor's error, ends the walk.
    pub fn check(&self, visitor: LeafVisitor<'_>) -> Result<CheckReport> {
        self.check_pausing(visitor, &mut || Ok(()))
    }

    /// As [`Self::check`]; `pause` is called after each leaf, no latch held, and may do with the
    /// tree what it likes. Its error ends the walk, and nothing of the tree is touched afterwards.
    pub fn check_pausing(
        &self,
        visitor: LeafVisitor<'_>,
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<CheckReport> {
        let mut walk = Walk { report: CheckReport::default(), visitor, pause, is_due: false };
        // The root may grow during the check: its level is read first, and the levels above it are
        // then missed.
        let depth = self.depth()?;
        walk.report.depth = depth;
        if depth == 1 {
            let leaf = self.leaf_shared(Seek::First, Access::Normal)?;
            let no = leaf.page_id().no;
            if no == self.root {
                self.check_root(leaf.node())?;
            }
            if leaf.upper_fence().is_none() {
                walk.leaf(self, no, leaf.node(), &[])?;
                drop(leaf);
                walk.pause()?;
                return Ok(walk.report);
            }
            drop(leaf);
            return self.check_pausing(walk.visitor, walk.pause);
        }
        for level in (1..depth).rev() {
            let mut from = Vec::new();
            let mut backoff = Backoff::default();
            loop {
                let before = from.clone();
                let outcome = if backoff.is_exhausted() {
                    self.check_inner::<Coupled<'_>>(level, 1, &mut from, &mut walk)
                } else {
                    let all = usize::MAX;
                    self.check_inner::<OptimisticGuard<'_>>(level, all, &mut from, &mut walk)
                };
                walk.pause()?;
                if from != before {
                    // What failed before it got so far says nothing of what comes.
                    backoff = Backoff::default();
                }
                match outcome {
                    Ok(Step::Next) => {}
                    Ok(Step::End) => break,
                    Err(Stop::Retry | Stop::TooLow) => backoff.wait(),
                    Err(Stop::Failed(error)) => return Err(error),
                }
            }
        }
        Ok(walk.report)
    }

    /// The root holds every key there is. No descent would notice if its fences said otherwise.
    fn check_root(&self, root: Node<'_>) -> Result<()> {
        if root.lower_fence().is_empty() && root.upper_fence().is_none() {
            return Ok(());
        }
        Err(self.corrupt(self.root, "the root has fences"))
    }

    /// Levels of the tree, leaves included.
    pub fn depth(&self) -> Result<usize> {
        let root = self.env.pool().shared(&self.space, self.root, Access::Normal)?;
        let level = Node::new(&root).map_err(|why| self.corrupt(self.root, why))?.level();
        self.check_node(&root, self.root, level)?;
        Ok(level + 1)
    }

    /// Verifies the inner node at `level` that holds `from`, and its children from there on, `most`
    /// of them; `from` moves along.
    fn check_inner<'t, S: Standing<'t>>(
        &'t self,
        level: usize,
        most: usize,
        from: &mut Vec<u8>,
        walk: &mut Walk<'_>,
    ) -> Result<Step, Stop> {
        let pool = self.env.pool();
        let no = {
            let guard = self.descend::<Shared>(Seek::Key(from), level, Access::Normal);
            match guard? {
                Some(guard) => guard.page_id().no,
                // The root shrank below this level: nothing is left of it.
                None => return Ok(Step::End),
            }
        };
        let page = S::on(pool, &self.space, no, Access::Normal)?;
        let mut copy = Vec::new();
        self.read(&page, no, |page| page.copy_to(0, page.size(), &mut copy))?;
        page.validate()?;
        if Node::new(&copy).is_err() || self.check_node(&copy, no, level).is_err() {
            // It was this tree's node a moment ago; that it no longer is, the next descent
            // explains.
            return Err(Stop::Retry);
        }
        let node = Node::trusted(&copy);
        if no == self.root {
            self.check_root(node).map_err(Stop::Failed)?;
        }
        if !node.covers(from) {
            return Err(Stop::Retry);
        }
        node.verify().map_err(|why| Stop::Failed(self.corrupt(no, why)))?;
        // Not again when an attempt that came to no child is repeated.
        if node.lower_fence() == from.as_slice() && walk.report.pages.last() != Some(&no) {
            walk.report.inner_pages += 1;
            walk.report.pages.push(no);
        }
        let first = self.read(&page, no, |_| node::child_index::<[u8]>(&copy, Seek::Key(from)))?;
        for index in (first..=node.count()).take(most) {
            let child_no = (node.child(index))
                .ok_or_else(|| Stop::Failed(self.corrupt(no, "an inner node lacks a child")))?;
            let child_page = pool.shared(&self.space, child_no, Access::Scan)?;
            page.validate()?;
            self.check_node(&child_page, child_no, level - 1)?;
            let child = Node::trusted(&child_page);
            let lower = match index {
                0 => node.lower_fence().to_vec(),
                _ => node.key(index - 1),
            };
            let upper = match index < node.count() {
                true => Some(node.key(index)),
                false => node.upper_fence().map(<[u8]>::to_vec),
            };
            if child.lower_fence() != lower || child.upper_fence() != upper.as_deref() {
                let why = format!("fences differ from the separators in its parent, page {no}");
                return Err(Stop::Failed(self.corrupt(child_no, why)));
            }
            if level == 1 {
                walk.leaf(self, child_no, child, from)?;
            }
            match upper {
                Some(upper) => *from = upper,
                None => return Ok(Step::End),
            }
            drop(child_page);
            // Of one child alone, the parent may be latched: its walk pauses when that is over.
            if most > 1 {
                walk.pause()?;
            }
        }
        Ok(Step::Next)
    }
}

/// Sees a leaf, and its first slot that the walk has not shown before.
pub type LeafVisitor<'v> = &'v mut dyn FnMut(Node<'_>, usize) -> Result<()>;

struct Walk<'v> {
    report: CheckReport,
    visitor: LeafVisitor<'v>,
    pause: &'v mut dyn FnMut() -> Result<()>,
    /// A leaf was seen since the last pause.
    is_due: bool,
}

impl Walk<'_> {
    fn pause(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_due) { (self.pause)() } else { Ok(()) }
    }

    fn leaf(&mut self, tree: &Tree, no: u32, leaf: Node<'_>, from: &[u8]) -> Result<()> {
        leaf.verify().map_err(|why| tree.corrupt(no, why))?;
        let first = leaf.find(from).unwrap_or_else(|slot| slot);
        self.report.leaf_pages += 1;
        self.report.entries += (leaf.count() - first) as u64;
        self.report.entry_bytes += leaf.used_bytes() as u64;
        self.report.pages.push(no);
        self.is_due = true;
        (self.visitor)(leaf, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::tests::{fixture, put};
    use crate::mtr::Mtr;
    use crate::page_op::PageOp;

    const ENTRIES: u64 = 1000;
    /// A byte of a node's header that means nothing.
    const RESERVED: u32 = 60;

    /// A tree of two levels.
    fn tree() -> Tree {
        let tree = fixture::tree(200, 4096);
        for n in 0..ENTRIES {
            put(&tree, &n.to_be_bytes(), &[5; 100]).unwrap();
        }
        assert_eq!(tree.depth().unwrap(), 2);
        tree
    }

    #[test]
    fn a_node_is_kept_latched_for_one_child_at_a_time() {
        let tree = tree();
        let expected = tree.check(&mut |_, _| Ok(())).unwrap();
        let report = CheckReport { depth: 2, ..Default::default() };
        let (visitor, pause): (LeafVisitor<'_>, &mut dyn FnMut() -> _) =
            (&mut |_, _| Ok(()), &mut || Ok(()));
        let mut walk = Walk { report, visitor, pause, is_due: false };
        let mut from = Vec::new();
        let mut steps = 1;
        while let Ok(Step::Next) = tree.check_inner::<Coupled<'_>>(1, 1, &mut from, &mut walk) {
            assert_eq!(walk.report.leaf_pages, steps);
            steps += 1;
        }
        assert_eq!(steps, expected.leaf_pages);
        assert!(expected.leaf_pages > 20);
        assert_eq!(walk.report, expected);
    }

    #[test]
    fn a_check_that_gets_on_leaves_the_nodes_above_to_others() {
        let tree = tree();
        let expected = tree.check(&mut |_, _| Ok(())).unwrap();
        let report = tree.check(&mut |_, _| {
            // The node above changes at every leaf, so the walk has to go down again each time.
            let mut mtr = Mtr::begin(&tree.env)?;
            let root = tree.env.pool().try_exclusive(&tree.space, tree.root, Access::Normal);
            let root = mtr.adopt(root.expect("no other thread holds the root"));
            mtr.apply(root, &PageOp::Write { offset: RESERVED, bytes: &[0] });
            mtr.commit();
            Ok(())
        });
        assert_eq!(report.unwrap(), expected);
    }
}
