//! Frames: one mini-transaction each, the unit that is in the log as a whole or not at all.
//!
//! ```text
//! len varint | crc32c u32 | payload (len bytes)
//! ```
//!
//! The LSN of a frame is the position of its first byte in the endless log; it isn't stored, nor is
//! the epoch: both go into the checksum (payload ‖ start LSN u64 ‖ epoch u32 ‖ len u32). So a frame
//! left in the ring by an earlier turn, or by an earlier life of the data directory at this very
//! position, doesn't verify. Two checksums over the same bytes that differ only in epoch always
//! differ, because a CRC detects every burst of up to 32 bits.
//!
//! A length of zero never begins a frame: zeroed file space ends the log.

use tidepool_pool::Lsn;

use super::record::{LogRecord, Record, Records};
use crate::varint;

/// Longest header of a frame.
pub const MAX_HEADER_LEN: usize = varint::MAX_U32_LEN + 4;

/// Longest payload accepted. Far above what a mini-transaction writes (a few page images), it keeps
/// a reader of garbage from asking for gigabytes.
pub const MAX_PAYLOAD_LEN: u32 = 64 << 20;

/// Bytes of the frame around a payload of `payload_len` bytes, header included.
pub const fn frame_len(payload_len: usize) -> usize {
    varint::len_u32(payload_len as u32) + 4 + payload_len
}

/// The checksum of a payload before LSN and epoch are known: the long part, done before the frame
/// gets its place.
pub fn payload_crc(payload: &[u8]) -> u32 {
    crc32c::crc32c(payload)
}

/// Completes a [`payload_crc`].
fn frame_crc(payload_crc: u32, start: Lsn, epoch: u32, len: u32) -> u32 {
    let mut tail = [0; 16];
    tail[..8].copy_from_slice(&start.0.to_le_bytes());
    tail[8..12].copy_from_slice(&epoch.to_le_bytes());
    tail[12..].copy_from_slice(&len.to_le_bytes());
    crc32c::crc32c_append(payload_crc, &tail)
}

/// The header of a frame, and how many of the bytes are it.
#[inline]
pub fn header(
    payload_len: usize,
    payload_crc: u32,
    start: Lsn,
    epoch: u32,
) -> ([u8; MAX_HEADER_LEN], usize) {
    assert!(
        payload_len > 0 && payload_len <= MAX_PAYLOAD_LEN as usize,
        "a redo frame of {payload_len} bytes could never be read back"
    );
    let len = payload_len as u32;
    let mut out = [0; MAX_HEADER_LEN];
    let mut at = 0;
    let mut rest = len;
    while rest >= 0x80 {
        out[at] = rest as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    out[at] = rest as u8;
    at += 1;
    out[at..at + 4].copy_from_slice(&frame_crc(payload_crc, start, epoch, len).to_le_bytes());
    (out, at + 4)
}

/// What the bytes at a position of the log are.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A frame that belongs here.
    Frame {
        /// Its records.
        payload: &'a [u8],
        /// Its length with the header.
        frame_len: usize,
        /// The epoch it was written in: the reader's, or a newer one if it is an epoch frame.
        epoch: u32,
    },
    /// It takes this many bytes from the frame's start to tell.
    NeedMore(usize),
    /// No frame: the log ends here.
    End,
}

/// How long the frame is that `bytes` begin with, by its length alone; `None` if no frame begins
/// so.
pub fn claimed_len(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let len = varint::take_u32(&mut rest)?;
    (len > 0 && len <= MAX_PAYLOAD_LEN).then(|| frame_len(len as usize))
}

/// Looks for a frame at `start`, whose bytes begin `bytes`. The log up to here was of `epoch`; an
/// epoch frame of any later epoch is accepted too.
pub fn parse(bytes: &[u8], start: Lsn, epoch: u32) -> Parsed<'_> {
    let mut rest = bytes;
    let Some(len) = varint::take_u32(&mut rest) else {
        return if bytes.len() < varint::MAX_U32_LEN {
            Parsed::NeedMore(MAX_HEADER_LEN)
        } else {
            Parsed::End
        };
    };
    if len == 0 || len > MAX_PAYLOAD_LEN {
        return Parsed::End;
    }
    let total = frame_len(len as usize);
    if bytes.len() < total {
        return Parsed::NeedMore(total);
    }
    let (crc, rest) = rest.split_first_chunk::<4>().expect("total covers the checksum");
    let crc = u32::from_le_bytes(*crc);
    let payload = &rest[..len as usize];
    let payload_crc = payload_crc(payload);
    if crc == frame_crc(payload_crc, start, epoch, len) {
        return Parsed::Frame { payload, frame_len: total, epoch };
    }
    if let Some(Ok(Record::Log(LogRecord::Epoch(new)))) = Records::new(payload).next()
        && new > epoch
        && crc == frame_crc(payload_crc, start, new, len)
    {
        return Parsed::Frame { payload, frame_len: total, epoch: new };
    }
    Parsed::End
}

#[cfg(test)]
mod tests {
    use super::super::record::Writer;
    use super::*;
    use proptest::prelude::*;

    fn frame(payload: &[u8], start: u64, epoch: u32) -> Vec<u8> {
        let (head, len) = header(payload.len(), payload_crc(payload), Lsn(start), epoch);
        let mut out = head[..len].to_vec();
        out.extend_from_slice(payload);
        out
    }

    fn epoch_frame(start: u64, epoch: u32) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.log(LogRecord::Epoch(epoch));
        frame(writer.bytes(), start, epoch)
    }

    proptest! {
        #[test]
        fn round_trip(payload in prop::collection::vec(any::<u8>(), 1..400), start in any::<u64>(), epoch in any::<u32>()) {
            let mut bytes = frame(&payload, start, epoch);
            prop_assert_eq!(bytes.len(), frame_len(payload.len()));
            for cut in [0, 1, 4, bytes.len() - 1] {
                let Parsed::NeedMore(need) = parse(&bytes[..cut], Lsn(start), epoch) else {
                    return Err(TestCaseError::fail("a cut frame must ask for more"));
                };
                prop_assert!(need > cut);
            }
            bytes.extend_from_slice(b"next");
            let want = Parsed::Frame { payload: &payload, frame_len: bytes.len() - 4, epoch };
            prop_assert_eq!(parse(&bytes, Lsn(start), epoch), want);
        }

        #[test]
        fn a_flipped_bit_ends_the_log(payload in prop::collection::vec(any::<u8>(), 1..100), bit in any::<prop::sample::Index>()) {
            let mut bytes = frame(&payload, 77, 3);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let accepted = matches!(parse(&bytes, Lsn(77), 3), Parsed::Frame { .. });
            prop_assert!(!accepted);
        }

        #[test]
        fn an_old_frame_never_reconnects(payload in prop::collection::vec(any::<u8>(), 1..100), start in any::<u64>(), other in any::<u64>(), epoch in 1u32..100, later in 1u32..100) {
            let bytes = frame(&payload, start, epoch);
            prop_assert_eq!(parse(&bytes, Lsn(start), epoch + later), Parsed::End);
            if other != start {
                prop_assert_eq!(parse(&bytes, Lsn(other), epoch), Parsed::End);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes, Lsn(1), 1);
        }
    }

    #[test]
    fn the_example_of_the_format_description() {
        assert_eq!(epoch_frame(4096, 2), [0x03, 0x5c, 0x29, 0xc9, 0x84, 0x0b, 0x01, 0x02]);
    }

    #[test]
    fn zeroes_end_the_log() {
        assert_eq!(parse(&[0; 16], Lsn(4096), 1), Parsed::End);
    }

    #[test]
    fn only_an_epoch_frame_moves_to_a_newer_epoch() {
        let bytes = epoch_frame(100, 7);
        let accepted =
            |epoch| matches!(parse(&bytes, Lsn(100), epoch), Parsed::Frame { epoch: 7, .. });
        assert!(accepted(5));
        assert!(accepted(7), "a checkpoint may lie at the epoch frame itself");
        assert!(!accepted(8), "an older epoch cannot follow a newer one");
        assert_eq!(parse(&frame(&[KIND_SAME], 100, 7), Lsn(100), 5), Parsed::End);
    }

    const KIND_SAME: u8 = 2;
}
