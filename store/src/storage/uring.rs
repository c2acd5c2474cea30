//! Batches of reads and writes through io_uring: one system call starts them all.
//!
//! Containers often forbid io_uring (seccomp, `kernel.io_uring_disabled`), hence the probe; a
//! caller that gets `None` uses threads instead. Buffers are not registered with the kernel:
//! registered ones would be pinned, and the pool could not give their memory back.
//!
//! A ring serves one batch at a time, so it needs no lock while it works. Idle rings wait in a list
//! for the next batch, of whatever thread.
//!
//! # Safety of the buffers
//! The kernel uses the buffers between submission and completion. They are borrowed by the caller's
//! operations all that time, because [`Rings::run`] returns only once every submitted operation has
//! completed, and nothing in between can unwind.
//!
//! # When the ring fails
//! It takes nothing more then: what it has is waited for, and the rest goes by system call. That
//! wait ends when the last completion is there, and not before, whatever the ring says meanwhile:
//! to give up would be to hand out buffers that the kernel still writes to. It may well take long,
//! as a system call that reads from a disk which hangs takes long, and is no reason to end the
//! process; the error log says so now and then.
#![expect(unsafe_code, reason = "the kernel is given raw pointers to the buffers of a batch")]

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;

use super::{FileLease, FileUse, IoBuf, IoOp};
use crate::log_throttle::LogThrottle;

/// Operations in flight in one batch.
const RING_ENTRIES: u32 = 128;

/// Rings kept for later batches; each holds a descriptor and a few pages of memory.
const IDLE_RINGS_MAX: usize = 16;

/// Failed waits for a completion between two lines about it, a millisecond each.
const FAILURES_A_LINE: u64 = 10_000;

/// Longer operations go by system call: the kernel's result could not hold their length.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// All rings of a storage.
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    failures: LogThrottle,
}

impl Rings {
    /// `None` where io_uring does not exist, is not allowed, or lacks plain reads and writes.
    pub(super) fn probe() -> Option<Self> {
        let ring = new_ring().ok()?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        let usable =
            probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE);
        usable.then(|| Self { idle: Mutex::new(vec![ring]), failures: LogThrottle::default() })
    }

    /// Runs the operations, all concurrently, and waits for all.
    pub(super) fn run(&self, ops: &mut [IoOp<'_>]) {
        let idle = self.idle.lock().pop();
        let Some(ring) = idle.or_else(|| new_ring().ok()) else {
            // Out of descriptors or memory, for now.
            ops.iter_mut().for_each(IoOp::run);
            return;
        };
        let mut batch = Batch::new(ring, Kernel, ops);
        match batch.run() {
            Ok(()) => {
                let mut idle = self.idle.lock();
                if idle.len() < IDLE_RINGS_MAX {
                    idle.push(batch.ring);
                }
            }
            Err(error) => {
                if let Some(unsaid) = self.failures.is_due(Instant::now()) {
                    tracing::warn!(%error, unsaid, "io_uring failed: a batch went on by system calls");
                }
            }
        }
    }
}

fn new_ring() -> io::Result<IoUring> {
    // Completions are only looked for by the thread that waits for them: no interrupts needed.
    // Kernels before 5.19 don't know the flag.
    IoUring::builder()
        .setup_coop_taskrun()
        .build(RING_ENTRIES)
        .or_else(|_| IoUring::new(RING_ENTRIES))
}

/// The calls that may fail.
trait Enter {
    /// Submits what is queued, and waits for a completion.
    fn submit_and_wait(&mut self, ring: &IoUring) -> io::Result<()>;
    /// Waits for a completion of what was submitted.
    fn wait(&mut self, ring: &IoUring) -> io::Result<()>;
    /// Passes a moment after a failed wait.
    fn rest(&mut self);
}

/// The real ones.
struct Kernel;

impl Enter for Kernel {
    fn submit_and_wait(&mut self, ring: &IoUring) -> io::Result<()> {
        ring.submit_and_wait(1).map(drop)
    }

    fn wait(&mut self, ring: &IoUring) -> io::Result<()> {
        /// `IORING_ENTER_GETEVENTS`: wait for as many as said.
        const GETEVENTS: u32 = 1;
        // SAFETY: nothing is submitted, and no argument is given.
        unsafe { ring.submitter().enter::<()>(0, 1, GETEVENTS, None).map(drop) }
    }

    fn rest(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A batch on its way through a ring.
struct Batch<'b, 'a, E> {
    ring: IoUring,
    enter: E,
    ops: &'b mut [IoOp<'a>],
    /// Keeps each operation's file open; `None` = not for the ring.
    leases: Vec<Option<FileLease>>,
    /// The first operation not yet in the submission queue.
    next: usize,
    /// Operations that the kernel has taken from the queue.
    submitted: usize,
    completed: usize,
    /// Operations that must be run again by system call.
    retry: Vec<usize>,
}

impl<'b, 'a, E: Enter> Batch<'b, 'a, E> {
    /// Does all that may allocate, or call code of others, before anything is in flight.
    fn new(ring: IoUring, enter: E, ops: &'b mut [IoOp<'a>]) -> Self {
        let lease = |op: &IoOp<'_>| {
            let purpose = match op.buf {
                IoBuf::Read(_) => FileUse::Read,
                IoBuf::Write(_) => FileUse::Write,
            };
            let fits = op.buf.len() <= OPERATION_BYTES_MAX;
            if fits { op.file.lease(purpose) } else { None }
        };
        let leases = ops.iter().map(lease).collect();
        let retry = Vec::with_capacity(ops.len());
        Self { ring, enter, ops, leases, next: 0, submitted: 0, completed: 0, retry }
    }

    /// Runs all operations. On an error the ring is not to be used again.
    fn run(&mut self) -> io::Result<()> {
        let mut ring = Ok(());
        while ring.is_ok() && self.completed < self.ops.len() {
            self.fill_queue();
            ring = self.submit();
        }
        self.finish();
        // Nothing is in flight. What follows asks for its files anew, and may need the descriptors.
        self.leases.clear();
        // A transfer that failed or fell short is done once more, alone, by the path that knows how
        // to resume, to give up direct I/O, and to tell the error.
        let rest = std::mem::take(&mut self.retry);
        for index in rest {
            self.ops[index].run();
        }
        // Of a ring that takes nothing more: what stands in the queue or never came there is the
        // tail of the batch.
        self.ops[self.submitted..].iter_mut().for_each(IoOp::run);
        ring
    }

    /// Moves operations into the submission queue, as many as have room.
    fn fill_queue(&mut self) {
        let mut queue = self.ring.submission();
        while self.next < self.ops.len()
            // Never more in flight than the completion queue holds.
            && self.next - self.completed < RING_ENTRIES as usize
        {
            let op = &mut self.ops[self.next];
            let fd =
                self.leases[self.next].as_ref().map(|lease| types::Fd(lease.as_fd().as_raw_fd()));
            let entry = match (fd, &mut op.buf) {
                (Some(fd), IoBuf::Read(buf)) => {
                    opcode::Read::new(fd, buf.as_mut_ptr(), buf.len() as u32)
                        .offset(op.offset)
                        .build()
                }
                (Some(fd), IoBuf::Write(bytes)) => {
                    opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32)
                        .offset(op.offset)
                        .build()
                }
                // Takes its turn in the ring's books all the same, and is run at the end.
                (None, _) => opcode::Nop::new().build(),
            };
            let entry = entry.user_data(self.next as u64);
            // SAFETY: the buffer is borrowed by `self.ops`, and the descriptor kept open by
            // `self.leases`, for longer than the operation can be in flight, as the module's
            // documentation explains; the buffers of different operations are distinct because each
            // is borrowed by its own operation.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            self.next += 1;
        }
    }

    /// Submits what is queued, waits for a completion, and takes note of all there are.
    fn submit(&mut self) -> io::Result<()> {
        let queued = self.next - self.submitted;
        let outcome = self.enter.submit_and_wait(&self.ring);
        // The queue itself shows what the kernel took, however the call ended.
        self.submitted += queued - self.ring.submission().len();
        self.reap();
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns when nothing is in flight any more.
    fn finish(&mut self) {
        let mut failures: u64 = 0;
        while self.completed < self.submitted {
            let outcome = self.enter.wait(&self.ring);
            let before = self.completed;
            self.reap();
            let Err(error) = outcome else { continue };
            if self.completed > before || error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            // Even a ring that answers nothing shows what has completed.
            failures += 1;
            if failures.is_multiple_of(FAILURES_A_LINE) {
                let left = self.submitted - self.completed;
                // Written without a macro that could panic.
                let _ = writeln!(
                    io::stderr(),
                    "io_uring ({error}): waiting for {left} reads or writes to complete"
                );
            }
            self.enter.rest();
        }
    }

    fn reap(&mut self) {
        for completion in self.ring.completion() {
            let index = completion.user_data() as usize;
            let len = self.ops[index].buf.len();
            // A no-op answers 0, and so is run again too (an empty transfer needs no run).
            if usize::try_from(completion.result()) == Ok(len) {
                self.ops[index].result = Ok(());
            } else {
                self.retry.push(index);
            }
            self.completed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{FileOptions, FileStorage, Storage};

    /// Takes the first operations, then fails for so long; when it has, somebody feeds the pipe
    /// that is read from.
    struct Failing<'f> {
        takes: bool,
        failures: u32,
        pipe: &'f std::fs::File,
    }

    impl Enter for Failing<'_> {
        fn submit_and_wait(&mut self, ring: &IoUring) -> io::Result<()> {
            match std::mem::replace(&mut self.takes, false) {
                true => ring.submit().map(drop),
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        }

        fn wait(&mut self, _: &IoUring) -> io::Result<()> {
            self.failures += 1;
            if self.failures == 25_000 {
                self.pipe.write_all(b"late").unwrap();
            }
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn rest(&mut self) {
            // So that the kernel gets at this thread.
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_ring_that_fails_is_waited_for_and_the_rest_goes_by_system_calls() {
        if Rings::probe().is_none() {
            tidepool_skip::skip("io_uring is not allowed here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = FileOptions { direct_io: false, ..FileOptions::default() };
        let storage = FileStorage::new(dir.path(), options).unwrap();
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let pipe = storage.open("pipe").unwrap();
        let feed = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let file = storage.create("file").unwrap();
        file.write_at(&[7; 300], 0).unwrap();
        for takes in [true, false] {
            let mut bytes = [0; 300];
            let mut late = [0; 4];
            // More than the ring takes at once. The pipe is first, and holds it up.
            let mut ops: Vec<IoOp<'_>> = Vec::new();
            if takes {
                ops.push(IoOp::read(&*pipe, &mut late, 0));
            }
            let reads = bytes.chunks_mut(1).zip(0..);
            ops.extend(reads.map(|(byte, at)| IoOp::read(&*file, byte, at)));
            let enter = Failing { takes, failures: 0, pipe: &feed };
            let mut batch = Batch::new(new_ring().unwrap(), enter, &mut ops);
            batch.run().unwrap_err();
            assert!(!takes || batch.enter.failures >= 25_000);
            assert!(ops.iter().all(|op| op.result.is_ok()));
            drop(ops);
            assert_eq!((bytes, &late), ([7; 300], if takes { b"late" } else { &[0; 4] }));
        }
    }
}
