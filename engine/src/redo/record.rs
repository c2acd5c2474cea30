//! Records: what the payload of a redo frame is made of.
//!
//! A record starts with one head byte: its kind in the low two bits, the length of its body in the
//! upper six (63 = a varint with the rest follows the head byte). A mini-transaction often changes
//! the same page twice, or two pages of one space, so space and page number are written only when
//! they differ from those of the record before:
//!
//! ```text
//! kind 0  page of another space   head [len] space page body
//! kind 1  other page, same space  head [len] page body
//! kind 2  same page               head [len] body
//! kind 3  not about a page        head [len] body; the body's first byte is the type
//! ```
//!
//! Nothing carries over from one frame to the next. The body of a page record is an encoded page
//! operation, opaque here.

use tidepool_pool::Lsn;

use crate::varint;

const KIND_SPACE: u8 = 0;
const KIND_PAGE: u8 = 1;
const KIND_SAME: u8 = 2;
const KIND_LOG: u8 = 3;

/// Body lengths from here on need a varint after the head byte.
const LONG_BODY: u32 = 63;

const LOG_EPOCH: u8 = 1;
const LOG_SPACE_CREATE: u8 = 2;
const LOG_SPACE_DELETE: u8 = 3;
const LOG_SPACE_UNLIST: u8 = 4;
const LOG_DURABLE: u8 = 5;

/// Bytes of the payload of a frame that holds nothing but a [`DurableMark`].
pub const MARK_PAYLOAD_LEN: usize = 14;
/// Bytes that such a payload begins with: head and type.
pub const MARK_PAYLOAD_START: [u8; 2] = [KIND_LOG | (MARK_PAYLOAD_LEN as u8 - 1) << 2, LOG_DURABLE];

/// A record that is not about one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRecord {
    /// From here on the log was written by a later life of the data directory. Always alone in its
    /// frame.
    Epoch(u32),
    /// The file of this space was created.
    SpaceCreate(u32),
    /// The file of this space is about to be removed; no later record is about the space.
    SpaceDelete(u32),
    /// The catalog is about to lose the table of this space: if it has, the file is of no use to
    /// anybody.
    SpaceUnlist(u32),
    /// How far the log was durable when this was written. Always alone in its frame.
    Durable(DurableMark),
}

/// What the log says about itself: in this epoch, everything before `lsn` was durable before the
/// mark was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableMark {
    /// The epoch in which the mark was written.
    pub epoch: u32,
    /// End of what was durable.
    pub lsn: Lsn,
}

impl DurableMark {
    /// The payload of the mark's frame.
    pub fn encode(self) -> [u8; MARK_PAYLOAD_LEN] {
        let mut out = [0; MARK_PAYLOAD_LEN];
        out[..2].copy_from_slice(&MARK_PAYLOAD_START);
        out[2..6].copy_from_slice(&self.epoch.to_le_bytes());
        out[6..].copy_from_slice(&self.lsn.0.to_le_bytes());
        out
    }

    /// Reads what follows the type byte.
    fn decode(body: &[u8]) -> Option<Self> {
        let (epoch, lsn) = body.split_first_chunk::<4>()?;
        let lsn = <[u8; 8]>::try_from(lsn).ok()?;
        Some(Self { epoch: u32::from_le_bytes(*epoch), lsn: Lsn(u64::from_le_bytes(lsn)) })
    }
}

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// One operation on one page.
    Page {
        /// Space id.
        space: u32,
        /// Page number.
        page: u32,
        /// The encoded page operation.
        op: &'a [u8],
    },
    /// Anything else.
    Log(LogRecord),
}

/// Why a payload could not be decoded. A payload whose checksum was right yet doesn't decode was
/// written by another version, or by a bug: never by a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A length or number runs past the end.
    #[error("a record is cut short")]
    Short,
    /// The first record says "same page as before".
    #[error("the first record of a frame names no page")]
    NoPage,
    /// A type this version does not know.
    #[error("unknown record type {0}")]
    Unknown(u8),
}

/// Builds the payload of one frame.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    last: Option<(u32, u32)>,
}

impl Writer {
    /// An empty payload that reuses the memory of `bytes`.
    pub fn reusing(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, last: None }
    }

    /// The payload so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes over bytes at `at`.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Gives the memory back, for [`Writer::reusing`].
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends a page record whose body is what `encode` appends. Returns where the body lies.
    pub fn page(
        &mut self,
        space: u32,
        page: u32,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> std::ops::Range<usize> {
        let head_at = self.bytes.len();
        let kind = match self.last {
            Some(last) if last == (space, page) => KIND_SAME,
            Some((last_space, _)) if last_space == space => KIND_PAGE,
            _ => KIND_SPACE,
        };
        self.bytes.push(kind);
        if kind == KIND_SPACE {
            varint::put_u32(&mut self.bytes, space);
        }
        if kind != KIND_SAME {
            varint::put_u32(&mut self.bytes, page);
        }
        self.last = Some((space, page));
        let body_at = self.bytes.len();
        encode(&mut self.bytes);
        let shift = self.set_len(head_at, self.bytes.len() - body_at);
        body_at + shift..self.bytes.len()
    }

    /// Appends a record that is not about a page.
    pub fn log(&mut self, record: LogRecord) {
        let head_at = self.bytes.len();
        self.bytes.push(KIND_LOG);
        let (kind, value) = match record {
            LogRecord::Epoch(epoch) => (LOG_EPOCH, epoch),
            LogRecord::SpaceCreate(space) => (LOG_SPACE_CREATE, space),
            LogRecord::SpaceDelete(space) => (LOG_SPACE_DELETE, space),
            LogRecord::SpaceUnlist(space) => (LOG_SPACE_UNLIST, space),
            LogRecord::Durable(mark) => {
                self.bytes.truncate(head_at);
                self.bytes.extend_from_slice(&mark.encode());
                return;
            }
        };
        self.bytes.push(kind);
        varint::put_u32(&mut self.bytes, value);
        self.set_len(head_at, self.bytes.len() - head_at - 1);
    }

    /// Writes the body's length into the head at `head_at`. It is known only now, so a long one
    /// makes what follows the head move up, by as many bytes as are returned.
    fn set_len(&mut self, head_at: usize, len: usize) -> usize {
        let len = u32::try_from(len).expect("a redo record is far below 4 GiB");
        if len < LONG_BODY {
            self.bytes[head_at] |= (len as u8) << 2;
            return 0;
        }
        self.bytes[head_at] |= (LONG_BODY as u8) << 2;
        let mut rest = len - LONG_BODY;
        let shift = varint::len_u32(rest);
        let end = self.bytes.len();
        self.bytes.resize(end + shift, 0);
        self.bytes.copy_within(head_at + 1..end, head_at + 1 + shift);
        for i in 0..shift {
            let more = if i + 1 < shift { 0x80 } else { 0 };
            self.bytes[head_at + 1 + i] = (rest & 0x7f) as u8 | more;
            rest >>= 7;
        }
        shift
    }
}

/// Iterates over the records of a payload. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    last: Option<(u32, u32)>,
}

impl<'a> Records<'a> {
    /// The records of `payload`.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, last: None }
    }

    fn decode(&mut self) -> Result<Record<'a>, RecordError> {
        let (&head, rest) = self.rest.split_first().ok_or(RecordError::Short)?;
        let mut rest = rest;
        let mut take = || varint::take_u32(&mut rest).ok_or(RecordError::Short);
        let mut len = u32::from(head >> 2);
        if len == LONG_BODY {
            len = len.checked_add(take()?).ok_or(RecordError::Short)?;
        }
        let kind = head & 3;
        match kind {
            KIND_SPACE => self.last = Some((take()?, take()?)),
            KIND_PAGE => self.last = Some((self.last.ok_or(RecordError::NoPage)?.0, take()?)),
            KIND_SAME if self.last.is_none() => return Err(RecordError::NoPage),
            _ => {}
        }
        let (body, rest) = rest.split_at_checked(len as usize).ok_or(RecordError::Short)?;
        self.rest = rest;
        if kind != KIND_LOG {
            let (space, page) = self.last.expect("set above");
            return Ok(Record::Page { space, page, op: body });
        }
        let (&kind, mut value) = body.split_first().ok_or(RecordError::Short)?;
        let make = match kind {
            LOG_EPOCH => LogRecord::Epoch,
            LOG_SPACE_CREATE => LogRecord::SpaceCreate,
            LOG_SPACE_DELETE => LogRecord::SpaceDelete,
            LOG_SPACE_UNLIST => LogRecord::SpaceUnlist,
            LOG_DURABLE => {
                let mark = DurableMark::decode(value).ok_or(RecordError::Short)?;
                return Ok(Record::Log(LogRecord::Durable(mark)));
            }
            _ => return Err(RecordError::Unknown(kind)),
        };
        let number = varint::take_u32(&mut value).ok_or(RecordError::Short)?;
        if !value.is_empty() {
            return Err(RecordError::Short);
        }
        Ok(Record::Log(make(number)))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.decode();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Owned {
        Page(u32, u32, Vec<u8>),
        Log(LogRecord),
    }

    fn owned() -> impl Strategy<Value = Owned> {
        let number = || prop_oneof![0u32..4, any::<u32>()];
        let body = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..70),
            prop::collection::vec(any::<u8>(), 0..300),
        ];
        prop_oneof![
            8 => (number(), number(), body).prop_map(|(s, p, b)| Owned::Page(s, p, b)),
            1 => number().prop_map(|s| Owned::Log(LogRecord::SpaceCreate(s))),
            1 => number().prop_map(|s| Owned::Log(LogRecord::SpaceDelete(s))),
            1 => number().prop_map(|e| Owned::Log(LogRecord::Epoch(e))),
            1 => (number(), any::<u64>()).prop_map(|(epoch, lsn)| {
                Owned::Log(LogRecord::Durable(DurableMark { epoch, lsn: Lsn(lsn) }))
            }),
        ]
    }

    proptest! {
        #[test]
        fn round_trip(records in prop::collection::vec(owned(), 1..20)) {
            let mut writer = Writer::default();
            for record in &records {
                match record {
                    Owned::Page(space, page, body) => {
                        let at = writer.page(*space, *page, |out| out.extend_from_slice(body));
                        prop_assert_eq!(&writer.bytes()[at], &body[..]);
                    }
                    Owned::Log(record) => writer.log(*record),
                }
            }
            let back: Vec<_> = Records::new(writer.bytes()).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(back.len(), records.len());
            for (got, want) in back.iter().zip(&records) {
                match want {
                    Owned::Page(space, page, body) => {
                        prop_assert_eq!(got, &Record::Page { space: *space, page: *page, op: body });
                    }
                    Owned::Log(record) => prop_assert_eq!(got, &Record::Log(*record)),
                }
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Records::new(&bytes).collect::<Vec<_>>();
        }
    }

    #[test]
    fn a_second_change_of_a_page_costs_one_byte() {
        let mut writer = Writer::default();
        writer.page(17, 300, |out| out.push(1));
        assert_eq!(writer.bytes().len(), 1 + 1 + 2 + 1);
        writer.page(17, 300, |out| out.push(2));
        assert_eq!(writer.bytes().len(), 5 + 2);
    }

    #[test]
    fn a_frame_cannot_refer_to_the_one_before() {
        assert_eq!(Records::new(&[KIND_SAME]).next(), Some(Err(RecordError::NoPage)));
        assert_eq!(Records::new(&[KIND_PAGE, 1]).next(), Some(Err(RecordError::NoPage)));
    }
}
