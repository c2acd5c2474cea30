//! Where a tree goes on behind a node that can't be read: for scans that are to read what is left.

use super::Tree;
use super::descent::Shared;
use crate::error::{Error, Result};
use crate::format::node::{self, Node, Seek};
use tidepool_pool::Access;

/// More levels than any tree has.
const LEVELS_MAX: usize = 64;

impl Tree {
    /// The lower bound of what comes behind the subtree that `seek` leads to and of which a node is
    /// `broken`; none if nothing comes. The subtree is the smallest whose parent can be read.
    /// `broken` again if the root can't be.
    pub fn beyond_broken(&self, seek: Seek<'_>, broken: Error) -> Result<Option<Vec<u8>>> {
        for level in 1..LEVELS_MAX {
            let Ok(parent) = self.descend::<Shared>(seek, level, Access::Normal) else { continue };
            let Some(parent) = parent else { break };
            let node = Node::new(&parent).map_err(|why| self.corrupt(parent.page_id().no, why))?;
            let child = node::child_index(&*parent, seek);
            let child = child.map_err(|_| self.corrupt(parent.page_id().no, "a broken node"))?;
            return Ok(match child < node.count() {
                true => Some(node.key(child)),
                false => node.upper_fence().map(<[u8]>::to_vec),
            });
        }
        Err(broken)
    }
}
