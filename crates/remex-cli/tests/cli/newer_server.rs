//! A server that is newer than the program: it uses words, streams and messages that the program does not know.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use serde_json::{Value, json};

use crate::{home::Home, support::encode};

/// Listens on a socket of `home` and answers as a newer server would; returns its address.
fn newer_server(home: &Home) -> String {
    let path = home.path("newer.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            thread::spawn(move || serve(connection));
        }
    });
    format!("unix://{}", path.display())
}

fn serve(mut connection: UnixStream) {
    let lines = BufReader::new(connection.try_clone().unwrap()).lines();
    // The program ends the connection when it is done.
    for line in lines.map_while(Result::ok) {
        let message: Value = serde_json::from_str(&line).unwrap();
        if message.get("id").is_none() {
            continue;
        }
        for mut said in answers(&message) {
            said["fromTheFuture"] = json!({"a": [1.5, null]});
            if writeln!(connection, "{said}").is_err() {
                return;
            }
        }
    }
}

fn answers(request: &Value) -> Vec<Value> {
    let result = |result: Value| json!({"id": request["id"], "result": result});
    let process = &request["params"]["processId"];
    match request["method"].as_str().unwrap() {
        "initialize" => vec![result(json!({"sessionId": "s", "protocolVersion": "exec-server.v9",
            "server": {"name": "remex", "version": "9.0.0"},
            "capabilities": {"enabled": ["cancel", "acks", "consumed", "processGap"], "available": ["timeTravel"]}}))],
        "process/start" => {
            let output = |seq: u64, stream: &str, text: &str| {
                let chunk = encode(text);
                let params = json!({"processId": process, "seq": seq, "stream": stream, "chunk": chunk});
                json!({"method": "process/output", "params": params})
            };
            let exited = json!({"processId": process, "seq": 4, "exitCode": 3, "cause": "preempted"});
            vec![
                result(json!({"processId": process, "sandboxType": "lunarVacuum"})),
                json!({"method": "process/paused", "params": {"processId": process}}),
                output(1, "stdout", "out\n"),
                output(2, "telemetry", "more\n"),
                output(3, "stderr", "err\n"),
                json!({"method": "process/exited", "params": exited}),
                json!({"method": "process/closed", "params": {"processId": process, "seq": 5}}),
            ]
        }
        "process/list" => vec![result(json!({"processes": [listed()]}))],
        "session/list" => {
            vec![result(json!({"sessions": [{"sessionId": "s", "name": null, "identity": "owner",
            "clientName": "c", "attached": false, "detachedAtMs": 1, "expiresAtMs": null, "processes": 1}]}))]
        }
        _ => vec![result(json!({}))],
    }
}

fn listed() -> Value {
    json!({"processId": "build", "sessionId": "s", "argv": ["make"], "cwd": "file:///w", "pid": 4711, "tty": false,
        "labels": {}, "state": "hibernated", "startedAtMs": 1_794_716_764_004_u64, "endedAtMs": null,
        "exitCode": null, "signal": null, "cause": "preempted", "produced": {"stdout": 0, "stderr": 0, "pty": 0},
        "retainedBytes": 0, "cpuMs": null, "residentBytes": 4096, "livingPids": [4711]})
}

#[test]
fn a_command_on_a_newer_server_works_and_unknown_streams_go_to_stdout() {
    let home = Home::new();
    let address = newer_server(&home);
    let said = home.say(&["run", "--on", &address, "--", "make"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(3), "out\nmore\n", "err\n"));
}

#[test]
fn a_process_in_an_unknown_state_is_listed_as_unknown() {
    let home = Home::new();
    let address = newer_server(&home);
    let said = home.say(&["ps", "--on", &address]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let row = said.out.lines().find(|line| line.contains("build")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(row.contains("unknown"), "{row}");
    let said = home.say(&["ps", "--json", "--on", &address]);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    let process = &json["processes"][0];
    assert_eq!((&process["state"], &process["cause"]), (&json!("unknown"), &json!("unknown")), "{said:?}");
    let said = home.say(&["rm", "build", "--on", &address]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("cannot remove `build`") && said.err.contains("newer"), "{said:?}");
}

#[test]
fn a_restart_policy_is_refused_if_the_server_does_not_support_it() {
    let home = Home::new();
    // Newer or not, it does not say that it can do that.
    let address = newer_server(&home);
    let said = home.say(&["run", "--on", &address, "--restart", "on-failure", "--", "make"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
    let reason = "cannot run a command again when it ends: this server does not support it";
    assert!(said.err.contains(reason) && said.err.contains("remex serve"), "{said:?}");
}
