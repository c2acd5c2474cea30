//! Samples accesses to pages, for the advisor, the policy's shadows and the trace recorder, at
//! negligible cost per access.
//!
//! # Sampling by page
//! Which pages are in the sample is decided by a hash of the page's address (spatial sampling:
//! SHARDS, Waldspurger et al., FAST 2015): of a page in the sample every access is recorded, so
//! reuse is seen as it is. The hash is Fibonacci's (Knuth, TAOCP 3, 6.4): it spreads *consecutive*
//! page numbers evenly, so that of any stretch of a file the sample holds its share to within a
//! page or two, where a hash that scatters them would be off by the square root. Samples are
//! nested: a page in the sample of one rate is in that of every higher rate.
//!
//! # What an access pays
//! Not sampled: a multiplication, a load, a comparison. Sampled: a clock reading and three stores
//! into a ring that belongs to this thread. Nothing ever waits; when a ring is full, the event is
//! dropped and counted.
//!
//! # Rings
//! One for each cell of the sharded counters (a thread owns one while it lives), made at the
//! first event. One producer (its owner; the last ring is shared, under a flag that is only
//! tried) and one consumer (the thread that holds the mutex `consumer`).
//!
//! Locking: `consumer` before everything that its holder does with the events; an access takes no
//! lock at all.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::page::PageId;
use crate::replacement::{Access, Clock};
use crate::statement;
use crate::stats::{CELLS, SHARED_CELL, own_cell};

/// Which pages are sampled: those whose hash lies under a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample(u64);

impl Sample {
    /// No page.
    pub const NONE: Sample = Sample(0);
    /// Every page.
    pub const ALL: Sample = Sample(1 << 32);

    /// A share of all pages, 0 to 1.
    pub fn of_rate(rate: f64) -> Sample {
        Sample((rate.clamp(0.0, 1.0) * Sample::ALL.0 as f64).round() as u64)
    }

    /// The sample whose bound is `bound` of 2³² hashes.
    pub const fn of_bound(bound: u64) -> Sample {
        Sample(if bound > Sample::ALL.0 { Sample::ALL.0 } else { bound })
    }

    /// Pages with a lower hash are in: 0 to 2³².
    pub const fn bound(self) -> u64 {
        self.0
    }

    /// The share of all pages that is in.
    pub fn rate(self) -> f64 {
        self.0 as f64 / Sample::ALL.0 as f64
    }

    /// Whether the page ([`PageId::to_u64`]) is in.
    #[inline]
    pub const fn holds(self, page: u64) -> bool {
        (hash(page) as u64) < self.0
    }
}

/// Fibonacci hashing: 2⁶⁴ divided by the golden ratio, and the upper half of the product.
#[inline]
const fn hash(page: u64) -> u32 {
    (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

/// How a page was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Touch {
    /// By a query.
    Normal,
    /// By a scan of a whole table or index.
    Scan,
    /// By making it anew: never a read.
    Created,
}

impl Touch {
    const ALL: [Touch; 3] = [Touch::Normal, Touch::Scan, Touch::Created];
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// [`PageId::to_u64`].
    pub(crate) page: u64,
    /// Microseconds on a clock that never goes back.
    pub(crate) at_us: u64,
    pub(crate) statement: u32,
    pub(crate) touch: Touch,
    /// How often in a row; 1 where the sampler does not record repetitions.
    pub(crate) count: u32,
}

/// An access to the page of the thread's last event, by the same statement, in the same way and
/// this soon after it, is its repetition: nothing new to a policy.
const REPETITION_US: u64 = 50_000;

impl Event {
    fn repeats(&self, last: &Event) -> bool {
        (self.page, self.statement, self.touch) == (last.page, last.statement, last.touch)
            && self.at_us.saturating_sub(last.at_us) < REPETITION_US
    }
}

/// A queue of events: one producer, one consumer, no waiting.
struct Ring {
    slots: Box<[[AtomicU64; 3]]>,
    /// Events ever pushed; the producer's.
    pushed: AtomicU64,
    /// Events ever taken; the consumer's.
    taken: AtomicU64,
    dropped: AtomicU64,
    /// A producer is at work, where there is more than one.
    busy: AtomicBool,
}

impl Ring {
    fn new(capacity: usize) -> Ring {
        Ring {
            slots: (0..capacity).map(|_| Default::default()).collect(),
            pushed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            busy: AtomicBool::new(false),
        }
    }

    fn slot(&self, index: u64) -> &[AtomicU64; 3] {
        &self.slots[(index % self.slots.len() as u64) as usize]
    }

    fn read(&self, index: u64) -> Event {
        let [page, at_us, rest] = self.slot(index);
        let rest = rest.load(Relaxed);
        Event {
            page: page.load(Relaxed),
            at_us: at_us.load(Relaxed),
            statement: (rest >> 8) as u32,
            touch: Touch::ALL[(rest & 0xff) as usize],
            count: 1,
        }
    }

    /// Appends the event, or counts it as dropped. True if the ring just became half full.
    fn push(&self, event: impl FnOnce() -> Event, repetitions: bool) -> bool {
        let pushed = self.pushed.load(Relaxed);
        // Acquire: the consumer has read the slot that is overwritten now.
        let waiting = pushed - self.taken.load(Acquire);
        if waiting >= self.slots.len() as u64 {
            self.dropped.fetch_add(1, Relaxed);
            return false;
        }
        let event = event();
        if !repetitions && pushed > 0 && event.repeats(&self.read(pushed - 1)) {
            return false;
        }
        let [page, at_us, rest] = self.slot(pushed);
        page.store(event.page, Relaxed);
        at_us.store(event.at_us, Relaxed);
        rest.store((event.statement as u64) << 8 | event.touch as u64, Relaxed);
        // Release: the slot is filled.
        self.pushed.store(pushed + 1, Release);
        waiting + 1 == self.slots.len() as u64 / 2
    }

    fn take(&self, out: &mut Vec<Event>) {
        let taken = self.taken.load(Relaxed);
        let pushed = self.pushed.load(Acquire);
        let first = out.len();
        for index in taken..pushed {
            let event = self.read(index);
            match out[first..].last_mut() {
                Some(last) if event.repeats(last) => last.count += 1,
                _ => out.push(event),
            }
        }
        self.taken.store(pushed, Release);
    }
}

/// The rings of one consumer, and the sample that it wants.
pub(crate) struct AccessSampler {
    sample: AtomicU64,
    /// Whether repetitions are counted, or left out.
    repetitions: bool,
    ring_events: usize,
    rings: Box<[OnceLock<Ring>]>,
    consumer: Mutex<Consumer>,
}

#[derive(Default)]
struct Consumer {
    dropped: u64,
}

/// How many events [`AccessSampler::drain`] delivered, and how many were lost because a ring was
/// full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    pub(crate) events: usize,
    pub(crate) dropped: u64,
}

impl AccessSampler {
    /// A sampler with nothing in its sample. With `repetitions`, an access like the one before it
    /// is an event too.
    pub(crate) fn new(ring_events: usize, repetitions: bool) -> AccessSampler {
        AccessSampler {
            sample: AtomicU64::new(0),
            repetitions,
            ring_events,
            rings: (0..CELLS).map(|_| OnceLock::new()).collect(),
            consumer: Mutex::default(),
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        Sample(self.sample.load(Relaxed))
    }

    pub(crate) fn set_sample(&self, sample: Sample) {
        self.sample.store(sample.0, Relaxed);
    }

    /// True if the consumer had better come soon.
    fn push(&self, event: impl FnOnce() -> Event) -> bool {
        let cell = own_cell();
        let ring = self.rings[cell].get_or_init(|| Ring::new(self.ring_events));
        if cell != SHARED_CELL {
            return ring.push(event, self.repetitions);
        }
        if ring.busy.swap(true, Acquire) {
            ring.dropped.fetch_add(1, Relaxed);
            return false;
        }
        let soon = ring.push(event, self.repetitions);
        ring.busy.store(false, Release);
        soon
    }

    /// Appends all events that are there to `out`, in order of time.
    pub(crate) fn drain(&self, out: &mut Vec<Event>) -> Drained {
        let mut consumer = self.consumer.lock();
        let first = out.len();
        let mut dropped = 0;
        for ring in self.rings.iter().filter_map(OnceLock::get) {
            ring.take(out);
            dropped += ring.dropped.load(Relaxed);
        }
        // Each ring's are in order already, and the sort is stable and knows runs.
        out[first..].sort_by_key(|event| event.at_us);
        let before = std::mem::replace(&mut consumer.dropped, dropped);
        Drained { events: out.len() - first, dropped: dropped - before }
    }

    /// Bytes of the rings made so far.
    fn memory_bytes(&self) -> u64 {
        let rings = self.rings.iter().filter(|ring| ring.get().is_some()).count();
        (rings * self.ring_events * size_of::<[AtomicU64; 3]>()) as u64
    }
}

/// Events that a thread's ring of the advisor's sampler holds.
const ADVISOR_RING_EVENTS: usize = 1024;
/// The same, of a recorder's, which may want every access.
const RECORDER_RING_EVENTS: usize = 16 << 10;

/// All samplers of a pool. An access compares its hash with one bound, for all of them.
pub(crate) struct AccessSamplers {
    /// The largest of the samples wanted.
    bound: AtomicU64,
    /// Held while that is worked out: of two that change their samples at once, the second must see
    /// the first's. Nothing is taken under it.
    bounding: Mutex<()>,
    pub(crate) advisor: AccessSampler,
    /// Made when a trace is first recorded.
    recorder: OnceLock<AccessSampler>,
}

impl AccessSamplers {
    /// AccessSamplers of which the advisor's is to have this sample.
    pub(crate) fn new(advisor: Sample) -> AccessSamplers {
        let samplers = AccessSamplers {
            bound: AtomicU64::new(0),
            bounding: Mutex::new(()),
            advisor: AccessSampler::new(ADVISOR_RING_EVENTS, false),
            recorder: OnceLock::new(),
        };
        samplers.advisor.set_sample(advisor);
        samplers.set_bound();
        samplers
    }

    /// Records an access. True if the events should be drained soon.
    #[inline]
    pub(crate) fn access(&self, page: PageId, access: Access, clock: &Clock) -> bool {
        (hash(page.to_u64()) as u64) < self.bound.load(Relaxed)
            && self.sampled(page, access, false, clock)
    }

    /// Records a page made anew.
    pub(crate) fn created(&self, page: PageId, clock: &Clock) -> bool {
        (hash(page.to_u64()) as u64) < self.bound.load(Relaxed)
            && self.sampled(page, Access::Normal, true, clock)
    }

    #[cold]
    fn sampled(&self, page: PageId, access: Access, created: bool, clock: &Clock) -> bool {
        let touch = match access {
            _ if created => Touch::Created,
            Access::Normal => Touch::Normal,
            Access::Scan => Touch::Scan,
            Access::Prefetch | Access::PrefetchForScan => return false,
        };
        let page = page.to_u64();
        let event = || {
            let (at_us, statement) = (now_us(clock), statement::current());
            Event { page, at_us, statement, touch, count: 1 }
        };
        let mut soon = false;
        if self.advisor.sample().holds(page) {
            soon |= self.advisor.push(event);
        }
        if let Some(recorder) = self.recorder.get()
            && recorder.sample().holds(page)
        {
            soon |= recorder.push(event);
        }
        soon
    }

    pub(crate) fn recorder(&self) -> &AccessSampler {
        self.recorder.get_or_init(|| AccessSampler::new(RECORDER_RING_EVENTS, true))
    }

    /// To be called after a sampler's sample was changed.
    pub(crate) fn set_bound(&self) {
        let _bounding = self.bounding.lock();
        let recorder = self.recorder.get().map_or(Sample::NONE, AccessSampler::sample);
        self.bound.store(self.advisor.sample().max(recorder).0, Relaxed);
    }

    /// Bytes of all rings.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.advisor.memory_bytes() + self.recorder.get().map_or(0, AccessSampler::memory_bytes)
    }
}

/// Microseconds, of the machine or of a clock set by hand.
pub(crate) fn now_us(clock: &Clock) -> u64 {
    match clock {
        Clock::Machine => {
            let now = clock_gettime(ClockId::Monotonic);
            now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
        }
        Clock::Manual(_) => clock.now_ms() as u64 * 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn event(page: u64, at_us: u64, statement: u32) -> Event {
        Event { page, at_us, statement, touch: Touch::Normal, count: 1 }
    }

    fn drained(sampler: &AccessSampler) -> (Vec<Event>, Drained) {
        let mut out = Vec::new();
        let drained = sampler.drain(&mut out);
        (out, drained)
    }

    #[test]
    fn any_stretch_of_a_file_is_sampled_to_within_a_few_pages() {
        for rate in [0.5, 1.0 / 16.0, 1.0 / 300.0] {
            let sample = Sample::of_rate(rate);
            assert!((sample.rate() - rate).abs() < 1e-9);
            for (space, first, pages) in [(1, 0, 100_000), (77, 4711, 30_000), (3, 1 << 30, 5_000)]
            {
                let held = (first..first + pages)
                    .filter(|&no| sample.holds(PageId::new(space, no).to_u64()))
                    .count();
                let expected = pages as f64 * rate;
                assert!((held as f64 - expected).abs() < 6.0, "{held} of {expected}");
            }
        }
        let pages = || (0..1000).map(|no| PageId::new(5, no).to_u64());
        assert!(pages().all(|page| Sample::ALL.holds(page)));
        assert!(!pages().any(|page| Sample::NONE.holds(page)));
        let (small, large) = (Sample::of_rate(0.1), Sample::of_rate(0.3));
        assert!(pages().all(|page| large.holds(page) || !small.holds(page)), "nested");
    }

    #[test]
    fn a_full_ring_drops_and_counts_and_goes_on_after_a_drain() {
        let sampler = AccessSampler::new(4, true);
        let soon: Vec<bool> = (0..7).map(|n| sampler.push(|| event(n, n, 0))).collect();
        assert_eq!(soon, [false, true, false, false, false, false, false], "half full once");
        let (events, counts) = drained(&sampler);
        assert_eq!(events, (0..4).map(|n| event(n, n, 0)).collect::<Vec<_>>());
        assert_eq!(counts, Drained { events: 4, dropped: 3 });
        sampler.push(|| event(9, 9, 0));
        let (events, counts) = drained(&sampler);
        assert_eq!((events, counts.dropped), (vec![event(9, 9, 0)], 0), "counted once");
    }

    #[test]
    fn repetitions_are_one_event_counted_only_where_asked_for() {
        for repetitions in [true, false] {
            let sampler = AccessSampler::new(64, repetitions);
            for at_us in 0..5 {
                sampler.push(|| event(1, at_us, 7));
            }
            sampler.push(|| event(1, 5, 8));
            sampler.push(|| event(2, 6, 8));
            sampler.push(|| event(1, 7, 8));
            sampler.push(|| event(1, 7 + REPETITION_US, 8));
            let counts: Vec<u32> = drained(&sampler).0.iter().map(|event| event.count).collect();
            assert_eq!(counts, [if repetitions { 5 } else { 1 }, 1, 1, 1, 1]);
        }
    }

    #[test]
    fn events_of_many_threads_arrive_whole_and_none_is_lost_uncounted() {
        let sampler = AccessSampler::new(128, true);
        let (threads, each) = (150, 2000);
        let mut all = Vec::new();
        let mut dropped = 0;
        std::thread::scope(|scope| {
            let sampler = &sampler;
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        for n in 0..each {
                            sampler.push(|| event(thread << 32 | n, n, (thread * 31 + n) as u32));
                        }
                    })
                })
                .collect();
            while running.iter().any(|thread| !thread.is_finished()) {
                dropped += sampler.drain(&mut all).dropped;
            }
        });
        dropped += sampler.drain(&mut all).dropped;
        assert_eq!(all.len() as u64 + dropped, threads * each);
        assert!(all.len() as u64 >= threads, "something came through");
        for event in &all {
            let (thread, n) = (event.page >> 32, event.page & 0xffff_ffff);
            assert_eq!((event.at_us, event.statement), (n, (thread * 31 + n) as u32));
        }
        let mut pages: Vec<u64> = all.iter().map(|event| event.page).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), all.len(), "nothing twice");
    }

    #[test]
    fn taps_ask_for_the_larger_sample_and_give_each_its_own() {
        let samplers = AccessSamplers::new(Sample::NONE);
        let clock = Clock::Manual(AtomicU32::new(3));
        let pages: Vec<PageId> = (0..1000).map(|no| PageId::new(9, no)).collect();
        let tell = || {
            pages.iter().for_each(|&page| {
                samplers.access(page, Access::Scan, &clock);
            })
        };
        tell();
        assert_eq!((drained(&samplers.advisor).0.len(), samplers.memory_bytes()), (0, 0));
        samplers.advisor.set_sample(Sample::of_rate(0.1));
        samplers.recorder().set_sample(Sample::of_rate(0.2));
        samplers.set_bound();
        tell();
        let (events, _) = drained(&samplers.advisor);
        assert!(events.len().abs_diff(100) < 4, "{}", events.len());
        assert!(events.iter().all(|event| event.touch == Touch::Scan && event.at_us == 3000));
        let recorded = drained(samplers.recorder()).0.len();
        assert!(recorded.abs_diff(200) < 4, "{recorded}");
    }
}
