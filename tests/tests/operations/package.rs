//! The Debian package of the plugin, unpacked and put into a server that never saw it.

use std::path::Path;
use std::process::Command;

use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};

/// Runs a program, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn dpkg_deb(option: &str, deb: &Path) -> Command {
    let mut command = Command::new("dpkg-deb");
    command.arg(option).arg(deb);
    command
}

#[test]
fn the_plugin_of_the_package_is_installed_by_sql_and_stays() {
    let environment = Environment::get();
    let mut package = Command::new(environment.root().join("scripts/package"));
    let printed = run(package.arg("mariadb-plugin-tidepool"));
    let deb = environment.root().join(printed.lines().last().expect("the package's name"));

    let depends = run(dpkg_deb("--field", &deb).arg("Depends"));
    let version = environment.value("PACKAGE_VERSION");
    // The server's program is in the second one.
    for package in ["mariadb-server", "mariadb-server-core"] {
        assert!(depends.contains(&format!("{package} (= {version})")), "{depends}");
    }

    let dir = tempfile::tempdir().unwrap();
    run(dpkg_deb("--extract", &deb).arg(dir.path()));
    // What the server would read from the file that comes with it.
    let options = run(Command::new(environment.path("BASEDIR").join("bin/my_print_defaults"))
        .arg(format!(
            "--defaults-file={}",
            dir.path().join("etc/mysql/mariadb.conf.d/tidepool.cnf").display()
        ))
        .arg("mariadb"));
    assert_eq!(options.trim(), "--plugin_load_add=ha_tidepool");
    // What systemd would read beside the server's own units, and what makes it do so.
    for unit in ["mariadb.service", "mariadb@.service"] {
        let path = dir.path().join(format!("usr/lib/systemd/system/{unit}.d/tidepool.conf"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{unit}: {e}"));
        let settings: Vec<&str> =
            text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert_eq!(settings, ["[Service]", "LimitNICE=-10"], "{unit}");
    }
    let control = dir.path().join("control");
    run(dpkg_deb("--control", &deb).arg(&control));
    for script in ["postinst", "postrm"] {
        let path = control.join(script);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{script}: {e}"));
        assert!(text.contains("systemctl daemon-reload"), "{text}");
        run(Command::new("sh").arg("-n").arg(&path));
    }
    let triggers = std::fs::read_to_string(control.join("triggers")).expect("triggers");
    assert_eq!(triggers.trim(), "interest-noawait /usr/sbin/mariadbd");
    let documentation = dir.path().join("usr/share/doc/mariadb-plugin-tidepool");
    for name in ["copyright", "sql.md"] {
        assert!(documentation.join(name).exists(), "{name}");
    }

    let plugin_dir = dir.path().join("usr/lib/mysql/plugin");
    let options = Options::new("package")
        .engine(Engine::InnoDb)
        .arg(format!("--plugin-dir={}", plugin_dir.display()));
    let mut server = Server::start(options);
    let engines = "SELECT engine FROM information_schema.engines WHERE engine = 'Tidepool'";
    let mut conn = server.connect();
    assert_eq!(conn.query::<String, _>(engines).unwrap(), [""; 0]);
    conn.query_drop("INSTALL SONAME 'ha_tidepool'").unwrap();
    conn.query_drop("CREATE TABLE test.t (id INT PRIMARY KEY) ENGINE=Tidepool").unwrap();
    conn.query_drop("INSERT INTO test.t VALUES (1), (2)").unwrap();
    drop(conn);
    server.restart();
    let mut conn = server.connect();
    assert_eq!(conn.query::<i64, _>("SELECT id FROM test.t").unwrap(), [1, 2]);
    conn.query_drop("DROP TABLE test.t").unwrap();
    conn.query_drop("UNINSTALL SONAME 'ha_tidepool'").unwrap();
}
