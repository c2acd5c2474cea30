//! Runs the commands of a page of the documentation as they stand there.
//!
//! A fenced block that begins with `sql` or `sh` and a name, such as ```` ```sql db1 ````, is run
//! on the server of that name. A text in `'…'` stands for a value, which the test gives; hosts,
//! ports and directories of the page are replaced by the test's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use mysql::prelude::Queryable;

use crate::environment::Environment;
use crate::server::Server;

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The heading above it.
    pub section: String,
    pub language: String,
    /// On which server it is run; empty: it is not.
    pub server: String,
    pub text: String,
}

/// The fenced blocks of a page, in their order.
pub fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut section) = (Vec::new(), String::new());
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(block), None) => block.text.push_str(&format!("{line}\n")),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(info)) => {
                let (language, server) = info.split_once(' ').unwrap_or((info, ""));
                open = Some(Block {
                    section: section.clone(),
                    language: language.into(),
                    server: server.into(),
                    text: String::new(),
                });
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    section = heading.into();
                }
            }
        }
    }
    found
}

/// Servers by the names that a page gives them, and the values that its steps need.
#[derive(Debug)]
pub struct Guide {
    blocks: Vec<Block>,
    /// How many blocks have been run.
    done: usize,
    pub servers: BTreeMap<&'static str, (Server, u16)>,
    pub values: BTreeMap<&'static str, String>,
    /// Stands for `/backup`.
    pub backups: std::path::PathBuf,
}

impl Guide {
    /// The page below `docs/`.
    ///
    /// # Panics
    /// If it can't be read.
    pub fn open(page: &str, backups: &Path) -> Guide {
        let path = Environment::get().root().join("docs").join(page);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Guide {
            blocks: blocks(&text),
            done: 0,
            servers: BTreeMap::new(),
            values: BTreeMap::new(),
            backups: backups.into(),
        }
    }

    /// The option file's lines of the page, as options of a server.
    ///
    /// # Panics
    /// If the page has none.
    pub fn options(&self) -> Vec<String> {
        let block = self.blocks.iter().find(|block| block.language == "ini").expect("options");
        let lines =
            block.text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let set = lines.filter_map(|line| line.split_once('='));
        set.map(|(name, value)| format!("--{}={}", name.trim(), value.trim())).collect()
    }

    pub fn server(&self, name: &str) -> &Server {
        &self.servers[name].0
    }

    /// Runs the next block that is meant for a server; it must be in `section` and for `server`.
    /// Returns the last row that its last statement gave, or what a command printed.
    ///
    /// # Panics
    /// If it is another block, or a command fails.
    pub fn step(&mut self, section: &str, server: &str) -> String {
        let all = self.blocks[self.done..].iter();
        let (at, block) = all
            .enumerate()
            .find(|(_, block)| !block.server.is_empty())
            .unwrap_or_else(|| panic!("the page has no step {section}, {server}"));
        let block = block.clone();
        self.done += at + 1;
        assert_eq!((&*block.section, &*block.server), (section, server), "{}", block.text);
        let text = self.replaced(&block);
        println!("{section}: on {server}:\n{text}");
        match &*block.language {
            "sql" => self.sql(server, &text),
            "sh" => self.shell(&text),
            other => panic!("{other} can't be run"),
        }
    }

    /// Runs the section's block with this number for `written` once more, on another server.
    ///
    /// # Panics
    /// If there is no such block, or a command fails.
    pub fn again(&self, section: &str, written: &str, server: &str, number: usize) -> String {
        let all = self.blocks.iter();
        let mut meant = all.filter(|block| block.section == section && block.server == written);
        let mut block = meant.nth(number).expect("such a block").clone();
        block.text = block.text.replace(&format!("--host={written}"), &format!("--host={server}"));
        block.server = server.into();
        let text = self.replaced(&block);
        if block.language == "sql" { self.sql(server, &text) } else { self.shell(&text) }
    }

    /// That every step was run.
    ///
    /// # Panics
    /// If not.
    pub fn end(&self) {
        let left = self.blocks[self.done..].iter().find(|block| !block.server.is_empty());
        assert_eq!(left, None);
    }

    /// The text with this test's places and values.
    fn replaced(&self, block: &Block) -> String {
        let mut text = block.text.clone();
        for (name, (server, port)) in &self.servers {
            let is_there = format!("MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}");
            text = text.replace(&format!("MASTER_HOST = '{name}'"), &is_there);
            let socket =
                format!("--no-defaults --user=root --socket={}", server.socket().display());
            text = text.replace(&format!("--host={name}"), &socket);
            if *name == block.server {
                let data = server.data_dir().display().to_string();
                text = text.replace("/var/lib/mysql", &data);
            }
        }
        text = text.replace("mariadb-binlog ", "mariadb-binlog --no-defaults ");
        text = text.replace("/backup", &self.backups.display().to_string());
        text = text.replace("chown -R mysql:", "chown -R $(id -u):$(id -g)");
        for (name, value) in &self.values {
            text = text.replace(&format!("'…{name}…'"), &format!("'{value}'"));
        }
        assert!(!text.contains('…'), "a value is missing: {text}");
        text
    }

    fn sql(&self, server: &str, text: &str) -> String {
        let mut conn = self.server(server).connect();
        let mut last = String::new();
        for statement in text.split(";\n").map(str::trim).filter(|text| !text.is_empty()) {
            let found: Vec<mysql::Row> = conn
                .query(statement)
                .unwrap_or_else(|error| panic!("{server}: {statement}: {error}"));
            last = found.into_iter().last().map(crate::sql::row_text).unwrap_or_default();
            if statement.starts_with("SELECT MASTER_GTID_WAIT") {
                assert_eq!(last, "[Bytes(\"0\")]", "{server}: {statement}");
            }
        }
        last
    }

    fn shell(&self, text: &str) -> String {
        let programs = Environment::get().path("BASEDIR").join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", text])
            .current_dir(&self.backups)
            .env("PATH", format!("{}:{path}", programs.display()))
            .output()
            .expect("bash can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
