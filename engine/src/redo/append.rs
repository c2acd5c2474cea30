//! Appending a frame to the log: what a mini-transaction does at its commit.
//!
//! ```text
//! begin_append   gets a part of the log buffer to itself; waits, for a write, if all are full
//! reserve        the frame's place in the log: one atomic addition
//! complete       makes the frame there, and has its pages marked dirty
//! ```
//! What is known before the place is, the checksum of the records above all, is computed before the
//! part is taken. What must happen in the order of the log (a commit gets its number) happens
//! together with `reserve`, under a mutex of the caller's.
//!
//! None of the three can fail, for the pages are changed already. After a failure of the log they
//! append nothing: no later flush succeeds, and no page will be written.

use tidepool_pool::Lsn;
use tidepool_pool::encryption::NumberedKey;

use super::buffer::OwnPart;
use super::frame::{self, Parsed};
use super::keys::{SEALED, SEALED_EXTRA};
use super::log::{RedoLog, count};

/// The records of a frame on their way into the log buffer.
enum Payload<'a> {
    /// As they are, and their checksum.
    Plain(&'a [u8], u32),
    /// To be encrypted: that takes the frame's LSN.
    Sealed(&'a [u8], &'a NumberedKey),
}

impl<'a> Payload<'a> {
    #[inline]
    fn of(records: &'a [u8], key: Option<&'a NumberedKey>) -> Payload<'a> {
        match key {
            None => Payload::Plain(records, frame::payload_crc(records)),
            Some(key) => Payload::Sealed(records, key),
        }
    }

    fn len(&self) -> usize {
        match self {
            Payload::Plain(records, _) => records.len(),
            Payload::Sealed(records, _) => records.len() + SEALED_EXTRA,
        }
    }

    /// The length of a frame with `records_len` bytes of records.
    fn frame_len(records_len: usize, key: Option<&NumberedKey>) -> usize {
        frame::frame_len(records_len + key.map_or(0, |_| SEALED_EXTRA))
    }

    /// Makes the frame that begins at `start`, behind what `out` has.
    #[inline]
    fn put(&self, start: Lsn, epoch: u32, out: &mut Vec<u8>) {
        let begin = out.len();
        match self {
            Payload::Plain(records, crc) => {
                let (header, len) = frame::header(self.len(), *crc, start, epoch);
                out.extend_from_slice(&header[..len]);
                out.extend_from_slice(records);
            }
            Payload::Sealed(records, key) => {
                // The header, which has the checksum of what is encrypted, comes last.
                let at = out.len();
                let header_len = frame::frame_len(self.len()) - self.len();
                out.resize(at + header_len, 0);
                out.push(SEALED);
                out.extend_from_slice(records);
                let sealed = at + header_len + 1;
                let tag = key.seal(start.0, &mut out[sealed..]);
                out.extend_from_slice(&tag);
                let crc = frame::payload_crc(&out[sealed - 1..]);
                let (header, len) = frame::header(self.len(), crc, start, epoch);
                debug_assert_eq!(len, header_len, "the length says how long the header is");
                out[at..sealed - 1].copy_from_slice(&header[..len]);
            }
        }
        debug_assert!(
            matches!(frame::parse(&out[begin..], start, epoch), Parsed::Frame { frame_len, .. }
                if frame_len == out.len() - begin),
            "recovery finds the same frame"
        );
    }
}

/// A frame on its way into the log. Once its place is reserved it must be completed.
pub(crate) struct Append<'a> {
    log: &'a RedoLog,
    /// None: the log has failed.
    part: Option<OwnPart<'a>>,
    len: usize,
    start: Lsn,
}

impl RedoLog {
    /// Appends a frame and returns its end LSN. `stamp(start, end)` marks the pages of the
    /// mini-transaction dirty.
    pub(crate) fn append(&self, records: &[u8], stamp: impl FnOnce(Lsn, Lsn)) -> Lsn {
        let payload = Payload::of(records, self.key.as_ref());
        let mut append = self.begin_append(records.len());
        append.reserve();
        append.complete_with(&payload, stamp)
    }

    /// Begins to append a frame with `records_len` bytes of records.
    #[inline]
    pub(crate) fn begin_append(&self, records_len: usize) -> Append<'_> {
        let len = Payload::frame_len(records_len, self.key.as_ref());
        let part = loop {
            let part = self.buffer.part_with_room(len);
            // Room or not: a write that began before the failure would take the frame to the file,
            // and it may build on what an abandoned mini-transaction has left in its pages, of
            // which no frame says.
            if self.failure.is_set() {
                break None;
            }
            if part.is_some() {
                break part;
            }
            // Who appends holds latches: not to be waited with for space on a disk.
            if self.full_disk.is_full() {
                break Some(self.buffer.any_part());
            }
            count(&self.counters.buffer_waits, 1);
            // A failure is remembered, and seen above.
            let _ = self.write_buffer();
        };
        Append { log: self, part, len, start: Lsn::ZERO }
    }
}

impl Append<'_> {
    /// Reserves the frame's place in the log.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        debug_assert!(self.start == Lsn::ZERO, "one frame, one place");
        self.start = match &self.part {
            Some(part) => Lsn(part.reserve(self.len)),
            None => self.log.next_lsn(),
        };
    }

    /// Makes the frame of these records, which are as many bytes as was said; returns its end LSN.
    pub(crate) fn complete(self, records: &[u8], stamp: impl FnOnce(Lsn, Lsn)) -> Lsn {
        let payload = Payload::of(records, self.log.key.as_ref());
        self.complete_with(&payload, stamp)
    }

    #[inline]
    fn complete_with(mut self, payload: &Payload<'_>, stamp: impl FnOnce(Lsn, Lsn)) -> Lsn {
        assert!(self.start > Lsn::ZERO, "a frame's place is reserved first");
        debug_assert_eq!(frame::frame_len(payload.len()), self.len, "the records that were said");
        let start = self.start;
        let Some(part) = &mut self.part else {
            // Beyond all that will ever be durable: who compares must not find the pages, or a
            // commit, safe. For all the same, as one may change a page after the other.
            const BEYOND: u64 = frame::frame_len(frame::MAX_PAYLOAD_LEN as usize) as u64;
            let end = Lsn(start.0 + BEYOND);
            stamp(start, end);
            return end;
        };
        let epoch = self.log.epoch;
        part.put(start.0, self.len, |out| payload.put(start, epoch, out));
        let end = Lsn(start.0 + self.len as u64);
        // Before the part is let go of: the checkpoint relies on it.
        stamp(start, end);
        end
    }
}
