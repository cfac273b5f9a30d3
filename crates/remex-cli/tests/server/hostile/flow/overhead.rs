//! What is around the bytes: ids, names and the envelope of each event.

use serde_json::{Value, json};

use crate::support::{Server, start_params, with};

const LONGEST: usize = 1024;

/// Every text of a start that is kept or repeated, with `text` in its place.
fn starts(text: &str) -> [Value; 4] {
    let labels = |name: &str, value: &str| {
        let mut labels = json!({});
        labels[name] = json!(value);
        json!({"labels": labels})
    };
    let members = [
        json!({"processId": text}),
        json!({"processId": "a", "startId": text}),
        with(json!({"processId": "b"}), labels(text, "")),
        with(json!({"processId": "c"}), labels("", text)),
    ];
    members.map(|member| with(start_params("", &["/bin/true"]), member))
}

#[test]
fn ids_names_and_labels_are_limited_to_a_kibibyte() {
    let server = Server::start();
    let (longest, longer) = ("x".repeat(LONGEST), "x".repeat(LONGEST + 1));
    let refused = |(code, message): (i64, String)| {
        assert_eq!(code, -32602, "{message}");
        assert!(message.contains("has 1025 bytes; at most 1024 are allowed"), "{message}");
    };
    for name in ["clientName", "sessionName"] {
        let client = server.connect();
        let hello =
            |text: &str| with(json!({"clientName": "", "resumeSessionId": null}), json!({name: text}));
        refused(client.refusal("initialize", hello(&longer)));
        client.initialize_with(hello(&longest));
    }

    let client = server.client();
    for start in starts(&longer) {
        refused(client.refusal("process/start", start));
    }
    for start in starts(&longest) {
        let process = start["processId"].as_str().unwrap().to_owned();
        client.call("process/start", start).unwrap();
        client.event(&process, "process/closed");
    }

    client.start("cat", &["/bin/cat"], json!({"pipeStdin": true}));
    let write = |id: &str| json!({"processId": "cat", "chunk": "", "writeId": id});
    refused(client.refusal("process/write", write(&longer)));
    client.call("process/write", write(&longest)).unwrap();

    let stream = json!({"method": "GET", "url": "http://[::]", "requestId": longer, "streamResponse": true});
    assert_eq!(client.refusal("http/request", stream).0, -32602);

    client.send_json(&json!({"id": longer, "method": "environment/status"}));
    let (code, message) = client.complaint();
    assert_eq!(code, -32600);
    assert!(message.ends_with("`id` is longer than 1024 bytes; use a shorter one"), "{message}");
    client.send_json(&json!({"id": longest, "method": "environment/status"}));
    assert_eq!(client.outcome(&json!(longest)).unwrap(), json!({"status": "ready"}));
}

#[test]
fn a_batch_of_tiny_events_with_a_long_id_is_no_larger_than_others() {
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    let id = "x".repeat(LONGEST);
    // The two streams take turns, so that no event can join the one before.
    let script = "i=0; while [ $i -lt 20000 ]; do echo; echo >&2; i=$((i + 1)); done";
    client.start(&id, &["/bin/sh", "-c", script], json!({}));
    let events = client.event(&id, "process/closed")["seq"].as_u64().unwrap();
    let onlooker = server.client();
    let before = server.peak_bytes();
    let mut from = json!({"sessionId": session, "fromSeq": {}});
    from["fromSeq"][&id] = json!(1);
    onlooker.call("session/observe", from).unwrap();
    onlooker.event(&id, "process/closed");
    let growth = server.peak_bytes() - before;
    let most = (1 << 20) + events * LONGEST as u64 / 8;
    assert!(growth < most, "the server grew by {growth} bytes to send {events} events");
}
