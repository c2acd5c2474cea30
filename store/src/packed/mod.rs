//! Packed files: pages compressed and packed into a log of segments.
//!
//! # How a page gets there
//! A batch of pages becomes images (`codec.rs`), the images a run (`run.rs`): one header that names
//! them, then the images side by side. The run is written behind the one before it, in the segment
//! that is being filled (`segments.rs`), and synced. Then the map (`map/`) leads to the new images,
//! and the old ones are dead. Nothing that the map leads to is ever written over, so no write that
//! a crash interrupts can hurt, and nothing is written twice.
//!
//! If the file has a key to write with, the images are encrypted before they get their places
//! (`sealing.rs`), and `reseal.rs` writes those again that are older than the key.
//!
//! # How a start finds it
//! Now and then a checkpoint (`checkpoint.rs`) writes the dirty nodes of the map, and after them a
//! root (`root.rs`) that leads to them. A start (`open.rs`) takes the newest root, and follows the
//! chain of runs from there. A file is consistent by itself: the redo log says nothing about
//! places.
//!
//! # How room comes back
//! A segment without images is filled again. `clean.rs` empties segments that have few, by writing
//! those into a new run; `victims.rs` finds them. `reserve.rs` says for what room is kept.
//!
//! # What counts as durable
//! 1. A run is durable when it is synced. Only then the map leads to its images, and only then the
//!    caller counts its pages as clean.
//! 2. A segment is filled again when the map leads to no image in it, the newest durable root to no
//!    node of the map in it, and no run since that root lies in it.
//! 3. A root is written when all that it leads to is durable.
//! 4. A root counts when it is synced. One that failed may be there all the same: nothing is
//!    written over what it leads to until a later one counts.
//! 5. A start syncs the file before it believes what it reads.
//!
//! # What a start may not find out
//! If both copies of the newest root rot, a start takes the root before it, and the file is as it
//! was then, as far as its nodes have not been written over. A later run that lies where a stream
//! can go on shows it; if none does, only the run that the caller knows of ([`PackedFile::open`]).
//!
//! # Locking order
//! `PackedFile::writer` → `PackedFile::map` → `PackedFile::totals`. The writer's mutex is held from
//! [`PackedFile::prepare`] until the batch is durable or dropped, and a checkpoint and the cleaner
//! hold it while they write: all that changes the file waits for them. Reading takes the map's lock
//! alone, and never while it reads the file; the map is locked for changes only while a batch is
//! published and a node is put in its place. Who prepares batches of several files takes the files
//! in the order of their spaces.

mod checkpoint;
mod clean;
mod codec;
mod entry;
mod error;
mod file;
mod geometry;
mod map;
mod open;
mod read;
mod reseal;
mod reserve;
mod root;
mod run;
mod sealing;
mod segments;
#[cfg(test)]
mod tests;
mod top;
mod victims;
mod write;
mod write_all;

pub use clean::Cleaned;
pub use codec::Codec;
pub use entry::{Entry, Object, Seal};
pub use error::{Error, Remedy, Result};
pub use file::{Access, Found, PackedFile, Settings, Usage};
pub use read::{Merging, Piece, Since, Wanted, Window};
pub use reseal::{Resealed, Resealing};
pub use root::FileKey;
pub use run::Stream;
pub use victims::Victim;
pub use write::{Image, Prepared};
pub use write_all::{Threads, write_all};

/// Pages whose places one node of the map has: they are lost together, if it is.
pub const MAP_PAGES: u32 = map::FANOUT as u32;
