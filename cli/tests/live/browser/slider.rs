//! The slider resizes the server, and what the server says stays text.

use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use serde_json::{Value, json};

use super::{PATIENCE, browser};
use crate::advise::global;
use crate::watch::{Page, pool_size};
use crate::{Reader, fill, innodb, tidepool_server};

const MIB: u64 = 1 << 20;

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
    browser.until("samples.length > 3 && document.querySelectorAll('.tile').length >= 10");
    assert_eq!(browser.value("document.getElementById('size').disabled"), true);
    assert_eq!(browser.value("document.getElementById('look').disabled"), true);
    // Something is drawn: pixels that are not the canvas's ground.
    let inked =
        "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v !== 0))";
    for canvas in ["#graphs figure:nth-child(4) canvas", "#curve"] {
        browser.until(&format!("{inked}(document.querySelector('{canvas}'))"));
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
