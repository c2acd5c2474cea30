//! A policy over frames that hold nothing: for shadows, the advisor, and the replay of traces.
//!
//! A [`Simulation`] runs the very code that the pool runs. It keeps what the pool keeps beside it:
//! which page is in which frame, and which frames are free. A page costs some forty bytes, so a
//! pool of many gigabytes is simulated, on a sample of its pages, in a megabyte or two.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::{Access, Clock, Replacement, ReplacementConfig, hash, make};
use crate::error::Result;
use crate::page::PageId;
use crate::statement;

/// A request for a page, as the pool met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`PageId::to_u64`].
    pub page: u64,
    /// The statement that asked: [`statement::current`].
    pub statement: u32,
    /// Why.
    pub access: Access,
    /// When, in milliseconds since some beginning; wraps.
    pub at_ms: u32,
}

#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("pages are hashed as u64")
    }

    fn write_u64(&mut self, page: u64) {
        self.0 = hash(page);
    }
}

/// A pool of a few frames and no memory, under a policy.
pub struct Simulation {
    config: ReplacementConfig,
    policy: Box<dyn Replacement>,
    clock: Arc<Clock>,
    /// Frames allowed, and frames that the policy has room for.
    frames: u32,
    reserved: u32,
    resident: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    /// The page in each frame that was ever used.
    pages: Vec<u64>,
    free: Vec<u32>,
    coldest: Vec<u32>,
    /// What the policy is to observe, one page in `pages_per_sample`.
    sampled: Vec<Request>,
    pages_per_sample: u32,
}

/// Frames of a policy's shadows.
const SAMPLE_FRAMES: u32 = 512;
/// Requests that a policy observes at once.
const SAMPLED_AT_ONCE: usize = 16;

/// The smallest simulation, in frames.
const FRAMES_MIN: u32 = 4;

impl Simulation {
    /// An empty pool of `frames` frames, at least four, under the policy of `config`.
    pub fn new(config: &ReplacementConfig, frames: u32) -> Result<Simulation> {
        let frames = frames.max(FRAMES_MIN);
        let clock = Arc::new(Clock::Manual(AtomicU32::new(1)));
        // Address space only; what is touched is what is used.
        let reserved = frames.saturating_mul(4).max(1 << 14);
        let policy = make(config, reserved, clock.clone())?;
        policy.set_capacity(frames);
        Ok(Simulation {
            config: *config,
            policy,
            clock,
            frames,
            reserved,
            resident: HashMap::default(),
            pages: Vec::new(),
            free: Vec::new(),
            coldest: Vec::new(),
            sampled: Vec::new(),
            pages_per_sample: (frames / SAMPLE_FRAMES).max(1),
        })
    }

    /// Takes a request. True if the page was resident; afterwards it is.
    pub fn request(&mut self, request: &Request) -> bool {
        self.clock.set(request.at_ms);
        self.sample(request);
        statement::replay(request.statement, || match self.resident.get(&request.page) {
            Some(&frame) => {
                self.policy.hit(frame, request.access);
                true
            }
            None => {
                let frame = self.take_frame();
                self.pages[frame as usize] = request.page;
                self.resident.insert(request.page, frame);
                self.policy.insert(frame, PageId::from_u64(request.page), request.access);
                false
            }
        })
    }

    /// Shows the policy what the pool would: requests for a sample of the pages.
    fn sample(&mut self, request: &Request) {
        let sampled = hash(request.page).is_multiple_of(u64::from(self.pages_per_sample));
        if !sampled || !self.policy.learns() {
            return;
        }
        self.sampled.push(*request);
        if self.sampled.len() >= SAMPLED_AT_ONCE {
            self.policy.observe(&self.sampled, self.pages_per_sample);
            self.sampled.clear();
        }
    }

    /// Whether the page is resident.
    pub fn contains(&self, page: u64) -> bool {
        self.resident.contains_key(&page)
    }

    /// Number of resident pages.
    pub fn resident(&self) -> u32 {
        self.resident.len() as u32
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The resident pages, coldest first.
    pub fn coldest_first(&self) -> Vec<u64> {
        let mut order = Vec::new();
        self.policy.coldest(self.resident.len(), &mut order);
        order.into_iter().map(|frame| self.pages[frame as usize]).collect()
    }

    /// Changes the number of frames, at least four. Fewer: the coldest pages go.
    pub fn resize(&mut self, frames: u32) -> Result<()> {
        self.frames = frames.max(FRAMES_MIN);
        if self.frames > self.reserved {
            return self.move_to_larger();
        }
        self.policy.set_capacity(self.frames);
        while self.resident() > self.frames {
            let frame = self.evict();
            self.free.push(frame);
        }
        Ok(())
    }

    /// Makes the policy anew with more room, and gives it the pages in order of their heat.
    fn move_to_larger(&mut self) -> Result<()> {
        let mut larger = Simulation::new(&self.config, self.frames)?;
        for page in self.coldest_first() {
            let statement = statement::current();
            let at_ms = self.clock.now_ms();
            larger.request(&Request { page, statement, access: Access::Normal, at_ms });
        }
        *self = larger;
        Ok(())
    }

    fn take_frame(&mut self) -> u32 {
        if self.resident() >= self.frames {
            return self.evict();
        }
        self.free.pop().unwrap_or_else(|| {
            self.pages.push(0);
            self.pages.len() as u32 - 1
        })
    }

    /// Evicts the coldest page and returns its frame.
    fn evict(&mut self) -> u32 {
        self.coldest.clear();
        self.policy.coldest(1, &mut self.coldest);
        let frame = self.coldest[0];
        match self.resident.entry(self.pages[frame as usize]) {
            Entry::Occupied(entry) => entry.remove(),
            Entry::Vacant(_) => unreachable!("frame {frame} was named but holds no page"),
        };
        self.policy.remove(frame);
        frame
    }
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("config", &self.config)
            .field("frames", &self.frames)
            .field("resident", &self.resident())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(simulation: &mut Simulation, page: u64, at_ms: u32) -> bool {
        let request = Request { page, statement: at_ms, access: Access::Normal, at_ms };
        simulation.request(&request)
    }

    #[test]
    fn it_keeps_to_its_frames_through_resizes() {
        let mut simulation = Simulation::new(&ReplacementConfig::default(), 100).unwrap();
        for (frames, pages) in [(100, 300), (40, 300), (20_000, 30_000), (80_000, 200_000)] {
            simulation.resize(frames).unwrap();
            assert!(simulation.resident() <= frames);
            for page in 0..pages {
                ask(&mut simulation, page, page as u32);
                assert!(simulation.contains(page), "who asks gets the page");
                assert!(simulation.resident() <= frames);
            }
            assert_eq!(simulation.resident(), frames);
        }
    }

    #[test]
    fn what_fits_is_hit() {
        let mut simulation = Simulation::new(&ReplacementConfig::default(), 50).unwrap();
        for round in 0..3 {
            for page in 0..50 {
                assert_eq!(ask(&mut simulation, page, round * 2000), round > 0);
            }
        }
    }
}
