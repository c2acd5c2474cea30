//! `nightly --hours N`: everything that goes on from seeds, in turns. See
//! `tidepool_tests::nightly`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, duration};
use tidepool_tests::nightly::{PIECES, Settings, run};

const USAGE: &str = "nightly [--hours N] [--seed S] [--only NAME]…";

fn settings() -> Result<Settings, lexopt::Error> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut settings = Settings {
        duration: Duration::from_secs(8 * 3600),
        seed: clock,
        only: Vec::new(),
        root: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".."),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("hours") => {
                settings.duration = duration(&mut parser, 3600)?;
            }
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("only") => {
                let name = parser.value()?.string()?;
                if !PIECES.iter().any(|piece| piece.name == name) {
                    return Err(format!("'{name}' is no piece of the night").into());
                }
                settings.only.push(name);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    let pieces = PIECES.iter().map(|piece| format!("\n  {:<14}{}", piece.name, piece.what));
    let usage = format!("{USAGE}{}", pieces.collect::<String>());
    command_line::main(&usage, settings(), |settings| {
        println!("seed {}", settings.seed);
        let summary = run(settings);
        println!("\n{summary}");
        summary.failures() == 0
    })
}
