//! How large the terminal is that is written to, text cut to it, and how much is written.

use std::io::{ErrorKind, IsTerminal, Stdout, Write};

use crate::exit::{Error, Result};

/// How much a command says on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    Normal,
    /// Results and errors only (`--quiet`).
    Quiet,
}

/// Columns and rows of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// How many characters a line takes.
    pub columns: usize,
    /// How many lines there are.
    pub rows: usize,
}

/// Those of standard output; `None` where that is no terminal. One that doesn't tell has 80 and 24.
pub fn size(out: &Stdout) -> Option<Size> {
    if !out.is_terminal() {
        return None;
    }
    let told = rustix::termios::tcgetwinsize(out).ok();
    let told = told.filter(|told| told.ws_col > 0 && told.ws_row > 0);
    Some(told.map_or(Size { columns: 80, rows: 24 }, |told| Size {
        columns: usize::from(told.ws_col),
        rows: usize::from(told.ws_row),
    }))
}

/// As many of the lines as there are rows, each as long as there are columns: what goes beyond
/// would move the rest.
pub fn cut(text: &str, size: Size) -> impl Iterator<Item = String> {
    text.lines().take(size.rows).map(move |line| line.chars().take(size.columns).collect())
}

/// A line without what a terminal would obey: a table, a process or a group may be named after an
/// escape sequence.
pub fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The same of each line of a text, each with its end.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line) + "\n").collect()
}

/// Prints a result for people, whatever the names in it are: see [`print()`].
///
/// # Errors
/// As [`print()`].
pub fn print_text(text: &str) -> Result<()> {
    print(&printable_lines(text))
}

/// Says on standard error why a command ended. A name in the reason may be an escape sequence.
pub fn print_error(command: &str, error: &impl std::fmt::Display) {
    eprint!("{}", error_text(command, error));
}

fn error_text(command: &str, error: &impl std::fmt::Display) -> String {
    printable_lines(&format!("{command}: {error}"))
}

/// Prints a result on standard output, as it is. A reader that has seen enough (`| head`) is no
/// error. A disk that is full is one: half of a report is none.
///
/// # Errors
/// [`Error::Local`] where it can't be written.
pub fn print(text: &str) -> Result<()> {
    print_to(&mut std::io::stdout(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Local(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_stay_out_of_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable_lines("a\x07\nb"), "a\u{fffd}\nb\n");
        let error = Error::Unsupported("`a\x1b[2J`.`t` may need\nroom".into());
        assert_eq!(error_text("tidepool", &error), "tidepool: `a\u{fffd}[2J`.`t` may need\nroom\n");
    }

    #[test]
    fn what_goes_beyond_the_terminal_is_cut() {
        let size = Size { columns: 3, rows: 2 };
        let lines: Vec<String> = cut("▁▂▃▄\nb\nc\n", size).collect();
        assert_eq!(lines, ["▁▂▃", "b"]);
    }
}
