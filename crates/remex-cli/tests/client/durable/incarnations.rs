//! Processes restarted while a client was disconnected: the new one is not mistaken for the previous one.

use std::{
    sync::{Mutex, mpsc},
    time::Duration,
};

use remex_client::{
    Client, Command, Error, Options, Session, Target,
    process::{Event, SignalName, State, Stdio},
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{
    host::DurableHost,
    in_time,
    restarts::{connect, poll, resume},
};
use crate::support::{self, DisconnectingProxy, PATIENCE, encode, start_params, with};

fn restarted(answer: Result<Value, Value>) -> bool {
    answer.is_err_and(|error| error["data"]["kind"] == "unknownProcess" && error["data"]["restarted"] == true)
}

#[test]
fn a_request_for_the_previous_incarnation_is_refused_without_effect() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let (client, session) = connect(&host);
        let more = json!({"durable": durable, "restartable": true, "pipeStdin": true, "startId": "s"});
        let start = with(start_params("p", &["/bin/sh", "-c", "echo ready; exec cat"]), more);
        let first = client.call("process/start", start.clone()).unwrap()["incarnation"].clone();
        assert!(first.as_u64().is_some_and(|number| (1..1 << 53).contains(&number)), "{first}");
        client.wait_for_output("p", "ready\n");
        let read = client.call("process/read", json!({"processId": "p"})).unwrap();
        let listed = client.call("process/list", json!({})).unwrap();
        assert_eq!((&read["incarnation"], &listed["processes"][0]["incarnation"]), (&first, &first));
        let asked = json!({"processId": "p", "restartId": "r", "incarnation": first});
        let second = client.call("process/restart", asked.clone()).unwrap()["incarnation"].clone();
        assert!(second.as_u64().is_some() && second != first, "{second}");
        client.wait_for_output("p", "ready\nready\n");

        let stale = json!({"processId": "p", "sessionId": session, "incarnation": first});
        let requests = [
            ("process/read", json!({"waitMs": 60_000})),
            ("process/write", json!({"chunk": encode(b"no\n"), "writeId": "w"})),
            ("process/closeStdin", json!({})),
            ("process/wait", json!({})),
            ("process/resize", json!({"rows": 1, "cols": 1})),
            ("process/signal", json!({"signal": "KILL"})),
            ("process/terminate", json!({})),
            ("process/seek", json!({"to": {"offset": 0}})),
            ("process/snapshot", json!({})),
            ("process/release", json!({})),
            ("process/forget", json!({})),
            ("process/restart", json!({})),
        ];
        for (method, more) in requests {
            let answer = client.call(method, with(stale.clone(), more));
            assert!(restarted(answer.clone()), "{method}: {answer:?}");
        }
        // Repeats find what they have done.
        assert_eq!(client.call("process/restart", asked).unwrap()["incarnation"], second);
        assert_eq!(client.call("process/start", start).unwrap()["incarnation"], first);
        // Whoever names the new one, or none, gets at it, and it has got nothing of all that.
        let write =
            json!({"processId": "p", "incarnation": second, "chunk": encode(b"yes\n"), "writeId": "w"});
        assert_eq!(client.call("process/write", write).unwrap()["accepted"], true);
        client.wait_for_output("p", "ready\nready\nyes\n");
        let _ = client.call("process/terminate", json!({"processId": "p", "incarnation": second})).unwrap();
    }
}

#[test]
fn an_incarnation_outlives_the_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let more = json!({"restartable": true, "startId": "s"});
    let start = with(start_params("p", &["/bin/sleep", "1000"]), more);
    let started = client.call("process/start", start.clone()).unwrap();
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let listed = client.call("process/list", json!({})).unwrap();
    assert_eq!(listed["processes"][0]["incarnation"], started["incarnation"]);
    let repeated = client.call("process/start", start).unwrap();
    assert_eq!((&repeated["incarnation"], &repeated["replayed"]), (&started["incarnation"], &json!(true)));
    let restart = json!({"processId": "p", "incarnation": started["incarnation"]});
    let again = client.call("process/restart", restart.clone()).unwrap();
    assert_ne!(again["incarnation"], started["incarnation"]);
    drop(client);
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let ended = client.call("process/terminate", restart);
    assert!(restarted(ended.clone()), "{ended:?}");
    let ended = json!({"processId": "p", "incarnation": again["incarnation"]});
    assert_eq!(client.call("process/terminate", ended).unwrap()["running"], true);
}

/// A client whose second connection gets no response until it is released.
struct Away {
    client: Client,
    go_on: mpsc::Sender<()>,
    _proxy: DisconnectingProxy,
}

impl Away {
    async fn connect(address: &str) -> Self {
        let (go_on, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let hold = move || {
            let _ = held.lock().unwrap().recv_timeout(PATIENCE);
        };
        let proxy = DisconnectingProxy::with_notice(address, &[u64::MAX, 0], hold);
        let options = Options::default()
            .session(Session::Create("away".to_owned()))
            .handshake_timeout(PATIENCE)
            .detach_ttl(Duration::from_secs(3600));
        let connecting = Client::connect_with(Target::parse(proxy.address()).unwrap(), options);
        let client = in_time("a connection", connecting).await.unwrap();
        Self { client, go_on, _proxy: proxy }
    }
}

fn is_restarted<T: std::fmt::Debug>(outcome: Result<T, Error>) -> bool {
    let Err(error) = outcome else { panic!("{outcome:?}") };
    assert!(error.is_restarted(), "{error}");
    error.hint().is_some()
}

#[tokio::test]
async fn a_reconnected_client_learns_of_a_restart_and_gets_nothing_of_the_new_process() {
    let mut host = DurableHost::start();
    let away = Away::connect(&host.address()).await;
    let directory = tempfile::tempdir().unwrap();
    let again = directory.path().join("again");
    // The second one has more events than the first one at any time, so that it could go on at the same number.
    let script = format!("[ -e {} ] && seq 10000 || echo old; exec cat", again.display());
    let command = Command::shell(script).id("p").stdin(Stdio::Piped).restartable();
    let process = in_time("a start", command.start(&away.client)).await.unwrap();
    let (mut events, mut stdin) = (process.events(), process.stdin().unwrap());
    let first = in_time("its output", events.next()).await.unwrap();
    assert!(matches!(first, Some(Event::Output(chunk)) if chunk.bytes == "old\n"));

    host.kill();
    std::fs::write(&again, "").unwrap();
    host.launch();
    stdin.write_all(b"rest\n").await.unwrap();
    let other = support::Client::connect(&host.address());
    other.initialize();
    let session = away.client.session_id().to_owned();
    let asked = json!({"processId": "p", "sessionId": session});
    other.call("process/restart", asked.clone()).unwrap();
    let whole = json!({"offset": 48_894});
    poll("the output of the new process", || {
        let read = with(asked.clone(), json!({"to": whole}));
        other.call("process/seek", read).unwrap()["producedBytes"] == 48_894
    });
    drop(away.go_on);

    // What is streamed is never of the new one.
    assert!(is_restarted(in_time("the end of the events", events.next()).await));
    let flushed = in_time("the end of the input", stdin.flush()).await.unwrap_err();
    assert!(flushed.to_string().contains("was restarted"), "{flushed}");
    drop(stdin);
    assert!(is_restarted(in_time("a write", process.write(b"more\n")).await));
    assert!(is_restarted(in_time("a signal", process.signal(SignalName::Kill)).await));
    assert!(is_restarted(in_time("a kill", process.kill()).await));
    assert!(is_restarted(in_time("a wait", process.wait()).await));
    assert_eq!(in_time("a look", process.reference().info()).await.unwrap(), None);

    // A new handle is one on the new process, which has all its output and nothing of the input for the other.
    let new = in_time("a handle", away.client.process("p")).await.unwrap();
    drop((events, process));
    let info = in_time("a look", new.reference().info()).await.unwrap().unwrap();
    assert_eq!((info.state, info.produced.stdout), (State::Running, 48_894));
    new.write(b"to the new one\n").await.unwrap();
    new.close_stdin().await.unwrap();
    let output = in_time("its output", new.wait_with_output()).await.unwrap();
    let expected: String = (1..=10_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(output.stdout.to_vec()).unwrap(), expected + "to the new one\n");
}
