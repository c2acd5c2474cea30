//! The page in a real browser, headless, over WebDriver: it draws, its slider resizes the server,
//! and names stay text.
//!
//! Needs `chromedriver` and `chromium` (Debian's `chromium-driver`); where they are missing, or
//! can't start, the test says so and does nothing else. Whatever hangs, it ends: every answer,
//! every wait and the whole have a deadline, and the browser's processes are killed with the test.
//! `TIDEPOOL_SCREENSHOTS=<directory>` keeps what it saw, in light and dark.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tidepool_lab::process::spawn_tied;

use crate::advise::global;
use crate::watch::{Page, pool_size};
use crate::{Reader, fill, innodb, tidepool_server};

const MIB: u64 = 1 << 20;
/// A browser that has not started by then won't.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For one thing that must come true in the page.
const PATIENCE: Duration = Duration::from_secs(60);
/// For one answer of the driver: longer than the limits that the driver itself is given.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A browser with one window. Killed, with its driver, when dropped.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    /// The reason, where no browser can be had.
    fn start() -> Result<Browser, String> {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        command
            .arg("--port=0")
            // Directories that the browser writes elsewhere by default; and no bus to wait for.
            .env("HOME", profile.path())
            .env("XDG_CONFIG_HOME", profile.path())
            .env("XDG_CACHE_HOME", profile.path())
            .env("DBUS_SESSION_BUS_ADDRESS", "disabled:")
            .env("DBUS_SYSTEM_BUS_ADDRESS", "disabled:")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut driver = spawn_tied(&mut command, &[]).map_err(|error| error.to_string())?;
        let stdout = BufReader::new(driver.stdout.take().unwrap());
        let mut browser = Browser { driver, port: 0, session: String::new(), profile };
        let (sender, ports) = channel();
        // Reads to the end, or the driver would one day wait for a reader.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // "ChromeDriver was started successfully on port 38571."
                let port = line.split_once("successfully on port ").map(|(_, port)| port);
                if let Some(Ok(port)) = port.map(|port| port.trim_end_matches('.').parse::<u16>()) {
                    let _ = sender.send(port);
                }
            }
        });
        browser.port =
            ports.recv_timeout(START_LIMIT).map_err(|_| "chromedriver does not say its port")?;
        let mut args: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            // Too small in many containers, where the page then hangs.
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-breakpad",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--window-size=1240,1400",
        ]
        .map(str::to_owned)
        .into();
        args.push(format!("--user-data-dir={}", browser.profile.path().display()));
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": args },
            "timeouts": { "script": 10_000, "pageLoad": 20_000, "implicit": 0 },
        } } });
        let session = browser
            .answer("POST", "/session", &wanted, START_LIMIT)
            .map_err(|error| format!("Chromium does not start: {error}"))?;
        match session["sessionId"].as_str() {
            Some(id) => browser.session = format!("/session/{id}"),
            None => return Err(format!("Chromium does not start: {session:#}")),
        }
        Ok(browser)
    }

    /// One WebDriver command; its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.answer(method, path, body, ANSWER_LIMIT);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(answer["error"].is_null(), "{method} {path}: {answer:#}");
        answer
    }

    /// The same; an error if nothing comes within `limit`.
    fn answer(&self, method: &str, path: &str, body: &Value, limit: Duration) -> io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(limit))?;
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        // The driver keeps the connection, whatever it is asked.
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        Ok(answer["value"].take())
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// The value of a JavaScript expression in the page.
    fn value(&self, expression: &str) -> Value {
        self.command(
            "/execute/sync",
            &json!({ "script": format!("return {expression}"), "args": [] }),
        )
    }

    /// Waits until an expression is true.
    fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(expression) != true {
            assert!(
                Instant::now() < deadline,
                "never: {expression}\n{}",
                self.value("document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } }),
        );
    }

    /// Into the directory that the environment names, if it does. (Base 64 is decoded by hand: it
    /// is a dozen lines.)
    fn screenshot(&self, name: &str) {
        let Some(directory) = std::env::var_os("TIDEPOOL_SCREENSHOTS") else { return };
        let shot = self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": "Page.captureScreenshot", "params": { "captureBeyondViewport": true } }),
        );
        let path = std::path::Path::new(&directory).join(format!("{name}.png"));
        std::fs::write(path, base64(shot["data"].as_str().unwrap())).unwrap();
    }

    /// In light and dark. The colours of the graph follow with the next figures.
    fn screenshots(&self, name: &str) {
        for scheme in ["light", "dark"] {
            self.scheme(scheme);
            let count = self.value("samples[samples.length - 1].at_ms");
            self.until(&format!("samples[samples.length - 1].at_ms > {count} + 2000"));
            self.screenshot(&format!("{name}-{scheme}"));
        }
    }

    /// Presses the slider at one part of its width, moves to another, looks, lets go.
    fn drag(&self, from: f64, to: f64, look: impl FnOnce()) {
        let rect = self.value("(r => [r.x, r.y, r.width, r.height])(document.getElementById('size').getBoundingClientRect())");
        let [x, y, width, height] = [0, 1, 2, 3].map(|i| rect[i].as_f64().unwrap());
        let at = |part: f64| ((x + 8.0 + part * (width - 16.0)) as i64, (y + height / 2.0) as i64);
        let act = |actions: Value| {
            let pointer = json!({ "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": actions });
            self.command("/actions", &json!({ "actions": [pointer] }));
        };
        let go = |(x, y): (i64, i64)| json!({ "type": "pointerMove", "duration": 50, "origin": "viewport", "x": x, "y": y });
        act(
            json!([go(at(from)), { "type": "pointerDown", "button": 0 }, go(at((from + to) / 2.0)), go(at(to))]),
        );
        look();
        act(json!([{ "type": "pointerUp", "button": 0 }]));
    }

    /// Presses a key, by WebDriver's letter for it, on the element of this id.
    fn key(&self, id: &str, key: &str) {
        self.value(&format!("document.getElementById('{id}').focus()"));
        let strokes =
            json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": strokes }] });
        self.command("/actions", &actions);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            let _ = self.answer("DELETE", &self.session, &json!({}), Duration::from_secs(5));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // The browser has its own process group, and outlives a driver that was killed. Its profile
        // identifies it.
        let profile = self.profile.path().to_string_lossy().into_owned();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let command_line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let ours = String::from_utf8_lossy(&command_line).contains(&profile);
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let (true, Some(pid)) = (ours, pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&c| c != b'=').map(value).collect();
    let group = |four: &[u8]| {
        let bits = four.iter().fold(0_u32, |bits, &six| bits << 6 | u32::from(six))
            << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}

/// `None` where no browser can be had, which is said.
fn browser() -> Option<Browser> {
    let browser = Browser::start();
    browser
        .inspect_err(|why| {
            eprintln!("skipped: {why}; scripts/deps --test installs chromium-driver");
        })
        .ok()
}

#[test]
fn the_page_draws_and_its_slider_resizes_the_server() {
    let Some(browser) = browser() else { return };
    let server =
        innodb("watch-browser", &["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M"]);
    // InnoDB keeps 16 MiB free: with more than this the reader would drive the small table below
    // out of the pool.
    let rows = fill(&server, 28);
    let mut conn = server.connect_to("test");
    let hostile = "<img src=x onerror=\"document.title='hacked'\">";
    conn.query_drop(format!("CREATE TABLE test.`{hostile}` (id INT PRIMARY KEY) ENGINE=InnoDB"))
        .unwrap();
    // Some pages, so that it is among the largest.
    conn.query_drop(format!("INSERT INTO test.`{hostile}` SELECT seq FROM seq_1_to_5000")).unwrap();
    let reader = Reader::start(&server, rows);
    let page = Page::start(&server, &[]);

    // Without the token: figures, and a slider that can't be moved.
    browser.open(&format!("http://{}/", page.address));
    browser.until("samples.length > 3 && document.querySelectorAll('.tile').length === 7");
    assert_eq!(browser.value("document.getElementById('size').disabled"), true);
    assert_eq!(browser.value("document.getElementById('look').disabled"), true);
    // Something is drawn: pixels that are not the canvas's ground.
    let inked =
        "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v !== 0))";
    for canvas in ["graph", "curve"] {
        browser.until(&format!("{inked}(document.getElementById('{canvas}'))"));
    }

    // With it: InnoDB's content by index, hostile names as text.
    browser.open("about:blank");
    browser.open(&format!("http://{}/#token={}", page.address, page.token));
    browser.until("samples.length > 3 && !document.getElementById('size').disabled");
    browser.value("document.getElementById('look').click()");
    browser.until("document.getElementById('content').innerText.includes('onerror')");
    assert_eq!(browser.value("document.querySelectorAll('#content img').length"), 0);
    assert_ne!(browser.value("document.title"), "hacked");

    // The slider, dragged to the left as a hand would.
    let thumb =
        browser.value("Number(document.getElementById('size').value) / 1000").as_f64().unwrap();
    browser.drag(thumb, thumb / 2.0, || {
        let text = browser.value("document.getElementById('prediction').innerText");
        assert!(text.as_str().unwrap().contains("predicted"), "{text}");
        assert_eq!(pool_size(&server), 64 * MIB, "it was set before it was let go");
    });
    // Nor does it set anything when it is let go, or by a key, before that is confirmed.
    let picked = || browser.value("picked").as_u64();
    let dragged = picked().expect("a size is shown");
    browser.key("size", "\u{e012}");
    assert!(picked().unwrap() < dragged, "{:?} after {dragged}", picked());
    browser.key("size", "\u{e011}");
    assert_eq!(picked(), browser.value("least").as_u64());
    // A key moves it by a unit at least, also where a notch is less.
    browser.key("size", "\u{e014}");
    assert_eq!(picked().unwrap(), browser.value("least + unit").as_u64().unwrap());
    assert_eq!(
        (pool_size(&server), browser.value("setting.wanted_bytes")),
        (64 * MIB, Value::Null)
    );
    browser.key("size", "\u{e00c}");
    assert_eq!(
        (picked(), browser.value("document.getElementById('confirm').hidden")),
        (None, true.into())
    );
    assert_eq!(pool_size(&server), 64 * MIB, "Escape leaves it as it is");
    browser.drag(thumb, thumb / 2.0, || {});
    browser.value("document.getElementById('set').click()");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) == 64 * MIB {
        assert!(Instant::now() < deadline, "{}", browser.value("document.body.innerText"));
        std::thread::sleep(Duration::from_millis(200));
    }
    browser.until(
        "!setting.running && document.getElementById('prediction').innerText.includes('after')",
    );
    assert!(pool_size(&server) < 64 * MIB);
    browser.until("document.getElementById('decisions').innerText.includes('set by this page')");
    // Only the slider sets the size of this one.
    assert_eq!(browser.value("document.getElementById('mode').offsetHeight"), 0);
    browser.screenshots("watch");
    let errors = browser.value("document.getElementById('error').hidden");
    assert_eq!(errors, true);
    drop(reader);
}

#[test]
fn a_governed_pool_can_be_fixed_by_the_slider_and_left_to_its_engine_by_the_button() {
    let Some(browser) = browser() else { return };
    let server = tidepool_server::server("watch-browser-tidepool", &[]);
    let page = Page::start(&server, &[]);
    let mode = |text: &str| format!("document.getElementById('mode').innerText.includes('{text}')");
    let button = "(b => b.offsetHeight > 0 ? b.disabled ? 'off' : 'on' : 'none')(document.getElementById('govern'))";
    browser.open(&format!("http://{}/#token={}", page.address, page.token));
    browser.until(&mode("Automatic"));
    assert_eq!(browser.value(button), "none");
    browser.screenshots("watch-governed");
    let thumb =
        browser.value("Number(document.getElementById('size').value) / 1000").as_f64().unwrap();
    browser.drag(thumb, thumb / 2.0, || {
        let text = browser.value("document.getElementById('mode').innerText");
        assert!(text.as_str().unwrap().starts_with("If it is set: fixed at "), "{text}");
        assert_eq!(global(&server, "tidepool_buffer_pool_size"), 0);
    });
    browser.key("size", "\u{e007}");
    browser.until(&mode("Fixed: "));
    browser.until(&format!("!setting.running && {button} === 'on'"));
    let fixed = global(&server, "tidepool_buffer_pool_size");
    assert!(fixed >= 4 * MIB && fixed.is_multiple_of(2 * MIB), "{fixed}");
    // It is the engine's least that the slider ends at, and the page's figures say so.
    let small = json!({ "bytes": 4 * MIB, "below_an_eighth": true }).to_string();
    assert_eq!(page.post("/api/size", &small, &[]).0, 202);
    browser.until("document.getElementById('least').textContent === '4 MiB'");
    browser.until("samples[samples.length - 1].pool_bytes === 4 * MIB");
    browser.screenshots("watch-fixed");
    // Who may not set it has a button, but it does nothing.
    browser.open("about:blank");
    browser.open(&format!("http://{}/", page.address));
    browser.until(&format!("{button} === 'off'"));
    browser.open("about:blank");
    browser.open(&format!("http://{}/#token={}", page.address, page.token));
    browser.until(&format!("{button} === 'on'"));
    browser.value("document.getElementById('govern').click()");
    browser.until(&mode("Automatic"));
    browser.until(&format!(
        "!setting.running && samples[samples.length - 1].governed && {button} === 'none'"
    ));
    assert_eq!(global(&server, "tidepool_buffer_pool_size"), 0);
    browser.until("document.getElementById('decisions').innerText.includes('left by this page')");
    assert_eq!(browser.value("document.getElementById('error').hidden"), true);
}
