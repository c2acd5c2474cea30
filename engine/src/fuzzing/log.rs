//! Targets for redo and undo.

use tidepool_pool::Lsn;

use super::pages::PAGE;
use super::{front, sized};
use crate::page_op::PageOp;
use crate::redo::frame::{self, Parsed};
use crate::redo::record::{LogRecord, Record as RedoRecord, Records, Writer};
use crate::undo::page::{DATA_AT, PageHeader, page_end};
use crate::undo::record::{Body, MARK_CHAIN, Record, Writer as UndoWriter};

/// Redo frame: `start u64 | epoch u32 | bytes`. What parses is made by `header` of the same
/// payload; and what
/// `header` makes of the bytes parses.
pub fn redo_frame(bytes: &[u8]) {
    let (start, bytes) = front::<8>(bytes);
    let (epoch, bytes) = front::<4>(bytes);
    let (start, epoch) = (Lsn(u64::from_le_bytes(start)), u32::from_le_bytes(epoch));
    match frame::parse(bytes, start, epoch) {
        Parsed::Frame { payload, frame_len, epoch: written } => {
            assert!(written >= epoch && frame_len <= bytes.len());
            let crc = frame::payload_crc(payload);
            let (header, header_len) = frame::header(payload.len(), crc, start, written);
            assert_eq!(header[..header_len], bytes[..header_len]);
            assert_eq!(header_len + payload.len(), frame_len);
        }
        Parsed::NeedMore(len) => {
            assert!(len > bytes.len(), "{len} bytes are asked for, and are here");
            assert!(len <= frame::frame_len(frame::MAX_PAYLOAD_LEN as usize));
        }
        Parsed::End => {}
    }
    if bytes.is_empty() {
        return;
    }
    let crc = frame::payload_crc(bytes);
    let (header, header_len) = frame::header(bytes.len(), crc, start, epoch);
    let made = [&header[..header_len], bytes].concat();
    let parsed = frame::parse(&made, start, epoch);
    assert_eq!(parsed, Parsed::Frame { payload: bytes, frame_len: made.len(), epoch });
    assert!(matches!(frame::parse(&made[..made.len() - 1], start, epoch), Parsed::NeedMore(_)));
}

/// Redo records: the records of a payload, written again, are the same records.
pub fn redo_record(bytes: &[u8]) {
    let mut records = Vec::new();
    for record in Records::new(bytes) {
        match record {
            Ok(record) => records.push(record),
            Err(_) => break,
        }
    }
    assert!(records.len() <= bytes.len(), "a record has a byte at least");
    let mut writer = Writer::reusing(Vec::new());
    for record in &records {
        match *record {
            RedoRecord::Page { space, page, op } => {
                let body = writer.page(space, page, |out| out.extend_from_slice(op));
                assert_eq!(&writer.bytes()[body], op);
                let _ = PageOp::decode(op);
            }
            RedoRecord::Log(record) => writer.log(record),
        }
    }
    let again: Result<Vec<_>, _> = Records::new(writer.bytes()).collect();
    assert_eq!(again.as_deref(), Ok(&records[..]));
    if let [RedoRecord::Log(LogRecord::Epoch(epoch))] = records[..] {
        assert!(writer.bytes().len() <= 8, "an epoch record of {epoch} is short");
    }
}

/// Undo page: its records lead forward and backward alike, and lie between its header and its end.
pub fn undo_page(bytes: &[u8]) {
    let page = sized(bytes, PAGE);
    let Some(header) = PageHeader::read(&page) else { return };
    assert!((DATA_AT..=page_end(PAGE)).contains(&header.used));
    let mut again = page.clone();
    let encoded = header.bytes();
    let at = DATA_AT - encoded.len();
    again[at..DATA_AT].copy_from_slice(&encoded);
    assert_eq!(PageHeader::read(&again), Some(header));
    let mut at = DATA_AT;
    while at < header.used {
        let Ok(record) = Record::decode(&page, at, header.used) else { break };
        assert_eq!(record.start, at);
        assert!(record.len > 0 && at + record.len <= header.used);
        assert_eq!(Record::decode_before(&page, at + record.len), Ok(record));
        read_undo(&record);
        at += record.len;
    }
    // Roll pointers lead anywhere.
    for at in [DATA_AT - 1, header.used.saturating_sub(7), header.used, PAGE - 1, PAGE, 0xffff] {
        let _ = Record::decode(&page, at, header.used);
        let _ = Record::decode_before(&page, at);
    }
}

/// Reads all of a record; those that carry all that they were made of are made again.
fn read_undo(record: &Record<'_>) {
    assert_eq!(record.space().is_some(), record.tree().is_some());
    let mut out = Vec::new();
    let mut writer = UndoWriter::new(&mut out, record.start);
    match &record.body {
        Body::Log(log) => writer.log(log),
        Body::Insert(place) => writer.insert(place),
        Body::Chain { space, tree } => writer.chain(*space, *tree, record.chain),
        Body::Xid(xid) => writer.xid(xid),
        Body::Update(_, prior) | Body::Delete(_, prior) => {
            let mut value = vec![7; 100];
            let before = value.len();
            if prior.value.restore(&mut value).is_some() {
                assert!(value.len() <= before + record.len);
            }
            return;
        }
    }
    let mut page = vec![0; record.start];
    page.extend_from_slice(&out);
    let again = Record::decode(&page, record.start, page.len()).expect("a record was written");
    let plain = matches!(record.body, Body::Chain { .. }) == (record.marks & MARK_CHAIN != 0);
    if plain {
        assert_eq!(again.body, record.body);
    }
}
