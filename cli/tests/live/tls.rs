//! Encrypted connections to a server that has a certificate: what is asked for is done, or the
//! command ends.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mysql::prelude::Queryable;
use tidepool_tests::server::Server;

use crate::{innodb, stderr};

/// Certificates, made anew for each test.
struct Certificates(tempfile::TempDir);

impl Certificates {
    /// `None`, and a message, where there is no `openssl`.
    fn make() -> Option<Certificates> {
        let made = Certificates(tempfile::tempdir().unwrap());
        if Command::new("openssl").arg("version").output().is_err() {
            tidepool_skip::skip("no openssl");
            return None;
        }
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        for authority in ["ca", "other-ca"] {
            made.request(
                authority,
                &["-x509", "-days=2", "-addext=basicConstraints=critical,CA:TRUE"],
            );
        }
        made.signed("server", names);
        made.signed("elsewhere", "subjectAltName=DNS:db.example");
        made.signed("client", "subjectAltName=DNS:client.example");
        Some(made)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, args: &[&str]) {
        let args = args.iter().flat_map(|arg| match arg.split_once('=') {
            Some((name, value)) if name.starts_with('-') => vec![name, value],
            _ => vec![*arg],
        });
        let output =
            Command::new("openssl").args(args).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }

    fn request(&self, name: &str, more: &[&str]) {
        let (key, out) = (format!("-keyout={name}.key"), format!("-out={name}.pem"));
        let subject = format!("-subj=/CN={name}");
        let common = ["req", "-newkey=rsa:2048", "-nodes", &key, &out, &subject];
        self.openssl(&[&common[..], more].concat());
    }

    fn signed(&self, name: &str, extension: &str) {
        self.request(name, &[]);
        std::fs::write(self.path("extension"), extension).unwrap();
        let (request, out) = (format!("-in={name}.pem"), format!("-out={name}.crt"));
        let by =
            ["-CA=ca.pem", "-CAkey=ca.key", "-CAcreateserial", "-days=2", "-extfile=extension"];
        self.openssl(&[&["x509", "-req", &request, &out][..], &by].concat());
    }
}

/// A server that has the certificate of this name, and its port.
fn server(name: &str, certificates: &Certificates, certificate: &str) -> (Server, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let of =
        |option: &str, file: String| format!("--{option}={}", certificates.path(&file).display());
    let args = [
        "--skip-networking=OFF".to_owned(),
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        of("ssl-ca", "ca.pem".into()),
        of("ssl-cert", format!("{certificate}.crt")),
        of("ssl-key", format!("{certificate}.key")),
        "--innodb-buffer-pool-size=96M".into(),
        "--innodb-log-file-size=512M".into(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let server = innodb(name, &args);
    let mut conn = server.connect();
    for statement in [
        "CREATE USER app@localhost IDENTIFIED BY 'secret' REQUIRE SSL",
        "CREATE USER plain@localhost IDENTIFIED BY 'secret'",
        "CREATE USER known@localhost IDENTIFIED BY 'secret' REQUIRE X509",
        "GRANT ALL ON *.* TO app@localhost",
    ] {
        conn.query_drop(statement).unwrap();
    }
    (server, port)
}

/// `advise` over TCP as this user, with a `[client]` group of these lines.
fn advise(port: u16, user: &str, lines: &str, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("client.cnf");
    std::fs::write(&file, format!("[client]\n{lines}\n")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .arg(format!("--defaults-file={}", file.display()))
        .args(["-h", "127.0.0.1", "-P", &port.to_string(), "-u", user])
        .args(args)
        .args(["advise", "--interval=0.1"])
        .env("MYSQL_PWD", "secret")
        .output()
        .unwrap()
}

#[test]
fn tls_is_as_safe_as_it_is_asked_for() {
    let Some(certificates) = Certificates::make() else { return };
    let (server, port) = server("tls", &certificates, "server");
    let ca = format!("ssl-ca={}", certificates.path("ca.pem").display());
    let other = format!("ssl-ca={}", certificates.path("other-ca.pem").display());
    let code = |user: &str, lines: &str, args: &[&str]| {
        let output = advise(port, user, lines, args);
        (output.status.code().unwrap(), stderr(&output))
    };
    // An account that takes encrypted connections only.
    let (refused, text) = code("app", "", &[]);
    assert!(refused == 4 && text.contains("requires TLS: --ssl"), "{text}");
    for lines in [
        "ssl",
        "ssl-mode=REQUIRED",
        "ssl-mode=PREFERRED",
        &ca,
        &format!("{ca}\nssl-verify-server-cert"),
        &format!("{ca}\nssl_mode=VERIFY_IDENTITY"),
    ] {
        assert_eq!(code("app", lines, &[]), (0, String::new()), "{lines}");
    }
    assert_eq!(code("app", "", &["--ssl"]).0, 0);
    assert_eq!(
        code("app", &ca, &["--host=localhost", "--protocol=tcp", "--ssl-verify-server-cert"]).0,
        0
    );
    // Another authority, by any of the ways in which one is named; and those of the system, which
    // don't know ours.
    for lines in [
        other.as_str(),
        &format!("{other}\nssl-verify-server-cert"),
        &format!("{other}\nssl-mode=VERIFY_CA"),
        "ssl-verify-server-cert",
    ] {
        let (refused, text) = code("plain", lines, &[]);
        assert!(refused == 4 && text.contains("no secure connection"), "{lines}: {refused} {text}");
        assert!(text.contains("signed by no authority in"), "{text}");
    }
    // Switched off by word.
    assert_eq!(code("plain", &other, &["--skip-ssl"]).0, 0);
    // What the library can't do ends it with the option's name.
    let (refused, text) = code("plain", "ssl\nssl-crl=/crl.pem", &[]);
    assert!(refused == 8 && text.contains("client.cnf:3: ssl-crl"), "{text}");
    // A certificate of this client's.
    let of = |name: &str| certificates.path(name).display().to_string();
    let identity = format!("{ca}\nssl-cert={}\nssl-key={}", of("client.crt"), of("client.key"));
    assert_eq!(code("known", &identity, &[]).0, 0);
    assert_eq!(code("known", &ca, &[]).0, 4);
    drop(server);
}

#[test]
fn a_certificate_for_another_host_is_refused_where_names_count() {
    let Some(certificates) = Certificates::make() else { return };
    let (server, port) = server("tls-name", &certificates, "elsewhere");
    let ca = format!("ssl-ca={}", certificates.path("ca.pem").display());
    let output = advise(port, "plain", &format!("{ca}\nssl-verify-server-cert"), &[]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("not valid for name"), "{text}");
    assert_eq!(advise(port, "plain", &ca, &[]).status.code(), Some(0));
    drop(server);
}

#[test]
fn a_server_without_tls_is_not_spoken_to_in_clear_where_tls_is_asked_for() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args = [
        "--skip-networking=OFF",
        "--bind-address=127.0.0.1",
        &format!("--port={port}"),
        "--skip-ssl",
    ];
    let server = innodb("tls-none", &args);
    server.connect().query_drop("CREATE USER plain@localhost IDENTIFIED BY 'secret'").unwrap();
    for lines in ["ssl", "ssl-verify-server-cert", "ssl-mode=REQUIRED"] {
        let output = advise(port, "plain", lines, &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(4), "{lines}: {text}");
        assert!(text.contains("TLS is asked for, and the server has none"), "{text}");
    }
    assert_eq!(advise(port, "plain", "ssl-mode=PREFERRED", &[]).status.code(), Some(0));
}

#[test]
fn a_socket_and_a_port_of_the_environment_are_the_last_to_count() {
    let server = innodb("tls-environment", &["--innodb-buffer-pool-size=96M"]);
    let run = |variables: &[(&str, &Path)], args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
        command.args(["--no-defaults", "-uroot"]).args(args).args(["advise", "--interval=0.1"]);
        command.envs(variables.iter().copied()).output().unwrap().status.code()
    };
    assert_eq!(run(&[("MYSQL_UNIX_PORT", server.socket())], &[]), Some(0));
    let wrong = Path::new("/nonexistent/s.sock");
    let socket = format!("--socket={}", server.socket().display());
    assert_eq!(run(&[("MYSQL_UNIX_PORT", wrong)], &[]), Some(3));
    assert_eq!(run(&[("MYSQL_UNIX_PORT", wrong)], &[&socket]), Some(0));
    assert_eq!(run(&[("MYSQL_TCP_PORT", Path::new("many"))], &[&socket]), Some(2));
}
