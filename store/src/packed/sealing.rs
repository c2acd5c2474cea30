//! Encrypting images on their way into the file, and decrypting those that are read.
//!
//! A file encrypts with one version of a key at a time, or not at all. Its root says with which
//! key, so recovery goes on encrypting before anyone knows whose file it is. What the file holds
//! already stays as it is until it is written again, or sealed anew by [`PackedFile::reseal`]:
//! an image names its key. The tag covers the page (space and number) and the codec, so an image
//! opens as this page alone. It does not cover file and run: the cleaner and a backup move sealed
//! images as they are.
//!
//! Nodes of the map and tables of the file are never encrypted: they hold places and no rows.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::codec::Codec;
use super::entry::{Entry, Object, Seal};
use super::error::{Error, Result};
use super::file::PackedFile;
use super::root::FileKey;
use super::write::Image;
use crate::encryption::{Keys, PageKey, key_of};
use crate::lend;

/// The keys of a file.
pub(super) struct Sealing {
    /// To read with; once for the life of the file's opening.
    keys: OnceLock<Arc<Keys>>,
    writing: RwLock<Writing>,
}

/// How images are written.
struct Writing {
    /// What the next root says.
    file_key: FileKey,
    by: WrittenBy,
}

enum WrittenBy {
    /// Nothing was said. That is no encryption, unless the root names a key: then the file takes
    /// no image that is not encrypted.
    Default,
    /// All images are encrypted with this key.
    Key(Arc<PageKey>),
    /// Images are stored as they come.
    AsGiven,
}

impl Sealing {
    /// That of a file whose root says so.
    pub fn of(file_key: FileKey) -> Sealing {
        let writing = Writing { file_key, by: WrittenBy::Default };
        Sealing { keys: OnceLock::new(), writing: RwLock::new(writing) }
    }
}

thread_local! {
    static OPENED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl PackedFile {
    /// Gives the file the keys that its encrypted images are read with. Only the first call counts.
    pub fn read_with_keys(&self, keys: Arc<Keys>) {
        let _ = self.sealing.keys.set(keys);
    }

    /// Encrypts what is written from now on with this key; `None`: does not. A batch that is being
    /// written comes first. The next checkpoint writes a root that says which key it is, and an
    /// opening by that root goes on with it.
    pub fn encrypt_with(&self, key: Option<Arc<PageKey>>) {
        debug_assert!(
            key.is_none() || self.sealing.keys.get().is_some(),
            "what the file encrypts can be read again"
        );
        let mut writer = self.writer.lock();
        let mut writing = self.sealing.writing.write();
        let file_key = match &key {
            Some(key) => FileKey::Id(key.id()),
            None if writing.file_key == FileKey::Never => FileKey::Never,
            None => FileKey::NoMore,
        };
        if writing.file_key != file_key {
            writer.since_checkpoint = writer.since_checkpoint.max(1);
        }
        *writing = Writing { file_key, by: key.map_or(WrittenBy::Default, WrittenBy::Key) };
    }

    /// Stores images as they come, whatever the root says: those of another file are copied.
    pub fn store_as_given(&self) {
        self.sealing.writing.write().by = WrittenBy::AsGiven;
    }

    /// The key that images are encrypted with. It stays while the writer is held.
    pub fn encrypts_with(&self) -> Option<Arc<PageKey>> {
        match &self.sealing.writing.read().by {
            WrittenBy::Key(key) => Some(key.clone()),
            WrittenBy::Default | WrittenBy::AsGiven => None,
        }
    }

    /// What the root says of the key, or the next root is to say.
    pub fn file_key(&self) -> FileKey {
        self.sealing.writing.read().file_key
    }

    /// The images as the file is to hold them.
    ///
    /// # Errors
    /// [`Error::Key`] if the file encrypts with a key that was not given.
    pub(super) fn sealed<'a>(&self, images: &'a [Image]) -> Result<Cow<'a, [Image]>> {
        let key = match &*self.sealing.writing.read() {
            Writing { by: WrittenBy::Key(key), .. } => key.clone(),
            Writing { file_key: FileKey::Id(id), by: WrittenBy::Default } => {
                let why = format!("it is encrypted with key {id}, and that was not given");
                return Err(Error::Key { file: self.name().into(), why });
            }
            _ => return Ok(Cow::Borrowed(images)),
        };
        Ok(Cow::Owned(images.iter().map(|image| image.sealed_by(&key)).collect()))
    }

    /// Calls `each` with an image as it was before it was encrypted.
    ///
    /// # Errors
    /// [`Error::Key`] if its key can't be had, [`Error::Corrupt`] if it is not what was sealed.
    pub(super) fn with_opened<T>(
        &self,
        (object, entry): (Object, &Entry),
        image: &[u8],
        each: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        if !entry.seal.is_sealed() {
            return Ok(each(image));
        }
        let Some((id, version)) = key_of(image) else {
            return Err(self.corrupt_at(object, entry, "its encrypted image is too short"));
        };
        let no_key = |why: String| Error::Key {
            file: self.name().into(),
            why: format!("{object} is encrypted: {why}"),
        };
        let Some(keys) = self.sealing.keys.get() else {
            return Err(no_key(format!(
                "it takes version {version} of key {id}, and no keys were given"
            )));
        };
        let key = keys.page_key(id, version).map_err(|error| no_key(error.to_string()))?;
        lend(&OPENED, Vec::new, |opened| {
            key.open(image, &associated(object, entry.codec), opened).map_err(|_| {
                self.corrupt_at(
                    object,
                    entry,
                    format!(
                        "its encrypted image was changed or is another page's, or version \
                         {version} of key {id} is not the one that it was encrypted with"
                    ),
                )
            })?;
            Ok(each(opened))
        })
    }

    /// Makes the page of an image.
    pub(super) fn decode(
        &self,
        (object, entry): (Object, &Entry),
        image: &[u8],
        page: &mut [u8],
    ) -> Result<()> {
        let decoded =
            self.with_opened((object, entry), image, |image| entry.codec.decode(image, page))?;
        decoded.map_err(|why| self.corrupt_at(object, entry, why))
    }
}

impl Image {
    /// The image, encrypted. One that is encrypted already, and one that says that its page is
    /// free, stay as they are.
    fn sealed_by(&self, key: &PageKey) -> Image {
        if self.bytes.is_empty() || self.seal.is_sealed() {
            return self.clone();
        }
        let object = Object::Page { space: self.space, no: self.no };
        let bytes = key.seal(&self.bytes, &associated(object, self.codec));
        Image { seal: Seal::of_version(key.version()), bytes, ..*self }
    }
}

/// What the tag of an image covers beside the image.
fn associated(object: Object, codec: Codec) -> [u8; 13] {
    let mut bytes = [0; 13];
    bytes[..12].copy_from_slice(&object.encode());
    bytes[12] = codec.id();
    bytes
}
