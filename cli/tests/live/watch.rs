//! `tidepool watch` over HTTP, as browsers and those who would misuse them see it.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::Server;

use crate::{fill, innodb, tidepool};

const MIB: u64 = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running page. Killed when dropped.
pub struct Page {
    child: Child,
    /// `host:port`.
    pub address: String,
    /// What setting needs.
    pub token: String,
}

impl Page {
    pub fn start(server: &Server, args: &[&str]) -> Page {
        Page::run(tidepool(server.socket()), args)
    }

    /// With connection options that are there already.
    pub fn run(mut command: Command, args: &[&str]) -> Page {
        command.args(["watch", "--listen=127.0.0.1:0"]).args(args).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let first = lines.next().expect("the page's address is printed");
        let address = first.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        let token = lines.next().unwrap();
        let token = token.split("#token=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Page { child, address, token }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Connections on which this was sent, and no more.
    fn connections(&self, number: usize, sent: &str) -> Vec<TcpStream> {
        let open = || {
            let mut stream = self.connect();
            // A server that has enough of it needn't take it all, and one that takes nothing isn't
            // waited for.
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let _ = stream.write_all(sent.as_bytes());
            stream
        };
        (0..number).map(|_| open()).collect()
    }

    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// How the program ended, and when.
    pub fn ended(&mut self) -> (ExitStatus, Instant) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, Instant::now());
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// One request with these headers, as they are; the status and the body.
    pub fn request(&self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "{line} HTTP/1.1\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let (status, answer) = answer(stream);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (status, if chunked { unchunked(body) } else { body.to_owned() })
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.request(&format!("GET {path}"), &[("Host", &self.address)], "")
    }

    pub fn state(&self) -> Value {
        let (status, body) = self.get("/api/state");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The state as soon as it is as wanted.
    pub fn state_with(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < deadline, "{state:#}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// A POST as the page itself makes it, except for what is replaced.
    pub fn post(&self, path: &str, body: &str, replaced: &[(&str, Option<&str>)]) -> (u16, String) {
        let origin = format!("http://{}", self.address);
        let own = [
            ("Host", self.address.as_str()),
            ("Origin", &origin),
            ("X-Tidepool-Token", &self.token),
        ];
        let headers: Vec<(&str, &str)> = own
            .into_iter()
            .filter_map(|(name, value)| match replaced.iter().find(|(other, _)| *other == name) {
                Some((_, other)) => other.map(|other| (name, other)),
                None => Some((name, value)),
            })
            .collect();
        self.request(&format!("POST {path}"), &headers, body)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of an answer, and all of it.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn unchunked(body: &str) -> String {
    let (mut rest, mut whole) = (body, String::new());
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        if length == 0 {
            break;
        }
        whole.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    whole
}

pub fn pool_size(server: &Server) -> u64 {
    server.connect().query_first("SELECT @@GLOBAL.innodb_buffer_pool_size").unwrap().unwrap()
}

#[test]
fn only_the_page_itself_with_the_token_sets_the_size() {
    let server = innodb("watch-guard", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    let wish = format!("{{\"bytes\": {}}}", 40 * MIB);
    for (replaced, status) in [
        (("X-Tidepool-Token", None), 403),
        (("X-Tidepool-Token", Some("0123456789abcdef0123456789abcdef")), 403),
        (("Origin", None), 403),
        (("Origin", Some("http://evil.example")), 403),
        (("Origin", Some("null")), 403),
        (("Host", Some("evil.example")), 421),
        (("Host", Some("127.0.0.1")), 421),
    ] {
        for path in ["/api/size", "/api/content"] {
            let (found, body) = page.post(path, &wish, &[replaced]);
            assert_eq!(found, status, "{path} {replaced:?}: {body}");
        }
    }
    // A rebound name may not even look.
    assert_eq!(page.request("GET /api/state", &[("Host", "evil.example")], "").0, 421);
    assert_eq!(
        page.request("GET /", &[("Host", &page.address), ("Host", "evil.example")], "").0,
        421
    );
    assert_eq!(page.request("DELETE /", &[("Host", &page.address)], "").0, 405);
    assert_eq!(page.get("/../../etc/passwd").0, 404);
    assert_eq!(pool_size(&server), 64 * MIB);
    // Nonsense from the page itself.
    for body in ["", "{}", "{\"bytes\": -5}", "{\"bytes\": \"5\"}", &"x".repeat(10_000)] {
        assert_eq!(page.post("/api/size", body, &[]).0, 400, "{body}");
    }
    // InnoDB's pool can't be left to its engine, and is not made as small as can be instead.
    let (status, why) = page.post("/api/size", "{\"bytes\": 0}", &[]);
    assert_eq!(
        (status, why.contains("only Tidepool's pool can be governed")),
        (400, true),
        "{why}"
    );
    let state = page.state();
    assert_eq!(state["samples"].as_array().unwrap().last().unwrap()["governed"], Value::Null);
    // Nor is a slip.
    for (bytes, status) in [(1, 400), (7 * MIB, 409)] {
        let (found, why) = page.post("/api/size", &format!("{{\"bytes\": {bytes}}}"), &[]);
        assert_eq!(found, status, "{why}");
    }
    // A proxy may ask for the head alone.
    for path in ["/", "/metrics", "/api/state"] {
        let (status, body) = page.request(&format!("HEAD {path}"), &[("Host", &page.address)], "");
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
    }
    let (status, why) = page.post("/api/size", "{\"bytes\": 9000000000000000}", &[]);
    assert_eq!((status, why.contains("exceeds the")), (409, true), "{why}");
    assert_eq!(pool_size(&server), 64 * MIB);
    // And now as it should be.
    assert_eq!(page.post("/api/size", &wish, &[]).0, 202);
    let state = page.state_with(|state| state["setting"]["running"] == false);
    assert_eq!(state["setting"]["error"], Value::Null);
    assert_eq!(pool_size(&server), 40 * MIB);
    page.state_with(|state| state["decisions"].to_string().contains("set by this page to 40 MiB"));
}

#[test]
fn what_a_client_sends_costs_no_more_than_is_read_of_it() {
    let server = innodb("watch-large", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    // More than any machine has: from anyone, and from the page itself.
    let huge = "Content-Length: 1000000000000000\r\n\r\n";
    let address = &page.address;
    let own = format!(
        "POST /api/size HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nX-Tidepool-Token: {}\r\n",
        page.token
    );
    for (head, status) in [("POST /x HTTP/1.1\r\nHost: evil\r\n", 421), (own.as_str(), 400)] {
        for stream in page.connections(2, &format!("{head}{huge}")) {
            assert_eq!(answer(stream).0, status, "{head}");
        }
    }
    // A request that would be valid, except for its length.
    let wish = format!("{{\"bytes\": {}}}{}", 40 * MIB, " ".repeat(10_000));
    assert_eq!(page.post("/api/size", &wish, &[]).0, 400);
    // Headers without an end.
    let mut endless = page.connect();
    endless.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: ").as_bytes()).unwrap();
    for _ in 0..64 {
        if endless.write_all(&[b'x'; 64 << 10]).is_err() {
            break;
        }
    }
    assert_eq!(answer(endless).0, 431);
    assert_eq!(page.get("/metrics").0, 200);
    assert_eq!(pool_size(&server), 64 * MIB);
}

#[test]
fn clients_that_are_silent_or_do_not_read_hold_up_neither_others_nor_the_end() {
    /// More than the page has places for.
    const MANY: usize = 70;
    let server = innodb("watch-silent", &["--innodb-buffer-pool-size=64M"]);
    let mut page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    let host = format!("Host: {}\r\n", page.address);
    let own =
        format!("{host}Origin: http://{}\r\nX-Tidepool-Token: {}\r\n", page.address, page.token);
    let silent = [
        String::new(),
        format!("GET / HTTP/1.1\r\n{host}"),
        format!("POST /x HTTP/1.1\r\n{host}Content-Length: 5000\r\n\r\n"),
        format!("POST /api/size HTTP/1.1\r\n{own}Content-Length: 4000\r\n\r\n"),
        // Asks for much, and reads none of it.
        format!("GET /page.js HTTP/1.1\r\n{host}\r\n").repeat(2000),
    ];
    for sent in &silent {
        // Few as well as many: who holds one of four places is as bad as who holds all.
        for number in [4, MANY] {
            let _held = page.connections(number, sent);
            let asked = Instant::now();
            assert_eq!(page.get("/metrics").0, 200);
            let took = asked.elapsed();
            assert!(took < Duration::from_secs(20), "{took:?} beside {number} of {sent:.300}");
        }
    }
    let _held: Vec<_> = silent.iter().map(|sent| page.connections(4, sent)).collect();
    let told = Instant::now();
    page.terminate();
    let (status, at) = page.ended();
    assert!(status.success(), "{status}");
    assert!(at - told < Duration::from_secs(4), "{:?}", at - told);

    let mut page = Page::start(&server, &["--duration=3"]);
    let started = Instant::now();
    let _held: Vec<_> = silent.iter().map(|sent| page.connections(1, sent)).collect();
    let (status, at) = page.ended();
    assert!(status.success(), "{status}");
    assert!(at - started < Duration::from_secs(8), "{:?}", at - started);
}

#[test]
fn each_step_of_the_slider_frees_what_goes_with_it_and_no_more() {
    let args = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=96M"];
    let server = innodb("watch-steps", &args);
    fill(&server, 200);
    let mut conn = server.connect();
    for statement in ["SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON"] {
        conn.query_drop(statement).unwrap();
    }
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    let wish = format!("{{\"bytes\": {}}}", 96 * MIB);
    assert_eq!(page.post("/api/size", &wish, &[]).0, 202);
    page.state_with(|state| state["setting"]["running"] == false);
    assert_eq!(pool_size(&server), 96 * MIB);
    let query = "SELECT argument FROM mysql.general_log WHERE argument LIKE 'BEGIN NOT ATOMIC%'";
    let steps: Vec<String> = conn.query(query).unwrap();
    assert!(steps.len() > 2, "{steps:#?}");
    let mut from = 256 * MIB;
    for step in steps {
        let figure = |before: &str| -> u64 {
            let text = step.split_once(before).unwrap_or_else(|| panic!("{before} in {step}")).1;
            text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
        };
        let to = figure("innodb_buffer_pool_size = ");
        let free = figure("pages_free' AND variable_value + 0 < ");
        // And half of what is kept for queries that read on.
        assert!(free <= (from - to) / 16384 + 512, "{free} pages free for {from} -> {to}");
        from = to;
    }
}

#[test]
fn a_pool_in_large_pages_is_said_to_have_its_size_for_good() {
    let server = innodb("watch-large", &["--large-pages", "--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    let state = page.state();
    let why = state["about"]["fixed"].as_str().unwrap();
    assert!(why.contains("large_pages=0"), "{why}");
    let (status, text) = page.post("/api/size", "{\"bytes\": 33554432}", &[]);
    assert_eq!((status, text.as_str()), (409, why));
    assert_eq!(page.state()["setting"]["wanted_bytes"], Value::Null);
}

#[test]
fn a_connection_that_keeps_the_lock_for_resizing_does_not_stop_the_slider() {
    let server = innodb("watch-turn", &["--innodb-buffer-pool-size=64M"]);
    let mut other = server.connect();
    other.query_drop("DO GET_LOCK('tidepool_resize', 0)").unwrap();
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    let wish = format!("{{\"bytes\": {}}}", 40 * MIB);
    assert_eq!(page.post("/api/size", &wish, &[]).0, 202);
    let state = page.state_with(|state| state["setting"]["running"] == false);
    assert_eq!(state["setting"]["error"], Value::Null);
    assert_eq!(pool_size(&server), 40 * MIB);
    page.state_with(|state| state["decisions"].to_string().contains("the lock is ignored"));
    other.query_drop("DO RELEASE_LOCK('tidepool_resize')").unwrap();
}

#[test]
fn hostile_names_stay_text_and_the_page_loads_nothing_from_elsewhere() {
    let server = innodb("watch-names", &["--innodb-buffer-pool-size=64M"]);
    fill(&server, 2);
    let mut conn = server.connect();
    let name = "<script>alert(1)</script>\"'&";
    conn.query_drop(format!("CREATE TABLE test.`{name}` (id INT PRIMARY KEY) ENGINE=InnoDB"))
        .unwrap();
    conn.query_drop(format!("INSERT INTO test.`{name}` VALUES (1)")).unwrap();
    let page = Page::start(&server, &[]);
    let (status, body) = page.post("/api/content", "{}", &[]);
    assert_eq!(status, 200, "{body}");
    let state = page.state();
    let tables: Vec<&str> = state["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["table"].as_str().unwrap())
        .collect();
    assert!(tables.iter().any(|table| table.contains("script")), "{tables:?}");
    let (_, html) = page.get("/");
    let scripts = html.split("src=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let paths: Vec<String> = scripts.map(|name| format!("/{name}")).collect();
    assert!(paths.len() > 3, "{html}");
    let files =
        paths.iter().map(String::as_str).chain(["/", "/page.css"]).map(|path| page.get(path));
    for (status, text) in files {
        assert_eq!(status, 200);
        for elsewhere in [
            "http://",
            "https://",
            "//cdn",
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(elsewhere), "{elsewhere}");
        }
    }
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let server = innodb("watch-metrics", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    let (status, text) = page.get("/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("tidepool_watch_up{engine=\"innodb\"} 1"), "{text}");
    assert!(
        text.contains(&format!(
            "tidepool_watch_buffer_pool_size_bytes{{engine=\"innodb\"}} {}",
            64 * MIB
        )),
        "{text}"
    );
    let before = metrics(&text);
    assert!(before.values().all(|value| value.is_finite()), "{text}");
    for name in in_the_dashboard().into_iter().filter(|name| !name.contains("_replication_")) {
        assert!(before.contains_key(&name), "{name} in {text}");
    }
    // Counters go on, also for seconds in which no request came.
    let mut conn = server.connect();
    (0..1000).for_each(|_| conn.query_drop("DO 1").unwrap());
    let questions = "tidepool_watch_questions_total";
    let deadline = Instant::now() + PATIENCE;
    let after = loop {
        let after = metrics(&page.get("/metrics").1);
        if after[questions] >= before[questions] + 1000.0 {
            break after;
        }
        assert!(Instant::now() < deadline, "{after:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    for (name, value) in before.iter().filter(|(name, _)| name.ends_with("_total")) {
        assert!(after[name] >= *value, "{name} went from {value} to {}", after[name]);
    }
    assert!(after["tidepool_watch_server_cpu_seconds_total"] > 0.0, "{after:?}");
}

#[test]
fn a_server_that_hangs_is_not_shown_as_live() {
    let server = innodb("watch-hangs", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(|state| state["samples"].as_array().is_some_and(|all| !all.is_empty()));
    let pid = Pid::from_raw(i32::try_from(server.pid().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let state = page.state_with(|state| state["error"].is_string());
    kill_process(pid, Signal::CONT).unwrap();
    let error = state["error"].as_str().unwrap();
    assert!(error.starts_with("the server has not answered for 1"), "{error}");
    assert!(!state["samples"].as_array().unwrap().is_empty(), "what was seen stays");
    page.state_with(|state| state["error"].is_null());
}

/// Values by name.
pub fn metrics(text: &str) -> HashMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let metric = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.split('{').next().unwrap().to_owned(), value.parse().unwrap())
    };
    lines.map(metric).collect()
}

/// What the dashboard asks for: each name once.
pub fn in_the_dashboard() -> BTreeSet<String> {
    let dashboard = include_str!("../../../packaging/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let mut asked: Vec<&Value> =
        dashboard["annotations"]["list"].as_array().unwrap().iter().collect();
    for panel in dashboard["panels"].as_array().unwrap() {
        asked.extend(panel["targets"].as_array().unwrap());
    }
    let words = asked.iter().flat_map(|asked| {
        let expr = asked["expr"].as_str().unwrap();
        expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
    });
    words.filter(|word| word.starts_with("tidepool_watch_")).map(str::to_owned).collect()
}

#[test]
fn the_percentile_is_of_all_statements_where_the_plugin_counts_them() {
    let plugins = Environment::get().path("STOCK_PLUGIN_DIR");
    let args = ["--innodb-buffer-pool-size=64M", &format!("--plugin-dir={}", plugins.display())];
    let server = innodb("watch-p95", &args);
    let mut conn = server.connect();
    for statement in [
        "CREATE USER poor@localhost",
        "INSTALL SONAME 'query_response_time'",
        "SET GLOBAL query_response_time_stats = ON",
        "SET GLOBAL query_response_time_range_base = 2, query_response_time_flush = ON",
    ] {
        conn.query_drop(statement).unwrap();
    }
    // Reading what it counted takes no privilege.
    let page = Page::start(&server, &["--user=poor"]);
    conn.query_drop("DO SLEEP(0.2)").unwrap();
    let state = page.state_with(|state| {
        let samples = state["samples"].as_array().unwrap();
        samples.iter().any(|sample| sample["p95_ms"].is_f64())
    });
    assert_eq!(state["about"]["p95_source"], "response_time_plugin");
}

#[test]
fn a_server_that_dies_is_said_and_its_return_is_seen() {
    let mut server = innodb("watch-dies", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    server.kill9();
    let state = page.state_with(|state| state["error"].is_string());
    assert!(!state["error"].as_str().unwrap().is_empty());
    assert!(page.get("/metrics").1.contains("tidepool_watch_up{engine=\"innodb\"} 0"));
    server.restart();
    page.state_with(|state| state["error"].is_null());
}

#[test]
fn a_server_that_comes_back_otherwise_is_described_anew() {
    let args = |most: &str| {
        ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--loose-skip-log-bin"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("--innodb-buffer-pool-size-max={most}")])
            .collect::<Vec<String>>()
    };
    let mut server = innodb("watch-otherwise", &[]);
    server.set_args(args("512M"));
    server.restart();
    fill(&server, 2);
    // The number of the named process is soon another's, or free.
    let page = Page::start(&server, &[&format!("--pid={}", server.pid().unwrap())]);
    let state = page.state_with(|state| !state["samples"].as_array().unwrap().is_empty());
    assert_eq!(state["about"]["size_max_bytes"], 512 * MIB);
    assert_eq!(page.post("/api/content", "{}", &[]).0, 200);
    assert!(!page.state()["content"].as_array().unwrap().is_empty());
    server.kill9();
    page.state_with(|state| state["error"].is_string());
    server.set_args(args("128M"));
    server.restart();
    let state = page.state_with(|state| state["error"].is_null());
    assert_eq!(state["about"]["size_max_bytes"], 128 * MIB);
    assert_eq!(state["content"].as_array().unwrap().len(), 0, "that was in another pool");
    let last = state["samples"].as_array().unwrap().last().unwrap()["at_ms"].clone();
    let state = page.state_with(|state| {
        let newest = state["samples"].as_array().unwrap().last().unwrap();
        newest["at_ms"].as_u64() > last.as_u64()
    });
    let newest = state["samples"].as_array().unwrap().last().unwrap();
    assert!(newest["server_resident_bytes"].as_u64() > Some(16 * MIB), "{newest:#}");
}

#[test]
fn the_terminal_gets_the_same_figures() {
    let server = innodb("watch-text", &["--innodb-buffer-pool-size=64M"]);
    let output =
        tidepool(server.socket()).args(["watch", "--text", "--duration=5"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("pool_mib 64") && text.contains(" qps "), "{text}");
}
