//! Files by kind, and the damages.

use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rand::Rng;
use rand::rngs::StdRng;

/// Bytes in a block of zeroes, and in a page of the smallest size.
pub const BLOCK: u64 = 4096;

/// What a file of the engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// `tables/….tpd`
    Table,
    /// `system.tpd`
    System,
    /// `undo.tpd`
    Undo,
    /// `redo/redo.…`
    Redo,
    /// `redo/control`
    Control,
    /// `system-mirror.tpd`, `undo-mirror.tpd`
    Mirror,
    /// `hot-list`
    HotList,
    /// Any other.
    Other,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [FileKind; 8] = [
        FileKind::Table,
        FileKind::System,
        FileKind::Undo,
        FileKind::Redo,
        FileKind::Control,
        FileKind::Mirror,
        FileKind::HotList,
        FileKind::Other,
    ];

    /// The name in the table of results, and in `--only`.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Table => "table",
            FileKind::System => "system",
            FileKind::Undo => "undo",
            FileKind::Redo => "redo",
            FileKind::Control => "control",
            FileKind::Mirror => "mirror",
            FileKind::HotList => "hot-list",
            FileKind::Other => "other",
        }
    }

    /// The kind of this name, or a message for the user.
    ///
    /// # Errors
    /// If there is none.
    pub fn by_name(name: &str) -> Result<FileKind, String> {
        let found = FileKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("'{name}' is no kind of file"))
    }

    /// The kind of a file, by its path below the engine's directory.
    pub fn of(path: &str) -> FileKind {
        match path {
            "system.tpd" => FileKind::System,
            "undo.tpd" => FileKind::Undo,
            "redo/control" => FileKind::Control,
            "hot-list" => FileKind::HotList,
            _ if path.starts_with("redo/redo.") => FileKind::Redo,
            _ if path.ends_with("-mirror.tpd") => FileKind::Mirror,
            _ if path.starts_with("tables/") => FileKind::Table,
            _ => FileKind::Other,
        }
    }

    /// How often it is chosen.
    fn weight(self) -> u32 {
        match self {
            FileKind::Table => 7,
            FileKind::Redo | FileKind::Undo => 4,
            FileKind::System => 3,
            FileKind::Control => 2,
            FileKind::Mirror | FileKind::HotList => 1,
            FileKind::Other => 0,
        }
    }

    /// Whether it consists of pages side by side. Other files of pages are packed.
    pub fn has_pages(self) -> bool {
        self == FileKind::Mirror
    }
}

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// One bit is another.
    Bit,
    /// One byte is another.
    Byte,
    /// A block of 4 KiB is zeroed.
    Zeroed,
    /// Two blocks of 4 KiB, or two pages, stand in each other's place.
    Swapped,
    /// The file ends early.
    Truncated,
    /// The file is gone.
    Deleted,
}

impl Harm {
    /// All of them.
    pub const ALL: [Harm; 6] =
        [Harm::Bit, Harm::Byte, Harm::Zeroed, Harm::Swapped, Harm::Truncated, Harm::Deleted];

    /// The name in the table of results.
    pub fn name(self) -> &'static str {
        match self {
            Harm::Bit => "bit",
            Harm::Byte => "byte",
            Harm::Zeroed => "4 KiB zeroed",
            Harm::Swapped => "swapped",
            Harm::Truncated => "truncated",
            Harm::Deleted => "deleted",
        }
    }
}

/// One damage to one file.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The file, below the engine's directory.
    pub file: String,
    pub kind: FileKind,
    /// What is done to it.
    pub harm: Harm,
    /// Where: a byte, the beginning of a block, or the new length.
    pub offset: u64,
    /// The bit, the difference of the byte, or the other block's offset.
    pub operand: u64,
    /// Bytes that are swapped.
    unit: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { file, offset, operand, .. } = self;
        match self.harm {
            Harm::Bit => write!(f, "{file}: bit {operand} of byte {offset} flipped"),
            Harm::Byte => write!(f, "{file}: byte {offset} changed by {operand}"),
            Harm::Zeroed => write!(f, "{file}: 4 KiB at {offset} zeroed"),
            Harm::Swapped => {
                write!(f, "{file}: {} bytes at {offset} and {operand} swapped", self.unit)
            }
            Harm::Truncated => write!(f, "{file}: cut to {offset} bytes"),
            Harm::Deleted => write!(f, "{file}: deleted"),
        }
    }
}

/// All files below a directory, by their paths below it, in order.
fn files(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, below: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("the directory can be read") {
            let path = entry.expect("the directory can be read").path();
            if path.is_dir() {
                walk(&path, below, found);
            } else {
                let name = path.strip_prefix(below).expect("is below");
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, dir, &mut found);
    found.sort();
    found
}

/// Chooses a file that is not empty, of kinds by weight, and a damage to it.
///
/// # Panics
/// If there is no such file.
pub fn choose(dir: &Path, only: Option<FileKind>, rng: &mut StdRng) -> Damage {
    let mut by_kind: Vec<(FileKind, Vec<String>)> = Vec::new();
    for kind in FileKind::ALL {
        let of_kind: Vec<String> = files(dir)
            .into_iter()
            .filter(|file| FileKind::of(file) == kind && length(&dir.join(file)) > 0)
            .collect();
        if !of_kind.is_empty() && only.map_or(kind.weight() > 0, |only| only == kind) {
            by_kind.push((kind, of_kind));
        }
    }
    let sum: u32 = by_kind.iter().map(|(kind, _)| kind.weight().max(1)).sum();
    assert!(sum > 0, "there is no such file in {}", dir.display());
    let mut ticket = rng.random_range(0..sum);
    let (kind, of_kind) = by_kind
        .into_iter()
        .find(|(kind, _)| {
            let weight = kind.weight().max(1);
            let chosen = ticket < weight;
            ticket = ticket.saturating_sub(weight);
            chosen
        })
        .expect("the ticket is below the sum");
    let mut file = of_kind[rng.random_range(0..of_kind.len())].clone();
    let harm = Harm::ALL[rng.random_range(0..Harm::ALL.len())];
    // Most of the log is behind the checkpoint, and of no use to anybody.
    let live = (kind == FileKind::Redo && rng.random_bool(0.7)).then(|| live_log(dir, &of_kind));
    let live = live.flatten();
    if let Some((in_use, _)) = &live {
        file.clone_from(in_use);
    }
    let path = dir.join(&file);
    let length = length(&path);
    let block = match live {
        Some((_, blocks)) => rng.random_range(blocks) * BLOCK,
        None => written_block(&path, length, rng),
    };
    let unit = if kind.has_pages() { page_size(&path) } else { BLOCK };
    let (offset, operand) = match harm {
        Harm::Bit => (block + rng.random_range(0..BLOCK), rng.random_range(0..8)),
        Harm::Byte => (block + rng.random_range(0..BLOCK), rng.random_range(1..256)),
        Harm::Zeroed => (block, 0),
        Harm::Swapped => {
            let mut other = written_block(&path, length, rng);
            for _ in 0..20 {
                if other / unit != block / unit {
                    break;
                }
                other = written_block(&path, length, rng);
            }
            (block / unit * unit, other / unit * unit)
        }
        Harm::Truncated if rng.random_bool(0.5) => (block, 0),
        Harm::Truncated => (rng.random_range(0..length), 0),
        Harm::Deleted => (0, 0),
    };
    Damage { file, kind, harm, offset: offset.min(length - 1), operand, unit }
}

impl Damage {
    /// The pages that are no longer what they were, of a file that has pages.
    pub fn pages(&self, page_size: u32) -> Vec<u64> {
        let page = |offset: u64| offset / u64::from(page_size);
        match self.harm {
            _ if !self.kind.has_pages() => Vec::new(),
            Harm::Bit | Harm::Byte | Harm::Zeroed => vec![page(self.offset)],
            Harm::Swapped => vec![page(self.offset), page(self.operand)],
            Harm::Truncated | Harm::Deleted => Vec::new(),
        }
    }

    /// Does it.
    ///
    /// # Panics
    /// If the file cannot be read or written.
    pub fn apply(&self, dir: &Path) {
        let path = dir.join(&self.file);
        if self.harm == Harm::Deleted {
            return fs::remove_file(&path).expect("a file can be removed");
        }
        let file = File::options().read(true).write(true).open(&path).expect("it can be opened");
        let changed = |change: fn(u8, u64) -> u8| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, self.offset).expect("it can be read");
            file.write_all_at(&[change(byte[0], self.operand)], self.offset)
        };
        match self.harm {
            Harm::Bit => changed(|byte, bit| byte ^ (1 << bit)),
            Harm::Byte => changed(|byte, by| byte.wrapping_add(by.to_le_bytes()[0])),
            Harm::Zeroed => {
                let rest = length(&path).saturating_sub(self.offset).min(BLOCK);
                file.write_all_at(&vec![0; usize::try_from(rest).expect("is small")], self.offset)
            }
            Harm::Swapped => {
                let (one, other) = (self.read(&file, self.offset), self.read(&file, self.operand));
                file.write_all_at(&other, self.offset)
                    .and_then(|()| file.write_all_at(&one, self.operand))
            }
            Harm::Truncated => file.set_len(self.offset),
            Harm::Deleted => Ok(()),
        }
        .expect("it can be written");
    }

    fn read(&self, file: &File, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.unit).expect("is small")];
        file.read_exact_at(&mut bytes, offset).expect("it can be read");
        bytes
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The beginning of a block that something was written to, if a few looks find one.
fn written_block(path: &PathBuf, length: u64, rng: &mut StdRng) -> u64 {
    let file = File::open(path).expect("it can be opened");
    let blocks = length.div_ceil(BLOCK);
    let mut block = 0;
    for _ in 0..50 {
        block = rng.random_range(0..blocks) * BLOCK;
        let mut bytes = [0; BLOCK as usize];
        let read = file.read_at(&mut bytes, block).expect("it can be read");
        if bytes[..read].iter().any(|&byte| byte != 0) {
            break;
        }
    }
    block
}

/// The redo file in which recovery begins, and the blocks in it that recovery reads; none if the
/// control file can't be understood.
fn live_log(dir: &Path, files: &[String]) -> Option<(String, Range<u64>)> {
    let word = |file: &File, at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok().map(|()| u64::from_le_bytes(bytes))
    };
    let control = File::open(dir.join("redo/control")).ok()?;
    // Sequence and checkpoint of both slots (docs/internals/format/redo.md).
    let slots = [0, BLOCK].map(|slot| (word(&control, slot + 32), word(&control, slot + 40)));
    let checkpoint = slots.into_iter().max()?.1?;
    for name in files {
        let path = dir.join(name);
        let file = File::open(&path).ok()?;
        let (start, size) = (word(&file, 32)?, word(&file, 40)?);
        if !(start..start + size).contains(&checkpoint) {
            continue;
        }
        let first = 1 + (checkpoint - start) / BLOCK;
        let is_written = |block: &u64| {
            let mut bytes = [0; BLOCK as usize];
            let read = file.read_at(&mut bytes, block * BLOCK).unwrap_or(0);
            bytes[..read].iter().any(|&byte| byte != 0)
        };
        let end = (first..1 + size / BLOCK).take_while(is_written).last()? + 1;
        return Some((name.clone(), first..end));
    }
    None
}

/// The size of a file's pages, as its header says.
fn page_size(path: &Path) -> u64 {
    let mut bytes = [0; 4];
    let file = File::open(path).expect("it can be opened");
    match file.read_exact_at(&mut bytes, 44) {
        Ok(()) => u64::from(u32::from_le_bytes(bytes)).max(BLOCK),
        Err(_) => BLOCK,
    }
}
