//! `tidepool watch`: the live page, and the same in the terminal.
//!
//! One thread a server samples it once a second ([`looking`], [`sample`]) into
//! [`watched::Watched`]; the HTTP thread ([`http`], over [`connections`]) only reads that, so any
//! number of open pages costs the server the same. One more thread sets the pool's size when the
//! slider says so ([`setter`]); [`request_guard`] decides who may move it. [`archive`] keeps days.

pub mod archive;
pub mod connections;
pub mod counters;
pub mod exposition;
pub mod health;
pub mod http;
pub mod innodb_metrics;
pub mod latency;
pub mod looking;
pub mod metrics;
pub mod pool_content;
pub mod replication;
pub mod request_guard;
pub mod sample;
pub mod setter;
pub mod statements;
pub mod text;
pub mod watched;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::clock::after;
use crate::connect::{self, Target};
use crate::exit::{Error, Result};
use crate::facts::process::Running;
use crate::server::Server;
use crate::terminal::Verbosity;
use archive::Archive;
use looking::{After, Look};
use request_guard::RequestGuard;
use sample::{About, Engine, Sampler};
use watched::Watched;

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
    /// Watch the server that the groups `[client_NAME]` of the option files lead to; may be
    /// repeated, for several servers on one page
    #[arg(long, value_name = "NAME", conflicts_with_all = ["text", "pid", "log"])]
    server: Vec<String>,
    /// Keep history over 30 days in this directory: a file of 5 MB for each server
    #[arg(long, value_name = "DIR", conflicts_with = "text")]
    history: Option<PathBuf>,
    /// Show it in the terminal instead
    #[arg(long)]
    text: bool,
    /// With --text: "json" prints an object a second, with all figures
    #[arg(long, value_enum, default_value_t = text::Format::Text, requires = "text")]
    format: text::Format,
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

/// Runs the command until it is stopped.
///
/// # Errors
/// See [`crate::exit`].
pub fn run(
    options: &Options,
    connection: &connect::Options,
    verbosity: Verbosity,
) -> Result<ExitCode> {
    let process = options.pid.map(Running::named).transpose()?;
    let look = Look {
        engine: options.engine,
        process,
        log: options.log.clone(),
        end: after(options.duration),
    };
    if options.text {
        let target = connection.target()?;
        let sampler = Sampler::new(Server::connect(&target)?, options.engine, process)?;
        let stop = crate::govern::stop_flag()?;
        let watched = Watched::new(None, target, sampler.about().clone(), None, stop);
        let show = |watched: &Watched| text::show(watched, options.format);
        looking::look(Some(sampler), &look, &watched, After::Show(&show))?;
        return Ok(ExitCode::SUCCESS);
    }
    let servers = servers(options, connection)?;
    let (listener, address) = listen(&options.listen)?;
    let guard = RequestGuard::new(address, &options.allow_host)?;
    if verbosity == Verbosity::Normal {
        say_where(address, guard.token(), &servers);
    }
    if !address.ip().is_loopback() {
        tracing::warn!(
            "everyone who can reach {address} can read the page, and the token travels unencrypted"
        );
    }
    let watched = servers.iter().map(|(watched, _)| Arc::clone(watched)).collect();
    let http = http::start(listener, guard, watched)
        .map_err(|e| Error::Local(format!("can't answer on {address}: {e}")))?;
    let result = std::thread::scope(|scope| {
        let threads: Vec<_> = servers
            .into_iter()
            .map(|(watched, sampler)| {
                let look = &look;
                scope.spawn(move || looking::look(sampler, look, &watched, After::Again))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // All of them, before one's error ends the rest.
        let results: Vec<Result<()>> = threads.into_iter().map(join).collect();
        results.into_iter().collect::<Result<()>>()
    });
    // Waits neither for slow clients nor for a query that one of them has requested.
    http.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

type Found = (Arc<Watched>, Option<Sampler>);

/// The servers that are watched. A single one must answer; of several, one.
fn servers(options: &Options, connection: &connect::Options) -> Result<Vec<Found>> {
    let process = options.pid.map(Running::named).transpose()?;
    let targets: Vec<(Option<String>, Target)> = match options.server.as_slice() {
        [] => vec![(None, connection.target()?)],
        names => {
            let target = |name: &String| Ok((Some(name.clone()), connection.named_target(name)?));
            names.iter().map(target).collect::<Result<_>>()?
        }
    };
    let names: std::collections::BTreeSet<_> = targets.iter().map(|(name, _)| name).collect();
    if names.len() < targets.len() {
        return Err(Error::Usage("--server: a name is there twice".into()));
    }
    let (mut found, mut failed) = (Vec::new(), None);
    let stop = crate::govern::stop_flag()?;
    for (name, target) in targets {
        let sampler = Server::connect(&target)
            .and_then(|server| Sampler::new(server, options.engine, process));
        let sampler = match sampler {
            Ok(sampler) => Some(sampler),
            Err(error) => {
                failed = Some(error);
                None
            }
        };
        let about = match &sampler {
            Some(sampler) => sampler.about().clone(),
            None => About::unseen(target.place()),
        };
        let archive = archive(options, name.as_deref(), &about)?;
        let stop: Arc<AtomicBool> = Arc::clone(&stop);
        found.push((Arc::new(Watched::new(name, target, about, archive, stop)), sampler));
    }
    match failed.filter(|_| found.iter().all(|(_, sampler)| sampler.is_none())) {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

fn archive(options: &Options, name: Option<&str>, about: &About) -> Result<Option<Archive>> {
    let Some(directory) = &options.history else { return Ok(None) };
    let host = about.host.as_deref().unwrap_or_default();
    let name = name.map_or_else(|| format!("{host}{}", about.place), str::to_owned);
    Archive::open(directory, &name).map(Some)
}

fn say_where(address: SocketAddr, token: &str, servers: &[Found]) {
    let words = |watched: &Watched| {
        let about = watched.about();
        let name = watched.name.as_ref().map_or(String::new(), |name| format!("{name}: "));
        let server = if about.server.is_empty() { "a server" } else { &about.server };
        format!("{name}{server} at {}", about.place)
    };
    let shown: Vec<String> = servers.iter().map(|(watched, _)| words(watched)).collect();
    let fixed = servers.iter().find_map(|(watched, _)| watched.about().fixed.clone());
    let may = match fixed.filter(|_| servers.len() == 1) {
        None => "may also set the pool's size".to_owned(),
        Some(why) => format!("may also scan the pool's content, but not set its size: {why}"),
    };
    let lines = format!(
        "http://{address}/ shows {}\nhttp://{address}/#token={token} {may}\n",
        shown.join(", ")
    );
    let mut out = std::io::stdout();
    // The output may be closed: its reader is optional.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
}

fn listen(address: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |why: String| Error::Local(format!("can't listen on {address}: {why}"));
    let unclear = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::InvalidInput => Error::Usage(format!(
            "--listen {address}: expected ADDRESS:PORT, for example 127.0.0.1:8306"
        )),
        _ => failed(e.to_string()),
    };
    let wanted = address.to_socket_addrs().map_err(unclear)?.next();
    let wanted = wanted.ok_or_else(|| failed("no such address".into()))?;
    let listener = TcpListener::bind(wanted).map_err(|e| failed(e.to_string()))?;
    // Port 0 is any free one.
    let bound = listener.local_addr().map_err(|e| failed(e.to_string()))?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_is_refused_with_an_example() {
        let error = listen("18306").unwrap_err();
        assert_eq!(error.code(), 2);
        assert!(error.to_string().contains("expected ADDRESS:PORT"), "{error}");
        let error = listen("192.0.2.1:18306").unwrap_err();
        assert_eq!(error.code(), 8, "the address is another machine's");
    }
}
