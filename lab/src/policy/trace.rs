//! Page traces: what is in one request, and the file format.
//!
//! # File format
//! `TPTRACE1`, then for each request four LEB128 varints: page (zigzag delta to the request before), microseconds since the request before,
//! statement (zigzag delta), and flags (bit 0: scan). A request of a hot loop takes four to six bytes.

use std::io::{self, BufRead, Read, Write};

/// One request for one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Page: tablespace in the upper 32 bits, page number in the lower.
    pub page: u64,
    /// Microseconds since the trace began.
    pub at_us: u64,
    /// The statement that asked. Requests of one statement for one page are one use of it, however many rows it read there.
    pub statement: u64,
    /// Asked for by a whole-table scan, as the handler knows.
    pub scan: bool,
}

/// A sequence of requests in time order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// For tables and messages.
    pub name: String,
    /// The requests.
    pub requests: Vec<Request>,
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

const MAGIC: &[u8; 8] = b"TPTRACE1";

impl Trace {
    /// Number of different pages.
    pub fn distinct_pages(&self) -> usize {
        let mut pages: Vec<u64> = self.requests.iter().map(|r| r.page).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }

    /// Writes the trace in its file format.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        let mut last = Request { page: 0, at_us: 0, statement: 0, scan: false };
        for request in &self.requests {
            write_varint(out, zigzag(request.page.wrapping_sub(last.page)))?;
            write_varint(out, request.at_us.saturating_sub(last.at_us))?;
            write_varint(out, zigzag(request.statement.wrapping_sub(last.statement)))?;
            write_varint(out, u64::from(request.scan))?;
            last = *request;
        }
        Ok(())
    }

    /// Reads a trace to the end of `input`.
    ///
    /// # Errors
    /// A wrong magic, a record that is cut off, an unknown flag, or what `input` reports.
    pub fn read_from(name: &str, input: &mut impl BufRead) -> Result<Trace, TraceError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(|_| TraceError::Format("shorter than its header"))?;
        if &magic != MAGIC {
            return Err(TraceError::Format("the file does not begin with TPTRACE1"));
        }
        let mut requests = Vec::new();
        let mut last = Request { page: 0, at_us: 0, statement: 0, scan: false };
        while !input.fill_buf()?.is_empty() {
            let page = last.page.wrapping_add(unzigzag(read_varint(input)?));
            let at_us = last.at_us.saturating_add(read_varint(input)?);
            let statement = last.statement.wrapping_add(unzigzag(read_varint(input)?));
            let flags = read_varint(input)?;
            if flags > 1 {
                return Err(TraceError::Format("unknown flags: made by a newer version?"));
            }
            last = Request { page, at_us, statement, scan: flags == 1 };
            requests.push(last);
        }
        Ok(Trace { name: name.to_owned(), requests })
    }
}

fn zigzag(delta: u64) -> u64 {
    let delta = delta as i64;
    ((delta << 1) ^ (delta >> 63)) as u64
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

fn write_varint(out: &mut impl Write, mut value: u64) -> io::Result<()> {
    while value >= 0x80 {
        out.write_all(&[value as u8 | 0x80])?;
        value >>= 7;
    }
    out.write_all(&[value as u8])
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

    proptest! {
        #[test]
        fn a_trace_survives_its_file(raw in prop::collection::vec(any::<(u64, u32, u64, bool)>(), 0..200)) {
            let mut at_us = 0;
            let requests = raw.into_iter().map(|(page, step, statement, scan)| {
                at_us += u64::from(step);
                Request { page, at_us, statement, scan }
            }).collect();
            let trace = Trace { name: "t".into(), requests };
            let mut bytes = Vec::new();
            trace.write_to(&mut bytes).unwrap();
            prop_assert_eq!(Trace::read_from("t", &mut bytes.as_slice()).unwrap(), trace);
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut file = MAGIC.to_vec();
            file.extend(&bytes);
            let _ = Trace::read_from("t", &mut file.as_slice());
            prop_assert!(bytes.starts_with(MAGIC) || Trace::read_from("t", &mut bytes.as_slice()).is_err());
        }
    }
}
