//! Speed against InnoDB in the same server binary: two servers, the same pool size, alternating
//! runs of sysbench's scripts, data that fits the pool and data four times the pool.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, named};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sysbench::{self, Measure, Run, SCRIPTS, Tables};

const USAGE: &str = "bench [--threads 8] [--time 10] [--warm-up 2] [--rounds 3] [--pool-mib 128] [--redo-mib 512] \
[--data fits|large]… [--script NAME]… [--engine Tidepool] [--against InnoDB] [--first OPTION]… \
[-- server options of both]";

/// A row of sysbench's tables with its share of the indexes, roughly: for sizing only.
const ROW_BYTES: u64 = 235;

struct Settings {
    engines: [Engine; 2],
    threads: u32,
    time_s: u32,
    warm_up_s: u32,
    rounds: u32,
    pool_mib: u64,
    redo_mib: u64,
    data: Vec<String>,
    scripts: Vec<String>,
    server_args: Vec<String>,
    /// Server options of the first engine alone: with one engine twice, what these cost.
    first_args: Vec<String>,
}

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings = Settings {
        engines: [Engine::Tidepool, Engine::InnoDb],
        threads: 8,
        time_s: 10,
        warm_up_s: 2,
        rounds: 3,
        pool_mib: 128,
        redo_mib: 512,
        data: Vec::new(),
        scripts: Vec::new(),
        server_args: Vec::new(),
        first_args: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("threads") => settings.threads = parser.value()?.parse()?,
            Long("time") => settings.time_s = parser.value()?.parse()?,
            Long("warm-up") => settings.warm_up_s = parser.value()?.parse()?,
            Long("rounds") => settings.rounds = parser.value()?.parse()?,
            Long("pool-mib") => settings.pool_mib = parser.value()?.parse()?,
            Long("redo-mib") => settings.redo_mib = parser.value()?.parse()?,
            Long("data") => settings.data.push(parser.value()?.string()?),
            Long("script") => settings.scripts.push(parser.value()?.string()?),
            Long("engine") => settings.engines[0] = named(&mut parser, Engine::by_name)?,
            Long("against") => settings.engines[1] = named(&mut parser, Engine::by_name)?,
            Long("first") => settings.first_args.push(parser.value()?.string()?),
            Value(value) => settings.server_args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

/// A server with the settings that both have: O_DIRECT and a log flush at every commit are defaults
/// of both.
fn start(engine: Engine, settings: &Settings, more: &[String]) -> Server {
    let mut options = Options::new("bench")
        .engine(engine)
        .arg(engine.pool_size_option(settings.pool_mib << 20))
        .arg(match engine {
            Engine::InnoDb => format!("--innodb-log-file-size={}M", settings.redo_mib),
            Engine::Tidepool => format!("--tidepool-redo-log-capacity={}M", settings.redo_mib),
        })
        .arg(match engine {
            Engine::InnoDb => "--innodb-flush-log-at-trx-commit=1",
            Engine::Tidepool => "--tidepool-flush-log-at-trx-commit=1",
        });
    options.args.extend(settings.server_args.iter().chain(more).cloned());
    Server::start(options)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// Alternating runs of one script; the measures of each engine.
fn measure(
    servers: &[Server; 2],
    tables: Tables,
    script: &str,
    settings: &Settings,
) -> Result<[Vec<Measure>; 2], String> {
    let run = Run { script, threads: settings.threads, time_s: settings.time_s, args: &[] };
    let warm_up = Run { time_s: settings.warm_up_s, ..run.clone() };
    let mut measures = [Vec::new(), Vec::new()];
    if settings.warm_up_s > 0 && script != sysbench::BULK_INSERT {
        for server in servers {
            sysbench::run(server, tables, &warm_up)?;
        }
    }
    for round in 0..settings.rounds {
        for turn in 0..2 {
            // A B, B A, A B: whatever drifts, drifts for both.
            let which = ((round + turn) % 2) as usize;
            sleep(Duration::from_millis(500));
            measures[which].push(sysbench::run(&servers[which], tables, &run)?);
        }
    }
    Ok(measures)
}

/// A row of the table.
fn row(script: &str, measures: &[Vec<Measure>; 2]) -> String {
    let middle = |which: usize, value: fn(&Measure) -> f64| {
        median(measures[which].iter().map(value).collect())
    };
    let (tps, against) = (middle(0, |m| m.tps), middle(1, |m| m.tps));
    let (p95, p95_against) = (middle(0, |m| m.p95_ms), middle(1, |m| m.p95_ms));
    format!(
        "| {script} | {tps:.0} | {against:.0} | **{:.2}** | {p95:.2} | {p95_against:.2} |",
        tps / against
    )
}

fn json(data: &str, script: &str, settings: &Settings, measures: &[Vec<Measure>; 2]) -> String {
    let mut text = String::new();
    for (engine, measures) in settings.engines.iter().zip(measures) {
        for m in measures {
            let _ = writeln!(
                text,
                "{{\"engine\": \"{}\", \"data\": \"{data}\", \"script\": \"{script}\", \"threads\": {}, \"time_s\": {}, \
                 \"pool_mib\": {}, \"tps\": {}, \"qps\": {}, \"p95_ms\": {}, \"max_ms\": {}, \"repeated\": {}}}",
                engine.name(),
                settings.threads,
                settings.time_s,
                settings.pool_mib,
                m.tps,
                m.qps,
                m.p95_ms,
                m.max_ms,
                m.ignored_errors,
            );
        }
    }
    text
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), bench)
}

/// Measures all; whether every script ran.
fn bench(settings: &Settings) -> bool {
    let dir = Environment::get().root().join("var/bench");
    fs::create_dir_all(&dir).expect("var/bench can be made");
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("bench.jsonl"))
        .expect("the log can be opened");
    let [name, against] = settings.engines.map(Engine::name);
    let pool_bytes = settings.pool_mib << 20;
    let mut failed = false;
    // Six tenths fit with room for undo and new rows.
    for (data, rows) in
        [("fits", pool_bytes * 6 / 10 / ROW_BYTES), ("large", pool_bytes * 4 / ROW_BYTES)]
    {
        if !settings.data.is_empty() && !settings.data.iter().any(|wanted| wanted == data) {
            continue;
        }
        let tables = Tables { count: 1, rows };
        let [first, second] = settings.engines;
        let servers = [start(first, settings, &settings.first_args), start(second, settings, &[])];
        println!(
            "\n{rows} rows, {} MiB pool ({data}), {} threads, {} × {} s\n",
            settings.pool_mib, settings.threads, settings.rounds, settings.time_s
        );
        println!(
            "| script | {name} tps | {against} tps | ratio | {name} p95 ms | {against} p95 ms |"
        );
        println!("|---|--:|--:|--:|--:|--:|");
        if let Some(error) =
            servers.iter().find_map(|server| sysbench::prepare(server, tables).err())
        {
            eprintln!("FAILED: prepare: {error}");
            failed = true;
            continue;
        }
        for script in SCRIPTS {
            if !settings.scripts.is_empty()
                && !settings.scripts.iter().any(|wanted| wanted == script)
            {
                continue;
            }
            match measure(&servers, tables, script, settings) {
                Ok(measures) => {
                    println!("{}", row(script, &measures));
                    log.write_all(json(data, script, settings, &measures).as_bytes())
                        .expect("the log can be written");
                }
                Err(error) => {
                    failed = true;
                    println!("| {script} | FAILED | | | | |");
                    eprintln!("{script}: {error}");
                }
            }
        }
    }
    !failed
}
