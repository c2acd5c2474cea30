//! How fast a batch of page reads and writes is: one after another, in threads, by io_uring.
//!
//! `cargo bench -p tidepool-pool --bench storage_batch [-- directory]`; the directory says which
//! disk.

use std::time::{Duration, Instant};

use tidepool_store::storage::{AlignedBuf, FileOptions, FileStorage, IoOp, Storage, StorageFile};

const PAGE: usize = 16384;
const FILE_PAGES: u64 = 16384;
const TIME: Duration = Duration::from_millis(1500);

fn main() {
    let dir = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let dir = tempfile::tempdir_in(dir.unwrap_or_else(|| ".".to_owned())).unwrap();
    let open = || FileStorage::new(dir.path(), FileOptions::default()).unwrap();
    let (uring, threads) = (open(), open().without_io_uring());
    println!("io_uring: {}", if uring.uses_io_uring() { "allowed" } else { "not allowed" });
    let file = uring.create("pages").unwrap();
    file.set_len(FILE_PAGES * PAGE as u64).unwrap();
    let chunk = AlignedBuf::zeroed(64 * PAGE);
    for start in (0..FILE_PAGES).step_by(64) {
        file.write_at(&chunk, start * PAGE as u64).unwrap();
    }
    file.sync_data().unwrap();
    println!(
        "{:<8}{:>6}{:>14}{:>14}{:>14}  (pages/s)",
        "", "batch", "one by one", "threads", "uring"
    );
    for write in [false, true] {
        for batch in [4, 16, 64, 256] {
            let alone = |ops: &mut [IoOp<'_>]| ops.iter_mut().for_each(IoOp::run);
            println!(
                "{:<8}{batch:>6}{:>14.0}{:>14.0}{:>14.0}",
                if write { "write" } else { "read" },
                pages_per_second(&*file, write, batch, alone),
                pages_per_second(&*file, write, batch, |ops| threads.run_batch(ops)),
                pages_per_second(&*file, write, batch, |ops| uring.run_batch(ops)),
            );
        }
    }
}

fn pages_per_second(
    file: &dyn StorageFile,
    write: bool,
    batch: usize,
    run: impl Fn(&mut [IoOp<'_>]),
) -> f64 {
    let mut bufs: Vec<_> = (0..batch).map(|_| AlignedBuf::zeroed(PAGE)).collect();
    let mut place = 1u64;
    let (start, mut pages) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        let mut ops: Vec<_> = bufs
            .iter_mut()
            .map(|buf| {
                // An odd multiplier walks through all pages without a pattern of distance.
                place = place.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let offset = (place >> 33) % FILE_PAGES * PAGE as u64;
                if write { IoOp::write(file, buf, offset) } else { IoOp::read(file, buf, offset) }
            })
            .collect();
        run(&mut ops);
        pages += batch;
    }
    pages as f64 / start.elapsed().as_secs_f64()
}
