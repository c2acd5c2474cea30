//! Batches of reads and writes through io_uring: one system call starts them all.
//!
//! Containers often forbid io_uring (seccomp, `kernel.io_uring_disabled`), hence the probe; whoever
//! gets `None` uses threads instead. Buffers are not registered with the kernel: registered ones
//! would be pinned, and the pool could not give their memory back.
//!
//! A ring serves one batch at a time, so it needs no lock while it works. Idle rings wait in a list
//! for the next batch, of whatever thread.
//!
//! # Safety of the buffers
//! The kernel uses the buffers between submission and completion. They are borrowed by the caller's
//! operations all that time, because [`Rings::run`] returns only once every submitted operation has
//! completed, and nothing in between can unwind. If the kernel stopped delivering completions, the
//! process would have to end; see [`Batch::wait`].
#![expect(unsafe_code, reason = "the kernel is given raw pointers to the buffers of a batch")]

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{FileLease, FileUse, IoBuf, IoOp};

/// Operations in flight in one batch.
const RING_ENTRIES: u32 = 128;

/// Rings kept for later batches; each holds a descriptor and a few pages of memory.
const IDLE_RINGS_MAX: usize = 16;

/// Longer operations go by system call: the kernel's result could not hold their length.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// All rings of a storage.
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
}

impl Rings {
    /// `None` where io_uring does not exist, is not allowed, or lacks plain reads and writes.
    pub(super) fn probe() -> Option<Self> {
        let ring = new_ring().ok()?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        let usable =
            probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE);
        usable.then(|| Self { idle: Mutex::new(vec![ring]) })
    }

    /// Runs the operations, all concurrently, and waits for all.
    pub(super) fn run(&self, ops: &mut [IoOp<'_>]) {
        let idle = self.idle.lock().pop();
        let Some(ring) = idle.or_else(|| new_ring().ok()) else {
            // Out of descriptors or memory, for now.
            ops.iter_mut().for_each(IoOp::run);
            return;
        };
        let mut batch = Batch::new(ring, ops);
        if batch.run() {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_RINGS_MAX {
                idle.push(batch.ring);
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

/// A batch on its way through a ring.
struct Batch<'b, 'a> {
    ring: IoUring,
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

impl<'b, 'a> Batch<'b, 'a> {
    /// Does all that may allocate, or call code of others, before anything is in flight.
    fn new(ring: IoUring, ops: &'b mut [IoOp<'a>]) -> Self {
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
        Self { ring, ops, leases, next: 0, submitted: 0, completed: 0, retry }
    }

    /// Whether the ring may be used again.
    fn run(&mut self) -> bool {
        let mut usable = true;
        while usable && self.completed < self.ops.len() {
            self.fill_queue();
            usable = self.wait();
        }
        // Nothing is in flight. What follows asks for its files anew, and may need the descriptors.
        self.leases.clear();
        // A transfer that failed or fell short is done once more, alone, by the path that knows how
        // to resume, to give up direct I/O, and to tell the error.
        let rest = std::mem::take(&mut self.retry);
        for index in rest {
            self.ops[index].run();
        }
        if !usable {
            // The ring takes nothing more, and nothing is in flight. What stands in the queue or
            // never came there is the tail of the batch.
            self.ops[self.submitted..].iter_mut().for_each(IoOp::run);
        }
        usable
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
            // SAFETY: the buffer is borrowed by `self.ops`, and the descriptor kept open by `self.leases`, for longer than the
            // operation can be in flight, as the module's documentation explains; the buffers of
            // different operations are distinct because each is borrowed by its own operation.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            self.next += 1;
        }
    }

    /// Submits what is queued, waits for a completion, and takes note of all there are. False: the
    /// ring is of no use any more, and nothing is in flight.
    fn wait(&mut self) -> bool {
        let mut failures = 0;
        loop {
            let queued = self.next - self.submitted;
            let outcome = self.ring.submit_and_wait(1);
            // The queue itself tells what the kernel took, however the call ended.
            self.submitted += queued - self.ring.submission().len();
            let before = self.completed;
            self.reap();
            let error = match outcome {
                Ok(_) => return true,
                Err(_) if self.completed > before => return true,
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => continue,
                Err(error) => error,
            };
            if self.submitted == self.completed {
                tracing::warn!(%error, "io_uring fails: this batch goes on by system calls");
                return false;
            }
            // Short of memory, say. The kernel still writes into the buffers: there is no way
            // back to the caller without the completions.
            failures += 1;
            if failures > 10_000 {
                // Written without a macro that could panic.
                let _ = writeln!(io::stderr(), "io_uring delivers no completions: {error}");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(1));
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
