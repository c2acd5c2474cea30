//! The key of images of pages.
//!
//! An image is sealed by XAES-256-GCM: of its 24 random bytes, the first 12 make another key for
//! AES-256-GCM, by AES-CMAC with the page key, and the last 12 are the nonce. So two images would
//! have to agree in 192 random bits.
//!
//! ```text
//!  0  key id   u32
//!  4  version  u32
//!  8  nonce    24 bytes
//! 32  the image, encrypted
//!  …  tag      16 bytes
//! ```
//! The tag also covers what the image is of, its codec, and the eight bytes of key and version.

use std::fmt;

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::consts::U12;
use aes_gcm::{Aes256Gcm, Key, Nonce, Tag};
use hkdf::Hkdf;
use sha2::Sha256;

const HEADER_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes by which a sealed image is longer.
pub const SEAL_BYTES: usize = HEADER_BYTES + NONCE_BYTES + TAG_BYTES;

const BLOCK_BYTES: usize = 16;
/// Longest associated data.
const ASSOCIATED_MAX: usize = 64;

/// Why an image can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSealed;

/// A version of a key, as images are sealed with it.
pub struct PageKey {
    id: u32,
    version: u32,
    cipher: Aes256,
    /// The first subkey of AES-CMAC.
    subkey: [u8; BLOCK_BYTES],
}

impl PageKey {
    /// From the bytes of a keyring's key, by HKDF-SHA-256.
    pub(super) fn derive(bytes: &[u8], id: u32, version: u32) -> PageKey {
        let mut key = [0; 32];
        let expanded = Hkdf::<Sha256>::new(None, bytes).expand(b"tidepool images 1", &mut key);
        expanded.expect("HKDF gives 32 bytes");
        PageKey::new(key, id, version)
    }

    fn new(key: [u8; 32], id: u32, version: u32) -> PageKey {
        let cipher = Aes256::new(&Key::<Aes256Gcm>::from(key));
        let mut zero = aes::Block::default();
        cipher.encrypt_block(&mut zero);
        PageKey { id, version, cipher, subkey: doubled(zero.into()) }
    }

    /// The key's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The sealed image. `associated` is what it belongs to.
    pub fn seal(&self, image: &[u8], associated: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(image.len() + SEAL_BYTES);
        sealed.extend_from_slice(&self.id.to_le_bytes());
        sealed.extend_from_slice(&self.version.to_le_bytes());
        let mut nonce = [0; NONCE_BYTES];
        super::fill_random(&mut nonce);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(image);
        let body = &mut sealed[HEADER_BYTES + NONCE_BYTES..];
        let tag = self.encrypt(&nonce, &self.bound(associated), body);
        sealed.extend_from_slice(&tag);
        debug_assert_eq!(sealed.len(), image.len() + SEAL_BYTES, "a seal has a fixed length");
        debug_assert!(
            self.open(&sealed, associated, &mut Vec::new()).is_ok(),
            "what was sealed can be opened"
        );
        sealed
    }

    /// Opens a sealed image: `out` is the image then.
    ///
    /// # Errors
    /// It is not what was sealed with this key for `associated`.
    pub fn open(
        &self,
        sealed: &[u8],
        associated: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), NotSealed> {
        if sealed.len() < SEAL_BYTES || key_of(sealed) != Some((self.id, self.version)) {
            return Err(NotSealed);
        }
        let (head, tag) = sealed.split_at(sealed.len() - TAG_BYTES);
        let (nonce, body) = head[HEADER_BYTES..].split_at(NONCE_BYTES);
        let nonce = nonce.try_into().expect("24 bytes");
        out.clear();
        out.extend_from_slice(body);
        let tag: [u8; TAG_BYTES] = tag.try_into().expect("16 bytes");
        let (key, rest) = self.key_of_image(nonce);
        let associated = self.bound(associated);
        key.decrypt_inout_detached(&rest, &associated, out.as_mut_slice().into(), &Tag::from(tag))
            .map_err(|_| NotSealed)
    }

    /// What the tag covers beside the image.
    fn bound(&self, associated: &[u8]) -> Vec<u8> {
        assert!(associated.len() <= ASSOCIATED_MAX);
        let mut bound = Vec::with_capacity(ASSOCIATED_MAX + HEADER_BYTES);
        bound.extend_from_slice(&self.id.to_le_bytes());
        bound.extend_from_slice(&self.version.to_le_bytes());
        bound.extend_from_slice(associated);
        bound
    }

    fn encrypt(&self, nonce: &[u8; NONCE_BYTES], bound: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        let (key, rest) = self.key_of_image(nonce);
        let tag = key.encrypt_inout_detached(&rest, bound, body.into());
        tag.expect("an image is shorter than 64 GiB").into()
    }

    /// The key that the first half of the nonce makes, and the second half.
    fn key_of_image(&self, nonce: &[u8; NONCE_BYTES]) -> (Aes256Gcm, Nonce<U12>) {
        let mut key = [0; 32];
        for (at, half) in key.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let mut block = [0; BLOCK_BYTES];
            block[1] = at as u8 + 1;
            block[2] = b'X';
            block[4..].copy_from_slice(&nonce[..12]);
            block.iter_mut().zip(self.subkey).for_each(|(byte, of_key)| *byte ^= of_key);
            let mut block = aes::Block::from(block);
            self.cipher.encrypt_block(&mut block);
            half.copy_from_slice(&block);
        }
        let rest: [u8; 12] = nonce[12..].try_into().expect("12 bytes");
        (Aes256Gcm::new(&Key::<Aes256Gcm>::from(key)), rest.into())
    }
}

impl PartialEq for PageKey {
    /// Whether it is the same version of the same key of one keyring.
    fn eq(&self, other: &PageKey) -> bool {
        (self.id, self.version) == (other.id, other.version)
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageKey({}, version {})", self.id, self.version)
    }
}

/// Key and version that a sealed image names; `None`: it is too short.
pub fn key_of(sealed: &[u8]) -> Option<(u32, u32)> {
    let (id, rest) = sealed.split_first_chunk::<4>()?;
    let (version, _) = rest.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*id), u32::from_le_bytes(*version)))
}

/// Twice a block in the field of AES-CMAC.
fn doubled(block: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let value = u128::from_be_bytes(block);
    let reduction = if value >> 127 == 1 { 0x87 } else { 0 };
    (value << 1 ^ reduction).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed_as_published(key: u8, associated: &[u8]) -> Vec<u8> {
        let key = PageKey::new([key; 32], 0, 0);
        let mut body = b"XAES-256-GCM".to_vec();
        let tag = key.encrypt(b"ABCDEFGHIJKLMNOPQRSTUVWX", associated, &mut body);
        body.extend_from_slice(&tag);
        body
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The two test vectors of the construction's specification (C2SP, XAES-256-GCM).
    #[test]
    fn the_published_vectors_come_out() {
        assert_eq!(
            hex(&sealed_as_published(1, b"")),
            "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"
        );
        assert_eq!(
            hex(&sealed_as_published(3, b"c2sp.org/XAES-256-GCM")),
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"
        );
    }

    #[test]
    fn an_image_opens_with_its_key_in_its_place_alone() {
        let key = PageKey::derive(&[1; 16], 5, 2);
        let image = vec![9; 700];
        let sealed = key.seal(&image, b"page 1");
        assert_eq!(sealed.len(), image.len() + SEAL_BYTES);
        assert_eq!(key_of(&sealed), Some((5, 2)));
        let mut out = Vec::new();
        key.open(&sealed, b"page 1", &mut out).unwrap();
        assert_eq!(out, image);
        assert_eq!(key.open(&sealed, b"page 2", &mut out), Err(NotSealed));
        for other in [
            PageKey::derive(&[2; 16], 5, 2),
            PageKey::derive(&[1; 16], 5, 3),
            PageKey::derive(&[1; 16], 4, 2),
        ] {
            assert_eq!(other.open(&sealed, b"page 1", &mut out), Err(NotSealed));
        }
        assert_eq!(key.open(&sealed[..SEAL_BYTES - 1], b"page 1", &mut out), Err(NotSealed));
    }

    #[test]
    fn every_changed_bit_is_found_out() {
        let key = PageKey::derive(&[1; 32], 1, 1);
        let sealed = key.seal(b"an image", b"page 1");
        let mut out = Vec::new();
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&changed, b"page 1", &mut out), Err(NotSealed), "bit {bit}");
        }
    }

    #[test]
    fn two_seals_of_one_image_have_nothing_in_common() {
        let key = PageKey::derive(&[1; 32], 1, 1);
        let (one, other) = (key.seal(&[0; 64], b""), key.seal(&[0; 64], b""));
        assert_ne!(one[8..32], other[8..32]);
        assert_ne!(one[32..96], other[32..96]);
    }
}
