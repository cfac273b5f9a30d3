//! Durable servers on a disk that loses what was not synced, or cannot sync. Start at [`Medium`].

use std::{fs, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use remex_engine::{
    StateConfig, run_keeper,
    testing::{Medium, Names},
};
use remex_rpc::Listener;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout};

use super::{Client, PATIENCE, TestServer, config, start_params};
use crate::{Config, Limits, Server};

/// A durable server and its keeper, both in this program.
struct DurableServer {
    server: TestServer,
    keeper: Option<JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl DurableServer {
    async fn start(medium: &Medium) -> Self {
        let dir = medium.new_dir();
        let (ready, is_ready) = oneshot::channel();
        let (end, shutdown) = oneshot::channel();
        let state = dir.clone();
        let keeper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ready = move || ready.send(()).unwrap();
            let shutdown = async { drop(shutdown.await) };
            runtime
                .block_on(run_keeper(config(Limits::default()).engine(), &state, None, ready, shutdown))
                .unwrap();
        });
        timeout(PATIENCE, is_ready).await.expect("the keeper is ready").unwrap();
        let program = std::env::current_exe().unwrap().into();
        let state = Some(StateConfig { dir, keeper: vec![program], launcher: Vec::new() });
        let server = Server::new(Config { state, ..config(Limits::default()) }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix://{}", directory.path().join("socket").display());
        let listener = Listener::bind(&address.parse().unwrap()).await.unwrap();
        tokio::spawn(Arc::clone(&server).serve(listener));
        DurableServer { server: TestServer { server, directory }, keeper: Some(keeper), end: Some(end) }
    }

    /// Connects to a new session, or resumes one; returns its id.
    async fn connect(&self, resumed: Option<&str>) -> (Client, String) {
        let mut client = self.server.connect().await;
        let asked = json!({"clientName": "test", "detachTtlMs": 3_600_000, "resumeSessionId": resumed});
        let opened = client.call("initialize", asked).await.unwrap();
        client.send(json!({"method": "initialized", "params": {}})).await;
        (client, opened["sessionId"].as_str().unwrap().to_owned())
    }

    async fn stop(mut self) {
        self.server.server.shut_down().await;
        self.end();
    }

    fn end(&mut self) {
        drop(self.end.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Drop for DurableServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn synced(id: &str, script: &str) -> Value {
    let mut start = start_params(id, script);
    start["sync"] = json!(true);
    start["startId"] = json!(id);
    start["output"] = json!({"retainMs": 3_600_000});
    start
}

async fn read(client: &mut Client, id: &str) -> Value {
    client.call("process/read", json!({"processId": id})).await.unwrap()
}

fn output(read: &Value) -> String {
    let chunks = read["chunks"].as_array().unwrap().iter();
    let decode = |chunk: &Value| serde_json::from_value::<remex_proto::Blob>(chunk["chunk"].clone()).unwrap();
    String::from_utf8(chunks.flat_map(|chunk| decode(chunk).to_vec()).collect()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_a_client_has_seen_of_a_synced_process_survives_a_power_failure() {
    let medium = Medium::new();
    let host = DurableServer::start(&medium).await;
    let (mut client, session) = host.connect(None).await;
    let running = client.call("process/start", synced("running", "exec sleep 1000")).await.unwrap();
    let just_started =
        [Names::Synced, Names::Current].map(|names| (names, medium.after_power_failure(names)));
    client.call("process/start", synced("ended", "echo seen; exit 3")).await.unwrap();
    client.note("process/closed", "ended").await;
    // Saves the session once more.
    drop(client);
    drop(host.connect(Some(&session)).await);
    let ended = [Names::Synced, Names::Current].map(|names| (names, medium.after_power_failure(names)));
    host.stop().await;

    for (names, medium) in just_started {
        let host = DurableServer::start(&medium).await;
        let (mut client, _) = host.connect(Some(&session)).await;
        let again = client.call("process/start", synced("running", "exec sleep 1000")).await.unwrap();
        assert_eq!((&again["replayed"], &again["pid"]), (&json!(true), &running["pid"]), "{names:?}");
        assert_eq!(again["startedAtMs"], running["startedAtMs"], "{names:?}");
        assert_eq!(read(&mut client, "running").await["cause"], "serverLost", "{names:?}");
        host.stop().await;
    }
    for (names, medium) in ended {
        let host = DurableServer::start(&medium).await;
        let (mut client, _) = host.connect(Some(&session)).await;
        let read = read(&mut client, "ended").await;
        assert_eq!((output(&read).as_str(), &read["exitCode"]), ("seen\n", &json!(3)), "{names:?}");
        assert_eq!((&read["cause"], &read["failure"]), (&json!("exit"), &Value::Null), "{names:?}");
        host.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_of_a_forgotten_synced_process_survives_a_power_failure() {
    let medium = Medium::new();
    let host = DurableServer::start(&medium).await;
    let (mut client, session) = host.connect(None).await;
    let start = synced("p", "exit 0");
    client.call("process/start", start.clone()).await.unwrap();
    client.note("process/closed", "p").await;
    client.call("process/forget", json!({"processId": "p"})).await.unwrap();
    let processes = medium.new_dir().join("processes");
    let is_deleted = || fs::read_dir(&processes).unwrap().count() == 0;
    let deleting = async {
        while !is_deleted() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, deleting).await.expect("the log is deleted");
    let after = [Names::Synced, Names::Current].map(|names| (names, medium.after_power_failure(names)));
    host.stop().await;
    for (names, medium) in after {
        let host = DurableServer::start(&medium).await;
        let (mut client, _) = host.connect(Some(&session)).await;
        let again = client.call("process/start", start.clone()).await.unwrap();
        assert_eq!(again["replayed"], true, "{names:?}");
        host.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_be_synced_fails_and_runs_nothing() {
    let medium = Medium::new();
    let host = DurableServer::start(&medium).await;
    let (mut client, _) = host.connect(None).await;
    let pid_file = medium.path().join("pid");
    let script = format!("echo $$ > {0}.part; mv {0}.part {0}; exec sleep 1000", pid_file.display());
    // The session, the description of the process, the names on the way to it, and the note that it runs.
    for broken in [".json.new", "/process.json", "/processes", ".log"] {
        medium.break_at(broken);
        let mut start = synced("p", &script);
        start["startId"] = json!(broken);
        let error = client.call("process/start", start).await.unwrap_err();
        let message = error["message"].as_str().unwrap();
        let wanted = "cannot start process `p`: cannot sync the state directory: Input/output error";
        assert!(message.starts_with(wanted), "{broken}: {error}");
        assert_eq!(error["data"]["hint"], "check its disk, or start it without `sync`", "{broken}");
        let listed = client.call("process/list", json!({})).await.unwrap();
        assert_eq!(listed, json!({"processes": []}), "{broken}");
        if let Ok(pid) = fs::read_to_string(&pid_file) {
            let process = Path::new("/proc").join(pid.trim());
            let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
            assert!(state.is_empty() || state.contains(") Z "), "{broken}: {state}");
        }
        medium.repair();
    }
    client.call("process/start", synced("p", &script)).await.unwrap();
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_cannot_be_synced_is_announced_with_the_reason() {
    let medium = Medium::new();
    let host = DurableServer::start(&medium).await;
    let (mut client, session) = host.connect(None).await;
    client.call("process/start", synced("p", "read line; echo $line; read line; echo $line")).await.unwrap();
    let write = |line: &str| json!({"processId": "p", "chunk": remex_proto::Blob::from(line.as_bytes().to_vec()), "writeId": line});
    assert_eq!(read(&mut client, "p").await["failure"], Value::Null);
    medium.break_at(".log");
    client.call("process/write", write("one\n")).await.unwrap();
    client.note("process/output", "p").await;
    let failed = read(&mut client, "p").await;
    assert_eq!(output(&failed), "one\n");
    let failure = failed["failure"].as_str().unwrap();
    assert!(failure.contains("Input/output error") && failure.contains("power failure"), "{failure}");
    medium.repair();
    client.call("process/write", write("two\n")).await.unwrap();
    client.note("process/closed", "p").await;
    let later = read(&mut client, "p").await;
    assert_eq!(output(&later), "one\ntwo\n");
    assert_eq!(later["failure"], failure, "no later sync brings back what the disk has lost");
    drop(client);
    let (mut client, _) = host.connect(Some(&session)).await;
    assert_eq!(read(&mut client, "p").await["failure"], failure);
    host.stop().await;
}
