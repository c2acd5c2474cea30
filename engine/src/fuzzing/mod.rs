//! What every decoder of bytes from a disk must do with any bytes: the targets of the fuzzer.
//!
//! A target takes bytes and returns, or panics: then it has found a fault. More is demanded than
//! the absence of panics:
//! what decodes, encodes to something that decodes to the same; what a checker accepts, every
//! reader can read; no answer is larger than a bound that follows from the input.
//!
//! Checksums keep a fuzzer from everything behind them, so targets stamp the right one where
//! the first byte of the input, or a patch in it, asks for that. What is found so can't come from
//! a flipped bit, but from
//! an older copy of a page, from a fault elsewhere, or from somebody who writes into the files on
//! purpose.
//!
//! | module | what |
//! |---|---|
//! | [`pages`] | page headers, nodes, entries, overflow pages, space headers, bitmaps, page operations |
//! | [`log`] | redo frames and records, undo pages and records |
//! | [`small_files`] | control file, redo header, hot list, traces, sorted runs, exports, catalog |
//! | [`directory`] | a whole data directory: patched, opened, read, written, closed |
//! | [`seeds`] | inputs to begin with, out of a directory that the engine made |
//!
//! `fuzz/` is the program (`scripts/fuzz`); the tests here run every target on every seed, on
//! mutations of them, and on what the fuzzer has found before.

pub mod directory;
pub mod log;
pub mod pages;
pub mod seeds;
pub mod small_files;
#[cfg(test)]
mod tests;

/// What a fuzzer calls.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 19] = [
    ("page", pages::page),
    ("node", pages::node),
    ("entry", pages::entry),
    ("overflow", pages::overflow),
    ("space_header", pages::space_header),
    ("bitmap", pages::bitmap),
    ("page_op", pages::page_op),
    ("redo_frame", log::redo_frame),
    ("redo_record", log::redo_record),
    ("undo_page", log::undo_page),
    ("catalog_record", small_files::catalog_record),
    ("control", small_files::control),
    ("redo_header", small_files::redo_header),
    ("hot_list", small_files::hot_list),
    ("page_file", directory::page_file),
    ("trace", small_files::trace),
    ("sorted_run", small_files::sorted_run),
    ("table_export", small_files::table_export),
    ("directory", directory::directory),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, target)| *target)
}

/// The bytes, cut or filled with zeroes to this length.
fn sized(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut sized = bytes[..bytes.len().min(len)].to_vec();
    sized.resize(len, 0);
    sized
}

/// The first `N` bytes, zeroes for those that lack, and the rest.
fn front<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (front, rest) = bytes.split_at(bytes.len().min(N));
    let mut array = [0; N];
    array[..front.len()].copy_from_slice(front);
    (array, rest)
}
