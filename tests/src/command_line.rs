//! What the command lines of the programs have in common.

use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Error, Parser, ValueExt};

/// A program's `main`: runs it with its options, or shows how it is used. The status is 0 if `run`
/// says that all is well, 1 if it does not, and 2 if the options can't be.
pub fn main<T>(usage: &str, options: Result<T, Error>, run: impl FnOnce(&T) -> bool) -> ExitCode {
    match options {
        Ok(options) if run(&options) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}\nusage: {usage}");
            ExitCode::from(2)
        }
    }
}

/// The option's value, by its name.
///
/// # Errors
/// There is no value, or `by_name` does not know it.
pub fn named<T, E: Into<Error>>(
    parser: &mut Parser,
    by_name: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Error> {
    by_name(&parser.value()?.string()?).map_err(Into::into)
}

/// The option's values, separated by commas.
///
/// # Errors
/// There is no value, or `by_name` does not know one.
pub fn list<T, E: Into<Error>>(
    parser: &mut Parser,
    by_name: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Error> {
    let text = parser.value()?.string()?;
    text.split(',').map(|name| by_name(name).map_err(Into::into)).collect()
}

/// The option's value as a number of units of `unit_s` seconds, which may have a fraction.
///
/// # Errors
/// It is no number, or no duration has it: it is negative, or too large.
pub fn duration(parser: &mut Parser, unit_s: u32) -> Result<Duration, Error> {
    let units: f64 = parser.value()?.parse()?;
    let duration = Duration::try_from_secs_f64(units * f64::from(unit_s));
    duration.map_err(|error| format!("{units}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(words: &[&str]) -> Parser {
        let mut parser = Parser::from_args(words);
        parser.next().expect("an option").expect("an option");
        parser
    }

    #[test]
    fn a_duration_has_a_fraction_and_is_never_negative() {
        let of = |text| duration(&mut parser(&["--minutes", text]), 60);
        assert_eq!(of("1.5").unwrap(), Duration::from_secs(90));
        for text in ["-1", "NaN", "1e300", "soon", ""] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_has_each_name_or_says_which_it_does_not_know() {
        let digit = |name: &str| name.parse::<u8>().map_err(|_| format!("{name}: no digit"));
        assert_eq!(list(&mut parser(&["--flush", "0,2"]), digit).unwrap(), [0, 2]);
        let error = list(&mut parser(&["--flush", "0,x"]), digit).unwrap_err();
        assert_eq!(error.to_string(), "x: no digit");
    }
}
