//! A password on the command line is refused before clap looks at it, for clap's messages repeat
//! the word that they are about.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::PASSWORD_IN_SIGHT;
use crate::exit::{Error, Result};

/// Refuses words of the command line (without the program's name) that are a password, or may be
/// one: what is attached to `-p` or `--password`, and a word after them that means nothing to the
/// program.
///
/// # Errors
/// If there is such a word; the message is without it.
pub fn refuse_password(
    mut program: Command,
    words: impl IntoIterator<Item = OsString>,
) -> Result<()> {
    // Only then does each subcommand know the global options, and the program its own `help`.
    program.build();
    let mut command = &program;
    let mut words = words.into_iter().map(|word| word.to_string_lossy().into_owned()).peekable();
    while let Some(word) = words.next() {
        let next = words.peek();
        // Flags without a value may stand before an option in one word: `-qp` is `-q -p`.
        let word = without_flags(command, &word);
        let is_password = match word.as_str() {
            "--" => return Ok(()),
            "-p" | "-p=" | "--password" | "--password=" => next.is_some_and(|next| {
                next != "--"
                    && !has_option(&program, next)
                    && command.find_subcommand(next).is_none()
            }),
            word => word.starts_with("-p") || word.starts_with("--password="),
        };
        if is_password {
            return Err(Error::Usage(PASSWORD_IN_SIGHT.into()));
        }
        // The value of an option is no subcommand, even if it is called like one.
        let has_value = command.get_arguments().any(|arg| takes_next(arg, &word));
        if has_value && next.is_some_and(|next| !next.starts_with('-')) {
            words.next();
        } else if let Some(subcommand) = command.find_subcommand(&word) {
            command = subcommand;
        }
    }
    Ok(())
}

/// The word without the flags at its beginning that take no value, as long as one letter is left.
fn without_flags(command: &Command, word: &str) -> String {
    let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-')) else {
        return word.to_owned();
    };
    let is_flag = |letter: char| {
        let is_it = |arg: &Arg| arg.get_short() == Some(letter) && !arg.get_action().takes_values();
        letter != 'p' && command.get_arguments().any(is_it)
    };
    let mut rest = letters;
    while let Some(letter) = rest.chars().next().filter(|letter| is_flag(*letter)) {
        match &rest[letter.len_utf8()..] {
            "" => break,
            more => rest = more,
        }
    }
    format!("-{rest}")
}

/// Whether the word is an option of the command or of one below it: one that stands in the wrong
/// place is no secret.
fn has_option(command: &Command, word: &str) -> bool {
    command.get_arguments().any(|arg| is_named(arg, word))
        || command.get_subcommands().any(|subcommand| has_option(subcommand, word))
}

fn is_named(arg: &Arg, word: &str) -> bool {
    if let Some(long) = word.strip_prefix("--") {
        return arg.get_long() == long.split('=').next();
    }
    let short = word.strip_prefix('-').and_then(|letters| letters.chars().next());
    short.is_some() && arg.get_short() == short
}

/// Whether the word is this option with its value still to come.
fn takes_next(arg: &Arg, word: &str) -> bool {
    let is_alone = if word.starts_with("--") { !word.contains('=') } else { word.len() == 2 };
    is_alone
        && is_named(arg, word)
        && arg.get_action().takes_values()
        && !arg.is_require_equals_set()
}
