//! Which locks a transaction's newest locking reads took: those that it may still give up, because
//! the statement does not want the row after all.

/// Locking reads that a row takes at most: of an index entry, and of the row that it leads to.
const READS_OF_A_ROW: usize = 2;

/// The locks that the newest locking reads took and that were not held before, if nothing was
/// written since.
///
/// A lock that a later read finds held can't be given up any more: of two readers in one
/// statement, the first may want the row.
#[derive(Default)]
pub(crate) struct FreshLocks {
    /// Number of the newest read.
    read: usize,
    /// What each read took, in the order of their numbers modulo the length.
    locks: [FreshLock; READS_OF_A_ROW],
}

/// What a read took, if anything. The key's memory is used again.
#[derive(Default)]
struct FreshLock {
    tree: Option<u32>,
    key: Vec<u8>,
}

impl FreshLock {
    /// Forgets the lock if it is the one on this key; says whether it was.
    fn take(&mut self, tree: u32, key: &[u8]) -> bool {
        self.tree.take_if(|own| *own == tree && self.key == key).is_some()
    }
}

impl FreshLocks {
    /// Another locking read begins.
    pub(crate) fn begin_read(&mut self) {
        self.read = (self.read + 1) % READS_OF_A_ROW;
        self.locks[self.read].tree = None;
    }

    /// The present read has the lock, or has asked for it. `fresh`: it was not held until now.
    pub(crate) fn note(&mut self, tree: u32, key: &[u8], fresh: bool) {
        for (read, lock) in self.locks.iter_mut().enumerate() {
            if read != self.read {
                lock.take(tree, key);
            } else if fresh {
                lock.tree = Some(tree);
                lock.key.clear();
                lock.key.extend_from_slice(key);
            }
        }
    }

    /// The key of the lock that the present read took, in this tree, unless it is this one: the
    /// read has gone on since.
    pub(crate) fn passed(&self, tree: u32, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let lock = &self.locks[self.read];
        (lock.tree == Some(tree) && key != Some(&lock.key[..])).then(|| lock.key.clone())
    }

    /// Whether the lock is among them; it is not any more.
    pub(crate) fn take(&mut self, tree: u32, key: &[u8]) -> bool {
        self.locks.iter_mut().any(|lock| lock.take(tree, key))
    }

    pub(crate) fn clear(&mut self) {
        self.locks.iter_mut().for_each(|lock| lock.tree = None);
    }
}
