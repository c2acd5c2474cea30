use super::*;
use crate::btree::tests::{SPACE_ID, fixture};
use crate::format::space_header::TABLE_AREA;
use crate::page_op::PageOp;
use crate::space;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use tidepool_pool::storage::SimStorage;
use tidepool_pool::{Lsn, PAGE_HEADER_SIZE};

const TREE_ID: u32 = 5;

fn new_space(env: &Env) -> Result<Arc<Space>> {
    let space = env.create_space(SPACE_ID)?;
    let mut mtr = Mtr::begin(env)?;
    space::create(&mut mtr, env, &space)?;
    mtr.commit();
    Ok(space)
}

fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut value = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut value[..]);
    value
}

/// Stores a value whose head is noted, in the same mini-transaction, in the space header's table
/// area: as an undo record would.
fn store(env: &Env, space: &Space, value: &[u8], note_at: u32) -> Result<u32> {
    let mut mtr = Mtr::begin(env)?;
    let note = mtr.exclusive(space, 0)?;
    let mut allocation = Allocation::reserve(&mut mtr, space, 0, 1)?;
    let (head, stored) = start(&mut mtr, &mut allocation, TREE_ID, value);
    mtr.apply(note, &PageOp::Write { offset: note_at, bytes: &head.to_le_bytes() });
    mtr.commit();
    extend(env, space, TREE_ID, head, &value[stored..])?;
    Ok(head)
}

/// Frees what a note says, and the note with the head.
fn forget(env: &Env, space: &Space, head: u32, note_at: u32) -> Result<()> {
    free_tail(env, space, TREE_ID, head)?;
    let mut mtr = Mtr::begin(env)?;
    let note = mtr.exclusive(space, 0)?;
    let mut allocation = Allocation::holding(&mut mtr, space, &[head])?;
    free_head(&mut mtr, &mut allocation, space, head);
    mtr.apply(note, &PageOp::Write { offset: note_at, bytes: &0u32.to_le_bytes() });
    mtr.commit();
    Ok(())
}

#[test]
fn values_of_any_length_come_back() {
    let (env, _) = fixture::space(&fixture::options(64, 4096));
    let space = env.space(SPACE_ID).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    space::create(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    let room = capacity(4096);
    let mut heads = Vec::new();
    for len in [1, room - 1, room, room + 1, 2 * room, 100 * room + 77, 1_000_000] {
        let value = value(len, len as u64);
        let mut mtr = Mtr::begin(&env).unwrap();
        let mut allocation = Allocation::reserve(&mut mtr, &space, 0, 1).unwrap();
        let (head, stored) = start(&mut mtr, &mut allocation, TREE_ID, &value);
        mtr.commit();
        extend(&env, &space, TREE_ID, head, &value[stored..]).unwrap();
        heads.push((head, value));
    }
    for (head, value) in &heads {
        let mut found = b"before ".to_vec();
        read(
            &env,
            &space,
            Chain { tree_id: TREE_ID, head: *head, len: value.len() as u64 },
            &mut found,
        )
        .unwrap();
        assert!(found == [b"before ", &value[..]].concat());
    }
    let wrong =
        read(&env, &space, Chain { tree_id: TREE_ID, head: heads[0].0, len: 2 }, &mut Vec::new())
            .unwrap_err();
    assert_eq!(
        wrong.to_string(),
        format!(
            "tables/00000010.tpd: page {} is corrupt: the overflow chain from here ends 1 bytes too early: restore the data \
             directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
            heads[0].0
        )
    );
    let wrong = read(
        &env,
        &space,
        Chain { tree_id: TREE_ID + 1, head: heads[0].0, len: 1 },
        &mut Vec::new(),
    )
    .unwrap_err();
    assert!(wrong.to_string().contains("an overflow page of tree 5, not 6"), "{wrong}");
    let mut freed = 0;
    for (head, value) in &heads {
        let pages = free(&env, &space, TREE_ID, *head).unwrap();
        assert_eq!(pages, value.len().div_ceil(room) as u64);
        freed += pages;
    }
    assert!(freed > 300);
    assert_eq!(space::allocated_pages(&env, &space).unwrap(), [0, 1]);
    let again = Allocation::holding(&mut Mtr::begin(&env).unwrap(), &space, &[heads[0].0]);
    assert!(again.unwrap_err().to_string().contains("to be freed, but not allocated to anyone"));
}

/// Power cuts at any point of storing and freeing: what the notes lead to is exactly what is
/// allocated.
#[test]
fn a_crash_leaks_no_page() {
    for seed in crate::redo::tests::seeds(30) {
        let mut rng = StdRng::seed_from_u64(seed);
        let options = fixture::options(rng.random_range(20..60), 4096);
        let storage = SimStorage::new(seed);
        let mut made = Lsn(u64::MAX);
        storage.crash_at(storage.operation_count() + rng.random_range(1..1_200));
        let result = (|| -> Result<()> {
            let env = Env::open(Arc::new(storage.clone()), &options)?;
            let space = new_space(&env)?;
            made = env.redo().next_lsn();
            let mut heads = [0; 8];
            for _ in 0..60 {
                let slot = rng.random_range(0..heads.len());
                let note_at = (TABLE_AREA.start + 4 * slot) as u32;
                match std::mem::take(&mut heads[slot]) {
                    0 => {
                        let value = value(rng.random_range(1..60_000), seed);
                        heads[slot] = store(&env, &space, &value, note_at)?;
                    }
                    head => forget(&env, &space, head, note_at)?,
                }
                if rng.random_ratio(1, 5) {
                    env.redo().flush()?;
                    env.step_checkpoint(std::time::Duration::from_secs(1))?;
                }
            }
            Ok(())
        })();
        assert!(result.is_ok() || storage.is_down(), "seed {seed}: {result:?}");
        let storage = if storage.is_down() { storage.crash() } else { storage.kill() };
        let env = Env::open(Arc::new(storage), &options).unwrap();
        if env.recovered_lsn() < made {
            continue;
        }
        let space = env.space(SPACE_ID).unwrap();
        for slot in 0..8 {
            let note_at = TABLE_AREA.start + 4 * slot;
            let page = env.pool().shared(&space, 0, Access::Normal).unwrap();
            let head = u32::from_le_bytes(page[note_at..note_at + 4].try_into().unwrap());
            drop(page);
            if head != 0 {
                forget(&env, &space, head, note_at as u32).unwrap();
            }
        }
        assert_eq!(space::allocated_pages(&env, &space).unwrap(), [0, 1], "seed {seed}");
    }
}

/// Each chain is freed by a separate thread: one that waits for itself fails the test instead of
/// stopping it.
#[test]
fn a_chain_that_leads_back_into_itself_is_an_error() {
    let env = Env::open(Arc::new(SimStorage::new(1)), &fixture::options(200, 4096)).unwrap();
    let space = new_space(&env).unwrap();
    let room = capacity(4096);
    // Of `len` pages; the last one's link goes to this one.
    for (len, to) in [(1, 0), (2, 0), (5, 0), (5, 2), (5, 4), (40, 0), (40, 1), (40, 39)] {
        let note_at = TABLE_AREA.start as u32;
        let head = store(&env, &space, &value(len * room, 1), note_at).unwrap();
        let chain = pages(&env, &space, TREE_ID, head).unwrap();
        assert_eq!(chain.len(), len);
        let mut mtr = Mtr::begin(&env).unwrap();
        let last = mtr.exclusive(&space, chain[len - 1]).unwrap();
        let bytes = &chain[to].to_le_bytes();
        mtr.apply(last, &PageOp::Write { offset: NEXT as u32, bytes });
        mtr.commit();
        let (done, outcome) = std::sync::mpsc::channel();
        let (env, space) = (env.clone(), space.clone());
        std::thread::spawn(move || done.send(free(&env, &space, TREE_ID, head)));
        let outcome = outcome.recv_timeout(std::time::Duration::from_secs(60));
        let error = outcome.expect("it ends").unwrap_err().to_string();
        let expected = match to {
            // What the circle leads to went with an earlier batch.
            1 if len > FREE_BATCH => "page type 0, not an overflow page",
            _ => "overflow chain in a circle",
        };
        assert!(error.contains(expected), "{len} pages, the last leads to {to}: {error}");
    }
}

#[test]
fn a_page_holds_all_but_its_header() {
    assert_eq!(capacity(16384), 16384 - PAGE_HEADER_SIZE - 8);
}
