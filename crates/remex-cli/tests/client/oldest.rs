//! The client and the program against a server of the oldest dialect, which has no sessions.

use std::{fs, path::Path, process::Command as Program};

use remex_client::{
    Client, Command, Error, Options, Session, SessionLost, Target,
    process::{Stdio, Until},
};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, check_numbers, finish, numbers};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/oldest/server");

/// Starts a server of the oldest dialect, and returns it; its address is the first line that it prints.
fn start(place: &str) -> Server {
    let mut command = Program::new(PROGRAM);
    command.args([env!("CARGO_BIN_EXE_remex"), place]);
    Server::launch(command, 1)
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn check(target: Target) {
    let directory = tempfile::tempdir().unwrap();
    let client = soon("connecting", Client::connect(target)).await.unwrap();
    assert_eq!((client.session_id(), client.welcome().detach_ttl_ms), ("", Some(0)));
    check_processes(&client).await;
    check_files(&client, directory.path()).await;
    client.end().await.unwrap();
}

async fn check_processes(client: &Client) {
    let output =
        soon("a command", Command::shell("echo out; echo err >&2; exit 3").output(client)).await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..], output.exit.code), (&b"out\n"[..], &b"err\n"[..], 3));
    let much = soon("much output", Command::shell(numbers(700_000)).output(client)).await.unwrap();
    check_numbers(0, &much.stdout);
    assert_eq!(much.stdout.len(), 700_000);
    // What a child prints after the exit of the process still counts, if it does not take too long.
    let late = Command::shell("(sleep 0.05; echo late) & echo early");
    assert_eq!(soon("late output", late.output(client)).await.unwrap().stdout, b"early\nlate\n");

    let command = Command::shell("read line; echo got $line; exec sleep 1000").stdin(Stdio::Piped);
    let process = soon("a start", command.start(client)).await.unwrap();
    soon("a write", process.write(b"this\n")).await.unwrap();
    soon("the line", process.wait_for(&Until::Output("got this".to_owned()))).await.unwrap();
    process.kill().await.unwrap();
    assert_eq!(soon("the exit", process.wait()).await.unwrap().code, 137);

    let error = client.processes().await.unwrap_err();
    assert!(error.to_string().contains("does not implement `process/list`"), "{error}");
}

async fn check_files(client: &Client, directory: &Path) {
    let fs = client.fs();
    let path = directory.join("made here").join("a file");
    fs.create_dir(path.parent().unwrap()).await.unwrap();
    fs.write(&path, "one").await.unwrap();
    assert_eq!(fs.read(&path).await.unwrap(), "one");
    assert!(fs.metadata(&path).await.unwrap().is_file);
    assert_eq!(fs.upload(&b"two"[..], &path).await.unwrap(), 3);
    let mut content = Vec::new();
    fs.download(&path, &mut content).await.unwrap();
    assert_eq!(content, b"two");
    assert!(!fs.exists(directory.join("other")).await.unwrap());
}

#[tokio::test]
async fn the_oldest_dialect_works_over_stdio() {
    check(Target::program(PROGRAM, [env!("CARGO_BIN_EXE_remex"), "stdio"])).await;
}

#[tokio::test]
async fn the_oldest_dialect_works_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&format!("unix:{}", directory.path().join("s").display()));
    check(Target::parse(server.address()).unwrap()).await;
}

#[tokio::test]
async fn the_oldest_dialect_works_over_a_websocket() {
    let server = start("ws");
    check(Target::parse(server.address()).unwrap()).await;
}

#[tokio::test]
async fn what_needs_a_session_fails_in_the_oldest_dialect() {
    let server = start("ws");
    let target = Target::parse(server.address()).unwrap();
    for session in [false, true].map(|takeover| Session::Resume { id: "s".to_owned(), takeover }) {
        let options = Options::default().session(session);
        let error = soon("connecting", Client::connect_with(target.clone(), options)).await.unwrap_err();
        assert!(error.to_string().contains("the oldest dialect has no sessions"), "{error}");
    }
    let named = Options::default().session(Session::Named("s".to_owned()));
    let client = soon("connecting", Client::connect_with(target, named)).await.unwrap();
    let process = Command::new("sleep").arg("1000").start(&client).await.unwrap();
    drop(server);
    let lost = soon("the loss", process.wait()).await.unwrap_err();
    assert!(matches!(&lost, Error::Lost(SessionLost::NotResumable { .. })), "{lost:?}");
    assert!(lost.to_string().contains("its processes have ended"), "{lost}");
}

#[test]
fn the_program_works_with_the_oldest_dialect() {
    let server = start("ws");
    let on = server.address();
    let directory: TempDir = tempfile::tempdir().unwrap();
    let run = finish(&["run", "--on", on, "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((run.code(), run.stdout.as_str(), run.stderr.as_str()), (Some(3), "out", "err"));

    let file = directory.path().join("file");
    fs::write(&file, "content").unwrap();
    let remote = format!("[{on}]:{}", file.display());
    let cat = finish(&["cat", &remote]);
    assert_eq!((cat.code(), cat.stdout.as_str()), (Some(0), "content"), "{cat:?}");
    let copy = finish(&["cp", &remote, directory.path().join("copy").to_str().unwrap()]);
    assert!(copy.code() != Some(0) && copy.stderr.contains("its server is not remex"), "{copy:?}");

    let detached = finish(&["run", "--detach", "--on", on, "--", "sleep", "1000"]);
    assert_ne!(detached.code(), Some(0), "{detached:?}");
    assert!(detached.stderr.contains("its server ends them with the connection"), "{detached:?}");
}
