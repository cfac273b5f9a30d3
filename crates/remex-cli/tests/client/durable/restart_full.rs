//! `process/restart` of a process whose log is full because it is not read.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll},
};
use crate::support::{Client, Reader, start_params, with};

/// How much the log holds.
const RETAINED: u64 = 64 << 10;

/// Longer than any restart takes that need not wait, on a busy machine, too.
const SOON: Duration = Duration::from_secs(60);

/// What prints without end until it is asked to end.
fn endless(more: Value) -> Value {
    let output = json!({"retainBytes": RETAINED, "overflow": "hold"});
    let own = json!({"restartable": true, "output": output});
    with(start_params("p", &["/bin/sh", "-c", "exec yes 0123456789abcdef"]), with(own, more))
}

/// A client that reports what it consumes.
fn consumer(host: &DurableHost) -> (Reader, String) {
    let asked = json!({"clientName": "slow", "resumeSessionId": null, "detachTtlMs": 3_600_000,
        "capabilities": ["processGap", "acks", "consumed"]});
    let (reader, answer) = Reader::initialized(&host.address(), asked);
    (reader, answer["sessionId"].as_str().unwrap().to_owned())
}

/// Waits until the process can print no more, and returns how much it has printed.
fn full(other: &Client, session: &str) -> u64 {
    let mut produced = vec![0];
    poll("the log to be full", || {
        let listed = other.call("process/list", json!({"sessionId": session})).unwrap();
        let now = &listed["processes"][0]["produced"];
        produced.push(now["stdout"].as_u64().unwrap() + now["pty"].as_u64().unwrap());
        produced.len() > 20
            && *produced.last().unwrap() >= RETAINED
            && produced[produced.len() - 20..].windows(2).all(|two| two[0] == two[1])
    });
    *produced.last().unwrap()
}

/// Reads everything of the first process, and reports it as consumed; returns how many bytes that were, without a gap.
fn rest(reader: &mut Reader) -> u64 {
    let (mut bytes, mut next) = (0, 1);
    loop {
        let message = reader.next();
        let (method, params) = (message["method"].as_str().unwrap_or_default(), &message["params"]);
        assert_ne!(method, "process/gap", "{message}");
        if !matches!(method, "process/output" | "process/exited" | "process/closed") {
            continue;
        }
        assert_eq!(params["seq"], next, "{message}");
        next += 1;
        if method == "process/closed" {
            let produced = &params["produced"];
            let all = produced["stdout"].as_u64().unwrap() + produced["pty"].as_u64().unwrap();
            assert_eq!((bytes, &params["evictedBytes"]), (all, &json!(0)), "{message}");
            return bytes;
        }
        if method == "process/output" {
            bytes += crate::support::decode(&params["chunk"]).len() as u64;
            reader.notify("flow/consumed", json!({"processId": "p", "seq": params["seq"]}));
        }
    }
}

#[test]
fn a_process_with_a_full_log_is_restarted_and_its_client_loses_nothing() {
    for tty in [false, true] {
        for durable in [false, true] {
            let host = DurableHost::start();
            let other = connect(&host).0;
            let (mut client, session) = consumer(&host);
            let started =
                client.call("process/start", endless(json!({"durable": durable, "tty": tty}))).unwrap();
            let printed = full(&other, &session);
            let restarted = client.call("process/restart", json!({"processId": "p"}));
            let restarted = restarted.unwrap_or_else(|error| panic!("durable {durable}, tty {tty}: {error}"));
            assert_ne!(restarted["pid"], started["pid"]);
            // What was in the pipe is there as well.
            let received = rest(&mut client);
            assert!(tty || received > printed, "{received} of {printed}");
            assert!(received >= printed && received < printed + (1 << 20), "{received} of {printed}");
        }
    }
}

#[test]
fn a_full_log_does_not_delay_the_graceful_end_of_a_restart() {
    // The second has a descendant that ends after it, and meanwhile holds both of its streams open.
    let late = "trap 'exit 0' TERM; \
                sh -c 'trap \"sleep 0.3; exit\" TERM; yes 0123456789abcdef & wait' & wait";
    let host = DurableHost::start();
    for script in ["exec yes 0123456789abcdef", late] {
        for durable in [false, true] {
            let other = connect(&host).0;
            let (mut client, session) = consumer(&host);
            let argv = ["/bin/sh", "-c", script];
            client.call("process/start", endless(json!({"argv": argv, "durable": durable}))).unwrap();
            let printed = full(&other, &session);
            let begun = Instant::now();
            let asked = json!({"processId": "p", "graceMs": 3_600_000});
            client.call("process/restart", asked).unwrap();
            assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
            let received = rest(&mut client);
            assert!(received > printed && received < printed + (1 << 20), "{received} of {printed}");
            other.call("session/end", json!({"sessionId": session})).unwrap();
        }
    }
}

#[test]
fn cancelled_restarts_read_nothing_beyond_the_limit() {
    let stubborn = "(trap '' TERM; exec yes 0123456789abcdef) & trap 'exit 0' TERM; wait";
    let host = DurableHost::start();
    for durable in [false, true] {
        let other = connect(&host).0;
        let (mut client, session) = consumer(&host);
        let argv = ["/bin/sh", "-c", stubborn];
        client.call("process/start", endless(json!({"argv": argv, "durable": durable}))).unwrap();
        let printed = full(&other, &session);
        client.send("process/restart", json!({"processId": "p", "graceMs": 3_600_000}));
        poll("the end of the first child", || {
            let listed = other.call("process/list", json!({"sessionId": session})).unwrap();
            !listed["processes"][0]["exitCode"].is_null()
        });
        // What still writes finds no more room than before.
        assert_eq!(full(&other, &session), printed);
        other.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn a_stalled_reader_does_not_block_a_restart() {
    let host = DurableHost::start();
    for durable in [false, true] {
        let other = connect(&host).0;
        let asked = json!({"clientName": "stalled", "resumeSessionId": null, "detachTtlMs": 3_600_000});
        let (mut client, answer) = Reader::initialized(&host.address(), asked);
        let session = answer["sessionId"].as_str().unwrap();
        let output = json!({"retainBytes": 1 << 20, "overflow": "pause"});
        let started =
            client.call("process/start", endless(json!({"durable": durable, "output": output}))).unwrap();
        full(&other, session);
        // It reads nothing from now on.
        client.send("process/restart", json!({"processId": "p"}));
        poll("the restart", || {
            let listed = other.call("process/list", json!({"sessionId": session})).unwrap();
            let process = &listed["processes"][0];
            process["state"] == "running" && process["pid"] != started["pid"]
        });
        other.call("session/end", json!({"sessionId": session})).unwrap();
    }
}
