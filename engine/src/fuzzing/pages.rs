//! Targets for what pages hold.

use tidepool_pool::{PAGE_HEADER_SIZE, PageId, PageType, page};

use super::{front, sized};
use crate::format::entry::Entry;
use crate::format::node::{self, Node};
use crate::format::space_header::SpaceHeader;
use crate::overflow;
use crate::page_op::{PageOp, apply_encoded};
use crate::space;

/// Bytes of a page here.
pub(super) const PAGE: usize = 4096;

/// Page header: a stamped page verifies at its own place and nowhere else.
pub fn page(bytes: &[u8]) {
    let mut page = sized(bytes, PAGE);
    let id = page::page_id(&page);
    let _ = page::verify(&page, id);
    page::stamp_checksum(&mut page);
    assert_eq!(page::verify(&page, id), Ok(()));
    let other = PageId::new(id.space, id.no ^ 1);
    assert!(page::is_zero(&page) || page::verify(&page, other).is_err());
    let _ = (page::page_type(&page), page::page_lsn(&page), page::tree_id(&page));
}

/// Node: what `verify` accepts, every reader can read, and changes leave it whole.
pub fn node(bytes: &[u8]) {
    let page = sized(bytes, PAGE);
    let Ok(node) = Node::new(&page) else { return };
    let _ = (node.prefix(), node.lower_fence(), node.upper_fence());
    assert!(node.free_bytes() + node.used_bytes() <= PAGE);
    for index in 0..=node.count() {
        let _ = (node.cell(index), node.child(index));
    }
    if node.verify().is_err() {
        return;
    }
    for index in 0..node.count() {
        let key = node.key(index);
        assert!(node.covers(&key), "key {index} lies outside the fences");
        assert_eq!(node.find(&key), Ok(index));
        assert_eq!(node.find_covered(&key), Ok(index));
        assert!(node.is_at(index, &key));
        let _ = node.payload(index);
        if node.level() > 0 {
            let view = &page[..];
            assert_eq!(node::child_index(view, node::Seek::Key(&key)), Ok(index + 1));
            assert_eq!(node::child_index(view, node::Seek::Before(&key)), Ok(index));
            assert_eq!(node::child(view, index + 1).ok(), node.child(index + 1));
        }
    }
    assert_eq!(
        node::copy_upper_fence(&page[..]).ok(),
        Some(node.upper_fence().map(<[u8]>::to_vec))
    );
    let middle = node.count() / 2;
    if node.count() > 0 {
        changed(&page, &PageOp::RemoveCell { slot: middle as u16 });
        let upper = node.key(middle);
        if node.lower_fence() < &upper[..] {
            changed(&page, &PageOp::SetUpper { keep: middle as u16, upper: Some(&upper) });
        }
        if node.level() == 0 && !node.payload(middle).is_empty() {
            let cut = PageOp::replace_payload(middle, node.payload(middle), &[]);
            changed(&page, &cut);
        }
    }
}

/// The operation succeeds on this page, and leaves a whole node.
fn changed(page: &[u8], op: &PageOp<'_>) {
    let mut page = page.to_vec();
    op.apply(&mut page).expect("a whole node can be changed");
    let node = Node::new(&page).expect("a change leaves a node");
    node.verify().expect("a change leaves a whole node");
}

/// Entry: what decodes encodes to the same bytes.
pub fn entry(bytes: &[u8]) {
    let Some(entry) = Entry::decode(bytes) else { return };
    let mut again = Vec::new();
    entry.encode(&mut again);
    assert_eq!(again, bytes);
    if let Some(overflow) = entry.overflow() {
        let mut value = Vec::new();
        overflow.encode(&mut value);
        assert_eq!(value, entry.value);
    }
}

/// Overflow page: its data lie in the page.
pub fn overflow(bytes: &[u8]) {
    let page = sized(bytes, PAGE);
    if let Some((_, data)) = overflow::parts(&page) {
        assert!(data.len() <= overflow::capacity(PAGE));
    }
}

/// Space header: what parses and belongs here is written as it was read.
pub fn space_header(bytes: &[u8]) {
    let page = sized(bytes, PAGE);
    let Ok(header) = SpaceHeader::parse(&page, "file") else { return };
    let mut again = page.clone();
    let body = header.body();
    again[PAGE_HEADER_SIZE..PAGE_HEADER_SIZE + body.len()].copy_from_slice(&body);
    assert_eq!(SpaceHeader::parse(&again, "file").ok().as_ref(), Some(&header));
    let _ = header.check("file", PAGE, header.space_id, &header.instance);
}

/// Bitmap: a search by words finds what a search by bits finds.
pub fn bitmap(bytes: &[u8]) {
    let ([a, b, c, d], bytes) = front::<4>(bytes);
    let page = sized(bytes, PAGE);
    let covered = space::pages_per_bitmap(PAGE);
    let start = u32::from(u16::from_le_bytes([a, b])) % covered;
    let end = start + u32::from(u16::from_le_bytes([c, d])) % (covered - start + 1);
    let found = space::first_clear(&page, start, end);
    assert_eq!(found, (start..end).find(|&index| !space::bit(&page, index)));
}

/// Page operation: `op length u16 | operation | page`.
pub fn page_op(bytes: &[u8]) {
    let (len, bytes) = front::<2>(bytes);
    let (op, bytes) = bytes.split_at(usize::from(u16::from_le_bytes(len)).min(bytes.len()));
    let before = sized(bytes, PAGE);
    let Ok(decoded) = PageOp::decode(op) else { return };
    let mut encoded = Vec::new();
    decoded.encode(&mut encoded);
    assert_eq!(PageOp::decode(&encoded), Ok(decoded));
    let (mut page, mut again) = (before.clone(), before.clone());
    let result = decoded.apply(&mut page);
    assert_eq!(apply_encoded(&encoded, &mut again), result);
    assert_eq!(page, again, "an operation is a function of the page");
    if result.is_err() {
        return;
    }
    for at in (0..PAGE_HEADER_SIZE).filter(|at| !(12..14).contains(at) && !(24..28).contains(at)) {
        assert_eq!(page[at], before[at], "byte {at} of the header is none of an operation's");
    }
    let was_whole = Node::new(&before).is_ok_and(|node| node.verify().is_ok());
    let changes_cells = matches!(
        decoded,
        PageOp::InsertCell { .. }
            | PageOp::RemoveCell { .. }
            | PageOp::ReplaceCell { .. }
            | PageOp::SetUpper { .. }
            | PageOp::AppendCells { .. }
            | PageOp::SettleCells { .. }
    );
    if was_whole && changes_cells {
        let node = Node::new(&page).expect("an operation on a whole node leaves a node");
        for index in 0..node.count() {
            assert!(node.cell(index).is_some(), "cell {index} lies outside the heap");
        }
        let keeps_order = matches!(decoded, PageOp::RemoveCell { .. })
            || (node.level() == 0 && matches!(decoded, PageOp::ReplaceCell { .. }));
        if keeps_order {
            node.verify().expect("the node is as whole as before");
        }
    }
    if let PageOp::NodeInit { .. } = decoded {
        Node::new(&page).expect("an empty node is a node");
    }
    assert!(page::page_type(&page) != PageType(u16::MAX) || page.len() == PAGE);
}
