//! Durable marks: the log says how far it was durable when it was written.
//!
//! Each write of the log ends with a mark if the log has become durable further than the last mark
//! says, so that a mark costs no write and no sync. (What the last write made durable, and every
//! mark that damage to a whole block takes with it, the control file knows: the regular flush has
//! it note how far the log is durable.) A mark is a frame that holds nothing else. Its length and
//! its first bytes are always the same, and its payload names its epoch, so that recovery finds it
//! behind bytes that it cannot read.
//!
//! # What a mark proves
//! A mark that verifies at its LSN was written by the life that its epoch names, and everything
//! before its `lsn` was synced before that. No power cut can take that away: if the log that can be
//! read ends before, it was damaged.

use tidepool_pool::Lsn;

use super::frame::{self, Parsed};
use super::record::{
    DurableMark, LogRecord, MARK_PAYLOAD_LEN, MARK_PAYLOAD_START, Record, Records,
};

/// Bytes of a mark's frame.
pub const MARK_LEN: usize = frame::frame_len(MARK_PAYLOAD_LEN);
/// Where the payload begins in the frame.
const PAYLOAD_AT: usize = MARK_LEN - MARK_PAYLOAD_LEN;

/// The frame of a mark that begins at `start`.
pub fn encode(mark: DurableMark, start: Lsn) -> [u8; MARK_LEN] {
    debug_assert!(mark.lsn <= start, "what lies behind a mark was not durable before it");
    let payload = mark.encode();
    let crc = frame::payload_crc(&payload);
    let (header, header_len) = frame::header(payload.len(), crc, start, mark.epoch);
    assert_eq!(header_len, PAYLOAD_AT, "a mark has a header of a fixed length");
    let mut out = [0; MARK_LEN];
    out[..PAYLOAD_AT].copy_from_slice(&header[..PAYLOAD_AT]);
    out[PAYLOAD_AT..].copy_from_slice(&payload);
    out
}

/// The first mark in `bytes`, which are the log's from `base` on: its position in `bytes`, and what
/// it says.
pub fn find(bytes: &[u8], base: Lsn) -> Option<(usize, DurableMark)> {
    const HEAD: u8 = MARK_PAYLOAD_START[0];
    const TYPE: u8 = MARK_PAYLOAD_START[1];
    bytes.windows(MARK_LEN).enumerate().find_map(|(at, window)| {
        let is_like_one = window[PAYLOAD_AT + 1] == TYPE
            && window[PAYLOAD_AT] == HEAD
            && window[0] == MARK_PAYLOAD_LEN as u8;
        match is_like_one {
            true => Some((at, decode(window, Lsn(base.0 + at as u64))?)),
            false => None,
        }
    })
}

/// The mark whose frame `bytes` are, if they verify at `start`.
fn decode(bytes: &[u8], start: Lsn) -> Option<DurableMark> {
    let Some(Ok(Record::Log(LogRecord::Durable(mark)))) = Records::new(&bytes[PAYLOAD_AT..]).next()
    else {
        return None;
    };
    let verifies = matches!(frame::parse(bytes, start, mark.epoch), Parsed::Frame { .. });
    (verifies && mark.lsn <= start).then_some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_format_description() {
        let mark = DurableMark { epoch: 2, lsn: Lsn(4096) };
        let bytes = encode(mark, Lsn(4104));
        assert_eq!(bytes[0], 0x0e);
        assert_eq!(bytes[5..], [0x37, 0x05, 2, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[1..5], [0xc6, 0xcc, 0x23, 0x0c]);
    }

    proptest! {
        #[test]
        fn a_mark_is_found_at_its_place_and_nowhere_else(
            epoch in 1u32..u32::MAX,
            start in (1u64 << 20)..(1u64 << 60),
            before in prop::collection::vec(any::<u8>(), 0..60),
            off in 1u64..1000,
            bit in 0usize..MARK_LEN * 8,
        ) {
            let mark = DurableMark { epoch, lsn: Lsn(start - 100) };
            let mut bytes = before.clone();
            bytes.extend_from_slice(&encode(mark, Lsn(start)));
            bytes.extend_from_slice(&before);
            let base = start - before.len() as u64;
            prop_assert_eq!(find(&bytes, Lsn(base)), Some((before.len(), mark)));
            prop_assert_eq!(find(&bytes, Lsn(base + off)), None);
            bytes[before.len() + bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(find(&bytes, Lsn(base)), None);
        }
    }
}
