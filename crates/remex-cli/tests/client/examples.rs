//! The programs in `examples/`, as a newcomer runs them.

use std::{env, process::Command};

use crate::support::Server;

/// Runs an example to its end, and returns its exit code, what it said and what it complained about.
fn run(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    // Beside the directory of the tests; `cargo test` builds the examples unless it is asked for single tests.
    let tests = env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(name);
    assert!(program.exists(), "there is no {}: run `cargo build -p remex --examples`", program.display());
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(arguments)
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("REMEX_URL")
        .env_remove("CODEX_EXEC_SERVER_URL")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs an example without arguments, and returns what it said.
fn said(name: &str) -> String {
    let (code, stdout, stderr) = run(name, &[], &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    stdout
}

#[test]
fn a_command_runs_locally_and_its_exit_code_is_returned() {
    assert!(said("run").starts_with("hello from "));
    let ended = run("run", &["sh", "-c", "echo out; echo err >&2; exit 3"], &[]);
    assert_eq!(ended, (Some(3), "out\n".to_owned(), "err\n".to_owned()));
}

#[test]
fn a_command_runs_in_the_environment_of_the_variable() {
    let server = Server::start();
    let url = server.address();
    // What is started there is a child of the server.
    let ended = run("run", &["sh", "-c", "echo $PPID"], &[("REMEX_URL", url)]);
    assert_eq!(ended, (Some(0), format!("{}\n", server.pid()), String::new()));
    let (code, _, stderr) = run("run", &[], &[("REMEX_URL", "ftp://host")]);
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("Error: REMEX_URL: cannot use `ftp://host` as a server"), "{stderr}");
}

#[test]
fn a_service_is_awaited_queried_and_stopped() {
    let said = said("serve_and_wait");
    let (ready, rest) = said.split_once('\n').unwrap();
    assert!(ready.starts_with("it is ready: process "), "{said}");
    assert!(rest.starts_with("it answers: you said: hello\nall it said:\nstarting\n"), "{said}");
    assert!(rest.ends_with("you said: hello\ngood-bye\nexit code 0\n"), "{said}");
}

#[test]
fn a_shell_is_used_on_a_terminal() {
    let said = said("terminal");
    assert!(said.contains("24 80\r\n") && said.contains("50 132\r\n"), "{said}");
    assert!(said.ends_with("the shell has ended with exit code 0\n"), "{said}");
}

#[test]
fn a_tree_and_a_file_round_trip_unchanged() {
    let tree = said("copy");
    assert!(tree.contains("2 files in 2 directories\n"), "{tree}");
    assert!(tree.contains("there: 3145734 bytes\n") && tree.contains("back: 3145734 bytes\n"), "{tree}");
    assert!(tree.ends_with("everything is the same\n"), "{tree}");

    let server = Server::unix(&[]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "hello\n").unwrap();
    let path = file.path().to_str().unwrap();
    let (code, said, stderr) = run("copy", &[path], &[("REMEX_URL", server.address())]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let hash = "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    assert!(said.ends_with(&format!("{hash} {path}\neverything is the same\n")), "{said}");
}

#[test]
fn an_agent_gets_bounded_output_and_continues_with_running_processes() {
    let said = said("agent");
    let answers: Vec<_> = said.split("--- ").skip(1).collect();
    assert!(answers[0].starts_with("process 1 has ended with exit code 0\n1\n2\n"), "{said}");
    assert!(answers[0].contains("bytes omitted") && answers[0].ends_with("999\n1000\n\n"), "{said}");
    assert!(answers[1].starts_with("process 2 goes on"), "{said}");
    assert!(answers[2].starts_with("process 2 has ended with exit code 0\n"), "{said}");
    assert!(answers[2].contains("hello, world\n"), "{said}");
    assert_eq!(answers[3], "process 1 has said 1000 lines, 0 bytes of them are gone\n");
    assert_eq!(answers[4], "error: process 3 does not exist, or no longer; open: 1, 2\n");
}

#[test]
fn an_agent_is_watched_while_it_waits() {
    let said = said("agent_live");
    assert!(said.starts_with("--- process 1\nbuilding\n\r25 %\r50 %\r75 %\r100 %\nupload it? "), "{said:?}");
    assert!(said.contains(r#"--- the model gets {"text":"building\n100 %\nupload it? ","#), "{said}");
    assert!(said.contains("--- process 1\nyou said yes\n\n"), "{said}");
    let last =
        r#"--- the model gets {"text":"you said yes\n","omittedBytes":0,"totalBytes":13,"count":"exact"}"#;
    assert!(said.ends_with(&format!("{last}\n")), "{said}");
}

#[test]
fn lines_are_labelled_with_their_stream_until_the_timeout() {
    let said = said("lines");
    let (mut lines, end): (Vec<_>, _) = match said.rsplit_once("ended after") {
        Some((lines, end)) => (lines.lines().collect(), end),
        None => panic!("{said}"),
    };
    // Two pipes have no order between them.
    lines.sort_unstable();
    assert_eq!((lines, end), (vec!["stderr: two", "stdout: one", "stdout: three"], " 1s\n"));
    assert_eq!(run("lines", &["false"], &[]), (Some(0), "exit code 1\n".to_owned(), String::new()));
}

#[test]
fn a_command_runs_on_twenty_hosts() {
    let all = said("fleet");
    assert!(all.ends_with("20 succeeded, 0 failed\n") && all.lines().count() == 21, "{all}");
    let server = Server::start();
    let (code, some, stderr) = run("fleet", &[server.address(), server.address()], &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(some.ends_with("2 succeeded, 0 failed\n"), "{some}");
}

#[test]
fn a_command_is_polled() {
    assert_eq!(said("polling"), "ready\nyou said: yes\nexit code 0\n");
}

#[test]
fn a_program_is_tested_with_a_fake() {
    assert_eq!(said("fake_server"), "the test passes: main: 2 changed\n");
}

#[test]
fn another_session_can_be_inspected() {
    let said = said("follow_session");
    assert!(said.starts_with("[compile] compiling\n[compile] exit code 0\n"), "{said}");
    assert!(said.contains("[test] testing\n[test] exit code 1\n"), "{said}");
    assert!(said.ends_with("test: /bin/sh -c echo testing; exit 1\n"), "{said}");
}

#[test]
fn a_job_outlives_its_client() {
    let said = said("resume");
    assert_eq!(
        said,
        "starting the job\nfirst run: the job is at work\nsecond run: all that the job has said:\nstep 1\nstep 2\n"
    );
}

#[test]
fn a_project_is_tested_remotely_and_its_results_downloaded() {
    let server = Server::start();
    let (code, said, stderr) = run("test_there", &[], &[("REMEX_URL", server.address())]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("up: 18 of 18 bytes\n") && said.contains("| tested\n"), "{said}");
    assert!(said.ends_with("exit code 0, 1 files of results in results\n"), "{said}");
}
