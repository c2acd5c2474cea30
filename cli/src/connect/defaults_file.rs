//! Option files, read as the `mariadb` client reads them.
//!
//! ```text
//! [client]                 groups that count: client, client-server, client-mariadb, tidepool
//! user     = dba           spaces around = and around the value go; - and _ in names are the same
//! password = "a # b"       # ends the value unless it is in quotes; \n \t \b \r \\ \s \" \' are
//! escapes
//! skip-ssl                 a switch needs no value
//! !include /etc/one.cnf
//! !includedir /etc/mysql/conf.d/       every *.cnf in it, in order of name
//! ```
//! A later value wins. An option before the first group, and one that [`super::names`] does not
//! know, are errors, as they are to the clients: passed over in silence they would lead to another
//! server, or to a connection without TLS. We do not read a file that anyone may write, and say so:
//! its writer could send us to any server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Protocol;
use super::names::{self, Meaning};
use super::tls::{Mode, Wish};
use crate::exit::{Error, Result};
use crate::server::text;

const GROUPS: [&str; 4] = ["client", "client-server", "client-mariadb", "tidepool"];
/// Files that include each other in a circle end here.
const DEPTH_MAX: u32 = 10;

/// What the files said; `None` where they were silent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// Host name or address.
    pub host: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Socket or TCP, for `localhost`.
    pub protocol: Option<Protocol>,
    /// Account.
    pub user: Option<String>,
    pub password: Option<String>,
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// A `password` without a value: it is asked for.
    pub asks_password: bool,
    /// Seconds to wait for a connection.
    pub connect_timeout_s: Option<u64>,
    /// Encryption.
    pub tls: Wish,
    /// Files that were passed over, a sentence each.
    pub notices: Vec<String>,
    /// Whether a group with the wanted suffix was there.
    pub has_suffixed_group: bool,
}

/// Which files are read, and which of their groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// This file and no other (`--defaults-file`).
    pub only: Option<PathBuf>,
    /// This file too, after the system's and before the user's (`--defaults-extra-file`).
    pub extra: Option<PathBuf>,
    /// None at all (`--no-defaults`).
    pub none: bool,
    /// Each group counts with this at the end of its name as well (`--defaults-group-suffix`).
    pub suffix: Option<String>,
}

/// What is read so far, and for which groups.
struct Reading<'a> {
    values: Values,
    suffix: Option<&'a str>,
}

/// Never shows the password.
impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("protocol", &self.protocol)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "(hidden)"))
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// What the files say.
///
/// # Errors
/// If a file that the user named can't be read, or anyone may write to it; if a line of any of them
/// is not understood.
pub fn read(sources: &Sources) -> Result<Values> {
    let mut reading = Reading { values: Values::default(), suffix: sources.suffix.as_deref() };
    if sources.none {
        return Ok(reading.values);
    }
    if let Some(file) = &sources.only {
        reading.named(file)?;
        return Ok(reading.values);
    }
    let mut files = vec![PathBuf::from("/etc/my.cnf"), PathBuf::from("/etc/mysql/my.cnf")];
    let variable = ["MARIADB_HOME", "MYSQL_HOME"].iter().find_map(std::env::var_os);
    files.extend(variable.map(|home| Path::new(&home).join("my.cnf")));
    for file in files {
        reading.include(&file, 0)?;
    }
    if let Some(file) = &sources.extra {
        reading.named(file)?;
    }
    if let Some(home) = std::env::var_os("HOME") {
        reading.include(&Path::new(&home).join(".my.cnf"), 0)?;
    }
    Ok(reading.values)
}

/// A file may be in any character set, a comment's umlaut in Latin-1 say. The client looks at
/// bytes, and what matters is ASCII.
fn contents(path: &Path) -> std::io::Result<String> {
    Ok(text(fs::read(path)?))
}

fn is_world_writable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o002 != 0)
}

impl Reading<'_> {
    /// A file that the user named; it must be there.
    fn named(&mut self, path: &Path) -> Result<()> {
        let text = contents(path).map_err(|e| Error::file(path, &e))?;
        if is_world_writable(path) {
            return Err(Error::Local(format!(
                "{}: anyone may write to it, so it is not trusted; chmod o-w it",
                path.display()
            )));
        }
        self.parse(&text, path, 0)
    }

    fn include(&mut self, path: &Path, depth: u32) -> Result<()> {
        // Missing or unreadable files are passed over, as the clients do: /etc/mysql may belong to
        // another user.
        let Ok(text) = contents(path) else { return Ok(()) };
        if is_world_writable(path) {
            let notice = format!("{}: anyone may write to it; ignored", path.display());
            self.values.notices.push(notice);
            return Ok(());
        }
        self.parse(&text, path, depth)
    }

    fn include_directory(&mut self, directory: &Path, depth: u32) -> Result<()> {
        let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "cnf"))
            .collect();
        files.sort();
        files.iter().try_for_each(|file| self.include(file, depth))
    }

    fn counts(&mut self, group: &str) -> bool {
        let stem = self.suffix.and_then(|suffix| group.strip_suffix(suffix));
        let is_suffixed = GROUPS.iter().any(|&name| Some(name) == stem);
        self.values.has_suffixed_group |= is_suffixed;
        is_suffixed || GROUPS.contains(&group)
    }

    fn parse(&mut self, text: &str, path: &Path, depth: u32) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::Local(format!("{}: included too deep", path.display())));
        }
        let mut counts = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let place = || format!("{}:{}", path.display(), number + 1);
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix("!includedir") {
                self.include_directory(Path::new(rest.trim()), depth + 1)?;
            } else if let Some(rest) = line.strip_prefix("!include") {
                self.include(Path::new(rest.trim()), depth + 1)?;
            } else if let Some(rest) = line.strip_prefix('[') {
                counts =
                    Some(rest.split(']').next().is_some_and(|group| self.counts(group.trim())));
            } else if counts.is_none() {
                let why = match line.starts_with('\u{feff}') {
                    true => "the file begins with a byte order mark, so its first group is none",
                    false => "an option before the first group, such as [client]",
                };
                return Err(Error::Local(format!("{}: {why}", place())));
            } else if counts == Some(true) {
                let line = without_comment(line);
                let (name, value) = match line.split_once('=') {
                    Some((name, value)) => (name, Some(unquote(value))),
                    None => (line, None),
                };
                self.option(name.trim(), value, &place())?;
            }
        }
        Ok(())
    }

    /// Takes an option, which stands at `place`.
    fn option(&mut self, written: &str, value: Option<String>, place: &str) -> Result<()> {
        let no = |why: &str| Error::Local(format!("{place}: {why}"));
        let Some(option) = names::find(written).map_err(|why| no(&why))? else { return Ok(()) };
        let values = &mut self.values;
        let is_empty = value.as_ref().is_none_or(String::is_empty);
        match option.meaning {
            Meaning::Harmless => return Ok(()),
            // Without a value it is the same as not there.
            Meaning::BeyondTls if is_empty => return Ok(()),
            Meaning::BeyondTls => {
                values.tls.refused.push(format!("{place}: {}", option.name));
                return Ok(());
            }
            Meaning::Refused => {
                return Err(no(&format!("{}: this program can't follow this option", option.name)));
            }
            Meaning::Switch => {
                let on = option.switched.or(switch(value.as_deref())).ok_or_else(|| {
                    no(&format!("{}: not a switch: 1 or 0 is wanted", option.name))
                })?;
                match option.name {
                    "ssl" => values.tls.on = Some(on),
                    _ => values.tls.verify = Some(on),
                }
                return Ok(());
            }
            Meaning::Used => {}
        }
        let text = value.clone().unwrap_or_default();
        let file = || Some(PathBuf::from(&text)).filter(|_| !is_empty);
        match option.name {
            "password" => {
                (values.password, values.asks_password) = (value.clone(), value.is_none())
            }
            // A protocol that is empty is whatever is usual, to the client too.
            "protocol" if is_empty => values.protocol = None,
            _ if value.is_none() => return Err(no(&format!("{} needs a value", option.name))),
            "host" => values.host = Some(text),
            "user" => values.user = Some(text),
            "socket" => values.socket = Some(text.into()),
            "port" => values.port = Some(text.parse().map_err(|_| no("not a port"))?),
            "protocol" => {
                let protocol = text.parse().map_err(|_| no("not a protocol: tcp or socket"))?;
                values.protocol = Some(protocol);
            }
            "connect-timeout" => {
                let seconds = text.parse().map_err(|_| no("not a number of seconds"))?;
                values.connect_timeout_s = Some(seconds).filter(|&seconds| seconds > 0);
            }
            "ssl-ca" => values.tls.ca = file(),
            "ssl-cert" => values.tls.cert = file(),
            "ssl-key" => values.tls.key = file(),
            "ssl-mode" => {
                values.tls.mode = Some(text.parse::<Mode>().map_err(no)?);
            }
            "tls-version" => {
                // The library speaks these two and no other: a list without one of them forbids it.
                let has = |version| text.split(',').any(|one| one.trim() == version);
                let has_both = has("TLSv1.2") && has("TLSv1.3");
                if !is_empty && !has_both {
                    values.tls.refused.push(format!("{place}: tls-version={text}"));
                }
            }
            name => unreachable!("{name} is listed as used"),
        }
        Ok(())
    }
}

/// As the clients read a switch: alone it is on.
fn switch(value: Option<&str>) -> Option<bool> {
    match value.map(str::to_ascii_lowercase).as_deref() {
        None | Some("1" | "on" | "true") => Some(true),
        Some("0" | "off" | "false") => Some(false),
        Some(_) => None,
    }
}

/// The line up to the first `#` outside quotes.
///
/// As MariaDB's clients see it, and MySQL's alike: no space is needed before it; a quote may begin
/// anywhere in the line, in a word too, and one that nothing closes hides every `#` after it; a
/// backslash protects a quote only inside quotes, and a `#` nowhere.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match quote {
            None if c == '#' => return &line[..at],
            None if matches!(c, '"' | '\'') => quote = Some(c),
            Some(open) if c == open && !escaped => quote = None,
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    line
}

/// The value without its quotes, with its escapes resolved.
fn unquote(value: &str) -> String {
    let value = value.trim();
    // Only a pair goes, and only by its two ends: the client does not look at what is between them.
    let inner = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value);
    let mut result = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => result.push('\n'),
            Some('t') => result.push('\t'),
            Some('r') => result.push('\r'),
            Some('b') => result.push('\u{8}'),
            Some('s') => result.push(' '),
            Some(escaped @ ('\\' | '"' | '\'')) => result.push(escaped),
            Some(other) => result.extend(['\\', other]),
            None => result.push('\\'),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(path: &Path) -> Result<Values> {
        super::read(&Sources { only: Some(path.to_owned()), ..Sources::default() })
    }

    fn file(directory: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn only_the_clients_groups_count_and_the_last_value_wins() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(
            directory.path(),
            "my.cnf",
            "[mysqld]\nuser=mysql\nport=1\n[client]\nuser = first\n# comment\nport=3307 # ours\n\
             password = \"a # b\\\"c\\\\\"\n[client-server]\nsocket=/run/s.sock\n[mysqldump]\nuser=dump\n\
             [tidepool]\nuser=second\n",
            0o600,
        );
        let values = read_one(&path).unwrap();
        assert_eq!(values.user.as_deref(), Some("second"));
        assert_eq!(values.port, Some(3307));
        assert_eq!(values.socket, Some("/run/s.sock".into()));
        assert_eq!(values.password.as_deref(), Some("a # b\"c\\"));
        assert!(!format!("{values:?}").contains("a # b"), "the password is in the debug output");
    }

    /// What MariaDB's `my_print_defaults` 10.11 prints for each.
    #[test]
    fn comments_and_quotes_end_where_they_end_for_the_client() {
        let read = |line: &str| {
            let text = format!("[client]\n{}\n", line.replacen('x', "user", 1));
            let mut reading = Reading { values: Values::default(), suffix: None };
            reading.parse(&text, Path::new("my.cnf"), 0).unwrap();
            reading.values.user
        };
        for (line, value) in [
            ("x=3306\t# ours", "3306"),
            ("x=/a/b.sock\t# c", "/a/b.sock"),
            ("x=ab#cd", "ab"),
            (r#"x="a b" # it is "x""#, "a b"),
            (r#"x="a # b\"c\\" # z"#, r##"a # b"c\"##),
            ("x=a ; b", "a ; b"),
            (r##"x="#""##, "#"),
            (r#"x="a' # b" # c"#, "a' # b"),
            (r#"x="a\" # b""#, r##"a" # b"##),
            (r#"x="a\\" # b"#, r"a\"),
            (r#"x=a"b#c"d # e"#, r##"a"b#c"d"##),
            (r##"x="a"#b"##, "a"),
            // Quotes that are no pair stay, and what nothing closes goes on to the end of the line.
            (r#"x="ab"#, r#""ab"#),
            (r#"x=ab""#, r#"ab""#),
            (r#"x=""#, r#"""#),
            (r#"x="a'"#, r#""a'"#),
            (r#"x="a" b"#, r#""a" b"#),
            (r#"x='a'"b""#, r#"'a'"b""#),
            ("x=it's # fine", "it's # fine"),
            (r"x=it\'s # fine", "it's # fine"),
            (r#"x= "a" x "b""#, r#"a" x "b"#),
            (r#"x="a\""#, r"a\"),
            (r"x=\# b", r"\"),
            (r"x=a\sb\nc\q", "a b\nc\\q"),
            (r"x=a\", r"a\"),
            (r#"x="""#, ""),
            ("x=", ""),
        ] {
            assert_eq!(read(line).as_deref(), Some(value), "{line}");
        }
    }

    #[test]
    fn directories_are_included_in_order_and_world_writable_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let included = directory.path().join("conf.d");
        fs::create_dir(&included).unwrap();
        file(&included, "20.cnf", "[client]\nhost=twenty\n", 0o644);
        file(&included, "10.cnf", "[client]\nhost=ten\nuser=ten\n", 0o644);
        file(&included, "99.cnf", "[client]\nhost=evil\n", 0o666);
        file(&included, "30.txt", "[client]\nhost=text\n", 0o644);
        let text = format!("!includedir {}\n", included.display());
        let values = read_one(&file(directory.path(), "my.cnf", &text, 0o644)).unwrap();
        assert_eq!((values.host.as_deref(), values.user.as_deref()), (Some("twenty"), Some("ten")));
        assert_eq!(values.notices.len(), 1);
        let open = file(directory.path(), "open.cnf", "[client]\n", 0o666);
        assert!(matches!(read_one(&open), Err(Error::Local(_))));
    }

    #[test]
    fn a_file_in_another_character_set_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("my.cnf");
        fs::write(&path, b"# Gr\xf6\xdfe\n[client]\nuser=dba\n").unwrap();
        assert_eq!(read_one(&path).unwrap().user.as_deref(), Some("dba"));
        let mut reading = Reading { values: Values::default(), suffix: None };
        reading.include(&path, 0).unwrap();
        assert_eq!(reading.values.user.as_deref(), Some("dba"));
    }

    #[test]
    fn a_circle_of_includes_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("my.cnf");
        fs::write(&path, format!("!include {}\n", path.display())).unwrap();
        assert!(matches!(read_one(&path), Err(Error::Local(_))));
    }

    #[test]
    fn the_protocol_is_read_as_the_client_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let protocol = |value: &str| {
            let text = format!("[client]\nprotocol=socket\nprotocol={value}\n");
            read_one(&file(directory.path(), "my.cnf", &text, 0o600)).map(|v| v.protocol)
        };
        for value in ["tcp", "TCP", "t"] {
            assert_eq!(protocol(value).unwrap(), Some(Protocol::Tcp), "{value}");
        }
        assert_eq!(protocol("Socket").unwrap(), Some(Protocol::Socket));
        assert_eq!(protocol("").unwrap(), None);
        for value in ["pipe", "tcp4", "1"] {
            let error = protocol(value).unwrap_err().to_string();
            assert!(error.ends_with("my.cnf:3: not a protocol: tcp or socket"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_and_a_bad_port_are_errors() {
        assert!(read_one(Path::new("/nonexistent/my.cnf")).is_err());
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), "my.cnf", "[client]\nport=many\n", 0o600);
        let error = read_one(&path).unwrap_err().to_string();
        assert!(error.ends_with("my.cnf:2: not a port"), "{error}");
    }

    fn of(text: &str) -> Result<Values> {
        let directory = tempfile::tempdir().unwrap();
        read_one(&file(directory.path(), "my.cnf", text, 0o600))
    }

    #[test]
    fn tls_is_asked_for_in_the_words_of_either_client() {
        let tls = of("[client]\nssl\nssl-ca=/ca.pem\nssl_verify_server_cert\n").unwrap().tls;
        assert_eq!((tls.on, tls.verify, tls.ca), (Some(true), Some(true), Some("/ca.pem".into())));
        let tls = of("[client]\nssl-mode=verify_identity\nssl-ca=\n").unwrap().tls;
        assert_eq!((tls.mode, tls.ca), (Some(Mode::VerifyIdentity), None));
        assert_eq!(of("[client]\nskip-ssl\n").unwrap().tls.on, Some(false));
        assert_eq!(of("[client]\nssl=0\n").unwrap().tls.on, Some(false));
        let refused = |line: &str| of(&format!("[client]\n{line}\n")).unwrap().tls.refused;
        assert!(refused("ssl-crl=/crl.pem")[0].ends_with("my.cnf:2: ssl-crl"));
        assert!(refused("tls-version=TLSv1.3")[0].ends_with("tls-version=TLSv1.3"));
        assert_eq!(refused("tls-version=TLSv1.2,TLSv1.3"), [""; 0]);
        assert_eq!(refused("ssl-cipher="), [""; 0]);
        assert!(of("[client]\nssl-mode=SOME\n").unwrap_err().to_string().contains(":2: DISABLED,"));
    }

    #[test]
    fn what_is_not_understood_ends_it_with_the_line() {
        for (text, why) in [
            ("user=a\n[client]\n", ":1: an option before the first group"),
            ("\u{feff}[client]\nuser=a\n", ":1: the file begins with a byte order mark"),
            ("[client]\nuser=a\nssl-cax=b\n", ":3: ssl-cax is no option"),
            ("[client]\ninit-command=SET x\n", ":2: init-command: this program can't follow"),
            ("[client]\nhost\n", ":2: host needs a value"),
            ("[client]\nssl=perhaps\n", ":2: ssl: not a switch"),
        ] {
            let error = of(text).unwrap_err();
            assert_eq!(error.code(), 8);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
        // Of groups that are not read, and of options that need not be known, nothing is asked.
        let values = of("[mysql]\nfoo\n[client]\nloose-foo\nquick-x=1\n");
        assert!(values.unwrap_err().to_string().contains(":5: quick-x"));
        let values = of("[mysql]\nfoo\n[client]\nloose-foo\ncompress\npass=x\n").unwrap();
        assert_eq!(values.password.as_deref(), Some("x"));
        assert!(of("[client]\npassword\n").unwrap().asks_password);
    }

    #[test]
    fn a_suffix_adds_groups() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[client]\nuser=a\nport=1\n[client_two]\nuser=b\n[client_three]\nuser=c\n";
        let only = Some(file(directory.path(), "my.cnf", text, 0o600));
        let with = |suffix: Option<&str>| {
            let suffix = suffix.map(str::to_owned);
            let values = super::read(&Sources { only: only.clone(), suffix, ..Sources::default() });
            values.map(|values| (values.user.unwrap(), values.port.unwrap())).unwrap()
        };
        assert_eq!(with(None), ("a".into(), 1));
        assert_eq!(with(Some("_two")), ("b".into(), 1));
    }

    #[test]
    fn an_extra_file_must_be_there_and_without_defaults_nothing_is_read() {
        let missing = Some(PathBuf::from("/nonexistent/extra.cnf"));
        let error = super::read(&Sources { extra: missing, ..Sources::default() }).unwrap_err();
        assert!(error.to_string().contains("extra.cnf"), "{error}");
        let none = Sources { none: true, ..Sources::default() };
        assert_eq!(super::read(&none).unwrap(), Values::default());
    }
}
