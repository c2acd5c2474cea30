//! Connections: how many there are, how much of them is read, and how long one may take. What is
//! answered is [`super::http`]'s.
//!
//! A new client has shown neither the right `Host` nor a token yet. So nothing that a
//! client sends or holds back may cost more than [`LIMITS`]: neither memory, nor a place that
//! others need, nor the end of the program.
//!
//! * One request a connection: a page asks once a second, and idle connections would need another
//!   limit.
//! * The time of a query to the server is not the client's fault, and counts for no limit. Such
//!   work belongs into [`tokio::task::spawn_blocking`]: all connections share one thread.
//! * Dropping the runtime ends everything here at once. A client whose answer is cut asks again.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

pub type Answer = Response<String>;
/// How an answer comes about.
pub type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A program without file descriptors gets some back when connections end; to ask at every moment
/// would only cost time.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// How much of what.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time. More wait in the system's queue, where they cost no memory of
    /// ours.
    pub connections: usize,
    /// First line and headers, bytes. A browser sends below a KiB, but cookies of whatever else is
    /// at this host come along.
    pub head_bytes: usize,
    /// Header lines.
    pub headers: usize,
    /// Until first line and headers are there.
    pub head: Duration,
    /// From the answer to the last byte of it that the client took.
    pub answer: Duration,
    /// For a client to see the answer before the connection is closed on what it still sends.
    pub linger: Duration,
}

/// Limits of the page. A client that is silent or doesn't read holds one of many places, and not
/// for long.
pub const LIMITS: Limits = Limits {
    connections: 64,
    head_bytes: 16 << 10,
    headers: 100,
    head: Duration::from_secs(5),
    answer: Duration::from_secs(10),
    linger: Duration::from_secs(1),
};

/// The longest body that is read.
const BODY_BYTES: usize = 4096;
/// Until a body is there.
const BODY_TIME: Duration = Duration::from_secs(5);

/// Answers until it is dropped.
pub async fn serve<H>(listener: TcpListener, limits: Limits, handle: H)
where
    H: Fn(Request<Incoming>) -> Answering + Clone + Send + Sync + 'static,
{
    let places = Arc::new(Semaphore::new(limits.connections));
    // The semaphore is never closed, so this loops for ever.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    converse(stream, limits, handle).await;
                    drop(place);
                });
            }
            Err(_) => sleep(AFTER_REFUSAL).await,
        }
    }
}

/// One request, its answer, and the end of the connection. A client that fails or goes away is no
/// business of ours.
async fn converse<H>(stream: TcpStream, limits: Limits, handle: H)
where
    H: Fn(Request<Incoming>) -> Answering,
{
    let answered = Notify::new();
    let service = service_fn(|request| {
        let (answer, answered) = (handle(request), &answered);
        Box::pin(async move {
            let answer = answer.await;
            answered.notify_one();
            Ok::<_, Infallible>(answer)
        })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(limits.head)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut too_late = pin!(async {
        answered.notified().await;
        sleep(limits.answer).await;
    });
    let in_time = poll_fn(|cx| match too_late.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => connection.poll_without_shutdown(cx).map(|_| true),
    });
    let in_time = in_time.await;
    let mut stream = connection.into_parts().io.into_inner();
    if !in_time {
        // Without this the system would go on offering the client what it doesn't take, and keep it
        // in memory meanwhile.
        let _ = stream.set_zero_linger();
        return;
    }
    // A socket that is closed while something unread is in it resets the connection, and the answer
    // may be lost on the way: of a body that was refused unread, say.
    if stream.shutdown().await.is_err() {
        return;
    }
    let rest = async {
        let mut ignored = [0; 4096];
        while stream.read(&mut ignored).await.is_ok_and(|length| length > 0) {}
    };
    let _ = timeout(limits.linger, rest).await;
}

/// The body of a request, if it is a short text.
///
/// # Errors
/// The status and what to tell the client.
pub async fn body(request: Request<Incoming>) -> Result<String, (u16, &'static str)> {
    const TOO_LONG: (u16, &str) = (400, "the body is too long");
    let body = request.into_body();
    // Said to be too long: nothing of it is waited for.
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(TOO_LONG);
    }
    match timeout(BODY_TIME, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(whole)) => {
            String::from_utf8(whole.to_bytes().to_vec()).map_err(|_| (400, "the body is not text"))
        }
        Ok(Err(_)) => Err(TOO_LONG),
        Err(_) => Err((408, "the body did not come in time")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Instant;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// A client that waits longer than this for what should come hangs.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// More than the buffers of both sockets take.
    const LARGE: usize = 64 << 20;

    fn quick() -> Limits {
        Limits {
            connections: 2,
            head: Duration::from_millis(300),
            answer: Duration::from_millis(300),
            linger: Duration::from_millis(300),
            ..LIMITS
        }
    }

    /// Answers `/large` with much, `/slow` after a second, everything else with the body.
    fn start(limits: Limits) -> (Runtime, SocketAddr) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, limits, |request| {
            Box::pin(async move {
                match request.uri().path() {
                    "/large" => Response::new("x".repeat(LARGE)),
                    "/slow" => {
                        sleep(Duration::from_secs(1)).await;
                        Response::new("late".into())
                    }
                    _ => Response::new(match body(request).await {
                        Ok(text) => text,
                        Err((_, why)) => why.into(),
                    }),
                }
            })
        }));
        (runtime, address)
    }

    fn connect(address: SocketAddr, sent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream
    }

    fn answer(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn ask(address: SocketAddr, sent: &str) -> String {
        answer(connect(address, sent))
    }

    /// Waits until the server lets go of a connection, however it does that.
    fn wait_for_the_end(mut stream: TcpStream) {
        let mut ignored = [0; 4096];
        loop {
            match stream.read(&mut ignored) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    return;
                }
            }
        }
    }

    #[test]
    fn one_request_is_answered_and_the_connection_closed() {
        let (_runtime, address) = start(quick());
        let two = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n";
        let text = ask(address, two);
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(text.ends_with("\r\n\r\nhello"), "{text}");
        assert!(text.contains("connection: close"), "{text}");
    }

    #[test]
    fn silent_clients_keep_others_out_no_longer_than_the_limit() {
        let (_runtime, address) = start(quick());
        for sent in ["", "GET / HTTP/1.1\r\nX: "] {
            let silent: Vec<_> = (0..6).map(|_| connect(address, sent)).collect();
            let asked = Instant::now();
            assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
            assert!(asked.elapsed() < PATIENCE / 2, "{:?}", asked.elapsed());
            silent.into_iter().for_each(wait_for_the_end);
        }
    }

    #[test]
    fn a_head_that_drips_is_not_waited_for() {
        let (_runtime, address) = start(quick());
        let mut stream = connect(address, "GET / HTTP/1.1\r\nX: ");
        let begun = Instant::now();
        while stream.write_all(b"x").is_ok() {
            assert!(begun.elapsed() < PATIENCE / 2);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn an_endless_head_is_refused() {
        let (_runtime, address) = start(quick());
        let line = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100_000));
        let lines = format!("GET / HTTP/1.1\r\n{}", "X: x\r\n".repeat(1000));
        for sent in [line, lines] {
            assert!(ask(address, &sent).starts_with("HTTP/1.1 431 "));
        }
        let address_too = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
        let text = ask(address, &address_too);
        assert!(text.starts_with("HTTP/1.1 431 ") || text.starts_with("HTTP/1.1 414 "), "{text}");
    }

    #[test]
    fn long_bodies_are_refused_whether_they_come_or_not() {
        let (_runtime, address) = start(quick());
        let chunked = format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
            100_000,
            "x".repeat(100_000)
        );
        let sent =
            format!("POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
        let huge = "POST / HTTP/1.1\r\nContent-Length: 1000000000000000\r\n\r\n".to_owned();
        for sent in [chunked, sent, huge] {
            let text = ask(address, &sent);
            assert!(text.ends_with("the body is too long"), "{text}");
        }
    }

    #[test]
    fn a_client_that_does_not_read_is_let_go() {
        let (_runtime, address) = start(quick());
        let deaf: Vec<_> =
            (0..4).map(|_| connect(address, "GET /large HTTP/1.1\r\n\r\n")).collect();
        let asked = Instant::now();
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(asked.elapsed() < PATIENCE / 2, "{:?}", asked.elapsed());
        // Another one may be served beside that answer. Its time is over before this one comes.
        assert!(ask(address, "GET /slow HTTP/1.1\r\n\r\n").ends_with("late"));
        for mut stream in deaf {
            let mut taken = Vec::new();
            let _ = stream.read_to_end(&mut taken);
            assert!(taken.len() < LARGE, "a client that did not read got the whole answer");
        }
        // One that reads gets it all. A busy machine may take longer than the short limit.
        let (_patient, address) = start(LIMITS);
        assert!(ask(address, "GET /large HTTP/1.1\r\n\r\n").len() > LARGE);
    }

    #[test]
    fn the_time_that_an_answer_needs_is_not_the_clients() {
        let (_runtime, address) = start(quick());
        assert!(ask(address, "GET /slow HTTP/1.1\r\n\r\n").ends_with("late"));
    }

    #[test]
    fn the_end_waits_for_nobody() {
        let (runtime, address) = start(Limits { connections: 8, ..LIMITS });
        let mut open = vec![
            connect(address, ""),
            connect(address, "POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n"),
            connect(address, "GET /slow HTTP/1.1\r\n\r\n"),
            connect(address, "GET /large HTTP/1.1\r\n\r\n"),
        ];
        // The answer to the last has begun to come: all have been let in.
        let mut first = [0];
        open[3].read_exact(&mut first).unwrap();
        let told = Instant::now();
        runtime.shutdown_background();
        open.drain(..).for_each(wait_for_the_end);
        assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    }
}
