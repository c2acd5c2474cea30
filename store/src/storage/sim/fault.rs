//! Faults to order: which operation, on which files and where in them, from when on, how often,
//! with what error.

use std::io;
use std::ops::Range;

use rustix::io::Errno;

use super::super::StorageOp;
use super::random::Random;

/// The error that an injected fault gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `EIO`: the device failed. A write that fails so leaves each of its sectors old or new.
    Io,
    /// `ENOSPC`: the disk is full; nothing has changed.
    NoSpace,
    /// `EROFS`: the file system has been remounted read-only; nothing has changed.
    ReadOnly,
    /// No error: a write is acknowledged, and the bytes of before stay; a sync is acknowledged, and
    /// syncs nothing. For writes and syncs alone.
    Lost,
    /// No error: a write is acknowledged, and lands elsewhere in the file. For writes alone.
    Misplaced,
    /// No error: the program panics in the operation, which is a bug in it. As with `Io`, a
    /// write may be half done.
    Panic,
}

impl FaultKind {
    pub(super) fn error(self) -> io::Error {
        match self {
            FaultKind::Io => Errno::IO,
            FaultKind::NoSpace => Errno::NOSPC,
            FaultKind::ReadOnly => Errno::ROFS,
            FaultKind::Panic => panic!("simulated bug"),
            FaultKind::Lost | FaultKind::Misplaced => panic!("a fault of writes or syncs alone"),
        }
        .into()
    }
}

/// An error to inject. Without further orders it strikes the operation once, on any file, next
/// time.
///
/// ```
/// use tidepool_store::storage::{Fault, FaultKind, SimStorage, StorageOp};
/// let sim = SimStorage::new(1);
/// sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("redo/").skip(2).times(3));
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    op: StorageOp,
    kind: FaultKind,
    file_prefix: String,
    /// Bytes of the file.
    place: Option<Range<u64>>,
    skip: u64,
    times: u64,
}

impl Fault {
    /// A fault of this operation.
    pub fn new(op: StorageOp, kind: FaultKind) -> Self {
        Self { op, kind, file_prefix: String::new(), place: None, skip: 0, times: 1 }
    }

    /// Only on files whose name starts so.
    pub fn on(mut self, file_prefix: impl Into<String>) -> Self {
        self.file_prefix = file_prefix.into();
        self
    }

    /// Only reads or writes that touch these bytes: bad sectors. A restart does not disarm such a
    /// fault.
    pub fn within(mut self, place: Range<u64>) -> Self {
        self.place = Some(place);
        self
    }

    /// Lets this many matching operations pass first.
    pub fn skip(mut self, operations: u64) -> Self {
        self.skip = operations;
        self
    }

    /// Strikes this many times.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Strikes until the faults are cleared.
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    fn concerns(&self, op: StorageOp, target: &Target<'_>) -> bool {
        let touches =
            |place: &Range<u64>| place.start < target.bytes.end && target.bytes.start < place.end;
        self.op == op
            && target.file.starts_with(&self.file_prefix)
            && self.place.as_ref().is_none_or(touches)
    }
}

/// What an operation is about.
pub(super) struct Target<'a> {
    pub file: &'a str,
    /// What it reads or writes; empty for any other operation.
    pub bytes: Range<u64>,
}

impl<'a> Target<'a> {
    /// A file or directory as a whole.
    pub fn whole(file: &'a str) -> Target<'a> {
        Target { file, bytes: 0..0 }
    }

    /// `len` bytes of a file.
    pub fn bytes(file: &'a str, offset: u64, len: usize) -> Target<'a> {
        Target { file, bytes: offset..offset.saturating_add(len as u64) }
    }
}

/// A fault that strikes by chance.
#[derive(Clone, Copy, Debug)]
struct Chance {
    op: StorageOp,
    kind: FaultKind,
    per_million: u32,
}

/// All faults armed at present.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    ordered: Vec<Fault>,
    chances: Vec<Chance>,
    /// How many operations they have struck.
    pub(super) struck: u64,
}

impl Faults {
    pub(super) fn inject(&mut self, fault: Fault) {
        self.ordered.push(fault);
    }

    pub(super) fn set_chance(&mut self, op: StorageOp, kind: FaultKind, per_million: u32) {
        self.chances.retain(|chance| (chance.op, chance.kind) != (op, kind));
        if per_million > 0 {
            self.chances.push(Chance { op, kind, per_million });
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { struck: self.struck, ..Self::default() };
    }

    /// Those that a restart does not disarm.
    pub(super) fn of_places(&self) -> Faults {
        let ordered = self.ordered.iter().filter(|fault| fault.place.is_some()).cloned();
        Faults { ordered: ordered.collect(), ..Faults::default() }
    }

    /// The fault that strikes this operation, if any. Each match counts for each fault it passes.
    pub(super) fn strike(
        &mut self,
        op: StorageOp,
        target: &Target<'_>,
        random: &mut Random,
    ) -> Option<FaultKind> {
        let mut struck = None;
        for fault in &mut self.ordered {
            if !fault.concerns(op, target) || struck.is_some() {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
            } else {
                fault.times = fault.times.saturating_sub(u64::from(fault.times != u64::MAX));
                struck = Some(fault.kind);
            }
        }
        self.ordered.retain(|fault| fault.times > 0);
        if struck.is_none() {
            for chance in &self.chances {
                if chance.op == op && random.chance(chance.per_million.into(), 1_000_000) {
                    struck = Some(chance.kind);
                }
            }
        }
        self.struck += u64::from(struck.is_some());
        struck
    }
}
