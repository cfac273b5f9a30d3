//! `process/restart`: followers get all output of the process, then its end, and then the new one.

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll},
};
use crate::support::{Client, Reader, decode, start_params, with};

/// Numbers up to this have about 2.7 MB, more than is on its way to a client that does not read.
const LAST: u64 = 400_000;

/// And exactly as many bytes.
const TOTAL: u64 = 2_688_895;

/// Prints numbers and keeps running.
fn start(more: &Value) -> Value {
    let script = format!("seq 1 {LAST}; exec sleep 1000");
    let output = json!({"retainBytes": 16 << 20, "overflow": more["overflow"]});
    let own = json!({"restartable": true, "output": output});
    with(start_params("p", &["/bin/sh", "-c", &script]), with(own, json!({"durable": more["durable"]})))
}

/// Waits until the process has printed everything.
fn printed(client: &Client, session: &str) -> u64 {
    let mut pid = 0;
    poll("the output", || {
        let listed = client.call("process/list", json!({"sessionId": session})).unwrap();
        let process = &listed["processes"][0];
        pid = process["pid"].as_u64().unwrap_or(0);
        process["produced"]["stdout"] == TOTAL
    });
    pid
}

/// What one process has sent to a connection.
#[derive(Debug, Default, PartialEq)]
struct Told {
    bytes: u64,
    missing: u64,
    ends: Vec<String>,
}

/// Reads until the second process has sent all its output; returns what came of each, in the order of the events.
fn read_both(reader: &mut Reader) -> [Told; 2] {
    let (mut told, mut index, mut seen) = (<[Told; 2]>::default(), 0, 0);
    while told[1].bytes + told[1].missing < TOTAL {
        let message = reader.next();
        let (method, params) = (message["method"].as_str().unwrap_or_default(), &message["params"]);
        // The first of the second process may be a gap, too.
        if (params["seq"] == 1 || params["fromSeq"] == 1) && seen > 1 {
            assert_eq!(told[0].ends.last().map(String::as_str), Some("process/closed"), "{:?}", told[0]);
            (index, seen) = (1, 0);
        }
        let expected = seen + 1;
        match method {
            "process/output" => told[index].bytes += decode(&params["chunk"]).len() as u64,
            "process/gap" => {
                assert_eq!(params["fromSeq"], expected, "{message}");
                assert_eq!(params["cause"], "evicted", "{message}");
                told[index].missing += params["bytes"].as_u64().unwrap();
                seen = params["toSeq"].as_u64().unwrap();
                continue;
            }
            "process/exited" | "process/closed" => told[index].ends.push(method.to_owned()),
            _ => continue,
        }
        assert_eq!(params["seq"], expected, "{message}");
        seen = expected;
    }
    told
}

fn follower(host: &DurableHost) -> (Reader, String) {
    let asked = json!({"clientName": "slow", "resumeSessionId": null, "capabilities": ["processGap"],
        "detachTtlMs": 3_600_000});
    let (reader, answer) = Reader::initialized(&host.address(), asked);
    (reader, answer["sessionId"].as_str().unwrap().to_owned())
}

#[test]
fn a_slow_observer_gets_the_remaining_events_before_the_new_process() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let (client, session) = connect(&host);
        client.call("process/start", start(&json!({"durable": durable, "overflow": "evict"}))).unwrap();
        printed(&client, &session);
        let (mut observer, _) = follower(&host);
        observer.call("session/observe", json!({"sessionId": session, "othersFromSeq": 1})).unwrap();
        // It reads nothing meanwhile.
        for _ in 0..2 {
            client.call("process/restart", json!({"processId": "p"})).unwrap();
            printed(&client, &session);
        }
        let told = read_both(&mut observer);
        let ends = ["process/exited", "process/closed"].map(str::to_owned).to_vec();
        assert_eq!(told[0], Told { bytes: TOTAL, missing: 0, ends }, "durable: {durable}");
        client.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn a_slow_client_gets_the_remaining_output_of_a_process_it_restarts() {
    let host = DurableHost::start();
    for (durable, overflow) in [(true, "pause"), (false, "pause"), (true, "hold"), (false, "hold")] {
        let other = connect(&host).0;
        let (mut client, session) = follower(&host);
        client.call("process/start", start(&json!({"durable": durable, "overflow": overflow}))).unwrap();
        let first = printed(&other, &session);
        client.send("process/restart", json!({"processId": "p"}));
        poll("the restart", || {
            let listed = other.call("process/list", json!({"sessionId": session})).unwrap();
            let process = &listed["processes"][0];
            process["state"] == "running" && process["pid"] != first
        });
        let told = read_both(&mut client);
        let ends = ["process/exited", "process/closed"].map(str::to_owned).to_vec();
        assert_eq!(told[0], Told { bytes: TOTAL, missing: 0, ends }, "durable: {durable}, {overflow}");
        other.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn a_slow_observer_gets_a_gap_when_the_memory_is_needed() {
    let host = DurableHost::with_config("[limits]\nidentity_memory_bytes = '12MiB'\n");
    let (client, session) = connect(&host);
    client.call("process/start", start(&json!({"durable": false, "overflow": "evict"}))).unwrap();
    printed(&client, &session);
    let (mut observer, _) = follower(&host);
    observer.call("session/observe", json!({"sessionId": session, "fromSeq": {"p": 1}})).unwrap();
    client.call("process/restart", json!({"processId": "p"})).unwrap();
    printed(&client, &session);
    let refused = (0..1000).find_map(|number| {
        let asked = start_params(&format!("other {number}"), &["sleep", "1000"]);
        client.call("process/start", asked).err()
    });
    assert_eq!(refused.unwrap()["data"]["kind"], "limitExceeded");
    let told = read_both(&mut observer);
    assert_eq!(told[0].ends, ["process/exited", "process/closed"], "{told:?}");
    assert!(told[0].missing > 0 && told[0].bytes + told[0].missing == TOTAL, "{told:?}");
}

#[test]
fn acknowledgements_for_the_previous_process_open_its_window_while_the_new_one_runs() {
    let host = DurableHost::start();
    let asked = json!({"clientName": "consumer", "resumeSessionId": null, "capabilities": ["consumed"]});
    let (mut client, answer) = Reader::initialized(&host.address(), asked);
    let session = answer["sessionId"].as_str().unwrap();
    let other = connect(&host).0;
    let started =
        client.call("process/start", start(&json!({"durable": false, "overflow": "hold"}))).unwrap();
    printed(&other, session);
    client.send("process/restart", json!({"processId": "p"}));
    let mut told = 0;
    loop {
        let message = client.next();
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "process/output" => {
                told += decode(&params["chunk"]).len() as u64;
                let consumed =
                    json!({"processId": "p", "seq": params["seq"], "incarnation": started["incarnation"]});
                client.notify("flow/consumed", consumed);
            }
            "process/closed" => break,
            _ => {}
        }
    }
    assert_eq!(told, TOTAL);
}
