//! `tidepool advise`: looks, prints what is wrong and what to set, changes nothing.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::bytes::human;
use crate::connect;
use crate::curve::{self, Change};
use crate::exit::{FOUND_SOMETHING, Result, UNKNOWN};
use crate::facts::gather::gather;
use crate::facts::{Facts, Unseen};
use crate::rules::{Finding, Severity, evaluate, is_healthy};
use crate::server::Server;
use crate::terminal::{self, printable_lines};

/// Lines are no longer than this, however wide the terminal is.
const WIDE: usize = 100;

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print everything as JSON, for programs: the same as --format=json
    #[arg(long)]
    json: bool,
    /// What to print: text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t = Format::Text, conflicts_with = "json")]
    format: Format,
    /// Exit with 10 if anything was found, and with 3 if nothing was and not everything could be
    /// seen
    #[arg(long)]
    check: bool,
    /// Seconds between the two looks at the counters
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
}

/// What is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Options {
    fn is_json(&self) -> bool {
        self.json || self.format == Format::Json
    }
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=3600.0).contains(&value) => Ok(value),
        _ => Err("from 0.1 to 3600 seconds".into()),
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// `null` where nothing was found and not everything was seen.
    healthy: Option<bool>,
    findings: &'a [Finding],
    unseen: &'a [Unseen],
    /// What more or less memory for Tidepool's pool would bring; empty where that isn't known.
    curve: Vec<Change>,
    facts: &'a Facts,
}

/// Runs the command.
///
/// # Errors
/// See [`crate::exit`].
pub fn run(options: &Options, connection: &connect::Options) -> Result<ExitCode> {
    let mut server = Server::connect(&connection.target()?)?;
    let progress = progress(options, &server);
    let facts = gather(&mut server, Duration::from_secs_f64(options.interval))?;
    progress.finish_and_clear();
    let findings = evaluate(&facts);
    let healthy = is_healthy(&facts, &findings);
    let text = if options.is_json() {
        let curve = facts.tidepool.as_ref().map(curve::changes).unwrap_or_default();
        let (findings, unseen, facts) = (&findings, &facts.unseen, &facts);
        let report = Report { healthy, findings, unseen, curve, facts };
        serde_json::to_string_pretty(&report).expect("plain figures can be written") + "\n"
    } else {
        let terminal = terminal::size(&std::io::stdout());
        render(&facts, &findings, terminal.map_or(WIDE, |terminal| terminal.columns.min(WIDE)))
    };
    terminal::print(&text)?;
    Ok(match (options.check, healthy) {
        (false, _) | (true, Some(true)) => ExitCode::SUCCESS,
        (true, Some(false)) => ExitCode::from(FOUND_SOMETHING),
        (true, None) => ExitCode::from(UNKNOWN),
    })
}

fn progress(options: &Options, server: &Server) -> ProgressBar {
    if options.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg}");
    let bar = ProgressBar::new_spinner().with_message(format!(
        "looking at {} for {} s",
        server.kind(),
        options.interval
    ));
    bar.set_style(style.expect("the template is right"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// The report for people, in lines of at most this many columns where word breaks allow it.
pub fn render(facts: &Facts, findings: &[Finding], columns: usize) -> String {
    let mut text = head(facts);
    for (number, finding) in findings.iter().enumerate() {
        text.push('\n');
        text.push_str(&section(number + 1, finding, columns));
    }
    text.push_str(match is_healthy(facts, findings) {
        Some(true) => "\nHealthy: nothing to change.\n",
        None => "\nNo findings, but some checks were skipped (see below).\n",
        Some(false) => "",
    });
    for unseen in &facts.unseen {
        // A statement to copy, or a sentence.
        let end = if unseen.remedy.starts_with("GRANT ") { ";" } else { "" };
        let Unseen { what, remedy } = unseen;
        text.push_str(&format!("\nSkipped: {what}\n    requires: {remedy}{end}\n"));
    }
    if facts.machine.is_none() {
        text.push_str(
            "\nHost metrics are unavailable: pool size, swap and connections were not checked.\n",
        );
    }
    printable_lines(&text)
}

fn head(facts: &Facts) -> String {
    let mut lines = vec![format!("{}, up {}", facts.kind, duration(facts.uptime_s))];
    if let Some(pool) = &facts.pool {
        let hits =
            pool.hit_ratio().map_or(String::new(), |hit| format!(", {:.2} % hits", hit * 100.0));
        lines.push(format!(
            "InnoDB pool {} ({} used{hits}), data {}",
            human(pool.size_bytes),
            human(pool.size_bytes.saturating_sub(pool.free_bytes)),
            seen(facts.data.is_seen(), facts.data.innodb_bytes())
        ));
    }
    if let Some(tidepool) = &facts.tidepool {
        let size = match tidepool.size_setting_bytes {
            0 => format!("governed, may hold {} now", human(tidepool.limit_bytes)),
            bytes => human(bytes),
        };
        lines.push(format!(
            "Tidepool pool {size} ({} used), data {}",
            human(tidepool.data_bytes),
            seen(!facts.data.is_partial, facts.data.tidepool_bytes)
        ));
    }
    if let Some(machine) = &facts.machine {
        lines.push(format!(
            "tightest limit: {} with {}, {} of it free",
            machine.limit_place,
            human(machine.limit_bytes),
            human(machine.room_bytes)
        ));
        let others: Vec<String> = machine
            .others
            .iter()
            .filter(|other| other.resident_bytes > machine.memory_bytes / 50)
            .map(|other| format!("{} {}", other.name, human(other.resident_bytes)))
            .collect();
        if !others.is_empty() {
            lines.push(format!("large neighbours: {}", others.join(", ")));
        }
    }
    lines.join("\n") + "\n"
}

/// The size of the data, as far as this user may see it.
fn seen(is_all: bool, bytes: u64) -> String {
    if is_all {
        human(bytes)
    } else {
        format!("size unknown (missing privileges; {} visible)", human(bytes))
    }
}

fn section(number: usize, finding: &Finding, columns: usize) -> String {
    let severity = match finding.severity {
        Severity::Critical => "CRITICAL",
        Severity::High => "HIGH",
        Severity::Medium => "medium",
        Severity::Low => "low",
        Severity::Note => "note",
    };
    let title = format!("{number}. [{severity}] {}", finding.title);
    let mut text = wrapped(&title, "", "   ", columns);
    text.push_str(&wrapped(&finding.why, "   ", "   ", columns));
    if !finding.risk.is_empty() {
        text.push_str(&wrapped(&format!("Risk: {}.", finding.risk), "   ", "   ", columns));
    }
    let mut block = |label: &str, lines: &[String]| {
        if !lines.is_empty() {
            text.push_str(&format!("   {label}\n"));
            lines.iter().for_each(|line| text.push_str(&format!("       {line}\n")));
        }
    };
    block("Apply now:", &finding.set);
    let config: Vec<String> =
        std::iter::once("[mysqld]".to_owned()).chain(finding.config.iter().cloned()).collect();
    let label = if finding.restart {
        "In my.cnf (takes effect at a restart):"
    } else {
        "In my.cnf, to keep it:"
    };
    block(label, if finding.config.is_empty() { &[] } else { &config });
    block("Run as root:", &finding.commands);
    if !finding.alternative.is_empty() {
        text.push_str(&wrapped(
            &format!("Alternative: {}.", finding.alternative),
            "   ",
            "   ",
            columns,
        ));
    }
    text
}

/// Lines of at most this many columns, except for a longer word. The first line begins with
/// `first`, the others with `indent`.
fn wrapped(text: &str, first: &str, indent: &str, columns: usize) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push_str(&format!("{line}\n"));
            (line, is_empty) = (indent.to_owned(), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines + &line + "\n"
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_the_terminal_does() {
        let text = wrapped("1. [low] The buffer pool of 128 MiB", "", "   ", 20);
        assert_eq!(text, "1. [low] The buffer\n   pool of 128 MiB\n");
        assert_eq!(wrapped("a verylongword b", "   ", "   ", 8), "   a\n   verylongword\n   b\n");
    }

    #[test]
    fn another_way_is_told_after_the_lines_that_it_takes_the_place_of() {
        let finding = Finding {
            rule: "pool_default",
            severity: Severity::Low,
            title: "title".into(),
            why: "Why.".into(),
            risk: String::new(),
            set: Vec::new(),
            config: vec!["innodb_buffer_pool_size = 1G".into()],
            alternative: "with the option".into(),
            commands: Vec::new(),
            restart: false,
        };
        let text = section(1, &finding, 80);
        let end = "       innodb_buffer_pool_size = 1G\n   Alternative: with the option.\n";
        assert!(text.ends_with(end), "{text}");
        let alone = Finding { alternative: String::new(), ..finding };
        assert!(!section(1, &alone, 80).contains("Alternative"));
    }
}
