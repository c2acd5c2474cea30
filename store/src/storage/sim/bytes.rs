//! The contents of a simulated file: sparse, and cheap to copy as a whole.
//!
//! Chunks are shared between copies until one of them writes, so the images that a crash leaves
//! cost a pointer per chunk. An absent chunk is all zeroes.
//!
//! Invariant: bytes of a chunk beyond `len` are zero, so growing needs to touch nothing.

use std::sync::Arc;

const CHUNK: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct SparseBytes {
    chunks: Vec<Option<Arc<[u8; CHUNK]>>>,
    len: u64,
}

impl SparseBytes {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Shrinking forgets what lies beyond; growing adds zeroes.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.chunks.truncate(len.div_ceil(CHUNK as u64) as usize);
            let tail = (len % CHUNK as u64) as usize;
            if tail > 0
                && let Some(Some(chunk)) = self.chunks.get_mut((len / CHUNK as u64) as usize)
            {
                Arc::make_mut(chunk)[tail..].fill(0);
            }
        }
        self.len = len;
    }

    /// Fills `buf` from `offset`, which lies inside the length with all of `buf`.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        debug_assert!(offset + buf.len() as u64 <= self.len);
        for (chunk, within, part) in spans(offset, buf.len()) {
            match self.chunks.get(chunk) {
                Some(Some(bytes)) => {
                    buf[part.clone()].copy_from_slice(&bytes[within..within + part.len()]);
                }
                _ => buf[part].fill(0),
            }
        }
    }

    /// Writes `bytes` at `offset`; the length must reach that far already.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        debug_assert!(offset + bytes.len() as u64 <= self.len);
        for (chunk, within, part) in spans(offset, bytes.len()) {
            let bytes = &bytes[part];
            if self.chunks.len() <= chunk {
                self.chunks.resize(chunk + 1, None);
            }
            match &mut self.chunks[chunk] {
                Some(old) => {
                    Arc::make_mut(old)[within..within + bytes.len()].copy_from_slice(bytes)
                }
                None if bytes.iter().all(|&b| b == 0) => {}
                absent @ None => {
                    let mut new = [0; CHUNK];
                    new[within..within + bytes.len()].copy_from_slice(bytes);
                    *absent = Some(Arc::new(new));
                }
            }
        }
    }
}

/// Cuts `len` bytes at `offset` at chunk borders: (chunk, start within it, range of the `len`
/// bytes).
fn spans(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let start = done;
        done += (CHUNK - within).min(len - done);
        Some(((at / CHUNK as u64) as usize, within, start..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_forgets_and_growing_zeroes() {
        let mut bytes = SparseBytes::default();
        bytes.set_len(10_000);
        bytes.write(&[1; 6000], 3000);
        let copy = bytes.clone();
        bytes.set_len(5000);
        bytes.set_len(10_000);
        let mut buf = vec![9; 10_000];
        bytes.read(&mut buf, 0);
        assert!(buf[..3000].iter().all(|&b| b == 0));
        assert!(buf[3000..5000].iter().all(|&b| b == 1));
        assert!(buf[5000..].iter().all(|&b| b == 0));
        copy.read(&mut buf, 0);
        assert!(buf[3000..9000].iter().all(|&b| b == 1));
    }
}
