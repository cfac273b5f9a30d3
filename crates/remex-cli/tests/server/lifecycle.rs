//! How the server ends, and what ends with it.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::{Client, Server, Watched, program};

/// Starts a shell that prints its process id and then runs `script`, and watches it.
fn watched_shell(client: &Client, process_id: &str, script: &str) -> Watched {
    client.shell(process_id, &format!("{script}\necho $$; while :; do sleep 1000; done"));
    Watched::printed(&client.wait_for_output(process_id, "\n"))
}

#[test]
fn a_signal_shuts_down_the_server_gracefully_with_its_processes() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start();
        let client = server.client();
        let child = watched_shell(&client, "p", "");
        server.signal(signal);
        let finished = server.wait();
        assert_eq!(finished.code(), Some(0), "{finished:?}");
        assert_eq!(finished.stdout, "", "only the address goes to stdout");
        child.assert_ends();
        let end = client.wait_end();
        assert!(end.close.is_some(), "a client is told with a close frame: {end:?}");
    }
}

#[test]
fn a_server_started_with_ignored_signals_shuts_down_gracefully_and_resets_them_in_children() {
    for signal in [Signal::TERM, Signal::INT] {
        // As `nohup` does, and a script that puts it into the background.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT QUIT TERM; exec \"$0\" serve"]).arg(env!("CARGO_BIN_EXE_remex"));
        let mut server = Server::launch(command, 1);
        let client = server.client();
        for signal in ["HUP", "INT", "QUIT", "TERM"] {
            client.shell(signal, &format!("kill -{signal} $$; echo ignored"));
            assert_eq!(client.collect(signal).exited["signal"], format!("SIG{signal}"));
        }
        server.signal(Signal::HUP);
        assert!(client.call("environment/status", serde_json::json!({})).is_ok(), "a hangup stays ignored");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_server_without_processes_shuts_down_at_once() {
    for (transport, mut server, client) in Server::on_every_transport() {
        client.initialize();
        let before = Instant::now();
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{transport}");
        // A few milliseconds, and more only on a machine that is very busy.
        assert!(before.elapsed() < Duration::from_secs(1), "{transport} took {:?}", before.elapsed());
        client.wait_end();
    }
}

#[test]
fn a_client_that_does_not_read_does_not_block_shutdown() {
    for (_, server, client) in Server::on_every_transport() {
        client.initialize();
        client.stop_reading();
        server.stop();
        client.read_on();
        client.wait_end();
    }
}

#[test]
fn processes_of_detached_sessions_end_with_the_server() {
    let server = Server::start();
    let client = server.client();
    let child = watched_shell(&client, "p", "");
    client.cut();
    server.stop();
    child.assert_ends();
}

#[test]
fn children_that_left_their_group_and_session_end_with_the_server() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "setsid sh -c 'setsid sleep 1000 & echo $!; exec sleep 1000' & wait");
    let grandchild = Watched::printed(&client.wait_for_output("p", "\n"));
    server.stop();
    grandchild.assert_ends();
}

#[test]
fn processes_get_the_configured_grace_period() {
    let directory = tempfile::tempdir().unwrap();
    let note = directory.path().join("note");
    let server = Server::serve(&["--shutdown-grace", "60s"]);
    let client = server.client();
    client.shell(
        "p",
        &format!(
            "trap 'echo goodbye > {}; exit' TERM; echo ready; while :; do sleep 0.01; done",
            note.display()
        ),
    );
    client.wait_for_output("p", "ready");
    server.stop();
    assert_eq!(std::fs::read_to_string(note).unwrap(), "goodbye\n");
}

#[test]
fn processes_that_ignore_signals_are_killed_after_the_grace() {
    let server = Server::serve(&["--shutdown-grace", "100ms"]);
    let client = server.client();
    let stubborn = watched_shell(&client, "p", "trap '' TERM HUP INT");
    server.stop();
    stubborn.assert_ends();
}

#[test]
fn a_second_signal_kills_at_once() {
    let mut server = Server::serve(&["--shutdown-grace", "1h"]);
    let client = server.client();
    let obedient = watched_shell(&client, "obedient", "");
    let stubborn = watched_shell(&client, "stubborn", "trap '' TERM HUP INT");
    server.signal(Signal::TERM);
    obedient.assert_ends();
    assert!(!stubborn.ended_within(Duration::ZERO), "the grace is an hour");
    server.signal(Signal::TERM);
    server.wait();
    stubborn.assert_ends();
}

#[test]
fn end_of_stdin_stops_the_server_on_request() {
    let mut command = program(&["serve", "--exit-on-stdin-close"]);
    command.stdin(Stdio::piped());
    let mut server = Server::launch(command, 1);
    let client = server.client();
    let child = watched_shell(&client, "p", "");
    drop(server.take_stdin());
    assert_eq!(server.wait().code(), Some(0));
    child.assert_ends();
}

#[test]
fn end_of_stdin_is_ignored_by_default() {
    let mut command = program(&["serve"]);
    command.stdin(Stdio::piped());
    let mut server = Server::launch(command, 1);
    drop(server.take_stdin());
    let client = server.client();
    client.shell("p", "echo fine");
    assert_eq!(client.collect("p").text(), "fine\n");
    server.stop();
}
