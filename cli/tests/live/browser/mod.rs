//! The page in a real browser, headless, over WebDriver.
//!
//! Needs `chromedriver` and `chromium` (Debian's `chromium-driver`); where they are missing, or
//! can't start, the test says so and does nothing else. Whatever hangs, it ends: every answer,
//! every wait and the whole have a deadline, and the browser's processes are killed with the test.
//! `TIDEPOOL_SCREENSHOTS=<directory>` keeps what it saw, in light and dark.

mod pictures;
mod slider;
mod view;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tidepool_lab::process::spawn_tied;

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

    /// One command of the DevTools protocol.
    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    fn scheme(&self, scheme: &str) {
        let forced = if scheme == "forced" { "active" } else { "none" };
        let scheme = if scheme == "forced" { "dark" } else { scheme };
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "forced-colors", "value": forced },
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// The width of the page, in pixels of the style sheet.
    fn width(&self, width: u32) {
        let height = if width < 500 { 844 } else { width * 10 / 16 };
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Into the directory that the environment names, if it does. (Base 64 is decoded by hand: it
    /// is a dozen lines.)
    fn screenshot(&self, name: &str) {
        let Some(directory) = std::env::var_os("TIDEPOOL_SCREENSHOTS") else { return };
        let whole = json!({ "captureBeyondViewport": true });
        let shot = self.devtools("Page.captureScreenshot", &whole);
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
        self.press(key);
    }

    /// Presses a key where the focus is.
    fn press(&self, key: &str) {
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
            tidepool_skip::skip(format!("{why}; scripts/deps --test installs chromium-driver"));
        })
        .ok()
}
