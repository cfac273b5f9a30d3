//! Binary messages: bytes without base64, for clients that ask for it.

use std::{fs, io::Write as _};

use serde_json::{Value, json};

use crate::support::{Client, PATIENCE, Place, Server, Web, decode, start_params, web_answer, with};

const MALFORMED: i64 = -32600;
const BAD_PARAMS: i64 = -32602;

/// Bytes that are no text and contain everything that a framing may stumble over.
fn bytes(len: usize) -> Vec<u8> {
    let all: Vec<u8> = (0..=255).chain(*b"\n\0{\"id\":1}\r\n").collect();
    all.into_iter().cycle().take(len).collect()
}

/// Sends a request with bytes and returns its whole reply.
fn reply_to(client: &Client, method: &str, params: Value, bytes: &[u8]) -> Value {
    let id = client.send_bytes(method, params, bytes);
    client.reply(&id)
}

#[test]
fn input_and_output_travel_without_base64_on_every_transport() {
    for (transport, _server, client) in Server::on_every_transport() {
        let answer = client.initialize_binary();
        assert!(answer["capabilities"]["enabled"].to_string().contains("binaryFrames"), "{answer}");
        client.start("p", &["head", "-c", "300000"], json!({"pipeStdin": true}));
        let sent = bytes(300_000);
        for (index, chunk) in sent.chunks(100_000).enumerate() {
            let params = json!({"processId": "p", "chunk": [0, chunk.len()], "writeId": index.to_string()});
            let reply = reply_to(&client, "process/write", params, chunk);
            assert_eq!(reply["result"]["status"], "accepted", "{transport}: {reply}");
        }
        assert!(client.collect("p").stdout == sent, "{transport}: the bytes are the same");
        let outputs = client.look(|seen| {
            let outputs = seen.events("p").filter(|event| event["method"] == "process/output");
            outputs.map(|output| output["binary"] == true).collect::<Vec<_>>()
        });
        assert!(outputs.iter().all(|is_binary| *is_binary), "{transport}: {outputs:?}");
        let read = client.send("process/read", json!({"processId": "p", "afterSeq": 0}));
        let read = client.reply(&read);
        assert_eq!(read["binary"], true, "{transport}");
        let chunks = read["result"]["chunks"].as_array().expect("there are chunks");
        let again: Vec<u8> = chunks.iter().flat_map(|chunk| decode(&chunk["chunk"])).collect();
        assert!(again == sent[..again.len()] && !again.is_empty(), "{transport}");
    }
}

#[test]
fn files_travel_without_base64() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.connect();
    client.initialize_binary();
    let content = bytes(3 << 20);
    let (len, uri) = (content.len(), place.uri("whole"));
    let written =
        reply_to(&client, "fs/writeFile", json!({"path": uri.clone(), "dataBase64": [0, len]}), &content);
    assert_eq!(written.get("error"), None);
    assert!(fs::read(place.path("whole")).unwrap() == content);
    let id = client.send("fs/readFile", json!({"path": uri}));
    let read = client.reply(&id);
    assert_eq!(read["binary"], true);
    assert!(decode(&read["result"]["dataBase64"]) == content);

    let open = json!({"handleId": "h", "path": place.uri("blocks"), "mode": "replace"});
    client.call("fs/open", open).expect("the file can be opened");
    // Both blocks in one message: only the second is meant.
    let params = json!({"handleId": "h", "offset": 0, "chunk": [5, 7]});
    assert_eq!(reply_to(&client, "fs/writeBlock", params, b"01234567890123").get("error"), None);
    client.call("fs/close", json!({"handleId": "h"})).expect("the file can be closed");
    assert_eq!(fs::read(place.path("blocks")).unwrap(), b"5678901");
    client.call("fs/open", json!({"handleId": "h", "path": place.uri("blocks")})).expect("it can be opened");
    let id = client.send("fs/readBlock", json!({"handleId": "h", "offset": 2, "len": 100}));
    let block = client.reply(&id);
    assert_eq!((&block["binary"], decode(&block["result"]["chunk"])), (&json!(true), b"78901".to_vec()));
    let id = client.send("fs/readBlock", json!({"handleId": "h", "offset": 7, "len": 100}));
    let end = client.reply(&id);
    assert_eq!(end, json!({"id": id, "result": {"chunk": "", "eof": true}}), "what has no bytes is JSON");
}

#[test]
fn bodies_travel_without_base64() {
    let web = Web::start(|request, stream| {
        let _ = stream.write_all(&web_answer(200, &[], &request.body));
    });
    let mut command = crate::support::program(&["serve"]);
    command.env("no_proxy", "*").stdin(std::process::Stdio::null());
    let server = Server::launch(command, 1);
    let client = server.connect();
    client.initialize_binary();
    let body = bytes(200_000);
    let params = |stream: bool| {
        json!({"method": "POST", "url": web.url("/"), "requestId": "r", "bodyBase64": [0, body.len()],
            "streamResponse": stream})
    };
    let answer = reply_to(&client, "http/request", params(false), &body);
    assert_eq!((&answer["binary"], &answer["result"]["status"]), (&json!(true), &json!(200)));
    assert!(decode(&answer["result"]["bodyBase64"]) == body);

    reply_to(&client, "http/request", params(true), &body);
    let parts = client.wait("the last part", |seen| {
        let parts: Vec<Value> = seen.notifications().cloned().collect();
        parts.last().is_some_and(|last| last["params"]["done"] == true).then_some(parts)
    });
    let streamed: Vec<u8> = parts.iter().flat_map(|part| decode(&part["params"]["deltaBase64"])).collect();
    assert!(streamed == body);
    let (last, parts) = parts.split_last().expect("there is a last part");
    assert!(last.get("binary").is_none(), "what has no bytes is JSON");
    assert!(parts.iter().all(|part| part["binary"] == true));
}

#[test]
fn both_forms_may_be_mixed_and_pipelined_behind_the_handshake() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize_binary();
        let start = with(start_params("p", &["cat"]), json!({"pipeStdin": true}));
        let ids = [
            client.send("process/start", start),
            client.send_bytes(
                "process/write",
                json!({"processId": "p", "chunk": [0, 2], "writeId": "1"}),
                b"a\n",
            ),
            client.send("process/write", json!({"processId": "p", "chunk": "Ygo=", "writeId": "2"})),
            client.send_bytes(
                "process/write",
                json!({"processId": "p", "chunk": "Ywo=", "writeId": "3"}),
                b"unused",
            ),
            client.send("process/closeStdin", json!({"processId": "p"})),
        ];
        for id in ids {
            assert_eq!(client.reply(&id).get("error"), None, "{transport}");
        }
        assert_eq!(client.collect("p").stdout, b"a\nb\nc\n", "{transport}");
    }
}

#[test]
fn an_observer_gets_binary_output_with_the_session() {
    let server = Server::start();
    let (owner, observer) = (server.connect(), server.connect());
    let session = owner.initialize()["sessionId"].clone();
    observer.initialize_binary();
    observer.call("session/observe", json!({"sessionId": session})).expect("the session can be observed");
    owner.start("p", &["echo", "hi"], json!({}));
    assert_eq!(owner.collect("p").stdout, b"hi\n");
    let output = observer.event("p", "process/output");
    assert_eq!((&output["sessionId"], decode(&output["chunk"])), (&session, b"hi\n".to_vec()));
    let is_binary = |client: &Client| {
        client.look(|seen| {
            seen.events("p")
                .find(|event| event["method"] == "process/output")
                .map(|event| event["binary"] == true)
        })
    };
    assert_eq!((is_binary(&owner), is_binary(&observer)), (Some(false), Some(true)));
}

#[test]
fn an_id_that_fits_no_head_travels_as_json() {
    let server = Server::start();
    let client = server.connect();
    client.initialize_binary();
    // Ids of more than 1 KiB are refused, so the longest that there are fit.
    let id = "é".repeat(512);
    client.start(&id, &["echo", "hi"], json!({}));
    assert_eq!(client.collect(&id).stdout, b"hi\n");
}

#[test]
fn a_malformed_binary_message_is_answered_and_the_connection_stays_open() {
    let malformed: [(&[u8], &str); 6] = [
        (b"\x03abc", "no binary message begins with the byte 3"),
        (b"\x02\0\0\0", "ends after 4 bytes"),
        (b"\x02\0\0\0\0\0\0\x09{}", "ends after 10 bytes"),
        (b"\x02\0\x01\0\0\0\0\x02{}", "a reserved byte"),
        (b"\x02\0\0\0\0\0\0\x02{x", "not JSON"),
        (b"\x01\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0phi", "only a server sends output"),
    ];
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize_binary();
        for (message, reason) in malformed {
            client.send_binary(message);
            let (code, complaint) = client.complaint();
            assert_eq!(code, MALFORMED, "{transport}: {complaint}");
            assert!(complaint.contains(reason), "{transport}: {complaint}");
        }
        client.start("p", &["true"], json!({}));
        client.collect("p");
    }
}

#[test]
fn a_reference_to_bytes_that_are_not_there_fails_only_its_request() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.connect();
    client.initialize_binary();
    let references = [
        json!([0, 4]),
        json!([3, 1]),
        json!([-1, 1]),
        json!([0]),
        json!([0, 1, 2]),
        json!(3),
        json!([u64::MAX, 1]),
    ];
    for reference in references {
        let params = json!({"path": place.uri("file"), "dataBase64": reference});
        let reply = reply_to(&client, "fs/writeFile", params, b"abc");
        assert_eq!(reply["error"]["code"], BAD_PARAMS, "{reference}: {reply}");
    }
    // The same bytes twice, which would make a short message long.
    let params = with(start_params("p", &[]), json!({"argv": null, "argvBase64": [[0, 3], [0, 3]]}));
    let reply = reply_to(&client, "process/start", params, b"abc");
    assert_eq!(reply["error"]["code"], BAD_PARAMS, "{reply}");
    assert!(!place.path("file").exists());
}

#[test]
fn without_the_capability_nothing_is_binary_and_the_byte_0_is_part_of_a_line() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        client.start("p", &["cat"], json!({"pipeStdin": true}));
        let params = json!({"processId": "p", "chunk": [0, 2], "writeId": "1"});
        if transport == "websocket" {
            let message = b"\x02\0\0\0\0\0\0\x02{}";
            client.send_binary(message);
        } else {
            client.send_raw(b"\0\0\0\0\x02{}\n");
        }
        let (code, complaint) = client.complaint();
        assert_eq!(code, MALFORMED, "{transport}: {complaint}");
        assert!(complaint.contains("failed to parse"), "{transport}: {complaint}");
        let (code, _) = client.refusal("process/write", params);
        assert_eq!(code, BAD_PARAMS, "{transport}: nothing is attached to JSON");
        client.call("process/closeStdin", json!({"processId": "p"})).expect("stdin can be closed");
        client.collect("p");
        client.look(|seen| assert!(seen.garbage.is_empty(), "{transport}: {:?}", seen.garbage));
    }
}

#[test]
fn a_binary_message_that_is_too_long_is_refused_like_a_line_and_the_next_one_works() {
    let server = Server::unix(&[]);
    let client = server.connect();
    client.initialize_binary();
    let len = (64 << 20) + 1_u32;
    client.send_raw(&[&[0], &len.to_be_bytes()[..]].concat());
    let (code, complaint) = client.complaint();
    assert_eq!(code, MALFORMED, "{complaint}");
    let piece = vec![b'\n'; 1 << 20];
    for _ in 0..64 {
        client.send_raw(&piece);
    }
    client.send_raw(b"\n");
    client.start("p", &["echo", "hi"], json!({}));
    assert_eq!(client.collect("p").stdout, b"hi\n");
}

#[test]
fn a_binary_message_that_is_cut_off_by_the_end_of_input_is_dropped() {
    let (mut server, client) = Server::stdio(&[]);
    client.initialize_binary();
    client.start("p", &["echo", "hi"], json!({}));
    client.collect("p");
    client.send_raw(b"\0\0\0\0\x64\x02\0\0\0");
    client.finish_writing();
    let finished = server.wait();
    assert_eq!(finished.code(), Some(0), "the server ends within {PATIENCE:?} as after any end of input");
    client.look(|seen| assert!(seen.messages.iter().all(|message| message["id"] != -1)));
}

#[test]
fn a_declared_length_takes_no_memory_before_it_arrives() {
    let server = Server::unix(&[]);
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let client = server.connect();
            client.initialize_binary();
            client.send_raw(&[&[0], &(60_u32 << 20).to_be_bytes()[..], &bytes(1000)].concat());
            client
        })
        .collect();
    let other = server.client();
    other.start("p", &["echo", "hi"], json!({}));
    assert_eq!(other.collect("p").stdout, b"hi\n");
    assert!(server.peak_bytes() < 200 << 20, "{} bytes", server.peak_bytes());
    drop(clients);
}
