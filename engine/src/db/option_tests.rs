//! Options changed by several at once.

use std::sync::Arc;

use tidepool_pool::storage::SimStorage;

use super::Db;
use crate::options::Options;
use crate::pause::{PausePoint, with_hook};

const MIB: u64 = 1 << 20;

/// Of two sizes that are asked for at once, the one that the options say is the one that the
/// governor knows.
#[test]
fn two_changes_of_a_size_do_not_mix() {
    let setters = [Db::set_buffer_pool_size, Db::set_memory_budget];
    for set in setters {
        let db = Arc::new(Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap());
        let other = db.clone();
        let meanwhile = move |point| {
            // Unless others have to wait.
            if point == PausePoint::OptionNoted && other.inner.setting.try_lock().is_some() {
                set(&other, 200 * MIB).unwrap();
            }
        };
        with_hook(meanwhile, || set(&db, 100 * MIB)).unwrap();
        let (options, report) = (db.options(), db.governor().report());
        assert_eq!(
            (options.buffer_pool_size_bytes, options.memory_budget_bytes),
            (report.size_bytes, report.budget_bytes)
        );
    }
}
