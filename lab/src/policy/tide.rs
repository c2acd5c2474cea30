//! Tidepool's default policy: a window, a main area, admission by frequency, and shadows that set the window's size.
//!
//! * **One use a statement.** A statement that reads fifty rows of a page has used it once. Further requests of the same statement change nothing.
//!   This is what InnoDB's timer tries to find out by waiting a second, without the wait.
//! * **Scans never displace.** A page that a whole-table scan misses takes a free frame. When there is none left, it takes the frame of the scan's own
//!   newest pages, a sliver of the pool: the older ones stay, so that a scan that comes round again finds them, and a query that
//!   needs a frame takes theirs first.
//! * **Window and main.** A page that a query reads enters the window, a FIFO with a second chance. When it leaves, it competes with the page that the main
//!   clock would evict: the one used more often lately stays, and at equality nothing moves. So a loop larger than the pool keeps a
//!   part of itself resident, where LRU and its kin keep nothing. (Admission by frequency: TinyLFU, Einziger et al., ToS 2017.)
//! * **Frequency** is counted in the frame while a page is resident, and in a small sketch when it is not; both are halved once an
//!   epoch, lazily. A hit touches nothing but its own frame.
//! * **Shadows.** How large the window should be depends on the load: recency wants a large one, stable popularity a small one. Miniature copies of the
//!   policy ([`SETTINGS`]) see a hash-chosen sample of the pages, at a pool size scaled down alike; the pool follows the one that does best. (Miniature simulation:
//!   Waldspurger et al., ATC 2017.) So there is no knob, and a working set that moves is followed.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// What the shadows try: popularity that lasts, something between, and recency.
pub const SETTINGS: [Setting; 3] = [
    Setting { window_percent: 1, epoch_requests_per_page: 32 },
    Setting { window_percent: 20, epoch_requests_per_page: 16 },
    Setting { window_percent: 80, epoch_requests_per_page: 8 },
];
/// Pages that a shadow should at least have, where the pool is large enough.
const SHADOW_PAGES: usize = 512;
/// Scan pages that may be replaced while a full pool is scanned, in per cent.
const SLIVER_PERCENT: usize = 1;
/// Frequencies saturate here.
const MOST_USES: u8 = 15;
/// Pages that the hand weighs against each other.
const HAND_WIDTH: usize = 8;

/// What the shadows find out for the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The window's share of the pool, per cent.
    pub window_percent: usize,
    /// Frequencies are halved once in this many requests per page of the pool.
    pub epoch_requests_per_page: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Scan,
    Window,
    Main,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    place: Place,
    /// Used since the hand last came by.
    recent: bool,
    uses: u8,
    /// Epoch in which `uses` was last brought up to date.
    epoch: u64,
    statement: u64,
}

impl Page {
    fn uses_in(&self, epoch: u64) -> u8 {
        self.uses >> (epoch - self.epoch).min(7)
    }

    fn count_use(&mut self, epoch: u64) {
        self.uses = (self.uses_in(epoch) + 1).min(MOST_USES);
        self.epoch = epoch;
    }
}

/// Frequencies of pages that are not resident: one small table, indexed by hash, newest wins.
#[derive(Debug)]
struct Ghosts {
    slots: Vec<(u32, u8, u64)>,
}

impl Ghosts {
    fn new(capacity: usize) -> Self {
        Ghosts { slots: vec![(0, 0, 0); (capacity * 4).next_power_of_two().max(64)] }
    }

    fn slot(&mut self, page: u64) -> (&mut (u32, u8, u64), u32) {
        let hash = hash(page);
        let tag = (hash >> 32) as u32 | 1;
        let mask = self.slots.len() - 1;
        (&mut self.slots[hash as usize & mask], tag)
    }

    fn remember(&mut self, page: u64, uses: u8, epoch: u64) {
        let (slot, tag) = self.slot(page);
        let held = slot.1 >> (epoch - slot.2).min(7);
        if slot.0 == tag || uses >= held {
            *slot = (tag, uses, epoch);
        }
    }

    fn recall(&mut self, page: u64, epoch: u64) -> u8 {
        let (slot, tag) = self.slot(page);
        if slot.0 == tag { slot.1 >> (epoch - slot.2).min(7) } else { 0 }
    }
}

fn hash(page: u64) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(page)
}

/// The policy with a window that is set from outside.
#[derive(Debug)]
struct Core {
    capacity: usize,
    window_target: usize,
    pages: HashMap<u64, Page>,
    scan: Order,
    sliver: Order,
    window: Order,
    main: Order,
    ghosts: Ghosts,
    requests: u64,
    epoch: u64,
    epoch_requests_per_page: u64,
    epoch_ends: u64,
}

impl Core {
    fn new(capacity: usize, setting: Setting) -> Self {
        let capacity = capacity.max(4);
        let mut core = Core {
            capacity,
            window_target: 1,
            pages: HashMap::new(),
            scan: Order::default(),
            sliver: Order::default(),
            window: Order::default(),
            main: Order::default(),
            ghosts: Ghosts::new(capacity),
            requests: 0,
            epoch: 0,
            epoch_requests_per_page: 0,
            epoch_ends: 0,
        };
        core.set(setting);
        core
    }

    fn set(&mut self, setting: Setting) {
        self.window_target =
            (self.capacity * setting.window_percent / 100).clamp(1, self.capacity - 2);
        self.epoch_requests_per_page = setting.epoch_requests_per_page;
        self.epoch_ends = self.requests + self.capacity as u64 * self.epoch_requests_per_page;
    }

    /// Counts a request, and says in which epoch it is.
    fn tick(&mut self) -> u64 {
        self.requests += 1;
        if self.requests >= self.epoch_ends {
            self.epoch += 1;
            self.epoch_ends = self.requests + self.capacity as u64 * self.epoch_requests_per_page;
        }
        self.epoch
    }

    fn request(&mut self, request: &Request) -> bool {
        let epoch = self.tick();
        let page = request.page;
        if let Some(entry) = self.pages.get_mut(&page) {
            let counts = entry.statement != request.statement && !request.scan;
            entry.statement = request.statement;
            if counts {
                entry.recent = true;
                entry.count_use(epoch);
                if entry.place == Place::Scan {
                    entry.place = Place::Window;
                    let _ = self.scan.remove(page) || self.sliver.remove(page);
                    self.window.push_front(page);
                }
            }
            return true;
        }
        if request.scan {
            self.admit_scan(request, epoch);
            return false;
        }
        self.make_room(epoch);
        let uses = (self.ghosts.recall(page, epoch) + 1).min(MOST_USES);
        let statement = request.statement;
        self.pages
            .insert(page, Page { place: Place::Window, recent: false, uses, epoch, statement });
        self.window.push_front(page);
        false
    }

    fn admit_scan(&mut self, request: &Request, epoch: u64) {
        if self.pages.len() >= self.capacity {
            let sliver_target = (self.capacity * SLIVER_PERCENT / 100).max(1);
            if self.sliver.len() >= sliver_target {
                let oldest = self.sliver.pop_back().expect("the sliver is not empty");
                self.forget(oldest, epoch);
            } else if let Some(page) = self.scan.pop_back() {
                self.forget(page, epoch);
            } else {
                self.make_room(epoch);
            }
            self.sliver.push_front(request.page);
        } else {
            self.scan.push_front(request.page);
        }
        let entry = Page {
            place: Place::Scan,
            recent: false,
            uses: 0,
            epoch,
            statement: request.statement,
        };
        self.pages.insert(request.page, entry);
    }

    fn forget(&mut self, page: u64, epoch: u64) {
        if let Some(entry) = self.pages.remove(&page) {
            self.ghosts.remember(page, entry.uses_in(epoch), epoch);
        }
    }

    /// Frees a frame for a query's page.
    fn make_room(&mut self, epoch: u64) {
        while self.pages.len() >= self.capacity {
            if let Some(page) = self.sliver.pop_back().or_else(|| self.scan.pop_back()) {
                self.forget(page, epoch);
            } else if self.window.len() >= self.window_target || self.main.len() == 0 {
                self.leave_window(epoch);
            } else {
                let victim = self.main_victim(epoch).expect("main is not empty");
                self.main.remove(victim);
                self.forget(victim, epoch);
            }
        }
        // The window's share is kept while the pool fills, too, so that main is not empty when it is full.
        while self.window.len() > self.window_target
            && self.main.len() + self.window_target < self.capacity
        {
            let page = self.window.pop_back().expect("the window is not empty");
            self.enter_main(page);
        }
    }

    fn enter_main(&mut self, page: u64) {
        let entry = self.pages.get_mut(&page).expect("a page that moves is resident");
        entry.place = Place::Main;
        entry.recent = false;
        self.main.push_front(page);
    }

    /// The oldest page of the window leaves it: for main, or for good. Either way one frame becomes free, or the window gets shorter.
    fn leave_window(&mut self, epoch: u64) {
        let Some(leaving) = self.window.back() else { return };
        let entry = self.pages.get_mut(&leaving).expect("window pages are resident");
        if std::mem::replace(&mut entry.recent, false) && self.window_target * 10 > self.capacity {
            // A large window is there for recency, so it honours it.
            self.window.move_to_front(leaving);
            return;
        }
        let worth = entry.uses_in(epoch);
        self.window.pop_back();
        if self.main.len() + self.window_target < self.capacity {
            self.enter_main(leaving);
            return;
        }
        let victim = self.main_victim(epoch).expect("main is full");
        if worth > self.pages[&victim].uses_in(epoch) {
            self.main.remove(victim);
            self.forget(victim, epoch);
            self.enter_main(leaving);
        } else {
            self.forget(leaving, epoch);
        }
    }

    /// The least used of the next pages at the clock's hand, and those that were used since it came by last are passed over once.
    fn main_victim(&mut self, epoch: u64) -> Option<u64> {
        let mut least: Option<(u8, u64)> = None;
        let mut looked = 0;
        while looked < HAND_WIDTH.min(self.main.len()) {
            let page = self.main.back()?;
            self.main.move_to_front(page);
            let entry = self.pages.get_mut(&page).expect("main pages are resident");
            if std::mem::replace(&mut entry.recent, false) {
                continue;
            }
            looked += 1;
            let uses = entry.uses_in(epoch);
            if least.is_none_or(|(fewest, _)| uses < fewest) {
                least = Some((uses, page));
            }
        }
        least.map(|(_, page)| page)
    }
}

/// One miniature copy and how it does.
#[derive(Debug)]
struct Shadow {
    core: Core,
    setting: Setting,
    hits: f64,
}

/// The policy over `capacity` pages.
#[derive(Debug)]
pub struct Tide {
    core: Core,
    shadows: Vec<Shadow>,
    /// One page in this many is in the sample.
    sample: u64,
    sampled: u64,
    chosen: usize,
}

impl Tide {
    /// An empty pool of `capacity` pages, at least four.
    pub fn new(capacity: usize) -> Self {
        let sample = (capacity / SHADOW_PAGES).max(1);
        let shadow =
            |setting| Shadow { core: Core::new(capacity / sample, setting), setting, hits: 0.0 };
        Tide {
            core: Core::new(capacity, SETTINGS[1]),
            shadows: SETTINGS.into_iter().map(shadow).collect(),
            sample: sample as u64,
            sampled: 0,
            chosen: 1,
        }
    }

    fn ask_shadows(&mut self, request: &Request) {
        self.sampled += 1;
        for shadow in &mut self.shadows {
            if shadow.core.request(request) {
                shadow.hits += 1.0;
            }
        }
        let every = (self.shadows[0].core.capacity as u64).max(64);
        if self.sampled.is_multiple_of(every) {
            let best = (0..self.shadows.len())
                .max_by(|&a, &b| self.shadows[a].hits.total_cmp(&self.shadows[b].hits));
            let best = best.expect("there are shadows");
            // A change must be worth it, or two equals would take turns.
            if self.shadows[best].hits > self.shadows[self.chosen].hits * 1.002 {
                self.chosen = best;
                self.core.set(self.shadows[best].setting);
            }
            self.shadows.iter_mut().for_each(|shadow| shadow.hits *= 0.75);
        }
    }
}

impl Policy for Tide {
    fn request(&mut self, request: &Request) -> bool {
        if (hash(request.page) >> 16).is_multiple_of(self.sample) {
            self.ask_shadows(request);
        }
        self.core.request(request)
    }

    fn resident(&self) -> usize {
        self.core.pages.len()
    }
}
