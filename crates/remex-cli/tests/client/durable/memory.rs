//! How much memory a keeper needs after many processes.

use std::fs;

use rustix::process::Pid;
use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll},
};

/// Processes that run at the same time.
const PROCESSES: usize = 500;

/// Returns the private memory of a process in KiB.
fn private_kib(process: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_keeper_returns_the_memory_of_processes_that_have_ended() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    let at_rest = private_kib(host.keeper());
    let ids: Vec<_> = (0..PROCESSES).map(|number| format!("p{number}")).collect();
    for id in &ids {
        client.start(id, &["cat"], json!({"pipeStdin": true, "output": {"retainMs": 3_600_000}}));
    }
    let running = private_kib(host.keeper());
    for id in &ids {
        client.call("process/closeStdin", json!({"processId": id})).unwrap();
    }
    for id in &ids {
        client.event(id, "process/closed");
        client.call("process/forget", json!({"processId": id})).unwrap();
    }
    let limit = at_rest + (running - at_rest) / 2;
    poll(&format!("to return half of {running} KiB, {at_rest} KiB at rest"), || {
        private_kib(host.keeper()) <= limit
    });
}
