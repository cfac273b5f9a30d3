//! Durable processes of another user of the host. Without root there are none, and the tests return at once.

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, resume},
};
use crate::support::{Client, Watched, decode};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says as whom it runs, where, and with which home.
fn start(durable: bool) -> Value {
    let script = "echo \"$(id -un) $(id -G) $PWD $USER\"; exec sleep 1000";
    let env = json!({"PATH": "/usr/bin:/bin"});
    json!({"processId": "p", "argv": ["/bin/sh", "-c", script], "user": "daemon", "env": env, "tty": false,
        "restartable": true, "durable": durable})
}

/// Returns the output of the process, once it has some.
fn output_of(client: &Client) -> String {
    let asked = json!({"processId": "p", "afterSeq": 0, "waitMs": 60_000});
    let read = client.call("process/read", asked).unwrap();
    let chunks = read["chunks"].as_array().unwrap().iter();
    String::from_utf8(chunks.flat_map(|chunk| decode(&chunk["chunk"])).collect()).unwrap()
}

fn entry(client: &Client, session: &str) -> Value {
    client.call("process/list", json!({"sessionId": session})).unwrap()["processes"][0].clone()
}

#[test]
fn a_process_keeps_its_user_across_a_server_crash_and_a_restart() {
    if !is_root() {
        return;
    }
    let mut host = DurableHost::start();
    let said = "daemon 1 /usr/sbin daemon\n";
    let (client, session) = connect(&host);
    client.call("process/start", start(true)).unwrap();
    client.wait_for_output("p", said);
    let before = entry(&client, &session);
    assert_eq!((&before["user"], &before["cwd"]), (&json!("daemon"), &json!("file:///usr/sbin")), "{before}");
    assert_eq!(before["durable"], true, "{before}");
    drop(client);
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let after = entry(&client, &session);
    for member in ["pid", "user", "cwd", "state"] {
        assert_eq!(after[member], before[member], "{after}");
    }
    let first = Watched::printed(&before["pid"].to_string());
    let asked = json!({"processId": "p", "restartId": "r", "graceMs": 0});
    client.call("process/restart", asked).unwrap();
    first.assert_ends();
    assert_eq!(output_of(&client), said);
    let again = entry(&client, &session);
    assert_ne!(again["pid"], before["pid"]);
    assert_eq!((&again["user"], &again["cwd"]), (&before["user"], &before["cwd"]), "{again}");
    client.call("session/end", json!({"sessionId": session})).unwrap();
}

#[test]
fn a_process_without_a_keeper_is_restarted_as_the_same_user() {
    if !is_root() {
        return;
    }
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    client.call("process/start", start(false)).unwrap();
    client.wait_for_output("p", "daemon 1");
    client.call("process/restart", json!({"processId": "p", "restartId": "r", "graceMs": 0})).unwrap();
    client.wait_for_output("p", "daemon\ndaemon 1");
}

#[test]
fn the_keeper_reports_missing_permissions_of_the_user() {
    if !is_root() {
        return;
    }
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut request = start(true);
    request["cwd"] = json!(closed.path());
    let error = client.call("process/start", request.clone()).unwrap_err();
    assert_eq!(error["data"]["kind"], "badCwd", "{error}");
    assert!(error["data"]["hint"].as_str().unwrap().contains("uid 1,"), "{error}");
    request["user"] = json!("no-such-user");
    let error = client.call("process/start", request).unwrap_err();
    assert_eq!(error["message"], "there is no user `no-such-user` on this host", "{error}");
}
