//! An identity that makes the server keep as much as it can, in a small address space: the server and what others have
//! there go on.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::await_that;
use crate::support::{Client, Limits, PATIENCE, Server, exchange, start_params, with, write_private};

const MALLORY: &str = "m4kUw2Qx9Zb7Rt1Yv6Np3Ls8Dg5Hc0Jf";
const ANN: &str = "a7Jt3Vb9Xq2Wm5Rk8Zp1Ys6Nd4Gh0LcE";

/// The address space of the server, in bytes.
const ADDRESS_SPACE: u64 = 1_500_000_000;

/// A server with little address space that knows two tokens, and the file with those.
struct Small {
    server: Server,
    _directory: TempDir,
}

fn start() -> Small {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = directory.path().join("tokens");
    let tokens = format!("{MALLORY} name=mallory scope=processes\n{ANN} name=ann scope=processes,metrics\n");
    write_private(&file, &tokens);
    let file = file.to_str().expect("the path is text");
    let flags = ["--log", "info", "--ws-auth", "capability-token", "--ws-token-file", file];
    Small { server: Limits::address_space(ADDRESS_SPACE).serve(&flags), _directory: directory }
}

/// Opens a session that outlives its connection.
fn session(server: &Server, token: &str) -> (Client, Value) {
    let client = Client::connect_with_token(server.address(), token);
    let answer = client.initialize_with(json!({"clientName": "test", "detachTtlMs": 3_600_000}));
    (client, answer["sessionId"].clone())
}

/// Returns a gauge of `/metrics`.
fn gauge(server: &Server, name: &str) -> u64 {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n\r\n");
    let answer = exchange(server.address(), request).expect("the server lives");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let line = answer.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("{name} is in\n{}", answer.body));
    value.parse().unwrap_or_else(|error| panic!("{name} is `{value}`: {error}"))
}

/// Leaves closed processes behind in several sessions, each with megabytes of words that have no length.
fn keep_closed_processes(server: &Server) {
    for _ in 0..3 {
        let (client, _) = session(server, MALLORY);
        let mut argv = vec!["/bin/true"; 1];
        argv.resize(180_000, "");
        for number in 0..20 {
            let id = format!("p{number}");
            let params = with(start_params(&id, &argv), json!({"output": {"retainMs": 86_400_000}}));
            // A refusal would be fine as well.
            if client.call("process/start", params).is_ok() {
                client.event(&id, "process/closed");
            }
        }
        client.cut();
    }
}

/// Asks for output on many connections, in answers of less than 1 MiB each, and reads none of them.
fn leave_answers_unread(server: &Server) -> Vec<Client> {
    let (client, id) = session(server, MALLORY);
    let script = "head -c 700000 /dev/zero; echo full >&2; exec sleep 1000";
    client.start("output", &["/bin/sh", "-c", script], json!({"output": {"overflow": "evict"}}));
    let full = json!({"processId": "output", "until": {"output": {"regex": "full"}}});
    client.call("process/wait", full).expect("the output comes");
    let silent = (0..160).map(|_| {
        let (client, _) = session(server, MALLORY);
        client.stop_reading();
        for _ in 0..16 {
            client.send("process/read", json!({"processId": "output", "sessionId": id}));
        }
        client
    });
    let mut clients: Vec<_> = silent.collect();
    clients.push(client);
    clients
}

#[test]
fn one_identity_cannot_exhaust_the_memory_of_a_server() {
    let small = start();
    let server = &small.server;
    let (ann, _) = session(server, ANN);
    ann.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let budget = gauge(server, "remex_memory_budget_bytes");
    let part = gauge(server, "remex_memory_identity_budget_bytes");
    assert_eq!(budget, ADDRESS_SPACE / 4, "it depends on the address space");
    assert!(part < budget, "{part} of {budget} for one identity");
    server.stderr_line("memory for clients is limited to what the host allows");

    keep_closed_processes(server);
    assert!(gauge(server, "remex_memory_bytes{cap=\"processes\"}") > part / 2, "the attack works");
    let silent = leave_answers_unread(server);
    await_that("the answers use memory", PATIENCE, || {
        gauge(server, "remex_memory_bytes{cap=\"answers\"}") > part / 8
    });
    let line = json!({"processId": "p", "chunk": "ZmluZQo="});
    assert_eq!(ann.call("process/write", line).expect("input is accepted")["status"], "accepted");
    ann.wait_for_output("p", "fine");
    let (second, _) = session(server, ANN);
    second.shell("q", "echo works");
    assert_eq!(second.collect("q").text(), "works\n");
    // Connections and short answers are charged in any case.
    let slack = 16 << 20;
    let used = gauge(server, "remex_memory_identity_max_bytes");
    assert!(used <= part + slack, "{used} of {part} bytes are in use");
    drop(silent);
}
