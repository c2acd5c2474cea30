//! A policy that calls a test before it does something.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Access, Replacement, ReplacementConfig, ReplacementStats, Request};
use crate::page::PageId;

/// What it is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Insert,
    WasAccessed,
    Warm,
    Relocate,
    SetCapacity(u32),
}

type Hook = Arc<dyn Fn(Call) + Send + Sync>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Makes something; the policies in it call `hook`.
pub(crate) fn with_hook<R>(
    hook: impl Fn(Call) + Send + Sync + 'static,
    make: impl FnOnce() -> R,
) -> R {
    HOOK.set(Some(Arc::new(hook)));
    let made = make();
    HOOK.take();
    made
}

/// The policy, with the hook that was set, if any was.
pub(super) fn wrap(policy: Box<dyn Replacement>) -> Box<dyn Replacement> {
    match HOOK.with_borrow(Clone::clone) {
        Some(hook) => Box::new(Hooked { policy, hook }),
        None => policy,
    }
}

struct Hooked {
    policy: Box<dyn Replacement>,
    hook: Hook,
}

impl Replacement for Hooked {
    fn hit(&self, frame: u32, access: Access) {
        self.policy.hit(frame, access);
    }

    fn insert(&self, frame: u32, page: PageId, access: Access) {
        (self.hook)(Call::Insert);
        self.policy.insert(frame, page, access);
    }

    fn remove(&self, frame: u32) {
        self.policy.remove(frame);
    }

    fn coldest(&self, max: usize, out: &mut Vec<u32>) {
        self.policy.coldest(max, out);
    }

    fn begin_walk(&self) {
        self.policy.begin_walk();
    }

    fn walk_on(&self, max: usize, out: &mut Vec<u32>) -> bool {
        self.policy.walk_on(max, out)
    }

    fn was_accessed(&self, frame: u32) -> bool {
        (self.hook)(Call::WasAccessed);
        self.policy.was_accessed(frame)
    }

    fn is_hot(&self, frame: u32) -> bool {
        self.policy.is_hot(frame)
    }

    fn heat(&self, frame: u32) -> Option<u8> {
        self.policy.heat(frame)
    }

    fn warm(&self, frame: u32, heat: u8) {
        (self.hook)(Call::Warm);
        self.policy.warm(frame, heat);
    }

    fn configure(&self, config: &ReplacementConfig) -> bool {
        self.policy.configure(config)
    }

    fn relocate(&self, from: u32, to: u32) {
        (self.hook)(Call::Relocate);
        self.policy.relocate(from, to);
    }

    fn set_capacity(&self, frames: u32) {
        (self.hook)(Call::SetCapacity(frames));
        self.policy.set_capacity(frames);
    }

    fn learns(&self) -> bool {
        self.policy.learns()
    }

    fn observe(&self, sampled: &[Request], pages_per_sample: u32) {
        self.policy.observe(sampled, pages_per_sample);
    }

    fn waits(&self) -> u64 {
        self.policy.waits()
    }

    fn memory_bytes(&self, frames: u32) -> u64 {
        self.policy.memory_bytes(frames)
    }

    fn stats(&self) -> ReplacementStats {
        self.policy.stats()
    }
}
