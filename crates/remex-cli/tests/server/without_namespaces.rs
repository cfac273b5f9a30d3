//! A server that may not create user namespaces confines what Landlock can confine, and refuses the rest.

use std::{fs, process::Command};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Need, Server, Watched, has, start_params, with, without_namespaces};

/// Starts a server, unless this kernel's Landlock has no scopes: then it confines nothing without namespaces.
fn serve() -> Option<(Server, Client)> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let address = format!("unix://{}", directory.path().join("remex.sock").display());
    let mut command = without_namespaces();
    command.args(["serve", "--listen", &address]);
    let mut server = Server::launch(command, 1);
    server.keep(directory);
    let client = server.client();
    let has_scopes = confinement(&client)["landlockAbi"].as_u64().is_some_and(|abi| abi >= 6);
    has(Need::Landlock, has_scopes).then_some((server, client))
}

/// A profile with these entries; everything can be read.
fn sandbox(more: &[Value], network: &str) -> Value {
    let mut entries = vec![json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"})];
    entries.extend_from_slice(more);
    json!({"permissions": {"type": "managed", "network": network,
        "file_system": {"type": "restricted", "entries": entries}},
        "windowsSandboxLevel": "disabled", "cwd": "file:///", "workspaceRoots": []})
}

fn confinement(client: &Client) -> Value {
    client.call("environment/info", json!({})).expect("information")["confinement"].take()
}

#[test]
fn a_process_that_only_reads_is_confined_by_landlock() {
    let Some((server, client)) = serve() else { return };
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = directory.path().join("file");
    fs::write(&file, "content\n").expect("a file can be written");
    let socket = server.address().trim_start_matches("unix://").to_owned();
    let script = format!(
        "cat {0}; echo no > {0}; rm {0}; chmod 777 {0}; cat {1}; kill -0 {2} && echo reached; \
         cat /proc/{2}/environ && echo seen; ls / > /dev/null && echo listed; exit 4",
        file.display(),
        socket,
        server.pid()
    );
    let started =
        client.start("p", &["/bin/sh", "-c", &script], json!({"sandbox": sandbox(&[], "restricted")}));
    assert_eq!(started["sandboxType"], "linuxSeccomp");
    let output = client.collect("p");
    assert_eq!((output.exit_code(), &*output.text()), (4, "content\nlisted\n"));
    assert_eq!(fs::read_to_string(&file).expect("the file exists"), "content\n");
}

#[test]
fn a_sandbox_that_landlock_cannot_enforce_exactly_is_refused_with_the_reason() {
    let Some((_server, client)) = serve() else { return };
    let path = |path: &str, access: &str| json!({"path": {"type": "path", "path": format!("file://{path}")}, "access": access});
    let cases = [
        (sandbox(&[path("/tmp", "write")], "restricted"), "`write` to `/tmp`"),
        (sandbox(&[path("/etc", "deny")], "restricted"), "`deny` to `/etc`"),
        (sandbox(&[], "enabled"), "network `enabled`"),
    ];
    for (number, (sandbox, part)) in cases.into_iter().enumerate() {
        let params = with(start_params(&format!("p{number}"), &["true"]), json!({"sandbox": sandbox}));
        let error = client.call("process/start", params).expect_err("it cannot be enforced");
        assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
        let hint = error["data"]["hint"].as_str().expect("a hint");
        assert!(hint.contains(part) && hint.contains("user.max_user_namespaces"), "{error}");
    }
    let isolated = with(start_params("i", &["true"]), json!({"isolatePids": true}));
    let error = client.call("process/start", isolated).expect_err("it needs a namespace");
    assert!(error.to_string().contains("cannot create namespaces"), "{error}");
}

#[test]
fn a_confined_tree_can_be_terminated_like_any_other() {
    let Some((server, client)) = serve() else { return };
    let script = "setsid sleep 1000 & echo $!; sleep 1000";
    let confined = json!({"sandbox": sandbox(&[], "restricted")});
    let started = client.start("p", &["/bin/sh", "-c", script], confined);
    let text = client.wait_for_output("p", "\n");
    let tree = [Watched::printed(&started["pid"].to_string()), Watched::printed(&text)];
    client.call("process/terminate", json!({"processId": "p"})).expect("it is terminated");
    tree.iter().for_each(Watched::assert_ends);
    server.signal(Signal::TERM);
}

#[test]
fn the_host_reports_what_it_can_enforce_and_what_is_missing() {
    let Some((_server, client)) = serve() else { return };
    let found = confinement(&client);
    assert_eq!(found["processes"], "landlock", "{found}");
    assert!(found["reason"].as_str().is_some_and(|reason| reason.contains("create namespaces")), "{found}");
    assert!(found["hint"].as_str().is_some_and(|hint| hint.contains("user.max_user_namespaces")), "{found}");

    let server = Server::start();
    let found = confinement(&server.client());
    assert_eq!(
        (&found["processes"], &found["reason"], &found["hint"]),
        (&json!("namespaces"), &Value::Null, &Value::Null)
    );
}

#[test]
fn the_handshake_does_not_wait_for_the_sandbox_probe() {
    let server = Server::start();
    let client = server.connect();
    assert_eq!(client.initialize()["environmentInfo"]["confinement"], Value::Null);
}

#[test]
fn doctor_reports_missing_sandbox_features() {
    if serve().is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory can be made");
    let mut command: Command = without_namespaces();
    for variable in ["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"] {
        command.env(variable, directory.path());
    }
    let output = command.args(["doctor", "--here"]).output().expect("doctor runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("only commands that write no files and have no network can be confined"), "{text}");
    assert!(text.contains("sysctl user.max_user_namespaces="), "{text}");
}
