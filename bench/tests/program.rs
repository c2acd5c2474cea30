//! The program as a user runs it.

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool-bench"));
    command.arg("--dir").arg(dir).args(args);
    command.output().unwrap()
}

/// Small enough for a test; the cgroup is left out, since not every machine has it.
const SMALL: [&str; 8] = [
    "--keys",
    "500",
    "--memory",
    "4M",
    "--seconds",
    "0.05",
    "--workloads",
    "reads,updates,updates-held",
];

#[test]
fn a_run_leaves_a_page_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.md");
    let args = [
        &SMALL[..],
        &["--repeat", "2", "--stores", "sqlite,tidepool", "--out", page.to_str().unwrap()],
    ];
    let output = bench(dir.path(), &args.concat());
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("| | Tidepool | SQLite | ratio |"), "{text}");
    let row = text.lines().find(|line| line.starts_with("| point reads, data fits, reads/s"));
    let cells: Vec<&str> = row.expect(&text).split('|').map(str::trim).collect();
    assert_eq!(cells.len(), 6, "{text}");
    assert!(cells[2..4].iter().all(|cell| cell.replace(',', "").parse::<u64>().is_ok()), "{text}");
    for title in
        ["## Speed", "## Latency", "## Work", "## Memory", "## Disk", "## Settings of each"]
    {
        assert!(text.contains(title), "{text}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the page alone is left");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.md");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool-bench"));
    command.arg("--dir").arg(dir.path()).arg("--out").arg(&page).args(SMALL);
    // Enough for an hour.
    command.args(["--repeat", "10000"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let scratch = dir.path().join(format!("tidepool-bench-{}", child.id()));
    while !scratch.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it runs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("interrupted"), "{errors}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for (args, sentence) in [
        (&["--stores", "oracle"][..], "invalid value 'oracle'"),
        (&["--seconds", "0"], "--seconds 0: must be"),
        (&["--value-bytes", "8"], "--value-bytes 8: must be"),
        (&["--memory", "1M"], "must be at least 4M"),
        (&["--memory", "much"], "not a size"),
        (&["--keys", "1"], "1 is not in"),
        (&["--repeat", "0"], "0 is not in"),
        (&["--one", "{}"], "is for the program itself"),
    ] {
        let output = bench(dir.path(), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains(sentence), "{args:?}: {errors}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn too_little_disk_space_is_found_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--memory", "900000G", "--workloads", "reads"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("free, and the run may need"), "{errors}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_can_not_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = bench(&file, &SMALL);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("file: "), "{errors}");
}
