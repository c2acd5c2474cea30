//! The page word under the model checker: every interleaving (up to a bound on preemptions) and
//! every outcome that the memory model allows.
//!
//! `latch.rs` is the product's own file, compiled here against a `sync` module of loom's types.
//! Page bytes are modelled as relaxed atomics: that is what the racy reader does, and the weakest
//! that the writer's plain stores can do once compiled. A lost wake-up shows as a deadlock.
//!
//! `LOOM_MAX_PREEMPTIONS` widens the search.

#![allow(dead_code, reason = "the model uses a part of the module")]

#[allow(clippy::absurd_extreme_comparisons, reason = "the model spins for zero rounds")]
#[path = "../../src/latch.rs"]
mod latch;
mod sync;

use latch::PageWord;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU64, Ordering::Relaxed, Wants};

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(preemptions);
    }
    builder.check(test);
}

/// A page in a frame: two words that are equal except inside a write.
struct Page {
    word: PageWord,
    data: [AtomicU64; 2],
}

impl Page {
    fn resident(value: u64) -> Page {
        let word = PageWord::absent();
        assert!(word.install(0, 0));
        let page = Page { word, data: [AtomicU64::new(value), AtomicU64::new(value)] };
        page.word.unlock_exclusive(true);
        page
    }

    fn write(&self, value: u64) {
        self.data[0].store(value, Relaxed);
        self.data[1].store(value, Relaxed);
    }

    /// Both words, if validation believes them.
    fn read_optimistically(&self, word: &PageWord) -> Option<(u64, u64)> {
        let seen = word.load();
        if seen.frame().is_none() || seen.is_exclusive() {
            return None;
        }
        let both = (self.data[0].load(Relaxed), self.data[1].load(Relaxed));
        word.is_unchanged(seen).then_some(both)
    }
}

/// Bytes that loom watches: any access not ordered by the latch fails the model.
struct Latched {
    word: PageWord,
    value: UnsafeCell<u64>,
}

// SAFETY: the latch under test; loom checks every access.
unsafe impl Sync for Latched {}
// SAFETY: as above.
unsafe impl Send for Latched {}

impl Latched {
    fn new() -> Arc<Latched> {
        let word = PageWord::absent();
        assert!(word.install(0, 0));
        word.unlock_exclusive(true);
        Arc::new(Latched { word, value: UnsafeCell::new(0) })
    }

    fn add_one(&self) {
        self.word.lock_exclusive().unwrap();
        // SAFETY: exclusively latched.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.word.unlock_exclusive(true);
    }

    fn read(&self) -> u64 {
        self.word.lock_shared().unwrap();
        // SAFETY: latched shared.
        let value = self.value.with(|value| unsafe { *value });
        self.word.unlock_shared();
        value
    }
}

#[test]
fn two_writers_and_a_reader_exclude_each_other_and_nobody_sleeps_for_ever() {
    model(2, || {
        let page = Latched::new();
        let other = page.clone();
        let writer = thread::spawn(move || other.add_one());
        let other = page.clone();
        let reader = thread::spawn(move || assert!(other.read() <= 2));
        page.add_one();
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(page.read(), 2);
    });
}

#[test]
fn two_readers_and_a_writer_all_get_their_turn() {
    model(2, || {
        let page = Latched::new();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let page = page.clone();
                thread::spawn(move || page.read())
            })
            .collect();
        page.add_one();
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(page.read(), 1);
    });
}

#[test]
fn three_writers_pass_the_latch_on() {
    model(2, || {
        let page = Latched::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let page = page.clone();
                thread::spawn(move || page.add_one())
            })
            .collect();
        page.add_one();
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(page.read(), 3);
    });
}

#[test]
fn a_downgrade_lets_sleeping_readers_in() {
    model(3, || {
        let page = Latched::new();
        let other = page.clone();
        let reader = thread::spawn(move || other.read());
        page.word.lock_exclusive().unwrap();
        // SAFETY: exclusively latched.
        page.value.with_mut(|value| unsafe { *value = 1 });
        page.word.downgrade(true);
        // The reader needs nothing further from this thread.
        assert!(reader.join().unwrap() <= 1);
        page.word.unlock_shared();
    });
}

#[test]
fn an_optimistic_reader_never_believes_a_torn_read() {
    model(3, || {
        let page = Arc::new(Page::resident(1));
        let other = page.clone();
        let writer = thread::spawn(move || {
            for value in 2..4 {
                other.word.lock_exclusive().unwrap();
                other.write(value);
                other.word.unlock_exclusive(true);
            }
        });
        if let Some((one, two)) = page.read_optimistically(&page.word) {
            assert_eq!(one, two);
        }
        writer.join().unwrap();
        assert_eq!(page.read_optimistically(&page.word), Some((3, 3)));
    });
}

#[test]
fn an_optimistic_reader_never_believes_a_torn_read_of_a_latch_taken_by_trying() {
    model(3, || {
        let page = Arc::new(Page::resident(1));
        let other = page.clone();
        let writer = thread::spawn(move || {
            let seen = other.word.load();
            other.word.try_upgrade(seen, Wants::Exclusive).unwrap();
            other.write(2);
            other.word.downgrade(true);
            other.word.unlock_shared();
            other.word.try_lock(Wants::Exclusive).unwrap();
            other.write(3);
            other.word.unlock_exclusive(true);
        });
        if let Some((one, two)) = page.read_optimistically(&page.word) {
            assert_eq!(one, two);
        }
        writer.join().unwrap();
    });
}

/// Page A leaves its frame, page B is loaded into it and leaves, A comes back into the same frame:
/// a reader that began before must not take B's bytes for A's, nor a mixture for either's.
#[test]
fn evict_and_reload_into_the_same_frame_is_noticed() {
    model(3, || {
        let a = Arc::new(Page::resident(1));
        let b = Arc::new(PageWord::absent());
        let (other_a, other_b) = (a.clone(), b.clone());
        let pool = thread::spawn(move || {
            other_a.word.try_lock(Wants::Exclusive).unwrap();
            let version = other_a.word.evict();
            assert!(other_b.install(0, version));
            other_a.write(9);
            other_b.unlock_exclusive(true);
            other_b.try_lock(Wants::Exclusive).unwrap();
            let version = other_b.evict();
            assert!(other_a.word.install(0, version));
            other_a.write(1);
            other_a.word.unlock_exclusive(true);
        });
        if let Some(both) = a.read_optimistically(&a.word) {
            assert_eq!(both, (1, 1), "page A held nothing else, ever");
        }
        if let Some(both) = a.read_optimistically(&b) {
            assert_eq!(both, (9, 9), "page B held nothing else, ever");
        }
        pool.join().unwrap();
    });
}

/// The reader keeps its word over the whole round trip, and looks at the bytes only at the end.
#[test]
fn a_word_never_comes_back() {
    model(3, || {
        let a = Arc::new(Page::resident(1));
        let seen = a.word.load();
        let other = a.clone();
        let pool = thread::spawn(move || {
            other.word.try_lock(Wants::Exclusive).unwrap();
            let version = other.word.evict();
            assert!(other.word.install(0, version));
            other.write(2);
            other.word.unlock_exclusive(true);
        });
        let one = a.data[0].load(Relaxed);
        if a.word.is_unchanged(seen) {
            assert_eq!(one, 1);
        }
        pool.join().unwrap();
        assert!(!a.word.is_unchanged(seen));
    });
}

#[test]
fn who_waits_for_an_evicted_page_is_woken_and_told() {
    model(2, || {
        let page = Latched::new();
        page.word.lock_exclusive().unwrap();
        let waiters: Vec<_> = [Wants::Shared, Wants::Exclusive]
            .map(|wants| {
                let page = page.clone();
                thread::spawn(move || {
                    let latched = match wants {
                        Wants::Shared => page.word.lock_shared(),
                        Wants::Exclusive => page.word.lock_exclusive(),
                    };
                    assert!(latched.is_none());
                })
            })
            .into_iter()
            .collect();
        page.word.evict();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// Two threads miss the same page: one loads it, the other waits and finds it loaded.
#[test]
fn one_of_two_loaders_wins() {
    model(3, || {
        let page = Arc::new(Latched { word: PageWord::absent(), value: UnsafeCell::new(0) });
        let fetch = |page: &Latched, frame: u32| loop {
            if page.word.lock_shared().is_some() {
                break;
            }
            if page.word.install(frame, 0) {
                // SAFETY: exclusively latched.
                page.value.with_mut(|value| unsafe { *value += 1 });
                page.word.downgrade(true);
                break;
            }
        };
        let other = page.clone();
        let thread = thread::spawn(move || {
            fetch(&other, 1);
            other.word.unlock_shared();
        });
        fetch(&page, 2);
        page.word.unlock_shared();
        thread.join().unwrap();
        assert_eq!(page.read(), 1, "loaded once");
    });
}

/// Two frames, and a page that moves from the first to the second, where page B was before.
struct TwoFrames {
    a: PageWord,
    b: PageWord,
    frames: [[AtomicU64; 2]; 2],
}

impl TwoFrames {
    /// Page A is in frame 0 and holds 1, page B in frame 1 and holds 9.
    fn new() -> Arc<TwoFrames> {
        let (a, b) = (PageWord::absent(), PageWord::absent());
        assert!(a.install(0, 0) && b.install(1, 0));
        let frames = [1, 9].map(|value| [AtomicU64::new(value), AtomicU64::new(value)]);
        a.unlock_exclusive(true);
        b.unlock_exclusive(true);
        Arc::new(TwoFrames { a, b, frames })
    }

    fn write(&self, frame: u32, value: u64) {
        for word in &self.frames[frame as usize] {
            word.store(value, Relaxed);
        }
    }

    fn read(&self, frame: u32) -> (u64, u64) {
        let [one, two] = &self.frames[frame as usize];
        (one.load(Relaxed), two.load(Relaxed))
    }

    fn read_optimistically(&self, word: &PageWord) -> Option<(u64, u64)> {
        let seen = word.load();
        if seen.is_exclusive() {
            return None;
        }
        let both = self.read(seen.frame()?);
        word.is_unchanged(seen).then_some(both)
    }

    /// As the pool does it: copied under the shared latch, moved under the exclusive one.
    fn move_a(&self, version_of_1: u32) -> Option<u32> {
        let seen = self.a.try_lock(Wants::Shared).ok()?;
        let (one, two) = self.read(0);
        self.frames[1][0].store(one, Relaxed);
        self.frames[1][1].store(two, Relaxed);
        self.a.unlock_shared();
        self.a.try_upgrade(seen, Wants::Exclusive)?;
        let version_of_0 = self.a.relocate(1, version_of_1);
        self.a.unlock_exclusive(true);
        Some(version_of_0)
    }
}

/// Page B leaves its frame for A, which moves in; then C comes where A was. Who reads A or B on the
/// way believes nothing else.
#[test]
fn an_optimistic_reader_of_a_page_that_moves_believes_only_its_own() {
    model(3, || {
        let pool = TwoFrames::new();
        let other = pool.clone();
        let mover = thread::spawn(move || {
            other.b.try_lock(Wants::Exclusive).unwrap();
            let version_of_1 = other.b.evict();
            let version_of_0 = other.move_a(version_of_1).unwrap();
            // Page B again, where A was.
            assert!(other.b.install(0, version_of_0));
            other.write(0, 8);
            other.b.unlock_exclusive(true);
        });
        if let Some(both) = pool.read_optimistically(&pool.a) {
            assert_eq!(both, (1, 1), "page A held nothing else, ever");
        }
        if let Some(both) = pool.read_optimistically(&pool.b) {
            assert!(both == (9, 9) || both == (8, 8), "{both:?}");
        }
        mover.join().unwrap();
        assert_eq!(pool.read_optimistically(&pool.a), Some((1, 1)));
        assert_eq!(pool.a.load().frame(), Some(1));
    });
}

/// A writer comes before the copy, between copy and move, or after: its change is never lost, and
/// it is never left asleep.
#[test]
fn a_change_is_not_lost_in_a_move() {
    model(3, || {
        let pool = TwoFrames::new();
        pool.b.try_lock(Wants::Exclusive).unwrap();
        let version_of_1 = pool.b.evict();
        let other = pool.clone();
        let writer = thread::spawn(move || {
            let frame = other.a.lock_exclusive().unwrap().latched_frame();
            assert_eq!(other.read(frame), (1, 1));
            other.write(frame, 2);
            other.a.unlock_exclusive(true);
        });
        let moved = pool.move_a(version_of_1).is_some();
        let frame = pool.a.lock_shared().unwrap().latched_frame();
        assert_eq!(frame == 1, moved);
        assert!(matches!(pool.read(frame), (1, 1) | (2, 2)));
        pool.a.unlock_shared();
        writer.join().unwrap();
        let frame = pool.a.lock_shared().unwrap().latched_frame();
        assert_eq!(pool.read(frame), (2, 2));
    });
}

/// The page goes to the second frame and comes back: the word of before does not.
#[test]
fn a_word_does_not_come_back_by_moving_there_and_back() {
    model(3, || {
        let pool = TwoFrames::new();
        let seen = pool.a.load();
        let other = pool.clone();
        let mover = thread::spawn(move || {
            other.b.try_lock(Wants::Exclusive).unwrap();
            let version_of_1 = other.b.evict();
            let version_of_0 = other.move_a(version_of_1).unwrap();
            other.a.try_lock(Wants::Exclusive).unwrap();
            other.write(0, 5);
            let version = other.a.relocate(0, version_of_0);
            assert_eq!(version, version_of_1 + 2);
            other.a.unlock_exclusive(true);
        });
        let (one, _) = pool.read(0);
        if pool.a.is_unchanged(seen) {
            assert_eq!(one, 1);
        }
        mover.join().unwrap();
        assert!(!pool.a.is_unchanged(seen));
    });
}
