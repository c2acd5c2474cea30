//! Reads the log back, frame by frame, from the ring's files.
//!
//! The reader stops at the first position that holds no whole frame of the right LSN and epoch.
//! Whether the log ends there, or is damaged, [`beyond`](super::beyond) finds out. Log whose loss
//! was accepted is passed over.
//!
//! # Files that the control file does not list as in use
//! If the newest control slot was lost, the log may go on in a file that the older slot calls
//! spare, or does not know. Several may say that they begin where the log's last file ends: one
//! that was about to be used when a crash came keeps its header. The log goes on in that one whose
//! bytes complete the next frame, by its checksum; if there is none, the log ends.
//!
//! # Blocks that cannot be read
//! Some devices tell of a sector that a power cut tore by an error, until it is written again.
//! Behind the log's end such a block harms nothing: no frame reaches into it, and the log will
//! overwrite it. One that a frame reaches into, or would have to begin in, is an error, though the
//! log would end there if the bytes were merely wrong. The last block of the log is written again
//! and again, with more behind what was synced in it, so what the device has lost may be
//! acknowledged. A wrong checksum is what any power cut may leave; this is not, on devices that
//! keep to `docs/internals/storage-faults.md`.

use tidepool_pool::Lsn;
use tidepool_pool::storage::{AlignedBuf, StorageError, StorageFile};

use super::frame::{self, Parsed};
use super::keys::SEALED;
use super::record::Records;
use super::ring::LiveFile;
use super::{BLOCK_SIZE, Ring, block_ceil, block_floor};
use crate::error::{Error, Remedy, Result};

/// Bytes read at a time.
const READ_CHUNK: usize = 1 << 20;

/// One frame of the log.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Its first byte.
    pub start: Lsn,
    /// The byte after its last: the LSN of the pages it changed.
    pub end: Lsn,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Its records.
    pub fn records(&self) -> Records<'a> {
        Records::new(self.payload)
    }
}

/// See the module's description.
pub struct Reader {
    at: Lsn,
    epoch: u32,
    buf: AlignedBuf,
    /// LSN of the buffer's first byte; a block boundary.
    base: u64,
    /// Bytes of the buffer that were read.
    filled: usize,
    /// The records of the newest frame, if it was encrypted.
    opened: Vec<u8>,
    /// Why the buffer's end is where it is, if the block behind it could not be read.
    unreadable: Option<StorageError>,
}

impl Reader {
    /// A reader that starts at the ring's checkpoint.
    pub fn new(ring: &Ring) -> Self {
        let control = ring.control();
        Self::at(ring.skip_lost(control.checkpoint), control.checkpoint_epoch)
    }

    /// A reader of whatever lies at `at`, where a frame of `epoch` begins.
    pub fn at(at: Lsn, epoch: u32) -> Self {
        Self {
            at,
            epoch,
            buf: AlignedBuf::zeroed(READ_CHUNK),
            base: block_floor(at.0),
            filled: 0,
            opened: Vec::new(),
            unreadable: None,
        }
    }

    /// The epoch of what was read so far.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Where the next frame begins, if there is one: at the end of what was read so far, or behind
    /// log that is lost.
    pub fn lsn(&self) -> Lsn {
        self.at
    }

    /// The next frame, or `None` at the end of the log.
    pub fn next(&mut self, ring: &mut Ring) -> Result<Option<Frame<'_>>> {
        let mut want = frame::MAX_HEADER_LEN;
        loop {
            let whole = self.fill(ring, want)?;
            // Not even its first byte, if the checkpoint lies in a block that can't be read.
            let at = ((self.at.0 - self.base) as usize).min(self.filled);
            match frame::parse(&self.buf[at..self.filled], self.at, self.epoch) {
                Parsed::NeedMore(need) if whole => want = need,
                Parsed::NeedMore(_) => {
                    return self.unreadable.take().map_or(Ok(None), |error| Err(self.gap(error)));
                }
                Parsed::End => return Ok(None),
                Parsed::Frame { payload, frame_len, epoch } => {
                    let start = self.at;
                    let end = Lsn(start.0 + frame_len as u64);
                    let payload = at + frame_len - payload.len()..at + frame_len;
                    let payload = &self.buf[payload];
                    let payload = match payload[0] {
                        SEALED => {
                            ring.keys().open((start, epoch), payload, &mut self.opened)?;
                            &self.opened
                        }
                        _ => payload,
                    };
                    (self.at, self.epoch) = (ring.skip_lost(end), epoch);
                    if self.at > end {
                        self.base = block_floor(self.at.0);
                        self.filled = 0;
                        self.unreadable = None;
                    }
                    return Ok(Some(Frame { start, end, payload }));
                }
            }
        }
    }

    /// The error for a block that holds, or may hold, a part of the frame at the current position.
    fn gap(&self, error: StorageError) -> Error {
        let why = format!(
            "{}; these {BLOCK_SIZE} bytes hold the redo log from LSN {} on, which may have been \
             committed",
            error.what(),
            self.at.0
        );
        Error::lost(&*error.file, why, Remedy::RestoreOrAcceptLogLoss)
    }

    /// Has at least `want` bytes from the current position in the buffer. `false` if the ring ends
    /// before, or a block that can't be read comes before.
    fn fill(&mut self, ring: &mut Ring, want: usize) -> Result<bool> {
        let mut at = (self.at.0 - self.base) as usize;
        if self.filled >= at + want {
            return Ok(true);
        }
        // Move what is left to the front, keeping the buffer's start at a block boundary.
        let keep_from = block_floor(at as u64) as usize;
        self.buf.copy_within(keep_from..self.filled.max(keep_from), 0);
        self.filled = self.filled.saturating_sub(keep_from);
        self.base += keep_from as u64;
        at -= keep_from;
        let need = block_ceil((at + want) as u64) as usize;
        if need > self.buf.len() {
            let mut larger = AlignedBuf::zeroed(need.max(2 * self.buf.len()));
            larger[..self.filled].copy_from_slice(&self.buf[..self.filled]);
            self.buf = larger;
        }
        while self.filled < at + want {
            let lsn = Lsn(self.base + self.filled as u64);
            let Some(file) = ring.find(lsn) else {
                let known = &self.buf[at.min(self.filled)..self.filled];
                let Some(file_no) = self.successor(ring, lsn, known) else { return Ok(false) };
                ring.adopt(file_no, lsn)?;
                continue;
            };
            let piece = ((file.end.0 - lsn.0) as usize).min(self.buf.len() - self.filled);
            debug_assert_eq!(piece % BLOCK_SIZE, 0, "files and buffer are whole blocks");
            let bytes = &mut self.buf[self.filled..self.filled + piece];
            match read_blocks(&*file.file, bytes, file.offset(lsn.0)) {
                (_, Some(error)) if error.is_unexpected_eof() => return Err(error.into()),
                (read, error) => (self.filled, self.unreadable) = (self.filled + read, error),
            }
            if self.unreadable.is_some() {
                break;
            }
        }
        Ok(self.filled >= at + want)
    }
}

impl Reader {
    /// The file in which the log goes on at `end`, where the last file in use ends: it completes
    /// the frame of which `known` are the bytes before `end`.
    fn successor(&self, ring: &Ring, end: Lsn, known: &[u8]) -> Option<u32> {
        // Asked for more than the frame needs, perhaps.
        let lacks_bytes = matches!(frame::parse(known, self.at, self.epoch), Parsed::NeedMore(_));
        if ring.end() != end || !lacks_bytes {
            return None;
        }
        let completes = |(_, file): &(u32, LiveFile)| self.is_completed_by(ring, known, file);
        ring.successors(end).into_iter().find(completes).map(|(file_no, _)| file_no)
    }

    fn is_completed_by(&self, ring: &Ring, known: &[u8], file: &LiveFile) -> bool {
        let mut bytes = known.to_vec();
        let mut want = frame::MAX_HEADER_LEN;
        let size = (file.end.0 - file.start.0) as usize;
        loop {
            let have = bytes.len() - known.len();
            let missing = want.saturating_sub(bytes.len());
            let piece = (block_ceil(missing as u64) as usize).min(size - have);
            if piece > 0 {
                let mut buf = AlignedBuf::zeroed(piece);
                let offset = file.offset(file.start.0 + have as u64);
                if let Err(error) = file.file.read_at(&mut buf, offset) {
                    tracing::warn!(%error, "taken for a redo file that was not in use yet");
                    return false;
                }
                bytes.extend_from_slice(&buf);
            }
            match frame::parse(&bytes, self.at, self.epoch) {
                Parsed::Frame { .. } => return true,
                Parsed::End => return false,
                Parsed::NeedMore(need) if bytes.len() < known.len() + size => want = need,
                // The frame is longer than the file.
                Parsed::NeedMore(_) => {
                    let goes_on =
                        |(_, next): &(u32, LiveFile)| self.is_completed_by(ring, &bytes, next);
                    return ring.successors(file.end).iter().any(goes_on);
                }
            }
        }
    }
}

/// Fills `bytes`, or as many whole blocks of them as come before one that can't be read. Returns
/// how many bytes that is, and the error.
fn read_blocks(
    file: &dyn StorageFile,
    bytes: &mut [u8],
    offset: u64,
) -> (usize, Option<StorageError>) {
    let Err(error) = file.read_at(bytes, offset) else { return (bytes.len(), None) };
    if error.is_unexpected_eof() {
        return (0, Some(error));
    }
    for (i, block) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        let at = i * BLOCK_SIZE;
        if let Err(error) = file.read_at(block, offset + at as u64) {
            tracing::warn!(%error, "a block of the redo log, or behind its end");
            return (at, Some(error));
        }
    }
    (bytes.len(), None)
}
