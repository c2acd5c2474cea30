//! `tidepool watch`: the live page, and the same in the terminal.
//!
//! One thread samples the server once a second ([`sample`]) into [`Seen`]; the HTTP thread
//! ([`http`], over [`connections`]) only reads that, so any number of open pages costs the
//! server the same. One more thread sets the pool's size when the slider says so ([`setter`]);
//! [`request_guard`] decides who may move it.
//!
//! Locking: the mutexes around [`Seen`] and [`About`] are held for copies only, never across a
//! query to the server. The lock order is [`Seen`]'s, then [`About`]'s.

pub mod connections;
pub mod counters;
pub mod http;
pub mod latency;
pub mod metrics;
pub mod pool_content;
pub mod request_guard;
pub mod sample;
pub mod setter;
pub mod text;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clock::{after, rfc3339, unix_ms};
use crate::connect::{self, Target};
use crate::exit::{Error, Result};
use crate::facts::process::Running;
use crate::server::Server;
use counters::Counters;
use pool_content::Decision;
use request_guard::RequestGuard;
use sample::{About, Curve, Engine, History, Sampler};
use setter::Setter;

const EVERY: Duration = Duration::from_secs(1);
/// A server that has refused the account is asked again after this time.
const DENIED_EVERY: Duration = Duration::from_secs(60);
/// Seconds between two readings of what changes slowly.
const SLOWLY: u64 = 5;

/// There is a look each second. A server that has kept one waiting for so long does not answer: the
/// look itself fails minutes later.
const STALE: Duration = Duration::from_secs(10);

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address of the page. Anything but the loopback address shows the server's figures to
    /// everyone who can reach it
    #[arg(long, default_value = "127.0.0.1:8306", value_name = "ADDRESS:PORT")]
    listen: String,
    /// Another name or address under which the page may be asked for: a proxy's, or with --listen
    /// 0.0.0.0:… any; may be repeated
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
    /// Show it in the terminal instead
    #[arg(long)]
    text: bool,
    /// Engine whose pool to show [default: Tidepool's where it is the default engine, else
    /// InnoDB's]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Show the decisions from this file, which `tidepool govern --log` writes
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Process id of the server, where it can't be found through the connection
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Stop after SECONDS
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// The graph.
    pub history: History,
    /// What was counted so far.
    pub counters: Counters,
    /// Hit ratios by size.
    pub curve: Curve,
    /// By table and index.
    pub content: Vec<pool_content::Row>,
    /// When the content was read, milliseconds since 1970.
    pub content_at_ms: Option<u64>,
    /// Why there is no content.
    pub content_note: Option<String>,
    /// Newest first.
    pub decisions: Vec<Decision>,
    /// Why the engine's own are not among them.
    pub decisions_note: Option<String>,
    /// Why the last look failed, if it did.
    pub error: Option<String>,
    /// When the server last answered.
    pub looked_at: Option<Instant>,
}

impl Seen {
    /// After the server was away: its pool's earlier content is gone, and of another engine's pool
    /// all figures are.
    fn returned(&mut self, with_another_engine: bool) {
        self.content.clear();
        self.content_at_ms = None;
        if with_another_engine {
            *self = Seen { error: self.error.take(), ..Seen::default() };
        }
    }

    /// Why the newest sample is old, if it is.
    pub fn trouble(&self) -> Option<String> {
        let silent = || {
            let silence = self.looked_at?.elapsed();
            let seconds = silence.as_secs();
            (silence >= STALE).then(|| format!("the server has not answered for {seconds} s"))
        };
        self.error.clone().or_else(silent)
    }
}

/// What all threads share.
#[derive(Debug)]
pub struct Watched {
    /// How to reach the server.
    pub target: Target,
    /// Sets the pool's size.
    pub setter: Setter,
    /// Whether to stop.
    pub stop: Arc<AtomicBool>,
    about: Mutex<Arc<About>>,
    seen: Mutex<Seen>,
}

impl Watched {
    /// What doesn't change while the server runs.
    pub fn about(&self) -> Arc<About> {
        Arc::clone(&self.about.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server was away. What is there now may be another version of it, with other settings and
    /// other data.
    fn is_back(&self, now: &About) {
        let before = self.about();
        // Under the lock, so that no reader gets figures of one pool with a description of the
        // other's.
        let mut seen = self.seen();
        seen.returned(before.engine != now.engine);
        *self.about.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(now.clone());
    }

    /// What was seen so far; hold it shortly.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the command until it is stopped.
///
/// # Errors
/// See [`crate::exit`].
pub fn run(options: &Options, connection: &connect::Options) -> Result<ExitCode> {
    let process = options.pid.map(Running::named).transpose()?;
    let target = connection.target()?;
    let sampler = Sampler::new(Server::connect(&target)?, options.engine, process)?;
    let about = sampler.about().clone();
    let watched = Arc::new(Watched {
        setter: Setter::start(&target),
        target,
        stop: crate::govern::stop_flag()?,
        about: Mutex::new(Arc::new(about)),
        seen: Mutex::default(),
    });
    if options.text {
        return look(sampler, options, process, &watched).map(|()| ExitCode::SUCCESS);
    }
    let (listener, address) = listen(&options.listen)?;
    let guard = RequestGuard::new(address, &options.allow_host)?;
    let mut out = std::io::stdout();
    let about = watched.about();
    let may = match &about.fixed {
        None => "may also set the pool's size".to_owned(),
        Some(why) => format!("may also scan the pool's content, but not set its size: {why}"),
    };
    let lines = format!(
        "http://{address}/ shows {} at {}\nhttp://{address}/#token={} {may}\n",
        about.server,
        about.place,
        guard.token()
    );
    // The output may be closed: its reader is optional.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    if !address.ip().is_loopback() {
        tracing::warn!(
            "everyone who can reach {address} can read the page, and the token travels unencrypted"
        );
    }
    let http = http::start(listener, guard, Arc::clone(&watched))
        .map_err(|e| Error::Local(format!("can't answer on {address}: {e}")))?;
    let result = look(sampler, options, process, &watched);
    // Waits neither for slow clients nor for a query that one of them has requested.
    http.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

fn listen(address: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |why: String| Error::Local(format!("can't listen on {address}: {why}"));
    let unclear = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::InvalidInput => {
            failed("expected ADDRESS:PORT, for example 127.0.0.1:8306".into())
        }
        _ => failed(e.to_string()),
    };
    let wanted = address.to_socket_addrs().map_err(unclear)?.next();
    let wanted = wanted.ok_or_else(|| failed("no such address".into()))?;
    let listener = TcpListener::bind(wanted).map_err(|e| failed(e.to_string()))?;
    // Port 0 is any free one.
    let bound = listener.local_addr().map_err(|e| failed(e.to_string()))?;
    Ok((listener, bound))
}

/// Takes a sample once a second until it is stopped. A server that went away may come back: the
/// page says so and tries again. `process` is what the user named.
fn look(
    mut sampler: Sampler,
    options: &Options,
    process: Option<Running>,
    watched: &Watched,
) -> Result<()> {
    let text = options.text;
    let end = after(options.duration);
    let over =
        || watched.stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    let (mut round, mut next) = (0, Instant::now());
    while !over() {
        match look_once(&mut sampler, options, watched, round % SLOWLY == 1) {
            Ok(()) => {}
            Err(error) if text => return Err(error),
            Err(error) => {
                watched.seen().error = Some(error.to_string());
                let mut wait = EVERY;
                while !over() {
                    let until = Instant::now() + wait;
                    while !over() && Instant::now() < until {
                        sleep(Duration::from_millis(50));
                    }
                    let again = Server::connect(&watched.target)
                        .and_then(|server| Sampler::new(server, options.engine, process));
                    match again {
                        Ok(again) => {
                            watched.is_back(again.about());
                            sampler = again;
                            break;
                        }
                        Err(error) => {
                            wait = pause_after(&error);
                            watched.seen().error = Some(error.to_string());
                        }
                    }
                }
            }
        }
        if text && !text::show(watched) {
            return Ok(());
        }
        round += 1;
        // After a late look not at once another: its rates would be over next to no time.
        next = (next + EVERY).max(Instant::now() + EVERY / 2);
        while !over() && Instant::now() < next {
            sleep(Duration::from_millis(50).min(next.saturating_duration_since(Instant::now())));
        }
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

fn look_once(
    sampler: &mut Sampler,
    options: &Options,
    watched: &Watched,
    slow_too: bool,
) -> Result<()> {
    let sample = sampler.look()?;
    let curve = sampler.curve()?;
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
    if !slow_too {
        return Ok(());
    }
    let engine = sampler.about().engine;
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
    decisions.extend(options.log.iter().flat_map(|path| pool_content::journal(path)));
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
    fn an_address_without_a_port_is_refused_with_an_example() {
        let error = listen("18306").unwrap_err();
        assert_eq!(error.code(), 8);
        assert!(error.to_string().contains("expected ADDRESS:PORT"), "{error}");
    }

    #[test]
    fn a_server_that_refuses_the_account_is_asked_rarely() {
        let (place, user, why) = (String::new(), String::new(), String::new());
        let denied = Error::Denied { place: place.clone(), user, why: why.clone() };
        assert_eq!(pause_after(&denied), DENIED_EVERY);
        assert_eq!(pause_after(&Error::NoServer { place, why }), EVERY);
    }

    #[test]
    fn what_was_seen_of_another_engines_pool_is_gone_and_the_graph_of_the_same_one_stays() {
        let seen = || {
            let mut seen = Seen { decisions_note: Some("note".into()), ..Seen::default() };
            seen.history.push(sample::Sample::default());
            seen.error = Some("away".into());
            seen
        };
        let mut same = seen();
        same.returned(false);
        assert!(same.history.last().is_some() && same.decisions_note.is_some());
        let mut other = seen();
        other.returned(true);
        assert!(other.history.last().is_none() && other.decisions_note.is_none());
        assert_eq!(other.error.as_deref(), Some("away"), "until the next look");
    }
}
