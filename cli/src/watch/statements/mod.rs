//! The statements that cost the server most in the last minute, from what a stock server offers.
//!
//! | source | has | needs |
//! |---|---|---|
//! | `slow_log` | pages that the engine read | MariaDB, `log_slow_verbosity = engine` |
//! | `digests` | rows examined, temporary tables | `performance_schema = ON` |
//!
//! Literals are never kept: a page that others can read must not show what is in the rows.

mod digests;
mod slow_log;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::exit::{Error, Result};
use crate::server::{Flavour, Named, Server, switch};
use digests::Digests;
use slow_log::SlowLog;

/// Statements shown.
const ROWS: usize = 20;
/// How far back they go.
const WINDOW: Duration = Duration::from_secs(60);
/// Different statements that are kept of one look.
const KEPT: usize = 1000;
/// Letters of a statement that are kept.
const TEXT_LENGTH: usize = 400;

/// What one statement, without its literals, has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    pub executions: u64,
    pub time_s: f64,
    pub rows_examined: u64,
    /// `None`: the source does not have it.
    pub tmp_disk_tables: Option<u64>,
    pub pages_accessed: Option<u64>,
    pub pages_read: Option<u64>,
}

impl Cost {
    fn add(&mut self, other: &Cost) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            _ => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.executions += other.executions;
        self.time_s += other.time_s;
        self.rows_examined += other.rows_examined;
        self.tmp_disk_tables = sum(self.tmp_disk_tables, other.tmp_disk_tables);
        self.pages_accessed = sum(self.pages_accessed, other.pages_accessed);
        self.pages_read = sum(self.pages_read, other.pages_read);
    }
}

/// Schema and text.
type Key = (String, String);

/// A row of the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statement {
    pub schema: String,
    pub text: String,
    #[serde(flatten)]
    pub cost: Cost,
}

/// All that is known.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Top {
    /// Most expensive first.
    pub rows: Vec<Statement>,
    /// Where they come from, for people.
    pub source: Option<String>,
    /// Why there are none, or not all, and what helps.
    pub note: Option<String>,
}

/// What came in each look of the last minute.
#[derive(Debug, Default)]
struct Window(VecDeque<(Instant, HashMap<Key, Cost>)>);

impl Window {
    fn push(&mut self, at: Instant, costs: HashMap<Key, Cost>) {
        self.0.push_back((at, costs));
        while self.0.front().is_some_and(|(then, _)| at - *then > WINDOW) {
            self.0.pop_front();
        }
    }

    /// By pages read where these are known, else by time.
    fn top(&self) -> Vec<Statement> {
        let mut sums: HashMap<&Key, Cost> = HashMap::new();
        for (key, cost) in self.0.iter().flat_map(|(_, costs)| costs) {
            sums.entry(key).or_default().add(cost);
        }
        let mut rows: Vec<Statement> = sums
            .into_iter()
            .map(|((schema, text), cost)| Statement {
                schema: schema.clone(),
                text: text.clone(),
                cost,
            })
            .collect();
        let order = |a: &Statement, b: &Statement| {
            let pages = b.cost.pages_read.cmp(&a.cost.pages_read);
            pages.then(b.cost.time_s.total_cmp(&a.cost.time_s)).then(a.text.cmp(&b.text))
        };
        rows.sort_by(order);
        rows.truncate(ROWS);
        rows
    }
}

/// Reads the best source again and again.
#[derive(Debug, Default)]
pub struct Reader {
    slow_log: Option<SlowLog>,
    digests: Digests,
    window: Window,
    /// Of the last look; another one begins anew.
    source: Option<String>,
}

impl Reader {
    /// `pid` is the server's process, where it is known.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn read(&mut self, server: &mut Server, pid: Option<u32>) -> Result<Top> {
        let settings = server.named(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('performance_schema', 'slow_query_log', \
             'slow_query_log_file', 'log_output', 'log_slow_verbosity', 'long_query_time', \
             'log_slow_query_time', 'log_slow_query_file', 'log_slow_query', 'datadir')",
        )?;
        let mut note = None;
        if let Some(path) = log_with_pages(&settings) {
            match self.read_log(&path, pid, server.connection_id()) {
                Ok((costs, is_whole)) => {
                    let longer = setting(&settings, "long_query_time");
                    let longer = longer.and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0);
                    let words = match longer > 0.0 {
                        true => format!("statements longer than {longer} s, from the slow log"),
                        false => "all statements, from the slow log".to_owned(),
                    };
                    if !is_whole {
                        let text = "The slow log grows faster than it is read here: a part counts.";
                        note = Some(text.into());
                    }
                    return Ok(self.top(words, costs, note));
                }
                Err(why) => note = Some(format!("The slow log {}: {why}.", path.display())),
            }
        }
        self.slow_log = None;
        if switch(&settings, "performance_schema") == Some(true) {
            match self.digests.read(server) {
                Ok(costs) => {
                    return Ok(self.top(
                        "all statements, from performance_schema".into(),
                        costs,
                        note,
                    ));
                }
                Err(error @ Error::Gone(_)) => return Err(error),
                Err(error) => note = Some(error.to_string()),
            }
        }
        let note = note.unwrap_or_else(|| how_to_get_it(server.kind().flavour).into());
        Ok(Top { note: Some(note), ..Top::default() })
    }

    fn read_log(
        &mut self,
        path: &std::path::Path,
        pid: Option<u32>,
        own_connection: u32,
    ) -> std::result::Result<(HashMap<Key, Cost>, bool), String> {
        let log = match &mut self.slow_log {
            Some(log) if log.is_of(path) => log,
            slow_log => slow_log.insert(SlowLog::open(path, pid)?),
        };
        log.read(own_connection)
    }

    fn top(&mut self, source: String, costs: HashMap<Key, Cost>, note: Option<String>) -> Top {
        if self.source.as_ref() != Some(&source) {
            self.window = Window::default();
            self.source = Some(source.clone());
        }
        self.window.push(Instant::now(), costs);
        Top { rows: self.window.top(), source: Some(source), note }
    }
}

fn setting<'a>(settings: &'a Named, name: &str) -> Option<&'a str> {
    settings.get(name).map(String::as_str)
}

/// The slow log's file, where the server writes one with the engine's figures.
fn log_with_pages(settings: &Named) -> Option<PathBuf> {
    let has = |name: &str, word: &str| {
        let words = setting(settings, name).unwrap_or_default().to_ascii_lowercase();
        words.split(',').any(|found| found == word || found == "all" || found == "full")
    };
    let is_on = switch(settings, "slow_query_log") == Some(true)
        && has("log_output", "file")
        && has("log_slow_verbosity", "engine");
    let file = setting(settings, "slow_query_log_file").filter(|file| is_on && !file.is_empty())?;
    // An absolute name replaces the directory.
    Some(PathBuf::from(setting(settings, "datadir")?).join(file))
}

fn how_to_get_it(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::MariaDb => {
            "This server keeps no figures of statements. By pages read: SET GLOBAL \
             slow_query_log = ON, log_slow_verbosity = 'engine', long_query_time = 0.1 (MariaDB \
             10.6.15 and newer; for connections that begin after it). By time: \
             performance_schema = ON in the option file, and a restart."
        }
        Flavour::MySql | Flavour::Percona => {
            "This server keeps no figures of statements: they take performance_schema = ON in \
             the option file, and a restart."
        }
    }
}

/// A statement with `?` for each literal, without comments, cut to a length.
///
/// Whether a backslash escapes a quote depends on the session's `NO_BACKSLASH_ESCAPES`, which is
/// not known here. Where the two readings of a literal end at different places, the text ends
/// before the literal: a later part of it could be in another literal.
fn without_literals(text: &str) -> String {
    let mut found = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        let is_in_name = found.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        if let Some(behind) = behind_comment(rest) {
            push_space(&mut found);
            rest = behind;
            continue;
        }
        rest = match letter {
            '\'' | '"' => {
                // A doubled quote begins another literal, which is left out as well.
                if !found.ends_with('?') {
                    found.push('?');
                }
                let Some(behind) = behind_literal(after, letter) else {
                    found.push('…');
                    break;
                };
                behind
            }
            '`' => {
                let end = after.find('`').map_or(after.len(), |at| at + 1);
                found.push('`');
                found.push_str(&after[..end]);
                &after[end..]
            }
            '0'..='9' if !is_in_name => {
                found.push('?');
                after.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.')
            }
            c if c.is_whitespace() => {
                push_space(&mut found);
                after
            }
            c => {
                found.push(c);
                after
            }
        };
        // Lists of any length are one statement.
        for list in ["?, ?", "?,?"] {
            if found.ends_with(list) {
                found.truncate(found.len() - list.len() + 1);
            }
        }
    }
    let found = found.trim().trim_end_matches(';').to_owned();
    cut(found)
}

fn push_space(found: &mut String) {
    if !found.ends_with(' ') {
        found.push(' ');
    }
}

/// What follows the comment that the text begins with. One that the server executes, or reads for
/// hints, is left out as well: its literals are literals.
fn behind_comment(text: &str) -> Option<&str> {
    let is_line = text.starts_with('#')
        || text
            .strip_prefix("--")
            .is_some_and(|rest| rest.chars().next().is_none_or(|c| c <= ' ' || c == '\x7f'));
    if is_line {
        return Some(text.find('\n').map_or("", |at| &text[at..]));
    }
    let inside = text.strip_prefix("/*")?;
    Some(inside.find("*/").map_or("", |at| &inside[at + 2..]))
}

/// What follows a literal, from its first character on; `None` if that depends on what a backslash
/// means.
fn behind_literal(text: &str, quote: char) -> Option<&str> {
    let plain = text.find(quote).map_or(text.len(), |at| at + 1);
    let mut letters = text.char_indices();
    let mut escaped = text.len();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            _ if letter == quote => {
                escaped = at + 1;
                break;
            }
            _ => {}
        }
    }
    (plain == escaped).then(|| &text[plain..])
}

fn cut(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(TEXT_LENGTH) {
        text.truncate(at);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_shown_without_what_is_in_the_rows() {
        for (text, expected) in [
            ("SELECT  a1 FROM t2\n WHERE id = 17;", "SELECT a1 FROM t2 WHERE id = ?"),
            ("SELECT 'it''s secret', \"x\", 'a\\n\\\\', b", "SELECT ?, b"),
            // Either reading of the backslash: what is behind may be in a literal.
            ("SELECT 'it''s \\' secret', \"x\"", "SELECT ?…"),
            ("SELECT a FROM t WHERE b = 'c\\' AND d = 'secret'", "SELECT a FROM t WHERE b = ?…"),
            ("SELECT /* don't */ a FROM t WHERE b = 'secret'", "SELECT a FROM t WHERE b = ?"),
            ("SELECT a -- don't\nFROM t WHERE b = 'secret'", "SELECT a FROM t WHERE b = ?"),
            ("SELECT a # don't\nFROM t WHERE b = \"secret\"", "SELECT a FROM t WHERE b = ?"),
            ("SELECT a -- it's secret", "SELECT a"),
            ("SELECT a--1/*it's secret", "SELECT a--?"),
            (
                "SELECT /*!50000 'secret' */ a /**/ FROM `/*` WHERE b = '--'",
                "SELECT a FROM `/*` WHERE b = ?",
            ),
            (
                "SELECT * FROM t WHERE id IN (1, 2,3 , 4.5e3, 0xff)",
                "SELECT * FROM t WHERE id IN (? , ?)",
            ),
            ("SELECT `17`, a FROM `it's`", "SELECT `17`, a FROM `it's`"),
            ("SELECT 'open", "SELECT ?"),
            ("INSERT INTO t VALUES (1,'x'),(2,'y')", "INSERT INTO t VALUES (?),(?)"),
        ] {
            assert_eq!(without_literals(text), expected, "{text}");
        }
        assert_eq!(without_literals(&"ä".repeat(1000)).chars().count(), TEXT_LENGTH + 1);
    }

    #[test]
    fn most_pages_come_first_and_what_is_older_than_a_minute_goes() {
        let cost =
            |pages_read, time_s| Cost { executions: 1, pages_read, time_s, ..Cost::default() };
        let of = |text: &str, cost| HashMap::from([((String::new(), text.to_owned()), cost)]);
        let mut window = Window::default();
        let begin = Instant::now();
        window.push(begin, of("old", cost(Some(1000), 9.0)));
        window.push(begin + WINDOW, of("slow", cost(None, 5.0)));
        window.push(begin + WINDOW + Duration::from_secs(1), of("reads", cost(Some(3), 0.1)));
        window.push(begin + WINDOW + Duration::from_secs(2), of("reads", cost(Some(4), 0.1)));
        let rows = window.top();
        let texts: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
        assert_eq!(texts, ["reads", "slow"]);
        assert_eq!((rows[0].cost.pages_read, rows[0].cost.executions), (Some(7), 2));
    }

    #[test]
    fn only_a_log_with_the_engines_figures_has_pages() {
        let settings = |verbosity: &str, output: &str, file: &str| {
            let named = [
                ("slow_query_log", "ON"),
                ("log_output", output),
                ("log_slow_verbosity", verbosity),
                ("slow_query_log_file", file),
                ("datadir", "/var/lib/mysql/"),
            ];
            log_with_pages(&named.map(|(a, b)| (a.to_owned(), b.to_owned())).into_iter().collect())
        };
        let found = settings("query_plan,engine", "FILE", "slow.log");
        assert_eq!(found, Some("/var/lib/mysql/slow.log".into()));
        assert_eq!(settings("all", "TABLE,FILE", "/log/s"), Some("/log/s".into()));
        assert_eq!(settings("query_plan", "FILE", "slow.log"), None);
        assert_eq!(settings("engine", "TABLE", "slow.log"), None);
    }
}
