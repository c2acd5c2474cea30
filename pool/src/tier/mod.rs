//! The compressed tier: images of pages that have left their frames, in memory.
//!
//! A page takes a whole frame; its image, as its packed file has it, a third or a fifth of that. So
//! the pool uses some of its frames as slabs of images ([`slab`]). A miss looks there before the
//! file. How many frames the tier has is decided above ([`crate::tier_sizing`]).
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
//! nothing is read or written, and nothing is compressed. `fitting` → the replacement policy's.

mod cpu_sample;
mod shard;
mod slab;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tidepool_store::lend;
use tidepool_store::packed::Codec;

pub(crate) use self::cpu_sample::CpuSample;
use self::shard::Shard;
pub(crate) use self::slab::Key;
use self::slab::{IMAGE_MAX, NO_TAIL, Part, REFERENCED, RESIDENT};
use crate::config::CompressedTier;
use crate::pool_core::PoolCore;
use crate::replacement::{Access, hash};
use crate::space::Space;
use crate::stats::{count, count_time};

/// Shards, each with a mutex.
const SHARDS: usize = 16;
/// Of what the shares of the tier are counted in.
pub const SHARE_ONE: u32 = 1000;
/// Frames released in one slice.
const RELEASE_SLICE: usize = 64;
/// The most images that the evictor may make at once without a hit.
const CREDIT_MAX: u32 = 4096;
/// An image must be this share of a page at most to be worth its place.
const IMAGE_SHARE_MAX: f64 = 0.75;

/// The share of images whose page is resident, as long as it is not measured.
pub(crate) const DUPLICATES: f64 = 0.2;

/// How many pages these frames and images hold together; `duplicates` is the share of the images
/// whose page is resident.
pub(crate) fn pages_reached(frames: f64, images: f64, duplicates: f64) -> f64 {
    frames + images - (images * duplicates).min(frames)
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

/// See the head of this module.
pub(crate) struct Tier {
    core: Arc<PoolCore>,
    shards: Box<[Mutex<Shard>]>,
    /// A [`CompressedTier`].
    setting: AtomicU8,
    /// Share of the pool's frames, of [`SHARE_ONE`].
    share: AtomicU32,
    /// Held while limit and share are read, and the replacement policy learns what follows.
    fitting: Mutex<()>,
    hits: AtomicU64,
    hits_us: AtomicU64,
    pub(crate) hits_cpu: CpuSample,
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
    pub(crate) fn new(core: Arc<PoolCore>, setting: CompressedTier) -> Tier {
        Tier {
            core,
            shards: (0..SHARDS as u32).map(|number| Mutex::new(Shard::new(number))).collect(),
            setting: AtomicU8::new(setting as u8),
            share: AtomicU32::new(0),
            fitting: Mutex::new(()),
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
        }
    }

    fn shard_of(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(hash(key.to_u64()) >> 60) as usize % SHARDS]
    }

    /// Its share of the pool's frames, of [`SHARE_ONE`].
    pub(crate) fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// How many frames of a pool of `limit` may hold images.
    fn frames_max(&self, limit: u32) -> u32 {
        (u64::from(limit) * u64::from(self.share()) / u64::from(SHARE_ONE)) as u32
    }

    /// Bytes of an image of late, as a share of a page of `page_bytes`; `None` before any was seen.
    pub(crate) fn image_share(&self, page_bytes: usize) -> Option<f64> {
        let seen = self.seen.load(Ordering::Relaxed);
        let bytes = self.seen_bytes.load(Ordering::Relaxed);
        (seen >= 64).then(|| bytes as f64 / seen as f64 / page_bytes as f64)
    }

    /// Share of the images whose page is resident as well, if it is known.
    pub(crate) fn duplicates(&self) -> Option<f64> {
        self.duplicates.load(Ordering::Relaxed).checked_sub(1).map(|it| f64::from(it) / 1000.0)
    }

    pub(crate) fn set_duplicates(&self, share: f64) {
        self.duplicates.store((share * 1000.0) as u32 + 1, Ordering::Relaxed);
    }

    fn note_seen(&self, bytes: usize) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        self.seen_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Lets older images count half.
    pub(crate) fn age(&self) {
        for counter in [&self.seen, &self.seen_bytes] {
            counter.store(counter.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }
}

impl Tier {
    /// The setting of the compressed tier.
    pub(crate) fn setting(&self) -> CompressedTier {
        CompressedTier::ALL[usize::from(self.setting.load(Ordering::Relaxed))]
    }

    /// Changes it. Turned off, the tier's frames are given back at once. The caller sees to it that
    /// no decision is under way that would give the tier a share afterwards.
    pub(crate) fn set_setting(&self, setting: CompressedTier) {
        self.setting.store(setting as u8, Ordering::Relaxed);
        if setting == CompressedTier::Off {
            self.set_share(0);
        }
    }

    /// Gives the tier a share of the pool's frames, in thousandths, until the next decision: for
    /// tests, and for a pool without background threads.
    pub(crate) fn set_share(&self, share: u32) {
        self.share.store(share.min(SHARE_ONE), Ordering::Relaxed);
        self.fit_replacement();
        while self.release_slice() {}
    }

    /// Sets how many frames the replacement policy counts on: those that may hold pages. To be
    /// called after each change of the limit or the share.
    pub(crate) fn fit_replacement(&self) {
        // The last to come sets what it reads: a change that it does not see has yet to come here.
        let _one_at_a_time = self.fitting.lock();
        let limit = self.core.frames.limit();
        self.core.replacement.set_capacity(limit - self.frames_max(limit));
    }

    /// What the tier holds and did.
    pub(crate) fn stats(&self) -> TierStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = TierStats {
            frames_max: u64::from(self.frames_max(self.core.frames.limit())),
            hits: get(&self.hits),
            hits_us: get(&self.hits_us),
            inserted: get(&self.inserted),
            compressed: get(&self.compressed),
            ..TierStats::default()
        };
        for shard in &self.shards {
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
    pub(crate) fn read(&self, space: &Space, no: u32, page: &mut [u8]) -> bool {
        if self.core.image_frames() == 0 {
            return false;
        }
        let (began, cpu) = (Instant::now(), self.hits_cpu.begin());
        let key = space.tier_key(no);
        let came = lend(&IMAGE, Vec::new, |image| {
            image.clear();
            let shard = self.shard_of(key);
            let codec = shard.lock().copy(&self.core.frames, key, image)?;
            codec.decode(image, page).ok()
        });
        if came.is_none() {
            return false;
        }
        if self.core.verify(space, no, page).is_err() {
            // Memory that changed by itself: the file has the page.
            tracing::error!(
                "the compressed image of page {no} of {} is broken in memory; check the memory",
                space.name()
            );
            self.forget(space, no);
            return false;
        }
        self.hits_cpu.end(cpu);
        count(&self.hits);
        if self.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.credit.fetch_add(1, Ordering::Relaxed);
        }
        count_time(&self.hits_us, began.elapsed());
        true
    }

    /// Whether an image of a page that is accessed like this should be kept.
    pub(crate) fn keeps_images_of(&self, access: Access) -> bool {
        access == Access::Normal && self.share() > 0
    }

    /// Whether the evictor may make an image now. To make one costs more than a read of a fast
    /// disk, so there are at most as many as images that were of use.
    pub(crate) fn may_compress(&self) -> bool {
        let credit = &self.credit;
        credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1)).is_ok()
    }

    /// Takes an image in, in place of an older one. The caller has the page latched exclusively, or
    /// has just written it and not yet counted it as clean.
    pub(crate) fn keep(&self, key: Key, codec: Codec, image: &[u8], origin: Origin) {
        self.note_seen(image.len());
        let page_bytes = self.core.page_size().bytes();
        let limit = self.core.frames.limit();
        let frames_max = self.frames_max(limit);
        let mut shard = self.shard_of(key).lock();
        shard.remove(&self.core.frames, key);
        let is_worth_it = (image.len() as f64) < page_bytes as f64 * IMAGE_SHARE_MAX;
        if frames_max == 0 || !is_worth_it || image.len() > IMAGE_MAX {
            return;
        }
        let flags = match origin {
            Origin::Read | Origin::Written => RESIDENT,
            Origin::Evicted => REFERENCED,
        };
        let of_shard = frames_of_shard(shard.number(), frames_max);
        let may_grow =
            shard.frames() < of_shard && self.core.frames.available() > self.core.reserve() / 2;
        let grow = || {
            let frame = may_grow.then(|| self.core.frames.take()).flatten()?;
            self.core.image_frames.fetch_add(1, Ordering::Relaxed);
            Some(frame)
        };
        let image = Part { key, codec, flags, bytes: image, tail: NO_TAIL };
        if shard.insert(&self.core.frames, image, grow) {
            count(&self.inserted);
            if origin == Origin::Evicted {
                count(&self.compressed);
            }
        }
        drop(shard);
        if self.core.frames.available() < self.core.reserve() {
            self.core.background.wake_evictor();
        }
    }

    /// Notes how long an image is that the tier does not take.
    pub(crate) fn note_image(&self, image: &[u8]) {
        self.note_seen(image.len());
    }

    /// Removes the image of a page, if the tier has it.
    pub(crate) fn forget(&self, space: &Space, no: u32) {
        if self.core.image_frames() > 0 {
            let key = space.tier_key(no);
            self.shard_of(key).lock().remove(&self.core.frames, key);
        }
    }

    /// Notes that a page left its frame. The caller has it latched exclusively. True: its image is
    /// here.
    pub(crate) fn note_evicted(&self, key: Key) -> bool {
        self.core.image_frames() > 0
            && self.shard_of(key).lock().note_evicted(&self.core.frames, key)
    }

    /// Releases some of the tier's frames, if it has more than it may have. True: there are more.
    pub(crate) fn release_slice(&self) -> bool {
        let frames_max = self.frames_max(self.core.frames.limit());
        let mut left = RELEASE_SLICE;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let of_shard = frames_of_shard(shard.number(), frames_max);
            while shard.frames() > of_shard {
                if left == 0 {
                    return true;
                }
                left -= 1;
                shard.release_next(&self.core.frames);
                self.core.note_image_frame_released();
            }
            shard.shrink_index();
        }
        false
    }

    /// Gives a frame back that holds images. False: it holds none.
    pub(crate) fn release_frame(&self, frame: u32) -> bool {
        let descriptor = self.core.frames.descriptor(frame);
        let Some(number) = descriptor.tier_shard() else { return false };
        let mut shard = self.shards[number as usize].lock();
        // It may have been released, and be in use for something else.
        if descriptor.tier_shard() != Some(number) {
            return false;
        }
        shard.release(&self.core.frames, frame);
        self.core.note_image_frame_released();
        true
    }

    /// How many pages the pool holds in either form, as a multiple of its frames.
    pub(crate) fn reach_factor(&self) -> f64 {
        let tier = self.stats();
        if tier.frames == 0 {
            return 1.0;
        }
        let duplicates = self.duplicates().unwrap_or(DUPLICATES);
        let limit = f64::from(self.core.frames.limit().max(1));
        let pages = limit - tier.frames as f64;
        (pages_reached(pages, tier.images as f64, duplicates) / limit).max(1.0)
    }

    /// Images that the hands passed, and of these the ones whose page was resident.
    pub(crate) fn passed(&self) -> (u64, u64) {
        let passed = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.passed, shard.passed_resident)
        });
        passed.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
    }

    /// Panics unless the tier's invariants hold.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut frames = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.check(&self.core.frames);
            frames += shard.frames() as u32;
        }
        assert_eq!(frames, self.core.image_frames());
    }
}

/// The page's identity as the pool's spaces have it now.
impl Space {
    /// Whose image this is in the tier.
    pub(crate) fn tier_key(&self, no: u32) -> Key {
        Key { incarnation: self.incarnation(), no }
    }
}
