//! Inputs to begin with, out of a directory that the engine made.

use std::io;
use std::path::Path;

use tidepool_pool::page::{PageType, page_type};
use tidepool_pool::storage::SimStorage;
use tidepool_pool::trace::{Trace, TraceRequest};
use tidepool_pool::{PageId, page};

use super::directory::{file_names, pages_of, whole_file};
use crate::catalog::{TableRecord, TreeRecord};
use crate::db::export::file;
use crate::format::node::Node;
use crate::hot_list::{self, HOT_LIST_FILE, HotList, Owner};
use crate::page_op::{CellList, PageOp};
use crate::redo::record::{LogRecord, Writer};
use crate::{IndexDef, TableDef, sort};

/// Most seeds of one target: the fuzzer finds the rest.
const SEEDS_MAX: usize = 24;

/// The name of a target, and an input for it.
pub type Seed = (&'static str, Vec<u8>);

/// Seeds for all targets.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    of_pages(&mut seeds);
    of_operations(&mut seeds);
    of_log(&mut seeds);
    of_small_files(&mut seeds);
    of_directory(&mut seeds);
    seeds
}

/// Writes each seed to `dir/target/seed-N`.
///
/// # Errors
/// Those of the file system.
pub fn write(dir: &Path) -> io::Result<usize> {
    let seeds = seeds();
    for (number, (target, bytes)) in seeds.iter().enumerate() {
        let place = dir.join(target);
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join(format!("seed-{number}")), bytes)?;
    }
    Ok(seeds.len())
}

fn of_pages(seeds: &mut Vec<Seed>) {
    let mut counts = std::collections::HashMap::new();
    let mut add = |seeds: &mut Vec<Seed>, target: &'static str, bytes: Vec<u8>| {
        let count = counts.entry(target).or_insert(0);
        if *count < SEEDS_MAX {
            *count += 1;
            seeds.push((target, bytes));
        }
    };
    for stopped in [false, true] {
        for name in file_names().iter().filter(|name| name.ends_with(".tpd")) {
            for bytes in &pages_of(stopped, name) {
                if page::is_zero(bytes) {
                    continue;
                }
                add(seeds, "page", bytes.to_vec());
                match page_type(bytes) {
                    PageType::TREE_LEAF | PageType::TREE_INNER => {
                        add(seeds, "node", bytes.to_vec());
                        let node = Node::new(bytes).expect("the engine made it");
                        for index in (0..node.count()).step_by(20) {
                            add(seeds, "entry", node.payload(index).to_vec());
                        }
                    }
                    PageType::OVERFLOW => add(seeds, "overflow", bytes.to_vec()),
                    PageType::SPACE_HEADER => add(seeds, "space_header", bytes.to_vec()),
                    PageType::BITMAP => {
                        add(seeds, "bitmap", [&[0, 0, 255, 15], &bytes[..]].concat());
                    }
                    PageType::UNDO => add(seeds, "undo_page", bytes.to_vec()),
                    _ => {}
                }
            }
        }
    }
}

/// Every kind of operation, on a leaf of the directory.
fn of_operations(seeds: &mut Vec<Seed>) {
    let pages = pages_of(true, "tables/00000010.tpd");
    let is_full = |page: &&Vec<u8>| {
        page_type(page) == PageType::TREE_LEAF && Node::new(page).is_ok_and(|n| n.count() > 4)
    };
    let Some(leaf) = pages.iter().find(is_full) else { return };
    let node = Node::new(leaf).expect("the engine made it");
    let mut cells = CellList::new();
    cells.push(b"zz", b"1", b"payload");
    let upper = node.key(2);
    let shorter = PageOp::replace_payload(1, node.payload(1), b"\x04short");
    let ops = [
        PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 17 },
        PageOp::Write { offset: 100, bytes: b"bytes" },
        PageOp::Image { page_type: PageType::TREE_LEAF, tree_id: 17, body: &leaf[32..200] },
        PageOp::NodeInit { tree_id: 17, level: 1, first_child: 3, lower: b"a", upper: Some(b"b") },
        PageOp::InsertCell { slot: 1, suffix: b"suffix", payload: b"payload" },
        PageOp::RemoveCell { slot: 1 },
        shorter,
        PageOp::SetUpper { keep: 2, upper: Some(&upper) },
        cells.op(),
        PageOp::SettleCells { slots: &[0xff, 1] },
    ];
    for op in ops {
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        let len = (encoded.len() as u16).to_le_bytes();
        seeds.push(("page_op", [&len[..], &encoded, leaf].concat()));
        let mut writer = Writer::reusing(Vec::new());
        writer.page(16, 4, |out| op.encode(out));
        writer.page(16, 4, |out| op.encode(out));
        writer.page(16, 5, |out| out.extend_from_slice(b"x"));
        seeds.push(("redo_record", writer.bytes().to_vec()));
    }
}

fn of_log(seeds: &mut Vec<Seed>) {
    for record in [
        LogRecord::Epoch(7),
        LogRecord::SpaceCreate(300),
        LogRecord::SpaceDelete(16),
        LogRecord::SpaceUnlist(17),
    ] {
        let mut writer = Writer::reusing(Vec::new());
        writer.log(record);
        seeds.push(("redo_record", writer.bytes().to_vec()));
        seeds.push(("redo_frame", [&[0; 12], writer.bytes()].concat()));
    }
    for name in file_names().iter().filter(|name| name.starts_with("redo/redo.")) {
        let log = whole_file(false, name);
        let head = [&log[32..40], &2u32.to_le_bytes()].concat();
        seeds.push(("redo_frame", [&head[..], &log[4096..5000]].concat()));
        seeds.push(("redo_header", [&[1], &log[..512]].concat()));
    }
}

fn of_small_files(seeds: &mut Vec<Seed>) {
    let record = TableRecord {
        id: 3,
        space: 16,
        lost_changes: false,
        has_notes: true,
        is_discarded: false,
        trees: vec![TreeRecord { tree: 17, root: 2 }, TreeRecord { tree: 18, root: 3 }],
        def: TableDef {
            metadata: b"metadata".to_vec(),
            ..TableDef::new([IndexDef::unique("PRIMARY"), IndexDef::non_unique("k")])
        },
    };
    seeds.push(("catalog_record", record.encode()));
    for stopped in [false, true] {
        seeds.push(("control", [&[3], &whole_file(stopped, "redo/control")[..]].concat()));
    }
    let disk = SimStorage::new(0);
    let owner = Owner { uuid: [9; 16], page_size: 4096 };
    let mut list = HotList::default();
    list.held[4] = vec![PageId::new(1, 5), PageId::new(1, 6), PageId::new(20, 4)];
    list.behind[2] = vec![PageId::new(3, 9)];
    hot_list::save(&disk, owner, &list).expect("a list can be saved");
    let bytes = super::directory::bytes_of(&disk, HOT_LIST_FILE);
    seeds.push(("hot_list", [&[1], &bytes[..160]].concat()));
    let request = |page| TraceRequest { page, at_us: page * 3, ..TraceRequest::default() };
    let trace = Trace::new("t", [5, 5, 5, 9, 2].map(request).to_vec());
    let mut bytes = Vec::new();
    trace.write_to(&mut bytes).expect("memory takes all");
    seeds.push(("trace", bytes));
    seeds.push(("table_export", [&[1], &file::example()[..]].concat()));
    let (run, len) = sort::example_run();
    seeds.push(("sorted_run", [&[1], &(len as u32).to_le_bytes()[..], &run[..400]].concat()));
}

/// Patches of each file at a few places.
fn of_directory(seeds: &mut Vec<Seed>) {
    // A root; both copies of each; a header of a run; what lies behind it.
    let patches: [&[(u32, u8)]; 5] = [
        &[(72, 1)],
        &[(72, 1), (4168, 1), (8264, 1), (12360, 1)],
        &[(16384 + 16, 1)],
        &[(16384 + 72, 255)],
        &[(20480 + 500, 7), (81920 + 60, 9)],
    ];
    for kind in 0..4u8 {
        for patches in patches {
            let bytes = patches
                .iter()
                .flat_map(|(at, byte)| at.to_le_bytes().into_iter().chain([1, *byte]));
            seeds.push(("page_file", [kind].into_iter().chain(bytes).collect()));
        }
    }
    seeds.push(("directory", vec![0]));
    seeds.push(("directory", vec![1]));
    for (number, _) in file_names().iter().enumerate() {
        for (page, offset) in [(0u16, 72u16), (1, 64), (2, 48), (3, 44), (5, 36), (6, 200)] {
            let place = number as u8;
            let [a, b] = page.to_le_bytes();
            let [c, d] = offset.to_le_bytes();
            seeds.push(("directory", vec![number as u8 & 1, place | 64, a, b, c, d, 2, 1, 0]));
        }
    }
    let frame = [0, 63, 0, 0, 0, 0, 6, 0x18, 16, 3, 1, 5, 17];
    seeds.push(("directory", frame.to_vec()));
}
