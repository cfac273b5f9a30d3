//! Servers that are newer than the client: new words, new members, new messages.

use remex_client::{
    Command, ConnectionState, Error,
    fs::{ChangeKind, Depth, MetadataKind, WalkKind, WalkOptions},
    process::{Event, ExitCause, State, Stream},
};
use remex_proto::{ErrorKind, environment};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::{
    output as next_output,
    server::{Server, output},
    soon, started,
};

/// Adds members that no version knows to every object in `value`.
fn with_new_members(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(with_new_members);
            let new = json!({"deep": [{"er": null}], "words": ["a", 7], "fraction": 0.5});
            members.insert("fromTheFuture".to_owned(), new);
            members.insert("nothing".to_owned(), Value::Null);
        }
        Value::Array(values) => values.iter_mut().for_each(with_new_members),
        _ => {}
    }
}

/// Says a message with new members everywhere, and with a number that fits no 64 bits.
async fn send_newer(server: &mut Server, mut message: Value) {
    with_new_members(&mut message);
    let text = message.to_string();
    let numbers = r#""huge":340282366920938463463374607431768211455,"vast":1e999,"#;
    server.say(&text.replacen('{', &format!("{{{numbers}"), 1)).await;
}

fn chunk_on(stream: &str, process: &str, seq: u64) -> Value {
    let mut note = output(process, seq);
    note["params"]["stream"] = json!(stream);
    note
}

fn exited(process: &str, seq: u64) -> Value {
    json!({"method": "process/exited", "params": {"processId": process, "seq": seq, "exitCode": 3}})
}

fn closed(process: &str, seq: u64) -> Value {
    json!({"method": "process/closed", "params": {"processId": process, "seq": seq}})
}

#[tokio::test]
async fn a_process_with_a_new_stream_and_a_new_cause_ends_as_usual() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    server.send(chunk_on("stdout", "p", 1)).await;
    server.send(chunk_on("telemetry", "p", 2)).await;
    server.send(chunk_on("stderr", "p", 3)).await;
    server.send(chunk_on("telemetry", "p", 4)).await;
    let mut exit = exited("p", 5);
    exit["params"]["cause"] = json!("preempted");
    server.send(exit).await;
    server.send(closed("p", 6)).await;
    let said = soon("the end of the process", process.communicate(b"")).await.unwrap();
    assert_eq!(
        (said.stdout, said.stderr, said.terminal, said.other),
        (b"1".to_vec(), b"3".to_vec(), Vec::new(), b"24".to_vec())
    );
    assert_eq!((said.exit.code, said.exit.cause), (3, Some(ExitCause::Unknown)));
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn output_of_an_unknown_stream_is_an_event_and_reaches_no_reader_of_other_streams() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let (mut events, mut stdout) = (process.events(), process.stdout());
    server.send(chunk_on("telemetry", "p", 1)).await;
    server.send(chunk_on("stdout", "p", 2)).await;
    server.send(exited("p", 3)).await;
    server.send(closed("p", 4)).await;
    let event = soon("output", events.next()).await.unwrap();
    let Some(Event::Output(chunk)) = event else { panic!("{event:?} is no output") };
    assert_eq!((chunk.seq, chunk.stream, &chunk.bytes[..]), (1, Stream::Unknown, &b"1"[..]));
    let mut text = String::new();
    soon("the end of stdout", stdout.read_to_string(&mut text)).await.unwrap();
    assert_eq!(text, "2");
}

#[tokio::test]
async fn output_of_an_unknown_stream_can_be_read_back() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let mut events = process.events();
    server.send(chunk_on("stdout", "p", 2)).await;
    let (id, _) = server.expect("process/read").await;
    let reply = json!({"chunks": [chunk_on("telemetry", "p", 1)["params"]], "nextSeq": 3, "exited": false,
        "exitCode": null, "closed": false, "failure": null});
    server.answer(&id, reply).await;
    for seq in 1..=2 {
        assert_eq!(next_output(&mut events).await, (seq, seq.to_string()));
    }
}

#[tokio::test]
async fn unknown_members_and_numbers_beyond_64_bits_are_ignored_everywhere() {
    let (client, mut server) = Server::connect().await;
    let command = Command::new("prog").id("p");
    let (process, ()) = tokio::join!(command.start(&client), async {
        let (id, _) = server.expect("process/start").await;
        let result = json!({"processId": "p", "sandboxType": "lunarVacuum", "replayed": null});
        send_newer(&mut server, json!({"id": id, "result": result})).await;
    });
    let process = process.unwrap();
    send_newer(&mut server, chunk_on("stdout", "p", 1)).await;
    send_newer(&mut server, json!({"method": "flow/mark", "params": {"mark": 7}})).await;
    let gap = json!({"processId": "p", "fromSeq": 2, "toSeq": 2, "bytes": 5});
    send_newer(&mut server, json!({"method": "process/gap", "params": gap})).await;
    let mut exit = exited("p", 3);
    exit["params"]["usage"] = json!({"userMs": 1, "systemMs": 2, "maxRssBytes": null, "wallMs": 3});
    exit["params"]["networkDenied"] = json!([{"host": "h", "port": 1, "count": 1}]);
    send_newer(&mut server, exit).await;
    let mut end = closed("p", 4);
    end["params"]["produced"] = json!({"stdout": 1, "stderr": 0, "pty": 0});
    send_newer(&mut server, end).await;
    let mut events = process.events();
    assert_eq!(next_output(&mut events).await, (1, "1".to_owned()));
    assert!(
        matches!(soon("the gap", events.next()).await, Ok(Some(Event::Gap(gap))) if gap.bytes == Some(5))
    );
    assert!(
        matches!(soon("the exit", events.next()).await, Ok(Some(Event::Exited { exit, .. })) if exit.code == 3)
    );
    assert!(matches!(soon("the close", events.next()).await, Ok(Some(Event::Closed(_)))));
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
}

#[tokio::test]
async fn null_means_absent_where_a_member_is_optional() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let exit = json!({"processId": "p", "sessionId": null, "seq": 1, "exitCode": 0, "sandboxDenied": null,
        "signal": null, "cause": null, "usage": null, "networkDenied": null});
    server.send(json!({"method": "process/exited", "params": exit})).await;
    assert!(soon("the exit", process.wait()).await.unwrap().success());
}

#[tokio::test]
async fn an_exit_that_does_not_decode_fails_only_its_process() {
    let (client, mut server) = Server::connect().await;
    let mut broken = Vec::new();
    // More of them than protocol errors that end a session.
    let exits = [
        json!({"exitCode": null}),
        json!({"exitCode": "three"}),
        json!({"exitCode": 4_294_967_296_u64}),
        json!({"exitCode": 3.5}),
        json!({"exitCode": 3, "seq": -1}),
        json!({"exitCode": 3, "seq": null}),
        json!({"exitCode": 3, "cause": {"limit": "cpu"}}),
        json!({"exitCode": 3, "cause": 7}),
        json!({"exitCode": 3, "usage": {"userMs": null}}),
        json!({"exitCode": 3, "signal": 9}),
    ];
    for (number, members) in exits.iter().enumerate() {
        let id = format!("broken-{number}");
        broken.push(started(&client, &mut server, &id).await);
        let mut exit = exited(&id, 1);
        for (name, value) in members.as_object().unwrap() {
            exit["params"][name] = value.clone();
        }
        server.send(exit).await;
    }
    let huge = r#"{"method":"process/exited","params":{"processId":"huge","seq":18446744073709551616,"exitCode":0}}"#;
    broken.push(started(&client, &mut server, "huge").await);
    server.say(huge).await;
    for process in &broken {
        let error = soon("the cause", process.wait()).await.unwrap_err();
        let Error::Protocol { what } = &error else { panic!("{}: {error}", process.id()) };
        assert!(what.starts_with("cannot decode `process/exited`: "), "{what}");
    }
    let other = started(&client, &mut server, "other").await;
    server.send(output("other", 1)).await;
    server.send(exited("other", 2)).await;
    server.send(closed("other", 3)).await;
    let said = soon("the end of the other process", other.communicate(b"")).await.unwrap();
    assert_eq!((said.stdout, said.exit.code), (b"1".to_vec(), 3));
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
}

#[tokio::test]
async fn unknown_notifications_are_ignored_and_unused_ones_may_have_any_shape() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    for method in ["process/paused", "process/started", "process/failed", "fs/missingChanged", "clock/tick"] {
        for params in [json!({"processId": "p", "pid": "many"}), json!([1]), json!(7), json!(null)] {
            server.send(json!({"method": method, "params": params})).await;
        }
    }
    let observed = json!({"processId": "p", "sessionId": "another", "seq": "first"});
    server.send(json!({"method": "process/output", "params": observed})).await;
    server.send(exited("p", 1)).await;
    assert_eq!(soon("the exit", process.wait()).await.unwrap().code, 3);
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn a_request_from_the_server_is_refused_and_everything_continues() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    for id in [json!("ask-1"), json!(2)] {
        server.send(json!({"id": id, "method": "network/policyRequest", "params": {"host": "h"}})).await;
        let answer = server.next().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32601)), "{answer}");
        assert_eq!(answer["error"]["data"]["kind"], "unknownMethod");
    }
    server.send(exited("p", 1)).await;
    assert_eq!(soon("the exit", process.wait()).await.unwrap().code, 3);
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn a_new_kind_of_error_is_refused_with_its_message_and_its_hint() {
    let (client, mut server) = Server::connect().await;
    let errors = [
        (json!({"kind": "quotaExceeded", "hint": "buy more", "retryAfterMs": 5}), Some("buy more")),
        (json!({"kind": {"word": "quota"}, "hint": ["buy", "more"]}), None),
        (json!("quota"), None),
    ];
    for (data, hint) in errors {
        let call = client.call(environment::GetStatus {});
        let (status, ()) = tokio::join!(soon("an answer", call), async {
            let (id, _) = server.expect("environment/status").await;
            let error = json!({"code": -32077, "message": "no more", "data": data});
            server.send(json!({"id": id, "error": error})).await;
        });
        let error = status.unwrap_err();
        let Error::Refused(refused) = &error else { panic!("{error}") };
        assert_eq!(
            (refused.code, refused.kind, refused.message.as_str()),
            (-32077, ErrorKind::Other, "no more")
        );
        assert_eq!(refused.hint.as_deref(), hint);
    }
}

#[tokio::test]
async fn an_answer_that_does_not_decode_fails_its_call_with_the_cause() {
    let (client, mut server) = Server::connect().await;
    for result in
        [json!(null), json!([]), json!({}), json!({"status": 7}), json!({"status": {"ready": true}})]
    {
        let call = client.call(environment::GetStatus {});
        let (status, ()) = tokio::join!(soon("an answer", call), async {
            let (id, _) = server.expect("environment/status").await;
            server.answer(&id, result.clone()).await;
        });
        let error = status.unwrap_err();
        let Error::Protocol { what } = &error else { panic!("{error}") };
        assert!(what.starts_with("cannot decode the response to `environment/status`: "), "{what}");
    }
    let (status, ()) = tokio::join!(soon("an answer", client.call(environment::GetStatus {})), async {
        let (id, _) = server.expect("environment/status").await;
        server.answer(&id, json!({"status": "hibernating"})).await;
    });
    assert_eq!(status.unwrap().status, environment::Status::Unknown);
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
}

#[tokio::test]
async fn new_states_kinds_and_reasons_are_unknown_and_the_rest_of_an_answer_is_usable() {
    let (client, mut server) = Server::connect().await;
    let (listed, ()) = tokio::join!(soon("the list", client.processes()), async {
        let (id, _) = server.expect("process/list").await;
        let process = json!({"processId": "p", "sessionId": "s", "argv": ["make"], "cwd": "file:///", "pid": 7,
            "tty": false, "labels": {}, "state": "hibernated", "startedAtMs": 1, "endedAtMs": null,
            "exitCode": null, "signal": null, "cause": "preempted",
            "produced": {"stdout": 0, "stderr": 0, "pty": 0}, "retainedBytes": 0, "cpuMs": null,
            "residentBytes": null, "livingPids": null});
        server.answer(&id, json!({"processes": [process]})).await;
    });
    let listed = listed.unwrap();
    assert_eq!((listed[0].state, listed[0].cause), (State::Unknown, Some(ExitCause::Unknown)));

    let fs = client.fs();
    let (metadata, ()) = tokio::join!(soon("metadata", fs.metadata("/w/door")), async {
        let (id, _) = server.expect("fs/getMetadata").await;
        let metadata = json!({"isDirectory": false, "isFile": false, "isSymlink": false, "size": 0,
            "createdAtMs": 0, "modifiedAtMs": 0, "kind": "door"});
        server.answer(&id, metadata).await;
    });
    assert_eq!(metadata.unwrap().kind, Some(MetadataKind::Unknown));

    let options = WalkOptions::default();
    let (walk, ()) = tokio::join!(soon("the walk", fs.walk("/w", options)), async {
        let (id, _) = server.expect("fs/walk").await;
        let entries = json!([{"path": "file:///w/door", "kind": "door"}]);
        server.answer(&id, json!({"entries": entries, "errors": [], "truncated": false})).await;
    });
    assert_eq!(walk.unwrap().entries[0].kind, WalkKind::Unknown);
}

#[tokio::test]
async fn a_new_kind_of_change_is_reported_as_unknown() {
    let (client, mut server) = Server::connect().await;
    let fs = client.fs();
    let (watch, id) = tokio::join!(fs.watch("/w", Depth::Everything), async {
        let (id, watch) = server.expect("fs/watch").await;
        server.answer(&id, json!({})).await;
        watch["watchId"].clone()
    });
    let mut watch = watch.unwrap();
    let changes =
        json!([{"path": "file:///w/a", "kind": "frozen"}, {"path": "file:///w/b", "kind": "created"}]);
    let params = json!({"watchId": id, "changes": changes, "overflow": null});
    server.send(json!({"method": "fs/changed", "params": params})).await;
    let changed = soon("the changes", watch.next()).await.unwrap();
    let kinds: Vec<_> = changed.changes.iter().map(|change| change.kind).collect();
    assert_eq!((kinds, changed.overflow), (vec![ChangeKind::Unknown, ChangeKind::Created], false));
}

#[tokio::test]
async fn a_handshake_response_with_unknown_values_is_usable() {
    let environment = json!({"shell": {"name": "bash", "path": "/bin/bash"}, "platformOs": "plan10",
        "executorVersion": null, "prependPathDirs": null, "capabilities": {"timeTravel": true, "fsWatchMissing": null},
        "processLimits": {"cpuSeconds": "bpf"}, "confinement": {"processes": 7}});
    let welcome = json!({"sessionId": "s", "protocolVersion": "exec-server.v9",
        "server": {"name": "remex", "version": "9.0.0", "codename": "x"},
        "capabilities": {"enabled": ["consumed"], "available": ["consumed", "timeTravel"], "refused": []},
        "resumed": null, "detachTtlMs": null, "limits": {"messageBytes": "unlimited"},
        "environmentInfo": environment});
    let (client, mut server) = Server::connect_with(welcome).await;
    let capabilities = &client.welcome().capabilities;
    assert_eq!(capabilities.unknown, ["timeTravel".to_owned()].into());
    assert_eq!(client.welcome().limits.message_bytes, 0);
    let info = client.welcome().environment_info.as_ref().unwrap();
    assert_eq!(
        (info.platform_os.as_str(), &info.process_limits, &info.confinement),
        ("plan10", &None, &None)
    );
    let process = started(&client, &mut server, "p").await;
    server.send(exited("p", 1)).await;
    assert_eq!(soon("the exit", process.wait()).await.unwrap().code, 3);
}

#[tokio::test]
async fn a_write_with_an_unknown_status_uses_the_accepted_bytes() {
    use tokio::io::AsyncWriteExt as _;

    let (client, mut server) = Server::connect().await;
    let command = Command::new("prog").id("p").stdin(remex_client::process::Stdio::Piped);
    let (process, ()) = tokio::join!(command.start(&client), server.start());
    let process = process.unwrap();
    let mut stdin = process.stdin().unwrap();
    let (written, ()) = tokio::join!(soon("the write", stdin.write_all(b"a")), async {
        let (id, _) = server.expect("process/write").await;
        server.answer(&id, json!({"status": "spooled", "accepted": true})).await;
    });
    written.unwrap();
    let (written, ()) = tokio::join!(
        soon("the write", async {
            stdin.write_all(b"b").await?;
            stdin.flush().await
        }),
        async {
            let (id, _) = server.expect("process/write").await;
            server.answer(&id, json!({"status": "discarded", "accepted": false})).await;
        }
    );
    assert!(written.unwrap_err().to_string().contains("did not accept a write"));
}
