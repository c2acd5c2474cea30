//! The pictures of `docs/guide/live-page.md`:
//!
//! ```text
//! TIDEPOOL_SCREENSHOTS=docs/guide/pictures \
//!     cargo test -p tidepool-cli --test live -- --ignored pictures
//! ```

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;
use std::time::Duration;

use mysql::prelude::Queryable;
use serde_json::json;
use tidepool_tests::server::{Engine, Server};

use super::{Browser, browser};
use crate::watch::Page;
use crate::watch_servers::{command, option_file};
use crate::{Reader, fill_in, innodb, tidepool_server};

/// As long as the graphs show.
const LOAD: Duration = Duration::from_secs(125);
/// Of wide pictures: a guide is not read at their width.
const SCALE: f64 = 0.7;
/// A picture in the repository may have no more.
const BYTES_MAX: u64 = 150 << 10;

impl Browser {
    /// The upper part of the page.
    fn picture(&self, name: &str, (width, height): (u32, u32), scheme: &str) {
        self.width(width);
        self.scheme(scheme);
        self.value("(document.activeElement.blur(), scrollTo(0, 0))");
        let count = self.value("samples[samples.length - 1].at_ms");
        self.until(&format!("samples[samples.length - 1].at_ms > {count} + 2000"));
        let scale = if width > 1000 { SCALE } else { 1.0 };
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": scale });
        let wanted = json!({ "captureBeyondViewport": true, "clip": clip });
        let shot = self.devtools("Page.captureScreenshot", &wanted);
        let directory = std::env::var_os("TIDEPOOL_SCREENSHOTS").expect("a directory to write to");
        let path = crate::repository().join(directory).join(format!("{name}.png"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, super::base64(shot["data"].as_str().unwrap())).unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        assert!(bytes <= BYTES_MAX, "{name} has {bytes} bytes");
    }
}

/// Two sessions that change the same rows in transactions, until the flag is set.
fn write(server: &Server, rows: u64, stop: &Arc<AtomicBool>) {
    for begin in [1, 5] {
        let (mut conn, stop) = (server.connect(), Arc::clone(stop));
        spawn(move || {
            let mut id = begin;
            while !stop.load(Ordering::Relaxed) {
                id = id * 48_271 % 2_147_483_647_u64;
                let places = [id % 20 + 1, id % rows + 1, (id / 7) % 20 + 1];
                let _ = conn.query_drop("BEGIN");
                for place in places {
                    let change = format!(
                        "UPDATE test.filler SET v = CONCAT('{id}', SUBSTR(v, 12)) \
                         WHERE id = {place}"
                    );
                    let _ = conn.query_drop(change);
                    std::thread::sleep(Duration::from_millis(2));
                }
                let _ = conn.query_drop("COMMIT");
            }
        });
    }
}

#[test]
#[ignore = "makes the pictures of docs/guide/live-page.md, in three minutes"]
fn pictures() {
    let Some(browser) = browser() else { panic!("there is no browser") };
    let log = ["--slow-query-log=ON", "--log-slow-verbosity=engine", "--long-query-time=0.0005"];
    let pools = ["--tidepool-buffer-pool-size=48M", "--innodb-buffer-pool-size=64M"];
    let shop = tidepool_server::server("pictures-shop", &[log.as_slice(), &pools[..1]].concat());
    let blog = innodb("pictures-blog", &[log.as_slice(), &pools[1..]].concat());
    let rows = fill_in(Engine::Tidepool, &shop, 96);
    // What compresses as real rows do.
    let digests: Vec<String> = (0..8).map(|i| format!("SHA2(id * 8 + {i}, 512)")).collect();
    let change = format!("UPDATE test.filler SET v = CONCAT({})", digests.join(", "));
    shop.connect().query_drop(change).unwrap();
    let blog_rows = fill_in(Engine::InnoDb, &blog, 24);
    let directory = tempfile::tempdir().unwrap();
    let history = format!("--history={}", directory.path().join("history").display());
    let options = option_file(directory.path(), &[("shop", &shop), ("blog", &blog)]);
    let page = Page::run(command(&options), &["--server=shop", "--server=blog", &history]);
    let readers = (Reader::start(&shop, rows), Reader::start(&blog, blog_rows));
    let stop = Arc::new(AtomicBool::new(false));
    write(&shop, rows, &stop);
    browser.open(&format!("http://{}/#server=shop&token={}", page.address, page.token));
    browser.until("samples.length > 3");
    // Not the paths of the machine that makes the pictures.
    browser.value("showHead = state => showServers(state.servers, state.server)");
    browser.value(
        "document.getElementById('server').textContent = \
         `${about.server} · shop · Tidepool's pool`",
    );
    std::thread::sleep(LOAD);
    browser.value("document.querySelector('#spans button').click()");
    browser.picture("live-page-desk", (1440, 1040), "light");
    browser.picture("live-page-phone", (390, 1000), "dark");
    browser.width(1440);
    browser.scheme("light");
    let wide = "document.querySelector('.columns').getBoundingClientRect().height";
    let height = browser.value(wide).as_f64().unwrap() as u32;
    browser.value(
        "document.querySelectorAll('main > section, header, nav').forEach(e => e.hidden = true)",
    );
    browser.picture("live-page-below", (1440, height.min(900) + 40), "light");
    stop.store(true, Ordering::Relaxed);
    drop(readers);
}
