//! The page's server: a few fixed files, the state as JSON, two requests that change or cost something, and metrics.
//!
//! | request | answer | needs |
//! |---|---|---|
//! | `GET /`, `/page.css`, `/page.js` | the page | Host |
//! | `GET /api/state?since=<ms>` | everything that the page shows | Host |
//! | `POST /api/size` `{"bytes":…}` | sets the pool's size | Host, Origin, token |
//! | `POST /api/content` | InnoDB's content by index, which costs the server something | Host, Origin, token |
//! | `GET /metrics` | the newest sample for Prometheus | Host |

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tiny_http::{Header, Method, Request, Response};

use super::guard::{Claims, Guard, TOKEN_HEADER};
use super::{Watched, content, metrics};
use crate::bytes::human;
use crate::server::Server;

/// Requests that are answered at the same time.
const WORKERS: usize = 4;
/// The longest body that is read.
const BODY_MAX: u64 = 4096;

type Answer = Response<std::io::Cursor<Vec<u8>>>;

/// Answers requests until the program is told to stop.
pub fn serve(http: &tiny_http::Server, guard: &Guard, watched: &Arc<Watched>) {
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while !watched.stop.load(Ordering::Relaxed) {
                    if let Ok(Some(mut request)) = http.recv_timeout(Duration::from_millis(200)) {
                        let answer = answer(&mut request, guard, watched);
                        // A client that went away is no business of ours.
                        let _ = request.respond(answer);
                    }
                }
            });
        }
    });
}

fn answer(request: &mut Request, guard: &Guard, watched: &Watched) -> Answer {
    let header = |name: &'static str| {
        let mut headers = request.headers().iter().filter(move |header| header.field.equiv(name));
        // Twice the same header: which one counts would be a matter of taste.
        let first = headers.next();
        first.filter(|_| headers.next().is_none()).map(|header| header.value.as_str())
    };
    let claims =
        Claims { host: header("Host"), origin: header("Origin"), token: header(TOKEN_HEADER) };
    if let Err(why) = guard.may_look(claims) {
        return text(421, why);
    }
    let url = request.url().to_owned();
    let (path, query) = url.split_once('?').unwrap_or((&url, ""));
    match (request.method(), path) {
        (Method::Get | Method::Head, "/") => file("text/html", include_str!("page/page.html")),
        (Method::Get | Method::Head, "/page.css") => {
            file("text/css", include_str!("page/page.css"))
        }
        (Method::Get | Method::Head, "/page.js") => {
            file("text/javascript", include_str!("page/page.js"))
        }
        (Method::Get, "/api/state") => state(query, watched),
        (Method::Get, "/metrics") => {
            with_type(text(200, &metrics::render(watched)), "text/plain; version=0.0.4")
        }
        (Method::Post, "/api/size" | "/api/content") => {
            if let Err(why) = guard.may_change(claims) {
                return text(403, why);
            }
            if path == "/api/content" {
                costly_content(watched)
            } else {
                set_size(request, watched)
            }
        }
        (Method::Get | Method::Head | Method::Post, _) => text(404, "there is nothing here"),
        _ => text(405, "not that way"),
    }
}

fn state(query: &str, watched: &Watched) -> Answer {
    let since = query.split('&').find_map(|pair| pair.strip_prefix("since=")?.parse().ok());
    let seen = watched.seen();
    let body = json!({
        "about": watched.about,
        "error": seen.error,
        "samples": seen.history.since(since.unwrap_or(0)),
        "curve": seen.curve,
        "content": seen.content,
        "content_note": seen.content_note,
        "content_is_costly": content::is_costly(watched.about.engine),
        "decisions": seen.decisions,
        "setting": watched.setter.progress(),
    });
    json_text(200, &body)
}

/// Refuses what doesn't fit: a page that makes a mistake easier is worse than none.
fn set_size(request: &mut Request, watched: &Watched) -> Answer {
    let mut body = String::new();
    if request.as_reader().take(BODY_MAX).read_to_string(&mut body).is_err() {
        return text(400, "the body is not text");
    }
    let wish: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let Some(bytes) = wish["bytes"].as_u64() else {
        return text(400, "the body must be {\"bytes\": <number>}");
    };
    let unit = watched.about.unit_bytes.max(1);
    let bytes = (bytes / unit * unit).max(watched.about.least_bytes);
    let seen = watched.seen();
    let last = seen.history.last();
    let fits = last.and_then(|sample| sample.target_bytes).or(watched.about.size_max_bytes);
    let now = last.map_or(0, |sample| sample.pool_bytes);
    if let Some(fits) = fits.filter(|&fits| bytes > fits && bytes > now) {
        let why = format!("{} does not fit: there is memory for {}", human(bytes), human(fits));
        return text(409, &why);
    }
    drop(seen);
    watched.setter.wish(bytes);
    json_text(202, &json!({ "bytes": bytes }))
}

fn costly_content(watched: &Watched) -> Answer {
    let rows = Server::connect(&watched.target)
        .and_then(|mut server| content::rows(&mut server, watched.about.engine));
    match rows {
        Ok(rows) => {
            let answer = json_text(200, &json!({ "rows": rows.len() }));
            watched.seen().content = rows;
            answer
        }
        Err(error) => text(502, &error.to_string()),
    }
}

fn file(kind: &str, content: &str) -> Answer {
    with_type(text(200, content), &format!("{kind}; charset=utf-8"))
}

fn json_text(status: u16, body: &serde_json::Value) -> Answer {
    with_type(text(status, &body.to_string()), "application/json")
}

fn with_type(answer: Answer, kind: &str) -> Answer {
    answer.with_header(header("Content-Type", kind))
}

fn text(status: u16, body: &str) -> Answer {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                  img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    Response::from_string(body)
        .with_status_code(status)
        .with_header(header("Content-Security-Policy", policy))
        .with_header(header("X-Content-Type-Options", "nosniff"))
        .with_header(header("Referrer-Policy", "no-referrer"))
        .with_header(header("Cache-Control", "no-store"))
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("our own headers are ASCII")
}
