//! [`OverlayStorage`]: a storage that is written to without a change of what is below.
//!
//! Reads come from the *base* until a block of a file is written; the block is then copied to the
//! *scratch*
//! storage, and read from there. Files that are made, removed or renamed are so in the overlay
//! alone. An engine
//! can recover a data directory on top of it, and the directory keeps every byte.
//!
//! The scratch holds one file for each file that was written to, with holes where the base still
//! counts, so its
//! size on disk is that of the blocks written. Memory: a bit for each block of such a file. Nothing
//! survives
//! the overlay: its scratch is of no use to another one.
//!
//! Both storages are opened for buffered I/O: blocks of both meet in one read.
//!
//! Locking order: the table of names, then a file's content.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{Result, Storage, StorageError, StorageFile, StorageLock, StorageOp, name_is_valid};

/// What is copied at once when a part of it is written.
const BLOCK: u64 = 4096;

/// See the module's description.
pub struct OverlayStorage {
    base: Arc<dyn Storage>,
    scratch: Arc<dyn Storage>,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    /// Files that the overlay knows: opened, made, or (`None`) removed. Any other is as the base
    /// has it.
    files: HashMap<String, Option<Arc<Content>>>,
    /// Directories made.
    dirs: BTreeSet<String>,
    /// Number of the next scratch file.
    next: u64,
}

/// A file's bytes, whatever its name.
struct Content {
    base: Option<Arc<dyn StorageFile>>,
    /// Made at the first write.
    scratch: Arc<dyn Fn() -> Result<Arc<dyn StorageFile>> + Send + Sync>,
    state: RwLock<ContentState>,
}

#[derive(Default)]
struct ContentState {
    len: u64,
    /// Bytes of the base that still count; zeroes follow.
    base_len: u64,
    /// A bit for each block that is in the scratch file.
    written: Vec<u64>,
    scratch: Option<Arc<dyn StorageFile>>,
}

impl ContentState {
    fn is_written(&self, block: u64) -> bool {
        let word = self.written.get((block / 64) as usize);
        word.is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    fn set_written(&mut self, block: u64) {
        let at = (block / 64) as usize;
        if at >= self.written.len() {
            self.written.resize(at + 1, 0);
        }
        self.written[at] |= 1 << (block % 64);
    }

    /// Forgets the blocks from `first` on.
    fn forget_from(&mut self, first: u64) {
        self.written.truncate(first.div_ceil(64) as usize);
        if !first.is_multiple_of(64)
            && let Some(last) = self.written.get_mut((first / 64) as usize)
        {
            *last &= (1 << (first % 64)) - 1;
        }
    }
}

impl Content {
    /// Fills `buf`, of which nothing lies beyond the end.
    fn read(&self, state: &ContentState, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            let is_written = state.is_written(offset / BLOCK);
            let end = offset + buf.len() as u64;
            let mut run_end = (offset / BLOCK + 1) * BLOCK;
            while run_end < end && state.is_written(run_end / BLOCK) == is_written {
                run_end += BLOCK;
            }
            let (run, rest) = buf.split_at_mut((run_end.min(end) - offset) as usize);
            match (&state.scratch, &self.base) {
                (Some(scratch), _) if is_written => scratch.read_at(run, offset)?,
                (_, Some(base)) => {
                    let there = state.base_len.saturating_sub(offset).min(run.len() as u64);
                    let (there, beyond) = run.split_at_mut(there as usize);
                    if !there.is_empty() {
                        base.read_at(there, offset)?;
                    }
                    beyond.fill(0);
                }
                _ => run.fill(0),
            }
            offset += run.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    /// The scratch file, made if need be.
    fn scratch_of(&self, state: &mut ContentState) -> Result<Arc<dyn StorageFile>> {
        if state.scratch.is_none() {
            state.scratch = Some((self.scratch)()?);
        }
        Ok(state.scratch.clone().expect("made above"))
    }

    fn write(&self, state: &mut ContentState, bytes: &[u8], offset: u64) -> Result<()> {
        let scratch = self.scratch_of(state)?;
        let end = offset + bytes.len() as u64;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        // The rest of the blocks at both ends, which the write covers in part.
        for block in [first, last - 1] {
            let (from, to) = (block * BLOCK, (block + 1) * BLOCK);
            let is_covered = offset <= from && to <= end;
            if !is_covered && !state.is_written(block) {
                let mut whole = [0; BLOCK as usize];
                let there = state.len.saturating_sub(from).min(BLOCK) as usize;
                self.read(state, &mut whole[..there], from)?;
                scratch.write_at(&whole, from)?;
                state.set_written(block);
            }
        }
        scratch.write_at(bytes, offset)?;
        (first..last).for_each(|block| state.set_written(block));
        debug_assert!(state.is_written(first) && state.is_written(last - 1));
        state.len = state.len.max(end);
        Ok(())
    }

    fn set_len(&self, state: &mut ContentState, len: u64) -> Result<()> {
        if len < state.len {
            state.base_len = state.base_len.min(len);
            state.forget_from(len.div_ceil(BLOCK));
            let tail = len.next_multiple_of(BLOCK) - len;
            if tail > 0 && state.is_written(len / BLOCK) {
                self.scratch_of(state)?.write_at(&vec![0; tail as usize], len)?;
            }
        }
        state.len = len;
        Ok(())
    }
}

impl OverlayStorage {
    /// An overlay of `base`, which is only read. What is written goes to `scratch`, an empty
    /// storage of the
    /// overlay's own.
    pub fn new(base: Arc<dyn Storage>, scratch: Arc<dyn Storage>) -> Self {
        Self { base, scratch, names: Mutex::default() }
    }

    fn new_content(
        &self,
        names: &mut Names,
        base: Option<Arc<dyn StorageFile>>,
    ) -> Result<Arc<Content>> {
        let len = base.as_ref().map_or(Ok(0), |base| base.len())?;
        names.next += 1;
        let (storage, name) = (self.scratch.clone(), format!("{:08x}", names.next));
        Ok(Arc::new(Content {
            base,
            scratch: Arc::new(move || storage.create(&name)),
            state: RwLock::new(ContentState { len, base_len: len, ..ContentState::default() }),
        }))
    }

    /// The content of a file that is there.
    fn content(&self, names: &mut Names, op: StorageOp, name: &str) -> Result<Arc<Content>> {
        match names.files.get(name) {
            Some(Some(content)) => return Ok(content.clone()),
            Some(None) => return Err(StorageError::new(op, name, io::ErrorKind::NotFound)),
            None => {}
        }
        let content = self.new_content(names, Some(self.base.open(name)?))?;
        names.files.insert(name.into(), Some(content.clone()));
        Ok(content)
    }

    fn is_there(&self, names: &Names, name: &str) -> Result<bool> {
        match names.files.get(name) {
            Some(content) => Ok(content.is_some()),
            None if names.dirs.contains(name) => Ok(true),
            None => self.base.exists(name),
        }
    }
}

fn check_name(op: StorageOp, name: &str) -> Result<()> {
    match name_is_valid(name) {
        true => Ok(()),
        false => Err(StorageError::new(op, name, io::ErrorKind::InvalidInput)),
    }
}

fn handle(name: &str, content: Arc<Content>) -> Arc<dyn StorageFile> {
    Arc::new(OverlayFile { name: name.into(), content })
}

impl Storage for OverlayStorage {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        check_name(StorageOp::Open, name)?;
        let content = self.content(&mut self.names.lock(), StorageOp::Open, name)?;
        Ok(handle(name, content))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        check_name(StorageOp::Create, name)?;
        let mut names = self.names.lock();
        if self.is_there(&names, name)? {
            return Err(StorageError::new(StorageOp::Create, name, io::ErrorKind::AlreadyExists));
        }
        let content = self.new_content(&mut names, None)?;
        names.files.insert(name.into(), Some(content.clone()));
        Ok(handle(name, content))
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(StorageOp::Remove, name)?;
        let mut names = self.names.lock();
        self.content(&mut names, StorageOp::Remove, name)?;
        names.files.insert(name.into(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(StorageOp::Rename, from)?;
        check_name(StorageOp::Rename, to)?;
        let mut names = self.names.lock();
        let content = self.content(&mut names, StorageOp::Rename, from)?;
        names.files.insert(from.into(), None);
        names.files.insert(to.into(), Some(content));
        Ok(())
    }

    fn exists(&self, name: &str) -> Result<bool> {
        check_name(StorageOp::List, name)?;
        self.is_there(&self.names.lock(), name)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let names = self.names.lock();
        let mut found = match dir.is_empty() || self.base.exists(dir)? || !names.dirs.contains(dir)
        {
            true => self.base.list(dir)?.into_iter().collect(),
            false => BTreeSet::new(),
        };
        let in_dir = |path: &str| {
            let name = match dir {
                "" => Some(path),
                _ => path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')),
            };
            name.filter(|name| !name.contains('/')).map(str::to_string)
        };
        found.extend(names.dirs.iter().filter_map(|path| in_dir(path)));
        for (path, content) in &names.files {
            if let Some(name) = in_dir(path) {
                match content {
                    Some(_) => found.insert(name),
                    None => found.remove(&name),
                };
            }
        }
        Ok(found.into_iter().collect())
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        check_name(StorageOp::CreateDir, dir)?;
        let mut names = self.names.lock();
        if !self.is_there(&names, dir)? {
            names.dirs.insert(dir.into());
        }
        Ok(())
    }

    fn sync_dir(&self, _dir: &str) -> Result<()> {
        Ok(())
    }

    /// The overlay is its maker's alone. Who reads a directory that others may open locks the base.
    fn lock(&self, _name: &str) -> Result<StorageLock> {
        Ok(StorageLock::new(()))
    }
}

struct OverlayFile {
    name: String,
    content: Arc<Content>,
}

impl StorageFile for OverlayFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let state = self.content.state.read();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > state.len) {
            let eof = io::ErrorKind::UnexpectedEof;
            return Err(StorageError::at(StorageOp::Read, &self.name, offset, eof));
        }
        self.content.read(&state, buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        match bytes.is_empty() {
            true => Ok(()),
            false => self.content.write(&mut self.content.state.write(), bytes, offset),
        }
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.state.read().len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.content.set_len(&mut self.content.state.write(), len)
    }

    fn io_alignment(&self) -> usize {
        1
    }
}

impl std::fmt::Debug for OverlayStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OverlayStorage").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{FileOptions, FileStorage};
    use proptest::prelude::*;
    use std::path::Path;

    fn files(dir: &Path, read_only: bool) -> Arc<dyn Storage> {
        let options = FileOptions { direct_io: false, read_only, ..FileOptions::default() };
        Arc::new(FileStorage::new(dir, options).unwrap())
    }

    fn read_all(file: &dyn StorageFile) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[derive(Debug, Clone)]
    enum Change {
        Write { offset: u64, len: usize, byte: u8 },
        SetLen(u64),
    }

    fn any_change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0..20_000u64, 1..9000usize, 1..=255u8)
                .prop_map(|(offset, len, byte)| Change::Write { offset, len, byte }),
            1 => (0..25_000u64).prop_map(Change::SetLen),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_file_reads_as_one_that_was_changed_in_place(
            base_len in 0..15_000usize,
            changes in prop::collection::vec(any_change(), 1..12),
        ) {
            let (base, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let mut expected: Vec<u8> = (0..base_len).map(|at| at as u8 | 1).collect();
            std::fs::write(base.path().join("f"), &expected).unwrap();
            let overlay =
                OverlayStorage::new(files(base.path(), true), files(scratch.path(), false));
            let file = overlay.open("f").unwrap();
            for change in changes {
                match change {
                    Change::Write { offset, len, byte } => {
                        file.write_at(&vec![byte; len], offset).unwrap();
                        let end = offset as usize + len;
                        expected.resize(expected.len().max(end), 0);
                        expected[offset as usize..end].fill(byte);
                    }
                    Change::SetLen(len) => {
                        file.set_len(len).unwrap();
                        expected.resize(len as usize, 0);
                    }
                }
                prop_assert_eq!(read_all(&*file), expected.clone());
            }
            let kept: Vec<u8> = (0..base_len).map(|at| at as u8 | 1).collect();
            prop_assert_eq!(std::fs::read(base.path().join("f")).unwrap(), kept);
        }
    }

    #[test]
    fn names_change_in_the_overlay_alone() {
        let (base, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(base.path().join("d")).unwrap();
        std::fs::write(base.path().join("d/a"), b"a").unwrap();
        std::fs::write(base.path().join("d/b"), b"b").unwrap();
        let overlay = OverlayStorage::new(files(base.path(), true), files(scratch.path(), false));
        assert_eq!(overlay.list("").unwrap(), ["d"]);
        overlay.remove("d/a").unwrap();
        assert!(overlay.open("d/a").err().unwrap().is_not_found());
        overlay.rename("d/b", "d/c").unwrap();
        overlay.create("d/e").unwrap();
        assert!(overlay.create("d/c").err().unwrap().is_already_exists());
        overlay.create_dir("d/new").unwrap();
        assert_eq!(overlay.list("d").unwrap(), ["c", "e", "new"]);
        assert!(overlay.list("d/new").unwrap().is_empty());
        assert!(!overlay.exists("d/b").unwrap() && overlay.exists("d/c").unwrap());
        assert_eq!(read_all(&*overlay.open("d/c").unwrap()), b"b");
        overlay.create("d/a").unwrap().write_at(b"new", 0).unwrap();
        assert_eq!(read_all(&*overlay.open("d/a").unwrap()), b"new");
        assert_eq!(std::fs::read(base.path().join("d/a")).unwrap(), b"a");
        assert!(!base.path().join("d/c").exists());
    }
}
