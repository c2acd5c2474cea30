use super::*;
use crate::btree::tests::fixture;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_pool::storage::{Fault, FaultKind, SimStorage, StorageOp};

pub(super) fn new_space(page_size: usize) -> (Arc<Env>, Arc<Space>) {
    let (env, space) = fixture::space(&fixture::options(64, page_size));
    let mut mtr = Mtr::begin(&env).unwrap();
    create(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    (env, space)
}

fn take(env: &Env, space: &Space, near: u32, count: usize) -> Result<Vec<u32>> {
    let mut mtr = Mtr::begin(env)?;
    let mut allocation = Allocation::reserve(&mut mtr, space, near, count)?;
    let pages = (0..count)
        .map(|_| {
            let (no, page) = allocation.take(&mut mtr);
            mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
            no
        })
        .collect();
    mtr.commit();
    Ok(pages)
}

/// Pages of 4 KiB up to the edge of the first bitmap's range, and over it, without touching them.
fn take_beyond_a_bitmap(env: &Env, space: &Space) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < pages_per_bitmap(4096) as usize + 500 {
        let mut mtr = Mtr::begin(env).unwrap();
        let near = all.last().copied().unwrap_or(0);
        let mut allocation = Allocation::reserve(&mut mtr, space, near, 1).unwrap();
        all.push(allocation.take(&mut mtr).0);
        mtr.commit();
    }
    all
}

fn give(env: &Env, space: &Space, pages: &[u32]) {
    let mut mtr = Mtr::begin(env).unwrap();
    let mut allocation = Allocation::holding(&mut mtr, space, pages).unwrap();
    for &no in pages {
        allocation.free(&mut mtr, no);
    }
    mtr.commit();
}

#[test]
fn a_header_says_whose_space_it_is() {
    let (env, space) = new_space(4096);
    let good = space_header::read(env.pool(), &space).unwrap();
    assert_eq!((good.size_pages, good.free_hint, good.auto_increment), (8, 2, 0));
    let file = space.name();
    let check = |header: &SpaceHeader, size, id, uuid| header.check(file, size, id, uuid).err();
    let what = |error: Option<Error>| error.unwrap().what();
    let uuid = env.instance();
    assert_eq!(check(&good, 4096, 16, &uuid), None);
    let newer = SpaceHeader { format_version: 4, ..good.clone() };
    assert_eq!(
        check(&newer, 4096, 16, &uuid).unwrap().to_string(),
        "tables/00000010.tpd: written in format version 4, this program reads version 3: use the version of Tidepool that wrote it"
    );
    assert_eq!(
        what(check(&good, 16384, 16, &uuid)),
        "tables/00000010.tpd: pages of 4096 bytes, the data directory has 16384"
    );
    assert_eq!(
        what(check(&good, 4096, 17, &uuid)),
        "tables/00000010.tpd: tablespace 16, expected 17: the file was renamed or copied"
    );
    assert_eq!(
        what(check(&good, 4096, 16, &[0; 16])),
        "tables/00000010.tpd: belongs to another data directory"
    );
    let junk = SpaceHeader::parse(&[1; 4096], file).unwrap_err().what();
    assert_eq!(
        junk,
        "tables/00000010.tpd: not a Tidepool tablespace: its first page lacks the magic number"
    );
}

#[test]
fn pages_are_taken_and_freed_like_a_set() {
    let (env, space) = new_space(4096);
    let mut rng = StdRng::seed_from_u64(1);
    let mut taken = BTreeSet::new();
    for _ in 0..2_000 {
        if rng.random_bool(0.55) || taken.is_empty() {
            let near = rng.random_range(0..=taken.last().copied().unwrap_or(0) + 3);
            for no in take(&env, &space, near, rng.random_range(1..6)).unwrap() {
                assert!(taken.insert(no), "page {no} taken twice");
            }
        } else {
            let victim =
                *taken.range(rng.random_range(0..=*taken.last().unwrap())..).next().unwrap();
            taken.remove(&victim);
            give(&env, &space, &[victim]);
        }
    }
    let mut expected = vec![0, 1];
    expected.extend(&taken);
    assert_eq!(allocated_pages(&env, &space).unwrap(), expected);
    let size = space_header::read(env.pool(), &space).unwrap().size_pages;
    assert!(size < *taken.last().unwrap() * 5 / 4 + 16, "grown without need");
}

#[test]
fn pages_come_from_nearby() {
    let (env, space) = new_space(4096);
    let pages: Vec<u32> = (0..10).flat_map(|_| take(&env, &space, 0, 10).unwrap()).collect();
    assert_eq!(pages, (2..102).collect::<Vec<_>>());
    give(&env, &space, &[10, 50, 51, 80]);
    assert_eq!(take(&env, &space, 49, 2).unwrap(), [50, 51]);
    assert_eq!(take(&env, &space, 60, 1).unwrap(), [80]);
    assert_eq!(take(&env, &space, 0, 2).unwrap(), [10, 102]);
}

#[test]
fn a_large_space_has_several_bitmaps() {
    let (env, space) = new_space(4096);
    let per_bitmap = pages_per_bitmap(4096);
    let all = take_beyond_a_bitmap(&env, &space);
    assert!(!all.contains(&(per_bitmap + 1)), "that is the second bitmap");
    assert!(all.contains(&per_bitmap) && all.contains(&(per_bitmap + 2)));
    assert_eq!(allocated_pages(&env, &space).unwrap().len(), all.len() + 3);
    give(&env, &space, &[5, per_bitmap + 7]);
    assert_eq!(take(&env, &space, per_bitmap, 1).unwrap(), [per_bitmap + 7]);
    assert_eq!(take(&env, &space, per_bitmap, 2).unwrap().len(), 2);
    for own in [0, 1, per_bitmap + 1] {
        let mut mtr = Mtr::begin(&env).unwrap();
        assert!(Allocation::holding(&mut mtr, &space, &[own]).is_err());
    }
}

#[test]
fn a_free_tail_is_cut_off() {
    let (env, space) = new_space(4096);
    let per_bitmap = pages_per_bitmap(4096);
    let size = || space_header::read(env.pool(), &space).unwrap().size_pages;
    assert_eq!((cut_free_tail(&env, &space, 1).unwrap(), size()), (0, 8));
    let all = take_beyond_a_bitmap(&env, &space);
    let sound = |allocated: usize| {
        let header = space_header::read(env.pool(), &space).unwrap();
        assert!(header.free_hint <= header.size_pages);
        assert_eq!(allocated_pages(&env, &space).unwrap().len(), allocated);
    };
    let last = *all.last().unwrap();
    let surplus = size() - last - 1;
    assert_eq!(cut_free_tail(&env, &space, surplus + 1).unwrap(), 0);
    assert_eq!((cut_free_tail(&env, &space, 1).unwrap(), size()), (surplus, last + 1));
    // Down to the first page of the second range, which needs its bitmap behind it; then into the
    // first range, without one.
    let free_from = |from: u32| all.iter().copied().filter(move |&no| no >= from);
    for (kept, expected) in
        [(per_bitmap + 1, per_bitmap + 2), (per_bitmap, per_bitmap), (1000, 1000), (2, 8)]
    {
        let taken: BTreeSet<u32> = allocated_pages(&env, &space).unwrap().into_iter().collect();
        for no in free_from(kept).filter(|no| taken.contains(no)) {
            give(&env, &space, &[no]);
        }
        assert!(cut_free_tail(&env, &space, 1).unwrap() > 0);
        assert_eq!(size(), expected, "pages from {kept} on are free");
        let bitmaps = if expected > per_bitmap { 2 } else { 1 };
        sound(free_from(2).filter(|&no| no < kept).count() + 1 + bitmaps);
    }
    // And up again, over the bitmap that comes anew.
    for _ in 0..per_bitmap / 5 + 20 {
        let near = size();
        take(&env, &space, near, 5).unwrap();
    }
    assert!(size() > per_bitmap);
    sound((per_bitmap as usize / 5 + 20) * 5 + 3);
}

#[test]
fn a_full_disk_changes_nothing() {
    let storage = SimStorage::new(1);
    let env = Env::open(Arc::new(storage.clone()), &fixture::options(64, 4096)).unwrap();
    let space = env.create_space(16).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    create(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    take(&env, &space, 0, 6).unwrap();
    storage.inject(Fault::new(StorageOp::SetLen, FaultKind::NoSpace).always());
    let before = space_header::read(env.pool(), &space).unwrap();
    assert!(matches!(take(&env, &space, 0, 1), Err(Error::NoSpace(_))));
    assert_eq!(space_header::read(env.pool(), &space).unwrap(), before);
    storage.clear_faults();
    assert_eq!(take(&env, &space, 0, 1).unwrap(), [8]);
}
