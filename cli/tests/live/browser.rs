//! The page in a real browser, headless, over WebDriver: it draws, its slider resizes the server, and names stay text.
//!
//! Needs `chromedriver` and `chromium` (Debian's `chromium-driver`); without them the test says so and does nothing else.
//! `TIDEPOOL_SCREENSHOTS=<directory>` keeps what it saw, in light and dark.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use serde_json::{Value, json};

use crate::watch::{Page, pool_size};
use crate::{Reader, fill, innodb};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(180);

/// A browser with one window. Killed, with its driver, when dropped.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None` where there is no browser.
    fn start() -> Option<Browser> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Browser { driver, port, session: String::new(), _profile: profile };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "chromedriver does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut args: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1240,1400",
        ]
        .map(str::to_owned)
        .into();
        args.push(format!("--user-data-dir={}", browser._profile.path().display()));
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": args } } } });
        let session = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        Some(browser)
    }

    /// One WebDriver command; its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        // The driver keeps the connection, whatever it is asked.
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "chromedriver hung up");
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {answer:#}");
        answer["value"].clone()
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

    /// Into the directory that the environment names, if it does. (Base 64 is decoded by hand: it is a dozen lines.)
    fn screenshot(&self, name: &str) {
        let Some(directory) = std::env::var_os("TIDEPOOL_SCREENSHOTS") else { return };
        let shot = self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": "Page.captureScreenshot", "params": { "captureBeyondViewport": true } }),
        );
        let path = std::path::Path::new(&directory).join(format!("{name}.png"));
        std::fs::write(path, base64(shot["data"].as_str().unwrap())).unwrap();
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
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &self.session, &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
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

#[test]
#[ignore = "drives Chromium, which may take minutes on a busy machine: run with --ignored"]
fn the_page_draws_and_its_slider_resizes_the_server() {
    let Some(browser) = Browser::start() else {
        eprintln!("skipped: no chromedriver here");
        return;
    };
    let server =
        innodb("watch-browser", &["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M"]);
    let rows = fill(&server, 48);
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
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        // The colours of the graph follow with the next figures.
        let count = browser.value("samples[samples.length - 1].at_ms");
        browser.until(&format!("samples[samples.length - 1].at_ms > {count} + 2000"));
        browser.screenshot(&format!("watch-{scheme}"));
    }
    let errors = browser.value("document.getElementById('error').hidden");
    assert_eq!(errors, true);
    drop(reader);
}
