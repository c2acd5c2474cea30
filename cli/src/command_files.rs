//! Files made from the definition of the command line: what a shell completes, and man pages.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::exit::{Error, Result};
use crate::terminal::print;

/// Prints what a shell completes.
///
/// # Errors
/// As [`print()`].
pub fn completions(mut program: Command, shell: Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, "tidepool", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Writes a page for the program and each of its commands.
///
/// # Errors
/// If a file can't be written.
pub fn man_pages(program: Command, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(program, directory))
        .map_err(|error| Error::file(directory, &error))
}
