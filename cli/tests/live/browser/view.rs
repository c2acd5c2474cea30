//! How the page looks: on a phone, on a desk's screen and a wall's; in light, in dark and in
//! colours that a user forces; whether keys reach all of it, and whether it can be read without being seen.
//! `accessibility.js` has the checks.

use mysql::prelude::Queryable;
use serde_json::{Value, json};

use super::{Browser, browser};
use crate::watch::Page;
use crate::watch_servers::{command, option_file};
use crate::{Reader, fill, innodb};

const WIDTHS: [u32; 3] = [390, 1440, 2560];
const SCHEMES: [&str; 3] = ["light", "dark", "forced"];

/// What is wrong with the page as it is.
fn faults(browser: &Browser) -> Vec<String> {
    let found = browser.value(checks());
    let found = found.as_array().expect("the checks run to their end");
    found.iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()).collect()
}

/// The expression, without the comment before it: `return` and a comment would return nothing.
fn checks() -> &'static str {
    let script = include_str!("accessibility.js");
    &script[script.find("(() =>").expect("it is one expression")..]
}

fn check(browser: &Browser, name: &str) {
    for width in WIDTHS {
        browser.width(width);
        for scheme in SCHEMES {
            browser.scheme(scheme);
            browser.value("dispatchEvent(new Event('resize'))");
            let faults = faults(browser);
            browser.screenshot(&format!("{name}-{width}-{scheme}"));
            assert!(faults.is_empty(), "{name}, {width} px, {scheme}: {faults:#?}");
        }
    }
    browser.scheme("light");
}

#[test]
fn all_of_the_page_is_reached_and_read_at_any_width_and_in_any_colours() {
    let Some(browser) = browser() else { return };
    let args = [
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=64M",
        "--slow-query-log=ON",
        "--log-slow-verbosity=engine",
        "--long-query-time=0",
    ];
    let mut server = innodb("watch-view", &args);
    let rows = fill(&server, 100);
    let mut conn = server.connect_to("test");
    let long = "a_table_with_a_very_long_name_that_fits_no_column_of_a_phone";
    conn.query_drop(format!("CREATE TABLE {long} (id INT PRIMARY KEY) ENGINE=InnoDB")).unwrap();
    conn.query_drop(format!("INSERT INTO {long} SELECT seq FROM seq_1_to_20000")).unwrap();
    let reader = Reader::start(&server, rows);
    let page = Page::start(&server, &[]);
    browser.open(&format!("http://{}/#token={}", page.address, page.token));
    browser.until("samples.length > 3 && !document.getElementById('size').disabled");
    // Among the largest in the pool, just now.
    conn.query_drop(format!("SELECT SUM(id) FROM {long}")).unwrap();
    browser.value("document.getElementById('look').click()");
    browser.until(&format!("document.getElementById('content').innerText.includes('{long}')"));
    // The pages that the engine has read for each statement, from the server's slow log.
    browser.until("document.getElementById('statements').innerText.includes('pages read')");
    let statement = "SELECT v FROM test.filler WHERE id = ?";
    browser
        .until(&format!("document.getElementById('statements').innerText.includes('{statement}')"));
    browser.value("document.getElementById('figures').open = true");
    browser.until("document.querySelectorAll('#figures tbody tr').length > 8");
    check(&browser, "live");

    a_gap_is_a_gap(&browser);
    // What the graphs show is there as words, and with keys for each second.
    let label = "document.querySelector('#graphs canvas').getAttribute('aria-label')";
    browser.value("describeGraphs()");
    let words = browser.value(label).as_str().unwrap().to_owned();
    assert!(words.starts_with("Load, last 5 min: queries/s ") && words.contains("p95"), "{words}");
    browser.value("document.querySelector('#graphs canvas').id = 'first'");
    browser.key("first", "\u{e012}");
    browser.until("document.getElementById('tip').innerText.includes('queries/s')");
    browser.key("first", "\u{e00c}");
    assert_eq!(browser.value("document.getElementById('tip').hidden"), true);
    keys_reach_all(&browser);

    // Before a size is set, and after.
    browser.key("size", "\u{e012}");
    browser.until("known(picked)");
    check(&browser, "picked");
    browser.key("size", "\u{e00c}");

    // A dead server does not look alive.
    server.kill9();
    browser.until("isSilent");
    let figures = browser.value("document.getElementById('asof').innerText");
    assert!(figures.as_str().unwrap().starts_with("These figures are of "), "{figures}");
    assert_eq!(browser.value("document.getElementById('size').disabled"), true);
    check(&browser, "away");
    drop(reader);
}

/// Where no samples came, nothing is drawn: neither a line nor what is filled below one.
fn a_gap_is_a_gap(browser: &Browser) {
    let ink = browser.value(
        "(() => {
            const kept = samples, now = serverNow(), chart = CHARTS[0];
            const run = (from, to) => Array.from({ length: to - from }, (_, i) =>
                ({ ...kept[kept.length - 1], at_ms: now + (from + i) * 1000, qps: 100 }));
            samples = [...run(-200, -150), ...run(-50, 1)];
            drawGraphs();
            const { x, area } = chart.view, scale = devicePixelRatio;
            const y = area.bottom - (area.bottom - area.top) / 4;
            const ink = s => chart.canvas.getContext('2d')
                .getImageData(x(now + s * 1000) * scale, y * scale, 1, 1).data[3];
            const found = [-250, -175, -100, -25].map(ink);
            samples = kept;
            drawGraphs();
            return found.map(alpha => alpha > 0);
        })()",
    );
    assert_eq!(ink, json!([false, true, false, true]));
}

/// Tab goes through everything that can be used, and each shows that it has the focus.
fn keys_reach_all(browser: &Browser) {
    let all = "[...document.querySelectorAll('button, a[href], input, summary, [tabindex]')]\
               .filter(e => e.checkVisibility() && !e.disabled)";
    let wanted = browser.value(&format!("{all}.length")).as_u64().unwrap();
    browser.value("(document.activeElement.blur(), scrollTo(0, 0), window.reached = new Set())");
    browser
        .value("document.querySelector('h1').tabIndex = -1, document.querySelector('h1').focus()");
    for _ in 0..wanted {
        browser.press("\u{e004}");
        browser.value("reached.add(document.activeElement)");
        let outline = browser.value(
            "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0)\
             (getComputedStyle(document.activeElement))",
        );
        let id = browser.value("document.activeElement.outerHTML.slice(0, 80)");
        assert_eq!(outline, true, "{id} does not show that it has the focus");
    }
    let missed = browser
        .value(&format!("{all}.filter(e => !reached.has(e)).map(e => e.outerHTML.slice(0, 80))"));
    let missed: Vec<&Value> =
        missed.as_array().unwrap().iter().filter(|m| !m.to_string().contains("<h1")).collect();
    assert!(missed.is_empty(), "no key reaches {missed:#?}");
}

#[test]
fn the_checks_find_what_is_wrong() {
    let Some(browser) = browser() else { return };
    let server = innodb("watch-checks", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    browser.open(&format!("http://{}/", page.address));
    browser.until("samples.length > 1");
    browser.width(390);
    for (harm, fault) in [
        ("document.getElementById('server').style.color = 'rgb(150, 160, 170)'", "contrast of"),
        ("document.querySelector('#graphs canvas').removeAttribute('aria-label')", "has no name"),
        ("document.querySelector('main').style.width = '500px'", "px wide"),
        ("document.getElementById('decisions').id = 'now'", "is there twice"),
        ("document.getElementById('spans').replaceChildren()", "is chosen"),
        ("CHARTS[2].left.series[1].dash = 'solid'", "look the same"),
    ] {
        // In one go: the page repairs some of it within a second.
        let checks = checks();
        let found = browser.value(&format!("(() => {{ {harm}; return {checks} }})()"));
        assert!(found.to_string().contains(fault), "{harm}: {found:#}");
        browser.open("about:blank");
        browser.open(&format!("http://{}/", page.address));
        browser.until("samples.length > 1");
    }
}

#[test]
fn one_of_several_servers_is_chosen_and_days_are_shown() {
    let Some(browser) = browser() else { return };
    let small = innodb("watch-view-small", &["--innodb-buffer-pool-size=64M"]);
    let large = innodb("watch-view-large", &["--innodb-buffer-pool-size=96M"]);
    let directory = tempfile::tempdir().unwrap();
    let options = option_file(directory.path(), &[("small", &small), ("large", &large)]);
    let history = format!("--history={}", directory.path().join("kept").display());
    let page = Page::run(command(&options), &["--server=small", "--server=large", &history]);
    browser.open(&format!("http://{}/#token={}", page.address, page.token));
    let pool = |mib: u64| format!("samples.length > 1 && samples[0].pool_bytes === {mib} * MIB");
    browser.until(&pool(64));
    let chosen = "document.querySelector('nav [aria-current]').firstChild.textContent";
    assert_eq!(browser.value(chosen), "small");
    browser.value("document.querySelectorAll('nav a')[1].click()");
    browser.until(&pool(96));
    assert_eq!(browser.value(chosen), "large");
    // The token goes along.
    assert_eq!(browser.value("document.getElementById('size').disabled"), false);
    // What was kept of this server, and not of the other one.
    browser.until("[...document.querySelectorAll('#spans button')].length === 8");
    let long = "[...document.querySelectorAll('#spans button')].find(b => b.textContent === '1 h')";
    browser.value(&format!("{long}.click()"));
    // The first 10 s may not be over.
    let again = "(past.at = -Infinity, readPast(), false)";
    browser.until(&format!("past.span === 3600 && (past.samples.length > 0 || {again})"));
    assert_eq!(browser.value("past.samples[0].pool_bytes === 96 * MIB"), true);
    assert_eq!(browser.value(&format!("{long}.getAttribute('aria-pressed')")), "true");
    check(&browser, "servers");
}
