//! The thread that looks at one server once a second, and finds it again when it was away.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::pool_content::{self, Decision};
use super::sample::{Engine, Sampler};
use super::watched::Watched;
use crate::clock::{rfc3339, unix_ms};
use crate::exit::{Error, Result};
use crate::facts::process::Running;
use crate::server::Server;

const EVERY: Duration = Duration::from_secs(1);
/// A server that has refused the account is asked again after this time.
const DENIED_EVERY: Duration = Duration::from_secs(60);
/// Seconds between two readings of what changes slowly.
const SLOWLY: u64 = 5;
/// And of the statements.
const STATEMENTS_EVERY: u64 = 10;

/// What is looked at, and for how long.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Whose pool the user named.
    pub engine: Option<Engine>,
    /// The process that the user named.
    pub process: Option<Running>,
    /// The log of `tidepool govern`.
    pub log: Option<PathBuf>,
    pub end: Option<Instant>,
}

/// What to do after each look.
pub enum After<'a> {
    /// A server that goes away may come back.
    Again,
    /// Show it; ends when that returns false, or the server goes away.
    Show(&'a dyn Fn(&Watched) -> bool),
}

/// Takes a sample once a second until it is stopped. Without a `sampler` it connects first.
///
/// # Errors
/// With [`After::Show`], if the server goes away.
pub fn look(
    mut sampler: Option<Sampler>,
    look: &Look,
    watched: &Watched,
    after: After<'_>,
) -> Result<()> {
    let over = || {
        watched.stop.load(Ordering::Relaxed) || look.end.is_some_and(|end| Instant::now() >= end)
    };
    let pause = |until: Instant| {
        while !over() && Instant::now() < until {
            sleep(Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())));
        }
    };
    let (mut round, mut next) = (0, Instant::now());
    while !over() {
        let Some(found) = &mut sampler else {
            match Server::connect(&watched.target)
                .and_then(|server| Sampler::new(server, look.engine, look.process))
            {
                Ok(again) => {
                    watched.is_back(again.about());
                    (sampler, next) = (Some(again), Instant::now());
                }
                Err(error) => {
                    let wait = pause_after(&error);
                    watched.seen().error = Some(error.to_string());
                    pause(Instant::now() + wait);
                }
            }
            continue;
        };
        match (look_once(found, look, watched, round), &after) {
            (Ok(()), _) => {}
            (Err(error), After::Show(_)) => return Err(error),
            (Err(error), After::Again) => {
                watched.seen().error = Some(error.to_string());
                sampler = None;
                pause(Instant::now() + EVERY);
                continue;
            }
        }
        if let After::Show(show) = &after
            && !show(watched)
        {
            return Ok(());
        }
        round += 1;
        // After a late look not at once another: its rates would be over next to no time.
        next = (next + EVERY).max(Instant::now() + EVERY / 2);
        pause(next);
    }
    Ok(())
}

/// How long to wait after a failed try to connect. A server that refuses the account writes each
/// try into its log, and may lock the account after some.
fn pause_after(error: &Error) -> Duration {
    match error {
        Error::Denied { .. } => DENIED_EVERY,
        _ => EVERY,
    }
}

fn look_once(sampler: &mut Sampler, look: &Look, watched: &Watched, round: u64) -> Result<()> {
    let sample = sampler.look()?;
    let curve = sampler.curve()?;
    if let (Some(archive), Some(sample)) = (&watched.archive, &sample) {
        archive.push(sample);
    }
    {
        let mut seen = watched.seen();
        seen.error = None;
        seen.looked_at = Some(Instant::now());
        seen.curve = curve;
        seen.counters = sampler.counters().clone();
        if let Some(sample) = sample {
            seen.history.push(sample);
        }
    }
    if round.is_multiple_of(STATEMENTS_EVERY) {
        let statements = sampler.statements()?;
        watched.seen().statements = statements;
    }
    if round % SLOWLY == 1 { look_slowly(sampler, look, watched) } else { Ok(()) }
}

fn look_slowly(sampler: &mut Sampler, look: &Look, watched: &Watched) -> Result<()> {
    let engine = sampler.about().engine;
    let replication = sampler.replication()?;
    watched.seen().replication = replication;
    if !pool_content::is_costly(engine) {
        let rows = pool_content::rows(sampler.server(), engine);
        let mut seen = watched.seen();
        match rows {
            Ok(rows) => {
                (seen.content, seen.content_note) = (rows, None);
                seen.content_at_ms = Some(unix_ms(SystemTime::now()));
            }
            Err(error @ Error::Gone(_)) => return Err(error),
            Err(error) => seen.content_note = Some(error.to_string()),
        }
    }
    let mut decisions_note = None;
    let mut decisions = match engine {
        Engine::Tidepool => match pool_content::decisions(sampler.server()) {
            Err(error @ Error::Privilege { .. }) => {
                decisions_note = Some(error.to_string());
                Vec::new()
            }
            decisions => decisions?,
        },
        Engine::Innodb => Vec::new(),
    };
    decisions.extend(look.log.iter().flat_map(|path| pool_content::journal(path)));
    let decisions = newest_first(decisions, watched.setter.progress().log);
    let mut seen = watched.seen();
    (seen.decisions, seen.decisions_note) = (decisions, decisions_note);
    Ok(())
}

/// Decisions of others, newest first, with this page's own (when, milliseconds since 1970, and
/// what), newest last.
fn newest_first(mut decisions: Vec<Decision>, own: Vec<(u64, String)>) -> Vec<Decision> {
    let own = own
        .into_iter()
        .rev()
        .map(|(ms, text)| Decision { at: rfc3339(UNIX_EPOCH + Duration::from_millis(ms)), text });
    decisions.extend(own);
    // Those of one second stay in their order.
    decisions.sort_by(|a, b| b.at.cmp(&a.at));
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_sizes_that_were_set_in_one_second_the_newer_is_told_first() {
        let at = |ms, text: &str| Decision {
            at: rfc3339(UNIX_EPOCH + Duration::from_millis(ms)),
            text: text.into(),
        };
        let others = vec![at(9000, "newest"), at(1000, "oldest")];
        let own = vec![(5100, "first".to_owned()), (5900, "second".to_owned())];
        let found = newest_first(others, own);
        let texts: Vec<&str> = found.iter().map(|decision| decision.text.as_str()).collect();
        assert_eq!(texts, ["newest", "second", "first", "oldest"]);
    }

    #[test]
    fn a_server_that_refuses_the_account_is_asked_rarely() {
        let (place, user, why) = (String::new(), String::new(), String::new());
        let denied = Error::Denied { place: place.clone(), user, why: why.clone() };
        assert_eq!(pause_after(&denied), DENIED_EVERY);
        assert_eq!(pause_after(&Error::NoServer { place, why }), EVERY);
    }
}
