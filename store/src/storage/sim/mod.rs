//! [`SimStorage`]: a disk in memory that fails on purpose, the same way each time for the same
//! seed.
//!
//! # The fault contract
//! Everything below happens on real machines; code that survives it survives them.
//!
//! **Power cut** ([`SimStorage::crash_at`], [`SimStorage::crash`]). Operations that change or sync
//! something are counted. The n-th is interrupted, and from then on every operation fails with a
//! "simulated power cut" error. `crash()` gives the storage that the next start finds:
//! - What was synced is there, unharmed.
//! - Of what was not synced, any mix may be there: of each write any subset of its 512-byte
//!   sectors, whatever became of earlier or later writes. A sector itself is never torn.
//! - A change of length not synced may be lost; then so are all later ones of that file. Sectors
//!   beyond the length that survives are gone; space gained without its data reads as zeroes.
//! - Creations, removals and renames not followed by [`Storage::sync_dir`] may be lost, each on its
//!   own, but changes of one name in order. A rename is atomic. What a removed file had durable is
//!   there if the removal is undone. What lies in a directory whose own creation is lost, is lost.
//! - The interrupted operation counts as not synced: it may have happened in whole, in part, not at
//!   all. So may an interrupted sync.
//!
//! **Kill** ([`SimStorage::kill`]): the process dies, the machine does not. Everything written is
//! there for the next process, but is still not durable: a later power cut may take it.
//!
//! **Errors** ([`SimStorage::inject`], [`SimStorage::set_error_chance`]). A write that fails with
//! EIO leaves each of its sectors old or new; every other failed operation changes nothing. A
//! failed sync poisons the file: later syncs fail until the next life, and what was to be synced
//! may be lost at a crash. Bad sectors ([`Fault::within`]) fail what touches them, also in later
//! lives. A full disk ([`SimStorage::set_capacity`]) fails what would extend a
//! file.
//!
//! **Rot** ([`SimStorage::corrupt`]): flipped bits, durable and seen by every reader.
//!
//! **Lies** ([`FaultKind::Lost`], [`FaultKind::Misplaced`]): a write that is acknowledged and does
//! not happen, or happens elsewhere in the file; a sync that is acknowledged and syncs nothing.
//! Only for those who order them.
//!
//! Not simulated: sectors torn inside; damage to what was synced and not written since, unless by
//! [`SimStorage::corrupt`].
//!
//! # Determinism
//! All chance comes from the seed. Used from one thread, the same operations give the same outcome.
//! Batches run in a shuffled order, as a real device completes them.
//!
//! # Locking
//! One mutex over the whole disk, a leaf: no callback runs under it.

mod bytes;
mod crash;
mod disk;
mod fault;
mod inode;
mod names;
mod random;

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use self::crash::{Crash, torn};
use self::disk::{Course, Disk, Down, Opened, power_cut};
use self::fault::Target;
use self::inode::sector_count;
use self::names::{NameChange, Node};
use super::{
    IoOp, Result, Storage, StorageError, StorageFile, StorageLock, StorageOp, file, name_is_valid,
};

pub use self::fault::{Fault, FaultKind};

/// A simulated disk; clones are handles of the same one.
#[derive(Clone)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
}

impl SimStorage {
    /// An empty disk of unlimited size that demands I/O aligned to 512 bytes.
    pub fn new(seed: u64) -> Self {
        Self::with_alignment(seed, 512)
    }

    /// An empty disk whose files demand I/O aligned in address, length and offset to `alignment`
    /// bytes, as direct I/O does; 1 = not at all.
    pub fn with_alignment(seed: u64, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two() && alignment <= super::BUFFER_ALIGNMENT);
        Self::of(Disk::empty(seed, alignment))
    }

    fn of(disk: Disk) -> Self {
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// How many operations that change or sync something have been tried (reads don't count).
    pub fn operation_count(&self) -> u64 {
        self.disk.lock().operations
    }

    /// Cuts the power in the middle of the operation that [`SimStorage::operation_count`] will
    /// count as number `operation`.
    pub fn crash_at(&self, operation: u64) {
        self.disk.lock().crash_at = Some(operation);
    }

    /// Kills the process before the operation that [`SimStorage::operation_count`] would count as
    /// number `operation`: it fails, as does all that follows. [`SimStorage::kill`] gives what the
    /// next process finds.
    pub fn kill_at(&self, operation: u64) {
        self.disk.lock().kill_at = Some(operation);
    }

    /// Whether the power has been cut (or the process killed): every operation fails.
    pub fn is_down(&self) -> bool {
        self.disk.lock().down.is_some()
    }

    /// Cuts the power now, if it is not cut yet, and gives the disk as the next start finds it.
    /// What survives follows from the seed and the operations so far. Of the faults only those
    /// of places carry over; so do alignment and capacity.
    pub fn crash(&self) -> SimStorage {
        let seed = {
            let disk = self.disk.lock();
            disk.random.clone().next() ^ disk.operations
        };
        self.crash_with(seed)
    }

    /// As [`SimStorage::crash`], with the outcome drawn from `seed`: called again and again, it
    /// shows many outcomes of the same crash.
    pub fn crash_with(&self, seed: u64) -> SimStorage {
        let mut disk = self.disk.lock();
        disk.down = Some(Down::PowerCut);
        let first = disk.first_pending_order();
        let mut crash = Crash::new(seed, first..disk.operations + 1);
        let names = disk.names.after_crash(|order| crash.keeps(order));
        let inodes: Vec<u64> = names.live_files().collect();
        let inodes =
            inodes.into_iter().map(|no| (no, disk.inodes[&no].after_crash(&mut crash))).collect();
        Self::of(disk.next_life(seed, names, inodes))
    }

    /// Kills the process but not the machine: handles of this disk fail from now on; the storage
    /// given back holds everything written so far, synced or not, and keeps what is not synced at
    /// risk.
    pub fn kill(&self) -> SimStorage {
        let mut disk = self.disk.lock();
        assert_ne!(disk.down, Some(Down::PowerCut), "after a power cut only crash() helps");
        disk.down = Some(Down::Killed);
        let inodes = disk.inodes.iter().map(|(&no, inode)| (no, inode.after_kill())).collect();
        let seed = disk.random.next();
        let mut next = disk.next_life(seed, disk.names.clone(), inodes);
        // The changes still at risk keep their order, so the count goes on.
        next.operations = disk.operations;
        next.drop_unreachable();
        Self::of(next)
    }

    /// Arms a fault.
    pub fn inject(&self, fault: Fault) {
        self.disk.lock().faults.inject(fault);
    }

    /// Lets operations of this kind fail by chance, `per_million` times in a million (0 = never).
    pub fn set_error_chance(&self, op: StorageOp, kind: FaultKind, per_million: u32) {
        self.disk.lock().faults.set_chance(op, kind, per_million);
    }

    /// How many operations of this life have met a fault that was armed.
    pub fn faults_struck(&self) -> u64 {
        self.disk.lock().faults.struck
    }

    /// Disarms all faults. Poisoned files stay poisoned.
    pub fn clear_faults(&self) {
        self.disk.lock().faults.clear();
    }

    /// Limits the sum of all files' lengths; `None` = no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        let mut disk = self.disk.lock();
        (disk.capacity_bytes, disk.patience) = (bytes, None);
    }

    /// The same until this number of writes in a row was refused: then space is freed for good. For
    /// one thread, which frees none while it waits.
    pub fn set_capacity_until(&self, bytes: u64, refusals: u32) {
        let mut disk = self.disk.lock();
        (disk.capacity_bytes, disk.patience) = (Some(bytes), Some(refusals));
    }

    /// The sum of the lengths of all files that have a name or are open, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.disk.lock().used_bytes()
    }

    /// Flips the bits of `mask` in the byte at `offset`, as a failing disk would. (Whatever the
    /// file has unsynced is synced on this occasion.)
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64, mask: u8) {
        let mut disk = self.disk.lock();
        let Some(Node::File(inode)) = disk.names.get(name) else { panic!("no file '{name}'") };
        let inode = disk.inodes.get_mut(&inode).expect("a named file has an inode");
        assert!(offset < inode.len(), "'{name}' has no byte {offset}");
        inode.corrupt(offset, mask);
    }

    /// Runs a step of an operation on the locked disk, unless the power is cut or a fault strikes.
    fn step<T>(
        &self,
        op: StorageOp,
        name: &str,
        step: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> Result<T> {
        let failed = |error| StorageError::new(op, name, error);
        if !(name_is_valid(name) || name.is_empty() && op.takes_directory()) {
            return Err(failed(Errno::INVAL.into()));
        }
        self.disk.lock().step(op, Target::whole(name), step).map_err(failed)
    }

    /// Made outside the mutex, which the handle takes when it is dropped.
    fn handle(&self, opened: Opened, name: &str) -> Arc<dyn StorageFile> {
        let Opened { inode, alignment } = opened;
        Arc::new(SimFile { disk: self.disk.clone(), inode, name: name.into(), alignment })
    }
}

impl Storage for SimStorage {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.step(StorageOp::Open, name, |disk| {
            let no = disk.file_named(name)?;
            Ok(disk.open(no))
        })
        .map(|opened| self.handle(opened, name))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.step(StorageOp::Create, name, |disk| {
            let no = disk.create(name)?;
            Ok(disk.open(no))
        })
        .map(|opened| self.handle(opened, name))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.step(StorageOp::Remove, name, |disk| {
            disk.file_named(name)?;
            disk.change_names(NameChange::Remove(name.to_owned()));
            disk.drop_unreachable();
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.step(StorageOp::Rename, from, |disk| {
            if !name_is_valid(to) {
                return Err(Errno::INVAL.into());
            }
            disk.check_parent(from)?;
            disk.check_parent(to)?;
            disk.file_named(from)?;
            match disk.names.get(to) {
                Some(Node::Directory) => return Err(Errno::ISDIR.into()),
                // Renaming a name to itself is no change.
                _ if from == to => return Ok(()),
                _ => {}
            }
            disk.change_names(NameChange::Rename(from.to_owned(), to.to_owned()));
            disk.drop_unreachable();
            Ok(())
        })
    }

    fn exists(&self, name: &str) -> Result<bool> {
        if name.is_empty() {
            return Err(StorageError::new(StorageOp::List, name, Errno::INVAL));
        }
        self.step(StorageOp::List, name, |disk| match disk.check_parent(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(disk.names.get(name).is_some()),
        })
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.step(StorageOp::List, dir, |disk| {
            if disk.names.is_directory(dir) {
                return Ok(disk.names.list(dir));
            }
            disk.file_named(dir).and(Err(Errno::NOTDIR.into()))
        })
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.step(StorageOp::CreateDir, dir, |disk| {
            disk.check_parent(dir)?;
            match disk.names.get(dir) {
                Some(Node::Directory) => {}
                Some(Node::File(_)) => return Err(Errno::EXIST.into()),
                None => disk.change_names(NameChange::Create(dir.to_owned(), Node::Directory)),
            }
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.step(StorageOp::SyncDir, dir, |disk| {
            if !disk.names.is_directory(dir) {
                return disk.file_named(dir).and(Err(Errno::NOTDIR.into()));
            }
            disk.names.sync(dir);
            disk.drop_unreachable();
            Ok(())
        })
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        self.step(StorageOp::Lock, name, |disk| {
            if disk.names.get(name).is_none() {
                disk.create(name)?;
            }
            if disk.locked.insert(name.to_owned()) { Ok(()) } else { Err(Errno::AGAIN.into()) }
        })?;
        Ok(StorageLock::new(SimLock { disk: self.disk.clone(), name: name.into() }))
    }

    fn run_batch(&self, ops: &mut [IoOp<'_>]) {
        let mut turns: Vec<usize> = (0..ops.len()).collect();
        self.disk.lock().random.shuffle(&mut turns);
        for turn in turns {
            ops[turn].run();
        }
    }
}

impl fmt::Debug for SimStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk.lock();
        f.debug_struct("SimStorage")
            .field("operations", &disk.operations)
            .field("down", &disk.down)
            .field("files", &disk.inodes.len())
            .finish()
    }
}

/// Gives the lock of a data directory back.
struct SimLock {
    disk: Arc<Mutex<Disk>>,
    name: Box<str>,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.lock().locked.remove(&*self.name);
    }
}

/// A write in a wrong place is off by a multiple of this many bytes.
const MISPLACED_BY: u64 = 4096;

/// One open file of a [`SimStorage`].
struct SimFile {
    disk: Arc<Mutex<Disk>>,
    inode: u64,
    name: Box<str>,
    alignment: usize,
}

impl SimFile {
    fn check_alignment(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match file::is_aligned(bytes, offset, self.alignment) {
            true => Ok(()),
            false => Err(file::misaligned(bytes, self.alignment)),
        }
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_alignment(bytes, offset)?;
        let disk = &mut *self.disk.lock();
        let course =
            disk.begin(StorageOp::Write, Target::bytes(&self.name, offset, bytes.len()))?;
        let order = disk.operations;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        match course {
            Course::Normal | Course::Interrupted => {
                disk.check_room(self.inode, end)?;
                if !bytes.is_empty() {
                    disk.inode(self.inode).write(bytes, offset, order);
                }
                if matches!(course, Course::Interrupted) { Err(power_cut()) } else { Ok(()) }
            }
            Course::Fails(FaultKind::Lost) => {
                disk.check_room(self.inode, end)?;
                let len = disk.inode(self.inode).len();
                if end > len {
                    // The file has its length all the same.
                    disk.inode(self.inode).set_len(end, order);
                }
                Ok(())
            }
            Course::Fails(FaultKind::Misplaced) => {
                disk.check_room(self.inode, end)?;
                let len = disk.inode(self.inode).len().max(end);
                let places = (len - bytes.len() as u64) / MISPLACED_BY + 1;
                let place = disk.random.below(places) * MISPLACED_BY;
                disk.inode(self.inode).set_len(len, order);
                disk.inode(self.inode).write(bytes, place, order);
                Ok(())
            }
            Course::Fails(kind) => {
                if matches!(kind, FaultKind::Io | FaultKind::Panic) {
                    let keep = torn(&mut disk.random, sector_count(offset, bytes.len()));
                    disk.inode(self.inode).write_some(bytes, offset, order, &keep);
                }
                Err(kind.error())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let disk = &mut *self.disk.lock();
        let course = disk.begin(StorageOp::Sync, Target::whole(&self.name))?;
        let inode = disk.inode(self.inode);
        match course {
            Course::Interrupted => Err(power_cut()),
            _ if inode.poisoned => Err(file::poisoned()),
            Course::Fails(FaultKind::Lost) => Ok(()),
            Course::Fails(kind) => {
                inode.poisoned = true;
                Err(kind.error())
            }
            Course::Normal => {
                inode.sync();
                Ok(())
            }
        }
    }
}

impl StorageFile for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut read = || {
            self.check_alignment(buf, offset)?;
            let target = Target::bytes(&self.name, offset, buf.len());
            self.disk.lock().step(StorageOp::Read, target, |disk| {
                let inode = disk.inode(self.inode);
                if buf.is_empty() {
                    return Ok(());
                }
                if offset.checked_add(buf.len() as u64).is_none_or(|end| end > inode.len()) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                inode.read(buf, offset);
                Ok(())
            })
        };
        read().map_err(|error| StorageError::at(StorageOp::Read, &self.name, offset, error))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write(bytes, offset)
            .map_err(|error| StorageError::at(StorageOp::Write, &self.name, offset, error))
    }

    fn sync_data(&self) -> Result<()> {
        self.sync().map_err(|error| StorageError::new(StorageOp::Sync, &self.name, error))
    }

    fn len(&self) -> Result<u64> {
        let len = |disk: &mut Disk| Ok(disk.inode(self.inode).len());
        let len = self.disk.lock().step(StorageOp::Len, Target::whole(&self.name), len);
        len.map_err(|error| StorageError::new(StorageOp::Len, &self.name, error))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let set = |disk: &mut Disk| {
            disk.check_room(self.inode, len)?;
            let order = disk.operations;
            disk.inode(self.inode).set_len(len, order);
            Ok(())
        };
        let done = self.disk.lock().step(StorageOp::SetLen, Target::whole(&self.name), set);
        done.map_err(|error| StorageError::at(StorageOp::SetLen, &self.name, len, error))
    }

    fn io_alignment(&self) -> usize {
        self.alignment
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        let inode = disk.inode(self.inode);
        inode.handles -= 1;
        if inode.handles == 0 && !disk.names.mention(self.inode) {
            disk.inodes.remove(&self.inode);
        }
    }
}

#[cfg(test)]
mod tests;
