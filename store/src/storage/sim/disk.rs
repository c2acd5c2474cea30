//! The state of a simulated disk, and the course each operation on it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;

use super::super::StorageOp;
use super::fault::{FaultKind, Faults, Target};
use super::inode::Inode;
use super::names::{NameChange, Names, Node, parent_of};
use super::random::Random;

/// The one disk behind all handles.
pub(super) struct Disk {
    pub(super) random: Random,
    pub(super) alignment: usize,
    pub(super) capacity_bytes: Option<u64>,
    /// How many refusals in a row end the limit.
    pub(super) patience: Option<u32>,
    /// Refusals for the limit's sake since the last write that it let pass.
    refusals: u32,
    /// Operations so far that change or sync something; also numbers the changes.
    pub(super) operations: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) kill_at: Option<u64>,
    pub(super) down: Option<Down>,
    pub(super) faults: Faults,
    pub(super) names: Names,
    // Ordered, so that the draws of a crash come in the same order each time.
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    pub(super) locked: BTreeSet<String>,
}

/// A file just opened: what a handle of it needs.
pub(super) struct Opened {
    pub(super) inode: u64,
    pub(super) alignment: usize,
}

/// Why nothing works any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Down {
    PowerCut,
    Killed,
}

/// How the operation at hand is to go.
pub(super) enum Course {
    Normal,
    /// The power fails in the middle of it.
    Interrupted,
    Fails(FaultKind),
}

impl StorageOp {
    /// Whether the operation changes or syncs something, so that a power cut in it may matter.
    pub(super) fn is_counted(self) -> bool {
        use StorageOp as Op;
        match self {
            Op::Open | Op::List | Op::Lock | Op::Read | Op::Len => false,
            Op::Create | Op::Remove | Op::Rename | Op::CreateDir | Op::SyncDir => true,
            Op::Write | Op::Sync | Op::SetLen => true,
        }
    }

    /// Whether the empty name, the root, is meant.
    pub(super) fn takes_directory(self) -> bool {
        matches!(self, StorageOp::List | StorageOp::SyncDir)
    }
}

impl Disk {
    pub(super) fn empty(seed: u64, alignment: usize) -> Disk {
        Disk {
            random: Random::new(seed),
            alignment,
            capacity_bytes: None,
            patience: None,
            refusals: 0,
            operations: 0,
            crash_at: None,
            kill_at: None,
            down: None,
            faults: Faults::default(),
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 0,
            locked: BTreeSet::new(),
        }
    }

    /// The disk of the next process or the next boot.
    pub(super) fn next_life(&self, seed: u64, names: Names, inodes: BTreeMap<u64, Inode>) -> Disk {
        Disk {
            capacity_bytes: self.capacity_bytes,
            patience: self.patience,
            faults: self.faults.of_places(),
            names,
            inodes,
            next_inode: self.next_inode,
            ..Disk::empty(seed, self.alignment)
        }
    }

    /// How the operation is to go; counts it.
    pub(super) fn begin(&mut self, op: StorageOp, target: Target<'_>) -> io::Result<Course> {
        if op.is_counted()
            && self.down.is_none()
            && self.kill_at.is_some_and(|at| at <= self.operations + 1)
        {
            self.down = Some(Down::Killed);
        }
        match self.down {
            None => {}
            Some(Down::PowerCut) => return Err(power_cut()),
            Some(Down::Killed) => return Err(io::Error::other("simulated kill of the process")),
        }
        if op.is_counted() {
            self.operations += 1;
            let name = target.file;
            tracing::trace!(number = self.operations, ?op, name, "simulated operation");
            if self.crash_at.is_some_and(|at| at <= self.operations) {
                self.down = Some(Down::PowerCut);
                return Ok(Course::Interrupted);
            }
        }
        Ok(match self.faults.strike(op, &target, &mut self.random) {
            Some(kind) => Course::Fails(kind),
            None => Course::Normal,
        })
    }

    /// An operation whose failure changes nothing, and which, interrupted, is simply not synced.
    pub(super) fn step<T>(
        &mut self,
        op: StorageOp,
        target: Target<'_>,
        step: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.begin(op, target)? {
            Course::Normal => step(self),
            Course::Interrupted if matches!(op, StorageOp::Sync | StorageOp::SyncDir) => {
                Err(power_cut())
            }
            Course::Interrupted => step(self).and(Err(power_cut())),
            Course::Fails(kind) => Err(kind.error()),
        }
    }

    /// The inode of an open or named file.
    pub(super) fn inode(&mut self, no: u64) -> &mut Inode {
        self.inodes.get_mut(&no).expect("an inode lives while it is open or has a name")
    }

    /// The file of this name; its number.
    pub(super) fn file_named(&self, name: &str) -> io::Result<u64> {
        match self.names.get(name) {
            Some(Node::File(no)) => Ok(no),
            Some(Node::Directory) => Err(Errno::ISDIR.into()),
            None => Err(self.check_parent(name).err().unwrap_or(Errno::NOENT.into())),
        }
    }

    pub(super) fn check_parent(&self, name: &str) -> io::Result<()> {
        match parent_of(name) {
            "" => Ok(()),
            parent => match self.names.get(parent) {
                Some(Node::Directory) => Ok(()),
                Some(Node::File(_)) => Err(Errno::NOTDIR.into()),
                None => Err(Errno::NOENT.into()),
            },
        }
    }

    /// Counts a handle of the file.
    pub(super) fn open(&mut self, inode: u64) -> Opened {
        self.inode(inode).handles += 1;
        Opened { inode, alignment: self.alignment }
    }

    /// Makes an empty file, whose name must be new.
    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        self.check_parent(name)?;
        if self.names.get(name).is_some() {
            return Err(Errno::EXIST.into());
        }
        let no = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(no, Inode::default());
        self.change_names(NameChange::Create(name.to_owned(), Node::File(no)));
        Ok(no)
    }

    pub(super) fn change_names(&mut self, change: NameChange) {
        self.names.change(change, self.operations);
    }

    /// Forgets the files that can't be reached any more, not even after a crash.
    pub(super) fn drop_unreachable(&mut self) {
        let names = &self.names;
        self.inodes.retain(|&no, inode| inode.handles > 0 || names.mention(no));
    }

    /// Fails if the disk has no room for a file to be so long.
    pub(super) fn check_room(&mut self, inode: u64, len: u64) -> io::Result<()> {
        let growth = len.saturating_sub(self.inode(inode).len());
        match self.capacity_bytes {
            Some(capacity) if growth > 0 && self.used_bytes() + growth > capacity => {
                self.refusals += 1;
                if self.patience.is_some_and(|most| self.refusals >= most) {
                    self.capacity_bytes = None;
                }
                Err(Errno::NOSPC.into())
            }
            _ => {
                self.refusals = 0;
                Ok(())
            }
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.live_files().collect();
        let used = self.inodes.iter().filter(|(no, inode)| inode.handles > 0 || named.contains(no));
        used.map(|(_, inode)| inode.len()).sum()
    }

    /// The order of the oldest change that a crash may undo, or of the next one.
    pub(super) fn first_pending_order(&self) -> u64 {
        let inodes = self.inodes.values().filter_map(Inode::first_pending_order);
        inodes.chain(self.names.first_pending_order()).min().unwrap_or(self.operations)
    }
}

pub(super) fn power_cut() -> io::Error {
    io::Error::other("simulated power cut")
}
