//! What all transactions share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidepool_pool::page::{page_type, tree_id};
use tidepool_pool::{Access, Lsn, PageType, ShardedCounters, Space};

use super::activity::{Observed, Phase};
use super::core::TransactionCore;
use super::purge::{PassedOver, PurgeThread};
use super::retry::{RETRY_PAUSE, RetryState};
use super::view::Views;
use super::{TransactionOptions, TrxStatus};
use crate::btree::Tree;
use crate::csn::{Csn, CsnTable, TrxId};
use crate::env::{Env, FoundSpace};
use crate::error::{Error, Remedy, Result};
use crate::files::{UNDO_FILE, UNDO_SPACE};
use crate::format::entry::RollPointer;
use crate::format::space_header;
use crate::lock::{Interrupt, Locks, Owner};
use crate::memory::MemoryRow;
use crate::mtr::Mtr;
use crate::padded::Padded;
use crate::space;
use crate::undo::LogState;
use crate::undo::damage::{Doubt, is_damage};
use crate::undo::log::UndoLog;
use crate::undo::open::Found;
use crate::undo::record::Place;
use crate::undo::stream::Undo;

/// Ids reserved at a time; a restart skips at most this many.
const ID_BATCH: u64 = 1 << 14;
/// Less than this is kept for the next life.
const UNDO_GIVEN_BACK_BYTES: usize = 1 << 20;
/// Shards of the map of active transactions.
const ACTIVE_SHARDS: usize = 64;

/// A transaction that no session runs: found by recovery, detached, or left by a rollback that
/// could not finish.
pub(super) struct Orphan {
    pub log: UndoLog,
    pub owner: Arc<Owner>,
    /// Under which it is prepared, or was when its rollback began; empty if it never was.
    pub xid: Vec<u8>,
    /// What its rollback has met.
    pub retries: RetryState,
}

/// Trees that are being freed, or wait for it: what undo says of them is passed over. Ids are never
/// used again.
#[derive(Default)]
struct Condemned {
    trees: HashSet<u32>,
    /// By space: of the trees with ids below the limit, all but these.
    all_but: HashMap<u32, (u32, Vec<u32>)>,
}

impl Condemned {
    fn has(&self, place: &Place<'_>) -> bool {
        self.trees.contains(&place.tree)
            || self
                .all_but
                .get(&place.space)
                .is_some_and(|(limit, spared)| place.tree < *limit && !spared.contains(&place.tree))
    }
}

/// Switches that may change while transactions run.
pub(crate) struct Settings {
    pub flush_log_at_trx_commit: AtomicU8,
    pub lock_wait_timeout_ms: AtomicU64,
    pub lost_update_check: AtomicBool,
    pub max_purge_lag: AtomicU64,
    /// 0 = a second.
    pub max_purge_lag_delay_us: AtomicU64,
    /// The unit of the pauses in [`super::retry`].
    pub retry_pause_us: AtomicU64,
}

/// Owners of active transaction ids.
type Active = HashMap<u64, Arc<Owner>>;

/// The transaction system of an engine.
pub struct TrxSystem {
    pub(crate) env: Arc<Env>,
    pub(crate) undo: Undo,
    pub(crate) csn: CsnTable,
    pub(crate) views: Views,
    pub(crate) locks: Locks,
    pub(crate) settings: Settings,
    /// Every id handed out is below; what the directory says.
    id_limit: Mutex<u64>,
    next_owner: AtomicU64,
    active: Box<[Padded<Mutex<Active>>]>,
    /// Of all prepared transactions, with a session or without, from their prepare until their end
    /// is in the log.
    pub(super) xids: Mutex<HashSet<Vec<u8>>>,
    /// Prepared, but under which XID can't be read: they stay as they are.
    unnamed: Mutex<Vec<Orphan>>,
    /// What broken pages of the undo space leave unknown, if there are any.
    doubt: Option<Doubt>,
    /// What the directory says: every transaction below has ended.
    ended_below: Mutex<u64>,
    /// To be rolled back.
    pub(super) doomed: Mutex<Vec<Orphan>>,
    /// Prepared, by XID, without a session.
    pub(super) prepared: Mutex<BTreeMap<Vec<u8>, Orphan>>,
    condemned: RwLock<Condemned>,
    /// Shared while a step of purge or of a background rollback touches tables.
    pub(super) tables: RwLock<()>,
    /// One purge at a time.
    pub(super) purging: Mutex<()>,
    pub(super) purge_thread: PurgeThread,
    pub(super) passed_over: PassedOver,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    /// Commits and rollbacks.
    ends: ShardedCounters<2>,
    pub purged_logs: AtomicU64,
    pub purged_entries: AtomicU64,
    pub settled_entries: AtomicU64,
    pub purge_errors: AtomicU64,
}

impl Counters {
    const COMMITS: usize = 0;
    const ROLLBACKS: usize = 1;

    pub fn count_commit(&self) {
        self.ends.add(Self::COMMITS, 1);
    }

    pub fn count_rollback(&self) {
        self.ends.add(Self::ROLLBACKS, 1);
    }
}

/// Keeps purge and background rollbacks out of the tables: see [`TrxSystem::exclude_purge`].
pub struct PurgeExclusion<'a>(
    #[expect(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>,
);

impl TrxSystem {
    /// Makes the undo space of a new data directory, unless a crash came after that, and opens the
    /// transaction system.
    pub fn create(env: &Arc<Env>) -> Result<Arc<TrxSystem>> {
        let space = env.space(UNDO_SPACE)?;
        if is_unmade(env, &space)? {
            // One mini-transaction: a crash leaves all of it or nothing.
            let mut mtr = Mtr::begin(env)?;
            space::create(&mut mtr, env, &space)?;
            Undo::create(&mut mtr, &space)?;
            mtr.commit();
        }
        Self::open(env)
    }

    /// Opens the transaction system of a recovered environment.
    pub fn open(env: &Arc<Env>) -> Result<Arc<TrxSystem>> {
        if !env.storage().exists(UNDO_FILE)? {
            return Err(Error::lost(UNDO_FILE, "missing", Remedy::PutBack));
        }
        let space = env.space(UNDO_SPACE)?;
        if is_unmade(env, &space)? {
            // A new one would give transaction ids a second time, and what is unfinished would pass
            // for committed.
            return Err(Error::lost(
                space.name(),
                "there is no undo log in it, though the data directory is not new",
                Remedy::PutBack,
            ));
        }
        space_header::read(env.pool(), &space)?.check(
            space.name(),
            env.page_size(),
            UNDO_SPACE,
            &env.instance(),
        )?;
        let (undo, found) = Undo::open(env, &space)?;
        Self::start(env, undo, found)
    }

    /// One that has not looked into the undo space, which may be missing: all transactions count as
    /// committed. For reading only; `any` space is in the place of the undo space, and never asked.
    pub fn open_without_undo(env: &Arc<Env>, any: &Arc<Space>) -> Result<Arc<TrxSystem>> {
        assert!(env.is_read_only(), "what is unfinished must not be written over");
        let found = Found { trx_id_limit: TrxId::MAX.0, ..Found::default() };
        Self::start(env, Undo::empty(env, any), found)
    }

    fn start(env: &Arc<Env>, undo: Undo, found: Found) -> Result<Arc<TrxSystem>> {
        let active: Vec<TrxId> = found.open.iter().map(|log| log.record.trx_id).collect();
        let newest = Csn(found.newest_csn.max(Csn::FIRST.0));
        let system = Arc::new(TrxSystem {
            env: Arc::clone(env),
            undo,
            csn: CsnTable::new(TrxId(found.trx_id_limit), newest, &active),
            views: Views::default(),
            // As much as the pool: what locks take the governor takes from the pool, so that they
            // are at most half of the memory.
            locks: Locks::new(Arc::clone(env.failure()), {
                let pool = Arc::clone(env.pool_handle());
                move || pool.size_limit_bytes()
            }),
            settings: Settings {
                flush_log_at_trx_commit: AtomicU8::new(1),
                lock_wait_timeout_ms: AtomicU64::new(50_000),
                lost_update_check: AtomicBool::new(true),
                max_purge_lag: AtomicU64::new(0),
                max_purge_lag_delay_us: AtomicU64::new(0),
                retry_pause_us: AtomicU64::new(RETRY_PAUSE.as_micros() as u64),
            },
            id_limit: Mutex::new(found.trx_id_limit),
            next_owner: AtomicU64::new(1),
            active: (0..ACTIVE_SHARDS).map(|_| Padded::default()).collect(),
            xids: Mutex::default(),
            unnamed: Mutex::default(),
            doubt: Some(found.doubt).filter(|doubt| !doubt.is_empty()),
            ended_below: Mutex::new(found.ended_below),
            doomed: Mutex::default(),
            prepared: Mutex::default(),
            condemned: RwLock::default(),
            tables: RwLock::new(()),
            purging: Mutex::new(()),
            purge_thread: PurgeThread::default(),
            passed_over: PassedOver::default(),
            counters: Counters::default(),
        });
        for log in &found.open {
            let mut orphan = Orphan {
                log: UndoLog::recovered(log),
                owner: system.new_owner(Arc::new(Interrupt::default())),
                xid: Vec::new(),
                retries: RetryState::default(),
            };
            system.enter(&orphan.owner, log.record.trx_id);
            if log.record.state == LogState::Prepared {
                match system.xid_of(&orphan) {
                    Ok(xid) => {
                        orphan.xid.clone_from(&xid);
                        system.xids.lock().insert(xid.clone());
                        system.prepared.lock().insert(xid, orphan);
                    }
                    Err(error) if is_damage(&error) => {
                        tracing::error!(
                            "a prepared transaction can be neither committed nor rolled back, for its XID can't be read, and \
                             keeps its locks: {error}"
                        );
                        orphan.owner.set_blocked(error);
                        system.unnamed.lock().push(orphan);
                    }
                    Err(error) => return Err(error),
                }
            } else {
                system.doomed.lock().push(orphan);
            }
        }
        Ok(system)
    }

    /// Begins a transaction.
    pub fn begin(self: &Arc<Self>, options: TransactionOptions) -> TransactionCore {
        TransactionCore::new(Arc::clone(self), options, Arc::new(Interrupt::default()))
    }

    /// Whether it is not known if the transaction that wrote an entry was committed: see
    /// [`crate::undo::damage`].
    #[inline]
    pub(crate) fn is_in_doubt(&self, id: TrxId, roll: RollPointer) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| doubt.covers(id, roll))
    }

    /// An error if that is so.
    #[inline]
    pub(crate) fn check_not_in_doubt(&self, id: TrxId, roll: RollPointer) -> Result<()> {
        match &self.doubt {
            Some(doubt) if doubt.covers(id, roll) => Err(doubt.error(id, roll)),
            _ => Ok(()),
        }
    }

    /// Stores which transactions have ended, if that is more than is stored: the less remains, the
    /// less a broken undo page leaves in doubt. Now and then, and at a clean close. Not as long as
    /// anything is in doubt: later lives must find the same.
    pub(crate) fn note_ended(&self) -> Result<()> {
        if self.doubt.is_some() {
            return Ok(());
        }
        let mut stored = self.ended_below.lock();
        let ended_below = self.csn.low().0;
        if ended_below > *stored {
            self.undo.store_ended_below(ended_below)?;
            *stored = ended_below;
        }
        Ok(())
    }

    /// Keeps purge and background rollbacks out of the tables while it lives: hold it while a
    /// table's space is dropped or a tree is freed. Undo that refers to what is gone is skipped
    /// later.
    pub fn exclude_purge(&self) -> PurgeExclusion<'_> {
        PurgeExclusion(self.tables.write())
    }

    /// Keeps purge and background rollbacks out of these trees from now on: they are about to be
    /// freed.
    pub(crate) fn condemn_trees(&self, trees: impl IntoIterator<Item = u32>) {
        self.condemned.write().trees.extend(trees);
        // Who is in one of them has come out when this is had.
        drop(self.exclude_purge());
    }

    /// The same of the trees in a space with ids below `limit`, except `spared`: of those that wait
    /// to be freed it is not known which they are. Before purge and rollbacks begin.
    pub(crate) fn condemn_all_trees_but(&self, space: u32, limit: u32, spared: Vec<u32>) {
        self.condemned.write().all_but.insert(space, (limit, spared));
    }

    /// Transactions that a background rollback has still to finish.
    pub fn rollbacks_pending(&self) -> usize {
        self.doomed.lock().len()
    }

    pub(super) fn enter_tables(&self) -> RwLockReadGuard<'_, ()> {
        self.tables.read()
    }

    /// What a commit waits for: 0, 1, 2 with InnoDB's meaning.
    pub fn set_flush_log_at_trx_commit(&self, value: u8) {
        self.settings.flush_log_at_trx_commit.store(value, Ordering::Relaxed);
    }

    /// How long transactions begun from now on wait for a lock.
    pub fn set_lock_wait_timeout(&self, timeout: Duration) {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.settings.lock_wait_timeout_ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn lock_wait_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.lock_wait_timeout_ms.load(Ordering::Relaxed))
    }

    /// The first pause of the background before it tries a rollback again.
    pub(super) fn retry_pause(&self) -> Duration {
        Duration::from_micros(self.settings.retry_pause_us.load(Ordering::Relaxed))
    }

    /// At a clean close: gives back what a long history has left free in the undo space.
    pub(crate) fn shrink_undo(&self) -> Result<()> {
        let _no_purge = self.purging.lock();
        let pages = self.undo.shrink((UNDO_GIVEN_BACK_BYTES / self.env.page_size()) as u32)?;
        if pages > 0 {
            tracing::info!(pages, "the undo space is shorter");
        }
        Ok(())
    }

    /// Whether deadlocks are looked for; if not, the timeout ends them.
    pub fn set_deadlock_detect(&self, detect: bool) {
        self.locks.set_deadlock_detect(detect);
    }

    /// Whether overwriting what the snapshot does not see is an error at REPEATABLE READ.
    pub fn set_lost_update_check(&self, on: bool) {
        self.settings.lost_update_check.store(on, Ordering::Relaxed);
    }

    /// History length above which writers are delayed; 0 = never.
    pub fn set_max_purge_lag(&self, logs: u64) {
        self.settings.max_purge_lag.store(logs, Ordering::Relaxed);
    }

    /// The longest such delay; zero = a second.
    pub fn set_max_purge_lag_delay(&self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.settings.max_purge_lag_delay_us.store(us, Ordering::Relaxed);
    }

    /// What happens at the moment.
    pub fn status(&self) -> TrxStatus {
        let locks = &self.locks.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrxStatus {
            history_len: self.undo.history_len(),
            active_writers: self.active.iter().map(|shard| shard.lock().len() as u64).sum(),
            read_views: self.views.count() as u64,
            next_trx_id: self.csn.next_id().0,
            newest_csn: self.csn.published().0,
            commits: self.counters.ends.get(Counters::COMMITS),
            rollbacks: self.counters.ends.get(Counters::ROLLBACKS),
            purged_logs: get(&self.counters.purged_logs),
            purged_entries: get(&self.counters.purged_entries),
            settled_entries: get(&self.counters.settled_entries),
            lock_waits: get(&locks.waits),
            lock_timeouts: get(&locks.timeouts),
            deadlocks: get(&locks.deadlocks),
            lock_wait_micros: get(&locks.wait_micros),
            lock_waits_current: get(&locks.waiting),
            key_locks: (self.locks.keys.len() + self.locks.compact.len()) as u64,
            range_locks: self.locks.ranges.len() as u64,
            undo_streams: self.undo.stream_count().into(),
            rollbacks_pending: self.doomed.lock().len() as u64,
            prepared: self.prepared.lock().len() as u64,
            trx_state_chunks: self.csn.live_chunks() as u64,
        }
    }

    /// What the memory of transactions goes to.
    pub(crate) fn memory(&self) -> [MemoryRow; 3] {
        let streams = self.undo.memory_bytes();
        [
            MemoryRow { name: "lock_table", bytes: self.locks.memory_bytes(), bound_bytes: None },
            MemoryRow {
                name: "trx_states",
                bytes: self.csn.memory_bytes(),
                bound_bytes: Some(CsnTable::MEMORY_MAX_BYTES),
            },
            MemoryRow { name: "undo_streams", bytes: streams, bound_bytes: Some(streams) },
        ]
    }

    /// Transactions at this moment: those of sessions, then writers that no session runs (prepared,
    /// detached, being rolled back, changes of definitions).
    pub(crate) fn observe(&self, of_sessions: Vec<Observed>) -> Vec<Observed> {
        let mut all = of_sessions;
        let prepared: Vec<u64> =
            self.prepared.lock().values().map(|orphan| orphan.owner.number()).collect();
        let doomed: Vec<u64> =
            self.doomed.lock().iter().map(|orphan| orphan.owner.number()).collect();
        let listed: HashSet<u64> = all.iter().map(|one| one.owner.number()).collect();
        for shard in &self.active {
            for owner in shard.lock().values().filter(|owner| !listed.contains(&owner.number())) {
                let phase = match owner.number() {
                    number if prepared.contains(&number) => Phase::Prepared,
                    number if doomed.contains(&number) => Phase::RollingBack,
                    _ => Phase::Running,
                };
                all.push(Observed {
                    session: 0,
                    started_at: None,
                    phase,
                    isolation: None,
                    tables: 0,
                    owner: Arc::clone(owner),
                });
            }
        }
        all
    }

    pub(super) fn new_owner(&self, interrupt: Arc<Interrupt>) -> Arc<Owner> {
        Owner::new(self.owner_numbers(1).start, interrupt)
    }

    /// `count` numbers that no other owner has.
    pub(super) fn owner_numbers(&self, count: u64) -> Range<u64> {
        let first = self.next_owner.fetch_add(count, Ordering::Relaxed);
        first..first + count
    }

    /// Gives `owner` a transaction id.
    pub(super) fn assign_id(&self, owner: &Arc<Owner>) -> Result<TrxId> {
        let id = loop {
            if let Some(id) = self.csn.assign_ready() {
                break id;
            }
            let mut limit = self.id_limit.lock();
            if let Some(id) = self.csn.assign(TrxId(*limit), || self.views.bounds()) {
                break id;
            }
            // Stored before any of them is used. No thread waits for this lock with a latch held.
            let raised = *limit + ID_BATCH;
            if raised > TrxId::MAX.0 {
                return Err(Error::Crashed("all transaction ids are used up".into()));
            }
            self.undo.raise_trx_id_limit(raised)?;
            *limit = raised;
            self.note_ended()?;
        };
        self.enter(owner, id);
        Ok(id)
    }

    fn enter(&self, owner: &Arc<Owner>, id: TrxId) {
        owner.set_trx_id(id);
        self.active[id.0 as usize % ACTIVE_SHARDS].lock().insert(id.0, Arc::clone(owner));
    }

    /// The owner of an active id; none if it has just ended.
    pub(crate) fn owner_of(&self, id: TrxId) -> Option<Arc<Owner>> {
        self.active[id.0 as usize % ACTIVE_SHARDS].lock().get(&id.0).cloned()
    }

    /// Releases the locks of a transaction whose outcome is published.
    pub(super) fn leave(&self, owner: &Arc<Owner>) {
        let id = owner.trx_id();
        if id != TrxId::NONE {
            self.active[id.0 as usize % ACTIVE_SHARDS].lock().remove(&id.0);
        }
        self.locks.release_all(owner);
    }

    /// Waits for the log as the settings say.
    pub(super) fn flush_commit(&self, lsn: Lsn) -> Result<()> {
        match self.settings.flush_log_at_trx_commit.load(Ordering::Relaxed) {
            0 => Ok(()),
            2 => self.env.redo().write_to(lsn),
            _ => self.env.redo().flush_to(lsn),
        }
    }

    /// The space of the tree that an undo record speaks of; gone if the tree is about to be freed.
    pub(super) fn find_space_of(&self, place: &Place<'_>) -> Result<FoundSpace> {
        match self.condemned.read().has(place) {
            true => Ok(FoundSpace::Gone),
            false => self.env.find_space(place.space),
        }
    }

    /// The tree an undo record speaks of; none if it has been dropped. A file that is missing or
    /// zeroed is no dropped one.
    pub(super) fn tree_at(&self, place: &Place<'_>) -> Result<Option<Tree>> {
        if self.condemned.read().has(place) {
            return Ok(None);
        }
        match self.env.space_unless_dropped(place.space)? {
            Some(space) => self.tree_in(&space, place),
            None => Ok(None),
        }
    }

    /// The same, of a space that is there.
    pub(super) fn tree_in(&self, space: &Arc<Space>, place: &Place<'_>) -> Result<Option<Tree>> {
        let root = self.env.pool().shared(space, place.root, Access::Normal)?;
        if root.page_lsn() == Lsn::ZERO && self.env.has_registered_space(place.space) {
            let why = "the root of a tree was there, and nothing is now";
            return Err(Error::corrupt(space.name(), place.root, why));
        }
        let is_node = matches!(page_type(&root), PageType::TREE_LEAF | PageType::TREE_INNER);
        let is_it = is_node && tree_id(&root) == place.tree;
        Ok(is_it.then(|| Tree::open(&self.env, space, place.root, place.tree)))
    }
}

/// Whether the undo space has not got its first pages yet, or has lost them.
fn is_unmade(env: &Env, space: &Space) -> Result<bool> {
    let page = env.pool().shared(space, 0, Access::Normal)?;
    Ok(page_type(&page) == PageType::FREE)
}
