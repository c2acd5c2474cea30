//! The file of an exported table: written once from its beginning to its end, and read so.
//!
//! ```text
//! header   magic, version, random id of this file; name, definition, counters of the table
//! block…   entries of the indexes, one index after the other, each in the order of its keys
//! end      a block that says how many entries each index has
//! ```
//! An entry is the key's length u16, the value's length u64, the key, the value. The entries of an
//! index are one sequence of bytes, cut into blocks of [`PIECE`] bytes: an entry may go on in the
//! next block. A block is compressed, then encrypted if the table is, then checksummed.
//! `docs/internals/format/export.md` has it byte by byte.
//!
//! # Invariants
//! - What is read past a checksum is never taken for a length of memory: a reader holds what it has
//!   read, and one block.
//! - A file counts only with its end, and with nothing behind it: what a crash or a full disk cut
//!   short is refused.
//! - Blocks are of this file and in this order: their checksums, and the tags of encrypted ones,
//!   cover the file's random id and the block's number.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use tidepool_pool::encryption::{PageKey, key_of};
use tidepool_pool::packed::Codec;

use crate::catalog::{ATTACHMENT_LEN_MAX, TableDef, TableRecord, TreeRecord};
use crate::env::random_uuid;
use crate::error::{Error, Remedy, Result};

const MAGIC: &[u8; 8] = b"TIDEEXPT";
/// Version of the format that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Magic, version, length of the body, id, reserved, checksum.
const HEADER_BYTES: usize = 40;
/// Longest body of a header: the longest definition and description, and names.
const BODY_MAX: usize = ATTACHMENT_LEN_MAX + (4 << 20);
/// Number, kind, codec, index, length of the entries, length of what is stored, checksum.
const BLOCK_HEADER_BYTES: usize = 24;
/// Bytes of entries in a block, of all but the last of an index.
pub const PIECE: usize = 256 << 10;
/// A block that is stored is no longer than its entries and a seal.
const STORED_MAX: usize = PIECE + 256;
/// The codecs look at a sample of a page.
const COMPRESSED_MIN: usize = 4096;

const ENTRIES: u8 = 0;
const END: u8 = 1;

/// Lengths of key and value.
const ENTRY_HEADER_BYTES: usize = 10;

/// What the header of an export says of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The table's name where it was exported.
    pub table: String,
    /// Page size of that data directory.
    pub page_size: u32,
    /// Its next auto-increment value.
    pub auto_increment: u64,
    /// The key that its blocks are encrypted with; `None`: they are not.
    pub key_id: Option<u32>,
    /// Its definition.
    pub def: TableDef,
    /// Bytes that mean something to the layer above only.
    pub description: Vec<u8>,
}

impl Exported {
    fn encode(&self) -> Vec<u8> {
        let def = self.def.clone();
        let trees = vec![TreeRecord { tree: 0, root: 0 }; def.indexes.len()];
        let record = TableRecord {
            id: 0,
            space: 0,
            lost_changes: false,
            has_notes: false,
            is_discarded: false,
            trees,
            def,
        };
        let record = record.encode();
        let mut body = Vec::with_capacity(64 + record.len() + self.description.len());
        body.extend_from_slice(&self.page_size.to_le_bytes());
        body.extend_from_slice(&self.key_id.unwrap_or(0).to_le_bytes());
        body.extend_from_slice(&self.auto_increment.to_le_bytes());
        for part in [self.table.as_bytes(), &record, &self.description] {
            body.extend_from_slice(&(part.len() as u32).to_le_bytes());
            body.extend_from_slice(part);
        }
        body
    }

    fn decode(body: &[u8]) -> Result<Exported, String> {
        let mut rest = body;
        let page_size = u32::from_le_bytes(take(&mut rest)?);
        let key_id = u32::from_le_bytes(take(&mut rest)?);
        let auto_increment = u64::from_le_bytes(take(&mut rest)?);
        let mut part = || -> Result<&[u8], String> {
            let len = u32::from_le_bytes(take(&mut rest)?) as usize;
            let (part, behind) = rest.split_at_checked(len).ok_or("its header is cut short")?;
            rest = behind;
            Ok(part)
        };
        let (name, record, description) = (part()?, part()?, part()?);
        if !rest.is_empty() {
            return Err("its header has bytes too many".into());
        }
        let table = std::str::from_utf8(name).map_err(|_| "the table's name is not UTF-8")?;
        let record = TableRecord::decode(table, record).map_err(|error| error.to_string())?;
        Ok(Exported {
            table: table.into(),
            page_size,
            auto_increment,
            key_id: (key_id > 0).then_some(key_id),
            def: record.def,
            description: description.to_vec(),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (front, behind) = rest.split_first_chunk::<N>().ok_or("its header is cut short")?;
    *rest = behind;
    Ok(*front)
}

/// What the checksum of a block, and the tag of an encrypted one, cover beside what is stored.
fn bound(id: &[u8; 16], header: &[u8; BLOCK_HEADER_BYTES]) -> [u8; 32] {
    let mut bound = [0; 32];
    bound[..16].copy_from_slice(id);
    // Number, kind, codec, index, length of the entries.
    bound[16..].copy_from_slice(&header[..16]);
    bound
}

fn checksum(id: &[u8; 16], header: &[u8; BLOCK_HEADER_BYTES], stored: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(id), &header[..20]);
    crc32c::crc32c_append(sum, stored)
}

/// Writes the file of an export.
pub struct Writer<'a> {
    to: &'a mut dyn Write,
    table: String,
    id: [u8; 16],
    codec: Codec,
    key: Option<Arc<PageKey>>,
    number: u64,
    index: u16,
    /// Entries of the index that are not written yet.
    entries: Vec<u8>,
    counts: Vec<u64>,
    /// Room for what is stored.
    stored: Vec<u8>,
    written: u64,
}

impl<'a> Writer<'a> {
    /// Begins with the header. Blocks are encrypted with `key`.
    pub fn begin(
        to: &'a mut dyn Write,
        exported: &Exported,
        codec: Codec,
        key: Option<Arc<PageKey>>,
    ) -> Result<Self> {
        let body = exported.encode();
        assert!(body.len() <= BODY_MAX, "a definition and a description have limits");
        let id = random_uuid();
        let mut head = [0; HEADER_BYTES];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[16..32].copy_from_slice(&id);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..36]), &body);
        head[36..].copy_from_slice(&sum.to_le_bytes());
        let mut writer = Self {
            to,
            table: exported.table.clone(),
            id,
            codec,
            key,
            number: 0,
            index: 0,
            entries: Vec::with_capacity(PIECE + 4096),
            counts: vec![0; exported.def.indexes.len()],
            stored: Vec::new(),
            written: 0,
        };
        writer.write(&head)?;
        writer.write(&body)?;
        Ok(writer)
    }

    /// Adds an entry. Indexes come one after the other, and the keys of each ascend.
    pub fn entry(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if usize::from(self.index) != index {
            self.flush(0)?;
            self.index = index as u16;
        }
        self.counts[index] += 1;
        self.entries.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.entries.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.entries.extend_from_slice(key);
        self.entries.extend_from_slice(value);
        self.flush(PIECE)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes the rest, and the end. Gives the number of entries of each index.
    pub fn finish(mut self) -> Result<Vec<u64>> {
        self.flush(0)?;
        let counts = self.counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<_>>();
        self.index = 0;
        self.block(END, &counts)?;
        let flushed = self.to.flush();
        flushed.map_err(|error| write_error(&self.table, &error))?;
        Ok(self.counts)
    }

    /// Writes whole blocks while more than `keep` bytes of entries wait.
    fn flush(&mut self, keep: usize) -> Result<()> {
        if self.entries.len() <= keep {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        let mut rest = &entries[..];
        while rest.len() > keep {
            let (piece, behind) = rest.split_at(rest.len().min(PIECE));
            self.block(ENTRIES, piece)?;
            rest = behind;
        }
        let left = rest.len();
        let from = entries.len() - left;
        self.entries = entries;
        self.entries.drain(..from);
        self.entries.shrink_to(2 * PIECE);
        Ok(())
    }

    fn block(&mut self, kind: u8, plain: &[u8]) -> Result<()> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        let wanted = if plain.len() < COMPRESSED_MIN { Codec::Raw } else { self.codec };
        let codec = wanted.encode(plain, &mut stored);
        header[..8].copy_from_slice(&self.number.to_le_bytes());
        header[8] = kind;
        header[9] = codec.id();
        header[10..12].copy_from_slice(&self.index.to_le_bytes());
        header[12..16].copy_from_slice(&(plain.len() as u32).to_le_bytes());
        if let Some(key) = &self.key {
            stored = key.seal(&stored, &bound(&self.id, &header));
        }
        header[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        let sum = checksum(&self.id, &header, &stored);
        header[20..].copy_from_slice(&sum.to_le_bytes());
        self.number += 1;
        self.write(&header)?;
        self.write(&stored)?;
        self.stored = stored;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(|error| write_error(&self.table, &error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn write_error(table: &str, error: &io::Error) -> Error {
    let what = format!("the export of table '{table}'");
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::NoSpace(what),
        _ => Error::Storage(format!("{what} can't be written: {error}")),
    }
}

/// The file of a table that [`Db::export_table`](crate::Db::export_table) has written, open to be
/// imported. Its header has been read.
pub struct TableExport {
    from: Box<dyn Read + Send>,
    /// What errors call the file.
    name: String,
    exported: Exported,
    id: [u8; 16],
    /// Of the block to come.
    number: u64,
    read: u64,
    has_ended: bool,
    stored: Vec<u8>,
    opened: Vec<u8>,
}

/// One block, its bytes in the buffer that was given.
pub(super) enum Block {
    /// Entries of an index.
    Entries { index: usize },
    /// The end of the file: how many entries each index has.
    End(Vec<u64>),
}

/// Gives the version of a key that a block is encrypted with.
pub(super) type KeyOf<'a> = &'a dyn Fn(u32, u32) -> Result<Arc<PageKey>>;

impl TableExport {
    /// Reads the header of an export. `name` is what errors call it.
    ///
    /// # Errors
    /// [`Error::Format`] if it is no export, of another version, or damaged.
    pub fn open(name: &str, mut from: Box<dyn Read + Send>) -> Result<Self> {
        let refuse = |why: &str, remedy| Err(Error::format(name, why, remedy));
        let mut head = [0; HEADER_BYTES];
        let got = read_up_to(&mut from, &mut head).map_err(|error| read_error(name, &error))?;
        if got < 12 || head[..8] != *MAGIC {
            return refuse("it is no table that Tidepool has exported", Remedy::CopyExport);
        }
        let version = u32::from_le_bytes(head[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            let why = format!(
                "it is an export of format {version}, and this Tidepool reads format {VERSION}"
            );
            return refuse(&why, Remedy::ImportWithItsVersion);
        }
        let len = u32::from_le_bytes(head[12..16].try_into().expect("4 bytes")) as usize;
        if got < HEADER_BYTES || len > BODY_MAX {
            return refuse(BROKEN_HEADER, Remedy::CopyOrExportAgain);
        }
        let mut body = Vec::new();
        let got = (&mut from).take(len as u64).read_to_end(&mut body);
        got.map_err(|error| read_error(name, &error))?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..36]), &body);
        if body.len() != len || sum.to_le_bytes() != head[36..] {
            return refuse(BROKEN_HEADER, Remedy::CopyOrExportAgain);
        }
        let exported = Exported::decode(&body);
        let exported =
            exported.map_err(|why| Error::format(name, why, Remedy::CopyOrExportAgain))?;
        Ok(Self {
            from,
            name: name.into(),
            exported,
            id: head[16..32].try_into().expect("16 bytes"),
            number: 0,
            read: (HEADER_BYTES + len) as u64,
            has_ended: false,
            stored: Vec::new(),
            opened: Vec::new(),
        })
    }

    /// What it says of its table.
    pub fn exported(&self) -> &Exported {
        &self.exported
    }

    /// Bytes of it that have been read.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// An error about the block that was read last.
    pub(super) fn spoilt(&self, why: &str) -> Error {
        let number = self.number.saturating_sub(1);
        let why = format!("block {number} is damaged: {why}");
        Error::format(&self.name, why, Remedy::CopyOrExportAgain)
    }

    /// Reads the next block, whose bytes are appended to `plain`.
    pub(super) fn block(&mut self, key_of_block: KeyOf<'_>, plain: &mut Vec<u8>) -> Result<Block> {
        assert!(!self.has_ended, "nothing comes behind the end");
        let mut header = [0; BLOCK_HEADER_BYTES];
        self.fill(&mut header)?;
        self.number += 1;
        let number = |range: std::ops::Range<usize>| {
            u32::from_le_bytes(header[range].try_into().expect("4 bytes")) as usize
        };
        let (len, stored_len) = (number(12..16), number(16..20));
        if header[..8] != (self.number - 1).to_le_bytes() || stored_len > STORED_MAX || len > PIECE
        {
            return Err(self.spoilt("its header is not one"));
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(stored_len, 0);
        self.fill(&mut stored)?;
        if checksum(&self.id, &header, &stored).to_le_bytes() != header[20..] {
            return Err(self.spoilt("its checksum is wrong"));
        }
        let image = self.opened(&header, &stored, key_of_block)?;
        let codec = Codec::from_id(header[9]);
        let codec = codec.ok_or_else(|| self.spoilt("its codec is not known"))?;
        let at = plain.len();
        plain.resize(at + len, 0);
        let image = if image { &self.opened } else { &stored };
        codec.decode(image, &mut plain[at..]).map_err(|why| self.spoilt(why))?;
        self.stored = stored;
        let index = usize::from(u16::from_le_bytes([header[10], header[11]]));
        let indexes = self.exported.def.indexes.len();
        match header[8] {
            ENTRIES if index < indexes => Ok(Block::Entries { index }),
            END if len == 8 * indexes => {
                let counts = plain.split_off(at);
                let (counts, _) = counts.as_chunks::<8>();
                let counts = counts.iter().map(|count| u64::from_le_bytes(*count)).collect();
                self.check_ends()?;
                Ok(Block::End(counts))
            }
            _ => Err(self.spoilt("it is of no kind")),
        }
    }

    /// Decrypts a block into `opened`; false: it is not encrypted.
    fn opened(
        &mut self,
        header: &[u8; BLOCK_HEADER_BYTES],
        stored: &[u8],
        key_of_block: KeyOf<'_>,
    ) -> Result<bool> {
        if self.exported.key_id.is_none() {
            return Ok(false);
        }
        let Some((id, version)) = key_of(stored) else {
            return Err(self.spoilt("it is encrypted, and shorter than that takes"));
        };
        let key = key_of_block(id, version).map_err(|error| match error {
            Error::Key { what, .. } => Error::no_key(format!("{} is encrypted: {what}", self.name)),
            error => error,
        })?;
        let opened = key.open(stored, &bound(&self.id, header), &mut self.opened);
        opened.map_err(|_| {
            self.spoilt(
                "it can't be decrypted: this server has another key of that number, or the file \
                 was changed",
            )
        })?;
        Ok(true)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let got = read_up_to(&mut self.from, bytes);
        let got = got.map_err(|error| read_error(&self.name, &error))?;
        self.read += got as u64;
        if got == bytes.len() {
            return Ok(());
        }
        let why = format!("it ends at byte {}, and is not complete", self.read);
        Err(Error::format(&self.name, why, Remedy::CopyOrExportAgain))
    }

    /// Nothing may follow.
    fn check_ends(&mut self) -> Result<()> {
        self.has_ended = true;
        let got = read_up_to(&mut self.from, &mut [0]);
        match got.map_err(|error| read_error(&self.name, &error))? {
            0 => Ok(()),
            _ => Err(self.spoilt("something follows the end")),
        }
    }
}

const BROKEN_HEADER: &str = "its header is damaged";

fn read_error(name: &str, error: &io::Error) -> Error {
    Error::Storage(format!("{name} can't be read: {error}"))
}

/// Reads until `bytes` is full or the file ends; how many there were.
fn read_up_to(from: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match from.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Puts the right checksums where those of a header and of blocks are.
#[cfg(any(test, feature = "fuzzing"))]
pub fn stamp(file: &mut [u8]) {
    let number = |file: &[u8], at: usize| {
        u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes")) as usize
    };
    if file.len() < HEADER_BYTES {
        return;
    }
    let mut at = HEADER_BYTES.saturating_add(number(file, 12));
    let Some(body) = file.get(HEADER_BYTES..at) else { return };
    let sum = crc32c::crc32c_append(crc32c::crc32c(&file[..36]), body);
    file[36..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    let id: [u8; 16] = file[16..32].try_into().expect("16 bytes");
    while let Some(block) = file.get_mut(at..).filter(|rest| rest.len() >= BLOCK_HEADER_BYTES) {
        let stored = number(block, 16);
        let (header, rest) = block.split_at_mut(BLOCK_HEADER_BYTES);
        let header: &mut [u8; BLOCK_HEADER_BYTES] = header.try_into().expect("a header");
        let Some(rest) = rest.get(..stored) else { return };
        let sum = checksum(&id, header, rest);
        header[20..].copy_from_slice(&sum.to_le_bytes());
        at += BLOCK_HEADER_BYTES + stored;
    }
}

/// Reads all of an export that is not encrypted: the entries, and what its header says.
#[cfg(any(test, feature = "fuzzing"))]
#[expect(clippy::type_complexity, reason = "keys and values, for a test")]
pub fn read_all(file: &[u8]) -> Result<(Exported, Vec<(Vec<u8>, Vec<u8>)>)> {
    let mut export = TableExport::open("file", Box::new(io::Cursor::new(file.to_vec())))?;
    let no_key = |id, version| Err(Error::no_key(format!("version {version} of key {id}")));
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    while let Block::Entries { .. } = export.block(&no_key, &mut bytes)? {
        let mut at = 0;
        while let Some((key, value, len)) = entry(&bytes[at..]) {
            entries.push((key.to_vec(), value.to_vec()));
            at += len;
        }
        bytes.drain(..at);
    }
    Ok((export.exported, entries))
}

/// What the header says, encoded and decoded.
#[cfg(any(test, feature = "fuzzing"))]
pub fn decode_again(exported: &Exported) -> Exported {
    Exported::decode(&exported.encode()).expect("what was encoded decodes")
}

/// A small export, of two indexes.
#[cfg(any(test, feature = "fuzzing"))]
pub fn example() -> Vec<u8> {
    use crate::catalog::IndexDef;
    let exported = Exported {
        table: "t".into(),
        page_size: 4096,
        auto_increment: 9,
        key_id: None,
        def: TableDef {
            metadata: b"metadata".to_vec(),
            ..TableDef::new([IndexDef::unique("id"), IndexDef::non_unique("k")])
        },
        description: b"described".to_vec(),
    };
    let mut file = Vec::new();
    let mut writer =
        Writer::begin(&mut file, &exported, Codec::Lz4, None).expect("memory takes all");
    for index in 0..2 {
        for n in 0..300u16 {
            let put = writer.entry(index, &n.to_be_bytes(), b"a value that is long enough");
            put.expect("memory takes all");
        }
    }
    writer.finish().expect("memory takes all");
    file
}

/// Takes an entry off the front of `bytes`: its key and its value, and its length with all. `None`:
/// the rest of it comes in a later block.
pub(super) fn entry(bytes: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    let (head, rest) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
    let key_len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let value_len = u64::from_le_bytes(head[2..].try_into().expect("8 bytes"));
    let (key, rest) = rest.split_at_checked(key_len)?;
    let value = rest.get(..usize::try_from(value_len).ok()?)?;
    Some((key, value, ENTRY_HEADER_BYTES + key_len + value.len()))
}
