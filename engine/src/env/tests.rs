//! The environment against a model: random mini-transactions on a few pages, with checkpoints,
//! cleaning, files created and dropped, kills, power cuts at any operation (recovery's too), and
//! clean shutdowns.
//!
//! After each opening the pages must be exactly those of all mini-transactions up to some LSN: each
//! whole or not at all, none missing in between, and none whose flush was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use tidepool_pool::storage::{Fault, FaultKind, SimStorage, StorageOp};
use tidepool_pool::{Access, Lsn, PAGE_HEADER_SIZE, PageType, Space};

use super::*;
use crate::files::*;
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::redo::CAPACITY_MIN_BYTES;
use crate::redo::tests::seeds;
use crate::space::{self, Allocation};

const PAGE_SIZE: usize = 4096;
const PAGES: u32 = 24;

fn options() -> EnvOptions {
    EnvOptions {
        page_size: PAGE_SIZE,
        // Few frames, so that pages are evicted all the time.
        buffer_pool_size_bytes: 20 * PAGE_SIZE as u64,
        ..EnvOptions::small()
    }
}

type PageKey = (u32, u32);

/// Part of a committed mini-transaction: bytes written at an offset behind the page's header.
#[derive(Debug)]
struct Write {
    page: PageKey,
    /// Onto a zeroed page.
    fresh: bool,
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Model {
    /// Since the last opening, in order, each with its end.
    changes: Vec<(Lsn, Vec<Write>)>,
    /// Pages as of the last opening.
    base: BTreeMap<PageKey, Vec<u8>>,
    flushed: Lsn,
    next_space: u32,
}

impl Model {
    /// The pages with all changes up to `lsn`.
    fn pages(&self, lsn: Lsn) -> BTreeMap<PageKey, Vec<u8>> {
        let mut pages = self.base.clone();
        let recovered = self.changes.iter().take_while(|(end, _)| *end <= lsn);
        for write in recovered.flat_map(|(_, writes)| writes) {
            let page = pages.entry(write.page).or_default();
            if write.fresh {
                *page = vec![0; PAGE_SIZE - PAGE_HEADER_SIZE];
            }
            page[write.at..write.at + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        pages
    }

    /// No longer expects anything of some pages.
    fn forget(&mut self, is_it: impl Fn(PageKey) -> bool) {
        self.base.retain(|&key, _| !is_it(key));
        for (_, writes) in &mut self.changes {
            writes.retain(|write| !is_it(write.page));
        }
    }

    fn check(&mut self, env: &Env, seed: u64) -> Result<()> {
        let recovered = env.recovered_lsn();
        assert!(
            recovered >= self.flushed,
            "seed {seed}: flushed to {} but recovered to {}",
            self.flushed.0,
            recovered.0
        );
        let expected = self.pages(recovered);
        for (&(space_id, no), want) in &expected {
            let space = env.space(space_id)?;
            let page = env.pool().shared(&space, no, Access::Normal)?;
            assert!(
                page[PAGE_HEADER_SIZE..] == want[..],
                "seed {seed}: page {no} of space {space_id} (LSN {}) is wrong after recovery to {}",
                page.page_lsn().0,
                recovered.0
            );
        }
        self.base = expected;
        self.changes.clear();
        self.flushed = recovered;
        Ok(())
    }
}

/// The spaces that a life uses, with the pages it made.
struct Life<'a> {
    env: &'a Env,
    model: &'a mut Model,
    spaces: BTreeMap<u32, Arc<Space>>,
    made: BTreeSet<PageKey>,
}

impl Life<'_> {
    fn mini_transaction(&mut self, rng: &mut StdRng) -> Result<()> {
        let mut keys = BTreeSet::new();
        for _ in 0..rng.random_range(1..4) {
            let space = *self.spaces.keys().choose(rng).expect("there are spaces");
            keys.insert((space, rng.random_range(0..PAGES)));
        }
        for &(space, no) in &keys {
            self.spaces[&space].grow_to(no + 1)?;
        }
        let spaces = &self.spaces;
        let mut mtr = Mtr::begin(self.env)?;
        let mut latched = Vec::new();
        for key in keys {
            let fresh = !self.made.contains(&key) || rng.random_ratio(1, 20);
            let space = &spaces[&key.0];
            let handle =
                if fresh { mtr.new_page(space, key.1)? } else { mtr.exclusive(space, key.1)? };
            latched.push((key, fresh, handle));
        }
        if rng.random_ratio(1, 30) {
            // Nothing was changed, so nothing must come of it; but new pages belong to no tree now.
            for (key, ..) in latched.iter().filter(|(_, fresh, _)| *fresh) {
                self.model.forget(|page| page == *key);
                self.made.remove(key);
            }
            return Ok(());
        }
        let mut writes = Vec::new();
        for (key, fresh, handle) in latched {
            if fresh {
                let page_type = PageType::OVERFLOW;
                mtr.apply(handle, &PageOp::Format { page_type, tree_id: 7 });
            }
            let largest = [8, 100, 4000][rng.random_range(0..3)];
            let mut bytes = vec![0; rng.random_range(1..largest)];
            rng.fill(&mut bytes[..]);
            let at = rng.random_range(0..=PAGE_SIZE - PAGE_HEADER_SIZE - bytes.len());
            let offset = (PAGE_HEADER_SIZE + at) as u32;
            mtr.apply(handle, &PageOp::Write { offset, bytes: &bytes });
            self.made.insert(key);
            writes.push(Write { page: key, fresh, at, bytes });
        }
        let end = mtr.commit();
        self.model.changes.push((end, writes));
        Ok(())
    }

    fn step(&mut self, rng: &mut StdRng) -> Result<()> {
        let env = self.env;
        match rng.random_range(0..100) {
            0..55 => self.mini_transaction(rng)?,
            55..65 => {
                if let Some((end, _)) = self.model.changes.iter().choose(rng) {
                    env.flush_log(*end)?;
                    self.model.flushed = self.model.flushed.max(*end);
                }
            }
            65..69 => env.redo().write_to(env.redo().next_lsn())?,
            69..76 => {
                let oldest = env.pool().oldest_dirty_lsn().unwrap_or_default();
                let lsn = Lsn(oldest.0 + rng.random_range(0..10_000));
                env.pool().flush_up_to(lsn, rng.random_range(1..20))?;
            }
            76..80 => _ = env.pool().run_cleaner_step()?,
            80..84 => _ = env.pool().run_evictor_step(),
            84..92 => env.step_checkpoint(Duration::from_millis(rng.random_range(1..2000)))?,
            92..94 => _ = env.checkpoint_all()?,
            94..95 => env.set_redo_capacity(CAPACITY_MIN_BYTES << rng.random_range(0..2))?,
            95..97 if self.spaces.len() < 6 => {
                let id = self.model.next_space;
                self.model.next_space += 1;
                let space = env.create_space(id)?;
                self.spaces.insert(id, space);
            }
            97..98 if self.spaces.len() > 2 => {
                let id = *self.spaces.keys().next_back().expect("there are spaces");
                let space = self.spaces.remove(&id).expect("just found");
                self.made.retain(|key| key.0 != id);
                // Whether it comes to pass or not, its pages are not looked at again.
                self.model.forget(|page| page.0 == id);
                env.drop_space(space.id())?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut storage = SimStorage::new(seed);
    let mut model = Model { next_space: FIRST_TABLE_SPACE, ..Model::default() };
    for _ in 0..rng.random_range(2..7) {
        let kill = rng.random_bool(0.3);
        let down = |storage: &SimStorage| if kill { storage.kill() } else { storage.crash() };
        if rng.random_bool(0.8) {
            let most = [10, 100, 1000][rng.random_range(0..3)];
            let at = storage.operation_count() + rng.random_range(1..most);
            if kill { storage.kill_at(at) } else { storage.crash_at(at) }
        }
        let env = match Env::open(Arc::new(storage.clone()), &options()) {
            Ok(env) => env,
            Err(error) => {
                assert!(storage.is_down(), "seed {seed}: {error}");
                storage = down(&storage);
                continue;
            }
        };
        if let Err(error) = model.check(&env, seed) {
            assert!(storage.is_down(), "seed {seed}: {error}");
            drop(env);
            storage = down(&storage);
            continue;
        }
        let spaces: BTreeSet<u32> = [SYSTEM_SPACE, UNDO_SPACE]
            .into_iter()
            .chain(model.base.keys().map(|key| key.0))
            .collect();
        let spaces = spaces.into_iter().map(|id| Ok((id, env.space(id)?))).collect::<Result<_>>();
        let made = model.base.keys().copied().collect();
        let result = spaces.and_then(|spaces| {
            let mut life = Life { env: &env, model: &mut model, spaces, made };
            for _ in 0..rng.random_range(1..400) {
                life.step(&mut rng)?;
            }
            Ok(())
        });
        assert!(result.is_ok() || storage.is_down(), "seed {seed}: {result:?}");
        match rng.random_range(0..5) {
            _ if storage.is_down() => storage = down(&storage),
            0 => {
                if env.close().is_ok() {
                    model.flushed = env.redo().next_lsn();
                }
                drop(env);
                storage = if storage.is_down() { down(&storage) } else { storage.kill() };
            }
            1 => storage = storage.kill(),
            2 => {
                // Pages are written, but not durable, and the next life can read them.
                let file = ["system", "undo", "tables"][rng.random_range(0..3)];
                storage.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on(file));
                let _ = env.pool().flush_all();
                storage = if storage.is_down() { down(&storage) } else { storage.kill() };
                storage.clear_faults();
            }
            _ => storage = storage.crash(),
        }
    }
    let env = Env::open(Arc::new(storage), &options());
    let env = env.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    model.check(&env, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

#[test]
fn any_crash_leaves_whole_mini_transactions_up_to_some_lsn() {
    for seed in seeds(60) {
        run(seed);
    }
}

#[test]
fn an_abandoned_change_stops_all_writing() {
    let env = Env::open(Arc::new(SimStorage::new(1)), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to((1 << 20) / PAGE_SIZE as u32).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.new_page(&space, 0).unwrap();
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
    let end = mtr.commit();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.exclusive(&space, 0).unwrap();
    mtr.apply(page, &PageOp::Write { offset: 100, bytes: b"half" });
    drop(mtr);
    let error = env.flush_log(end).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the engine has stopped writing: a mini-transaction was abandoned after it had changed pages; \
         restart to recover"
    );
    assert_eq!(Mtr::begin(&env).err(), Some(error));
    assert!(env.pool().flush_all().is_err(), "the page must never be written");
}

#[test]
fn a_failed_log_sync_is_final() {
    let storage = SimStorage::new(1);
    let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
    storage.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("redo/redo."));
    let error = env.redo().flush().unwrap_err();
    assert!(matches!(error, Error::Crashed(_)), "{error}");
    assert!(error.to_string().contains("redo/redo.00000001"), "{error}");
    assert_eq!(env.redo().flush(), Err(error.clone()), "not tried again");
    assert_eq!(Mtr::begin(&env).err(), Some(error));
}

/// Threads that wait for each other in every way there is: for latches, for frames of a pool too
/// small for them, for a log too small for them, for syncs. Each adds to a counter on two pages in
/// one mini-transaction.
#[test]
fn threads_on_a_tiny_pool_and_a_tiny_log_come_to_an_end() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 400;
    const COUNTERS: u32 = 40;
    let storage = SimStorage::new(1);
    let options = EnvOptions {
        buffer_pool_size_bytes: 48 * PAGE_SIZE as u64,
        background: true,
        flush_log_interval: Duration::from_millis(5),
        ..options()
    };
    let env = Env::open(Arc::new(storage.clone()), &options).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(COUNTERS).unwrap();
    for no in 0..COUNTERS {
        let mut mtr = Mtr::begin(&env).unwrap();
        let page = mtr.new_page(&space, no).unwrap();
        mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
        mtr.commit();
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (env, space) = (&env, &space);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                for round in 0..ROUNDS {
                    let first = rng.random_range(0..COUNTERS - 1);
                    let second = rng.random_range(first + 1..COUNTERS);
                    let mut mtr = Mtr::begin(env).unwrap();
                    for no in [first, second] {
                        let page = mtr.exclusive(space, no).unwrap();
                        let at = PAGE_HEADER_SIZE;
                        let counter = mtr.page(page)[at..at + 8].try_into().unwrap();
                        let counter = u64::from_le_bytes(counter) + 1;
                        // Mostly to fill the log.
                        let mut bytes = vec![round as u8; 1000];
                        bytes[..8].copy_from_slice(&counter.to_le_bytes());
                        mtr.apply(page, &PageOp::Write { offset: at as u32, bytes: &bytes });
                    }
                    let end = mtr.commit();
                    match round % 4 {
                        0 => env.redo().write_to(end).unwrap(),
                        1 => {}
                        _ => env.flush_log(end).unwrap(),
                    }
                    if thread == 0 && round % 50 == 0 {
                        env.set_redo_capacity(CAPACITY_MIN_BYTES << (round / 50 % 2)).unwrap();
                    }
                }
            });
        }
    });
    let stats = env.redo().stats();
    assert!(stats.next_lsn > 4 * CAPACITY_MIN_BYTES, "the log went round: {stats:?}");
    env.redo().flush().unwrap();
    drop(space);
    drop(env);
    let env = Env::open(Arc::new(storage.crash()), &options).unwrap();
    let space = env.space(FIRST_TABLE_SPACE).unwrap();
    let sum: u64 = (0..COUNTERS)
        .map(|no| {
            let page = env.pool().shared(&space, no, Access::Normal).unwrap();
            u64::from_le_bytes(page[PAGE_HEADER_SIZE..][..8].try_into().unwrap())
        })
        .sum();
    assert_eq!(sum, 2 * THREADS * ROUNDS);
}

/// A page that was written but not synced when the process died looks whole to the next one. The
/// checkpoint must not pass it on the strength of that, for a power cut still takes it.
#[test]
fn what_a_killed_process_left_unsynced_is_synced_before_it_is_trusted() {
    let options = options();
    for seed in 0..20 {
        let storage = SimStorage::new(seed);
        let env = Env::open(Arc::new(storage.clone()), &options).unwrap();
        let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
        space.grow_to(1).unwrap();
        let change = |fresh: bool, bytes: &[u8]| {
            let mut mtr = Mtr::begin(&env).unwrap();
            let page = if fresh { mtr.new_page(&space, 0) } else { mtr.exclusive(&space, 0) };
            let page = page.unwrap();
            if fresh {
                mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
            }
            mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes });
            mtr.commit()
        };
        change(true, b"old");
        env.checkpoint_all().unwrap();
        env.flush_log(change(false, b"new")).unwrap();
        storage.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("tables"));
        env.pool().flush_all().unwrap_err();
        drop((space, env));
        let storage = storage.kill();
        storage.clear_faults();
        let env = Env::open(Arc::new(storage.clone()), &options).unwrap();
        env.checkpoint_all().unwrap();
        drop(env);
        let env = Env::open(Arc::new(storage.crash()), &options).unwrap();
        let space = env.space(FIRST_TABLE_SPACE).unwrap();
        let page = env.pool().shared(&space, 0, Access::Normal).unwrap();
        assert_eq!(&page[PAGE_HEADER_SIZE..][..3], b"new", "seed {seed}");
    }
}

/// The log says that the file is gone, but not for ever; and a process that was killed may have
/// removed it without a sync.
#[test]
fn a_file_whose_removal_was_killed_does_not_come_back() {
    let name = space_file_name(FIRST_TABLE_SPACE);
    let mut gone = 0;
    for ahead in 1..8 {
        let storage = SimStorage::new(ahead);
        let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
        let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
        env.redo().flush().unwrap();
        storage.kill_at(storage.operation_count() + ahead);
        let _ = env.drop_space(space.id());
        drop((space, env));
        let storage = storage.kill();
        gone += u32::from(!storage.exists(&name).unwrap());
        let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
        let dropped = !storage.exists(&name).unwrap();
        env.checkpoint_all().unwrap();
        for outcome in 0..20 {
            let storage = storage.crash_with(outcome);
            let is_back = dropped && storage.exists(&name).unwrap();
            assert!(!is_back, "operation {ahead}, outcome {outcome}");
        }
    }
    assert!(gone > 0, "it was never removed before the kill");
}

/// Its pages are changed already, and must say so, though no log takes the change any more.
#[test]
fn a_mini_transaction_that_no_failed_log_has_room_for_comes_to_its_end() {
    let env = Env::open(Arc::new(SimStorage::new(1)), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(1).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.new_page(&space, 0).unwrap();
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
    while mtr.log_len() <= options().redo_buffer_bytes {
        mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: &[1; 2000] });
    }
    let error = env.crash("on purpose".into());
    mtr.commit();
    assert_eq!(env.redo().flush(), Err(error));
}

/// Of two that had begun before, the second has less to say, and a page's LSN never falls.
#[test]
fn mini_transactions_after_a_failure_may_share_a_page() {
    let env = Env::open(Arc::new(SimStorage::new(1)), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(1).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    let page = mtr.new_page(&space, 0).unwrap();
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
    mtr.commit();
    let begun = [Mtr::begin(&env).unwrap(), Mtr::begin(&env).unwrap()];
    env.crash("on purpose".into());
    for (mut mtr, len) in begun.into_iter().zip([1000, 1]) {
        let page = mtr.exclusive(&space, 0).unwrap();
        mtr.apply(page, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: &vec![1; len] });
        let end = mtr.commit();
        assert!(env.redo().flush_to(end).is_err() && end > env.redo().next_lsn());
    }
}

#[test]
fn checkpoints_of_several_threads_never_move_back() {
    const THREADS: u32 = 4;
    let env = Env::open(Arc::new(SimStorage::new(1)), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    space.grow_to(THREADS).unwrap();
    std::thread::scope(|scope| {
        for no in 0..THREADS {
            let (env, space) = (&env, &space);
            scope.spawn(move || {
                for _ in 0..300 {
                    let mut mtr = Mtr::begin(env).unwrap();
                    let page = mtr.new_page(space, no).unwrap();
                    let op = PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 };
                    mtr.apply(page, &op);
                    mtr.commit();
                    // Pages in another thread's hands are an error, a checkpoint that moves back a
                    // panic.
                    let _ = env.checkpoint_all();
                }
            });
        }
    });
}

/// Once it is closed, another process may have the directory.
#[test]
fn a_straggler_lets_no_file_grow_in_a_closed_directory() {
    let storage = SimStorage::new(1);
    let env = Env::open(Arc::new(storage.clone()), &options()).unwrap();
    let space = env.create_space(FIRST_TABLE_SPACE).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    space::create(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    let mut mtr = Mtr::begin(&env).unwrap();
    let free = space.page_count() as usize;
    env.close().unwrap();
    let before = space.file().usage().file_bytes;
    let error = Allocation::reserve(&mut mtr, &space, 0, free).map(drop).unwrap_err();
    assert_eq!(error, Error::Closed);
    assert_eq!(space.file().usage().file_bytes, before);
}
