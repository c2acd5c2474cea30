//! What is in one request of a trace, and the file format.
//!
//! # File format
//! `TPTRACE3`, then a varint: the sample's bound, of 2³² (a page is in the trace if its hash, see
//! [`Sample`], lies below; 2³² = all pages). Then, for each run of equal requests, four varints:
//!
//! | varint | holds |
//! |---|---|
//! | page | zigzag delta to the run before |
//! | time | microseconds since the run before |
//! | statement | zigzag delta to the run before |
//! | flags | bit 0: by a scan; bit 1: made anew; above: how often it was repeated |
//!
//! Varints are LEB128: seven bits a byte, the lowest first. A request of a hot loop takes four to
//! six bytes. A run is what one statement did to one page without looking at another: fifty rows
//! of a page read by a scan are one record, at the time of the first. A longer run than 4096 is
//! several records: a reader's memory stays in proportion to the file.
//!
//! There is no count and no end mark: a recorder that is killed leaves a trace up to its last whole
//! record. A file that ends within a record is refused.

use std::io::{self, BufRead, Read, Write};

use crate::access_sampling::Sample;

/// One request for one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceRequest {
    /// Page: tablespace in the upper 32 bits, page number in the lower.
    pub page: u64,
    /// Microseconds since the trace began.
    pub at_us: u64,
    /// The statement that asked. Requests of one statement for one page are one use of it, however
    /// many rows it read there.
    pub statement: u64,
    /// Asked for by a whole-table scan, as the layer above knows.
    pub scan: bool,
    /// Made anew: whether resident or not, it was not read from disk.
    pub created: bool,
}

/// A sequence of requests in time order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// For tables and messages.
    pub name: String,
    /// The pages that it speaks of.
    pub sample: Sample,
    pub requests: Vec<TraceRequest>,
}

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("reading the trace: {0}")]
    Io(#[from] io::Error),
    /// Not a trace, or a damaged one.
    #[error("not a page trace: {0}")]
    Format(&'static str),
}

const MAGIC: &[u8; 8] = b"TPTRACE3";

const SCAN: u64 = 1;
const CREATED: u64 = 2;
const REPETITIONS_SHIFT: u32 = 2;
/// Requests in one record, at most.
const RUN_MAX: u64 = 4096;

/// Writes a trace, request by request.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    last: TraceRequest,
    bytes: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of the pages in `sample`.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn new(out: W, sample: Sample) -> io::Result<TraceWriter<W>> {
        let mut writer = TraceWriter { out, last: TraceRequest::default(), bytes: 0 };
        writer.out.write_all(MAGIC)?;
        writer.bytes = MAGIC.len() as u64;
        writer.varint(sample.bound())?;
        Ok(writer)
    }

    /// Appends the request, `count` times (at least once). Times that go back are taken for the
    /// time of the request before.
    ///
    /// # Errors
    /// What `out` reports. The file is of no use then from this request on.
    pub fn push(&mut self, request: &TraceRequest, count: u64) -> io::Result<()> {
        let mut left = count.max(1);
        while left > 0 {
            let run = left.min(RUN_MAX);
            self.record(request, run)?;
            left -= run;
        }
        Ok(())
    }

    /// Appends one record; `count` is at least 1.
    fn record(&mut self, request: &TraceRequest, count: u64) -> io::Result<()> {
        let last = std::mem::replace(&mut self.last, *request);
        self.last.at_us = request.at_us.max(last.at_us);
        self.varint(zigzag(request.page.wrapping_sub(last.page)))?;
        self.varint(self.last.at_us - last.at_us)?;
        self.varint(zigzag(request.statement.wrapping_sub(last.statement)))?;
        let flags = (u64::from(request.scan) * SCAN) | (u64::from(request.created) * CREATED);
        self.varint((count - 1) << REPETITIONS_SHIFT | flags)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hands all that was written to what lies below.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn varint(&mut self, mut value: u64) -> io::Result<()> {
        let mut bytes = [0u8; 10];
        let mut len = 0;
        loop {
            bytes[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
            if value == 0 {
                break;
            }
        }
        bytes[len - 1] &= 0x7f;
        self.bytes += len as u64;
        self.out.write_all(&bytes[..len])
    }
}

/// Requests in one trace that are read into memory; a damaged count must not take all of it.
const REQUESTS_MAX: usize = 1 << 30;

impl Trace {
    /// A trace of all pages.
    pub fn new(name: &str, requests: Vec<TraceRequest>) -> Trace {
        Trace { name: name.to_owned(), sample: Sample::ALL, requests }
    }

    /// Number of different pages.
    pub fn distinct_pages(&self) -> usize {
        let mut pages: Vec<u64> = self.requests.iter().map(|r| r.page).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }

    /// The requests for those pages that are in `sample`, too.
    pub fn sampled(&self, sample: Sample) -> Trace {
        let sample = sample.min(self.sample);
        let requests = self.requests.iter().copied().filter(|request| sample.holds(request.page));
        Trace { name: self.name.clone(), sample, requests: requests.collect() }
    }

    /// Bytes that its file would have.
    pub fn file_bytes(&self) -> u64 {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).expect("memory takes all");
        bytes.len() as u64
    }

    /// Writes the trace in its file format.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut writer = TraceWriter::new(out, self.sample)?;
        for run in self.requests.chunk_by(|a, b| a == b) {
            writer.push(&run[0], run.len() as u64)?;
        }
        writer.flush()
    }

    /// Reads a trace to the end of `input`.
    ///
    /// # Errors
    /// A wrong magic, a record that is cut off, or what `input` reports.
    pub fn read_from(name: &str, input: &mut impl BufRead) -> Result<Trace, TraceError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(|_| TraceError::Format("shorter than its header"))?;
        if &magic != MAGIC {
            return Err(TraceError::Format("the file does not begin with TPTRACE3"));
        }
        let sample = Sample::of_bound(read_varint(input)?);
        let mut requests = Vec::new();
        let mut last = TraceRequest::default();
        while !input.fill_buf()?.is_empty() {
            let page = last.page.wrapping_add(unzigzag(read_varint(input)?));
            let at_us = last.at_us.saturating_add(read_varint(input)?);
            let statement = last.statement.wrapping_add(unzigzag(read_varint(input)?));
            let flags = read_varint(input)?;
            let (scan, created) = (flags & SCAN != 0, flags & CREATED != 0);
            last = TraceRequest { page, at_us, statement, scan, created };
            let repetitions = flags >> REPETITIONS_SHIFT;
            if repetitions >= RUN_MAX {
                return Err(TraceError::Format("a run is longer than a record may tell"));
            }
            if repetitions >= (REQUESTS_MAX - requests.len()) as u64 {
                return Err(TraceError::Format("it has more requests than fit into memory"));
            }
            requests.resize(requests.len() + 1 + repetitions as usize, last);
        }
        Ok(Trace { name: name.to_owned(), sample, requests })
    }
}

fn zigzag(delta: u64) -> u64 {
    let delta = delta as i64;
    ((delta << 1) ^ (delta >> 63)) as u64
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

fn read_varint(input: &mut impl Read) -> Result<u64, TraceError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte).map_err(|_| TraceError::Format("a record is cut off"))?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(TraceError::Format("a number is longer than 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Raw = (u64, u32, u64, (bool, bool), u8);

    proptest! {
        #[test]
        fn a_trace_survives_its_file(
            raw in prop::collection::vec(any::<Raw>(), 0..200),
            bound in 0..=1u64 << 32,
        ) {
            let mut at_us = 0;
            let mut requests = Vec::new();
            for (page, step, statement, (scan, created), repetitions) in raw {
                at_us += u64::from(step);
                let request = TraceRequest { page, at_us, statement, scan, created };
                requests.extend(std::iter::repeat_n(request, 1 + usize::from(repetitions % 4)));
            }
            let trace = Trace { name: "t".into(), sample: Sample::of_bound(bound), requests };
            let mut bytes = Vec::new();
            trace.write_to(&mut bytes).unwrap();
            prop_assert_eq!(Trace::read_from("t", &mut bytes.as_slice()).unwrap(), trace);
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut file = MAGIC.to_vec();
            file.push(0);
            // Counts of repetitions are kept small: a large one is legal, and would only be slow.
            file.extend(bytes.iter().map(|byte| byte & 0x3f));
            let _ = Trace::read_from("t", &mut file.as_slice());
            prop_assert!(Trace::read_from("t", &mut bytes.as_slice()).is_err());
        }
    }

    #[test]
    fn runs_are_one_record_and_impossible_ones_are_refused() {
        let request = TraceRequest { page: 7, statement: 1, ..TraceRequest::default() };
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(&mut bytes, Sample::ALL).unwrap();
        writer.push(&request, 100).unwrap();
        assert_eq!(writer.bytes(), 8 + 5 + 5);
        let trace = Trace::read_from("t", &mut bytes.as_slice()).unwrap();
        assert_eq!(trace.requests, vec![request; 100]);

        // A long run is several records, none of which says more than a record may.
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(&mut bytes, Sample::ALL).unwrap();
        writer.push(&request, 3 * RUN_MAX + 5).unwrap();
        let trace = Trace::read_from("t", &mut bytes.as_slice()).unwrap();
        assert_eq!(trace.requests.len() as u64, 3 * RUN_MAX + 5);

        // Twenty bytes that ask for 32 GiB.
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(&mut bytes, Sample::ALL).unwrap();
        writer.record(&request, 1 << 30).unwrap();
        let error = Trace::read_from("t", &mut bytes.as_slice()).unwrap_err();
        assert!(error.to_string().contains("a run is longer than"), "{error}");
    }
}
