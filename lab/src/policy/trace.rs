//! Page traces: what is in one request, and its file, are the pool's, which records them.

pub use tidepool_pool::trace::{Trace, TraceError, TraceRequest as Request};
