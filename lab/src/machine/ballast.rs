//! Anonymous memory that is taken and given back on command, as a neighbour's heap is.
//!
//! One mapping, of which the first `held` bytes are in use. A `Vec` would not do: the allocator
//! keeps what is freed.

use std::ffi::c_void;

use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE: usize = 4096;

/// A block of memory of which a beginning is resident.
#[derive(Debug)]
pub struct Ballast {
    base: *mut u8,
    capacity: usize,
    held: usize,
}

impl Ballast {
    /// Reserves addresses for `capacity` bytes; takes no memory.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(capacity: usize) -> std::io::Result<Ballast> {
        let capacity = capacity.next_multiple_of(PAGE).max(PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                capacity,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        Ok(Ballast { base: base.cast(), capacity, held: 0 })
    }

    /// Makes the first `size` bytes resident and gives the rest back at once.
    ///
    /// # Errors
    /// If the system refuses to take memory back.
    pub fn hold(&mut self, size: usize) -> std::io::Result<()> {
        let size = size.next_multiple_of(PAGE).min(self.capacity);
        if size < self.held {
            // SAFETY: the range lies in our mapping, and no reference into it exists: it is only
            // written through `write`, by pointer.
            unsafe {
                let start = self.base.add(size).cast::<c_void>();
                rustix::mm::madvise(start, self.held - size, Advice::LinuxDontNeed)?;
            }
        }
        let from = self.held.min(size);
        self.held = size;
        self.write(from, size);
        Ok(())
    }

    /// Uses all that is held, as a living program would: cold memory would be swapped out before
    /// anything else.
    pub fn touch(&mut self) {
        self.write(0, self.held);
    }

    fn write(&mut self, from: usize, to: usize) {
        for offset in (from..to).step_by(PAGE) {
            // SAFETY: offset < held ≤ capacity, so the byte is in our writable mapping; volatile,
            // so that it is not optimised away.
            unsafe { self.base.add(offset).write_volatile(1) };
        }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and not used afterwards.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use super::Ballast;
    use crate::machine::counters::resident_bytes;

    #[test]
    fn memory_is_taken_and_given_back() {
        const SIZE: usize = 256 << 20;
        let own = || resident_bytes(std::process::id()).unwrap();
        let before = own();
        let mut ballast = Ballast::new(SIZE).unwrap();
        ballast.hold(SIZE).unwrap();
        let full = own();
        assert!(full >= before + (SIZE as u64) * 3 / 4, "{before} → {full}");
        ballast.hold(SIZE / 8).unwrap();
        ballast.touch();
        let less = own();
        assert!(less <= full - (SIZE as u64) / 2, "{full} → {less}");
    }
}
