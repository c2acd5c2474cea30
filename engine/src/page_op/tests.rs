use super::*;
use crate::format::node::Node;
use proptest::prelude::*;

fn encode(op: &PageOp<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    op.encode(&mut bytes);
    bytes
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..max)
}

/// Operations of every kind, with fields of any value; `f` sees each.
fn with_any_op(kind: u8, a: u16, b: u16, c: u32, x: &[u8], y: &[u8], f: impl FnOnce(&PageOp<'_>)) {
    let mut cells = CellList::new();
    cells.push(x, y, x);
    cells.push(y, &[], y);
    f(&match kind % 11 {
        0 => PageOp::Format { page_type: PageType(a), tree_id: c },
        1 => PageOp::Write { offset: a.into(), bytes: x },
        2 => PageOp::Image { page_type: PageType(a), tree_id: c, body: x },
        3 => PageOp::NodeInit { tree_id: c, level: a, first_child: c, lower: x, upper: Some(y) },
        4 => PageOp::NodeInit { tree_id: c, level: b, first_child: c, lower: x, upper: None },
        5 => PageOp::InsertCell { slot: a, suffix: x, payload: y },
        6 => PageOp::RemoveCell { slot: a },
        7 => PageOp::ReplaceCell { slot: a, front: b, back: c as u16, middle: x },
        8 => PageOp::SetUpper { keep: a, upper: b.is_multiple_of(2).then_some(x) },
        9 => PageOp::SettleCells { slots: x },
        _ => cells.op(),
    });
}

proptest! {
    #[test]
    fn encoding_round_trips(kind: u8, a: u16, b: u16, c: u32, x in bytes(300), y in bytes(300)) {
        with_any_op(kind, a, b, c, &x, &y, |op| {
            assert_eq!(PageOp::decode(&encode(op)), Ok(*op));
        });
    }

    #[test]
    fn decoding_arbitrary_bytes_never_panics(junk in bytes(64), mut page in prop::collection::vec(any::<u8>(), 4096)) {
        let _ = apply_encoded(&junk, &mut page);
    }

    /// A page of junk with a plausible node header, and operations that nearly fit it.
    #[test]
    fn applying_to_arbitrary_pages_never_panics(
        seed in prop::collection::vec(any::<u8>(), 4096),
        count in 0u16..80, heap in 0u32..4200, garbage in 0u32..400,
        prefix in 0u16..5, lower in 0u16..20, upper in 0u16..20,
        ops in prop::collection::vec((any::<u8>(), 0u16..90, 0u16..30, 0u32..30, bytes(200), bytes(200)), 1..12),
    ) {
        let mut page = seed;
        for index in 0..usize::from(count) {
            // Cells that reach anywhere.
            let start = node::SLOTS + index * node::SLOT_SIZE;
            page[start + 1] &= 0x0f;
            page[start + 3] = 0;
        }
        page[node::COUNT..node::COUNT + 2].copy_from_slice(&count.to_le_bytes());
        page[node::HEAP_START..node::HEAP_START + 4].copy_from_slice(&heap.to_le_bytes());
        page[node::GARBAGE..node::GARBAGE + 4].copy_from_slice(&garbage.to_le_bytes());
        page[node::PREFIX_LEN..node::PREFIX_LEN + 2].copy_from_slice(&prefix.to_le_bytes());
        page[node::LOWER_LEN..node::LOWER_LEN + 2].copy_from_slice(&lower.to_le_bytes());
        page[node::UPPER_LEN..node::UPPER_LEN + 2].copy_from_slice(&upper.to_le_bytes());
        for (kind, a, b, c, x, y) in &ops {
            with_any_op(*kind, *a, *b, *c, x, y, |op| { let _ = op.apply(&mut page); });
            let _ = node::find::<[u8]>(&page, x);
            let _ = node::child_index::<[u8]>(&page, node::Seek::Key(x));
            let _ = node::child::<[u8]>(&page, usize::from(*a));
            if let Ok(node) = Node::new(&page) {
                for index in 0..node.count() {
                    let _ = node.cell(index);
                }
            }
        }
    }
}

#[test]
fn applying_is_refused_outside_the_page() {
    let mut page = vec![0; 4096];
    let header = PageOp::Write { offset: 31, bytes: &[1] }.apply(&mut page);
    assert_eq!(header, Err(OpError("write into the page header")));
    let end = PageOp::Write { offset: 4095, bytes: &[1, 2] }.apply(&mut page);
    assert_eq!(end, Err(OpError("write beyond the page's end")));
    let far = PageOp::Write { offset: u32::MAX, bytes: &[1] }.apply(&mut page);
    assert_eq!(far, Err(OpError("write beyond the page's end")));
    assert!(page.iter().all(|&byte| byte == 0));
}

#[test]
fn redo_of_small_changes_is_small() {
    let insert = PageOp::InsertCell { slot: 200, suffix: b"abcd", payload: &[7; 100] };
    assert_eq!(encode(&insert).len(), 1 + 2 + 1 + 4 + 100);
    let replace = PageOp::ReplaceCell { slot: 200, front: 13, back: 80, middle: b"x" };
    assert_eq!(encode(&replace).len(), 1 + 2 + 1 + 1 + 1);
}

#[test]
fn settling_shortens_the_headers_it_is_told_to() {
    use crate::csn::TrxId;
    use crate::format::entry::RollPointer;
    use crate::format::entry::{DELETED, Entry, OVERFLOW, SETTLED};
    let mut page = vec![0; 4096];
    let init = PageOp::NodeInit { tree_id: 1, level: 0, first_child: 0, lower: b"", upper: None };
    init.apply(&mut page).unwrap();
    let roll = RollPointer { page: 7, offset: 50 };
    let value = |slot: u16| vec![slot as u8; 12 + usize::from(slot)];
    let payload = |slot: u16, flags: u8| {
        let mut payload = Vec::new();
        let value = &value(slot);
        let trx_id = if flags & SETTLED == 0 { TrxId(9) } else { TrxId::NONE };
        let roll = if flags & SETTLED == 0 { roll } else { RollPointer::NONE };
        Entry { flags, trx_id, roll, value }.encode(&mut payload);
        payload
    };
    let flags = |slot: u16| match slot {
        3 => DELETED,
        5 => OVERFLOW,
        8 => SETTLED,
        _ => 0,
    };
    for slot in 0..20 {
        let payload = payload(slot, flags(slot));
        let suffix = &slot.to_be_bytes();
        PageOp::InsertCell { slot, suffix, payload: &payload }.apply(&mut page).unwrap();
    }
    let before = page.clone();
    let (free, used) = (Node::new(&page).unwrap().free_bytes(), [0b0010_0001, 0b10, 0b1000]);
    PageOp::SettleCells { slots: &used }.apply(&mut page).unwrap();
    let node = Node::new(&page).unwrap();
    node.verify().unwrap();
    assert_eq!(node.free_bytes(), free + 4 * 12);
    for slot in 0..20 {
        let set = [0, 5, 9, 19].contains(&slot);
        let flags = flags(slot) | if set { SETTLED } else { 0 };
        assert_eq!(node.payload(slot.into()), payload(slot, flags), "slot {slot}");
    }
    // What cannot be settled is refused: a delete-mark, a settled one, one that is not there.
    for slots in [&[0b1000][..], &[0, 1], &[0, 0, 0b1_0000]] {
        assert!(PageOp::SettleCells { slots }.apply(&mut before.clone()).is_err());
    }
    assert!(PageOp::SettleCells { slots: &used }.apply(&mut page).is_err());
}
