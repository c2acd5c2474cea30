//! What lies behind the position where the log seems to end: the end of what was written, or
//! damage.
//!
//! A power cut may leave whole frames behind a torn one, so frames prove nothing. A [durable
//! mark](super::mark) does, and so does the control file, which notes how far the log was durable
//! whenever it is written: if either says that the log was durable beyond that position, bytes that
//! were synced are wrong, and what they held may have been acknowledged.
//!
//! # Which marks count
//! Those of the epoch in which the log seems to end, or of a later one. An earlier life's log ends,
//! for good, where the next life's epoch frame lies: its marks behind that say nothing any more. In
//! particular, a loss that was accepted is not reported again once the epoch frame after it is
//! durable.
//!
//! # What is not found
//! Damage to what was flushed last, if no mark was written after it: see
//! `docs/internals/recovery.md`.

use tidepool_pool::Lsn;
use tidepool_pool::storage::AlignedBuf;

use super::control::CONTROL_FILE;
use super::frame;
use super::mark::{self, MARK_LEN};
use super::reader::Reader;
use super::record::{LogRecord, Record};
use super::ring::LiveFile;
use super::{BLOCK_SIZE, Ring, block_floor};
use crate::error::{Error, Remedy, Result};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Log that was durable and cannot be read any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Here the log ends.
    pub end: Lsn,
    /// It was durable up to here, at least.
    pub durable: Lsn,
    /// File and offset of the first byte that is not part of the log any more.
    place: Place,
    /// Where it is written that the log was durable.
    witness: Place,
    /// Whole frames behind the damage, marks not counted.
    pub frames: u64,
    /// End of the last of them.
    pub readable: Lsn,
}

/// An offset in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    file: String,
    offset: u64,
}

impl Loss {
    /// The error that stops the start.
    pub fn error(&self) -> Error {
        Error::lost(&*self.place.file, self.description(), Remedy::RestoreOrAcceptLogLoss)
    }

    /// What is lost, and how that is known.
    pub fn description(&self) -> String {
        let Self { end, durable, place, witness, frames, readable } = self;
        let rest = match frames {
            0 => "no whole mini-transaction can be read behind the damage".to_owned(),
            1 => format!(
                "1 whole mini-transaction can be read behind the damage, up to LSN {}",
                readable.0
            ),
            n => {
                format!(
                    "{n} whole mini-transactions can be read behind the damage, up to LSN {}",
                    readable.0
                )
            }
        };
        format!(
            "the redo log is damaged at offset {}: it can be read up to LSN {}, but it was durable up to LSN {} at least, \
             as '{}' says at offset {}. What was committed in these {} bytes would be lost ({rest})",
            place.offset,
            end.0,
            durable.0,
            witness.file,
            witness.offset,
            durable.0 - end.0
        )
    }
}

/// Looks behind `end`, where the log seems to end in `epoch`. `None`: the log was still being
/// written there.
pub fn look(ring: &mut Ring, end: Lsn, epoch: u32) -> Result<Option<Loss>> {
    let mut search = Search { end, epoch, best: None, frames: 0, readable: end };
    let control = ring.control();
    if control.epoch >= epoch {
        let place = Place { file: CONTROL_FILE.into(), offset: control.offset() };
        search.note(control.durable, place);
    }
    search.follow_frames_behind_the_first(ring)?;
    search.search_files(ring)?;
    let Some((durable, witness)) = search.best else { return Ok(None) };
    let place = match ring.find_or_last(end) {
        Some(file) => place_in(&file, end),
        None => Place { file: CONTROL_FILE.into(), offset: 0 },
    };
    let (frames, readable) = (search.frames, search.readable);
    Ok(Some(Loss { end, durable, place, witness, frames, readable }))
}

fn place_in(file: &LiveFile, lsn: Lsn) -> Place {
    Place { file: file.file.name().into(), offset: file.offset(lsn.0) }
}

struct Search {
    end: Lsn,
    epoch: u32,
    /// The furthest that anything says the log was durable, and what says so.
    best: Option<(Lsn, Place)>,
    frames: u64,
    readable: Lsn,
}

impl Search {
    fn note(&mut self, durable: Lsn, place: Place) {
        let known = self.best.as_ref().map_or(self.end, |(lsn, _)| *lsn);
        if durable > known {
            self.best = Some((durable, place));
        }
    }

    /// If the length of the frame at the end is right and only its payload is not, the log goes on
    /// behind it.
    fn follow_frames_behind_the_first(&mut self, ring: &mut Ring) -> Result<()> {
        let Some(next) = skip_frame(ring, self.end)? else { return Ok(()) };
        self.follow(ring, next, self.epoch).map(drop)
    }

    /// Reads the frames from `from` on, as far as they are whole. Returns where they end.
    fn follow(&mut self, ring: &mut Ring, from: Lsn, epoch: u32) -> Result<Lsn> {
        let mut reader = Reader::at(from, epoch);
        loop {
            let frame = match reader.next(ring) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // A block that cannot be read: behind the end, that is nothing new.
                Err(error) => {
                    tracing::warn!(%error, "behind the end of the redo log");
                    break;
                }
            };
            let (start, end) = (frame.start, frame.end);
            match frame.records().next() {
                Some(Ok(Record::Log(LogRecord::Durable(mark)))) => {
                    if let Some(file) = ring.find(start) {
                        self.note(mark.lsn, place_in(&file, start));
                    }
                }
                _ => {
                    self.frames += 1;
                    self.readable = self.readable.max(end);
                }
            }
        }
        Ok(reader.lsn())
    }

    /// Looks for marks in every file that holds, or may hold, log behind the end.
    fn search_files(&mut self, ring: &mut Ring) -> Result<()> {
        let mut at = Position { lsn: self.readable, before: Vec::new() };
        for file in ring.files_beyond(self.end) {
            self.search_file(ring, &file, &mut at)?;
        }
        for file in ring.unlisted_beyond(self.end) {
            let mut at = Position { lsn: self.end, before: Vec::new() };
            self.search_file(ring, &file, &mut at)?;
        }
        Ok(())
    }

    fn search_file(
        &mut self,
        ring: &mut Ring,
        file: &LiveFile,
        position: &mut Position,
    ) -> Result<()> {
        if position.lsn < file.start {
            *position = Position { lsn: file.start, before: Vec::new() };
        }
        let mut buf = AlignedBuf::zeroed(CHUNK.min((file.end.0 - file.start.0) as usize));
        while position.lsn < file.end {
            let base = block_floor(position.lsn.0);
            let len = (file.end.0 - base).min(buf.len() as u64) as usize;
            let bytes = read_or_zeroes(file, &mut buf[..len], base);
            let mut seen = std::mem::take(&mut position.before);
            let first = Lsn(position.lsn.0 - seen.len() as u64);
            seen.extend_from_slice(&bytes[(position.lsn.0 - base) as usize..]);
            let Some((at, mark)) = mark::find(&seen, first) else {
                position.lsn = Lsn(base + len as u64);
                position.before = seen.split_off(seen.len().saturating_sub(MARK_LEN - 1));
                continue;
            };
            let start = Lsn(first.0 + at as u64);
            position.lsn = Lsn(start.0 + MARK_LEN as u64);
            if mark.epoch < self.epoch {
                continue;
            }
            let holder = if start < file.start { ring.find(start) } else { None };
            self.note(mark.lsn, place_in(holder.as_ref().unwrap_or(file), start));
            if ring.find(start).is_some() {
                position.lsn = position.lsn.max(self.follow(ring, start, mark.epoch)?);
            }
        }
        Ok(())
    }
}

/// How far the search has come.
struct Position {
    lsn: Lsn,
    /// The bytes before it that may be the beginning of a mark.
    before: Vec<u8>,
}

/// The file's bytes at `lsn`; a block that cannot be read passes for zeroes.
fn read_or_zeroes<'b>(file: &LiveFile, bytes: &'b mut [u8], lsn: u64) -> &'b [u8] {
    let offset = file.offset(lsn);
    if file.file.read_at(bytes, offset).is_ok() {
        return bytes;
    }
    for (i, block) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        if let Err(error) = file.file.read_at(block, offset + (i * BLOCK_SIZE) as u64) {
            tracing::warn!(%error, "behind the end of the redo log");
            block.fill(0);
        }
    }
    bytes
}

/// Where the frame at `at` ends by its length, whatever its checksum says.
fn skip_frame(ring: &Ring, at: Lsn) -> Result<Option<Lsn>> {
    let Some(file) = ring.find(at) else { return Ok(None) };
    let mut buf = AlignedBuf::zeroed(2 * BLOCK_SIZE);
    let base = block_floor(at.0);
    let len = (file.end.0 - base).min(buf.len() as u64) as usize;
    let bytes = read_or_zeroes(&file, &mut buf[..len], base);
    let len = frame::claimed_len(&bytes[(at.0 - base) as usize..]);
    Ok(len.map(|len| Lsn(at.0 + len as u64)))
}
