//! A list with constant-time moves, addressed by page: the one data structure that all list-based
//! policies share.
//!
//! Nodes live in a slab and are linked by index, so there is no unsafe code and no allocation once
//! it has grown.

use std::collections::HashMap;

const NONE: usize = usize::MAX;

#[derive(Debug, Clone)]
struct Node {
    page: u64,
    before: usize,
    after: usize,
}

/// Pages in order, front to back; each at most once.
#[derive(Debug, Default, Clone)]
pub struct Order {
    nodes: Vec<Node>,
    free: Vec<usize>,
    at: HashMap<u64, usize>,
    ends: Option<(usize, usize)>,
}

impl Order {
    /// Number of pages.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether the page is in the list.
    pub fn contains(&self, page: u64) -> bool {
        self.at.contains_key(&page)
    }

    /// The page at the back.
    pub fn back(&self) -> Option<u64> {
        self.ends.map(|(_, back)| self.nodes[back].page)
    }

    /// Puts a page that is not in the list at the front.
    pub fn push_front(&mut self, page: u64) {
        let front = self.ends.map_or(NONE, |(front, _)| front);
        let index = self.node(Node { page, before: NONE, after: front });
        if front != NONE {
            self.nodes[front].before = index;
        }
        let back = self.ends.map_or(index, |(_, back)| back);
        self.ends = Some((index, back));
    }

    /// Takes the page at the back.
    pub fn pop_back(&mut self) -> Option<u64> {
        let page = self.back()?;
        self.remove(page);
        Some(page)
    }

    /// Takes a page out; `false` if it wasn't there.
    pub fn remove(&mut self, page: u64) -> bool {
        let Some(index) = self.at.remove(&page) else { return false };
        let Node { before, after, .. } = self.nodes[index];
        if before != NONE {
            self.nodes[before].after = after;
        }
        if after != NONE {
            self.nodes[after].before = before;
        }
        let (front, back) = self.ends.expect("the list had this page");
        let front = if front == index { after } else { front };
        let back = if back == index { before } else { back };
        self.ends = (front != NONE).then_some((front, back));
        self.free.push(index);
        true
    }

    /// Moves a page that is in the list to the front.
    pub fn move_to_front(&mut self, page: u64) {
        if self.remove(page) {
            self.push_front(page);
        }
    }

    fn node(&mut self, node: Node) -> usize {
        let page = node.page;
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        let previous = self.at.insert(page, index);
        assert!(previous.is_none(), "page {page} is in the list twice");
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn it_does_what_a_deque_does(operations in prop::collection::vec((0u8..4, 0u64..12), 0..300)) {
            let (mut order, mut model) = (Order::default(), VecDeque::new());
            for (what, page) in operations {
                match what {
                    0 if !model.contains(&page) => { order.push_front(page); model.push_front(page); }
                    1 => prop_assert_eq!(order.pop_back(), model.pop_back()),
                    2 => { prop_assert_eq!(order.remove(page), model.contains(&page)); model.retain(|&p| p != page); }
                    3 if model.contains(&page) => { order.move_to_front(page); model.retain(|&p| p != page); model.push_front(page); }
                    _ => {}
                }
                prop_assert_eq!(order.len(), model.len());
                prop_assert_eq!(order.back(), model.back().copied());
                prop_assert_eq!(order.contains(page), model.contains(&page));
            }
        }
    }
}
