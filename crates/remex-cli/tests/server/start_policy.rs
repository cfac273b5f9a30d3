//! `--starts`: operators refuse starts that nothing confines, or all starts.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Client, Server, finish, start_params, with};

/// Everything can be read, nothing written, and there is no network.
fn read_only() -> Value {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let files = json!({"type": "restricted", "entries": [root]});
    sandbox(&json!({"type": "managed", "network": "restricted", "file_system": files}))
}

fn sandbox(permissions: &Value) -> Value {
    json!({"permissions": permissions, "windowsSandboxLevel": "disabled"})
}

/// Asks for a start that must be refused, and returns the error.
fn refused(client: &Client, marker: &Path, more: Value) -> Value {
    let touch = ["touch", marker.to_str().expect("the path is text")];
    let params = with(start_params("p", &touch), more);
    let error = client.call("process/start", params).expect_err("the server refuses it");
    assert_eq!(error["data"]["kind"], "permissionDenied", "{error}");
    assert!(!marker.exists(), "it ran, though it was refused: {error}");
    error
}

#[test]
fn a_server_for_confined_processes_refuses_unconfined_starts() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let marker = directory.path().join("marker");
    let server = Server::unix(&["--starts", "confined"]);
    let client = server.connect();
    let begun = client.initialize();
    assert_eq!(begun["environmentInfo"]["starts"], "confined", "{begun}");
    let open = [
        json!({"type": "disabled"}),
        json!({"type": "external", "network": "enabled"}),
        json!({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
    ];
    let shell = json!({"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}});
    let login = format!("touch {}", marker.display());
    for more in [
        json!({}),
        json!({"sandbox": null}),
        json!({"isolatePids": true}),
        json!({"tty": true}),
        json!({"startId": "again"}),
        json!({"startId": "again"}),
        json!({"argv": ["/bin/bash", "-lc", login], "shellSnapshot": shell}),
    ]
    .into_iter()
    .chain(open.iter().map(|permissions| json!({"sandbox": sandbox(permissions)})))
    {
        let error = refused(&client, &marker, more);
        let message = error["message"].as_str().expect("an error has a message");
        assert!(message.contains("only processes that a sandbox confines"), "{message}");
        assert!(message.contains("`--starts confined`"), "{message}");
        assert!(error["data"]["hint"].as_str().is_some_and(|hint| hint.contains("`sandbox`")), "{error}");
    }
    let started = client.start("q", &["true"], json!({"sandbox": read_only()}));
    assert_ne!(started["sandboxType"], "none", "{started}");
    assert_eq!(client.collect("q").exit_code(), 0);
}

#[test]
fn a_sandbox_that_leaves_the_root_writable_does_not_count_as_one() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let marker = directory.path().join("marker");
    let server = Server::unix(&["--starts", "confined"]);
    let client = server.client();
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"});
    let missing = directory.path().join("missing");
    let deny = |path| json!({"path": path, "access": "deny"});
    let files = |entries| json!({"type": "restricted", "entries": entries});
    let all_files = json!({"type": "unrestricted"});
    for (files, network) in [
        (files(json!([root, deny(json!({"type": "path", "path": missing}))])), "enabled"),
        (files(json!([root, deny(json!({"type": "glob_pattern", "pattern": "/**/.env"}))])), "restricted"),
        (all_files, "restricted"),
    ] {
        let permissions = json!({"type": "managed", "network": network, "file_system": files});
        let error = refused(&client, &marker, json!({"sandbox": sandbox(&permissions)}));
        let message = error["message"].as_str().expect("an error has a message");
        assert!(message.contains("leaves `/` writable (`--starts confined`)"), "{message}");
    }
}

#[test]
fn a_floor_satisfies_the_confinement_requirement() {
    let server = Server::unix(&["--starts", "confined", "--sandbox", "read-only"]);
    let client = server.client();
    let started = client.start("p", &["true"], json!({}));
    assert_ne!(started["sandboxType"], "none", "{started}");
    assert_eq!(client.collect("p").exit_code(), 0);
}

#[test]
fn a_server_without_processes_serves_files_and_starts_nothing() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = directory.path().join("server.toml");
    fs::write(&config, "starts = \"none\"\n").expect("a file can be written");
    let marker = directory.path().join("marker");
    let server = Server::unix(&["--config", config.to_str().expect("the path is text")]);
    let client = server.client();
    let info = client.call("environment/info", json!({})).expect("everybody may ask");
    assert_eq!(info["starts"], "none", "{info}");
    for more in [json!({}), json!({"sandbox": read_only()})] {
        let error = refused(&client, &marker, more);
        let message = error["message"].as_str().expect("an error has a message");
        assert_eq!(message, "this server starts no processes (`--starts none`)");
    }
    let file = directory.path().join("file");
    client.call("fs/writeFile", json!({"path": file, "dataBase64": "eA=="})).expect("files are served");
    assert_eq!(fs::read(file).expect("it was written"), b"x");
    assert_eq!(client.call("process/list", json!({})).expect("a list")["processes"], json!([]));
}

#[test]
fn an_unknown_start_policy_is_an_error_that_lists_the_known_ones() {
    let said = finish(&["serve", "--starts", "sandboxed"]);
    assert_ne!(said.code(), Some(0));
    assert!(["any", "confined", "none"].iter().all(|word| said.stderr.contains(word)), "{}", said.stderr);

    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = directory.path().join("server.toml");
    fs::write(&config, "starts = \"sandboxed\"\n").expect("a file can be written");
    let said = finish(&["serve", "--config", config.to_str().expect("the path is text")]);
    assert!(said.stderr.contains("use \"any\", \"confined\" or \"none\""), "{}", said.stderr);
}
