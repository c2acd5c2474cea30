//! Every script of Debian's sysbench, plain and in variants; a script that reports an error fails
//! the run.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::ExitCode;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, named};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sysbench::{self, Run, SCRIPTS, Tables};

const USAGE: &str = "sysbench-all [--engine Tidepool|InnoDB] [--threads 16] [--time 60] [--rows 100000] \
[--variant plain|pareto|tables|skip-trx]… [--script NAME]… [-- server options]";

/// A variant: its name, its number of tables, its options.
struct Variant {
    name: &'static str,
    tables: u32,
    args: &'static [&'static str],
}

/// Without transactions, a script's DELETE and INSERT of the same row are two transactions: two
/// threads may insert the same key, and one of them gets "duplicate key" from any engine, so that
/// error is counted, not fatal.
const VARIANTS: [Variant; 4] = [
    Variant { name: "plain", tables: 1, args: &[] },
    Variant { name: "pareto", tables: 1, args: &["--rand-type=pareto"] },
    Variant { name: "tables", tables: 8, args: &[] },
    Variant {
        name: "skip-trx",
        tables: 1,
        args: &["--skip-trx=on", "--mysql-ignore-errors=1213,1020,1205,1062"],
    },
];

struct Settings {
    engine: Engine,
    threads: u32,
    time_s: u32,
    rows: u64,
    variants: Vec<String>,
    scripts: Vec<String>,
    server_args: Vec<String>,
}

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings = Settings {
        engine: Engine::from_environment(),
        threads: 16,
        time_s: 60,
        rows: 100_000,
        variants: Vec::new(),
        scripts: Vec::new(),
        server_args: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => settings.engine = named(&mut parser, Engine::by_name)?,
            Long("threads") => settings.threads = parser.value()?.parse()?,
            Long("time") => settings.time_s = parser.value()?.parse()?,
            Long("rows") => settings.rows = parser.value()?.parse()?,
            Long("variant") => settings.variants.push(parser.value()?.string()?),
            Long("script") => settings.scripts.push(parser.value()?.string()?),
            Value(value) => settings.server_args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

fn wanted(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|wanted| wanted == name)
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), run_all)
}

/// Runs all; whether every script ran.
fn run_all(settings: &Settings) -> bool {
    let engine = settings.engine;
    let dir = Environment::get().root().join("var/bench");
    fs::create_dir_all(&dir).expect("var/bench can be made");
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("sysbench-all.jsonl"))
        .expect("the log can be opened");
    let mut options = Options::new("sysbench").engine(engine);
    options.args.clone_from(&settings.server_args);
    let server = Server::start(options);
    println!("| variant | script | tps | queries/s | p95 ms | max ms | repeated |");
    println!("|---|---|--:|--:|--:|--:|--:|");
    let mut failures = Vec::new();
    for variant in VARIANTS.iter().filter(|v| wanted(&settings.variants, v.name)) {
        let tables = Tables { count: variant.tables, rows: settings.rows };
        if let Err(error) = sysbench::prepare(&server, tables) {
            failures.push(format!("{} prepare: {error}", variant.name));
            continue;
        }
        for script in SCRIPTS.into_iter().filter(|script| wanted(&settings.scripts, script)) {
            // Options of the OLTP scripts are unknown to bulk_insert.
            let args = if script == sysbench::BULK_INSERT { &[][..] } else { variant.args };
            let run = Run { script, threads: settings.threads, time_s: settings.time_s, args };
            match sysbench::run(&server, tables, &run) {
                Ok(m) => {
                    println!(
                        "| {} | {script} | {:.1} | {:.1} | {:.2} | {:.1} | {} |",
                        variant.name, m.tps, m.qps, m.p95_ms, m.max_ms, m.ignored_errors
                    );
                    let line = format!(
                        "{{\"engine\": \"{}\", \"variant\": \"{}\", \"script\": \"{script}\", \"threads\": {}, \
                         \"time_s\": {}, \"rows\": {}, \"tps\": {}, \"qps\": {}, \"p95_ms\": {}, \"max_ms\": {}, \
                         \"repeated\": {}}}",
                        engine.name(),
                        variant.name,
                        settings.threads,
                        settings.time_s,
                        settings.rows,
                        m.tps,
                        m.qps,
                        m.p95_ms,
                        m.max_ms,
                        m.ignored_errors,
                    );
                    writeln!(log, "{line}").expect("the log can be written");
                }
                Err(error) => {
                    println!("| {} | {script} | FAILED | | | | |", variant.name);
                    failures.push(format!("{} {script}:\n{error}", variant.name));
                }
            }
        }
    }
    for failure in &failures {
        eprintln!("\nFAILED: {failure}");
    }
    failures.is_empty()
}
