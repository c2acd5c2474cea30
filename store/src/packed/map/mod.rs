//! The map of a packed file: which image each page has.
//!
//! A tree for each space, of nodes with up to 1024 entries of sixteen bytes. A leaf has the entries
//! of pages, an inner node those of the images of its children; so one shape serves for all levels.
//! Nodes that are not dirty may be absent from memory. A tree grows by a level when a page's number
//! is beyond what its root can name.
//!
//! Invariants: the ancestors of a dirty node are in memory and dirty. A node's `stored` entry is
//! what the newest durable root leads to.
//!
//! Nothing here reads or writes a file: who meets an absent node reads its image and calls
//! [`Map::install`].

mod cost;
mod node;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

pub use self::cost::Cost;
use self::node::{Body, Child, EMPTY, Node};
use super::entry::{ENTRY_BYTES, Entry, LEVELS_MAX, Object};

/// Entries of a node at most: the pages of a leaf.
pub const FANOUT: usize = 1024;
const FANOUT_BITS: u32 = FANOUT.trailing_zeros();
/// Space, height, entry of the root.
const ROW_BYTES: usize = 24;
/// Rows of a part of the directory.
const PART_ROWS: usize = 640;

/// A node that is not in memory, and where its image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The node.
    pub object: Object,
    /// Its image.
    pub entry: Entry,
}

/// A node of the map cannot be what its bytes say.
pub type Malformed = &'static str;

/// A node that a checkpoint has to write.
#[derive(Clone, Copy, Debug)]
pub struct Dirty {
    /// The node.
    pub object: Object,
    /// Bytes of its image to come; 0: it has no entries, and goes.
    pub len: usize,
    /// The image that it has.
    pub stored: Option<Entry>,
}

/// The images that a checkpoint has written, while no root names them.
pub type Pending = HashMap<Object, Entry>;

/// The first page that is behind those of a node; `None` if no number is.
pub fn first_page_behind(level: u8, index: u32) -> Option<u32> {
    let behind = (u64::from(index) + 1) << (FANOUT_BITS * (u32::from(level) + 1));
    u32::try_from(behind).ok()
}

/// The number of a node among those of its level.
fn node_index(level: u8, no: u32) -> u32 {
    no.checked_shr(FANOUT_BITS * (u32::from(level) + 1)).unwrap_or(0)
}

struct Tree {
    /// Level of the root.
    height: u8,
    root: Child,
}

impl Tree {
    fn covers(&self, no: u32) -> bool {
        node_index(self.height, no) == 0
    }
}

#[derive(Default)]
pub struct Map {
    trees: BTreeMap<u32, Tree>,
    /// Nodes in memory.
    loaded: usize,
    /// At most what the dirty ones take.
    dirty: Cost,
}

impl Map {
    /// The image of a page, if it has one. `Err`: the node that says so is absent.
    pub fn find(&self, space: u32, no: u32) -> Result<Option<Entry>, Absent> {
        let Some(tree) = self.trees.get(&space).filter(|tree| tree.covers(no)) else {
            return Ok(None);
        };
        let (mut child, mut level) = (&tree.root, tree.height);
        loop {
            let node = match child {
                Child::Empty => return Ok(None),
                Child::Stored(entry) => {
                    let object = Object::Node { space, level, index: node_index(level, no) };
                    return Err(Absent { object, entry: *entry });
                }
                Child::Loaded(node) => node,
            };
            node.used.store(true, Ordering::Relaxed);
            let slot = node.slot_of(no);
            match &node.body {
                Body::Leaf(entries) => {
                    let bytes = entries.get(slot).unwrap_or(&EMPTY);
                    return Ok(Entry::decode(bytes).expect("checked when it was loaded"));
                }
                Body::Inner(children) => match children.get(slot) {
                    Some(next) => (child, level) = (next, level - 1),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Gives a page another image, or none; returns the one it had. `Err`: a node is absent, and
    /// nothing has changed.
    pub fn set(
        &mut self,
        space: u32,
        no: u32,
        entry: Option<Entry>,
    ) -> Result<Option<Entry>, Absent> {
        let old = self.find(space, no)?;
        if old == entry {
            return Ok(old);
        }
        let tree = self.trees.entry(space).or_insert(Tree { height: 0, root: Child::Empty });
        while !tree.covers(no) {
            tree.height += 1;
            let below = std::mem::replace(&mut tree.root, Child::Empty);
            if !matches!(below, Child::Empty) {
                let mut root = Node::new(tree.height);
                root.body = Body::Inner(vec![below]);
                // Not all of them are on the way to the page.
                root.dirty = true;
                self.dirty.add(1);
                self.loaded += 1;
                tree.root = Child::Loaded(Box::new(root));
            }
        }
        let (mut child, mut level) = (&mut tree.root, tree.height);
        loop {
            if let Child::Empty = child {
                self.loaded += 1;
                *child = Child::Loaded(Box::new(Node::new(level)));
            }
            let Child::Loaded(node) = child else { unreachable!("`find` has passed it") };
            let slot = node.slot_of(no);
            self.dirty.replace(node, node.len().max(slot + 1));
            node.dirty = true;
            match &mut node.body {
                Body::Leaf(entries) => {
                    if entries.len() <= slot {
                        entries.resize(slot + 1, EMPTY);
                    }
                    entries[slot] = Entry::encode(entry);
                    return Ok(old);
                }
                Body::Inner(children) => {
                    if children.len() <= slot {
                        children.resize_with(slot + 1, || Child::Empty);
                    }
                    (child, level) = (&mut children[slot], level - 1);
                }
            }
        }
    }

    /// Puts a node that was absent in its place, unless another thread did so, or the node was
    /// changed meanwhile.
    ///
    /// # Errors
    /// The image is none of this node, or `is_place` says that an image it names lies where none
    /// can.
    pub fn install(
        &mut self,
        absent: Absent,
        image: &[u8],
        is_place: impl Fn(&Entry) -> bool,
    ) -> Result<(), Malformed> {
        let Object::Node { space, level, index } = absent.object else {
            unreachable!("only nodes are absent")
        };
        let node = Node::decode(image, absent.entry)?;
        if node.level != level {
            return Err("a node of another level");
        }
        if !node.each_entry().all(|entry| is_place(&entry)) {
            return Err("an image that it names lies where none can");
        }
        if let Some(child) = self.child_mut(space, level, index)
            && matches!(child, Child::Stored(entry) if *entry == absent.entry)
        {
            *child = Child::Loaded(Box::new(node));
            self.loaded += 1;
        }
        Ok(())
    }

    fn child_mut(&mut self, space: u32, level: u8, index: u32) -> Option<&mut Child> {
        let tree = self.trees.get_mut(&space)?;
        if level > tree.height {
            return None;
        }
        let (mut child, mut at) = (&mut tree.root, tree.height);
        while at > level {
            let Child::Loaded(node) = child else { return None };
            let Body::Inner(children) = &mut node.body else { return None };
            at -= 1;
            let slot = index.checked_shr(FANOUT_BITS * u32::from(at - level)).unwrap_or(0);
            child = children.get_mut(slot as usize % FANOUT)?;
        }
        Some(child)
    }

    /// Marks a node as one to be written, if its image is still `entry`; so the next checkpoint
    /// moves it. Returns whether it is. `Err`: a node above it is absent, or it is itself.
    pub fn touch(&mut self, object: Object, entry: Entry) -> Result<bool, Absent> {
        let Object::Node { space, level, index } = object else { return Ok(false) };
        let Some(tree) = self.trees.get_mut(&space).filter(|tree| tree.height >= level) else {
            return Ok(false);
        };
        // The path is walked twice: marked only if it leads to the image.
        for mark in [false, true] {
            let (mut child, mut at) = (&mut tree.root, tree.height);
            loop {
                let number = index.checked_shr(FANOUT_BITS * u32::from(at - level)).unwrap_or(0);
                let node = match child {
                    Child::Empty => return Ok(false),
                    Child::Stored(stored) if at > level || *stored == entry => {
                        let object = Object::Node { space, level: at, index: number };
                        return Err(Absent { object, entry: *stored });
                    }
                    Child::Stored(_) => return Ok(false),
                    Child::Loaded(node) => node,
                };
                if at == level && node.stored != Some(entry) {
                    return Ok(false);
                }
                if mark {
                    self.dirty.replace(node, node.len());
                    node.dirty = true;
                }
                if at == level {
                    break;
                }
                let Body::Inner(children) = &mut node.body else { return Ok(false) };
                let below = index.checked_shr(FANOUT_BITS * u32::from(at - 1 - level)).unwrap_or(0);
                match children.get_mut(below as usize % FANOUT) {
                    Some(next) => (child, at) = (next, at - 1),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// The nodes whose image is at a place, as far as the nodes above are in memory.
    pub fn nodes_at(&self, is_place: &dyn Fn(&Entry) -> bool) -> Vec<(Object, Entry)> {
        let mut nodes = Vec::new();
        for (space, tree) in &self.trees {
            each_stored((*space, tree.height, 0), &tree.root, &mut |object, entry| {
                if is_place(&entry) {
                    nodes.push((object, entry));
                }
            });
        }
        nodes
    }

    /// The nodes that a checkpoint has to write, children first. They stay as they are until
    /// [`Map::settle`] if the writer's mutex is held until then.
    pub fn dirty(&self) -> Vec<Dirty> {
        let mut dirty = Vec::with_capacity(self.dirty.images as usize);
        for (space, tree) in &self.trees {
            each_dirty((*space, tree.height, 0), &tree.root, &mut dirty);
        }
        dirty
    }

    /// The image of a node that is dirty. Those of its dirty children are among the pending ones.
    pub fn encode(&self, object: Object, pending: &Pending) -> Vec<u8> {
        let Object::Node { space, level, index } = object else { unreachable!("it is a node") };
        let node = self.node(space, level, index).expect("a dirty node is in memory");
        node.encode(|at| {
            let child = Object::Node {
                space,
                level: level.checked_sub(1)?,
                index: index << FANOUT_BITS | at as u32,
            };
            pending.get(&child).copied()
        })
    }

    fn node(&self, space: u32, level: u8, index: u32) -> Option<&Node> {
        let tree = self.trees.get(&space).filter(|tree| tree.height >= level)?;
        let (mut child, mut at) = (&tree.root, tree.height);
        loop {
            let Child::Loaded(node) = child else { return None };
            if at == level {
                return Some(node);
            }
            let Body::Inner(children) = &node.body else { return None };
            at = at.checked_sub(1)?;
            let slot = index.checked_shr(FANOUT_BITS * u32::from(at - level)).unwrap_or(0);
            child = children.get(slot as usize % FANOUT)?;
        }
    }

    /// At most what a checkpoint has to write: dirty nodes and the list of spaces.
    pub fn cost(&self) -> Cost {
        self.dirty + Cost::of_directory(self.trees.len())
    }

    /// At most what a checkpoint has to write after images of these pages (space, number) were set.
    /// Their nodes are in memory.
    pub fn cost_with(&self, pages: impl Iterator<Item = (u32, u32)>) -> Cost {
        // By node: entries that it will have.
        let mut lens: HashMap<Object, usize> = HashMap::new();
        let mut spaces = self.trees.len();
        let mut last = None;
        for (space, no) in pages {
            let tree = self.trees.get(&space);
            if tree.is_none() && last != Some(space) {
                spaces += 1;
            }
            last = Some(space);
            let mut height = tree.map_or(0, |tree| tree.height);
            while node_index(height, no) > 0 {
                height += 1;
            }
            for level in 0..=height {
                let object = Object::Node { space, level, index: node_index(level, no) };
                let slot = (no >> (FANOUT_BITS * u32::from(level))) as usize % FANOUT;
                let len = lens.entry(object).or_default();
                *len = (*len).max(slot + 1);
            }
        }
        let mut cost = self.dirty;
        for (object, len) in lens {
            let Object::Node { space, level, index } = object else {
                unreachable!("all are nodes")
            };
            match self.node(space, level, index) {
                Some(node) => cost.replace(node, len.max(node.len())),
                None => cost.add(len),
            }
        }
        cost + Cost::of_directory(spaces)
    }

    /// Whether a node is still absent, with this image.
    pub fn is_absent(&mut self, absent: &Absent) -> bool {
        let Object::Node { space, level, index } = absent.object else { return false };
        let child = self.child_mut(space, level, index);
        matches!(child, Some(Child::Stored(entry)) if *entry == absent.entry)
    }

    /// A durable root names the pending images: they are what the dirty nodes have.
    pub fn settle(&mut self, pending: &Pending) {
        for (space, tree) in &mut self.trees {
            settle_child(
                (*space, tree.height, 0),
                &mut tree.root,
                &mut (pending, &mut self.loaded),
            );
        }
        self.trees.retain(|_, tree| !matches!(tree.root, Child::Empty));
        self.dirty = Cost::default();
        debug_assert!(self.dirty().is_empty(), "a checkpoint has written all dirty nodes");
        debug_assert_eq!(self.loaded, self.count_loaded(), "the nodes in memory are counted");
    }

    /// The lengths of the parts of [`Map::directory`].
    pub fn directory_lens(&self) -> Vec<usize> {
        let rows = self.trees.values().filter(|tree| !tree.root.is_empty()).count();
        let starts = (0..rows).step_by(PART_ROWS);
        starts.map(|start| (rows - start).min(PART_ROWS) * ROW_BYTES).collect()
    }

    /// The list of spaces, in parts.
    pub fn directory(&self, pending: &Pending) -> Vec<Vec<u8>> {
        let rows = self.trees.iter().filter(|(_, tree)| !tree.root.is_empty());
        let rows: Vec<(&u32, &Tree)> = rows.collect();
        let part = |rows: &[(&u32, &Tree)]| {
            let mut bytes = Vec::with_capacity(rows.len() * ROW_BYTES);
            for (space, tree) in rows {
                bytes.extend(space.to_le_bytes());
                bytes.extend(u32::from(tree.height).to_le_bytes());
                let root = Object::Node { space: **space, level: tree.height, index: 0 };
                let entry = tree.root.stored().or_else(|| pending.get(&root).copied());
                assert!(entry.is_some(), "a tree with entries has an image, or it would be lost");
                bytes.extend(Entry::encode(entry));
            }
            bytes
        };
        rows.chunks(PART_ROWS).map(part).collect()
    }

    /// Adds the spaces of a part of the list. No node is in memory.
    pub fn add_directory(&mut self, part: &[u8]) -> Result<(), Malformed> {
        let (rows, rest) = part.as_chunks::<ROW_BYTES>();
        if !rest.is_empty() {
            return Err("a part of the list of spaces ends in a row");
        }
        for row in rows {
            let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"));
            let entry = Entry::decode(row[8..].try_into().expect("16 bytes"))?;
            let height = u8::try_from(word(4)).ok().filter(|height| *height < LEVELS_MAX);
            let height = height.ok_or("a map is higher than any can be")?;
            let root = entry.map_or(Child::Empty, Child::Stored);
            if self.trees.insert(word(0), Tree { height, root }).is_some() {
                return Err("a space is twice in the list of spaces");
            }
        }
        Ok(())
    }

    /// Forgets nodes that are not dirty until at most `nodes` are in memory, those that no lookup
    /// passed lately first.
    pub fn trim(&mut self, nodes: usize) {
        // One pass forgets that a node was used, the next one the node, and then it is the turn of
        // the one above.
        for _ in 0..2 * LEVELS_MAX {
            let mut excess = self.loaded.saturating_sub(nodes);
            for tree in self.trees.values_mut() {
                let before = excess;
                trim_child(&mut tree.root, &mut excess);
                self.loaded -= before - excess;
            }
        }
        debug_assert_eq!(self.loaded, self.count_loaded(), "the nodes in memory are counted");
    }

    /// The nodes in memory, by a walk over all of them.
    fn count_loaded(&self) -> usize {
        fn below(child: &Child) -> usize {
            let Child::Loaded(node) = child else { return 0 };
            1 + match &node.body {
                Body::Leaf(_) => 0,
                Body::Inner(children) => children.iter().map(below).sum(),
            }
        }
        self.trees.values().map(|tree| below(&tree.root)).sum()
    }

    /// Bytes that the map takes in memory, at most.
    pub fn memory_bytes(&self) -> usize {
        self.loaded * (FANOUT * ENTRY_BYTES + size_of::<Node>()) + self.trees.len() * 64
    }

    /// All spaces that have a page.
    pub fn spaces(&self) -> impl Iterator<Item = u32> {
        self.trees.iter().filter(|(_, tree)| !tree.root.is_empty()).map(|(space, _)| *space)
    }

    /// The last page of a space that has an image.
    pub fn last_page(&self, space: u32) -> Result<Option<u32>, Absent> {
        let Some(tree) = self.trees.get(&space) else { return Ok(None) };
        let (mut child, mut level, mut index) = (&tree.root, tree.height, 0);
        loop {
            let node = match child {
                Child::Empty => return Ok(None),
                Child::Stored(entry) => {
                    return Err(Absent {
                        object: Object::Node { space, level, index },
                        entry: *entry,
                    });
                }
                Child::Loaded(node) => node,
            };
            let Some(last) = node.extent().last() else { return Ok(None) };
            let below = index << FANOUT_BITS | last as u32;
            match &node.body {
                Body::Leaf(_) => return Ok(Some(below)),
                Body::Inner(children) => {
                    (child, level, index) = (&children[last], level - 1, below);
                }
            }
        }
    }

    /// The first page of a space from `no` on that has an image.
    pub fn next_page(&self, space: u32, no: u32) -> Result<Option<(u32, Entry)>, Absent> {
        let mut no = u64::from(no);
        while let Ok(at) = u32::try_from(no) {
            let Some(tree) = self.trees.get(&space).filter(|tree| tree.covers(at)) else {
                return Ok(None);
            };
            if let Some(entry) = self.find(space, at)? {
                return Ok(Some((at, entry)));
            }
            no = tree.skip(at);
        }
        Ok(None)
    }
}

impl Tree {
    /// The first page behind `no` that may have an image: `no` has none.
    fn skip(&self, no: u32) -> u64 {
        let (mut child, mut level) = (&self.root, self.height);
        loop {
            let behind = u64::from(no >> (FANOUT_BITS * u32::from(level)) as u64) + 1;
            let node = match child {
                Child::Loaded(node) => node,
                _ => {
                    return (u64::from(node_index(level, no)) + 1)
                        << (FANOUT_BITS * (u32::from(level) + 1));
                }
            };
            match &node.body {
                Body::Leaf(_) => return u64::from(no) + 1,
                Body::Inner(children) => match children.get(node.slot_of(no)) {
                    Some(Child::Empty) | None => return behind << (FANOUT_BITS * u32::from(level)),
                    Some(next) => (child, level) = (next, level - 1),
                },
            }
        }
    }
}

/// Adds every dirty node, children first.
fn each_dirty((space, level, index): (u32, u8, u32), child: &Child, dirty: &mut Vec<Dirty>) {
    let Child::Loaded(node) = child else { return };
    if !node.dirty {
        return;
    }
    if let Body::Inner(children) = &node.body {
        for (slot, child) in (0..).zip(children) {
            each_dirty((space, level - 1, index << FANOUT_BITS | slot), child, dirty);
        }
    }
    let len = if node.is_empty() { 0 } else { node.image_len() };
    dirty.push(Dirty { object: Object::Node { space, level, index }, len, stored: node.stored });
}

/// The pending images, and how many nodes are in memory.
type Settling<'a> = (&'a Pending, &'a mut usize);

fn settle_child(
    (space, level, index): (u32, u8, u32),
    child: &mut Child,
    settling: &mut Settling<'_>,
) {
    let Child::Loaded(node) = child else { return };
    if !node.dirty {
        return;
    }
    if let Body::Inner(children) = &mut node.body {
        for (slot, child) in (0..).zip(children) {
            settle_child((space, level - 1, index << FANOUT_BITS | slot), child, settling);
        }
    }
    match settling.0.get(&Object::Node { space, level, index }) {
        Some(entry) => (node.stored, node.dirty) = (Some(*entry), false),
        None => {
            assert!(node.is_empty(), "only a node without entries gets no image");
            *child = Child::Empty;
            *settling.1 -= 1;
        }
    }
}

/// Leaves go one by one; an inner node goes when no child of it is in memory.
fn trim_child(child: &mut Child, excess: &mut usize) {
    let Child::Loaded(node) = child else { return };
    if let Body::Inner(children) = &mut node.body {
        for child in &mut *children {
            if *excess == 0 {
                return;
            }
            trim_child(child, excess);
        }
        if children.iter().any(|child| matches!(child, Child::Loaded(_))) {
            return;
        }
    }
    let (true, false, Some(stored)) = (*excess > 0, node.dirty, node.stored) else { return };
    debug_assert!(!node.is_empty(), "a node that a root leads to has entries");
    if !std::mem::take(node.used.get_mut()) {
        *child = Child::Stored(stored);
        *excess -= 1;
    }
}

/// Calls `each` with every node in memory and below such a one that has an image.
fn each_stored(
    (space, level, index): (u32, u8, u32),
    child: &Child,
    each: &mut dyn FnMut(Object, Entry),
) {
    let object = Object::Node { space, level, index };
    match child {
        Child::Empty => {}
        Child::Stored(entry) => each(object, *entry),
        Child::Loaded(node) => {
            node.stored.iter().for_each(|entry| each(object, *entry));
            if let Body::Inner(children) = &node.body {
                for (slot, child) in (0..).zip(children) {
                    each_stored((space, level - 1, index << FANOUT_BITS | slot), child, each);
                }
            }
        }
    }
}
