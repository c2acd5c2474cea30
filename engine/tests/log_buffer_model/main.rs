//! The redo log's buffer under the model checker: every interleaving (up to a bound on preemptions)
//! and every outcome that the memory model allows.
//!
//! `buffer.rs` is the product's own file, compiled here against loom's atomics and mutexes.
//! `LOOM_MAX_PREEMPTIONS` widens the search.

#![allow(dead_code, reason = "the model uses a part of the module")]

#[path = "../../src/redo/buffer.rs"]
mod buffer;
mod sync;

use buffer::LogBuffer;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU64, Mutex, Ordering, set_home};

/// Where the log goes on.
const START: u64 = 100;
/// A buffer of one part, and one of two.
const ONE_PART: usize = 16 << 10;
const TWO_PARTS: usize = 32 << 10;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(3);
    }
    builder.check(test);
}

/// Appends a frame of `len` bytes; `mark` runs as the marking of its pages does.
fn append(buffer: &LogBuffer, len: usize, mark: impl FnOnce(u64)) -> u64 {
    let mut part = buffer.part_with_room(len).expect("the buffer is large enough");
    let start = part.reserve(len);
    part.put(start, len, |out| out.resize(out.len() + len, len as u8));
    mark(start);
    start
}

/// Takes all up to the present end, and looks at it: each frame is whole.
fn take(buffer: &LogBuffer, from: u64) -> u64 {
    let to = buffer.end();
    let mut out = vec![0; (to - from) as usize];
    buffer.take(from, to, &mut out);
    let mut rest = &out[..];
    while let Some(&len) = rest.first() {
        assert_ne!(len, 0, "nothing is where a frame should begin");
        let (frame, behind) = rest.split_at(usize::from(len));
        assert!(frame.iter().all(|byte| *byte == len), "{out:?}");
        rest = behind;
    }
    to
}

fn writer_beside_appenders(bytes: usize, homes: [usize; 2]) {
    let buffer = Arc::new(LogBuffer::new(START, bytes, 1));
    let appenders = [(homes[0], 3), (homes[1], 2)].map(|(home, len)| {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || {
            set_home(home);
            append(&buffer, len, |_| ());
        })
    });
    let written = take(&buffer, START);
    for appender in appenders {
        appender.join().unwrap();
    }
    assert_eq!(take(&buffer, written), START + 5);
    assert_eq!(buffer.frames(), 2);
}

#[test]
fn the_writer_finds_no_hole_in_two_parts() {
    model(|| writer_beside_appenders(TWO_PARTS, [0, 1]));
}

#[test]
fn the_writer_finds_no_hole_where_appenders_meet() {
    model(|| writer_beside_appenders(ONE_PART, [0, 0]));
    model(|| writer_beside_appenders(TWO_PARTS, [1, 1]));
}

/// The checkpoint's end: what begins before it is marked.
#[test]
fn pages_of_all_frames_before_a_settled_end_are_marked() {
    model(|| {
        let shared = Arc::new((LogBuffer::new(START, TWO_PARTS, 1), [3, 2].map(AtomicU64::new)));
        let appenders = [0, 1].map(|at| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (buffer, marked) = &*shared;
                set_home(at);
                let len = 3 - at;
                append(buffer, len, |start| marked[at].store(start, Ordering::Relaxed));
            })
        });
        let (buffer, marked) = &*shared;
        let end = buffer.settled_end();
        let is_before = |at: usize| (START..end).contains(&marked[at].load(Ordering::Relaxed));
        let bytes: u64 =
            [0, 1].into_iter().filter(|at| is_before(*at)).map(|at| 3 - at as u64).sum();
        assert_eq!(bytes, end - START);
        for appender in appenders {
            appender.join().unwrap();
        }
    });
}

/// A commit is published when its place is reserved, before its frame is made. What a thread that
/// sees it appends lies behind, and is not written without it.
#[test]
fn who_sees_a_commit_appends_behind_it() {
    model(|| {
        let published = AtomicU64::new(0);
        let shared = Arc::new((LogBuffer::new(START, TWO_PARTS, 1), Mutex::new(()), published));
        let committer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (buffer, commit, published) = &*shared;
                let mut part = buffer.part_with_room(3).unwrap();
                let start = {
                    let _turn = commit.lock();
                    let start = part.reserve(3);
                    published.store(start, Ordering::SeqCst);
                    start
                };
                part.put(start, 3, |out| out.extend_from_slice(&[3; 3]));
            })
        };
        let (buffer, _, published) = &*shared;
        set_home(1);
        let seen = published.load(Ordering::SeqCst);
        let start = append(buffer, 2, |_| ());
        assert!(start > seen);
        let written = take(buffer, START);
        assert!(written >= start + 2);
        committer.join().unwrap();
        assert_eq!(take(buffer, written), START + 5);
    });
}
