//! Target: a whole data directory with a few bytes changed, opened, read, written and closed.
//!
//! ```text
//! input   kind u8 | patches
//! patch   place u8 | page u16 | offset u16 | length u8 | bytes
//! place   low bits: the file, in the order of their names; 64: bytes are added, not set; 128: no checksum is stamped
//! ```
//! In the file of a space, a patch changes one of its pages, which is written as the engine does;
//! if no checksum is stamped, it changes a block of the file.
//! A patch at place 63 appends a frame with these bytes as its payload to the redo log. The
//! directory is that of
//! an engine that was stopped in order, or killed with a transaction prepared and another not
//! ended.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidepool_pool::packed::{self, Codec, Image, PackedFile, Stream};
use tidepool_pool::storage::{AlignedBuf, SimStorage, Storage};

use tidepool_pool::{PageId, page};

use super::front;
use super::pages::PAGE;
use super::small_files::stamp;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, space_file_name, space_of_file};
use crate::page_files::{self, Found, PageFiles};
use crate::redo::control::{CONTROL_FILE, Control};
use crate::redo::file_header::HEADER_SIZE;
use crate::redo::frame::{self, Parsed};
use crate::redo::{BLOCK_SIZE, REDO_DIR};
use crate::{
    Cursor, Db, IndexDef, Isolation, LockMode, LockWait, Options, Result, Table, TableDef,
    TransactionOptions,
};

/// Entries that the directory's tables have together, at most.
const ENTRIES_MAX: usize = 5000;
/// Steps of background work that suffice for all of it.
const STEPS_MAX: usize = 5000;
const APPEND: u8 = 63;
const ADD: u8 = 64;
const UNSTAMPED: u8 = 128;

fn options() -> Options {
    Options {
        page_size: PAGE,
        buffer_pool_size_bytes: 4 << 20,
        memory_guard: false,
        redo_capacity_bytes: 8 << 20,
        lock_wait_timeout: Duration::ZERO,
        background: false,
        ..Options::default()
    }
}

/// A value that needs two overflow pages at `n` = 0, and none at most others.
fn value(n: u32, round: u32) -> Vec<u8> {
    let len = if n.is_multiple_of(40) { 9000 } else { 20 + (n * 7 + round) % 90 };
    (0..len).map(|at| (at * 31 + n + round) as u8).collect()
}

/// Fills a directory: two tables, of which one has a second index, a history that is not purged, a
/// prepared transaction
/// and one without an end.
fn fill(disk: &SimStorage, stopped: bool) -> Result<()> {
    let db = Db::open_on(Arc::new(disk.clone()), options())?;
    let names = [IndexDef::unique("first"), IndexDef::non_unique("second")];
    let a = db.create_table("a", &TableDef::new(names))?;
    let b = db.create_table("b", &TableDef::new([IndexDef::unique("only")]))?;
    let write = TransactionOptions::default();
    let mut trx = db.begin(write);
    for n in 0..400u32 {
        trx.insert(&a, 0, &n.to_be_bytes(), &value(n, 0))?;
        trx.insert(&a, 1, &[&(n % 10).to_be_bytes()[..], &n.to_be_bytes()].concat(), b"")?;
        trx.insert(&b, 0, &(n / 4 * 8 + n % 4).to_be_bytes(), &value(n, 1))?;
    }
    trx.commit()?;
    let view = TransactionOptions {
        isolation: Isolation::RepeatableRead,
        ..TransactionOptions::default()
    };
    let mut reader = db.begin(view);
    reader.ensure_view();
    for n in (0..400u32).step_by(7) {
        let mut trx = db.begin(write);
        trx.update(&a, 0, &n.to_be_bytes(), &value(n, 3))?;
        trx.delete(&b, 0, &(n / 4 * 8 + n % 4).to_be_bytes())?;
        trx.commit()?;
    }
    let mut prepared = db.begin(write);
    for n in 100..120u32 {
        prepared.update(&a, 0, &n.to_be_bytes(), &value(n, 5))?;
    }
    prepared.prepare(b"prepared")?;
    prepared.detach();
    let mut open = db.begin(write);
    for n in 200..240u32 {
        open.update(&a, 0, &n.to_be_bytes(), &value(n, 6))?;
        open.insert(&b, 0, &(1_000_000 + n).to_be_bytes(), &value(n, 7))?;
    }
    drop(reader);
    if stopped {
        open.rollback()?;
        drop(open);
        drop((a, b));
        return db.close();
    }
    db.flush_log()
}

/// The directory, of both kinds.
fn made(stopped: bool) -> SimStorage {
    static MADE: OnceLock<[SimStorage; 2]> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        [false, true].map(|stopped| {
            let disk = SimStorage::with_alignment(1, 512);
            fill(&disk, stopped).expect("a directory can be made");
            disk.kill()
        })
    });
    made[usize::from(stopped)].kill()
}

/// All files of the directory, in the order of their names.
pub(super) fn files(disk: &SimStorage) -> Vec<String> {
    let mut files = Vec::new();
    for dir in ["", REDO_DIR, "tables"] {
        for name in disk.list(dir).unwrap_or_default() {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let is_file = disk.open(&path).is_ok_and(|file| file.len().is_ok_and(|len| len > 0));
            if is_file {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The bytes of a file of the directory, of both kinds, for seeds.
pub(super) fn whole_file(stopped: bool, name: &str) -> Vec<u8> {
    bytes_of(&made(stopped), name)
}

/// The bytes of a file.
pub(super) fn bytes_of(disk: &SimStorage, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("it is there");
    let mut bytes = AlignedBuf::zeroed(file.len().expect("it has one") as usize);
    file.read_at(&mut bytes, 0).expect("it can be read");
    bytes.to_vec()
}

/// The pages of a file.
pub(super) fn pages_of(stopped: bool, name: &str) -> Vec<Vec<u8>> {
    let disk = made(stopped);
    let Some(space) = space_of(name) else {
        return bytes_of(&disk, name).chunks_exact(PAGE).map(<[u8]>::to_vec).collect();
    };
    let files = page_files(&disk);
    let file = files.open_to_read(&disk, space).expect("it can be opened");
    let (mut pages, mut next) = (Vec::new(), Some(0));
    let mut buf = AlignedBuf::zeroed(64 * PAGE);
    while let Some(first) = next {
        let room = (files.page_size, &mut buf[..]);
        let piece = page_files::read_piece(&file, (space, first), room);
        let count = piece.pages.len();
        pages.extend(buf.chunks_exact(PAGE).take(count).map(<[u8]>::to_vec));
        next = piece.next;
    }
    pages
}

/// The space whose file has this name, if one has.
fn space_of(name: &str) -> Option<u32> {
    let own = [SYSTEM_SPACE, UNDO_SPACE].into_iter().find(|id| space_file_name(*id) == name);
    own.or_else(|| name.strip_prefix("tables/").and_then(space_of_file))
}

/// What the files of the directory have in common, for who writes to them.
fn page_files(disk: &SimStorage) -> PageFiles {
    let control = disk.open(CONTROL_FILE).map(|file| Control::read(&*file).expect("it is whole"));
    let (control, _) = control.expect("it is there");
    let files = PageFiles::to_read(disk, control.page_size, control.uuid);
    PageFiles { read_only: false, ..files }
}

/// The names of its files.
pub(super) fn file_names() -> Vec<String> {
    files(&made(false))
}

/// One change of the input.
struct Patch<'a> {
    place: u8,
    page: u16,
    offset: u16,
    bytes: &'a [u8],
}

impl Patch<'_> {
    fn apply(&self, page: &mut [u8]) {
        let start = usize::from(self.offset) % PAGE;
        for (byte, new) in page[start..].iter_mut().zip(self.bytes) {
            *byte = if self.place & ADD != 0 { byte.wrapping_add(*new) } else { *new };
        }
    }
}

/// Changes a page of a space, and writes it as the engine would.
fn change_page(disk: &SimStorage, space: u32, patch: &Patch<'_>) -> packed::Result<()> {
    let file = disk.open(&space_file_name(space)).expect("it is there");
    let file = page_files(disk).open(space, file)?;
    let no = u32::from(patch.page) % file.end(space)?.max(1);
    let mut bytes = vec![0; PAGE];
    file.read(space, no, &mut bytes)?;
    patch.apply(&mut bytes);
    page::stamp_checksum(&mut bytes);
    let mut image = Vec::new();
    let codec = Codec::Zstd.encode(&bytes, &mut image);
    file.write(Stream::Flushed, &[Image::plain((space, no), codec, image)])
}

/// The file of a space: `kind u8 | patches (offset u32, length u8, bytes)`. Whatever its bytes are,
/// it is opened, rescued, read and written, or refused. Each page that it gives has the right
/// checksum.
pub fn page_file(input: &[u8]) {
    let ([kind], mut input) = front::<1>(input);
    let disk = made(kind & 1 != 0);
    let space = if kind & 2 != 0 { UNDO_SPACE } else { SYSTEM_SPACE };
    let file = disk.open(&space_file_name(space)).expect("it is there");
    let mut bytes = AlignedBuf::zeroed(file.len().expect("it has one") as usize);
    file.read_at(&mut bytes, 0).expect("it can be read");
    while let Some((head, rest)) = input.split_at_checked(5) {
        let (patch, rest) = rest.split_at(usize::from(head[4]).min(rest.len()));
        let at = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize % bytes.len();
        bytes[at..].iter_mut().zip(patch).for_each(|(byte, new)| *byte = *new);
        input = rest;
    }
    file.write_at(&bytes, 0).expect("it can be written");
    let files = page_files(&disk);
    let read_all = |file: &PackedFile| {
        let (mut next, mut page) = (Some(0), vec![0; PAGE]);
        while let Some(no) = next.and_then(|at| file.next_page(space, at).ok().flatten()) {
            if file.read(space, no, &mut page).is_ok() {
                page::verify(&page, PageId::new(space, no)).expect("its image's checksum is right");
            }
            next = no.checked_add(1);
        }
    };
    if let Ok(Found { file, .. }) = files.rescue_to_read(&disk, space) {
        read_all(&file);
    }
    if let Ok(file) = files.open(space, file) {
        read_all(&file);
        let image = Image::plain((space, 3), Codec::Raw, vec![1; PAGE]);
        let _ = file.write(Stream::Flushed, &[image]);
        let _ = file.checkpoint();
    }
}

fn take_patch<'a>(input: &mut &'a [u8]) -> Option<Patch<'a>> {
    let (head, rest) = input.split_at_checked(6)?;
    let (bytes, rest) = rest.split_at(usize::from(head[5]).min(rest.len()));
    *input = rest;
    let page = u16::from_le_bytes([head[1], head[2]]);
    let offset = u16::from_le_bytes([head[3], head[4]]);
    Some(Patch { place: head[0], page, offset, bytes })
}

fn apply(disk: &SimStorage, names: &[String], patch: &Patch<'_>) {
    let number = patch.place & !(ADD | UNSTAMPED);
    if number == APPEND {
        return append_frame(disk, names, patch.bytes);
    }
    let name = &names[usize::from(number) % names.len()];
    let is_stamped = patch.place & UNSTAMPED == 0;
    if let Some(space) = space_of(name).filter(|_| is_stamped) {
        // An earlier patch may have spoilt the file.
        let _ = change_page(disk, space, patch);
        return;
    }
    let file = disk.open(name).expect("it is there");
    let blocks = file.len().expect("it has one") / PAGE as u64;
    let at = u64::from(patch.page) % blocks.max(1) * PAGE as u64;
    let mut block = AlignedBuf::zeroed(PAGE);
    file.read_at(&mut block, at).expect("it can be read");
    patch.apply(&mut block);
    if is_stamped {
        match &name[..] {
            "redo/control" => stamp(&mut block, BLOCK_SIZE - 4),
            _ if name.starts_with("redo/") && at == 0 => stamp(&mut block, 508),
            _ if name.ends_with(".tpd") => page::stamp_checksum(&mut block),
            _ => {}
        }
    }
    file.write_at(&block, at).expect("it can be written");
}

/// Appends a frame at the end of the log, if that is in the file in which the log begins.
fn append_frame(disk: &SimStorage, names: &[String], payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    let file = disk.open("redo/control").expect("it is there");
    let mut slots = AlignedBuf::zeroed(2 * BLOCK_SIZE);
    file.read_at(&mut slots, 0).expect("it can be read");
    let Ok((control, _)) = Control::choose(&slots[..BLOCK_SIZE], &slots[BLOCK_SIZE..]) else {
        return;
    };
    let live = control.files.iter().filter_map(|file| file.start.map(|start| (file, start)));
    let holds =
        |start: u64, size: u64| (start..start.saturating_add(size)).contains(&control.checkpoint.0);
    let Some((entry, start)) = live.into_iter().find(|(file, start)| holds(start.0, file.size))
    else {
        return;
    };
    let suffix = format!("{:08}", entry.file_no);
    let Some(name) = names.iter().find(|name| name.ends_with(&suffix)) else { return };
    let file = disk.open(name).expect("it is there");
    let len = file.len().expect("it has one");
    let mut bytes = AlignedBuf::zeroed(len as usize);
    file.read_at(&mut bytes, 0).expect("it can be read");
    let (mut lsn, mut epoch) = (control.checkpoint, control.checkpoint_epoch);
    let offset = |lsn: tidepool_pool::Lsn| (HEADER_SIZE + (lsn.0 - start.0)) as usize;
    loop {
        let Some(rest) = bytes.get(offset(lsn)..) else { return };
        match frame::parse(rest, lsn, epoch) {
            Parsed::Frame { frame_len, epoch: newer, .. } => {
                lsn.0 += frame_len as u64;
                epoch = newer;
            }
            _ => break,
        }
    }
    let (header, header_len) =
        frame::header(payload.len(), frame::payload_crc(payload), lsn, epoch);
    let made = [&header[..header_len], payload].concat();
    if let Some(place) = bytes.get_mut(offset(lsn)..offset(lsn) + made.len()) {
        place.copy_from_slice(&made);
        file.write_at(&bytes, 0).expect("it can be written");
    }
}

/// The directory: whatever the patches are, each call returns, and says yes or no.
pub fn directory(input: &[u8]) {
    let ([kind], mut input) = front::<1>(input);
    let disk = made(kind & 1 != 0);
    let names = files(&disk);
    while let Some(patch) = take_patch(&mut input) {
        apply(&disk, &names, &patch);
    }
    let Ok(db) = Db::open_on(Arc::new(disk), options()) else { return };
    let _ = use_all(&db);
    let _ = db.close();
}

/// Does everything that may be done to a directory; a refusal ends a part of it.
fn use_all(db: &Db) -> Result<()> {
    for _ in 0..STEPS_MAX {
        match db.step_rollback_recovered() {
            Ok(true) => {}
            _ => break,
        }
    }
    for name in db.table_names()? {
        let Ok(table) = db.open_table(&name) else { continue };
        for index in 0..table.index_count() {
            let _ = scan(db, &table, index);
        }
        let _ = table.check(db, &mut |_| true);
        let _ = change(db, &table);
    }
    for xid in db.recovered_xids() {
        let _ = db.commit_prepared(&xid);
    }
    for _ in 0..STEPS_MAX {
        match db.step_purge() {
            Ok(true) => {}
            _ => break,
        }
    }
    let _ = db.step_load();
    let _ = db.step_cleaner();
    let _ = db.step_checkpoint();
    Ok(())
}

/// Reads an index forward and backward.
fn scan(db: &Db, table: &Arc<Table>, index: usize) -> Result<()> {
    let mut trx = db.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::NoWait);
    let mut entries = 0;
    let mut more = cursor.first(&mut trx)?;
    while more {
        entries += 1;
        assert!(entries <= ENTRIES_MAX, "a scan without an end");
        more = cursor.next(&mut trx)?;
    }
    let mut more = cursor.last(&mut trx)?;
    while more {
        entries += 1;
        assert!(entries <= 2 * ENTRIES_MAX, "a scan without an end");
        more = cursor.prev(&mut trx)?;
    }
    Ok(())
}

/// Writes, commits, and rolls back.
fn change(db: &Db, table: &Arc<Table>) -> Result<()> {
    let mut trx = db.begin(TransactionOptions::default());
    let _ = trx.insert(table, 0, &123_456u32.to_be_bytes(), &value(0, 9));
    let _ = trx.delete(table, 0, &80u32.to_be_bytes());
    trx.commit()?;
    let mut trx = db.begin(TransactionOptions::default());
    let _ = trx.update(table, 0, &5u32.to_be_bytes(), &value(0, 2));
    let _ = trx.update(table, 0, &40u32.to_be_bytes(), b"short");
    let _ = trx.delete(table, 0, &123_456u32.to_be_bytes());
    trx.rollback()
}
