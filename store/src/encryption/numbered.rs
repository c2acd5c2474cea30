//! The key of what one life of a program writes in order.
//!
//! AES-256-GCM. The key is derived from 32 random bytes of that life, so no other life has it. The
//! nonce is a number that comes once in the life: four zeroes, then the number, most significant
//! byte first.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, Key, KeyInit, Tag};
use hkdf::Hkdf;
use sha2::Sha256;

use super::NotSealed;

/// Random bytes of a life.
pub const SALT_BYTES: usize = 32;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// A key that seals by numbers.
pub struct NumberedKey {
    cipher: Aes256Gcm,
}

impl NumberedKey {
    /// From the bytes of a keyring's key and those of the life.
    pub(super) fn derive(bytes: &[u8], salt: &[u8; SALT_BYTES]) -> NumberedKey {
        let mut key = [0; 32];
        let expanded = Hkdf::<Sha256>::new(Some(salt), bytes).expand(b"tidepool log 1", &mut key);
        expanded.expect("HKDF gives 32 bytes");
        NumberedKey { cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::from(key)) }
    }

    /// A random one, for what the end of the process makes useless.
    pub fn random() -> NumberedKey {
        let mut key = [0; 32];
        super::fill_random(&mut key);
        NumberedKey { cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::from(key)) }
    }

    /// Encrypts `bytes` and gives the tag. The caller passes no number twice.
    pub fn seal(&self, number: u64, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self.cipher.encrypt_inout_detached(&nonce(number).into(), b"", bytes.into());
        tag.expect("the bytes are fewer than 64 GiB").into()
    }

    /// Decrypts `bytes`.
    ///
    /// # Errors
    /// They are not what was sealed by this number; `bytes` are of no use then.
    pub fn open(
        &self,
        number: u64,
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), NotSealed> {
        let tag = Tag::from(*tag);
        let opened =
            self.cipher.decrypt_inout_detached(&nonce(number).into(), b"", bytes.into(), &tag);
        opened.map_err(|_| NotSealed)
    }
}

impl std::fmt::Debug for NumberedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NumberedKey(..)")
    }
}

fn nonce(number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_open_by_their_number_in_their_life_alone() {
        let key = NumberedKey::derive(&[1; 16], &[2; SALT_BYTES]);
        let mut bytes = *b"a frame of the log";
        let tag = key.seal(4096, &mut bytes);
        let sealed = bytes;
        assert_ne!(&sealed, b"a frame of the log");
        key.open(4096, &mut bytes, &tag).unwrap();
        assert_eq!(&bytes, b"a frame of the log");
        let fails = |key: &NumberedKey, number, tag: &_| {
            key.open(number, &mut sealed.clone(), tag).is_err()
        };
        assert!(fails(&key, 4097, &tag));
        assert!(fails(&NumberedKey::derive(&[1; 16], &[3; SALT_BYTES]), 4096, &tag));
        assert!(fails(&NumberedKey::derive(&[2; 16], &[2; SALT_BYTES]), 4096, &tag));
        assert!(fails(&NumberedKey::random(), 4096, &tag));
        assert!(fails(&key, 4096, &[0; TAG_BYTES]));
    }
}
