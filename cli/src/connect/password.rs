//! The password, asked for on the terminal.

use std::io::{IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};

use crate::exit::{Error, Result};
use crate::server::text;

/// Asks on the terminal, without showing what is typed.
///
/// # Errors
/// [`Error::Local`] without a terminal.
pub fn ask_password(user: &str) -> Result<String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Error::Local(
            "cannot prompt for a password: standard input is not a terminal; use an option file, \
             or MYSQL_PWD"
                .into(),
        ));
    }
    let local = |e: rustix::io::Errno| Error::Local(format!("the terminal: {e}"));
    let shown = tcgetattr(&stdin).map_err(local)?;
    let interrupt = shown.special_codes[SpecialCodeIndex::VINTR];
    let mut hidden = shown.clone();
    // Ctrl-C must not end the program before the terminal shows again what is typed: it ends the
    // line, and is found in it.
    hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
    hidden.special_codes[SpecialCodeIndex::VEOL] = interrupt;
    eprint!("Password of {user}: ");
    let _ = std::io::stderr().flush();
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(local)?;
    let line = read_line(&stdin, interrupt);
    tcsetattr(&stdin, OptionalActions::Flush, &shown).map_err(local)?;
    eprintln!();
    let mut line = line.map_err(local)?;
    if line.last() == Some(&interrupt) {
        // Does not return: the default is to end.
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT);
    }
    while line.last().is_some_and(|last| matches!(last, b'\r' | b'\n')) {
        line.pop();
    }
    Ok(text(line))
}

/// A line of the terminal, and no byte more. Nothing at the end of the input.
fn read_line(stdin: &std::io::Stdin, interrupt: u8) -> rustix::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let mut part = [0; 256];
        match rustix::io::read(stdin, &mut part) {
            Ok(0) => return Ok(line),
            Ok(length) => line.extend(&part[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if line.last().is_some_and(|&last| last == b'\n' || last == interrupt) {
            return Ok(line);
        }
    }
}
