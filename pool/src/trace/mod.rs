//! Page traces: which pages were accessed, in which order, by which statements, as a file.
//!
//! `format` is the file; `record` writes one of a running pool, fed by the `access_sampling`. A
//! trace says all that a replacement policy goes by, so that policies and pool sizes can be
//! compared on it later.

mod format;
mod record;

pub use format::{Trace, TraceError, TraceRequest, TraceWriter};
pub(crate) use record::Recorder;
pub use record::{TraceOptions, TraceStatus};
