//! Which statement a thread is working for.
//!
//! A statement that reads fifty rows of a page has used that page once. Replacement counts at most
//! one hit a page a statement, and so needs to tell statements apart: the layer above calls
//! [`begin`] where one begins (a SQL statement; a call, or a cursor's life, of the embedded API).
//! Work outside any statement, such as purge, belongs to the last one that its thread began: at
//! worst a page's second use is taken for its first.
//!
//! Numbers are handed out to threads in blocks, so that beginning a statement touches memory of
//! the thread alone. They wrap, and two statements four billion apart are taken for one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers in a block.
const BLOCK: u32 = 1024;

static NEXT_BLOCK: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// A new statement begins on this thread.
#[inline]
pub fn begin() {
    CURRENT.with(|current| {
        let next = current.get().wrapping_add(1);
        current.set(if next.is_multiple_of(BLOCK) || next == 1 { new_block() } else { next });
    });
}

#[cold]
fn new_block() -> u32 {
    // A block's first number is left out: 0 means no statement, and a multiple of BLOCK says
    // `begin` that its block is used up.
    NEXT_BLOCK.fetch_add(1, Ordering::Relaxed).wrapping_mul(BLOCK).wrapping_add(1)
}

/// The number of this thread's statement; 0 if it never began one.
#[inline]
pub fn current() -> u32 {
    CURRENT.get()
}

/// Does `work` as the statement `number`: how a simulation replays what others did.
pub(crate) fn replay<T>(number: u32, work: impl FnOnce() -> T) -> T {
    let own = CURRENT.replace(number);
    let result = work();
    CURRENT.set(own);
    result
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn statements_of_all_threads_have_numbers_of_their_own() {
        let numbers = || {
            let mut seen = HashSet::new();
            for _ in 0..3 * BLOCK {
                begin();
                assert!(seen.insert(current()), "a number came twice");
                assert_eq!(current(), current());
            }
            seen
        };
        let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(numbers)).collect();
        let mut all = numbers();
        for thread in threads {
            for number in thread.join().unwrap() {
                assert!(number != 0 && all.insert(number), "two threads had {number}");
            }
        }
    }

    #[test]
    fn replaying_leaves_the_own_statement_alone() {
        begin();
        let own = current();
        assert_eq!(replay(17, current), 17);
        assert_eq!(current(), own);
    }
}
