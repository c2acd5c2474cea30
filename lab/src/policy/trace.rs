//! Page traces: what is in one request, and its file, are the pool's, which records them.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

pub use tidepool_pool::trace::{Trace, TraceError, TraceRequest as Request};

use crate::error::{Error, Result};

/// Reads a trace; its name is that of the file, up to the first dot.
///
/// # Errors
/// If the file can't be read, or holds no trace, or an empty one.
pub fn read(path: &Path) -> Result<Trace> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split('.').next().unwrap_or_default();
    let wrong = |message: String| Error::Trace { path: path.to_owned(), message };
    let file = File::open(path).map_err(Error::at(path))?;
    let trace = Trace::read_from(name, &mut BufReader::new(file))
        .map_err(|error| wrong(error.to_string()))?;
    match trace.requests.is_empty() {
        true => Err(wrong("it has no request".into())),
        false => Ok(trace),
    }
}
