//! Every failure has a clear message and its exit code, and shows no password.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use mysql::prelude::Queryable;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::advise::{advise, until};
use crate::{innodb, stderr, stdout, tidepool};

#[test]
fn no_server() {
    let output = tidepool(Path::new("/nonexistent/s.sock")).arg("advise").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(text.contains("no server at /nonexistent/s.sock"), "{text}");
    let output = tidepool(Path::new("/nonexistent/s.sock"))
        .args(["--host=127.0.0.1", "--port=1", "advise"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn wrong_passwords_and_right_ones() {
    let server =
        innodb("bad-password", &["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=512M"]);
    server.connect().query_drop("CREATE USER app@localhost IDENTIFIED BY 'ri#ght'").unwrap();
    let run = |password: Option<&str>| {
        let mut command = tidepool(server.socket());
        command.args(["--user=app", "advise", "--interval=0.1"]);
        password.map(|password| command.env("MYSQL_PWD", password));
        command.output().unwrap()
    };
    let output = run(Some("wr0ng-secret"));
    assert_eq!(output.status.code(), Some(4));
    let text = stderr(&output);
    assert!(text.contains("refused user 'app'") && !text.contains("wr0ng-secret"), "{text}");
    assert!(stderr(&run(None)).contains("no password was given"));
    let output = run(Some("ri#ght"));
    assert!(output.status.success(), "{}", stderr(&output));
    // The server does not say why; a user who knows that the password is right should learn it.
    server.connect().query_drop("ALTER USER app@localhost REQUIRE SSL").unwrap();
    let text = stderr(&run(Some("ri#ght")));
    assert!(text.contains("requires TLS"), "{text}");
    server.connect().query_drop("ALTER USER app@localhost REQUIRE NONE").unwrap();
    let file = server.dir().join("client.cnf");
    std::fs::write(&file, "[client]\nuser=app\npassword='ri#ght'\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .arg(format!("--defaults-file={}", file.display()))
        .arg(format!("--socket={}", server.socket().display()))
        .args(["advise", "--interval=0.1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_password_on_the_command_line() {
    let lines: [&[&str]; 8] = [
        &["--password=ge-heim", "advise"],
        &["-p=ge-heim", "advise"],
        &["--password", "ge-heim", "advise"],
        &["-p", "ge-heim", "advise"],
        &["advise", "--password", "ge-heim"],
        &["-pge-heim", "advise"],
        &["lab", "run", "-pge-heim"],
        &["-p", "--ge-heim", "advise"],
    ];
    let outputs: Vec<_> = lines
        .into_iter()
        .map(|line| tidepool(Path::new("/nonexistent")).args(line).output().unwrap())
        .collect();
    for (output, line) in outputs.iter().zip(lines) {
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert_eq!(stderr(output), stderr(&outputs[0]), "{line:?}");
        assert_eq!(stdout(output), "", "{line:?}");
    }
    let text = stderr(&outputs[0]);
    assert!(text.contains("use -p alone") && !text.contains("heim"), "{text}");
    // Not even if it is no text.
    let output = tidepool(Path::new("/nonexistent"))
        .arg("-p")
        .arg(std::ffi::OsStr::from_bytes(b"ge-heim\xff"))
        .output()
        .unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), text));
}

/// Of a terminal whose user thinks better of it.
#[test]
fn a_password_that_is_asked_for_is_not_shown_and_ctrl_c_leaves_the_terminal_as_it_was() {
    let run = |typed: &[u8]| {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = std::fs::File::options()
            .read(true)
            .write(true)
            .open(std::ffi::OsStr::from_bytes(name.to_bytes()))
            .unwrap();
        // In a new session whose terminal this is: else Ctrl-C is a letter.
        let mut child = std::process::Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_tidepool"), "--defaults-file=/dev/null"])
            .args(["--socket=/nonexistent", "-p", "advise"])
            .stdin(slave.try_clone().unwrap())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut asked = Vec::new();
        let mut errors = child.stderr.take().unwrap();
        while !asked.ends_with(b": ") {
            let mut byte = [0];
            errors.read_exact(&mut byte).unwrap();
            asked.extend(byte);
        }
        let shows = || tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ECHO);
        until(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            (!shows()).then_some(())
        });
        rustix::io::write(&master, typed).unwrap();
        let mut rest = String::new();
        errors.read_to_string(&mut rest).unwrap();
        let status = child.wait().unwrap();
        let code = status.code().or_else(|| Some(128 + status.signal()?));
        assert!(shows(), "{typed:?}");
        (code, rest)
    };
    let (code, text) = run(b"ge-heim\n");
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("no server at /nonexistent") && !text.contains("heim"), "{text}");
    // As a shell reports an end by SIGINT.
    for typed in [&b"\x03"[..], b"ge-\x03"] {
        assert_eq!(run(typed), (Some(130), "\n".into()));
    }
}

#[test]
fn a_server_that_lets_nobody_in_is_not_said_to_be_none() {
    let server =
        innodb("bad-full", &["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=512M"]);
    let mut conn = server.connect();
    conn.query_drop("CREATE USER poor@localhost").unwrap();
    conn.query_drop("SET GLOBAL max_connections = 10").unwrap();
    let others: Vec<_> = (0..9).map(|_| server.connect()).collect();
    let output = tidepool(server.socket()).args(["--user=poor", "advise"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(9), "{text}");
    assert!(text.contains("Too many connections") && !text.contains("no server"), "{text}");
    drop(others);
}

#[test]
fn a_missing_privilege_is_named_by_its_grant() {
    let server =
        innodb("bad-privilege", &["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=512M"]);
    server.connect().query_drop("CREATE USER poor@localhost").unwrap();
    // One table of many.
    server
        .connect()
        .query_drop("GRANT SELECT ON mysql.innodb_table_stats TO poor@localhost")
        .unwrap();
    let run = || {
        tidepool(server.socket())
            .args(["--user=poor", "advise", "--interval=0.1"])
            .output()
            .unwrap()
    };
    let text = stdout(&run());
    let grant = "GRANT PROCESS ON *.* TO 'poor'@'localhost'";
    assert!(
        text.contains("Skipped: the sizes of InnoDB's files") && text.contains(grant),
        "{text}"
    );
    assert!(text.contains("data size unknown ("), "{text}");
    assert!(text.contains("some checks were skipped") && !text.contains("Healthy"), "{text}");
    let check = |user: &str| {
        let mut command = tidepool(server.socket());
        command.args([user, "advise", "--check", "--json", "--interval=0.1"]);
        let output = command.output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report["healthy"].clone())
    };
    // What was not seen is not healthy.
    assert_eq!(check("--user=poor"), (Some(3), serde_json::Value::Null));
    assert_eq!(check("--user=root"), (Some(0), true.into()));
    // -h is the host, as it is to every client.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["--defaults-file=/dev/null", "advise", "--check", "-h", "127.0.0.1", "-P", "1"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), String::new()));
    assert!(stderr(&output).contains("no server at 127.0.0.1:1"), "{}", stderr(&output));
    server.connect().query_drop(grant).unwrap();
    let text = stdout(&run());
    assert!(!text.contains("Skipped:") && !text.contains("unknown"), "{text}");
    // A report that is written to a full disk is none.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = tidepool(server.socket())
        .args(["advise", "--json", "--interval=0.1"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(8), "{}", stderr(&output));
}

/// What a server has for all its clients is not what this program's questions mean.
#[test]
fn settings_for_the_servers_clients_change_no_answer() {
    let server = innodb(
        "bad-settings",
        &[
            "--innodb-buffer-pool-size=96M",
            "--innodb-log-file-size=512M",
            "--skip-character-set-client-handshake",
            "--character-set-server=latin1",
            "--collation-server=latin1_swedish_ci",
            "--report-host=h\u{fc}",
            "--sql-mode=ORACLE,NO_BACKSLASH_ESCAPES",
        ],
    );
    // More rows than that has every answer that matters.
    let mut conn = server.connect();
    conn.query_drop("SET GLOBAL sql_select_limit = 10, log_output = 'TABLE', general_log = ON")
        .unwrap();
    let (report, rules) = advise(&server);
    assert_eq!(report["facts"]["pool"]["size_bytes"], 96_u64 << 20);
    assert_eq!(rules, Vec::<String>::new(), "{report:#}");
    // To sum up the sizes of many tables may take longer than a statement of the application's.
    conn.query_drop("SET GLOBAL general_log = OFF").unwrap();
    let at = |conn: &mut mysql::Conn, statement: &str| -> Option<u64> {
        let query = "SELECT MIN(n) FROM (SELECT argument, ROW_NUMBER() OVER (ORDER BY event_time) n \
                     FROM mysql.general_log) t WHERE CONVERT(argument USING utf8mb4) LIKE ?";
        conn.exec_first::<Option<u64>, _, _>(query, (statement,)).unwrap().flatten()
    };
    let lifted = at(&mut conn, "SET SESSION max_statement_time = 0");
    let sums = at(&mut conn, "SELECT engine, COUNT(*)%information_schema.tables%");
    assert!(lifted.is_some() && lifted < sums, "{lifted:?} {sums:?}");
    let output = tidepool(server.socket()).args(["govern", "--duration=1"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// As `ssh -L` does it: the server may be anywhere, and this machine is not its.
#[test]
fn a_socket_that_leads_elsewhere_is_not_taken_for_the_servers() {
    let server =
        innodb("bad-forwarded", &["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=512M"]);
    // The server's own word would show the way, as it is here.
    let mut conn = server.connect();
    let path = server.dir().join("forwarded.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let behind = server.socket().to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&behind) else { return };
            let copy = |mut from: UnixStream, mut to: UnixStream| {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            };
            copy(client.try_clone().unwrap(), server.try_clone().unwrap());
            copy(server, client);
        }
    });
    let run = |arguments: &[&str]| tidepool(&path).args(arguments).output().unwrap();
    let is_seen = || {
        let output = run(&["advise", "--interval=0.1"]);
        assert!(output.status.success(), "{}", stderr(&output));
        !stdout(&output).contains("Skipped: the server's machine")
    };
    // The server says itself where it is, as far as it can be seen from here.
    assert!(is_seen());
    let pid_file: String = conn.query_first("SELECT @@pid_file").unwrap().unwrap();
    std::fs::remove_file(server.data_dir().join(pid_file)).unwrap();
    assert!(!is_seen());
    assert_eq!(run(&["govern", "--duration=1"]).status.code(), Some(6));
}

#[test]
fn a_server_that_is_too_old() {
    // A greeting of the protocol's version 10 and an OK are all that a client sees of a server
    // before its first query.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = vec![10];
        greeting.extend(b"5.5.62-log\0");
        greeting.extend([1, 0, 0, 0]);
        greeting.extend(b"abcdefgh\0");
        greeting.extend([0xff, 0xf7, 33, 2, 0, 0x0f, 0x80, 21]);
        greeting.extend([0; 10]);
        greeting.extend(b"abcdefghijkl\0mysql_native_password\0");
        send(&mut stream, 0, &greeting);
        loop {
            let Some((sequence, packet)) = receive(&mut stream) else { return };
            if packet.starts_with(b"\x03SELECT @@version") {
                result(&mut stream, sequence + 1);
            } else {
                send(&mut stream, sequence + 1, &[0, 0, 0, 2, 0, 0, 0]);
            }
        }
    });
    let output = tidepool(Path::new("/nonexistent"))
        .args(["--host=127.0.0.1", &format!("--port={port}"), "advise"])
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("MySQL 5.5.62-log") && text.contains("oldest supported"), "{text}");
    server.join().unwrap();
}

fn send(stream: &mut std::net::TcpStream, sequence: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    let mut packet = vec![length[0], length[1], length[2], sequence];
    packet.extend(payload);
    let _ = stream.write_all(&packet);
}

fn receive(stream: &mut std::net::TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], payload))
}

/// Two columns, one row: the version and its comment.
fn result(stream: &mut std::net::TcpStream, mut sequence: u8) {
    let mut next = |stream: &mut std::net::TcpStream, payload: &[u8]| {
        send(stream, sequence, payload);
        sequence += 1;
    };
    next(stream, &[2]);
    for name in [b"v", b"c"] {
        let mut column = Vec::new();
        column.extend(b"\x03def\0\0\0");
        column.push(1);
        column.extend(name);
        column.extend([0, 12, 33, 0, 0, 1, 0, 0, 253, 0, 0, 0, 0, 0]);
        next(stream, &column);
    }
    next(stream, &[254, 0, 0, 2, 0]);
    let mut row = vec![10];
    row.extend(b"5.5.62-log");
    row.push(28);
    row.extend(b"MySQL Community Server (GPL)");
    next(stream, &row);
    next(stream, &[254, 0, 0, 2, 0]);
}
