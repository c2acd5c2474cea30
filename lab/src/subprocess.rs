//! This program run again as something else: the [neighbour] and the
//! [janitor]. A binary that uses the lab calls [`main`] first.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::machine::{janitor, neighbour};

/// The first argument of a neighbour.
pub const NEIGHBOUR: &str = "__lab-neighbour";
/// The first argument of a janitor.
pub const JANITOR: &str = "__lab-janitor";

/// Runs what the first argument names, if it names one of these; nothing if the program was started
/// by a user.
pub fn main() -> Option<ExitCode> {
    // A user's may be no UTF-8; those that this program gives itself are.
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match arguments.first()?.as_str() {
        NEIGHBOUR => Some(neighbour::main(&arguments[1..])),
        JANITOR => Some(janitor::main(&arguments[1..])),
        _ => None,
    }
}

/// The path of the running program, for starting it again.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(Error::io("the path of this program"))
}
