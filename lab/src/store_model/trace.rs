//! A trace of page writes: which pages a server wrote out, in which batches, and how small their
//! images become.
//!
//! # File format
//! One line of JSON ([`About`]), then batches: a `u32` count and as many records of 24 bytes. The
//! first batch holds the pages that were on disk when the recording began. Integers are
//! little-endian.
//!
//! | at | bytes | field |
//! |--:|--:|---|
//! | 0 | 4 | space |
//! | 4 | 4 | page number |
//! | 8 | 8 | page LSN |
//! | 16 | 2 | page type |
//! | 18 | 2 | bytes of the image by zstd, level 1 |
//! | 20 | 2 | bytes of the image by LZ4 |
//! | 22 | 2 | 0 |

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidepool_pool::page;

use crate::error::{Error, Result};

/// Bytes of a page: the recorder runs servers with no other page size.
pub const PAGE_BYTES: usize = 16 << 10;

const RECORD_BYTES: usize = 24;

/// Images of one batch, at most. A damaged count must not take all memory.
const BATCH_IMAGES_MAX: usize = 1 << 26;

/// A page as it was written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The tablespace.
    pub space: u32,
    /// The page's number.
    pub no: u32,
    /// The page LSN.
    pub lsn: u64,
    /// The page type.
    pub kind: u16,
    /// Bytes by zstd, level 1; [`PAGE_BYTES`] if that saves nothing.
    pub zstd: u16,
    /// Bytes by LZ4; [`PAGE_BYTES`] if that saves nothing.
    pub lz4: u16,
}

impl Image {
    /// Space and page number in one word.
    pub fn page(&self) -> u64 {
        u64::from(self.space) << 32 | u64::from(self.no)
    }
}

/// What a trace is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The load.
    pub name: String,
    /// Transactions that were committed while it was recorded.
    pub transactions: u64,
    /// By how much the server's counters grew meanwhile.
    pub counters: BTreeMap<String, u64>,
}

/// A trace in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// What it is of.
    pub about: About,
    /// The pages that were on disk when the recording began, in the order of files.
    pub before: Vec<Image>,
    /// The batches, in the order in which they were written.
    pub batches: Vec<Vec<Image>>,
}

impl Writes {
    /// Page writes that were recorded.
    pub fn page_writes(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Writes the trace to a file.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(Error::at(path))?;
        self.write_to(&mut BufWriter::new(file)).map_err(Error::at(path))
    }

    fn write_to(&self, out: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, &self.about)?;
        out.write_all(b"\n")?;
        for batch in std::iter::once(&self.before).chain(&self.batches) {
            out.write_all(&(batch.len() as u32).to_le_bytes())?;
            for image in batch {
                out.write_all(&record(image))?;
            }
        }
        out.flush()
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// If the file can't be read, or holds no whole trace.
    pub fn load(path: &Path) -> Result<Writes> {
        let file = File::open(path).map_err(Error::at(path))?;
        Writes::read_from(&mut BufReader::new(file))
            .map_err(|message| Error::Trace { path: path.to_owned(), message })
    }

    fn read_from(input: &mut impl BufRead) -> std::result::Result<Writes, String> {
        let mut line = String::new();
        input.read_line(&mut line).map_err(|error| error.to_string())?;
        let about = serde_json::from_str(&line)
            .map_err(|error| format!("not a trace of page writes: {error}"))?;
        let before = batch(input)?.ok_or("it ends after its first line")?;
        let mut batches = Vec::new();
        while let Some(batch) = batch(input)? {
            batches.push(batch);
        }
        Ok(Writes { about, before, batches })
    }
}

fn record(image: &Image) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..4].copy_from_slice(&image.space.to_le_bytes());
    bytes[4..8].copy_from_slice(&image.no.to_le_bytes());
    bytes[8..16].copy_from_slice(&image.lsn.to_le_bytes());
    bytes[16..18].copy_from_slice(&image.kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&image.zstd.to_le_bytes());
    bytes[20..22].copy_from_slice(&image.lz4.to_le_bytes());
    bytes
}

/// The next batch, or `None` at the end.
fn batch(input: &mut impl BufRead) -> std::result::Result<Option<Vec<Image>>, String> {
    let cut = |error: std::io::Error| format!("it is cut off: {error}");
    if input.fill_buf().map_err(cut)?.is_empty() {
        return Ok(None);
    }
    let mut count = [0; 4];
    input.read_exact(&mut count).map_err(cut)?;
    let count = u32::from_le_bytes(count) as usize;
    if count > BATCH_IMAGES_MAX {
        return Err(format!("a batch of {count} pages"));
    }
    let mut images = Vec::new();
    let mut bytes = [0; RECORD_BYTES];
    for _ in 0..count {
        input.read_exact(&mut bytes).map_err(cut)?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        images.push(Image {
            space: u32_at(0),
            no: u32_at(4),
            lsn: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            kind: u16_at(16),
            zstd: u16_at(18),
            lz4: u16_at(20),
        });
    }
    Ok(Some(images))
}

/// Measures pages: how small each becomes.
pub struct Measurer {
    zstd: zstd::bulk::Compressor<'static>,
    room: Vec<u8>,
}

impl Measurer {
    /// With zstd at level 1.
    ///
    /// # Errors
    /// If zstd has no memory.
    pub fn new() -> Result<Measurer> {
        let zstd = zstd::bulk::Compressor::new(1).map_err(Error::io("zstd"))?;
        Ok(Measurer { zstd, room: vec![0; 2 * PAGE_BYTES] })
    }

    /// The image of a page as it lies on disk; `None` of a page that was never written.
    pub fn image(&mut self, bytes: &[u8]) -> Option<Image> {
        assert_eq!(bytes.len(), PAGE_BYTES, "one page");
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        let size = |bytes: Option<usize>| bytes.unwrap_or(PAGE_BYTES).min(PAGE_BYTES) as u16;
        let zstd = self.zstd.compress_to_buffer(bytes, &mut self.room[..]).ok();
        let lz4 = lz4_flex::block::compress_into(bytes, &mut self.room).ok();
        let id = page::page_id(bytes);
        Some(Image {
            space: id.space,
            no: id.no,
            lsn: page::page_lsn(bytes).0,
            kind: page::page_type(bytes).0,
            zstd: size(zstd),
            lz4: size(lz4),
        })
    }

    /// The images of all pages in a file of a tablespace.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn file(&mut self, path: &Path, images: &mut Vec<Image>) -> Result<()> {
        let mut file = BufReader::new(File::open(path).map_err(Error::at(path))?);
        let mut bytes = vec![0; PAGE_BYTES];
        loop {
            match file.read_exact(&mut bytes) {
                Ok(()) => images.extend(self.image(&bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(Error::at(path)(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(space: u32, no: u32, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; PAGE_BYTES];
        bytes[4..8].copy_from_slice(&no.to_le_bytes());
        bytes[8..12].copy_from_slice(&space.to_le_bytes());
        bytes[12..14].copy_from_slice(&3u16.to_le_bytes());
        bytes[16..24].copy_from_slice(&77u64.to_le_bytes());
        bytes
    }

    #[test]
    fn a_trace_survives_its_file_and_a_cut_one_is_refused() {
        let image = Image { space: 17, no: 1 << 20, lsn: 1 << 40, kind: 3, zstd: 9, lz4: 16384 };
        let about = About {
            name: "tpcc".into(),
            transactions: 5,
            counters: BTreeMap::from([("pages_flushed".into(), 2)]),
        };
        let batches = vec![vec![image], Vec::new(), vec![image, Image { no: 2, ..image }]];
        let writes = Writes { about, before: vec![image], batches };
        let mut bytes = Vec::new();
        writes.write_to(&mut bytes).unwrap();
        assert_eq!(Writes::read_from(&mut bytes.as_slice()), Ok(writes));
        let error = Writes::read_from(&mut &bytes[..bytes.len() - 1]).unwrap_err();
        assert!(error.contains("cut off"), "{error}");
        assert!(Writes::read_from(&mut b"ELF".as_slice()).is_err());
    }

    #[test]
    fn a_page_is_measured_by_both_codecs() {
        let mut measurer = Measurer::new().unwrap();
        let image = measurer.image(&page(17, 5, 1)).unwrap();
        assert_eq!((image.space, image.no, image.kind, image.lsn), (17, 5, 3, 77));
        assert!(image.zstd < 200 && image.lz4 < 200, "{image:?}");
        assert_eq!(measurer.image(&vec![0; PAGE_BYTES]), None);
        let mut random = page(17, 6, 0);
        let mut state = 1u64;
        for byte in &mut random[32..] {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        let image = measurer.image(&random).unwrap();
        assert_eq!((image.zstd, image.lz4), (16384, 16384));
    }
}
