use std::collections::HashMap;

use proptest::prelude::*;

use super::directory::{Directory, Occupancy, TOMBSTONE};
use super::sync::Ordering;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::test_cases(100)))]
    #[test]
    fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..200), 1..2000)) {
        let directory = Directory::new(64);
        let mut occupancy = Occupancy::default();
        let mut model: HashMap<u64, usize> = HashMap::new();
        for (n, (insert, number)) in steps.into_iter().enumerate() {
            if model.remove(&number).is_some() {
                directory.remove(&mut occupancy, number);
            } else if insert && model.len() < 32 {
                directory.insert(&mut occupancy, number, n);
                model.insert(number, n);
            }
            prop_assert_eq!(occupancy.entries, model.len());
            let words = directory.present().iter().map(|slot| slot.load(Ordering::Relaxed));
            let tombstones = words.filter(|word| *word == TOMBSTONE).count();
            prop_assert_eq!(occupancy.tombstones, tombstones);
            for number in 0..200 {
                prop_assert_eq!(directory.find(number), model.get(&number).copied());
            }
        }
    }
}

/// 100 million transactions pass, with one that stays and others that go out of their order.
#[test]
fn searches_stay_short_however_many_chunks_have_gone() {
    const IDS_PER_CHUNK: u64 = 1024;
    let directory = Directory::new(1 << 12);
    let mut occupancy = Occupancy::default();
    directory.insert(&mut occupancy, 0, 0);
    let newest = 100_000_000 / IDS_PER_CHUNK;
    let mut longest = 0;
    let mut total = 0;
    for number in 1..=newest {
        directory.insert(&mut occupancy, number, 1);
        // Eight overlap, and of two neighbours the later one goes first.
        if number > 9 {
            directory.remove(&mut occupancy, (number - 8) ^ 1);
        }
        let probes = directory.probes(number / 2);
        longest = longest.max(probes);
        total += probes;
    }
    assert!(longest <= 64, "{longest} slots");
    assert!(total as u64 <= 2 * newest, "{total} slots in {newest} searches");
    assert_eq!(directory.find(0), Some(0));
}
