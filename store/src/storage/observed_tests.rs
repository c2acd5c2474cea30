use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AlignedBuf, FileObserver, FileOperation, FileToken, FileWatch, IoOp, ObservedStorage,
    SimStorage, Storage,
};

/// What was heard, a line each; files are numbered as they are opened.
#[derive(Default)]
struct Heard {
    lines: Mutex<Vec<String>>,
    opened: Mutex<usize>,
}

impl Heard {
    fn line(&self, line: String) {
        self.lines.lock().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock())
    }
}

impl FileObserver for Heard {
    fn opened(&self, name: &str) -> FileToken {
        let mut opened = self.opened.lock();
        *opened += 1;
        self.line(format!("{} opens {name}", *opened));
        FileToken(*opened)
    }

    fn closed(&self, file: FileToken) {
        self.line(format!("{} closes", file.0));
    }

    fn removed(&self, name: &str) {
        self.line(format!("{name} is gone"));
    }

    fn operation(&self, file: FileToken, op: FileOperation, bytes: usize, run: &mut dyn FnMut()) {
        self.line(format!("{} {op:?} {bytes}", file.0));
        run();
    }
}

/// As direct I/O wants them.
fn bytes(byte: u8, len: usize) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(len);
    bytes.fill(byte);
    bytes
}

fn storage() -> (Arc<Heard>, ObservedStorage) {
    let heard = Arc::new(Heard::default());
    (heard.clone(), ObservedStorage::new(Arc::new(SimStorage::new(1)), heard))
}

#[test]
fn each_operation_is_heard_of_once_and_does_what_it_should() {
    let (heard, storage) = storage();
    let file = storage.create("a").unwrap();
    file.set_len(4096).unwrap();
    file.write_at(&bytes(7, 512), 0).unwrap();
    file.sync_data().unwrap();
    let mut read = bytes(0, 512);
    file.read_at(&mut read, 0).unwrap();
    assert_eq!(read[..], [7; 512]);
    assert_eq!(heard.take(), ["1 opens a", "1 Resize 0", "1 Write 512", "1 Sync 0", "1 Read 512"]);
    file.read_at(&mut read, 1 << 20).unwrap_err();
    assert_eq!(heard.take(), ["1 Read 512"], "a failure is one too");
}

#[test]
fn operations_of_a_batch_are_counted_one_by_one() {
    let (heard, storage) = storage();
    let (a, b) = (storage.create("a").unwrap(), storage.create("b").unwrap());
    b.write_at(&bytes(5, 1024), 0).unwrap();
    heard.take();
    let (mut read, mut far, nines) = (bytes(0, 1024), bytes(0, 512), bytes(9, 512));
    let mut ops = [
        IoOp::write(&*a, &nines, 0),
        IoOp::read(&*b, &mut read, 0),
        IoOp::read(&*b, &mut far, 1 << 20),
    ];
    storage.run_batch(&mut ops);
    assert_eq!(heard.take(), ["1 Write 512", "2 Read 1024", "2 Read 512"]);
    assert_eq!(ops.map(|op| op.result.is_ok()), [true, true, false], "each has its own result");
    assert_eq!(read[..], [5; 1024]);
    let mut written = bytes(0, 512);
    a.read_at(&mut written, 0).unwrap();
    assert_eq!(written[..], [9; 512]);
    heard.take();
    storage.run_batch(&mut []);
    assert!(heard.take().is_empty());
}

#[test]
fn a_removed_file_is_gone_once_it_is_closed() {
    let (heard, storage) = storage();
    let first = storage.create("a").unwrap();
    let again = storage.open("a").unwrap();
    storage.remove("a").unwrap();
    heard.take();
    drop(first);
    assert_eq!(heard.take(), ["1 closes"]);
    drop(again);
    assert_eq!(heard.take(), ["2 closes", "a is gone"]);
    // Another file has the name when the one before is closed.
    let removed = storage.create("a").unwrap();
    storage.remove("a").unwrap();
    let successor = storage.create("a").unwrap();
    heard.take();
    drop(removed);
    drop(successor);
    assert_eq!(heard.take(), ["3 closes", "4 closes"]);
    storage.remove("a").unwrap();
    assert_eq!(heard.take(), ["a is gone"]);
    storage.remove("a").unwrap_err();
    assert!(heard.take().is_empty());
}

#[test]
fn a_watch_without_an_observer_is_in_no_way() {
    let disk: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
    assert!(Arc::ptr_eq(&disk, &FileWatch::default().over(disk.clone())));
    let heard = Arc::new(Heard::default());
    let watch = FileWatch::by(heard.clone());
    watch.over(disk).create("a").unwrap();
    assert_eq!(heard.take(), ["1 opens a", "1 closes"]);
    assert_eq!(watch, watch.clone());
    assert_ne!(watch, FileWatch::default());
    assert_ne!(watch, FileWatch::by(Arc::new(Heard::default())));
}
