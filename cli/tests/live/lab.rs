//! The programs that the lab starts itself: what a killed run leaves is removed, and a neighbour
//! follows its schedule.

use std::fs;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidepool");

#[test]
fn a_janitor_removes_what_is_listed_when_its_pipe_closes() {
    let dir = tempfile::tempdir().unwrap();
    let listed = dir.path().join("tidepool-lab-listed");
    let foreign = dir.path().join("foreign");
    for path in [&listed, &foreign] {
        fs::create_dir_all(path.join("sub")).unwrap();
    }
    let list = dir.path().join("list");
    let lines = format!("directory {}\ndirectory {}\n", listed.display(), foreign.display());
    fs::write(&list, lines).unwrap();
    let mut janitor = Command::new(PROGRAM)
        .arg("__lab-janitor")
        .arg(&list)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(janitor.try_wait().unwrap().is_none(), "it waits while the pipe is open");
    assert!(listed.exists());
    drop(janitor.stdin.take());
    assert!(janitor.wait().unwrap().success());
    assert!(!listed.exists() && !list.exists());
    assert!(foreign.exists(), "only what the lab has named is removed");
}

#[test]
fn a_neighbour_ends_by_its_schedule_and_refuses_another() {
    let run = |pattern: &str| {
        Command::new(PROGRAM).args(["__lab-neighbour", pattern, "1048576"]).status().unwrap()
    };
    assert!(run("leak:1").success());
    assert_eq!(run("flood:1").code(), Some(2));
}

#[test]
fn an_unknown_experiment_is_refused_with_the_names_of_those_there_are() {
    let output = Command::new(PROGRAM).args(["lab", "run", "swop"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "as any command line that is wrong");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("there is no experiment swop; there are swap, pressure"), "{text}");
}
