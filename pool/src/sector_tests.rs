//! Bad sectors of packed files: what cannot be read, written or cleaned holds up nothing else.

use std::ops::Range;
use std::sync::Arc;

use tidepool_store::packed::{Codec, Image, Stream};

use crate::config::PoolConfig;
use crate::page::{Lsn, PageSize};
use crate::pool::Pool;
use crate::space::Space;
use crate::storage::{Ballast, Fault, FaultKind, SimStorage, Storage, StorageOp};
use crate::test_files;

const PAGE: usize = 4096;
/// The slots of a file's root.
const ROOTS: Range<u64> = 0..4 * 4096;

fn pool_on(sim: &SimStorage, ballast: Option<Arc<Ballast>>) -> Arc<Pool> {
    let config = PoolConfig {
        page_size: PageSize::new(PAGE).unwrap(),
        size_bytes: 4 << 20,
        background: false,
        ballast,
        ..PoolConfig::default()
    };
    Pool::new(config, Arc::new(sim.clone())).unwrap()
}

fn open(sim: &SimStorage, pool: &Pool, id: u32) -> Arc<Space> {
    let file = sim.create(&format!("{id}.tpd")).unwrap();
    let page_size = PageSize::new(PAGE).unwrap();
    pool.open_space(id, test_files::create(file, id, page_size)).unwrap()
}

fn break_place(sim: &SimStorage, space: &Space, op: StorageOp, place: Range<u64>) {
    sim.inject(Fault::new(op, FaultKind::Io).on(space.name()).within(place).always());
}

/// Bytes that do not shrink.
fn noise(no: u32) -> Vec<u8> {
    let mut state = u64::from(no) << 20 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..PAGE / 8).flat_map(|_| next().to_le_bytes()).collect()
}

/// Writes images of pages past the pool.
fn write(space: &Space, pages: impl Iterator<Item = u32>) {
    let image = |no| Image::plain((space.id(), no), Codec::Raw, noise(no));
    let images: Vec<Image> = pages.map(image).collect();
    for batch in images.chunks(200) {
        space.file().write(Stream::Flushed, batch).unwrap();
    }
}

fn dirty(pool: &Pool, space: &Space, no: u32, lsn: u64) {
    let mut page = pool.new_page(space, no).unwrap();
    page.bytes_mut()[32..].copy_from_slice(&noise(no)[32..]);
    pool.mark_dirty(&mut page, Lsn(lsn), Lsn(lsn + 10));
}

/// Upkeep until nothing is due, or nothing can be done any more.
fn keep_up(pool: &Pool) {
    for step in 0.. {
        assert!(step < 500, "it ends");
        match pool.run_upkeep_step() {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
}

#[test]
fn a_file_that_can_have_no_checkpoint_holds_up_no_other() {
    let sim = SimStorage::new(1);
    let pool = pool_on(&sim, None);
    let (broken, sound) = (open(&sim, &pool, 16), open(&sim, &pool, 17));
    for space in [&broken, &sound] {
        write(space, 0..4000);
    }
    // Its checkpoints and its cleaning fail from now on.
    break_place(&sim, &broken, StorageOp::Write, ROOTS);
    keep_up(&pool);
    assert!(broken.file().wants_checkpoint() && !sound.file().wants_checkpoint());
    // Much of the sound one is dead then.
    for round in 0..3 {
        write(&sound, (0..4000).filter(|no| no % 8 > round));
    }
    keep_up(&pool);
    let usage = pool.packed_usage();
    assert!(usage.occupied_bytes < usage.live_bytes * 14 / 10 + (5 << 20), "{usage:?}");
    assert!(usage.moved_bytes > 0, "{usage:?}");
    // With the sector in order again, the other has its turn.
    sim.clear_faults();
    keep_up(&pool);
    assert!(!broken.file().wants_checkpoint());
}

/// The emptiest segment can't be read: the ballast helps all the same.
#[test]
fn the_ballast_is_released_though_a_segment_cannot_be_read() {
    let sim = SimStorage::new(1);
    let ballast = Arc::new(Ballast::open(&sim, "ballast", 8 << 20).unwrap());
    let pool = pool_on(&sim, Some(ballast.clone()));
    let space = open(&sim, &pool, 16);
    write(&space, 0..600);
    space.file().checkpoint().unwrap();
    write(&space, (0..14).filter(|no| *no != 5));
    space.file().checkpoint().unwrap();
    let stuck = space.file().find(16, 5).unwrap().unwrap().offset();
    break_place(&sim, &space, StorageOp::Read, stuck..stuck + 1);
    sim.set_capacity(Some(sim.used_bytes()));
    (1000..1400).for_each(|no| dirty(&pool, &space, no, u64::from(no) * 10));
    pool.flush_all().unwrap();
    assert_eq!(ballast.bytes(), 0);
}

/// A leaf of a map can't be read: the pages below it stay dirty, with an error that names them. All
/// others are written.
#[test]
fn pages_below_a_leaf_that_cannot_be_read_fail_alone() {
    let sim = SimStorage::new(1);
    let pool = pool_on(&sim, None);
    let (broken, sound) = (open(&sim, &pool, 16), open(&sim, &pool, 17));
    for space in [&broken, &sound] {
        write(space, [5, 2000].into_iter());
        space.file().checkpoint().unwrap();
    }
    // Nothing can be read but the first leaf, which is in memory.
    broken.file().trim_map(0);
    broken.file().find(16, 5).unwrap();
    break_place(&sim, &broken, StorageOp::Read, ROOTS.end..u64::MAX);
    let dirtied = [(&broken, 5), (&broken, 6), (&broken, 2000), (&sound, 5), (&sound, 2000)];
    for (at, (space, no)) in (1..).zip(dirtied) {
        dirty(&pool, space, no, at * 100);
    }
    for _ in 0..3 {
        let error = pool.flush_all().unwrap_err().to_string();
        assert!(error.starts_with("16.tpd: page 2000 is corrupt: its place in"), "{error}");
        assert_eq!(pool.oldest_dirty_lsn(), Some(Lsn(300)));
        assert_eq!(pool.stats().pages_dirty, 1);
    }
    assert!(pool.last_write_error().unwrap().to_string().contains("page 2000"));
    assert!(pool.has_unwritten_pages(16) && !pool.has_unwritten_pages(17));
    // Dropped, it holds nothing up.
    pool.close_space(&broken, true).unwrap();
    assert!(!pool.has_unwritten_pages(16));
    pool.flush_all().unwrap();
    assert_eq!(pool.oldest_dirty_lsn(), None);
}
