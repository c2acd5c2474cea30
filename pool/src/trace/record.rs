//! The recorder: a page trace of a running pool.
//!
//! Accesses go to the recorder's sampler, whose rings are large enough for all of them; the
//! pool's background thread writes what it finds there ([`Recorder::run_step`]). An access
//! that finds its ring full is left out, and counted. The file never grows beyond its bound, and an
//! error ends the recording, never anything else.
//!
//! Locking: `recording` before the sampler's consumer. No access takes either.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::format::{TraceRequest, TraceWriter};
use crate::access_sampling::{Event, Sample, Touch, now_us};
use crate::error::{Error, Result};
use crate::pool_core::PoolCore;

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Of which pages.
    pub sample: Sample,
    /// Recording ends when the file has this many bytes.
    pub max_bytes: u64,
}

impl Default for TraceOptions {
    /// All pages, up to 1 GiB.
    fn default() -> TraceOptions {
        TraceOptions { sample: Sample::ALL, max_bytes: 1 << 30 }
    }
}

/// How a recording goes, or how it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStatus {
    /// The file.
    pub path: PathBuf,
    pub requests: u64,
    pub bytes: u64,
    /// Requests left out because they came faster than they could be written.
    pub dropped: u64,
    /// Why it ended by itself: the file is full, or could not be written.
    pub ended: Option<String>,
}

/// Writes a page trace. See the head of this module.
pub(crate) struct Recorder {
    core: Arc<PoolCore>,
    recording: Mutex<Option<Recording>>,
}

struct Recording {
    writer: TraceWriter<BufWriter<File>>,
    options: TraceOptions,
    began_us: u64,
    status: TraceStatus,
}

/// Bytes that one record may take at most.
const RECORD_BYTES_MAX: u64 = 40;

impl Recording {
    fn write(&mut self, events: &[Event]) -> io::Result<()> {
        for event in events {
            if self.writer.bytes() + RECORD_BYTES_MAX > self.options.max_bytes {
                let full = format!("the file has {} bytes, as many as it may", self.writer.bytes());
                self.status.ended = Some(full);
                break;
            }
            let request = TraceRequest {
                page: event.page,
                at_us: event.at_us.saturating_sub(self.began_us),
                statement: event.statement.into(),
                scan: event.touch == Touch::Scan,
                created: event.touch == Touch::Created,
            };
            self.writer.push(&request, event.count.into())?;
            self.status.requests += u64::from(event.count);
        }
        self.writer.flush()
    }

    fn status(&self) -> TraceStatus {
        TraceStatus { bytes: self.writer.bytes(), ..self.status.clone() }
    }
}

impl Recorder {
    pub(crate) fn new(core: Arc<PoolCore>) -> Recorder {
        Recorder { core, recording: Mutex::new(None) }
    }

    /// Begins to record a page trace into a new file at `path`. A recording under way ends when the
    /// new file is there; if that can't be made, it goes on.
    ///
    /// # Errors
    /// [`Error::System`] if there is a file or a link at `path`, or none can be made.
    pub(crate) fn start(&self, path: &Path, options: TraceOptions) -> Result<()> {
        let failed =
            |error| Error::system(format!("making the page trace '{}'", path.display()), error);
        // O_EXCL: neither over a file that exists nor through a link, for the name comes from a
        // client.
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        let writer = TraceWriter::new(BufWriter::with_capacity(1 << 18, file), options.sample);
        let writer = writer.map_err(|error| {
            let _ = std::fs::remove_file(path);
            failed(error)
        })?;
        self.stop();
        let mut recording = self.recording.lock();
        let sampler = self.core.samplers.recorder();
        // What an earlier recording left.
        sampler.drain(&mut Vec::new());
        *recording = Some(Recording {
            writer,
            options,
            began_us: now_us(&self.core.clock),
            status: TraceStatus {
                path: path.to_owned(),
                requests: 0,
                bytes: 0,
                dropped: 0,
                ended: None,
            },
        });
        sampler.set_sample(options.sample);
        self.core.samplers.set_bound();
        let rate = options.sample.rate();
        tracing::info!(path = %path.display(), rate, "recording a page trace");
        Ok(())
    }

    /// Ends the recording and says how it went; `None` if there was none.
    pub(crate) fn stop(&self) -> Option<TraceStatus> {
        self.run_step();
        self.hush();
        let status = self.recording.lock().take()?.status();
        tracing::info!(
            path = %status.path.display(),
            requests = status.requests,
            bytes = status.bytes,
            dropped = status.dropped,
            "recorded a page trace"
        );
        Some(status)
    }

    /// How the recording goes; `None` if there is none.
    pub(crate) fn status(&self) -> Option<TraceStatus> {
        self.recording.lock().as_ref().map(Recording::status)
    }

    /// Writes what was accessed since the last time.
    pub(crate) fn run_step(&self) {
        let mut recording = self.recording.lock();
        let Some(recording) = recording.as_mut() else { return };
        let mut events = Vec::new();
        let drained = self.core.samplers.recorder().drain(&mut events);
        if recording.status.ended.is_some() {
            return;
        }
        recording.status.dropped += drained.dropped;
        if let Err(error) = recording.write(&events) {
            recording.status.ended = Some(format!("the file can't be written: {error}"));
        }
        if let Some(why) = &recording.status.ended {
            tracing::warn!(path = %recording.status.path.display(), why, "the page trace ended");
            self.hush();
        }
    }

    fn hush(&self) {
        self.core.samplers.recorder().set_sample(Sample::NONE);
        self.core.samplers.set_bound();
    }
}
