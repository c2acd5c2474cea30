//! A pool whose need changes, observed every five seconds.

use super::*;
use crate::cgroup::Level;

const MIB: u64 = 1 << 20;
const TICK: Duration = Duration::from_secs(5);

/// A pool that obeys at once, and fills at once up to what its load touches.
struct Model {
    surplus: Surplus,
    now: Duration,
    pool: PoolState,
    /// What the load uses again and again; `None`: no load.
    working_set: Option<u64>,
    /// Pages read again because they had been given back.
    reread_bytes: u64,
    reasons: Vec<String>,
}

impl Model {
    /// A pool of 4 GiB that is full.
    fn new() -> Model {
        let pool = PoolState {
            resident_bytes: 4096 * MIB,
            limit_bytes: 4096 * MIB,
            floor_bytes: 16 * MIB,
            ceiling_bytes: u64::MAX,
            wants_more: false,
        };
        Model {
            surplus: Surplus::default(),
            now: Duration::ZERO,
            pool,
            working_set: Some(4096 * MIB),
            reread_bytes: 0,
            reasons: Vec::new(),
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        let pool = &mut self.pool;
        // The curve reaches down to a quarter of the limit.
        let need = self.working_set.map(|bytes| Need {
            bytes: bytes.max(pool.limit_bytes / 4).min(pool.resident_bytes),
            extra_reads_per_second: 0.0,
            reads_per_second: 0.0,
            page_bytes: 16384,
        });
        pool.wants_more = self.working_set.is_some_and(|bytes| bytes > pool.limit_bytes);
        let why = self.surplus.step(self.now, need.as_ref(), pool);
        self.reasons.extend(why);
        let before = pool.limit_bytes;
        pool.limit_bytes = self.surplus.ceiling_bytes().unwrap_or(4096 * MIB).min(4096 * MIB);
        pool.resident_bytes = pool.resident_bytes.min(pool.limit_bytes);
        if pool.limit_bytes > before {
            let wanted = self.working_set.unwrap_or(0).min(pool.limit_bytes);
            self.reread_bytes += wanted.saturating_sub(pool.resident_bytes);
            pool.resident_bytes = pool.resident_bytes.max(wanted);
        }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds / TICK.as_secs() {
            self.tick();
        }
    }
}

#[test]
fn cold_data_of_the_night_goes_back_in_the_morning() {
    let mut model = Model::new();
    model.run(600);
    assert_eq!(model.pool.limit_bytes, 4096 * MIB, "it is all used");
    model.working_set = Some(800 * MIB);
    model.run(WAIT.as_secs() - 10);
    assert_eq!(model.pool.limit_bytes, 4096 * MIB, "the window still has the night");
    // Slowly: an eighth every ten seconds.
    let mut limits = vec![model.pool.limit_bytes];
    for _ in 0..60 {
        model.tick();
        limits.push(model.pool.limit_bytes);
    }
    assert!(limits.windows(2).all(|pair| pair[1] <= pair[0] && pair[1] >= pair[0] / 8 * 7));
    assert!(limits.windows(3).all(|three| three[0] == three[1] || three[1] == three[2]));
    model.run(600);
    let rest = model.pool.limit_bytes;
    assert!((900 * MIB..940 * MIB).contains(&rest), "{} MiB", rest / MIB);
    let steps = model.reasons.len();
    assert!(steps >= 8, "{steps}");
    assert!(model.reasons[0].contains("reads/s more"), "{}", model.reasons[0]);
    // And there it stays.
    model.run(3600);
    assert_eq!(model.reasons.len(), steps);
}

#[test]
fn a_load_that_returns_has_its_memory_at_once_and_pays_what_was_predicted() {
    let mut model = Model::new();
    model.working_set = Some(800 * MIB);
    model.run(1200);
    let given_back = 4096 * MIB - model.pool.limit_bytes;
    let predicted: u64 = model
        .reasons
        .iter()
        .filter_map(|why| why.split("; ").nth(1)?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    model.working_set = Some(4096 * MIB);
    model.tick();
    assert_eq!(model.pool.limit_bytes, 4096 * MIB);
    assert!(model.reread_bytes <= given_back);
    assert!(model.reread_bytes <= predicted * 16384 + MIB, "{predicted} pages");
    // A load that comes and goes costs it ever more rarely.
    let mut lifts = Vec::new();
    for round in 0..200 {
        model.working_set = Some(if round % 2 == 0 { 800 } else { 4096 } * MIB);
        let before = model.pool.limit_bytes;
        model.run(200);
        if model.pool.limit_bytes > before {
            lifts.push(round);
        }
    }
    assert!(lifts.len() <= 3, "{lifts:?}");
}

#[test]
fn without_evidence_and_while_it_fills_the_pool_keeps_what_it_has() {
    let mut model = Model::new();
    model.working_set = None;
    model.run(7200);
    assert_eq!(model.surplus.ceiling_bytes(), None);
    // What is observed now and then does not last.
    model.working_set = Some(100 * MIB);
    for _ in 0..100 {
        model.now += GAP_MAX;
        model.tick();
    }
    assert_eq!(model.surplus.ceiling_bytes(), None);
    // It fills by a tenth every 20 s.
    model.pool.resident_bytes = 100 * MIB;
    while model.pool.resident_bytes < 4000 * MIB {
        model.run(20);
        assert_eq!(model.surplus.ceiling_bytes(), None);
        model.pool.resident_bytes += model.pool.resident_bytes / 10;
    }
}

#[test]
fn a_pool_far_below_its_limit_loses_none_of_what_it_holds() {
    let mut model = Model::new();
    model.pool.resident_bytes = 500 * MIB;
    model.working_set = Some(480 * MIB);
    model.run(600);
    assert_eq!(model.pool.resident_bytes, 500 * MIB);
    assert!(model.pool.limit_bytes < 600 * MIB, "{} MiB", model.pool.limit_bytes / MIB);
}

#[test]
fn a_limit_of_a_cgroup_means_that_memory_is_shared_out() {
    let level = |limit_bytes| Level {
        directory: "/db".into(),
        limit_bytes,
        usage_bytes: 0,
        file_cache_bytes: 0,
        limit_hits: 0,
    };
    let with = |limit_bytes| Signals {
        levels: vec![level(limit_bytes), level(None)],
        machine_total_bytes: Some(8192 * MIB),
        ..Signals::default()
    };
    assert!(Policy::Auto.returns(&with(Some(1024 * MIB))));
    assert!(!Policy::Auto.returns(&with(None)));
    assert!(!Policy::Auto.returns(&with(Some(8192 * MIB))), "as much as the machine has");
    assert!(!Policy::Auto.returns(&Signals::default()));
    assert!(Policy::Return.returns(&with(None)) && !Policy::Keep.returns(&with(Some(MIB))));
}
