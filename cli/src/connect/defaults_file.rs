//! Option files, read as the `mariadb` client reads them.
//!
//! ```text
//! [client]                 groups that count: client, client-server, client-mariadb, tidepool
//! user     = dba           spaces around = and around the value go; - and _ in names are the same
//! password = "a # b"       # ends the value unless it is in quotes; \n \t \b \r \\ \s \" \' are escapes
//! !include /etc/one.cnf
//! !includedir /etc/mysql/conf.d/       every *.cnf in it, in order of name
//! ```
//! A later value wins. We do not read a file that anyone may write, and say so: its writer could
//! send us to any server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Protocol;
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
    /// Its password.
    pub password: Option<String>,
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// Files that were passed over, a sentence each.
    pub notices: Vec<String>,
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

/// The one file that the user named; it must be there.
///
/// # Errors
/// If it can't be read, or anyone may write to it, or a value is no value.
pub fn read_only_file(path: &Path) -> Result<Values> {
    let mut values = Values::default();
    let text = read(path).map_err(|e| Error::file(path, &e))?;
    if is_world_writable(path) {
        return Err(Error::Local(format!(
            "{}: anyone may write to it, so it is not trusted; chmod o-w it",
            path.display()
        )));
    }
    parse(&text, path, &mut values, 0)?;
    Ok(values)
}

/// The files that are read without being asked for, those that exist: `/etc/my.cnf`,
/// `/etc/mysql/my.cnf`, `~/.my.cnf`.
///
/// # Errors
/// If a value in one is no value.
pub fn read_default_files() -> Result<Values> {
    let mut values = Values::default();
    let mut files = vec![PathBuf::from("/etc/my.cnf"), PathBuf::from("/etc/mysql/my.cnf")];
    if let Some(home) = std::env::var_os("HOME") {
        files.push(Path::new(&home).join(".my.cnf"));
    }
    for file in files {
        include(&file, &mut values, 0)?;
    }
    Ok(values)
}

fn include(path: &Path, values: &mut Values, depth: u32) -> Result<()> {
    // Missing or unreadable files are passed over, as the clients do: /etc/mysql may belong to
    // another user.
    let Ok(text) = read(path) else { return Ok(()) };
    if is_world_writable(path) {
        values.notices.push(format!("{}: anyone may write to it; ignored", path.display()));
        return Ok(());
    }
    parse(&text, path, values, depth)
}

/// A file may be in any character set, a comment's umlaut in Latin-1 say. The client looks at
/// bytes, and what matters is ASCII.
fn read(path: &Path) -> std::io::Result<String> {
    Ok(text(fs::read(path)?))
}

fn is_world_writable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o002 != 0)
}

fn parse(text: &str, path: &Path, values: &mut Values, depth: u32) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::Local(format!("{}: included too deep", path.display())));
    }
    let mut counts = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix("!includedir") {
            include_directory(Path::new(rest.trim()), values, depth + 1)?;
        } else if let Some(rest) = line.strip_prefix("!include") {
            include(Path::new(rest.trim()), values, depth + 1)?;
        } else if let Some(rest) = line.strip_prefix('[') {
            counts = rest.split(']').next().is_some_and(|group| GROUPS.contains(&group.trim()));
        } else if counts && let Some((name, value)) = without_comment(line).split_once('=') {
            let name = name.trim().replace('_', "-");
            let value = unquote(value);
            let no = |what| Error::Local(format!("{}:{}: {what}", path.display(), number + 1));
            match name.as_str() {
                "host" => values.host = Some(value),
                "user" => values.user = Some(value),
                "password" => values.password = Some(value),
                "socket" => values.socket = Some(value.into()),
                "port" => values.port = Some(value.parse().map_err(|_| no("not a port"))?),
                // Empty is whatever is usual, to the client too.
                "protocol" if value.is_empty() => values.protocol = None,
                "protocol" => {
                    let protocol =
                        value.parse().map_err(|_| no("not a protocol: tcp or socket"))?;
                    values.protocol = Some(protocol);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn include_directory(directory: &Path, values: &mut Values, depth: u32) -> Result<()> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cnf"))
        .collect();
    files.sort();
    files.iter().try_for_each(|file| include(file, values, depth))
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
        let values = read_only_file(&path).unwrap();
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
            let mut values = Values::default();
            parse(&text, Path::new("my.cnf"), &mut values, 0).unwrap();
            values.user
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
        assert_eq!(read("x # = y"), None);
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
        let values = read_only_file(&file(directory.path(), "my.cnf", &text, 0o644)).unwrap();
        assert_eq!((values.host.as_deref(), values.user.as_deref()), (Some("twenty"), Some("ten")));
        assert_eq!(values.notices.len(), 1);
        let open = file(directory.path(), "open.cnf", "[client]\n", 0o666);
        assert!(matches!(read_only_file(&open), Err(Error::Local(_))));
    }

    #[test]
    fn a_file_in_another_character_set_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("my.cnf");
        fs::write(&path, b"# Gr\xf6\xdfe\n[client]\nuser=dba\n").unwrap();
        assert_eq!(read_only_file(&path).unwrap().user.as_deref(), Some("dba"));
        let mut values = Values::default();
        include(&path, &mut values, 0).unwrap();
        assert_eq!(values.user.as_deref(), Some("dba"));
    }

    #[test]
    fn a_circle_of_includes_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("my.cnf");
        fs::write(&path, format!("!include {}\n", path.display())).unwrap();
        assert!(matches!(read_only_file(&path), Err(Error::Local(_))));
    }

    #[test]
    fn the_protocol_is_read_as_the_client_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let protocol = |value: &str| {
            let text = format!("[client]\nprotocol=socket\nprotocol={value}\n");
            read_only_file(&file(directory.path(), "my.cnf", &text, 0o600)).map(|v| v.protocol)
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
        assert!(read_only_file(Path::new("/nonexistent/my.cnf")).is_err());
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), "my.cnf", "[client]\nport=many\n", 0o600);
        let error = read_only_file(&path).unwrap_err().to_string();
        assert!(error.ends_with("my.cnf:2: not a port"), "{error}");
    }
}
