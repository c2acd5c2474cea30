// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! What the server's performance_schema hears of the engine.
//!
//! The shim gives functions only if the performance_schema is on: without them the engine has no
//! observer, and does nothing that it would not do in another program.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};

use tidepool::storage::{FileObserver, FileOperation, FileToken, FileWatch};
use tidepool::{FileKind, ThreadObserver, Threads};

use crate::constants::{
    TP_FILE_OTHER, TP_FILE_READ, TP_FILE_REDO, TP_FILE_RESIZE, TP_FILE_SORT, TP_FILE_SYNC,
    TP_FILE_SYSTEM, TP_FILE_TABLE, TP_FILE_UNDO, TP_FILE_WRITE,
};

static THREADS: OnceLock<ServerThreads> = OnceLock::new();
static FILES: OnceLock<ServerFiles> = OnceLock::new();

#[derive(Clone, Copy)]
struct ServerThreads {
    begins: extern "C" fn(name: *const c_char, len: usize),
    ends: extern "C" fn(),
}

/// What each thread of the engine calls; see bridge.h.
#[unsafe(no_mangle)]
pub extern "C" fn tp_set_thread_observer(
    begins: extern "C" fn(name: *const c_char, len: usize),
    ends: extern "C" fn(),
) {
    let _ = THREADS.set(ServerThreads { begins, ends });
}

/// How the engine starts threads.
pub(crate) fn threads() -> Threads {
    let Some(server) = THREADS.get() else { return Threads::default() };
    Threads::observed_by(Arc::new(*server))
}

impl ThreadObserver for ServerThreads {
    fn begins(&self, name: &str) {
        (self.begins)(name.as_ptr().cast(), name.len());
    }

    fn ends(&self) {
        (self.ends)();
    }
}

type Opened = extern "C" fn(name: *const c_char, len: usize, kind: c_int) -> *mut c_void;
type Closed = extern "C" fn(file: *mut c_void);
type Removed = extern "C" fn(name: *const c_char, len: usize, kind: c_int);
type Operation = extern "C" fn(
    file: *mut c_void,
    operation: c_int,
    bytes: usize,
    run: extern "C" fn(context: *mut c_void),
    run_context: *mut c_void,
);

#[derive(Clone, Copy)]
struct ServerFiles {
    opened: Opened,
    closed: Closed,
    removed: Removed,
    operation: Operation,
}

/// What the engine calls around what it does with files; see bridge.h.
#[unsafe(no_mangle)]
pub extern "C" fn tp_set_file_observer(
    opened: extern "C" fn(name: *const c_char, len: usize, kind: c_int) -> *mut c_void,
    closed: extern "C" fn(file: *mut c_void),
    removed: extern "C" fn(name: *const c_char, len: usize, kind: c_int),
    operation: extern "C" fn(
        file: *mut c_void,
        operation: c_int,
        bytes: usize,
        run: extern "C" fn(context: *mut c_void),
        run_context: *mut c_void,
    ),
) {
    let _ = FILES.set(ServerFiles { opened, closed, removed, operation });
}

/// Who hears of the engine's files.
pub(crate) fn files() -> FileWatch {
    let Some(server) = FILES.get() else { return FileWatch::default() };
    FileWatch::by(Arc::new(*server))
}

/// An operation on its way through the server's code, which no panic may cross.
struct Running<'a> {
    run: &'a mut dyn FnMut(),
    panic: Option<Box<dyn Any + Send>>,
}

extern "C" fn run(context: *mut c_void) {
    // SAFETY: the context of `operation` below, which waits for this call.
    let running = unsafe { &mut *context.cast::<Running<'_>>() };
    let ran = catch_unwind(AssertUnwindSafe(|| (running.run)()));
    running.panic = ran.err();
}

impl FileObserver for ServerFiles {
    fn opened(&self, name: &str) -> FileToken {
        FileToken((self.opened)(name.as_ptr().cast(), name.len(), kind_of(name)) as usize)
    }

    fn closed(&self, file: FileToken) {
        (self.closed)(file.0 as *mut c_void);
    }

    fn removed(&self, name: &str) {
        (self.removed)(name.as_ptr().cast(), name.len(), kind_of(name));
    }

    fn operation(&self, file: FileToken, op: FileOperation, bytes: usize, body: &mut dyn FnMut()) {
        let op = match op {
            FileOperation::Read => TP_FILE_READ,
            FileOperation::Write => TP_FILE_WRITE,
            FileOperation::Sync => TP_FILE_SYNC,
            FileOperation::Resize => TP_FILE_RESIZE,
        };
        let mut running = Running { run: body, panic: None };
        let context = (&raw mut running).cast();
        (self.operation)(file.0 as *mut c_void, op, bytes, run, context);
        if let Some(panic) = running.panic {
            resume_unwind(panic);
        }
    }
}

fn kind_of(name: &str) -> c_int {
    match FileKind::of(name) {
        FileKind::Table => TP_FILE_TABLE,
        FileKind::Redo => TP_FILE_REDO,
        FileKind::Undo => TP_FILE_UNDO,
        FileKind::System => TP_FILE_SYSTEM,
        FileKind::Sort => TP_FILE_SORT,
        FileKind::Other => TP_FILE_OTHER,
    }
}
