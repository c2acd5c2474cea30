use std::collections::HashMap;

use proptest::prelude::*;

use super::state::{BATCH, PLACES, SLACK};
use super::*;
use crate::replacement::{MidpointConfig, Simulation};

const FRAMES: u32 = 48;

fn page(no: u32) -> PageId {
    PageId::new(1, no)
}

fn coldest(tide: &Tide, max: usize) -> Vec<u32> {
    let mut out = Vec::new();
    tide.coldest(max, &mut out);
    out
}

/// Each resident frame is on one list, the one that its word names, and no other frame is on any.
fn check(tide: &Tide, resident: &HashMap<u32, u32>) {
    let state = tide.state.lock();
    let mut seen = HashMap::new();
    for place in 0..PLACES {
        let (mut next, mut len) = (state.lists.tail(place), 0);
        while let Some(frame) = next {
            assert_eq!(seen.insert(frame, place), None, "frame {frame} is on two lists");
            let word = Word(tide.words[frame as usize].load(Relaxed));
            assert_eq!(word.place(), place, "frame {frame} is not where its word says");
            assert_eq!(state.hash_of(frame), hash(page(resident[&frame]).to_u64()));
            next = state.lists.before(frame);
            len += 1;
        }
        assert_eq!(state.lists.len(place), len);
    }
    assert_eq!(seen.len(), resident.len());
}

#[derive(Clone, Debug)]
enum Op {
    Ask { page: u32, statement: u32, access: Access },
    Coldest { max: usize },
    Remove { page: u32 },
    Move { page: u32 },
    Capacity(u32),
    Observe { pages: u32 },
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        4 => Just(Access::Normal),
        2 => Just(Access::Scan),
        1 => Just(Access::Prefetch),
        1 => Just(Access::PrefetchForScan),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0u32..90, 0u32..9, access())
            .prop_map(|(page, statement, access)| Op::Ask { page, statement, access }),
        2 => (0usize..70).prop_map(|max| Op::Coldest { max }),
        1 => (0u32..90).prop_map(|page| Op::Remove { page }),
        1 => (0u32..90).prop_map(|page| Op::Move { page }),
        1 => (4..FRAMES).prop_map(Op::Capacity),
        1 => (1u32..40).prop_map(|pages| Op::Observe { pages }),
    ]
}

proptest! {
    #[test]
    fn each_resident_frame_is_on_one_list(
        ops in prop::collection::vec(op(), 0..400),
        setting in 0..=SETTINGS.len(),
    ) {
        let fixed = SETTINGS.get(setting).copied();
        let tide = Tide::new(TideConfig { fixed }, FRAMES).unwrap();
        let mut capacity = 32;
        tide.set_capacity(capacity);
        // Frame to page.
        let mut resident: HashMap<u32, u32> = HashMap::new();
        let find = |resident: &HashMap<u32, u32>, page: u32| {
            resident.iter().find(|&(_, &other)| other == page).map(|(&frame, _)| frame)
        };
        let free = |resident: &HashMap<u32, u32>| {
            (0..FRAMES).find(|frame| !resident.contains_key(frame))
        };
        for op in ops {
            match op {
                Op::Ask { page: no, statement, access } => statement::replay(statement, || {
                    if let Some(frame) = find(&resident, no) {
                        tide.hit(frame, access);
                        return;
                    }
                    while resident.len() as u32 >= capacity {
                        let victim = coldest(&tide, 1)[0];
                        assert!(resident.remove(&victim).is_some(), "{victim} holds nothing");
                        tide.remove(victim);
                    }
                    let frame = free(&resident).unwrap();
                    tide.insert(frame, page(no), access);
                    resident.insert(frame, no);
                    assert_eq!(tide.was_accessed(frame), !access.is_prefetch());
                }),
                Op::Coldest { max } => {
                    let named = coldest(&tide, max);
                    prop_assert_eq!(named.len(), max.min(resident.len()));
                    let distinct: std::collections::HashSet<_> = named.iter().collect();
                    prop_assert_eq!(distinct.len(), named.len());
                    prop_assert!(named.iter().all(|frame| resident.contains_key(frame)));
                }
                Op::Remove { page } => if let Some(frame) = find(&resident, page) {
                    tide.remove(frame);
                    resident.remove(&frame);
                },
                Op::Move { page } => {
                    if let (Some(from), Some(to)) = (find(&resident, page), free(&resident)) {
                        tide.relocate(from, to);
                        let page = resident.remove(&from).unwrap();
                        resident.insert(to, page);
                    }
                }
                Op::Capacity(frames) => {
                    capacity = frames;
                    tide.set_capacity(frames);
                }
                Op::Observe { pages } => {
                    let request = |no: u32| Request {
                        page: page(no % pages).to_u64(), statement: no, access: Access::Normal, at_ms: 1,
                    };
                    tide.observe(&(0..100).map(request).collect::<Vec<_>>(), 1);
                }
            }
            check(&tide, &resident);
        }
    }
}

proptest! {
    /// Whatever other threads do between two parts of it.
    #[test]
    fn a_long_walk_comes_to_every_page_that_stays(
        ops in prop::collection::vec(op(), 0..200),
        setting in 0..=SETTINGS.len(),
        part in 1usize..12,
    ) {
        let fixed = SETTINGS.get(setting).copied();
        let tide = Tide::new(TideConfig { fixed }, FRAMES).unwrap();
        tide.set_capacity(FRAMES);
        // Frame to page.
        let mut resident: HashMap<u32, u32> = (0..40).map(|no| (no, no)).collect();
        let accesses = [Access::Normal, Access::Scan, Access::Prefetch, Access::PrefetchForScan];
        for no in 0..40 {
            tide.insert(no, page(no), accesses[no as usize % 4]);
        }
        let mut stays: Vec<u32> = (0..40).collect();
        let mut next = 40;
        tide.begin_walk();
        let mut passed = std::collections::HashSet::new();
        let mut walk_on = |tide: &Tide, resident: &HashMap<u32, u32>| {
            let mut named = Vec::new();
            let goes_on = tide.walk_on(part, &mut named);
            assert!(!goes_on || named.len() == part);
            passed.extend(named.iter().map(|frame| resident[frame]));
            (named, goes_on)
        };
        for op in ops {
            let (named, goes_on) = walk_on(&tide, &resident);
            if !goes_on {
                break;
            }
            let frames: Vec<u32> = resident.keys().copied().collect();
            let nth = |n: u32| frames.iter().copied().min_by_key(|it| it.abs_diff(n % FRAMES));
            let free = (0..FRAMES).find(|frame| !resident.contains_key(frame));
            let some = nth(7).expect("there is one");
            match op {
                Op::Ask { page: no, statement, access } => statement::replay(statement, || {
                    match (no % 3, free) {
                        (0, Some(frame)) => {
                            tide.insert(frame, page(next), access);
                            resident.insert(frame, next);
                            next += 1;
                        }
                        // The one that the walk came to last.
                        (1, _) => {
                            let frame = *named.last().unwrap();
                            let gone = resident.remove(&frame).unwrap();
                            tide.remove(frame);
                            stays.retain(|page| *page != gone);
                        }
                        _ => tide.hit(some, access),
                    }
                }),
                Op::Coldest { max } => drop(coldest(&tide, max)),
                Op::Remove { page } => if let Some(frame) = nth(page) {
                    tide.remove(frame);
                    let gone = resident.remove(&frame).unwrap();
                    stays.retain(|page| *page != gone);
                },
                Op::Move { page } => if let (Some(from), Some(to)) = (nth(page), free) {
                    tide.relocate(from, to);
                    let page = resident.remove(&from).unwrap();
                    resident.insert(to, page);
                },
                Op::Capacity(frames) => tide.set_capacity(frames),
                Op::Observe { .. } => {}
            }
            if resident.is_empty() {
                break;
            }
            check(&tide, &resident);
        }
        while !resident.is_empty() && walk_on(&tide, &resident).1 {}
        for page in stays {
            prop_assert!(passed.contains(&page), "the walk has not come to page {page}");
        }
    }
}

#[test]
fn a_statement_uses_a_page_once() {
    let tide = Tide::new(TideConfig::default(), 100).unwrap();
    tide.set_capacity(100);
    let uses = || Word(tide.words[7].load(Relaxed)).uses(tide.now());
    statement::replay(1, || {
        tide.insert(7, page(7), Access::Normal);
        for _ in 0..50 {
            tide.hit(7, Access::Normal);
        }
        assert_eq!(uses(), 1, "the read that brought it in is the statement's use");
    });
    let next_generation = || tide.now.store(tide.now().next_generation().0, Relaxed);
    for statement in 2..5 {
        next_generation();
        statement::replay(statement, || (0..50).for_each(|_| tide.hit(7, Access::Normal)));
        assert_eq!(uses(), statement);
        statement::replay(77, || tide.hit(7, Access::Normal));
        assert_eq!(uses(), statement, "once a generation is enough");
    }
    next_generation();
    statement::replay(4, || tide.hit(7, Access::Normal));
    assert_eq!(uses(), 4, "the same statement still");
    statement::replay(9, || tide.hit(7, Access::Scan));
    assert_eq!(uses(), 4, "a scan's use is none");
    for statement in 10..100 {
        next_generation();
        statement::replay(statement, || tide.hit(7, Access::Normal));
    }
    assert_eq!(uses(), 15);
}

#[test]
fn naming_pages_without_evicting_them_changes_no_order() {
    let tide = Tide::new(TideConfig::default(), 5000).unwrap();
    tide.set_capacity(5000);
    for frame in 0..5000 {
        statement::replay(frame, || tide.insert(frame, page(frame), Access::Normal));
    }
    let first = coldest(&tide, 2048);
    for _ in 0..20 {
        assert_eq!(coldest(&tide, 2048), first);
        assert_eq!(coldest(&tide, 10), first[..10]);
    }
}

/// As under a governor that changes the size every few seconds.
#[test]
fn sizes_that_change_all_the_time_do_not_hold_an_epoch_up() {
    let tide = Tide::new(TideConfig { fixed: Some(SETTINGS[0]) }, 1000).unwrap();
    let (before, uses) = (tide.now(), tide.state.lock().uses_of_epoch());
    for size in [990, 1000, 980, 1000, 990] {
        tide.ticks.fetch_add(uses / 4, Relaxed);
        tide.set_capacity(size);
    }
    assert_ne!(tide.keep_time(&mut tide.state.lock()), before);
}

/// After an epoch all pages are in the wrong place, and after a generation all were used lately.
#[test]
fn one_call_moves_few_pages_however_many_wait_for_it() {
    for setting in SETTINGS {
        let frames = 20_000;
        let tide = Tide::new(TideConfig { fixed: Some(setting) }, frames).unwrap();
        tide.set_capacity(frames);
        for frame in 0..frames {
            statement::replay(frame, || tide.insert(frame, page(frame), Access::Normal));
        }
        for round in 1..=4 {
            let now = tide.now().next_epoch().next_generation();
            tide.now.store(now.0, Relaxed);
            for frame in 0..frames {
                statement::replay(frame + round, || tide.hit(frame, Access::Normal));
            }
            let (mut state, mut out) = (tide.state.lock(), Vec::new());
            let mut before = state.departures;
            let mut walk = state.begin_walk(&tide.words, now);
            for end in [1, BATCH, 10 * BATCH] {
                let named = out.len();
                state.name_batch(&tide.words, &mut walk, end, &mut out);
                assert_eq!(out.len(), end.min(named + BATCH));
                let moved = state.departures - before;
                assert!(moved <= (2 * BATCH + SLACK) as u64, "{setting:?}: {moved} moves");
                before = state.departures;
            }
        }
        let departures = tide.state.lock().departures;
        assert!(departures > SLACK as u64, "{setting:?}: there was something to move");
    }
}

#[test]
fn a_walk_ends_when_a_page_leaves_or_a_generation_begins() {
    let tide = Tide::new(TideConfig::default(), 100).unwrap();
    tide.set_capacity(100);
    for frame in 0..100 {
        tide.insert(frame, page(frame), Access::Normal);
    }
    let begun = || {
        let mut state = tide.state.lock();
        let mut walk = state.begin_walk(&tide.words, tide.now());
        assert!(!state.name_batch(&tide.words, &mut walk, 100, &mut Vec::new()));
        walk
    };
    let holds = |walk: &super::state::Walk| walk.holds(&tide.state.lock(), tide.now());
    let walk = begun();
    tide.hit(50, Access::Normal);
    assert!(holds(&walk));
    tide.remove(50);
    assert!(!holds(&walk));
    let walk = begun();
    tide.relocate(60, 50);
    assert!(!holds(&walk));
    let walk = begun();
    assert!(holds(&walk));
    tide.now.store(tide.now().next_generation().0, Relaxed);
    assert!(!holds(&walk));
}

#[test]
fn threads_lose_no_page() {
    let tide = Tide::new(TideConfig::default(), 256).unwrap();
    tide.set_capacity(256);
    for frame in 0..256 {
        tide.insert(frame, page(frame), Access::Normal);
    }
    let resident = Mutex::new((0..256).map(|frame| (frame, frame)).collect::<HashMap<_, _>>());
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (tide, resident) = (&tide, &resident);
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut random = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 8
                };
                for turn in 0..20_000 {
                    statement::begin();
                    for _ in 0..5 {
                        tide.hit(random() % 256, Access::Normal);
                    }
                    if thread > 0 && turn % 4 == 0 {
                        if turn % 64 == 0 {
                            let all = coldest(tide, 1000);
                            assert!(!all.is_empty() && all.len() <= 256, "{}", all.len());
                        }
                        // In the pool, a page's latch keeps others from evicting it at once.
                        let mut resident = resident.lock();
                        let mut named = Vec::new();
                        tide.coldest(3, &mut named);
                        let victim = named[random() as usize % 3];
                        tide.remove(victim);
                        let (no, scan) = (random() % 2000, random() % 3 == 0);
                        let access = if scan { Access::Scan } else { Access::Normal };
                        tide.insert(victim, page(no), access);
                        resident.insert(victim, no);
                    }
                }
            });
        }
    });
    check(&tide, &resident.into_inner());
    assert_eq!(coldest(&tide, 1000).len(), 256);
}

/// A simulated pool, and how it did.
struct Load {
    simulation: Simulation,
    statement: u32,
    random: u64,
}

impl Load {
    fn new(config: ReplacementConfig, frames: u32) -> Load {
        Load { simulation: Simulation::new(&config, frames).unwrap(), statement: 0, random: 1 }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    /// One statement that reads one page, 20,000 of them a second.
    fn read(&mut self, page: u64, access: Access) -> bool {
        self.statement += 1;
        let at_ms = self.statement / 20;
        self.simulation.request(&Request { page, statement: self.statement, access, at_ms })
    }
}

fn policies() -> [ReplacementConfig; 2] {
    [
        ReplacementConfig::Tide(TideConfig::default()),
        ReplacementConfig::Midpoint(MidpointConfig::default()),
    ]
}

#[test]
fn a_resident_table_stays_beside_a_dump_announced_or_not() {
    for announced in [true, false] {
        let misses = policies().map(|config| {
            let (table, frames) = (1700, 2000);
            let mut load = Load::new(config, frames);
            let (mut misses, mut position) = (0, 0);
            for turn in 0..200_000u64 {
                let page = load.random() % table;
                let missed = !load.read(page, Access::Normal);
                misses += u64::from(missed && turn >= 100_000);
                if turn % 4 == 0 {
                    position = (position + 1) % (table * 8);
                    let access = if announced { Access::Scan } else { Access::Normal };
                    // Several rows of the page, as one statement.
                    load.read(1 << 32 | position, access);
                    load.statement -= 1;
                    load.read(1 << 32 | position, access);
                }
            }
            misses
        });
        assert!(misses[0] < 100, "announced {announced}: {misses:?} of 100,000");
        assert!(misses[1] > 10_000, "so the test shows something: {misses:?}");
    }
}

#[test]
fn a_new_working_set_comes_in_about_as_fast_as_it_is_read() {
    let set = 1700;
    let mut load = Load::new(ReplacementConfig::Tide(TideConfig::default()), 2000);
    let mut last = 0;
    for phase in 0..6u64 {
        last = 0;
        for _ in 0..set * 20 {
            let page = load.random() % set;
            last += u64::from(!load.read(phase << 32 | page, Access::Normal));
        }
    }
    assert!(last < set * 21 / 20, "{last} misses for a new set of {set} pages");
}

/// Lookups by a secondary index, a page each and none twice, not known to be a scan until half a
/// pool of them has come; the table that was resident is asked three times for each, no more: it
/// waits for the disk.
#[test]
fn a_table_that_lookups_threw_out_gets_back_in() {
    let (table, frames) = (1700, 2000);
    let mut load = Load::new(ReplacementConfig::Tide(TideConfig::default()), frames);
    for _ in 0..table * 10 {
        let page = load.random() % table;
        load.read(page, Access::Normal);
    }
    let missing = |load: &Load| (0..table).filter(|&page| !load.simulation.contains(page)).count();
    let mut most_missing = 0;
    for lookup in 0..6 * u64::from(frames) {
        let access = if lookup < u64::from(frames) / 2 { Access::Normal } else { Access::Scan };
        load.read(1 << 32 | lookup, access);
        for _ in 0..3 {
            let page = load.random() % table;
            load.read(page, Access::Normal);
        }
        if lookup % 100 == 0 {
            most_missing = most_missing.max(missing(&load));
        }
    }
    assert!(most_missing > 50, "so the test shows something: {most_missing}");
    let missing = missing(&load);
    assert!(missing <= 2, "{missing} of {table} pages are still missing, once {most_missing}");
}

#[test]
fn a_loop_larger_than_the_pool_keeps_a_part_of_itself() {
    let mut load = Load::new(ReplacementConfig::Tide(TideConfig::default()), 1000);
    let mut hits = 0;
    for round in 0..60 {
        for page in 0..2000 {
            hits += u64::from(load.read(page, Access::Normal) && round >= 50);
        }
    }
    assert!(hits > 8_000, "{hits} hits of 20,000, of which 10,000 are possible");
}

/// Hits of a loop over `pages` pages once it has settled, as a share, in `frames` frames of which
/// some are kept free: as many are evicted at once as the evictor of a pool does. At first there
/// are `frames_before`.
fn hits_of_a_loop(setting: Setting, frames_before: u32, frames: u32, pages: u32) -> f64 {
    const LAPS: u32 = 40;
    let tide = Tide::new(TideConfig { fixed: Some(setting) }, frames_before).unwrap();
    tide.set_capacity(frames_before);
    let mut resident: HashMap<u32, u32> = HashMap::new();
    let mut content: Vec<Option<u32>> = vec![None; frames_before as usize];
    let mut free: Vec<u32> = (0..frames_before).collect();
    let (mut limit, mut reserve) = (frames_before, crate::pool_core::reserve_of(frames_before));
    let (mut hits, mut statement) = (0, 0);
    for lap in 0..LAPS {
        if lap == LAPS / 2 {
            (limit, reserve) = (frames, crate::pool_core::reserve_of(frames));
            tide.set_capacity(frames);
        }
        for no in 0..pages {
            statement += 1;
            statement::replay(statement, || {
                if let Some(&frame) = resident.get(&no) {
                    tide.hit(frame, Access::Normal);
                    hits += u32::from(lap >= LAPS * 3 / 4);
                    return;
                }
                let frame = free.pop().expect("some are kept free");
                tide.insert(frame, page(no), Access::Normal);
                resident.insert(no, frame);
                content[frame as usize] = Some(no);
            });
            let available = (limit as usize).saturating_sub(resident.len());
            if available < (reserve - reserve / 4) as usize {
                // A shrink takes its time.
                let missing = (reserve as usize - available).min(64);
                for &victim in coldest(&tide, missing + 64).iter().take(missing) {
                    let gone = content[victim as usize].take().expect("a page is named");
                    resident.remove(&gone);
                    tide.remove(victim);
                    free.push(victim);
                }
            }
        }
    }
    f64::from(hits) / f64::from(pages * LAPS / 4)
}

#[test]
fn victims_named_many_at_a_time_are_contested_like_single_ones() {
    for setting in &SETTINGS[1..] {
        let kept = f64::from(100 - setting.window_pct) / 100.0;
        for (frames, pages) in [(2000, 4000), (2000, 2200)] {
            let most =
                kept * f64::from(frames - crate::pool_core::reserve_of(frames)) / f64::from(pages);
            let hits = hits_of_a_loop(*setting, frames, frames, pages);
            assert!(
                hits > 0.9 * most,
                "{setting:?}: {hits:.3} of {pages} pages, {most:.3} possible"
            );
        }
    }
}

#[test]
fn a_pool_that_was_larger_keeps_as_much_of_a_loop_as_one_that_never_was() {
    for setting in &SETTINGS[1..] {
        let [never, once] = [1000, 8000].map(|before| hits_of_a_loop(*setting, before, 1000, 2000));
        assert!(once > 0.9 * never, "{setting:?}: {once:.3}, and {never:.3} if it never was");
    }
}

#[test]
fn a_scans_page_that_a_query_uses_becomes_a_querys_page() {
    let mut load = Load::new(ReplacementConfig::Tide(TideConfig::default()), 1000);
    for page in 0..500 {
        load.read(1 << 32 | page, Access::Scan);
    }
    for page in 0..100 {
        assert!(load.read(1 << 32 | page, Access::Normal), "free frames were there to take");
    }
    for page in 0..800 {
        load.read(page, Access::Normal);
    }
    let kept = (0..100).filter(|page| load.simulation.contains(1 << 32 | page)).count();
    assert_eq!(kept, 100, "the scan's other pages went first");
}

#[test]
fn a_page_that_comes_back_warm_is_as_hot_as_it_was() {
    let tide = Tide::new(TideConfig::default(), 100).unwrap();
    for (frame, access) in [(0, Access::Prefetch), (1, Access::Prefetch), (2, Access::Scan)] {
        tide.insert(frame, PageId::new(1, frame), access);
    }
    tide.warm(0, 4);
    assert_eq!([0, 1, 2].map(|frame| tide.heat(frame)), [Some(4), Some(0), None]);
    assert_eq!([0, 1].map(|frame| tide.is_hot(frame)), [true, false]);
    assert!(!tide.was_accessed(0), "no query has wanted it yet");
    // Out it goes, and its heat is remembered.
    tide.remove(0);
    tide.insert(3, PageId::new(1, 0), Access::Normal);
    assert_eq!(tide.heat(3), Some(4));
}
