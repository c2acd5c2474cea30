//! The compressed tier: images of pages that have left their frames, in memory.
//!
//! A page takes a whole frame; its image, as its packed file has it, a third or a fifth of that. So
//! the pool uses some of its frames as slabs of images ([`slab`]). A miss looks there before the
//! file. How many frames the tier has is decided by what they bring ([`split`]).
//!
//! # Which images are here
//! - That of a page that a query read from its file: at once, while the bytes are at hand.
//! - That of a page that was written because frames ran short.
//! - That of a page that leaves its frame and has none here: the evictor makes it, never a query.
//!
//! Pages of scans, and pages that were read ahead and not used, do not come in. An image stays here
//! while its page is resident, as long as the clock's hand does not come by ([`shard`]), so a page
//! that leaves its frame unchanged costs nothing.
//!
//! # Invariant
//! When a page is absent, or resident and clean, its image here, if there is one, is the newest
//! that its file has. It holds because images change only
//! - when the page is loaded (its latch is exclusive) or evicted (the same);
//! - when a write of the page has succeeded, before the page counts as clean: the new image takes
//!   the old one's place, or the old one is removed.
//!
//! A space that is closed leaves its images here: their key has the number of the time that the
//! space was open, which never comes again, and the hand removes them.
//!
//! # Giving memory back
//! What is here is on the disk as well. So a frame of the tier is given back by forgetting what it
//! holds: when the pool's limit falls, the tier's share of it falls with it, at once; and when an
//! extent is drained, the tier's frames in it are released.
//!
//! # Locking
//! page latch → a shard's mutex → free list's mutex. Under a shard's mutex nothing else is taken,
//! nothing is read or written, and nothing is compressed.

mod shard;
mod slab;
pub(crate) mod split;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tidepool_store::packed::Codec;

use self::shard::Shard;
pub(crate) use self::slab::Key;
use self::slab::{IMAGE_MAX, NO_TAIL, Part, REFERENCED, RESIDENT};
use self::split::{CpuSample, Splitter};
use crate::pool::Pool;
use crate::replacement::{Access, hash};
use crate::space::Space;
use crate::stats::{count, count_time};

/// Shards, each with a mutex.
const SHARDS: usize = 16;
/// Of what the shares of the tier are counted in.
pub const SHARE_ONE: u32 = 1000;
/// A smaller pool than this gets no tier by itself: 16 MiB of pages of 16 KiB.
const POOL_FRAMES_MIN: u32 = 1024;
/// Frames released in one slice.
const RELEASE_SLICE: usize = 64;
/// The most images that the evictor may make at once without a hit.
const CREDIT_MAX: u32 = 4096;
/// An image must be this share of a page at most to be worth its place.
const IMAGE_SHARE_MAX: f64 = 0.75;

/// Whether part of the pool holds images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CompressedTier {
    /// As many frames as bring more so than with pages in them.
    #[default]
    Auto,
    /// None.
    Off,
}

impl CompressedTier {
    /// All of them, by their number.
    pub const ALL: [CompressedTier; 2] = [CompressedTier::Auto, CompressedTier::Off];
}

/// Why an image comes into the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its page was read from the file, and is resident.
    Read,
    /// Its page was written, and is resident.
    Written,
    /// Its page leaves its frame.
    Evicted,
}

/// What the tier holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Frames that hold images.
    pub frames: u64,
    /// Frames that may.
    pub frames_max: u64,
    /// Images in them.
    pub images: u64,
    /// Bytes of these.
    pub image_bytes: u64,
    pub index_bytes: u64,
    /// Accesses to absent pages that found the image here.
    pub hits: u64,
    /// How long these took in all, microseconds.
    pub hits_us: u64,
    /// Images that came in.
    pub inserted: u64,
    /// Of these, images that the evictor made.
    pub compressed: u64,
    /// Images that went because there was no room.
    pub dropped: u64,
}

pub(crate) struct Tier {
    shards: Box<[Mutex<Shard>]>,
    /// A [`CompressedTier`].
    setting: AtomicU8,
    /// Share of the pool's frames, of [`SHARE_ONE`].
    share: AtomicU32,
    /// Frames that hold images.
    held: AtomicU32,
    hits: AtomicU64,
    hits_us: AtomicU64,
    hits_cpu: CpuSample,
    pub(crate) reads_cpu: CpuSample,
    inserted: AtomicU64,
    compressed: AtomicU64,
    /// How many images the evictor may make: it gets one for each hit.
    credit: AtomicU32,
    /// Images of pages that were read or written of late, and their bytes: what shows how far pages
    /// shrink.
    seen: AtomicU64,
    seen_bytes: AtomicU64,
    /// Share of the images whose page is resident, in thousandths plus one; 0: not known yet.
    duplicates: AtomicU32,
    pub(crate) splitter: Mutex<Splitter>,
}

thread_local! {
    /// An image on its way out of the tier.
    static IMAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How many of the tier's frames a shard may have.
fn frames_of_shard(number: u32, frames_max: u32) -> usize {
    let (each, over) = (frames_max / SHARDS as u32, frames_max % SHARDS as u32);
    (each + u32::from(number < over)) as usize
}

impl Tier {
    pub(crate) fn new(setting: CompressedTier) -> Tier {
        Tier {
            shards: (0..SHARDS as u32).map(|number| Mutex::new(Shard::new(number))).collect(),
            setting: AtomicU8::new(setting as u8),
            share: AtomicU32::new(0),
            held: AtomicU32::new(0),
            hits: AtomicU64::new(0),
            hits_us: AtomicU64::new(0),
            hits_cpu: CpuSample::default(),
            reads_cpu: CpuSample::default(),
            inserted: AtomicU64::new(0),
            compressed: AtomicU64::new(0),
            credit: AtomicU32::new(CREDIT_MAX),
            seen: AtomicU64::new(0),
            seen_bytes: AtomicU64::new(0),
            duplicates: AtomicU32::new(0),
            splitter: Mutex::new(Splitter::default()),
        }
    }

    fn shard_of(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(hash(key.to_u64()) >> 60) as usize % SHARDS]
    }

    /// Frames that hold images.
    pub(crate) fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// How many frames of a pool of `limit` may hold images.
    fn frames_max(&self, limit: u32) -> u32 {
        (u64::from(limit) * u64::from(self.share()) / u64::from(SHARE_ONE)) as u32
    }

    /// Bytes of an image of late, as a share of a page of `page_bytes`; `None` before any was seen.
    fn image_share(&self, page_bytes: usize) -> Option<f64> {
        let seen = self.seen.load(Ordering::Relaxed);
        let bytes = self.seen_bytes.load(Ordering::Relaxed);
        (seen >= 64).then(|| bytes as f64 / seen as f64 / page_bytes as f64)
    }

    /// Share of the images whose page is resident as well, if it is known.
    fn duplicates(&self) -> Option<f64> {
        self.duplicates.load(Ordering::Relaxed).checked_sub(1).map(|it| f64::from(it) / 1000.0)
    }

    fn set_duplicates(&self, share: f64) {
        self.duplicates.store((share * 1000.0) as u32 + 1, Ordering::Relaxed);
    }

    fn note_seen(&self, bytes: usize) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        self.seen_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Lets older images count half.
    fn age(&self) {
        for counter in [&self.seen, &self.seen_bytes] {
            counter.store(counter.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }
}

impl Pool {
    /// The setting of the compressed tier.
    pub fn compressed_tier(&self) -> CompressedTier {
        CompressedTier::ALL[usize::from(self.tier.setting.load(Ordering::Relaxed))]
    }

    /// Changes it. Turned off, the tier's frames are given back at once.
    pub fn set_compressed_tier(&self, setting: CompressedTier) {
        // No decision is under way that would give the tier a share afterwards.
        let _splitter = self.tier.splitter.lock();
        self.tier.setting.store(setting as u8, Ordering::Relaxed);
        if setting == CompressedTier::Off {
            self.set_tier_share(0);
        }
    }

    /// Gives the tier a share of the pool's frames, in thousandths, until the next decision: for
    /// tests, and for a pool without background threads.
    pub fn set_tier_share(&self, share: u32) {
        self.tier.share.store(share.min(SHARE_ONE), Ordering::Relaxed);
        self.fit_replacement();
        while self.release_tier_slice() {}
    }

    /// Sets how many frames the replacement policy counts on: those that may hold pages.
    pub(crate) fn fit_replacement(&self) {
        let limit = self.frames().limit();
        self.replacement().set_capacity(limit - self.tier.frames_max(limit));
    }

    /// What the tier holds and did.
    pub fn tier_stats(&self) -> TierStats {
        let tier = &self.tier;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = TierStats {
            frames_max: u64::from(tier.frames_max(self.frames().limit())),
            hits: get(&tier.hits),
            hits_us: get(&tier.hits_us),
            inserted: get(&tier.inserted),
            compressed: get(&tier.compressed),
            ..TierStats::default()
        };
        for shard in &tier.shards {
            let shard = shard.lock();
            let holdings = shard.holdings();
            stats.frames += holdings.frames;
            stats.images += holdings.images;
            stats.image_bytes += holdings.image_bytes;
            stats.index_bytes += holdings.index_bytes;
            stats.dropped += shard.dropped;
        }
        stats
    }

    /// Makes a page of its image, if the tier has that. The caller has the page latched
    /// exclusively, and verifies it.
    pub(crate) fn read_from_tier(&self, space: &Space, no: u32, page: &mut [u8]) -> bool {
        if self.tier.held() == 0 {
            return false;
        }
        let (began, cpu) = (Instant::now(), self.tier.hits_cpu.begin());
        let key = space.tier_key(no);
        let came = IMAGE.with_borrow_mut(|image| {
            image.clear();
            let shard = self.tier.shard_of(key);
            let codec = shard.lock().copy(self.frames(), key, image)?;
            codec.decode(image, page).ok()
        });
        if came.is_none() {
            return false;
        }
        if self.verify(space, no, page).is_err() {
            // Memory that changed by itself: the file has the page.
            tracing::error!(
                "the compressed image of page {no} of {} is broken in memory; check the memory",
                space.name()
            );
            self.forget_image(space, no);
            return false;
        }
        self.tier.hits_cpu.end(cpu);
        count(&self.tier.hits);
        if self.tier.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.tier.credit.fetch_add(1, Ordering::Relaxed);
        }
        count_time(&self.tier.hits_us, began.elapsed());
        true
    }

    /// Whether an image of a page that is accessed like this should be kept.
    pub(crate) fn keeps_images_of(&self, access: Access) -> bool {
        access == Access::Normal && self.tier.share() > 0
    }

    /// Whether the evictor may make an image now. To make one costs more than a read of a fast
    /// disk, so there are at most as many as images that were of use.
    pub(crate) fn may_compress(&self) -> bool {
        let credit = &self.tier.credit;
        credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1)).is_ok()
    }

    /// Takes an image in, in place of an older one. The caller has the page latched exclusively, or
    /// has just written it and not yet counted it as clean.
    pub(crate) fn keep_image(&self, key: Key, codec: Codec, image: &[u8], origin: Origin) {
        let tier = &self.tier;
        tier.note_seen(image.len());
        let page_bytes = self.page_size().bytes();
        let limit = self.frames().limit();
        let frames_max = tier.frames_max(limit);
        let mut shard = tier.shard_of(key).lock();
        shard.remove(self.frames(), key);
        let is_worth_it = (image.len() as f64) < page_bytes as f64 * IMAGE_SHARE_MAX;
        if frames_max == 0 || !is_worth_it || image.len() > IMAGE_MAX {
            return;
        }
        let flags = match origin {
            Origin::Read | Origin::Written => RESIDENT,
            Origin::Evicted => REFERENCED,
        };
        let of_shard = frames_of_shard(shard.number(), frames_max);
        let may_grow = shard.frames() < of_shard && self.frames().available() > self.reserve() / 2;
        let grow = || {
            let frame = may_grow.then(|| self.frames().take()).flatten()?;
            tier.held.fetch_add(1, Ordering::Relaxed);
            Some(frame)
        };
        let image = Part { key, codec, flags, bytes: image, tail: NO_TAIL };
        if shard.insert(self.frames(), image, grow) {
            count(&tier.inserted);
            if origin == Origin::Evicted {
                count(&tier.compressed);
            }
        }
        drop(shard);
        if self.frames().available() < self.reserve() {
            self.background.wake_evictor();
        }
    }

    /// Notes how long an image is that the tier does not take.
    pub(crate) fn note_image(&self, image: &[u8]) {
        self.tier.note_seen(image.len());
    }

    /// Removes the image of a page, if the tier has it.
    pub(crate) fn forget_image(&self, space: &Space, no: u32) {
        if self.tier.held() > 0 {
            let key = space.tier_key(no);
            self.tier.shard_of(key).lock().remove(self.frames(), key);
        }
    }

    /// Notes that a page left its frame. The caller has it latched exclusively. True: its image is
    /// here.
    pub(crate) fn note_evicted(&self, key: Key) -> bool {
        self.tier.held() > 0 && self.tier.shard_of(key).lock().note_evicted(self.frames(), key)
    }

    /// Releases some of the tier's frames, if it has more than it may have. True: there are more.
    pub(crate) fn release_tier_slice(&self) -> bool {
        let tier = &self.tier;
        let frames_max = tier.frames_max(self.frames().limit());
        let mut left = RELEASE_SLICE;
        for shard in &tier.shards {
            let mut shard = shard.lock();
            let of_shard = frames_of_shard(shard.number(), frames_max);
            while shard.frames() > of_shard {
                if left == 0 {
                    return true;
                }
                left -= 1;
                shard.release_next(self.frames());
                tier.held.fetch_sub(1, Ordering::Relaxed);
            }
            shard.shrink_index();
        }
        false
    }

    /// Gives a frame back that holds images. False: it holds none.
    pub(crate) fn release_tier_frame(&self, frame: u32) -> bool {
        let descriptor = self.frames().descriptor(frame);
        let Some(number) = descriptor.tier_shard() else { return false };
        let mut shard = self.tier.shards[number as usize].lock();
        // It may have been released, and be in use for something else.
        if descriptor.tier_shard() != Some(number) {
            return false;
        }
        shard.release(self.frames(), frame);
        self.tier.held.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Panics unless the tier's invariants hold.
    #[cfg(test)]
    pub(crate) fn check_tier(&self) {
        let mut frames = 0;
        for shard in &self.tier.shards {
            let mut shard = shard.lock();
            shard.check(self.frames());
            frames += shard.frames() as u32;
        }
        assert_eq!(frames, self.tier.held());
    }
}

/// The page's identity as the pool's spaces have it now.
impl Space {
    /// Whose image this is in the tier.
    pub(crate) fn tier_key(&self, no: u32) -> Key {
        Key { incarnation: self.incarnation(), no }
    }
}
