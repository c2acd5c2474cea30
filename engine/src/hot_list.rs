//! The hot list: a file that says which pages were hot, for the next start to read them before they
//! are asked for.
//!
//! Here are its bytes (see docs/internals/format/hot-list.md) and how the file is replaced: a new
//! one is written beside it, made durable, and renamed over it. So there is always a whole one, the
//! older or the newer, or none. It is a hint: losing it costs nothing but a slow start, and nothing
//! in it is believed without a look at the page itself.

use tidepool_pool::storage::{AlignedBuf, Storage, StorageError};
use tidepool_pool::{HEATS, PageId};

use crate::varint::{put_u32, take_u32};

/// Name of the file.
pub const HOT_LIST_FILE: &str = "hot-list";
/// Name while it is being written.
const NEW_FILE: &str = "hot-list.new";

/// Most pages that a list names: 64 GiB of 16 KiB pages. A larger pool's hottest.
pub const PAGES_MAX: usize = 4 << 20;

const MAGIC: &[u8; 8] = b"TPHOTLST";
const VERSION: u32 = 2;
const HEADER_SIZE: usize = 64;
const CRC_AT: usize = 60;
/// The file is a whole number of these long, for direct I/O.
const BLOCK: usize = 4096;
/// A file that is longer is no hot list of ours: a run of pages takes at most ten bytes, a change
/// of space as many.
const FILE_MAX_BYTES: u64 = (PAGES_MAX * 20 + BLOCK) as u64;

/// Pages by heat, as [`hot_pages`](tidepool_pool::Pool::hot_pages) gives them: each heat's sorted,
/// each page once.
pub type HotPages = [Vec<PageId>; HEATS];

/// What a list names; no page twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotList {
    /// What the pool held, or was about to load.
    pub held: HotPages,
    /// What an older list named besides. Its heat is of another time, or of another pool, and says
    /// nothing beside that of what was held.
    pub behind: HotPages,
}

impl HotList {
    /// How many pages it names.
    pub fn count(&self) -> usize {
        self.pages().count()
    }

    /// All of them.
    pub fn pages(&self) -> impl Iterator<Item = &PageId> {
        self.held.iter().chain(&self.behind).flatten()
    }

    /// Adds what an `older` list names besides, as far as it `is_there` still, what was held first,
    /// its hottest first, `age` degrees
    /// less hot; what would be less than not hot is left out. It all comes behind, except what the
    /// older one's pool held if that
    /// `is_loading`. The list grows no longer than the older one was: pages that are gone leave
    /// their places to others.
    pub fn keep_older(
        &mut self,
        older: &HotList,
        is_there: impl Fn(&PageId) -> bool,
        age: u64,
        is_loading: bool,
    ) {
        let sorted = |pages: &mut Vec<PageId>| pages.sort_unstable_by_key(|id| id.to_u64());
        let mut room = older.count().saturating_sub(self.count());
        let mut listed: Vec<PageId> = self.pages().copied().collect();
        sorted(&mut listed);
        let is_listed =
            |id: &PageId| listed.binary_search_by_key(&id.to_u64(), |id| id.to_u64()).is_ok();
        for (from, comes_behind) in [(&older.held, !is_loading), (&older.behind, true)] {
            let to = if comes_behind { &mut self.behind } else { &mut self.held };
            for heat in (0..HEATS).rev() {
                let Some(now) = usize::try_from(age).ok().and_then(|age| heat.checked_sub(age))
                else {
                    break;
                };
                let before = to[now].len();
                let kept = from[heat].iter().filter(|id| is_there(id) && !is_listed(id));
                to[now].extend(kept.take(room));
                room -= to[now].len() - before;
                sorted(&mut to[now]);
            }
        }
    }
}

/// Whose pages a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Identity of the data directory.
    pub uuid: [u8; 16],
    /// Bytes in a page.
    pub page_size: u32,
}

/// The file's bytes, padded to whole blocks.
fn encode(owner: Owner, list: &HotList) -> AlignedBuf {
    let mut out = vec![0; HEADER_SIZE];
    for of_heat in list.held.iter().rev().chain(list.behind.iter().rev()) {
        let spaces: Vec<&[PageId]> = of_heat.chunk_by(|a, b| a.space == b.space).collect();
        put_u32(&mut out, spaces.len() as u32);
        let mut space_before = 0;
        for of_space in spaces {
            put_u32(&mut out, of_space[0].space - space_before);
            space_before = of_space[0].space;
            let runs: Vec<&[PageId]> =
                of_space.chunk_by(|a, b| a.no.checked_add(1) == Some(b.no)).collect();
            put_u32(&mut out, runs.len() as u32);
            let mut end = 0;
            for run in runs {
                put_u32(&mut out, run[0].no - end);
                put_u32(&mut out, run.len() as u32 - 1);
                end = run[0].no.wrapping_add(run.len() as u32);
            }
        }
    }
    let payload = (out.len() - HEADER_SIZE) as u64;
    let count = list.count();
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &owner.page_size.to_le_bytes());
    put(16, &owner.uuid);
    put(32, &payload.to_le_bytes());
    put(40, &(count as u64).to_le_bytes());
    let crc = checksum(&out);
    out[CRC_AT..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    AlignedBuf::copy_of(&out)
}

/// Puts the right checksum into the bytes of a file, for a fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn stamp(file: &mut [u8]) {
    let payload = u64::from_le_bytes(file[32..40].try_into().expect("8 bytes"));
    let end = usize::try_from(payload).ok().and_then(|payload| HEADER_SIZE.checked_add(payload));
    if let Some(listed) = end.and_then(|end| file.get(..end)) {
        let crc = checksum(listed);
        file[CRC_AT..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Of everything but the checksum itself and the padding.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[HEADER_SIZE..])
}

/// Reads the bytes of a file; the error says why they are no list of `owner`.
fn decode(owner: Owner, bytes: &[u8]) -> Result<HotList, &'static str> {
    let field = |at: usize| -> [u8; 8] { bytes[at..at + 8].try_into().expect("8 bytes") };
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    if bytes.len() < HEADER_SIZE || &bytes[..8] != MAGIC {
        return Err("it is not a hot list");
    }
    if word(8) != VERSION {
        return Err("it is of another version");
    }
    let rest = (bytes.len() - HEADER_SIZE) as u64;
    let payload = u64::from_le_bytes(field(32));
    if payload > rest {
        return Err("it is cut short");
    }
    let bytes = &bytes[..HEADER_SIZE + payload as usize];
    if word(CRC_AT) != checksum(bytes) {
        return Err("its checksum is wrong");
    }
    if bytes[16..32] != owner.uuid || word(12) != owner.page_size {
        return Err("it is of another data directory");
    }
    let mut rest = &bytes[HEADER_SIZE..];
    match take_list(&mut rest) {
        Some(list) if rest.is_empty() => Ok(list),
        _ => Err("its entries make no sense"),
    }
}

/// The payload. `None` if no list has such bytes.
fn take_list(rest: &mut &[u8]) -> Option<HotList> {
    let mut list = HotList::default();
    let mut left = PAGES_MAX;
    for of_heat in list.held.iter_mut().rev().chain(list.behind.iter_mut().rev()) {
        let mut space = 0u32;
        for at in 0..take_u32(rest)? {
            let step = take_u32(rest)?;
            if at > 0 && step == 0 {
                return None;
            }
            space = space.checked_add(step)?;
            let mut end = 0u64;
            for at in 0..take_u32(rest)? {
                let (gap, more) = (take_u32(rest)?, take_u32(rest)?);
                if at > 0 && gap == 0 {
                    return None;
                }
                let first = end + u64::from(gap);
                end = first + u64::from(more) + 1;
                left = left.checked_sub(more as usize + 1)?;
                if end > 1 << 32 {
                    return None;
                }
                of_heat.extend((first..end).map(|no| PageId::new(space, no as u32)));
            }
        }
    }
    Some(list)
}

/// Replaces the list, durably. On an error the older list is there still, or again after a power
/// cut.
///
/// # Errors
/// Those of the storage; a full disk among them.
pub fn save(storage: &dyn Storage, owner: Owner, list: &HotList) -> Result<(), StorageError> {
    let bytes = encode(owner, list);
    storage.remove_if_there(NEW_FILE)?;
    let written = || {
        let file = storage.create(NEW_FILE)?;
        file.write_at(&bytes, 0)?;
        file.sync_data()?;
        storage.rename(NEW_FILE, HOT_LIST_FILE)
    };
    written().inspect_err(|_| {
        // Best effort: the next save removes it, too.
        let _ = storage.remove(NEW_FILE);
    })?;
    storage.sync_dir("")
}

/// Reads the list. `Ok(None)`: there is none.
///
/// # Errors
/// A text that says why there is one which can't be used.
pub fn load(storage: &dyn Storage, owner: Owner) -> Result<Option<HotList>, String> {
    let text = |error: StorageError| error.to_string();
    if !storage.exists(HOT_LIST_FILE).map_err(text)? {
        return Ok(None);
    }
    let file = storage.open(HOT_LIST_FILE).map_err(text)?;
    let len = file.len().map_err(text)?;
    if len > FILE_MAX_BYTES || len % BLOCK as u64 != 0 {
        return Err(format!("{len} bytes are not the length of a hot list"));
    }
    let mut bytes = AlignedBuf::zeroed(len as usize);
    file.read_at(&mut bytes, 0).map_err(text)?;
    decode(owner, &bytes).map(Some).map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidepool_pool::storage::SimStorage;

    const OWNER: Owner = Owner { uuid: [9; 16], page_size: 16384 };

    fn of(numbers: &[(u32, u32)]) -> Vec<PageId> {
        numbers.iter().map(|&(space, no)| PageId::new(space, no)).collect()
    }

    fn held() -> HotPages {
        [
            of(&[(0, 0)]),
            of(&[]),
            of(&[(16, u32::MAX - 1), (16, u32::MAX), (u32::MAX, u32::MAX)]),
            of(&[]),
            of(&[(1, 5), (1, 6), (1, 7), (1, 300), (20, 4)]),
        ]
    }

    fn example() -> HotList {
        HotList { held: held(), behind: [of(&[]), of(&[(2, 8)]), of(&[]), of(&[]), of(&[(3, 9)])] }
    }

    #[test]
    fn bytes_are_as_documented() {
        let bytes = encode(OWNER, &example());
        assert_eq!(bytes.len(), BLOCK);
        assert_eq!(&bytes[..16], b"TPHOTLST\x02\0\0\0\x00\x40\0\0");
        assert_eq!(&bytes[16..32], &[9; 16]);
        assert_eq!(&bytes[32..48], &[53, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0]);
        // Heat 4: two spaces. Space 1: two runs, 5 to 7 and 300. Space 20: one run.
        let hottest = [2, 1, 2, 5, 2, 0xa4, 2, 0, 19, 1, 4, 0];
        assert_eq!(&bytes[64..76], &hottest);
        // Heat 3 is empty; heat 2 begins.
        assert_eq!(&bytes[76..82], &[0, 2, 16, 1, 0xfe, 0xff]);
        // What comes behind: heat 4, 3 and 2, 1, 0.
        assert_eq!(&bytes[104..117], &[1, 3, 1, 9, 0, 0, 0, 1, 2, 1, 8, 0, 0]);
        assert_eq!(decode(OWNER, &bytes), Ok(example()));
    }

    #[test]
    fn a_list_of_others_is_refused() {
        let bytes = encode(OWNER, &example());
        let other = "it is of another data directory";
        assert_eq!(decode(Owner { uuid: [8; 16], ..OWNER }, &bytes), Err(other));
        assert_eq!(decode(Owner { page_size: 4096, ..OWNER }, &bytes), Err(other));
        let mut newer = bytes.to_vec();
        newer[8] = 3;
        assert_eq!(decode(OWNER, &newer), Err("it is of another version"));
        assert_eq!(decode(OWNER, &bytes[..70]), Err("it is cut short"));
        assert_eq!(decode(OWNER, &bytes[..7]), Err("it is not a hot list"));
    }

    #[test]
    fn what_an_older_list_names_besides_is_kept_as_long_as_there_is_room() {
        let older = example();
        let own = of(&[(1, 6), (9, 9)]);
        let nothing = || of(&[]);
        let pages = || [own.clone(), nothing(), nothing(), nothing(), of(&[(0, 0)])];
        let fresh = || HotList { held: pages(), ..HotList::default() };
        // Eleven on the older list, three of our own of which two are on it: eight of the other
        // nine, what was held first.
        let mut list = fresh();
        list.keep_older(&older, |_| true, 0, false);
        assert_eq!(list.held, pages());
        let warm = of(&[(16, u32::MAX - 1), (16, u32::MAX), (u32::MAX, u32::MAX)]);
        let hottest = of(&[(1, 5), (1, 7), (1, 300), (3, 9), (20, 4)]);
        assert_eq!(list.behind, [nothing(), nothing(), warm.clone(), nothing(), hottest]);
        // While that is being loaded it is held as good as any.
        let mut list = fresh();
        list.keep_older(&older, |_| true, 0, true);
        let hottest = of(&[(0, 0), (1, 5), (1, 7), (1, 300), (20, 4)]);
        assert_eq!(list.held, [own.clone(), nothing(), warm, nothing(), hottest]);
        assert_eq!(list.behind[4], of(&[(3, 9)]));

        // Two degrees on, heat 2 is heat 0; three on, it is gone.
        let mut list = fresh();
        list.keep_older(&older, |_| true, 2, false);
        let cold = of(&[(16, u32::MAX - 1), (16, u32::MAX), (u32::MAX, u32::MAX)]);
        let warm = of(&[(1, 5), (1, 7), (1, 300), (3, 9), (20, 4)]);
        assert_eq!(list.behind, [cold, nothing(), warm, nothing(), nothing()]);
        for (age, count) in [(3, 8), (4, 8), (5, 3), (u64::MAX, 3)] {
            let mut list = fresh();
            list.keep_older(&older, |_| true, age, false);
            assert_eq!(list.count(), count, "{age}");
        }

        // A longer list is as it is.
        let mut list = example();
        list.keep_older(&fresh(), |_| true, 0, false);
        assert_eq!(list, example());
    }

    #[test]
    fn pages_that_are_gone_leave_their_places_to_others() {
        let mut older = HotList::default();
        older.held[0] = of(&[(1, 1), (1, 2), (2, 1), (2, 2)]);
        let mut list = HotList::default();
        list.held[0] = of(&[(0, 3)]);
        list.keep_older(&older, |id| id.space != 2, 0, false);
        assert_eq!(list.held[0], of(&[(0, 3)]));
        assert_eq!(list.behind[0], of(&[(1, 1), (1, 2)]));
        // There were four places, so two are free; nothing else takes them.
        list.keep_older(&older, |id| id.space != 2, 0, false);
        assert_eq!(list.count(), 3);
    }

    fn some_list() -> impl Strategy<Value = HotList> {
        let near = (0u32..5, 0u32..200);
        let far = (any::<u32>(), any::<u32>());
        let page = prop_oneof![near, far].prop_map(|(space, no)| PageId::new(space, no));
        let of_heat = prop::collection::vec(page, 0..100).prop_map(|mut pages| {
            pages.sort_unstable_by_key(|id| id.to_u64());
            pages.dedup();
            pages
        });
        let pages = || prop::array::uniform5(of_heat.clone());
        (pages(), pages()).prop_map(|(held, behind)| HotList { held, behind })
    }

    proptest! {
        #[test]
        fn round_trip(list in some_list()) {
            prop_assert_eq!(decode(OWNER, &encode(OWNER, &list)), Ok(list));
        }

        #[test]
        fn a_flipped_bit_is_noticed(list in some_list(), bit: prop::sample::Index) {
            let mut bytes = encode(OWNER, &list).to_vec();
            let payload = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
            let bit = bit.index((HEADER_SIZE + payload) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(OWNER, &bytes).is_err());
        }

        #[test]
        fn no_bytes_do_harm(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = encode(OWNER, &HotList::default())[..HEADER_SIZE].to_vec();
            bytes[32..40].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            bytes.extend(&payload);
            let crc = checksum(&bytes);
            bytes[CRC_AT..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
            if let Ok(list) = decode(OWNER, &bytes) {
                let mut groups = list.held.iter().chain(&list.behind);
                prop_assert!(groups.all(|of_heat| of_heat.is_sorted_by(|a, b| a.to_u64() < b.to_u64())));
                prop_assert!(list.count() <= PAGES_MAX);
            }
        }
    }

    #[test]
    fn a_power_cut_leaves_the_older_list_or_the_newer() {
        let (old, new) = (HotList::default(), example());
        for seed in 0..20 {
            let mut done = false;
            for cut_after in 0.. {
                let sim = SimStorage::new(seed);
                save(&sim, OWNER, &old).unwrap();
                sim.crash_at(sim.operation_count() + cut_after);
                done = save(&sim, OWNER, &new).is_ok() && !sim.is_down();
                let sim = sim.crash();
                let found = load(&sim, OWNER).unwrap().expect("a list is there");
                assert!(found == new || found == old && !done, "seed {seed}, cut {cut_after}");
                // What was left behind does no harm.
                save(&sim, OWNER, &new).unwrap();
                assert_eq!(load(&sim, OWNER), Ok(Some(new.clone())));
                if done {
                    break;
                }
            }
            assert!(done);
        }
    }

    #[test]
    fn a_full_disk_keeps_the_older_list() {
        let sim = SimStorage::new(1);
        save(&sim, OWNER, &example()).unwrap();
        sim.set_capacity(Some(sim.used_bytes()));
        assert!(save(&sim, OWNER, &HotList::default()).is_err());
        assert_eq!(sim.list("").unwrap(), [HOT_LIST_FILE]);
        sim.set_capacity(None);
        assert_eq!(load(&sim, OWNER), Ok(Some(example())));
    }
}
