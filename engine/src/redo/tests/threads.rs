//! Many threads append while others write the log and take checkpoints.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::super::buffer::LogBuffer;
use super::*;

const THREADS: u8 = 4;
const FRAMES: u32 = 400;

/// A body that says whose it is; some are larger than the log buffer.
fn body(thread: u8, n: u32) -> Vec<u8> {
    let len = [9, 40, 300, 2000][n as usize % 4] + if n % 97 == 5 { 30_000 } else { 0 };
    let mut body = vec![thread; len];
    body[..4].copy_from_slice(&n.to_le_bytes());
    body
}

#[test]
fn frames_of_many_threads_are_read_back_whole_and_in_each_ones_order() {
    for seed in 0..4 {
        let storage = SimStorage::new(seed);
        let (log, ..) = open(&storage).unwrap();
        log.set_capacity(8 << 20).unwrap();
        let is_over = AtomicBool::new(false);
        let mut appended: BTreeMap<Lsn, Vec<u8>> = BTreeMap::new();
        thread::scope(|scope| {
            let log = &log;
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut frames = Vec::new();
                        for n in 0..FRAMES {
                            let body = body(thread, n);
                            let (start, end) = append(log, &body);
                            match (n + u32::from(thread)) % 16 {
                                0 => log.flush_to(end).unwrap(),
                                1 => log.write_to(end).unwrap(),
                                _ => {}
                            }
                            frames.push((start, body));
                        }
                        frames
                    })
                })
                .collect();
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    log.prepare_files().unwrap();
                    // The oldest dirty page is at the beginning.
                    let first = log.checkpoint_lsn();
                    log.checkpoint(|| Some(first), || (), false).unwrap();
                    thread::yield_now();
                }
            });
            for thread in threads {
                let frames = thread.join().unwrap();
                assert!(frames.is_sorted());
                appended.extend(frames);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(appended.len(), usize::from(THREADS) * FRAMES as usize);
        // The frame of the epoch is one more.
        assert_eq!(log.stats().frames, u64::from(THREADS) * u64::from(FRAMES) + 1);
        log.flush().unwrap();
        drop(log);
        let (_, _, found) = open(&storage.crash()).unwrap();
        let found: BTreeMap<Lsn, Vec<u8>> = found.into_iter().collect();
        assert!(found == appended, "seed {seed}");
    }
}

#[test]
fn a_full_buffer_has_no_room_and_takes_a_frame_larger_than_a_part() {
    const PART: usize = 16 << 10;
    let buffer = LogBuffer::new(1000, 4 * PART, 1);
    let put = |len: usize| {
        let mut part = buffer.part_with_room(len)?;
        let start = part.reserve(len);
        part.put(start, len, |out| out.resize(out.len() + len, start as u8));
        Some(start)
    };
    // Each part takes three of these, with what it notes of them.
    let len = PART / 3 - 100;
    let starts: Vec<u64> = std::iter::from_fn(|| put(len)).collect();
    assert_eq!(starts.len(), 12);
    assert!(put(1).is_some(), "a small one finds the room that is left");
    let large = put(PART + 1).expect("no part has a large one yet");
    assert_eq!(large, 1000 + 12 * len as u64 + 1);
    let memory = buffer.memory_bytes();
    assert!(memory > 5 * PART, "{memory}");
    // In two steps: what lies behind the first stays.
    let mut out = vec![0; 5 * len];
    buffer.take(1000, 1000 + 5 * len as u64, &mut out);
    assert!(out.chunks(len).zip(&starts).all(|(frame, &start)| frame == vec![start as u8; len]));
    let from = 1000 + 5 * len as u64;
    let mut out = vec![0; (buffer.end() - from) as usize];
    buffer.take(from, buffer.end(), &mut out);
    assert!(out.ends_with(&vec![large as u8; PART + 1]));
    assert!(buffer.memory_bytes() < memory);
    assert_eq!((put(1), buffer.frames()), (Some(large + PART as u64 + 1), 15));
}

#[test]
#[should_panic(expected = "the log has a hole between 1000 and 1030")]
fn a_hole_is_not_written() {
    let buffer = LogBuffer::new(1000, 64 << 10, 1);
    for is_made in [true, false, true] {
        let mut part = buffer.part_with_room(10).unwrap();
        let start = part.reserve(10);
        if is_made {
            part.put(start, 10, |out| out.extend_from_slice(&[1; 10]));
        }
    }
    buffer.take(1000, buffer.end(), &mut [0; 30]);
}

/// A thread that panics in the middle of an append leaves a hole: nothing behind it is durable.
#[test]
fn an_append_that_is_not_completed_fails_the_log() {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    let (_, whole) = append(&log, b"whole");
    log.flush().unwrap();
    log.begin_append(20).reserve();
    let (_, behind) = append(&log, b"behind");
    assert!(matches!(log.flush_to(behind), Err(Error::Crashed(_))));
    assert!((whole..behind).contains(&log.flushed_lsn()));
    drop(log);
    let (_, _, found) = open(&storage.crash()).unwrap();
    assert_eq!(found.len(), 1);
}
