//! Single messages that take long to parse.

use std::thread;

use serde_json::{Value, json};

use crate::support::{Client, Server, encode, start_params};

/// Returns a message of a mebibyte with 40,000 keys.
fn many_keys(id: usize) -> String {
    let env: serde_json::Map<_, _> =
        (0..40_000).map(|key| (format!("KEY_{key:06}"), Value::from("a value"))).collect();
    let params = json!({"processId": "p", "argv": ["/nowhere"], "cwd": "/", "tty": false, "env": env});
    json!({"id": id, "method": "process/start", "params": params}).to_string()
}

#[test]
fn huge_messages_block_no_other_client() {
    const ROUNDS: usize = 3;
    let server = Server::start();
    let messages: Vec<_> = (0..ROUNDS).map(|round| many_keys(1000 + round)).collect();
    // As many as there are workers would be enough to keep all of them busy.
    let senders: Vec<_> =
        (0..2 * thread::available_parallelism().map_or(2, usize::from)).map(|_| server.client()).collect();
    let other = server.client();
    for sender in &senders {
        messages.iter().for_each(|message| sender.send_text(message));
    }
    let is_done = |sender: &Client| sender.look(|seen| seen.has_reply(&json!(1000 + ROUNDS - 1)));
    let mut answered = 0;
    while !senders.iter().all(is_done) {
        other.call("environment/status", json!({})).unwrap();
        answered += 1;
    }
    // A server that is busy with them would answer between two of them at best.
    let huge = senders.len() * ROUNDS;
    assert!(answered > 2 * huge, "{answered} requests of others were answered beside {huge} huge ones");
}

#[test]
fn a_huge_message_takes_effect_before_later_ones() {
    Server::on_websocket_and_unix(|server| {
        let client = server.client();
        let large = "x".repeat(100_000);
        // Nothing waits for an answer: the large ones are parsed elsewhere, and those behind them must not overtake.
        let mut start = start_params("p", &["/bin/sh", "-c", "echo ${#LARGE}; exec cat"]);
        start["env"]["LARGE"] = json!(large);
        start["pipeStdin"] = json!(true);
        client.send("process/start", start);
        let mut expected = "100000\n".to_owned();
        for round in 0..10 {
            for chunk in [large.clone(), format!("{round}\n")] {
                client.send("process/write", json!({"processId": "p", "chunk": encode(&chunk)}));
                expected.push_str(&chunk);
            }
        }
        client.send("process/closeStdin", json!({"processId": "p"}));
        assert_eq!(client.collect("p").text(), expected);
    });
}
