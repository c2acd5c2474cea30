//! Pages of undo records with a right checksum that lead in a circle: an open ends, and says so.

use super::definition_tests::open;
use super::file_tests::Told;
use super::*;
use crate::files::UNDO_SPACE;
use crate::test_storage::{end_of, read_page, write_page};
use crate::{IndexDef, ReadRequest, TableDef, TransactionOptions};
use std::sync::mpsc;
use std::time::Duration;
use tidepool_pool::page::page_type;
use tidepool_pool::storage::SimStorage;
use tidepool_pool::{PageId, PageType};

const ROWS: u16 = 300;
/// In the header of a page of undo records (docs/internals/format/undo.md).
const PREV_AT: usize = 36;
const NEXT_AT: usize = 40;

/// A table of [`ROWS`] rows that one transaction has made and another has updated, whose records
/// nothing has purged, all of it in
/// the files of the pages: as a kill left it. The last of them was committed if `is_committed`.
fn updated(is_committed: bool) -> SimStorage {
    let sim = SimStorage::new(3);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    (0..ROWS).for_each(|n| trx.insert(&table, 0, &n.to_be_bytes(), &[1; 200]).unwrap());
    trx.commit().unwrap();
    (0..ROWS).for_each(|n| trx.update(&table, 0, &n.to_be_bytes(), &[2; 200]).unwrap());
    if is_committed {
        trx.commit().unwrap();
    }
    db.inner.env().checkpoint_all().unwrap();
    sim.kill()
}

/// The pages of undo records in which a stream of several ends: its last one, and the first.
struct Stream {
    sim: SimStorage,
    last: u32,
    first: u32,
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

impl Stream {
    fn of(sim: &SimStorage) -> Stream {
        let mut stream = Stream { sim: sim.clone(), last: 0, first: 0 };
        let count = end_of(sim, UNDO_SPACE);
        let is_record = |page: &[u8]| page_type(page) == PageType::UNDO;
        let ends = |no: &u32| {
            let page = stream.page(*no);
            is_record(&page) && u32_at(&page, NEXT_AT) == 0 && u32_at(&page, PREV_AT) != 0
        };
        stream.last = (0..count).find(ends).unwrap();
        stream.first = stream.last;
        while u32_at(&stream.page(stream.first), PREV_AT) != 0 {
            stream.first = u32_at(&stream.page(stream.first), PREV_AT);
        }
        assert_ne!(stream.first, stream.last);
        stream
    }

    fn page(&self, no: u32) -> Vec<u8> {
        read_page(&self.sim, PageId::new(UNDO_SPACE, no), Options::small().page_size)
    }

    /// Has the last page lead to the first.
    fn close(&self) {
        let mut page = self.page(self.last);
        page[NEXT_AT..NEXT_AT + 4].copy_from_slice(&self.first.to_le_bytes());
        write_page(&self.sim, PageId::new(UNDO_SPACE, self.last), &page);
    }
}

/// Opens the directory in a thread, for an open that never ends is what this is about; and what it
/// says in the log.
fn opened(sim: &SimStorage) -> (Result<Db>, Vec<String>) {
    let (sender, opened) = mpsc::channel();
    let sim = sim.clone();
    std::thread::spawn(move || {
        let opened = Told::during(|| Db::open_on(Arc::new(sim), Options::small()));
        drop(sender.send(opened));
    });
    opened.recv_timeout(Duration::from_secs(60)).expect("the open ends")
}

#[test]
fn a_stream_of_committed_logs_in_a_circle_loses_nothing_and_is_reported() {
    let sim = updated(true);
    let stream = Stream::of(&sim);
    stream.close();
    let (db, said) = opened(&sim);
    let page = format!(
        "undo.tpd: page {} is corrupt: the pages of an undo stream lead in a circle",
        stream.last
    );
    assert!(said.iter().any(|line| line.starts_with(&page)), "{said:?}");
    let db = db.unwrap();
    let table = db.open_table("t").unwrap();
    let (mut trx, mut value) = (db.begin(TransactionOptions::default()), vec![]);
    for n in 0..ROWS {
        let key = n.to_be_bytes();
        assert!(trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap());
        assert_eq!(value, [2; 200]);
    }
}

#[test]
fn an_unfinished_log_in_a_circle_refuses_the_start_and_names_the_page() {
    let sim = updated(false);
    let stream = Stream::of(&sim);
    stream.close();
    let (db, _) = opened(&sim);
    assert_eq!(
        db.unwrap_err().to_string(),
        format!(
            "undo.tpd: page {} is corrupt: the pages of an undo stream lead in a circle: restore the data directory from a \
             backup, or save what can be read with 'tidepool salvage'; or start with force_recovery=4 and dump what can \
             still be read",
            stream.last
        )
    );
}
