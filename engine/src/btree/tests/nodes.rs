//! One node against a `BTreeMap`; splits and merges of nodes.

use crate::btree::reshape::{merge, right_half};
use crate::btree::split::{split_inner, split_leaf};
use crate::format::node::{self, Node, Seek};
use crate::page_op::{PageOp, apply_encoded};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Applies through the encoding, as recovery does.
fn apply(page: &mut [u8], op: &PageOp<'_>) {
    let mut encoded = Vec::new();
    op.encode(&mut encoded);
    let mut recovered = page.to_vec();
    op.apply(page).unwrap();
    apply_encoded(&encoded, &mut recovered).unwrap();
    assert!(recovered == page, "recovery's bytes differ after {op:?}");
}

fn new_node(size: usize, lower: &[u8], upper: Option<&[u8]>) -> Vec<u8> {
    let mut page = vec![0xaa; size];
    apply(&mut page, &PageOp::NodeInit { tree_id: 7, level: 0, first_child: 0, lower, upper });
    page
}

fn verify(page: &[u8], model: &Model) {
    let node = Node::new(page).unwrap();
    node.verify().unwrap();
    assert_eq!(node.count(), model.len());
    for (index, (key, payload)) in model.iter().enumerate() {
        assert_eq!(&node.key(index), key);
        assert_eq!(node.payload(index), payload);
        assert_eq!(node.find(key), Ok(index));
    }
}

/// Keys that share prefixes and heads often, with zero bytes at the end now and then.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(255)], 0..7),
        (0u64..400).prop_map(|n| n.to_be_bytes().to_vec()),
        prop::collection::vec(Just(b'k'), 0..40),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

#[derive(Debug, Clone)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let payload = (any::<u8>(), 0usize..120).prop_map(|(byte, len)| vec![byte; len]);
    prop_oneof![
        4 => (key(), payload).prop_map(|(key, payload)| Change::Put(key, payload)),
        1 => key().prop_map(Change::Remove),
    ]
}

/// Applies a change if it fits; says whether it did.
fn change_node(page: &mut [u8], model: &mut Model, change: &Change) -> bool {
    let node = Node::new(page).unwrap();
    match change {
        Change::Put(key, payload) => match node.find(key) {
            Ok(slot) => {
                if !node.fits_replaced(slot, payload.len()) {
                    return false;
                }
                let old = node.payload(slot).to_vec();
                apply(page, &PageOp::replace_payload(slot, &old, payload));
                model.insert(key.clone(), payload.clone());
            }
            Err(slot) => {
                if !node.fits(key.len(), payload.len()) {
                    return false;
                }
                let suffix = &key[node.prefix_len()..];
                apply(page, &PageOp::InsertCell { slot: slot as u16, suffix, payload });
                model.insert(key.clone(), payload.clone());
            }
        },
        Change::Remove(key) => {
            let found = node.find(key);
            assert_eq!(found.is_ok(), model.contains_key(key));
            if let Ok(slot) = found {
                apply(page, &PageOp::RemoveCell { slot: slot as u16 });
                model.remove(key);
            }
        }
    }
    true
}

proptest! {
    #[test]
    fn a_node_behaves_as_a_sorted_map(changes in prop::collection::vec(change(), 1..250)) {
        let mut page = new_node(4096, b"", None);
        let mut model = Model::new();
        for change in &changes {
            change_node(&mut page, &mut model, change);
        }
        verify(&page, &model);
    }

    #[test]
    fn find_takes_keys_outside_the_fences(keys in prop::collection::btree_set(key(), 3..40), probe in key()) {
        let keys: Vec<_> = keys.into_iter().collect();
        let (lower, upper) = (&keys[0], &keys[keys.len() - 1]);
        let mut page = new_node(4096, lower, Some(upper));
        let mut model = Model::new();
        for key in &keys[..keys.len() - 1] {
            assert!(change_node(&mut page, &mut model, &Change::Put(key.clone(), vec![1])));
        }
        verify(&page, &model);
        let position = model.keys().take_while(|&key| *key < probe).count();
        let expected = if model.contains_key(&probe) { Ok(position) } else { Err(position) };
        assert_eq!(Node::new(&page).unwrap().find(&probe), expected);
    }

    #[test]
    fn splits_keep_every_cell_and_merges_undo_them(
        changes in prop::collection::vec(change(), 60..300),
        new_key in key(),
        long in 0usize..800,
    ) {
        let mut page = new_node(4096, b"", None);
        let mut model = Model::new();
        for change in &changes {
            change_node(&mut page, &mut model, change);
        }
        let new_key = [new_key, vec![b'z'; long]].concat();
        let node = Node::new(&page).unwrap();
        let Some(split) = split_leaf(&node, &new_key) else {
            prop_assert!(model.len() < 2);
            return Ok(());
        };
        let before = page.clone();
        let (init, cells) = right_half(&node, split.at, &split.separator).unwrap();
        let mut right = vec![0; 4096];
        apply(&mut right, &init.op());
        apply(&mut right, &cells.op());
        let keep = PageOp::SetUpper { keep: split.at as u16, upper: Some(&split.separator) };
        apply(&mut page, &keep);
        let high = model.split_off(&split.separator);
        verify(&page, &model);
        verify(&right, &high);

        let (left_node, right_node) = (Node::new(&page).unwrap(), Node::new(&right).unwrap());
        let merge = merge(&left_node, &right_node, usize::MAX).unwrap().unwrap();
        let keep = model.len() as u16;
        apply(&mut page, &PageOp::SetUpper { keep, upper: merge.upper.as_deref() });
        apply(&mut page, &merge.cells.op());
        model.extend(high);
        verify(&page, &model);
        prop_assert_eq!(Node::new(&before).unwrap().used_bytes(), Node::new(&page).unwrap().used_bytes());
    }

    /// Keys and payloads of any permitted length: however the splits fall, the new cell fits in the
    /// end.
    #[test]
    fn splitting_leaves_always_makes_room(cells in prop::collection::vec((0usize..897, 0usize..1985, any::<bool>(), any::<u8>()), 1..40)) {
        let mut leaves: Vec<(Vec<u8>, Model)> = vec![(new_node(4096, b"", None), Model::new())];
        for (key_len, payload_len, shared, byte) in cells {
            let mut key = vec![if shared { b'm' } else { byte }; key_len.min(node::max_key_len(4096))];
            if let Some(last) = key.last_mut() {
                *last = byte;
            }
            let payload_len = payload_len.min(node::max_payload_len(4096, key.len()));
            let put = Change::Put(key.clone(), vec![byte; payload_len]);
            for attempt in 0.. {
                prop_assert!(attempt < 12, "no room after {} splits", attempt);
                let at = leaves.partition_point(|(page, _)| Node::new(page).unwrap().lower_fence() <= &key[..]) - 1;
                let (page, model) = &mut leaves[at];
                if change_node(page, model, &put) {
                    verify(page, model);
                    break;
                }
                let split = split_leaf(&Node::new(page).unwrap(), &key).expect("a split helps");
                let (init, cells) = right_half(&Node::new(page).unwrap(), split.at, &split.separator).unwrap();
                let mut right = vec![0; 4096];
                apply(&mut right, &init.op());
                apply(&mut right, &cells.op());
                apply(page, &PageOp::SetUpper { keep: split.at as u16, upper: Some(&split.separator) });
                let high = model.split_off(&split.separator);
                verify(page, model);
                verify(&right, &high);
                leaves.insert(at + 1, (right, high));
            }
        }
    }
}

#[test]
fn ascending_and_descending_inserts_leave_full_leaves() {
    for descending in [false, true] {
        let mut page = new_node(16384, b"", None);
        let mut model = Model::new();
        for n in 0u64.. {
            let n = if descending { 1_000_000 - n } else { n };
            let key = n.to_be_bytes().to_vec();
            if !change_node(&mut page, &mut model, &Change::Put(key.clone(), vec![1; 100])) {
                let node = Node::new(&page).unwrap();
                let split = split_leaf(&node, &key).unwrap();
                let full = if descending { node.count() - split.at } else { split.at };
                let percent = full * 100 / node.count();
                assert!((92..=95).contains(&percent), "{percent} % full, descending {descending}");
                break;
            }
        }
    }
}

#[test]
fn a_random_split_is_near_the_middle() {
    let mut page = new_node(16384, b"", None);
    let mut model = Model::new();
    let mut n = 1u32;
    loop {
        n = n.wrapping_mul(2_654_435_761).wrapping_add(12345);
        let key = n.to_be_bytes().to_vec();
        if !change_node(&mut page, &mut model, &Change::Put(key.clone(), vec![1; 100])) {
            let node = Node::new(&page).unwrap();
            let split = split_leaf(&node, &key).unwrap();
            assert!((40..=60).contains(&(split.at * 100 / node.count())));
            assert!(split.separator.len() <= 2, "{:?}", split.separator);
            break;
        }
    }
}

#[test]
fn children_are_found_by_separator() {
    let mut page = vec![0; 4096];
    let init =
        PageOp::NodeInit { tree_id: 7, level: 1, first_child: 100, lower: b"b", upper: Some(b"x") };
    apply(&mut page, &init);
    for (slot, key) in [b"d", b"h", b"p"].iter().enumerate() {
        let child = (101 + slot as u32).to_le_bytes();
        apply(
            &mut page,
            &PageOp::InsertCell { slot: slot as u16, suffix: &key[..], payload: &child },
        );
    }
    let view: &[u8] = &page;
    let child = |seek| node::child(view, node::child_index(view, seek).unwrap()).unwrap();
    assert_eq!(child(Seek::First), 100);
    assert_eq!(child(Seek::Key(b"b")), 100);
    assert_eq!(child(Seek::Key(b"cz")), 100);
    assert_eq!(child(Seek::Key(b"d")), 101);
    assert_eq!(child(Seek::Before(b"d")), 100);
    assert_eq!(child(Seek::Before(b"d\0")), 101);
    assert_eq!(child(Seek::Key(b"p")), 103);
    assert_eq!(child(Seek::Before(b"x")), 103);
    assert_eq!(child(Seek::Last), 103);
    assert_eq!(split_inner(&Node::new(&page).unwrap(), b"e"), Some(1));
}
