//! The pool that grows and shrinks, and the list of its hot pages.

use rand::prelude::*;
use std::time::Duration;

use crate::{PowerCut, SIZES_MIB, Step, World};

impl World {
    /// The pool is to have another size. What has to be done for it is done now, or later, bit by
    /// bit.
    pub fn resize(&mut self) -> Step {
        let bytes = self.random.random_range(SIZES_MIB) << 20;
        self.db.set_buffer_pool_size(bytes).unwrap();
        self.looks += 1;
        self.db.step_governor(Duration::from_secs(self.looks.into()));
        trace!("resize to {} MiB", bytes >> 20);
        if self.random.random() {
            return Ok(());
        }
        let full = self.random.random_ratio(1, 8);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        while self.db.step_resize() {}
        if full {
            self.sim.set_capacity(None);
            while self.db.step_resize() {}
        }
        if self.is_over() {
            return Err(PowerCut);
        }
        let resident = self.db.status().get("buffer_pool_resident_bytes").unwrap();
        trace!("resized, {} MiB are resident", resident >> 20);
        // A pool that was opened with half an extent more has the memory of a whole one.
        let limit = bytes.next_multiple_of(tidepool_pool::EXTENT_BYTES as u64);
        assert!(resident <= limit, "seed {}: {resident} bytes of {limit}", self.seed);
        Ok(())
    }

    pub fn step_resize(&mut self) -> Step {
        for _ in 0..self.random.random_range(1..8) {
            self.db.step_resize();
        }
        trace!("steps of a resize");
        if self.is_over() { Err(PowerCut) } else { Ok(()) }
    }

    /// The hot pages are noted, on a full disk now and then, or some of the life before are loaded.
    pub fn hot_list(&mut self) -> Step {
        if self.random.random() {
            return self.must(self.db.step_load()).map(drop);
        }
        let full = self.random.random_ratio(1, 4);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        let saved = self.db.dump_buffer_pool();
        if full {
            self.sim.set_capacity(None);
        }
        trace!("hot list, disk full {full}: {saved:?}");
        if full && !self.is_over() { Ok(()) } else { self.must(saved) }
    }
}
