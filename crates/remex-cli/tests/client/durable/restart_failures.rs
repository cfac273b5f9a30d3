//! `process/restart` that fails: what is there afterwards, and for how long.

use std::{fs, io::Write as _, path::PathBuf};

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll, resume},
    space::on_a_small_disk,
};
use crate::support::{Client, decode, encode, start_params, with};

/// A process that has printed something, in a directory of its own, so that it can be kept from starting again.
struct Precious {
    work: tempfile::TempDir,
}

impl Precious {
    fn start(client: &Client, more: Value) -> Self {
        let work = tempfile::tempdir().unwrap();
        let script = ["/bin/sh", "-c", "echo precious; exec sleep 1000"];
        let own = json!({"restartable": true, "cwd": work.path().join("work")});
        fs::create_dir(work.path().join("work")).unwrap();
        client.call("process/start", with(start_params("p", &script), with(own, more))).unwrap();
        client.wait_for_output("p", "precious");
        Precious { work }
    }

    /// Restarts it in vain.
    fn fail(&self, client: &Client) {
        fs::remove_dir(self.work.path().join("work")).unwrap();
        let error = client.call("process/restart", json!({"processId": "p"})).unwrap_err();
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("process `p` was ended, but not started again: "), "{error}");
        assert_eq!(error["data"]["kind"], "badCwd", "{error}");
    }

    /// Fails if its output or its request is gone.
    fn assert_there(&self, client: &Client) {
        let read = client.call("process/read", json!({"processId": "p", "afterSeq": 0})).unwrap();
        assert_eq!(decode(&read["chunks"][0]["chunk"]), b"precious\n", "{read}");
        fs::create_dir(self.work.path().join("work")).unwrap();
        client.call("process/restart", json!({"processId": "p"})).unwrap();
    }
}

/// Uses up what is left of the disk of the state directory; returns the file that does.
fn fill(host: &DurableHost) -> PathBuf {
    let path = host.state_of_server().join("fill");
    let mut block = vec![0_u8; 1 << 20];
    let mut file = fs::File::create(&path).unwrap();
    while !block.is_empty() {
        if file.write_all(&block).is_err() {
            block.truncate(block.len() / 2);
        }
    }
    path
}

fn entry(client: &Client, session: &str, process: &str) -> Value {
    let listed = client.call("process/list", json!({"sessionId": session})).unwrap();
    let found = listed["processes"].as_array().unwrap().iter().find(|entry| entry["processId"] == process);
    found.cloned().unwrap_or(Value::Null)
}

#[test]
fn on_a_full_disk_a_restart_is_refused_and_the_process_keeps_running() {
    let host = on_a_small_disk();
    let (client, session) = connect(&host);
    let precious = Precious::start(&client, json!({}));
    let before = entry(&client, &session, "p");
    let filled = fill(&host);
    // Logs that were created in advance are used up first.
    let error = (0..100).find_map(|number| {
        let id = format!("other {number}");
        client.call("process/start", start_params(&id, &["sleep", "1000"])).err()
    });
    assert_eq!(error.unwrap()["data"]["kind"], "limitExceeded");
    let error = client.call("process/restart", json!({"processId": "p"})).unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("process `p` was not started again: cannot create the log"), "{error}");
    assert_eq!(error["data"]["kind"], "limitExceeded", "{error}");
    let after = entry(&client, &session, "p");
    assert_eq!((&after["state"], &after["pid"]), (&json!("running"), &before["pid"]));
    fs::remove_file(filled).unwrap();
    precious.fail(&client);
    precious.assert_there(&client);
}

#[test]
fn a_full_disk_evicts_a_process_whose_restart_failed_only_on_request() {
    let host = on_a_small_disk();
    let (client, session) = connect(&host);
    let precious = Precious::start(&client, json!({}));
    precious.fail(&client);
    let filled = fill(&host);
    let refused = (0..100).find_map(|number| {
        let id = format!("other {number}");
        client.call("process/start", start_params(&id, &["sleep", "1000"])).err()
    });
    assert_eq!(refused.unwrap()["data"]["kind"], "limitExceeded");
    fs::remove_file(filled).unwrap();
    precious.assert_there(&client);
    precious.fail(&client);
    // Its disk space is released on request.
    let collected = client.call("process/collect", json!({"scope": "session"})).unwrap();
    assert_eq!(collected["processes"][0]["processId"], "p", "{collected}");
    poll("the log to be deleted", || entry(&client, &session, "p").is_null());
}

#[test]
fn limits_do_not_evict_a_process_whose_restart_failed() {
    let host = DurableHost::with_config("[limits]\nclosed_processes = 1\nidentity_memory_bytes = '6MiB'\n");
    for durable in [true, false] {
        let (client, session) = connect(&host);
        // It would be forgotten as soon as it has ended.
        let more = json!({"durable": durable, "output": {"retainMs": 0}});
        let precious = Precious::start(&client, more);
        precious.fail(&client);
        // Another one that has closed would take its place.
        client.start("q", &["true"], json!({"durable": durable}));
        client.event("q", "process/closed");
        let refused = (0..1000).find_map(|number| {
            let asked = start_params(&format!("other {number}"), &["sleep", "1000"]);
            client.call("process/start", with(asked, json!({"durable": durable}))).err()
        });
        assert_eq!(refused.unwrap()["data"]["kind"], "limitExceeded");
        client.call("process/terminate", json!({"processId": "other 0"})).unwrap();
        client.event("other 0", "process/closed");
        precious.assert_there(&client);
        client.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn a_process_whose_restart_failed_can_be_forgotten() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    let precious = Precious::start(&client, json!({}));
    precious.fail(&client);
    client.call("process/forget", json!({"processId": "p"})).unwrap();
    assert!(entry(&client, &session, "p").is_null());
}

#[test]
fn a_pending_restart_is_completed_by_the_next_server() {
    let mut host = DurableHost::renewable(&[]);
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
    for is_upgrade in [false, true] {
        let is_left = (0..10).any(|_| {
            let (client, session) = connect(&host);
            client.start("p", &["/bin/sh", "-c", script], json!({"restartable": true}));
            client.wait_for_output("p", "ready");
            let before = entry(&client, &session, "p");
            // It would be killed while the server already ends.
            let asked = json!({"processId": "p", "sessionId": session, "graceMs": 700, "restartId": "r"});
            client.send("process/restart", asked.clone());
            client.wait_for_output("p", "asked");
            if is_upgrade {
                host.upgrade();
                client.wait_end();
            } else {
                host.stop();
                host.launch();
            }
            let said = host.said();
            assert!(!said.contains("the keeper does not answer"), "{said}");
            let client = resume(&host, &session);
            let after = entry(&client, &session, "p");
            let restarted = client.call("process/restart", asked).unwrap();
            assert_ne!(restarted["pid"], before["pid"]);
            client.call("session/end", json!({"sessionId": session})).unwrap();
            // On a busy machine, the restart may be over by then.
            (&after["state"], &after["pid"]) == (&json!("running"), &before["pid"])
        });
        assert!(is_left, "upgrade: {is_upgrade}, {}", host.said());
    }
}

#[test]
fn input_for_the_new_process_reaches_no_other_if_the_server_ends_first() {
    let mut host = DurableHost::renewable(&[]);
    let (client, session) = connect(&host);
    let script = "trap '' TERM; echo begun; while read -r line; do echo \"got $line\"; done; exec sleep 1000";
    client.start("p", &["/bin/sh", "-c", script], json!({"restartable": true, "pipeStdin": true}));
    client.wait_for_output("p", "begun");
    let asked = json!({"processId": "p", "sessionId": session, "graceMs": 60_000, "restartId": "r"});
    client.send("process/restart", asked.clone());
    let write = json!({"processId": "p", "chunk": encode(b"hello\n"), "writeId": "w"});
    client.send("process/write", write.clone());
    client.send("process/closeStdin", json!({"processId": "p"}));
    // Taken in order: all of them wait by now.
    client.call("process/list", json!({})).unwrap();
    host.stop();
    host.launch();

    let client = resume(&host, &session);
    let printed = || {
        let read = client.call("process/read", json!({"processId": "p", "afterSeq": 0})).unwrap();
        let chunks = read["chunks"].as_array().unwrap().iter();
        chunks.flat_map(|chunk| decode(&chunk["chunk"])).collect::<Vec<u8>>()
    };
    assert_eq!(printed(), b"begun\n");
    client.call("process/restart", with(asked, json!({"graceMs": 0}))).unwrap();
    client.call("process/write", write).unwrap();
    poll("the input to arrive", || printed() == b"begun\ngot hello\n");
}
