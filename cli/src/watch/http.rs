//! What is answered: a few fixed files, the state as JSON, two requests that change or cost
//! something, and metrics. [`super::connections`] has the connections.
//!
//! | request | answer | needs |
//! |---|---|---|
//! | `GET /`, `/page.css`, `/chart.js` … | the page | Host |
//! | `GET /api/state?since=<ms>` | everything that the page shows | Host |
//! | `GET /api/history?span=<s>` | samples of days, where `--history` keeps them | Host |
//! | `POST /api/size` `{"bytes":…}` | sets the pool's size; 0 has Tidepool's governed | Host, Origin, token |
//! | `POST /api/content` | InnoDB's content by index, which costs the server something | Host, Origin, token |
//! | `GET /metrics` | the newest sample, and counters, for Prometheus | Host |
//!
//! `HEAD` has the same headers as `GET`. Of several servers a request names one with
//! `server=<name>` in its query; without it the first is meant.

use std::borrow::Cow;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::connections::{self, Answer, LIMITS};
use super::exposition::Format;
use super::request_guard::{Claims, RequestGuard, TOKEN_HEADER};
use super::sample::{About, Engine, Sample};
use super::watched::Watched;
use super::{metrics, pool_content};
use crate::bytes::human;
use crate::clock::unix_ms;
use crate::server::Server;

/// A request makes the pool no smaller than its size over this, unless it says so: where the page's
/// slider ends.
const SMALLEST_SHARE: u64 = 8;

/// A path, its type and its content.
type File = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 9] = [
    ("/", HTML, include_str!("page/page.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/format.js", SCRIPT, include_str!("page/format.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/graphs.js", SCRIPT, include_str!("page/graphs.js")),
    ("/curve.js", SCRIPT, include_str!("page/curve.js")),
    ("/slider.js", SCRIPT, include_str!("page/slider.js")),
    ("/tables.js", SCRIPT, include_str!("page/tables.js")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
];

/// What the answers are made from.
struct Page {
    guard: RequestGuard,
    /// One at least.
    servers: Vec<Arc<Watched>>,
    /// Allows one costly query to the server at a time, however many requests come.
    costly: Arc<Semaphore>,
}

/// Answers requests in a separate thread until the result is shut down.
///
/// # Errors
/// If the system refuses.
pub fn start(
    listener: TcpListener,
    guard: RequestGuard,
    servers: Vec<Arc<Watched>>,
) -> std::io::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("http")
        .enable_all()
        .build()?;
    listener.set_nonblocking(true)?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let page = Arc::new(Page { guard, servers, costly: Arc::new(Semaphore::new(1)) });
    runtime.spawn(connections::serve(listener, LIMITS, move |request| {
        let page = Arc::clone(&page);
        Box::pin(async move { answer(request, &page).await })
    }));
    Ok(runtime)
}

/// The value of a header. A header that comes twice has none, because neither value is the right
/// one.
fn only<'a>(request: &'a Request<Incoming>, name: &str) -> Option<&'a str> {
    let mut values = request.headers().get_all(name).iter();
    let first = values.next();
    first.filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
}

async fn answer(request: Request<Incoming>, page: &Page) -> Answer {
    let claims = Claims {
        host: only(&request, "Host"),
        origin: only(&request, "Origin"),
        token: only(&request, TOKEN_HEADER),
    };
    if let Err(why) = page.guard.may_look(claims) {
        return text(421, why);
    }
    let uri = request.uri();
    // Only proxies are asked for a whole URL, which may name another host than the header that was
    // looked at.
    let path = if uri.authority().is_some() { "" } else { uri.path() };
    let query = uri.query().unwrap_or("").to_owned();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if let Some((_, kind, content)) = FILES.iter().find(|(of, ..)| is_read && *of == path) {
        return with_type(text(200, content), kind);
    }
    if is_read && path == "/metrics" {
        let format = Format::wanted(only(&request, "Accept"));
        let body = metrics::render(&page.servers, format);
        return with_type(text(200, &body), format.content_type());
    }
    let Some(watched) = page.server(&query) else {
        return text(404, "no server of this name is watched");
    };
    match path {
        "/api/state" if is_read => state(&query, page, watched),
        "/api/history" if is_read => history(&query, Arc::clone(watched)).await,
        "/api/size" | "/api/content" if request.method() == Method::POST => {
            if let Err(why) = page.guard.may_change(claims) {
                return text(403, why);
            }
            if path == "/api/content" {
                return costly_content(page, Arc::clone(watched)).await;
            }
            let watched = Arc::clone(watched);
            match connections::body(request).await {
                Ok(body) => set_size(&body, &watched),
                Err((status, why)) => text(status, why),
            }
        }
        _ if is_read || request.method() == Method::POST => text(404, "not found"),
        _ => text(405, "method not allowed"),
    }
}

impl Page {
    /// The one that the query names.
    fn server(&self, query: &str) -> Option<&Arc<Watched>> {
        match parameter(query, "server") {
            None => self.servers.first(),
            Some(name) => {
                self.servers.iter().find(|watched| watched.name.as_deref() == Some(&*name))
            }
        }
    }
}

/// The first parameter of a query that has this name.
fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find_map(|(of, value)| (of == name).then_some(value))
}

/// A line of the page's list of servers; empty where there is one.
fn servers(page: &Page) -> Vec<serde_json::Value> {
    let named = page.servers.iter().filter_map(|watched| Some((watched.name.as_ref()?, watched)));
    let line = |(name, watched): (&String, &Arc<Watched>)| {
        let seen = watched.seen();
        let about = watched.about();
        let last = seen.history.last();
        json!({
            "name": name,
            "place": about.place,
            "host": about.host,
            "error": seen.trouble(),
            "qps": last.map(|last| last.qps),
            "p95_ms": last.and_then(|last| last.p95_ms),
            "hit_ratio": last.and_then(|last| last.hit_ratio),
            "pool_bytes": last.map(|last| last.pool_bytes),
            "replication_lag_s": last.and_then(|last| last.health.replication_lag_s),
        })
    };
    named.map(line).collect()
}

async fn history(query: &str, watched: Arc<Watched>) -> Answer {
    if watched.archive.is_none() {
        return text(404, "no history is kept: restart with --history DIR");
    }
    let Some(span_s) = parameter(query, "span").and_then(|span| span.parse().ok()) else {
        return text(400, "span=<seconds> is missing");
    };
    // A month takes milliseconds to read, in which others would wait.
    let read = tokio::task::spawn_blocking(move || {
        let now_ms = unix_ms(SystemTime::now());
        watched.archive.as_ref().map(|archive| archive.read(span_s, now_ms))
    });
    match read.await {
        Ok(found) => json_text(200, &json!(found)),
        Err(error) => text(500, &error.to_string()),
    }
}

fn state(query: &str, page: &Page, watched: &Watched) -> Answer {
    let since = parameter(query, "since").and_then(|since| since.parse().ok());
    let servers = servers(page);
    let seen = watched.seen();
    let about = watched.about();
    let body = json!({
        "now_ms": unix_ms(SystemTime::now()),
        "server": watched.name,
        "servers": servers,
        "keeps_history": watched.archive.is_some(),
        "about": *about,
        "error": seen.trouble(),
        "samples": seen.history.since(since.unwrap_or(0)),
        "curve": seen.curve,
        "content": seen.content,
        "content_note": seen.content_note,
        "content_at_ms": seen.content_at_ms,
        "content_is_costly": pool_content::is_costly(about.engine),
        "replication": seen.replication,
        "statements": seen.statements,
        "decisions": seen.decisions,
        "decisions_note": seen.decisions_note,
        "setting": watched.setter.progress(),
    });
    json_text(200, &body)
}

fn set_size(body: &str, watched: &Watched) -> Answer {
    let seen = watched.seen();
    let about = watched.about();
    let wanted = wanted(body, &about, seen.history.last());
    drop(seen);
    match wanted {
        Ok(bytes) => {
            watched.setter.wish(about.engine, bytes);
            json_text(202, &json!({ "bytes": bytes }))
        }
        Err((status, why)) => text(status, &why),
    }
}

/// The size to set, 0 for a pool that its engine governs; or the status and the reason. Refuses
/// what doesn't fit: a page that makes a mistake easier is worse than none.
fn wanted(body: &str, about: &About, last: Option<&Sample>) -> Result<u64, (u16, String)> {
    let wish: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let Some(bytes) = wish["bytes"].as_u64() else {
        return Err((400, "the body must be {\"bytes\": <number>}".into()));
    };
    match (bytes, about.engine) {
        (0, Engine::Tidepool) => return Ok(0),
        (0, Engine::Innodb) => {
            let why = "0 is no size: only Tidepool's pool can be governed by its engine. `tidepool govern` keeps InnoDB's at what fits";
            return Err((400, why.into()));
        }
        _ => {}
    }
    if let Some(why) = &about.fixed {
        return Err((409, why.clone()));
    }
    let now = last.map_or(0, |sample| sample.pool_bytes);
    // Rounding up would take a number of MiB, or a slip, for a wish for the smallest pool.
    if bytes < about.least_bytes {
        let (bytes, least) = (human(bytes), human(about.least_bytes));
        return Err((400, format!("refused: {bytes} is below the least size, {least} (in bytes)")));
    }
    if bytes < now / SMALLEST_SHARE && wish["below_an_eighth"] != true {
        return Err((
            409,
            format!(
                "refused: {} is less than an eighth of the present {}; \
                 \"below_an_eighth\": true allows it",
                human(bytes),
                human(now)
            ),
        ));
    }
    let unit = about.unit_bytes.max(1);
    let bytes = (bytes / unit * unit).max(about.least_bytes);
    let fits = last.and_then(|sample| sample.target_bytes).or(about.size_max_bytes);
    match fits {
        Some(fits) if bytes > fits && bytes > now => {
            let (bytes, fits) = (human(bytes), human(fits));
            Err((409, format!("refused: {bytes} exceeds the {fits} available")))
        }
        _ => Ok(bytes),
    }
}

async fn costly_content(page: &Page, watched: Arc<Watched>) -> Answer {
    // Here and not in the other thread: who goes away while waiting asks nothing more.
    let Ok(turn) = Arc::clone(&page.costly).acquire_owned().await else {
        return text(503, "shutting down");
    };
    let looked = tokio::task::spawn_blocking(move || {
        let rows = Server::connect(&watched.target)
            .and_then(|mut server| pool_content::rows(&mut server, watched.about().engine));
        drop(turn);
        match rows {
            Ok(rows) => {
                let answer = json_text(200, &json!({ "rows": rows.len() }));
                let mut seen = watched.seen();
                seen.content = rows;
                seen.content_at_ms = Some(unix_ms(SystemTime::now()));
                answer
            }
            Err(error) => text(502, &error.to_string()),
        }
    });
    looked.await.unwrap_or_else(|error| text(500, &error.to_string()))
}

fn json_text(status: u16, body: &serde_json::Value) -> Answer {
    with_type(text(status, &body.to_string()), "application/json")
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: u16, body: &str) -> Answer {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    const HEADERS: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let mut answer = Response::new(body.to_owned());
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    answer.headers_mut().extend(headers);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::MIB;

    fn about(engine: Engine, unit_bytes: u64, least_bytes: u64) -> About {
        let place = "a socket".to_owned();
        About { engine, unit_bytes, least_bytes, fixed: None, ..About::unseen(place) }
    }

    #[test]
    fn names_in_a_query_are_decoded() {
        let query = "since=5&server=a%20b%2f%C3%A4+c%";
        assert_eq!(parameter(query, "since").as_deref(), Some("5"));
        assert_eq!(parameter(query, "server").as_deref(), Some("a b/ä c%"));
        assert_eq!(parameter(query, "erver"), None);
    }

    #[test]
    fn nothing_is_a_size_of_no_pool_and_has_tidepools_governed() {
        let innodb = about(Engine::Innodb, MIB, 5 * MIB);
        let tidepool = about(Engine::Tidepool, 2 * MIB, 4 * MIB);
        let (status, why) = wanted("{\"bytes\": 0}", &innodb, None).unwrap_err();
        assert_eq!((status, why.contains("only Tidepool's pool")), (400, true), "{why}");
        assert_eq!(wanted("{\"bytes\":0}", &tidepool, None), Ok(0));
        // Only that very number, and nothing that is rounded to it.
        for body in ["{\"bytes\": -0}", "{\"bytes\": null}", "{\"bytes\": false}", "{}", "0"] {
            assert_eq!(wanted(body, &tidepool, None).unwrap_err().0, 400, "{body}");
        }
        // Nor is a number that was meant as MiB rounded up to the least that there is.
        for about in [&innodb, &tidepool] {
            let (status, why) = wanted("{\"bytes\": 640}", about, None).unwrap_err();
            assert_eq!((status, why.contains("(in bytes)")), (400, true), "{why}");
        }
        assert_eq!(wanted("{\"bytes\": 4194304}", &tidepool, None), Ok(4 * MIB));
        assert_eq!(wanted("{\"bytes\": 7340032}", &tidepool, None), Ok(6 * MIB));
    }

    #[test]
    fn a_pool_is_made_far_smaller_only_by_word() {
        let about = about(Engine::Innodb, MIB, 5 * MIB);
        let last = Sample { pool_bytes: 800 * MIB, ..Sample::default() };
        let wish = |body: serde_json::Value| wanted(&body.to_string(), &about, Some(&last));
        assert_eq!(wish(json!({ "bytes": 100 * MIB })), Ok(100 * MIB));
        let (status, why) = wish(json!({ "bytes": 99 * MIB })).unwrap_err();
        assert_eq!((status, why.contains("below_an_eighth")), (409, true), "{why}");
        let wish = wish(json!({ "bytes": 16 * MIB, "below_an_eighth": true }));
        assert_eq!(wish, Ok(16 * MIB));
    }

    #[test]
    fn a_pool_that_the_server_cannot_resize_is_not_said_to_be_on_its_way() {
        let fixed = Some("it uses large pages".to_owned());
        let about = About { fixed, ..about(Engine::Innodb, MIB, 5 * MIB) };
        let refused = wanted("{\"bytes\": 7340032}", &about, None).unwrap_err();
        assert_eq!(refused, (409, "it uses large pages".to_owned()));
    }

    #[test]
    fn a_size_that_does_not_fit_is_refused_and_a_smaller_one_than_now_is_not() {
        let about = about(Engine::Innodb, MIB, 5 * MIB);
        let last =
            Sample { pool_bytes: 100 * MIB, target_bytes: Some(50 * MIB), ..Sample::default() };
        let wish =
            |mib: u64| wanted(&json!({ "bytes": mib * MIB }).to_string(), &about, Some(&last));
        assert_eq!(wish(101).unwrap_err().0, 409);
        assert_eq!(wish(100), Ok(100 * MIB));
        assert_eq!(wish(40), Ok(40 * MIB));
    }
}
