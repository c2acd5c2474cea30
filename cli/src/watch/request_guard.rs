//! Access control of HTTP requests.
//!
//! * Every request must name this server in `Host`. That refuses a page elsewhere that rebinds its
//!   own name to 127.0.0.1.
//! * A request that changes or costs something needs the token that was printed at the start, in a
//!   separate header, and an `Origin` that is this page. A form or script of another site has
//!   neither.
//! * A request that only reads is open to every client that can reach the port, so the port is on
//!   the loopback address.

use std::net::SocketAddr;

use crate::exit::{Error, Result};

/// The header that carries the token.
pub const TOKEN_HEADER: &str = "X-Tidepool-Token";

/// What the checks compare with.
#[derive(Debug)]
pub struct RequestGuard {
    /// `host:port`, in lower case; on port 80 without it, too.
    hosts: Vec<String>,
    /// Of those, the names that the user gave: a proxy with such a name may speak TLS.
    proxies: Vec<String>,
    token: String,
}

/// What a request says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Claims<'a> {
    /// The `Host` header.
    pub host: Option<&'a str>,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// The [`TOKEN_HEADER`].
    pub token: Option<&'a str>,
}

impl RequestGuard {
    /// For a server at `address`, also reachable as `names` (with or without a port), with a new
    /// token.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(address: SocketAddr, names: &[String]) -> Result<RequestGuard> {
        let mut bytes = [0_u8; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        if filled != Ok(bytes.len()) {
            return Err(Error::Local("the system gives no random numbers for a token".into()));
        }
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(RequestGuard::with_token(address, names, token))
    }

    fn with_token(address: SocketAddr, names: &[String], token: String) -> RequestGuard {
        let port = address.port();
        let mut hosts = vec![address.to_string()];
        if address.ip().is_loopback() {
            hosts.extend([
                format!("localhost:{port}"),
                format!("127.0.0.1:{port}"),
                format!("[::1]:{port}"),
            ]);
        }
        let named = names.iter().map(|name| name.to_ascii_lowercase());
        let proxies: Vec<String> =
            named.flat_map(|name| [format!("{name}:{port}"), name]).collect();
        hosts.extend(proxies.iter().cloned());
        // A browser leaves out the port that it would take anyway.
        let unsaid = |host: &String| host.strip_suffix(":80").map(str::to_owned);
        let short: Vec<String> = hosts.iter().filter(|_| port == 80).filter_map(unsaid).collect();
        hosts.extend(short);
        RequestGuard { hosts, proxies, token }
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether a request that only reads is allowed.
    ///
    /// # Errors
    /// What to tell the client.
    pub fn may_look(&self, claims: Claims<'_>) -> std::result::Result<(), &'static str> {
        if self.is_ours(claims.host) {
            Ok(())
        } else {
            Err("unknown Host header; restart with --allow-host NAME")
        }
    }

    /// Whether a request that changes something is allowed.
    ///
    /// # Errors
    /// What to tell the client.
    pub fn may_change(&self, claims: Claims<'_>) -> std::result::Result<(), &'static str> {
        self.may_look(claims)?;
        let plain = claims.origin.and_then(|origin| origin.strip_prefix("http://"));
        let encrypted = claims.origin.and_then(|origin| origin.strip_prefix("https://"));
        let is_proxys = |host: &str| self.proxies.contains(&host.to_ascii_lowercase());
        if !self.is_ours(plain) && !encrypted.is_some_and(is_proxys) {
            return Err("cross-origin request refused");
        }
        if !claims.token.is_some_and(|token| same(token.as_bytes(), self.token.as_bytes())) {
            return Err("this needs the token that was printed when the page was started");
        }
        Ok(())
    }

    fn is_ours(&self, host: Option<&str>) -> bool {
        host.is_some_and(|host| self.hosts.contains(&host.to_ascii_lowercase()))
    }
}

/// Compares in constant time, so that the time does not reveal a correct prefix.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> RequestGuard {
        RequestGuard::with_token(
            "127.0.0.1:8306".parse().unwrap(),
            &["db.example".into()],
            "abc".into(),
        )
    }

    #[test]
    fn a_rebound_name_is_refused() {
        for (host, allowed) in [
            (Some("127.0.0.1:8306"), true),
            (Some("LocalHost:8306"), true),
            (Some("db.example"), true),
            (Some("db.example:8306"), true),
            (Some("evil.example:8306"), false),
            (Some("127.0.0.1"), false),
            (Some("127.0.0.1:8307"), false),
            (None, false),
        ] {
            assert_eq!(
                guard().may_look(Claims { host, ..Claims::default() }).is_ok(),
                allowed,
                "{host:?}"
            );
        }
    }

    #[test]
    fn a_proxy_may_speak_tls_and_this_program_does_not() {
        for (origin, allowed) in [
            ("https://db.example", true),
            ("https://DB.example:8306", true),
            ("http://db.example", true),
            ("https://127.0.0.1:8306", false),
            ("https://evil.example", false),
            ("https://db.example.evil.example", false),
        ] {
            let claims =
                Claims { host: Some("db.example"), origin: Some(origin), token: Some("abc") };
            assert_eq!(guard().may_change(claims).is_ok(), allowed, "{origin}");
        }
    }

    #[test]
    fn the_port_that_browsers_leave_out_may_be_missing() {
        let guard = RequestGuard::with_token("127.0.0.1:80".parse().unwrap(), &[], "abc".into());
        for host in ["127.0.0.1", "127.0.0.1:80", "localhost", "[::1]"] {
            let origin = format!("http://{host}");
            let claims = Claims { host: Some(host), origin: Some(&origin), token: Some("abc") };
            assert_eq!(guard.may_change(claims), Ok(()), "{host}");
        }
        assert!(guard.may_look(Claims { host: Some("evil"), ..Claims::default() }).is_err());
    }

    #[test]
    fn changing_needs_host_origin_and_token() {
        let good = Claims {
            host: Some("localhost:8306"),
            origin: Some("http://localhost:8306"),
            token: Some("abc"),
        };
        assert_eq!(guard().may_change(good), Ok(()));
        for bad in [
            Claims { host: Some("evil:8306"), ..good },
            Claims { origin: None, ..good },
            Claims { origin: Some("null"), ..good },
            Claims { origin: Some("http://evil.example"), ..good },
            Claims { origin: Some("https://localhost:8306"), ..good },
            Claims { token: None, ..good },
            Claims { token: Some(""), ..good },
            Claims { token: Some("abd"), ..good },
            Claims { token: Some("abcd"), ..good },
        ] {
            assert!(guard().may_change(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tokens_differ_and_are_long() {
        let address = "127.0.0.1:1".parse().unwrap();
        let (a, b) =
            (RequestGuard::new(address, &[]).unwrap(), RequestGuard::new(address, &[]).unwrap());
        assert_eq!(a.token().len(), 32);
        assert_ne!(a.token(), b.token());
    }
}
