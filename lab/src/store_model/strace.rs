//! Page writes of a running server, seen from outside: `strace` prints each write to the
//! doublewrite file, which holds all images of a batch of dirty pages before they go home.
//!
//! So the server needs neither a setting nor a change. It writes more slowly while it is watched: a
//! batch of 128 pages is 8 MB of text.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use super::trace::{Image, Measurer, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::process::spawn_tied;

/// What the first page of a batch begins with.
const MAGIC: &[u8] = b"TPDWRITE";
/// Where that page says how many images follow.
const COUNT_AT: usize = 24;
/// Bytes of one write that are printed: more than any batch has.
const BYTES_MAX: usize = 16 << 20;

/// A server that is watched.
pub struct Watch {
    strace: Child,
    reader: Option<JoinHandle<Result<Vec<Vec<Image>>>>>,
}

impl Watch {
    /// Watches the doublewrite file of the server with this process id, in this directory.
    ///
    /// # Errors
    /// If there is no `strace`, or it may not watch that process.
    pub fn start(server: u32, engine_dir: &Path) -> Result<Watch> {
        let file = engine_dir.join("doublewrite.tpd");
        let mut command = Command::new("strace");
        command
            .args(["-f", "-xx", "-qq", "-e", "trace=pwrite64", "-e", "signal=none"])
            .args(["-s", &BYTES_MAX.to_string(), "-o", "/dev/stdout"])
            .args(["-p", &server.to_string()])
            .arg("-P")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut strace = spawn_tied(&mut command, &[]).map_err(|error| {
            Error::Missing(format!("{error}: install the package strace to record page writes"))
        })?;
        let output = strace.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || batches(BufReader::with_capacity(1 << 20, output)));
        Ok(Watch { strace, reader: Some(reader) })
    }

    /// Ends the watching; the server goes on. The batches that were written meanwhile.
    ///
    /// # Errors
    /// If what `strace` printed is not understood.
    ///
    /// # Panics
    /// If the thread that reads it did.
    pub fn finish(mut self) -> Result<Vec<Vec<Image>>> {
        let _ = kill_process(Pid::from_child(&self.strace), Signal::INT);
        let reader = self.reader.take().expect("it is taken once");
        let batches = reader.join().expect("the reader doesn't panic");
        let _ = self.strace.wait();
        batches
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.reader.is_some() {
            let _ = kill_process(Pid::from_child(&self.strace), Signal::INT);
            let _ = self.strace.wait();
        }
    }
}

/// The batches in what `strace` prints.
fn batches(mut output: impl BufRead) -> Result<Vec<Vec<Image>>> {
    let mut measurer = Measurer::new()?;
    let (mut line, mut bytes, mut batches) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = output.read_until(b'\n', &mut line).map_err(Error::io("strace"))?;
        if read == 0 {
            return Ok(batches);
        }
        if !written_bytes(&line, &mut bytes) || !bytes.starts_with(MAGIC) {
            continue;
        }
        batches.push(batch(&bytes, &mut measurer)?);
    }
}

/// The images of one batch.
fn batch(bytes: &[u8], measurer: &mut Measurer) -> Result<Vec<Image>> {
    let unknown = |message: String| Error::Program { program: "strace".into(), message };
    let count = bytes
        .get(COUNT_AT..COUNT_AT + 4)
        .map(|count| u32::from_le_bytes(count.try_into().expect("four bytes")) as usize)
        .ok_or_else(|| unknown("a batch without a header".into()))?;
    let pages = bytes.get(PAGE_BYTES..).unwrap_or_default();
    if pages.len() != count * PAGE_BYTES {
        let length = pages.len();
        return Err(unknown(format!("a batch of {count} pages has {length} bytes of images")));
    }
    Ok(pages.chunks(PAGE_BYTES).filter_map(|page| measurer.image(page)).collect())
}

/// Fills `bytes` with what a line as `7 pwrite64(23, "\x54\x50"…, 8192, 0) = 8192` says was
/// written, be it finished or not. False if the line is of another kind.
fn written_bytes(line: &[u8], bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    let Some(begin) = line.iter().position(|&byte| byte == b'"') else { return false };
    if !line[..begin].windows(9).any(|text| text == b"pwrite64(") {
        return false;
    }
    for escape in line[begin + 1..].chunks_exact(4) {
        let [b'\\', b'x', high, low] = *escape else { break };
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        bytes.push(digit(high) << 4 | digit(low));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as `strace -xx` prints it.
    fn line(bytes: &[u8], ending: &str) -> String {
        let text: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("4711  pwrite64(23, \"{text}\", {}, 0{ending}\n", bytes.len())
    }

    fn half(count: u32, pages: usize) -> Vec<u8> {
        let mut half = vec![0; PAGE_BYTES * (1 + pages)];
        half[..8].copy_from_slice(MAGIC);
        half[COUNT_AT..COUNT_AT + 4].copy_from_slice(&count.to_le_bytes());
        for (no, page) in half.chunks_mut(PAGE_BYTES).enumerate().skip(1) {
            page[4..8].copy_from_slice(&(no as u32).to_le_bytes());
            page[8..12].copy_from_slice(&17u32.to_le_bytes());
        }
        half
    }

    #[test]
    fn batches_are_read_whether_their_line_says_the_end_of_the_call_or_not() {
        let text = [
            line(&half(2, 2), ") = 49152"),
            "4712  +++ exited with 0 +++\n".into(),
            line(&[0; 512], ") = 512"),
            line(&half(1, 1), " <unfinished ...>"),
            "4711  <... pwrite64 resumed>) = 32768\n".into(),
        ];
        let batches = batches(text.concat().as_bytes()).unwrap();
        let pages: Vec<Vec<u32>> =
            batches.iter().map(|batch| batch.iter().map(|image| image.no).collect()).collect();
        assert_eq!(pages, [vec![1, 2], vec![1]]);
        assert!(batches.iter().flatten().all(|image| image.space == 17));
    }

    #[test]
    fn a_batch_that_is_not_whole_is_an_error() {
        let text = line(&half(3, 2), ") = 49152");
        let error = batches(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("a batch of 3 pages has 32768 bytes"), "{error}");
    }
}
