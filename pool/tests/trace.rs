//! Traces of a running pool.

mod packed;

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use tidepool_pool::storage::{SimStorage, Storage};
use tidepool_pool::trace::{Trace, TraceOptions};
use tidepool_pool::{Access, Lsn, PageId, Pool, PoolConfig, Sample, Space, statement};

fn pool(background: bool) -> (Arc<Pool>, Arc<Space>) {
    let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
    let file = storage.create("16.tpd").unwrap();
    let config = PoolConfig { size_bytes: 16 << 20, background, ..PoolConfig::default() };
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, packed::create(file, 16, 16384)).unwrap();
    for no in 0..500 {
        let mut guard = pool.new_page(&space, no).unwrap();
        pool.mark_dirty(&mut guard, Lsn(no as u64 + 1), Lsn(no as u64 + 2));
    }
    (pool, space)
}

fn load(path: &Path) -> Trace {
    Trace::read_from("t", &mut BufReader::new(std::fs::File::open(path).unwrap())).unwrap()
}

#[test]
fn a_trace_holds_each_access_with_its_statement_time_and_kind() {
    let (pool, space) = pool(false);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trace");
    pool.start_trace(&path, TraceOptions::default()).unwrap();
    let mut expected = Vec::new();
    for no in [3, 5, 3, 7] {
        statement::begin();
        pool.advance_clock(20);
        let access = if no == 5 { Access::Scan } else { Access::Normal };
        for _ in 0..no {
            drop(pool.shared(&space, no, access).unwrap());
            expected.push((no, statement::current(), access == Access::Scan, false));
        }
    }
    drop(pool.try_exclusive(&space, 8, Access::Normal).unwrap());
    pool.optimistic(&space, 9, Access::Normal).unwrap().validate().unwrap();
    drop(pool.exclusive(&space, 10, Access::Normal).unwrap());
    pool.mark_dirty(&mut pool.new_page(&space, 11).unwrap(), Lsn(2000), Lsn(2001));
    expected.extend((8..12).map(|no| (no, statement::current(), false, no == 11)));
    let status = pool.stop_trace().unwrap();
    drop(pool.shared(&space, 99, Access::Normal).unwrap());

    assert_eq!((status.requests, status.dropped, &status.ended), (22, 0, &None));
    assert_eq!(status.bytes, std::fs::metadata(&path).unwrap().len());
    let trace = load(&path);
    let seen: Vec<_> = trace
        .requests
        .iter()
        .map(|r| (PageId::from_u64(r.page).no, r.statement as u32, r.scan, r.created))
        .collect();
    assert_eq!(seen, expected);
    assert_eq!(trace.requests[0].at_us, 20_000);
    assert_eq!(trace.requests.last().unwrap().at_us, 80_000);
    assert!(status.bytes < 80, "repetitions are counted, not repeated: {} bytes", status.bytes);
}

#[test]
fn a_sample_has_all_accesses_of_its_pages_and_none_of_others() {
    let (pool, space) = pool(true);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trace");
    let sample = Sample::of_rate(0.25);
    pool.start_trace(&path, TraceOptions { sample, ..TraceOptions::default() }).unwrap();
    for round in 0..4 {
        statement::begin();
        for no in 0..500 {
            drop(pool.shared(&space, (no * 7 + round) % 500, Access::Normal).unwrap());
        }
    }
    let status = pool.stop_trace().unwrap();
    let trace = load(&path);
    let held = (0..500).filter(|&no| sample.holds(PageId::new(16, no).to_u64())).count();
    assert_eq!((trace.sample, trace.distinct_pages()), (sample, held));
    assert_eq!((trace.requests.len(), status.dropped), (4 * held, 0));
    assert!(trace.requests.iter().all(|request| sample.holds(request.page)));
}

#[test]
fn a_trace_keeps_to_its_size_and_to_files_that_did_not_exist() {
    let (pool, space) = pool(false);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trace");
    let options = TraceOptions { max_bytes: 1000, ..TraceOptions::default() };
    pool.start_trace(&path, options).unwrap();
    for no in 0..500 {
        drop(pool.shared(&space, no, Access::Normal).unwrap());
    }
    pool.run_advisor_step();
    let status = pool.trace_status().unwrap();
    assert!(status.ended.as_ref().unwrap().contains("as many as it may"), "{status:?}");
    assert!(status.bytes <= 1000 && status.requests > 100, "{status:?}");
    drop(pool.shared(&space, 1, Access::Normal).unwrap());
    assert_eq!(pool.stop_trace().unwrap(), status);
    assert_eq!(load(&path).requests.len() as u64, status.requests);
    assert_eq!((pool.trace_status(), pool.stop_trace()), (None, None));

    let exists = pool.start_trace(&path, options).unwrap_err();
    assert!(exists.to_string().contains("a.trace"), "{exists}");
    let nowhere = pool.start_trace(&directory.path().join("no/where"), options).unwrap_err();
    assert!(nowhere.to_string().contains("no/where"), "{nowhere}");
    let linked = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("target"), &linked).unwrap();
    let link = pool.start_trace(&linked, options).unwrap_err();
    assert!(link.to_string().contains("link") && !directory.path().join("target").exists());
    pool.start_trace(&directory.path().join("c"), options).unwrap();
    drop(pool.shared(&space, 1, Access::Normal).unwrap());
    assert_eq!(pool.stop_trace().unwrap().requests, 1);
}

#[test]
fn another_trace_ends_the_first_when_its_file_can_be_made() {
    let (pool, space) = pool(false);
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| directory.path().join(name));
    pool.start_trace(&first, TraceOptions::default()).unwrap();
    drop(pool.shared(&space, 1, Access::Normal).unwrap());
    pool.start_trace(&first, TraceOptions::default()).unwrap_err();
    drop(pool.shared(&space, 2, Access::Normal).unwrap());
    pool.start_trace(&second, TraceOptions::default()).unwrap();
    drop(pool.shared(&space, 3, Access::Normal).unwrap());
    assert_eq!(pool.stop_trace().unwrap().path, second);
    assert_eq!([&first, &second].map(|path| load(path).requests.len()), [2, 1]);
}
