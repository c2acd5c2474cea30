//! How a page becomes an image: LZ4, Zstandard, or the bytes as they are.
//!
//! A codec is worth its time if the image is at most 15/16 of the page. Bytes without structure are
//! found out from a histogram of a sample, before a codec looks at them: see [`looks_random`].

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

use crate::lend;

/// How a page becomes an image. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// The page's bytes.
    Raw,
    /// An LZ4 block: little time, for pages that are soon written again.
    Lz4,
    /// A Zstandard frame of level 1.
    Zstd,
}

/// Level 3 saves 1 % more on pages of rows, in twice the time.
const ZSTD_LEVEL: i32 = 1;

/// Bytes of the sample of a page.
const SAMPLE: usize = 1024;
/// Sampled bytes that lie side by side.
const SAMPLE_RUN: usize = 32;
/// Bits of entropy a byte from which no codec is tried. A thousand random bytes measure about 7.8,
/// random decimal digits 3.3.
const ENTROPY_MAX: f32 = 7.5;

impl Codec {
    /// The codec's number in entries.
    pub fn id(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        }
    }

    /// The codec of a number.
    pub fn from_id(id: u8) -> Option<Codec> {
        match id {
            0 => Some(Codec::Raw),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// Appends the image of `page` to `out`, by this codec if that saves a sixteenth; returns the
    /// codec that was used.
    pub fn encode(self, page: &[u8], out: &mut Vec<u8>) -> Codec {
        let start = out.len();
        let limit = page.len() - page.len() / 16;
        let len = match self {
            Codec::Raw => None,
            _ if looks_random(page) => None,
            Codec::Lz4 => {
                out.resize(start + lz4_flex::block::get_maximum_output_size(page.len()), 0);
                lz4_flex::block::compress_into(page, &mut out[start..]).ok()
            }
            Codec::Zstd => {
                // Room for less than is wanted: the compressor ends early on bytes that do not
                // shrink.
                out.resize(start + limit, 0);
                lend(&COMPRESSOR, new_compressor, |zstd| {
                    zstd.compress_to_buffer(page, &mut out[start..]).ok()
                })
            }
        };
        let used = match len.filter(|len| *len <= limit) {
            Some(len) => {
                out.truncate(start + len);
                self
            }
            None => {
                out.truncate(start);
                out.extend_from_slice(page);
                Codec::Raw
            }
        };
        used.check(&out[start..], page);
        used
    }

    /// In a debug build: the image gives the page back.
    fn check(self, image: &[u8], page: &[u8]) {
        if cfg!(debug_assertions) {
            let mut decoded = vec![0; page.len()];
            assert_eq!(self.decode(image, &mut decoded), Ok(()), "the image can be decoded");
            assert!(decoded == page, "the image gives the page back");
        }
    }

    /// Makes the page of an image. `Err` if the bytes are no image of a page of this size.
    pub fn decode(self, image: &[u8], page: &mut [u8]) -> Result<(), &'static str> {
        let len = match self {
            Codec::Raw if image.len() == page.len() => {
                page.copy_from_slice(image);
                Ok(image.len())
            }
            Codec::Raw => {
                return Err("the image of a page that was stored as it is has another length");
            }
            Codec::Lz4 => lz4_flex::block::decompress_into(image, page)
                .map_err(|_| "LZ4 can't decompress the image"),
            Codec::Zstd => {
                lend(&DECOMPRESSOR, new_decompressor, |zstd| zstd.decompress_to_buffer(image, page))
                    .map_err(|_| "Zstandard can't decompress the image")
            }
        };
        match len? {
            len if len == page.len() => Ok(()),
            _ => Err("the image gives fewer bytes than a page has"),
        }
    }
}

thread_local! {
    static COMPRESSOR: RefCell<Compressor<'static>> = RefCell::new(new_compressor());
    static DECOMPRESSOR: RefCell<Decompressor<'static>> = RefCell::new(new_decompressor());
}

fn new_compressor() -> Compressor<'static> {
    Compressor::new(ZSTD_LEVEL).expect("a fixed level")
}

fn new_decompressor() -> Decompressor<'static> {
    Decompressor::new().expect("a decompressor without a dictionary")
}

/// Whether the entropy of a sample says that no codec makes the bytes shorter. About a microsecond.
fn looks_random(page: &[u8]) -> bool {
    let stride = page.len() / (SAMPLE / SAMPLE_RUN);
    let mut counts = [0u16; 256];
    for run in page.chunks(stride) {
        for byte in &run[..SAMPLE_RUN.min(run.len())] {
            counts[usize::from(*byte)] += 1;
        }
    }
    let total: f32 = counts.iter().map(|count| f32::from(*count)).sum();
    let bits: f32 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f32::from(*count) * (total / f32::from(*count)).log2())
        .sum();
    bits > ENTROPY_MAX * total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize, below: u32) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        };
        (0..len).map(|_| (next() % below) as u8).collect()
    }

    #[test]
    fn every_codec_gives_the_page_back() {
        let mut rows: Vec<u8> = (0..16u32 << 10).map(|at| (at / 97 * 31) as u8).collect();
        rows[..4096].copy_from_slice(&random(4096, 256));
        for page in [rows, vec![0; 16 << 10], random(16 << 10, 256), random(4 << 10, 10)] {
            for codec in [Codec::Raw, Codec::Lz4, Codec::Zstd] {
                let mut out = vec![7; 3];
                let used = codec.encode(&page, &mut out);
                assert!(out.len() - 3 <= page.len());
                let mut back = vec![1; page.len()];
                used.decode(&out[3..], &mut back).unwrap();
                assert!(back == page, "{codec:?}");
            }
        }
    }

    #[test]
    fn random_bytes_are_stored_as_they_are_and_random_digits_are_not() {
        let encode = |page: &[u8]| Codec::Zstd.encode(page, &mut Vec::new());
        assert!(looks_random(&random(16 << 10, 256)));
        assert_eq!(encode(&random(16 << 10, 256)), Codec::Raw);
        assert!(!looks_random(&random(16 << 10, 10)));
        assert_eq!(encode(&random(16 << 10, 10)), Codec::Zstd);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let mut page = vec![0; 4096];
        for codec in [Codec::Raw, Codec::Lz4, Codec::Zstd] {
            assert!(codec.decode(&random(300, 256), &mut page).is_err());
            assert!(codec.decode(&[], &mut page).is_err());
        }
        // The image of a page of another size.
        let mut out = Vec::new();
        let used = Codec::Zstd.encode(&[0; 8192], &mut out);
        assert!(used.decode(&out, &mut page).is_err());
        assert!(used.decode(&out, &mut [0; 16384]).is_err());
    }
}
