//! `process/collect` and `remex gc`: logs of closed processes are deleted on request.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll, resume},
};
use crate::support::{Client, program};

/// Starts processes with about 300 KB of output each, and waits until they have closed, one after the other.
fn finished(client: &Client, ids: &[&str]) {
    for id in ids {
        let more = json!({"startId": format!("start of {id}"), "output": {"retainMs": 3_600_000}});
        client.start(id, &["head", "-c", "300000", "/dev/zero"], more);
        client.event(id, "process/closed");
    }
}

fn listed(client: &Client) -> Vec<String> {
    let listed = client.call("process/list", json!({})).unwrap();
    let id = |process: &Value| process["processId"].as_str().unwrap().to_owned();
    let mut ids: Vec<_> = listed["processes"].as_array().unwrap().iter().map(id).collect();
    ids.sort();
    ids
}

fn logs_in(state: &Path) -> usize {
    fs::read_dir(state.join("processes")).unwrap().count()
}

/// Runs `remex gc`, and returns its exit code and what it said.
fn gc(arguments: &[&str]) -> (Option<i32>, String) {
    let output = program(&["gc"]).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn check_replayed(client: &Client, id: &str) {
    let more = json!({"startId": format!("start of {id}"), "output": {"retainMs": 3_600_000}});
    let again = client.start(id, &["head", "-c", "300000", "/dev/zero"], more);
    assert_eq!(again["replayed"], true, "a start is remembered without its log");
}

#[test]
fn closed_processes_lose_their_logs_the_oldest_first() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    client.start("running", &["sleep", "1000"], json!({}));
    finished(&client, &["a", "b", "c"]);
    let collect = |params: Value| client.call("process/collect", params).unwrap();

    let would = collect(json!({"dryRun": true}));
    assert_eq!((&would["count"], &would["keptCount"]), (&json!(3), &json!(0)));
    let bytes = would["bytes"].as_u64().unwrap();
    assert!((900_000..2_000_000).contains(&bytes), "{bytes}");
    let named: Vec<_> = would["processes"].as_array().unwrap().iter().map(|one| &one["processId"]).collect();
    assert_eq!(named, ["a", "b", "c"]);
    assert_eq!(listed(&client), ["a", "b", "c", "running"], "nothing was removed");

    assert_eq!(collect(json!({"olderThanMs": 3_600_000}))["count"], 0, "they are not that old");
    assert_eq!(collect(json!({"keepBytes": bytes}))["count"], 0, "they fit");
    let collected = collect(json!({"keepBytes": bytes - 1}));
    assert_eq!((&collected["count"], &collected["processes"][0]["processId"]), (&json!(1), &json!("a")));
    assert_eq!(collected["keptCount"], 2);
    assert_eq!(listed(&client), ["b", "c", "running"]);

    assert_eq!(collect(json!({"olderThanMs": 0}))["count"], 2);
    assert_eq!(listed(&client), ["running"]);
    poll("the logs to be deleted", || logs_in(&host.state()) == 1);
    check_replayed(&client, "a");
}

#[test]
fn gc_works_through_a_server_or_on_an_unused_directory() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    finished(&client, &["a", "b"]);
    let (address, state) = (host.address(), host.state().display().to_string());

    let (code, said) = gc(&["--state", &state]);
    assert_eq!(code, Some(1));
    assert!(said.contains("a server (pid ") && said.contains("leave out `--state`"), "{said}");
    let (code, said) = gc(&["--on", &address, "--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("would remove `a` (ended ") && said.contains("would free "), "{said}");
    assert_eq!(listed(&client), ["a", "b"]);
    let (code, said) = gc(&["--on", &address, "--keep-bytes", "400K"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("removed `a` (ended ") && said.contains("; kept 1 process, "), "{said}");
    assert_eq!(listed(&client), ["b"]);
    finished(&client, &["c"]);
    drop(client);

    host.stop();
    let (code, said) = gc(&["--state", &state, "--older-than", "1h"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("freed 0 bytes of 0 processes; kept 2 processes, "), "{said}");
    let (code, said) = gc(&["--state", &state, "--dry-run"]);
    assert_eq!((code, logs_in(&host.state())), (Some(0), 2), "{said}");
    let (code, said) = gc(&["--state", &state]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("removed `b`") && said.contains("removed `c`"), "{said}");
    assert_eq!(logs_in(&host.state()), 0);

    host.launch();
    let client = resume(&host, &session);
    assert_eq!(listed(&client), Vec::<String>::new());
    check_replayed(&client, "a");
    check_replayed(&client, "c");
}

#[test]
fn gc_refuses_other_directories_and_those_with_running_processes() {
    let mut host = DurableHost::start();
    let (client, _) = connect(&host);
    client.start("running", &["sleep", "1000"], json!({}));
    let state = host.state().display().to_string();
    host.kill();
    let (code, said) = gc(&["--state", &state]);
    assert_eq!(code, Some(1));
    assert!(said.contains("processes still run in `") && said.contains("start that server again"), "{said}");
    let missing = host.state().join("missing").display().to_string();
    let (code, said) = gc(&["--state", &missing]);
    assert!(code == Some(1) && said.contains("is not a state directory"), "{said}");
    assert!(!Path::new(&missing).exists(), "nothing is created");
    let (code, said) = gc(&["--state", &state, "--on", "build"]);
    assert!(code == Some(2) && said.contains("exclude each other"), "{said}");
}

#[test]
fn closed_processes_expire_even_after_a_server_restart() {
    let mut host = DurableHost::with_config("[limits]\ndurable_ttl_max = \"2s\"\n");
    let (client, session) = connect(&host);
    finished(&client, &["a"]);
    assert_eq!(listed(&client), ["a"]);
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    poll("the process to be forgotten", || listed(&client).is_empty());
    poll("its log to be deleted", || logs_in(&host.state()) == 0);
}
