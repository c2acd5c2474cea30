//! `tidepool govern`: keeps the InnoDB pool of a running server at the right size.
//!
//! The decisions are crate `governor`'s: the tightest limit less everything but the pool, measured
//! several times a second; swap and memory stalls outrank that. This module carries them out on a
//! server that it reaches as any client does.
//!
//! # Small steps
//! A resize is a sequence of `SET GLOBAL innodb_buffer_pool_size`, each so small that it costs the
//! queries less than `--max-stall` of their work ([`step_size`], [`probe`]), with a rest after
//! each. When memory runs out *now* (half of the headroom is gone), there is no rest: a stall is
//! better than swap, and much better than the kernel's killer. Steps are hardly larger then: a
//! server gives the memory of a step back at its end.
//!
//! # Ahead of the neighbours
//! A size takes effect after a reading, a statement, and the looks at what it cost: up to half a
//! second, where a pool that governs itself needs a few milliseconds. So the headroom is ahead of
//! the others' pace by that time, and up to twice as large where nothing moves (`TIMING`). Between
//! two readings the room is glanced at, which needs no server: when it goes, the next reading comes
//! at once. When others take it at a pace that leaves less than half of the headroom by the end of
//! a step ([`burst`]), no step down is small or rested from for a second: each has its fixed cost,
//! and in the time of a small one more is taken than it gives back. Nor is one rested from when
//! that half has gone. The governor hears what each step took, so that a large one is not gone back
//! on in the middle of the burst.
//!
//! # What is promised
//! Memory that the server has reserved for its other caches and its connections counts as used
//! before it is ([`reserve`]): it can be taken faster than a pool shrinks. Only the *urgency* of a
//! step follows what is used. Where the reservations alone exceed the limit, no size of the pool
//! helps, and a note says so before the first step.
//!
//! # What is safe when
//! * Every size that is ever set, each step's included, fits the memory there was at that moment,
//!   with headroom. So wherever this program ends (SIGTERM, SIGKILL, a power cut of its machine),
//!   the server is left with a size that was safe then. It only stops being *adjusted*.
//! * On SIGTERM or SIGINT the running step is finished, nothing is restored: the size that the
//!   server started with may be the very one that does not fit any more.
//! * Shrinking needs no further condition, and ends when the room that went is back
//!   ([`size_target`]). Growing needs room that has lasted, a full pool that misses, and data left
//!   to cache; and the room is checked again before each step.
//! * Nothing is written to the server's option files: after a restart it has its own size, and is
//!   governed from there.

pub mod bounds;
pub mod burst;
pub mod governing;
pub mod lock;
pub mod log;
pub mod mariadb_shrink;
pub mod pool;
pub mod probe;
pub mod reserve;
pub mod single_instance;
pub mod size_target;
pub mod step_size;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidepool_governor::Timing;
use tidepool_governor::kernel::Root;

use crate::bytes::{MIB, human, parse};
use crate::clock::after;
use crate::connect::{self, Target};
use crate::exit::{Error, Result};
use crate::facts::machine::huge_bytes;
use crate::facts::process::{Running, chosen_process};
use crate::rules::room::is_in_huge_pages;
use crate::server::Server;
use crate::terminal::{Verbosity, print_error};
use bounds::Bounds;
use governing::Governing;
use log::Log;
use pool::InnodbPool;
use single_instance::{Claim, SingleInstance};

/// How often the signals are read while nothing happens.
const TICK: Duration = Duration::from_millis(100);
/// How often the room alone is looked at in between.
const GLANCE: Duration = Duration::from_millis(20);
/// Less than this is no news between two readings.
const GLANCE_MIN_BYTES: u64 = 4 * MIB;
/// How fast a pool can be resized from outside.
const TIMING: Timing = Timing {
    reaction: Duration::from_millis(500),
    pace: Duration::from_millis(200),
    lead: Duration::from_millis(600),
    // A step takes 0.1 s or more, and a process that fills fresh memory takes a GiB a second.
    unforeseen_bytes: 128 * MIB,
};
/// After the server refused a step.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A server whose process runs is tried again for this time, and with this time between two tries.
const RECONNECT_FOR: Duration = Duration::from_secs(60);
const RECONNECT_EVERY: Duration = Duration::from_millis(500);
/// A server that is asked when the user ends the program has this time to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// What goes on is said again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// While another program is resizing. Its steps are short, and memory may be too.
const BUSY_RETRY_AFTER: Duration = Duration::from_millis(200);

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Really set the size. Without this the decisions are only printed
    #[arg(long)]
    apply: bool,
    /// Never below this size [default: 64M, or the size now or --max if that is smaller]
    #[arg(long, value_name = "SIZE", value_parser = parse)]
    min: Option<u64>,
    /// Never above this size [default: what fits]
    #[arg(long, value_name = "SIZE", value_parser = parse)]
    max: Option<u64>,
    /// Maximum query time that one step may cost, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    max_stall: u64,
    /// Append the decisions to this file, as JSON lines
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
    if let (Some(min), Some(max)) = (options.min, options.max)
        && min > max
    {
        return Err(Error::Usage(format!("--min {} is above --max {}", human(min), human(max))));
    }
    let target = connection.target()?;
    let (process, mut pool) = reach(options, &target)?;
    let bounds = Bounds::new(options.min, options.max, &pool);
    bounds.check()?;
    if options.apply {
        pool.check_privilege()?;
    }
    let stop = stop_flag()?;
    end_without_an_answer(&stop, pool.is_stepping());
    let mut log = Log::open(options.log.as_deref(), verbosity)?;
    let mode = if options.apply { "" } else { " (dry run: nothing is set without --apply)" };
    let kind = pool.server().kind().clone();
    let (pid, place) = (process.pid, target.place());
    log.note(&format!("governing {kind} at {place}, process {pid}{mode}"));
    if kind.tidepool {
        log.note("governing the InnoDB pool only; the Tidepool pool manages itself");
    }
    for notice in bounds.notices(pool.size()?) {
        log.note(&notice);
    }
    let end = after(options.duration);
    let over = || stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    let alone = if options.apply { claim_server(process, &mut log, over) } else { None };
    let mut governing = Governing::new(process, pool, bounds, log, options);
    if options.apply {
        governing.measure(&target)?;
    }
    while !over() {
        alone.iter().for_each(Claim::empty_queue);
        let pause = match governing.tick(options) {
            Err(Error::Gone(why)) if governing.runs() => {
                governing.reconnect(&target, &why, over)?
            }
            pause => pause?,
        };
        governing.pause(&stop, pause);
    }
    governing.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// The server's process, and its pool.
fn reach(options: &Options, target: &Target) -> Result<(Running, InnodbPool)> {
    let named = options.pid.map(Running::named).transpose()?;
    let mut server = Server::connect(target)?;
    let variables = server.variables()?;
    let process = chosen_process(&mut server, &variables, named)?.ok_or_else(|| {
        Error::Unsupported(
            "cannot find the server's process: run govern on the server's machine, or give --pid"
                .into(),
        )
    })?;
    let mut pool = InnodbPool::new(server)?;
    if is_in_huge_pages(huge_bytes(&Root::default(), process.pid), pool.size()?) {
        // It would shrink and shrink, and room would never come of it.
        return Err(Error::Unsupported(
            "this server's pool is in huge pages: no other program can use what it gives back; start it with \
             large_pages=0"
                .into(),
        ));
    }
    Ok((process, pool))
}

/// A frozen server keeps a look waiting for minutes. When the user ends the program meanwhile, no
/// step is under way, and there is nothing to wait for.
fn end_without_an_answer(stop: &Arc<AtomicBool>, is_stepping: Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut asked_at: Option<Instant> = None;
        loop {
            sleep(TICK);
            if !stop.load(Ordering::Relaxed) || is_stepping.load(Ordering::Relaxed) {
                asked_at = None;
            } else if asked_at.get_or_insert_with(Instant::now).elapsed() >= ANSWER_WITHIN {
                let error = Error::Gone("it does not answer".into());
                print_error("tidepool", &format!("stopped; {error}"));
                std::process::exit(error.code().into());
            }
        }
    });
}

/// Waits until no other process governs this server.
fn claim_server(process: Running, log: &mut Log, over: impl Fn() -> bool) -> Option<Claim> {
    let mut known: Option<Running> = None;
    while !over() {
        match single_instance::bind(process, known) {
            SingleInstance::Ours(claim) => return Some(claim),
            SingleInstance::Another(holder) => {
                if known.replace(holder) != Some(holder) {
                    let pid = holder.pid;
                    log.note(&format!(
                        "process {pid} governs this server already: waiting until it ends"
                    ));
                }
            }
            SingleInstance::Unknown(why) => {
                log.note(&format!("whether another process governs this server is unknown: {why}"));
                return None;
            }
        }
        sleep(RECONNECT_EVERY);
    }
    None
}

/// Set by SIGTERM and SIGINT. A second one ends the program at once, which is safe too.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let register = || {
            // As a shell reports an end by this signal.
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
        };
        register().map_err(|e| Error::Local(format!("signal {signal}: {e}")))?;
    }
    Ok(stop)
}
