//! Explicit locks on single keys.
//!
//! A sharded hash table of queues, one queue a locked (tree, key): granted requests and waiting
//! ones, in order of arrival. A request is granted when it conflicts with no other owner's request
//! before it; an owner that strengthens its shared lock goes before all that wait. A release or a
//! withdrawal grants whatever it made grantable.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::LockMode;
use super::Locks;
use super::compact::{Insertion, QUEUED_LOCKS_MAX, RoomForLocks};
use super::owner::{Held, HeldKey, Owner};
use super::report::{Covers, LockRecord, LockRecords};
use crate::pause::{self, PausePoint};

const SHARDS: usize = 64;
/// A shard's map gives room back when it has more slots than this, and less than this part of
/// them is used.
const KEPT_SLOTS: usize = 1024;
const UNUSED_DIVISOR: usize = 8;

/// Where [`KeyLocks::make_implicit`] looks for a lock: a row is written soon after it was locked.
const NEWEST_LOCKS: usize = 32;

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquire {
    /// The lock is held now; true if it was not before.
    Granted(bool),
    /// The request is enqueued: let go of all latches, then call [`super::Locks::wait_for_key`].
    MustWait,
    /// The request conflicts, and waiting was not allowed. Nothing is enqueued.
    Conflict,
    /// A holder has just ended, or given up the lock, or come in: look at the entry again.
    Retry,
    /// Locks have taken all the memory that they may ([`super::Locks::check_room`]).
    NoRoom,
}

/// The owners of locks on a key that may be in no queue yet, and where they were found.
#[derive(Clone)]
pub enum Holders {
    /// The entry, which carries the owner's active transaction id. It does so as long as the leaf
    /// is latched, unless the owner ends.
    Writer(Arc<Owner>),
    /// Sets of compact locks. The owners may give theirs up without a latch.
    Compact(Vec<Arc<Owner>>),
}

impl Holders {
    pub fn owners(&self) -> &[Arc<Owner>] {
        match self {
            Holders::Writer(owner) => std::slice::from_ref(owner),
            Holders::Compact(owners) => owners,
        }
    }
}

struct Request {
    owner: Arc<Owner>,
    mode: LockMode,
    granted: bool,
    /// Number of the owner's wait, while not granted.
    wait: u64,
}

struct Queue {
    tree: u32,
    key: Box<[u8]>,
    /// Granted ones first.
    requests: Vec<Request>,
}

impl Queue {
    fn granted_to(&self, owner: &Owner) -> Option<usize> {
        self.requests.iter().position(|r| r.granted && r.owner.number() == owner.number())
    }

    fn waiting_of(&self, owner: &Owner) -> Option<usize> {
        self.requests.iter().position(|r| !r.granted && r.owner.number() == owner.number())
    }

    /// Whether the request at `at` conflicts with one before it.
    fn blocked(&self, at: usize) -> bool {
        let request = &self.requests[at];
        self.requests[..at].iter().any(|before| conflict(before, request))
    }

    /// Wakes those that wait behind a lock of `owner`'s that has just become this strong, or is
    /// asked for as strong, in front of them.
    fn pass(&self, owner: &Owner, mode: LockMode) {
        let waiting = self.requests.iter().filter(|r| !r.granted);
        waiting
            .filter(|r| r.owner.number() != owner.number() && r.mode.conflicts(mode))
            .for_each(|r| r.owner.pass());
    }

    /// Grants all that nothing blocks any more.
    fn grant(&mut self) {
        let mut at = self.requests.iter().take_while(|r| r.granted).count();
        while at < self.requests.len() {
            if self.blocked(at) {
                at += 1;
                continue;
            }
            // A shared request behind a waiting shared one passes no request that it conflicts
            // with.
            let mut request = self.requests.remove(at);
            request.granted = true;
            let wait = request.wait;
            let owner = Arc::clone(&request.owner);
            let granted = self.requests.iter().take_while(|r| r.granted).count();
            if let Some(held) = self.granted_to(&owner) {
                // A strengthened lock replaces the weaker one.
                let held = &mut self.requests[held];
                held.mode = held.mode.max(request.mode);
            } else {
                self.requests.insert(granted, request);
            }
            owner.grant(wait);
            at = self.requests.iter().take_while(|r| r.granted).count();
        }
    }
}

/// Longer queues are not checked: each check compares all pairs.
const CHECKED_MAX: usize = 16;

impl Queue {
    /// In a debug build: granted requests come first and do not conflict, and an owner has at most
    /// one that is granted and one that waits.
    fn check(&self) {
        if !cfg!(debug_assertions) || self.requests.len() > CHECKED_MAX {
            return;
        }
        let granted = self.requests.iter().take_while(|r| r.granted).count();
        let (granted, waiting) = self.requests.split_at(granted);
        assert!(waiting.iter().all(|r| !r.granted), "a granted request waits behind no other");
        for requests in [granted, waiting] {
            for (at, request) in requests.iter().enumerate() {
                let is_same = |r: &Request| r.owner.number() == request.owner.number();
                assert!(!requests[..at].iter().any(is_same), "an owner has one request of a kind");
            }
        }
        for (at, request) in granted.iter().enumerate() {
            assert!(
                !granted[..at].iter().any(|before| conflict(before, request)),
                "no two owners have locks that conflict"
            );
        }
    }
}

fn conflict(a: &Request, b: &Request) -> bool {
    a.owner.number() != b.owner.number() && a.mode.conflicts(b.mode)
}

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// Queues in the map. Written under the mutex; read without it by those whose latch keeps new
    /// ones away.
    count: AtomicUsize,
    /// Bytes of their keys. Written under the mutex.
    key_bytes: AtomicUsize,
    map: Mutex<HashMap<u32, Vec<Queue>, BuildHasherDefault<Spread>>>,
}

/// Hashes what is a hash already, except for the bits that all of a shard have in common: those
/// come out as different as the others.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("hashes are written as u32");
    }

    fn write_u32(&mut self, hash: u32) {
        // The product's upper half depends on all bits of the hash, and a map looks at the lower
        // half of this first.
        self.0 = u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

impl Shard {
    /// Runs `f` on the queue of (tree, key), which is made if `f` is to have one, and dropped if it
    /// is left empty.
    fn with<R>(
        &self,
        hash: u32,
        tree: u32,
        key: &[u8],
        create: bool,
        f: impl FnOnce(Option<&mut Queue>) -> R,
    ) -> R {
        let mut map = self.map.lock();
        if !create && !map.contains_key(&hash) {
            return f(None);
        }
        let bucket = map.entry(hash).or_default();
        let mut at = bucket.iter().position(|q| q.tree == tree && *q.key == *key);
        if at.is_none() && create {
            bucket.push(Queue { tree, key: key.into(), requests: Vec::new() });
            self.count.fetch_add(1, Ordering::SeqCst);
            self.key_bytes.fetch_add(key.len(), Ordering::Relaxed);
            at = Some(bucket.len() - 1);
        }
        let answer = f(at.map(|at| &mut bucket[at]));
        if let Some(at) = at {
            bucket[at].check();
            if bucket[at].requests.is_empty() {
                bucket.swap_remove(at);
                self.count.fetch_sub(1, Ordering::SeqCst);
                self.key_bytes.fetch_sub(key.len(), Ordering::Relaxed);
            }
        }
        if bucket.is_empty() {
            map.remove(&hash);
            // Else one transaction that has locked millions of rows leaves room for as many, for
            // good.
            if map.capacity() > KEPT_SLOTS && map.len() < map.capacity() / UNUSED_DIVISOR {
                let slots = (2 * map.len()).max(KEPT_SLOTS / 2);
                map.shrink_to(slots);
            }
        }
        answer
    }
}

/// The table of key locks.
pub struct KeyLocks {
    shards: Box<[Shard]>,
}

/// What a lock takes beside its key: the queue with a place in its bucket, room for four requests
/// (the least that a vector makes), the map's slot, and the entry in its owner's list.
const LOCK_BYTES: usize = size_of::<Queue>() + 4 * size_of::<Request>() + 96;

impl Default for KeyLocks {
    fn default() -> Self {
        KeyLocks { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl KeyLocks {
    /// Memory of the locks held, about, bytes. A key is in its queue and in its owner's list.
    pub fn memory_bytes(&self) -> u64 {
        let of = |shard: &Shard| {
            let keys = shard.key_bytes.load(Ordering::Relaxed);
            shard.count.load(Ordering::Relaxed) * LOCK_BYTES + 2 * keys
        };
        (size_of_val(&*self.shards) + self.shards.iter().map(of).sum::<usize>()) as u64
    }

    fn shard(&self, tree: u32, key: &[u8]) -> (&Shard, u32) {
        let hash = crc32c::crc32c_append(tree.wrapping_mul(0x9E37_79B1), key);
        (&self.shards[hash as usize % SHARDS], hash)
    }

    /// Tests for locks that forbid `owner` to write the entry, under the leaf's exclusive latch;
    /// takes no lock when there is nothing to wait behind.
    pub fn acquire_for_write(
        &self,
        owner: &Arc<Owner>,
        tree: u32,
        key: &[u8],
        wait: bool,
    ) -> Acquire {
        let (shard, hash) = self.shard(tree, key);
        if shard.count.load(Ordering::SeqCst) == 0 {
            return Acquire::Granted(false);
        }
        let mut held = owner.held.lock();
        shard.with(hash, tree, key, false, |queue| match queue {
            None => Acquire::Granted(false),
            Some(queue) => enqueue(queue, owner, &mut held, LockMode::Exclusive, wait),
        })
    }

    /// Whether `owner` holds at least `mode`.
    pub fn holds(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> bool {
        let (shard, hash) = self.shard(tree, key);
        if shard.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        shard.with(hash, tree, key, false, |queue| {
            queue.is_some_and(|q| q.granted_to(owner).is_some_and(|at| q.requests[at].mode >= mode))
        })
    }

    /// Gives up one key's lock, if it is in the table.
    pub(super) fn unlock(&self, owner: &Arc<Owner>, tree: u32, key: &[u8]) {
        owner.forget(tree, key);
        self.release(owner, tree, key);
    }

    /// Weakens a lock that this operation took more strongly than it turned out to need; to nothing
    /// with [`LockMode::None`].
    pub fn weaken(&self, owner: &Arc<Owner>, tree: u32, key: &[u8], mode: LockMode) {
        if mode == LockMode::None {
            return self.unlock(owner, tree, key);
        }
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, false, |queue| {
            let Some(queue) = queue else { return };
            if let Some(at) = queue.granted_to(owner) {
                queue.requests[at].mode = queue.requests[at].mode.min(mode);
                queue.grant();
            }
        });
    }

    /// Copies all locks, shard by shard.
    pub(super) fn report(&self, out: &mut LockRecords) {
        for shard in &self.shards {
            if shard.count.load(Ordering::Relaxed) == 0 || out.is_full() {
                continue;
            }
            for queue in shard.map.lock().values().flatten() {
                for (at, request) in queue.requests.iter().enumerate() {
                    let before = queue.requests[..at].iter().filter(|r| conflict(r, request));
                    out.push(LockRecord {
                        owner: Arc::clone(&request.owner),
                        tree: queue.tree,
                        mode: request.mode,
                        granted: request.granted,
                        covers: Covers::Key(queue.key.clone()),
                        blockers: match request.granted {
                            true => Vec::new(),
                            false => before.map(|r| Arc::clone(&r.owner)).collect(),
                        },
                    });
                }
            }
        }
    }

    /// Slots that the shards' maps have, used or not.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.shards.iter().map(|shard| shard.map.lock().capacity()).sum()
    }

    /// Locked keys.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.count.load(Ordering::Relaxed)).sum()
    }

    /// Whether nothing is locked.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives `holder` the explicit lock that its implicit one stands for; false if it has ended.
    pub(crate) fn make_explicit(&self, holder: &Arc<Owner>, tree: u32, key: &[u8]) -> bool {
        let mut held = holder.held.lock();
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, true, |queue| {
            let mode = LockMode::Exclusive;
            give_explicit(queue.expect("made on demand"), holder, &mut held, mode)
        })
    }

    /// To be called when `owner` has just written the entry, still under the leaf's exclusive
    /// latch: what it held explicitly, the entry's implicit lock says as well. The explicit one
    /// goes, so that an UPDATE of a million rows does not keep a million locks; unless somebody
    /// else is in the queue, or the lock is not one of the newest (looking for it would cost more
    /// than it takes up).
    pub fn make_implicit(&self, owner: &Owner, tree: u32, key: &[u8]) {
        let (shard, hash) = self.shard(tree, key);
        if shard.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut held = owner.held.lock();
        let newest = held.keys.len().saturating_sub(NEWEST_LOCKS);
        let same = |held: &HeldKey| held.tree == tree && *held.key == *key;
        let Some(at) = held.keys[newest..].iter().rposition(same) else { return };
        let gone = shard.with(hash, tree, key, false, |queue| match queue {
            Some(Queue { requests, .. })
                if matches!(&requests[..], [mine] if mine.granted && mine.owner.number() == owner.number()) =>
            {
                requests.clear();
                true
            }
            _ => false,
        });
        if gone {
            held.keys.swap_remove(newest + at);
        }
    }

    /// Takes `owner`'s requests off the queue and grants what that allows.
    pub(super) fn release(&self, owner: &Owner, tree: u32, key: &[u8]) {
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, false, |queue| {
            if let Some(queue) = queue {
                queue.requests.retain(|r| r.owner.number() != owner.number());
                queue.grant();
            }
        });
    }

    /// Takes back a request that still waits.
    pub(super) fn withdraw(&self, owner: &Owner, tree: u32, key: &[u8]) {
        let mut held = owner.held.lock();
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, false, |queue| {
            let Some(queue) = queue else { return };
            if let Some(at) = queue.waiting_of(owner) {
                queue.requests.remove(at);
                if queue.granted_to(owner).is_none()
                    && let Some(at) =
                        held.keys.iter().rposition(|l| l.tree == tree && *l.key == *key)
                {
                    held.keys.swap_remove(at);
                }
                queue.grant();
            }
        });
    }

    /// Whom `owner`, which waits for this key, waits for.
    pub(super) fn blockers(&self, owner: &Owner, tree: u32, key: &[u8]) -> Vec<Arc<Owner>> {
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, false, |queue| {
            let Some(queue) = queue else { return Vec::new() };
            let Some(at) = queue.waiting_of(owner) else { return Vec::new() };
            let request = &queue.requests[at];
            let before = queue.requests[..at].iter();
            before.filter(|r| conflict(r, request)).map(|r| Arc::clone(&r.owner)).collect()
        })
    }

    /// The same, except those that a nearer one waits for as well: in front of a waiting exclusive
    /// request there is none that its owner does not wait for. `is_known` says of whom it is known
    /// that he waits.
    pub(super) fn nearest_blockers(
        &self,
        owner: &Owner,
        tree: u32,
        key: &[u8],
        is_known: impl Fn(&Owner) -> bool,
    ) -> Vec<Arc<Owner>> {
        let (shard, hash) = self.shard(tree, key);
        shard.with(hash, tree, key, false, |queue| {
            let Some(queue) = queue else { return Vec::new() };
            let Some(at) = queue.waiting_of(owner) else { return Vec::new() };
            let request = &queue.requests[at];
            let mut nearest = Vec::new();
            for before in queue.requests[..at].iter().rev().filter(|r| conflict(r, request)) {
                nearest.push(Arc::clone(&before.owner));
                let is_exclusive = before.mode == LockMode::Exclusive;
                if !before.granted && is_exclusive && is_known(&before.owner) {
                    break;
                }
            }
            nearest
        })
    }
}

impl Locks {
    /// Asks for a lock, under a latch on the entry's leaf. `holders` are others that have written
    /// the entry, or keep it locked: they are given the explicit locks that correspond, before the
    /// request is enqueued and in the same critical section, so that the request finds the locks
    /// whatever the holders are about to do. With `wait` false nothing is enqueued on a conflict.
    /// An owner that has many locks gets this one among its compact ones.
    pub fn acquire(
        &self,
        owner: &Arc<Owner>,
        (tree, key): (u32, &[u8]),
        mode: LockMode,
        holders: Option<&Holders>,
        wait: bool,
    ) -> Acquire {
        debug_assert_ne!(mode, LockMode::None);
        match holders {
            None => self.acquire_unheld(owner, (tree, key), mode, wait),
            Some(_) if !wait => Acquire::Conflict,
            Some(holders) => self.acquire_behind(owner, (tree, key), mode, holders),
        }
    }

    /// [`Self::acquire`] where no other owner was seen to hold the key other than in its queue.
    fn acquire_unheld(
        &self,
        owner: &Arc<Owner>,
        (tree, key): (u32, &[u8]),
        mode: LockMode,
        wait: bool,
    ) -> Acquire {
        let (shard, hash) = self.keys.shard(tree, key);
        let mut held = owner.held.lock();
        let many = held.keys.len() >= QUEUED_LOCKS_MAX;
        let place = (many || held.compact.is_some()).then(|| self.compact.place_of(tree, key));
        let kept = place.map_or(LockMode::None, |place| held.mode_kept(place));
        // As strong as is asked for, and not for the present read to give up.
        if kept >= mode {
            return Acquire::Granted(false);
        }
        let answer = shard.with(hash, tree, key, !many, |queue| {
            // Another reader, which has latched the leaf as this one has, may have come between.
            if !self.compact.holders(owner, tree, key, mode).is_empty() {
                return Acquire::Retry;
            }
            if let Some(queue) = queue {
                return enqueue(queue, owner, &mut held, mode, wait);
            }
            let place = place.unwrap_or_else(|| self.compact.place_of(tree, key));
            let room = RoomForLocks::UpTo(&|| self.room_for_compact());
            match self.compact.insert(owner, &mut held, (place, mode), room) {
                Insertion::Locked => Acquire::Granted(true),
                Insertion::Ended => Acquire::Retry,
                Insertion::NoRoom => Acquire::NoRoom,
            }
        });
        match answer {
            Acquire::Granted(fresh) => Acquire::Granted(fresh && kept == LockMode::None),
            other => other,
        }
    }

    /// [`Self::acquire`] where others hold the key, and this one may wait for them.
    fn acquire_behind(
        &self,
        owner: &Arc<Owner>,
        (tree, key): (u32, &[u8]),
        mode: LockMode,
        holders: &Holders,
    ) -> Acquire {
        let (shard, hash) = self.keys.shard(tree, key);
        let holders_now = || self.compact.holders(owner, tree, key, mode);
        let mut lists = HeldLists::lock(owner, holders.owners());
        shard.with(hash, tree, key, true, |queue| {
            let queue = queue.expect("made on demand");
            match holders {
                Holders::Writer(writer) => {
                    let held = lists.of(writer);
                    if !give_explicit(queue, writer, held, LockMode::Exclusive) {
                        return Acquire::Retry;
                    }
                }
                Holders::Compact(keepers) => {
                    let is_seen = |one: &Arc<Owner>| {
                        keepers.iter().any(|keeper| keeper.number() == one.number())
                    };
                    // The list of one that has come in since is not locked.
                    if !holders_now().iter().all(is_seen) {
                        return Acquire::Retry;
                    }
                    let place = self.compact.place_of(tree, key);
                    let mut is_held = false;
                    for keeper in keepers {
                        let held = lists.of(keeper);
                        // A transaction that has locked the key since a compact lock was given up
                        // must not find the giver in front again. (The set is written under
                        // `held`.)
                        let kept = held.mode_kept(place);
                        if kept.conflicts(mode) {
                            is_held |= give_explicit(queue, keeper, held, kept);
                        }
                    }
                    if !is_held {
                        return Acquire::Retry;
                    }
                }
            }
            pause::reach(PausePoint::HolderMadeExplicit);
            enqueue(queue, owner, lists.of(owner), mode, true)
        })
    }
}

/// The lists of an owner and of others, all of them locked.
struct HeldLists<'o>(Vec<(u64, MutexGuard<'o, Held>)>);

impl<'o> HeldLists<'o> {
    /// Locks them in the order of their owners' numbers.
    fn lock(owner: &'o Owner, others: &'o [Arc<Owner>]) -> Self {
        let mut owners: Vec<&Owner> = others.iter().map(Arc::as_ref).collect();
        owners.push(owner);
        owners.sort_unstable_by_key(|owner| owner.number());
        debug_assert!(owners.is_sorted_by(|a, b| a.number() < b.number()), "one list twice");
        HeldLists(owners.iter().map(|owner| (owner.number(), owner.held.lock())).collect())
    }

    fn of(&mut self, owner: &Owner) -> &mut Held {
        let list = self.0.iter_mut().find(|(number, _)| *number == owner.number());
        &mut list.expect("its list is locked").1
    }
}

/// Grants `holder` the lock that it has other than by a queue; false if it has ended.
fn give_explicit(queue: &mut Queue, holder: &Arc<Owner>, held: &mut Held, mode: LockMode) -> bool {
    if let Some(at) = queue.granted_to(holder) {
        if queue.requests[at].mode < mode {
            queue.requests[at].mode = mode;
            queue.pass(holder, mode);
        }
        return true;
    }
    // If it waits to strengthen the lock, the key was remembered then.
    let alive = match queue.waiting_of(holder) {
        Some(_) => !held.has_ended(),
        None => Owner::remember(held, queue.tree, &queue.key),
    };
    if !alive {
        return false;
    }
    // Before all that wait: this lock is older.
    let owner = Arc::clone(holder);
    queue.requests.insert(0, Request { owner, mode, granted: true, wait: 0 });
    queue.pass(holder, mode);
    true
}

fn enqueue(
    queue: &mut Queue,
    owner: &Arc<Owner>,
    held: &mut Held,
    mode: LockMode,
    wait: bool,
) -> Acquire {
    let mine = queue.granted_to(owner);
    if let Some(at) = mine {
        if queue.requests[at].mode >= mode {
            return Acquire::Granted(false);
        }
        let alone = !queue
            .requests
            .iter()
            .any(|r| r.granted && r.owner.number() != owner.number() && r.mode.conflicts(mode));
        if alone {
            queue.requests[at].mode = mode;
            queue.pass(owner, mode);
            return Acquire::Granted(false);
        }
    }
    debug_assert!(queue.waiting_of(owner).is_none(), "one request at a time");
    let granted = queue.requests.iter().take_while(|r| r.granted).count();
    // A transaction that strengthens a lock it holds waits for the other holders only.
    let at = if mine.is_some() { granted } else { queue.requests.len() };
    let mut request = Request { owner: Arc::clone(owner), mode, granted: false, wait: 0 };
    let blocked = queue.requests[..at].iter().any(|before| conflict(before, &request));
    if blocked && !wait {
        return Acquire::Conflict;
    }
    if mine.is_none() {
        let alive = Owner::remember(held, queue.tree, &queue.key);
        assert!(alive, "a transaction that has ended asks for a lock");
    }
    if blocked {
        request.wait = owner.announce_wait();
        queue.requests.insert(at, request);
        if mine.is_some() {
            queue.pass(owner, mode);
        }
        return Acquire::MustWait;
    }
    request.granted = true;
    queue.requests.insert(granted, request);
    Acquire::Granted(true)
}
