//! One simulated file: its bytes as programs see them, as the disk surely holds them, and the
//! changes between the two, of which a crash keeps what it likes.

use std::sync::Arc;

use super::bytes::SparseBytes;

/// What the disk writes atomically, in bytes.
pub(super) const SECTOR: u64 = 512;

/// A change of contents that has not been synced.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLen(u64),
}

#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    /// Position in the storage's order of all changes.
    order: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    live: SparseBytes,
    durable: SparseBytes,
    pending: Vec<Pending>,
    /// Set by a failed sync: later ones fail too.
    pub(super) poisoned: bool,
    /// Open handles.
    pub(super) handles: u32,
}

/// Decides what a crash keeps, change by change in order; see [`Inode::after_crash`].
pub(super) trait Survival {
    /// Whether this change of length survives.
    fn set_len(&mut self, order: u64) -> bool;
    /// Which sectors of a write of `sectors` sectors survive: called once for each write.
    fn write(&mut self, order: u64, sectors: usize) -> Vec<bool>;
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.live.len()
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        self.live.read(buf, offset);
    }

    pub(super) fn set_len(&mut self, len: u64, order: u64) {
        if len != self.live.len() {
            self.live.set_len(len);
            self.pending.push(Pending { change: Change::SetLen(len), order });
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64, order: u64) {
        let end = offset + bytes.len() as u64;
        if end > self.live.len() {
            self.set_len(end, order);
        }
        self.live.write(bytes, offset);
        self.pending.push(Pending { change: Change::Write { offset, bytes: bytes.into() }, order });
    }

    /// Writes only the sectors that `keep` says, in their order.
    pub(super) fn write_some(&mut self, bytes: &[u8], offset: u64, order: u64, keep: &[bool]) {
        for ((start, end), &keep) in sectors(offset, bytes.len()).zip(keep) {
            if keep {
                self.write(&bytes[start..end], offset + start as u64, order);
            }
        }
    }

    /// The order of the oldest change that a crash may undo.
    pub(super) fn first_pending_order(&self) -> Option<u64> {
        self.pending.first().map(|pending| pending.order)
    }

    /// Makes everything written durable.
    pub(super) fn sync(&mut self) {
        for Pending { change, .. } in self.pending.drain(..) {
            match change {
                Change::SetLen(len) => self.durable.set_len(len),
                Change::Write { offset, bytes } => self.durable.write(&bytes, offset),
            }
        }
        debug_assert_eq!(self.durable.len(), self.live.len());
    }

    /// Flips bits in one byte, on the disk and in every view of it.
    pub(super) fn corrupt(&mut self, offset: u64, mask: u8) {
        self.sync();
        let mut byte = [0];
        self.live.read(&mut byte, offset);
        let byte = [byte[0] ^ mask];
        self.live.write(&byte, offset);
        self.durable.write(&byte, offset);
    }

    /// The file after a crash. Changes of length are in the file system's journal: once one is
    /// lost, so are all later ones. Sectors are on their own, and those beyond the length that
    /// survives are lost with it.
    pub(super) fn after_crash(&self, survival: &mut impl Survival) -> Inode {
        let mut image = self.durable.clone();
        let mut length_lost = false;
        for Pending { change, order } in &self.pending {
            match change {
                Change::SetLen(len) => {
                    length_lost |= !survival.set_len(*order);
                    if !length_lost {
                        image.set_len(*len);
                    }
                }
                Change::Write { offset, bytes } => {
                    let count = sectors(*offset, bytes.len()).count();
                    let keep = survival.write(*order, count);
                    for ((start, end), keep) in sectors(*offset, bytes.len()).zip(keep) {
                        let at = offset + start as u64;
                        let inside = image.len().saturating_sub(at).min((end - start) as u64);
                        if keep && inside > 0 {
                            image.write(&bytes[start..start + inside as usize], at);
                        }
                    }
                }
            }
        }
        Inode { live: image.clone(), durable: image, ..Inode::default() }
    }

    /// The file as the next process finds it after this one has been killed: the kernel still holds
    /// what was written, and a power cut can still take it.
    pub(super) fn after_kill(&self) -> Inode {
        Inode { handles: 0, poisoned: false, ..self.clone() }
    }
}

/// Number of sectors that `len` bytes at `offset` touch.
pub(super) fn sector_count(offset: u64, len: usize) -> usize {
    sectors(offset, len).count()
}

/// The ranges of a write's bytes that fall into one sector each.
fn sectors(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == len {
            return None;
        }
        let to_border = SECTOR - (offset + start as u64) % SECTOR;
        let end = len.min(start + to_border as usize);
        Some((std::mem::replace(&mut start, end), end))
    })
}
