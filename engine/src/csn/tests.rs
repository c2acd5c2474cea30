use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::pause::{PausePoint, with_hook};
use crate::trx::view::{ReadView, ViewSlot, Views};

fn assign(table: &CsnTable, views: &Views) -> TrxId {
    table.assign(TrxId::MAX, || views.bounds()).unwrap()
}

fn commit(table: &CsnTable, id: TrxId) -> Csn {
    table.commit(id, || ())
}

#[test]
fn ids_stop_at_the_limit() {
    let table = CsnTable::new(TrxId(1), Csn::FIRST, &[]);
    assert_eq!(table.assign(TrxId(2), || None), Some(TrxId(1)));
    assert_eq!(table.assign(TrxId(2), || None), None);
    assert_eq!(table.assign(TrxId(3), || None), Some(TrxId(2)));
}

#[test]
fn the_common_view_sees_what_every_view_sees() {
    let table = CsnTable::new(TrxId(5), Csn(9), &[TrxId(3)]);
    let views = Views::default();
    let sees = |id: TrxId| views.common(&table).unwrap().sees(&table, id);
    assert!(sees(TrxId::NONE) && sees(TrxId(4)));
    // Recovery found it unfinished.
    assert!(!sees(TrxId(3)));
    let (early, late) = (assign(&table, &views), assign(&table, &views));
    commit(&table, early);
    assert!(sees(early) && !sees(late));
    let slot = views.claim();
    views.open(slot, &table);
    commit(&table, late);
    let young = assign(&table, &views);
    commit(&table, young);
    assert!(sees(early) && !sees(late) && !sees(young));
    let other = views.claim();
    views.open(other, &table);
    views.close(slot);
    assert!(sees(late) && sees(young));
    // Handed out since, and rolled back: no entry has it.
    let undone = assign(&table, &views);
    table.rolled_back(undone);
    views.close(other);
    assert!(!sees(undone));
    table.rolled_back(TrxId(3));
    assert!(!views.common(&table).unwrap().sees(&table, table.next_id()));
}

/// A chunk that is gone says "ended" of ids that an old view takes for younger than itself.
#[test]
fn an_old_view_keeps_younger_ids_out_of_the_common_view_when_their_chunk_is_gone() {
    let table = CsnTable::new(TrxId(1), Csn::FIRST, &[]);
    let views = Views::default();
    let slot = views.claim();
    let old = views.open(slot, &table);
    let id = TrxId(CHUNK_IDS + 7);
    for _ in 0..3 * CHUNK_IDS {
        commit(&table, assign(&table, &views));
    }
    assert_eq!(table.state(id), TrxState::Ended);
    assert!(!old.sees(&table, id));
    assert!(!views.common(&table).unwrap().sees(&table, id));
    views.close(slot);
    assert!(views.common(&table).unwrap().sees(&table, id));
}

/// What a thread reserves once it sees a commit lies behind that commit's place.
#[test]
fn commits_reserve_their_places_in_the_order_of_their_numbers() {
    const COMMITS: u64 = 2000;
    let table = CsnTable::new(TrxId(5), Csn(9), &[]);
    let (views, end) = (Views::default(), AtomicU64::new(0));
    let commits = &|thread: u64| {
        let (mut places, mut later, slot) = (Vec::new(), Vec::new(), views.claim());
        for _ in 0..COMMITS {
            let id = assign(&table, &views);
            let mut place = 0;
            let number = table.commit(id, || place = end.fetch_add(1 + thread, Ordering::Relaxed));
            places.push((number, place));
            let seen = views.open(slot, &table).csn;
            views.close(slot);
            assert!(seen >= number, "a commit is visible when it returns");
            later.push((seen, end.fetch_add(1, Ordering::Relaxed)));
        }
        (places, later)
    };
    let threads: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || commits(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (places, later): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
    let places: BTreeMap<Csn, u64> = places.into_iter().flatten().collect();
    assert_eq!(places.len() as u64, 4 * COMMITS);
    assert!(places.values().is_sorted());
    assert!(later.into_iter().flatten().all(|(seen, place)| place > places[&seen]));
}

/// Its number distinguishes it from a table, or an index, that is younger: what it sees must not be
/// newer than that.
#[test]
fn a_view_opened_while_a_commit_is_published_does_not_see_it_without_its_number() {
    let table = Arc::new(CsnTable::new(TrxId(1), Csn::FIRST, &[]));
    let views = Arc::new(Views::default());
    let (id, other) = (assign(&table, &views), assign(&table, &views));
    let opened = Arc::new(AtomicBool::new(false));
    let hook = {
        let (table, views, opened) = (Arc::clone(&table), Arc::clone(&views), Arc::clone(&opened));
        move |point| {
            if point == PausePoint::CommitStored {
                // That of another must not take this one for published either.
                for end_other in [false, true] {
                    if end_other {
                        table.rolled_back(other);
                    }
                    let slot = views.claim();
                    let view = views.open(slot, &table);
                    assert_eq!(view.csn, Csn::FIRST);
                    assert!(!view.sees(&table, id));
                    views.release(slot);
                }
                opened.store(true, Ordering::Relaxed);
            }
        }
    };
    let csn = with_hook(hook, || commit(&table, id));
    assert!(opened.load(Ordering::Relaxed));
    let slot = views.claim();
    let view = views.open(slot, &table);
    assert_eq!((view.csn, view.sees(&table, id)), (csn, true));
    assert_eq!(table.low(), table.next_id());
}

#[test]
fn recovered_transactions_stay_active() {
    let table = CsnTable::new(TrxId(5000), Csn(9), &[TrxId(7), TrxId(3000)]);
    assert!(table.is_active(TrxId(7)) && table.is_active(TrxId(3000)));
    assert!(
        !table.is_active(TrxId(6)) && !table.is_active(TrxId(8)) && !table.is_active(TrxId(4999))
    );
    assert_eq!(table.low(), TrxId(7));
    table.rolled_back(TrxId(7));
    assert_eq!(table.low(), TrxId(3000));
    commit(&table, TrxId(3000));
    assert_eq!(table.low(), TrxId(5000));
}

#[test]
fn an_old_view_and_an_old_writer_pin_few_chunks() {
    let table = CsnTable::new(TrxId(1), Csn::FIRST, &[]);
    let views = Views::default();
    let writer = assign(&table, &views);
    let slot = views.claim();
    let dump = views.open(slot, &table);
    let mut last = TrxId(0);
    for _ in 0..50 * CHUNK_IDS {
        last = assign(&table, &views);
        commit(&table, last);
    }
    assert!(table.live_chunks() <= 4, "{}", table.live_chunks());
    assert!(table.is_active(writer));
    assert!(!dump.sees(&table, writer) && !dump.sees(&table, last));
    let fresh = views.claim();
    let now = views.open(fresh, &table);
    assert!(now.sees(&table, last) && now.sees(&table, TrxId(3 * CHUNK_IDS)));
    assert!(!now.sees(&table, writer));
    commit(&table, writer);
    assert_eq!(table.low(), TrxId(last.0 + 1));
    assert!(!dump.sees(&table, writer) && !now.sees(&table, writer));
}

#[derive(Debug, Clone)]
enum Step {
    Begin,
    Commit(usize),
    RollBack(usize),
    Open,
    Close(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => Just(Step::Begin),
        4 => any::<usize>().prop_map(Step::Commit),
        1 => any::<usize>().prop_map(Step::RollBack),
        2 => Just(Step::Open),
        2 => any::<usize>().prop_map(Step::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::test_cases(100)))]
    /// Every open view sees exactly the commits that came before it, however ids and chunks come
    /// and go.
    #[test]
    fn views_follow_a_model(start in 1u64..3000, steps in prop::collection::vec(step(), 1..300), burst in 0u64..1500) {
        let table = CsnTable::new(TrxId(start), Csn::FIRST, &[]);
        let views = Views::default();
        let mut active: Vec<TrxId> = Vec::new();
        let mut committed: BTreeMap<TrxId, Csn> = BTreeMap::new();
        let mut open: Vec<(ViewSlot, ReadView, Csn)> = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            match step {
                Step::Begin => active.push(assign(&table, &views)),
                Step::Commit(at) if !active.is_empty() => {
                    let id = active.swap_remove(at % active.len());
                    committed.insert(id, commit(&table, id));
                }
                Step::RollBack(at) if !active.is_empty() => {
                    table.rolled_back(active.swap_remove(at % active.len()));
                }
                Step::Open => {
                    let slot = views.claim();
                    open.push((slot, views.open(slot, &table), table.published()));
                }
                Step::Close(at) if !open.is_empty() => {
                    let (slot, ..) = open.swap_remove(at % open.len());
                    views.release(slot);
                }
                _ => {}
            }
            if n % 50 == 49 {
                for _ in 0..burst {
                    let id = assign(&table, &views);
                    committed.insert(id, commit(&table, id));
                }
            }
        }
        let horizon = open.iter().map(|(.., csn)| *csn).min().unwrap_or(table.published());
        prop_assert_eq!(views.horizon(&table), Some(horizon));
        prop_assert_eq!(views.count(), open.len());
        let low = active.iter().min().copied().unwrap_or(table.next_id());
        prop_assert_eq!(table.low(), low);
        for id in &active {
            prop_assert!(table.is_active(*id));
        }
        for (_, view, csn) in &open {
            for (id, at) in &committed {
                prop_assert_eq!(view.sees(&table, *id), at <= csn);
            }
            for id in &active {
                prop_assert!(!view.sees(&table, *id));
            }
        }
    }
}

/// Writers commit, readers open views and check that what they see never shrinks and matches what
/// was published before they began.
#[test]
fn views_are_consistent_under_threads() {
    let table = Arc::new(CsnTable::new(TrxId(1), Csn::FIRST, &[]));
    let views = Arc::new(Views::default());
    let stop = Arc::new(AtomicBool::new(false));
    // The newest id each writer has published.
    let published: Arc<Vec<AtomicU64>> = Arc::new((0..2).map(|_| AtomicU64::new(0)).collect());
    let writers: Vec<_> = (0..2)
        .map(|n| {
            let (table, views, published) =
                (Arc::clone(&table), Arc::clone(&views), Arc::clone(&published));
            thread::spawn(move || {
                for _ in 0..10 * CHUNK_IDS {
                    let id = assign(&table, &views);
                    commit(&table, id);
                    published[n].store(id.0, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (table, views, stop, published) =
                (Arc::clone(&table), Arc::clone(&views), Arc::clone(&stop), Arc::clone(&published));
            thread::spawn(move || {
                let slot = views.claim();
                while !stop.load(Ordering::Relaxed) {
                    let before: Vec<u64> =
                        published.iter().map(|id| id.load(Ordering::SeqCst)).collect();
                    let view = views.open(slot, &table);
                    let horizon = views.horizon(&table);
                    assert!(horizon.is_none_or(|csn| csn <= view.csn));
                    for id in before.into_iter().filter(|id| *id > 0) {
                        assert!(view.sees(&table, TrxId(id)));
                    }
                    for id in view.low.0.saturating_sub(5).max(1)..view.high.0 + 5 {
                        let first = view.sees(&table, TrxId(id));
                        std::hint::spin_loop();
                        assert_eq!(first, view.sees(&table, TrxId(id)));
                    }
                    views.close(slot);
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|t| t.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(table.low(), table.next_id());
    // A reader that was not scheduled kept its view, and the chunks behind it, however many the
    // writers filled meanwhile; the next chunk that begins gives them up.
    for _ in 0..CHUNK_IDS {
        let id = assign(&table, &views);
        commit(&table, id);
    }
    assert!(table.live_chunks() <= 4);
}
