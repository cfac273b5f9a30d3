//! What a connection makes of a message: who is answered, with what, and what ends the connection.

use serde_json::{Value, json};
use tungstenite::Message;

use crate::support::{Client, Server, encode, start_params, with};

const MALFORMED: i64 = -32600;
const UNKNOWN_METHOD: i64 = -32601;
const BAD_PARAMS: i64 = -32602;
const MAX_MESSAGE_LEN: usize = 64 << 20;

/// Proves that a connection, shaken hands or not, still answers.
fn assert_alive(client: &Client) {
    let (code, message) = client.refusal("no/such", json!({}));
    assert_eq!(code, UNKNOWN_METHOD, "{message}");
}

/// Returns how a complaint about a malformed message begins.
fn complaint_about(transport: &str) -> &'static str {
    match transport {
        "websocket" => "failed to parse websocket JSON-RPC message from exec-server websocket",
        _ => "failed to parse JSON-RPC message from exec-server",
    }
}

/// Returns a request with `values` JSON values in all.
fn message_of(values: usize) -> String {
    // The message, its id, its method, its parameters and the list count one each.
    let list = vec!["0"; values - 5].join(",");
    format!(r#"{{"id":"many","method":"no/such","params":{{"list":[{list}]}}}}"#)
}

/// Returns a request that is nested `levels` deep.
fn message_nested(levels: usize) -> String {
    // The message and its parameters are the first two.
    let (open, close) = ("[".repeat(levels - 2), "]".repeat(levels - 2));
    format!(r#"{{"id":"deep","method":"no/such","params":{{"list":{open}{close}}}}}"#)
}

#[test]
fn a_malformed_message_is_answered_and_the_connection_stays_open() {
    let too_many = message_of(262_145);
    let too_deep = message_nested(128);
    let malformed = [
        "x",
        "{",
        "}",
        "[]",
        "[1]",
        r#"[{"id":1,"method":"initialize","params":{"clientName":"x"}}]"#,
        "1",
        "null",
        "true",
        "\"text\"",
        "{}",
        r#"{"id":1}"#,
        r#"{"id":1,"params":{}}"#,
        r#"{"id":1,"method":null}"#,
        r#"{"id":1,"method":5,"params":{}}"#,
        r#"{"id":null,"method":"no/such"}"#,
        r#"{"id":true,"method":"no/such"}"#,
        r#"{"id":1.5,"method":"no/such"}"#,
        r#"{"id":1e2,"method":"no/such"}"#,
        r#"{"id":[],"method":"no/such"}"#,
        r#"{"id":{},"method":"no/such"}"#,
        r#"{"id":9223372036854775808,"method":"no/such"}"#,
        r#"{"id":-9223372036854775809,"method":"no/such"}"#,
        r#"{"id":1,"id":1,"method":"no/such"}"#,
        r#"{"id":1,"method":"no/such","method":"no/such"}"#,
        r#"{"id":1,"method":"no/such","params":{"a":1,"a":1}}"#,
        r#"{"id":1,"method":"no/such","params":[{"a":{"b":1,"\u0062":2}}]}"#,
        r#"{"id":1,"method":"no/such","unknown":{"a":1,"a":1}}"#,
        r#"{"id":1,"method":"no/such","params":18446744073709551616}"#,
        r#"{"id":1,"method":"no/such","params":[-9223372036854775809]}"#,
        r#"{"id":1,"method":"no/such","trace":5}"#,
        r#"{"id":1,"method":"no/such","trace":"00-1-2-00"}"#,
        r#"{"id":1,"method":"no/such"} {}"#,
        r#"{"id":1,"method":"no/such",}"#,
        r#"{'id':1,'method':'no/such'}"#,
        r#"{"id":1,"method":"no/such","params":NaN}"#,
        r#"{"id":1,"method":"no/such","params":"\ud800"}"#,
        r#"{"id":01,"method":"no/such"}"#,
        "{\"id\":1,\"method\":\"no/\tsuch\"}",
        &too_many,
        &too_deep,
    ];
    for (transport, _server, client) in Server::on_every_transport() {
        for text in malformed {
            client.send_text(text);
            let (code, message) = client.complaint();
            let short = &text[..text.len().min(100)];
            assert_eq!(code, MALFORMED, "{transport} {short}");
            assert!(message.starts_with(complaint_about(transport)), "{transport} {short}: {message}");
            assert_alive(&client);
        }
    }
}

#[test]
fn an_empty_websocket_message_is_malformed() {
    let server = Server::start();
    let client = server.connect();
    for message in [Message::text(""), Message::text(" \r\n\t"), Message::binary("")] {
        client.send_websocket(message);
        assert_eq!(client.complaint().0, MALFORMED);
    }
    assert_alive(&client);
}

#[test]
fn bytes_that_are_not_utf8_are_malformed() {
    for (transport, _server, client) in Server::on_every_transport() {
        let bytes = b"{\"id\":1,\"method\":\"no/\xff\xfesuch\"}";
        match transport {
            "websocket" => client.send_websocket(Message::binary(&bytes[..])),
            _ => client.send_raw(&[bytes, &b"\n"[..]].concat()),
        }
        assert_eq!(client.complaint().0, MALFORMED, "{transport}");
        assert_alive(&client);
    }
}

#[test]
fn limits_are_inclusive() {
    let numbers =
        r#"{"id":"numbers","method":"no/such","params":[18446744073709551615,-9223372036854775808,1e308]}"#;
    for (transport, _server, client) in Server::on_every_transport() {
        for (id, text) in
            [("many", message_of(262_144)), ("deep", message_nested(127)), ("numbers", numbers.to_owned())]
        {
            client.send_text(&text);
            let error = client.outcome(&json!(id)).expect_err("there is no such method");
            assert_eq!(error["code"], UNKNOWN_METHOD, "{transport} {id}");
        }
    }
}

#[test]
fn a_line_at_the_limit_is_read_and_a_longer_one_skipped() {
    let (start, end) = (r#"{"id":"long","method":"no/such","params":""#, r#""}"#);
    let filler = "x".repeat(MAX_MESSAGE_LEN - start.len() - end.len());
    let longest = format!("{start}{filler}{end}");
    let unix = Server::unix(&[]);
    let (_stdio, over_stdio) = Server::stdio(&[]);
    for client in [unix.connect(), over_stdio] {
        client.send_text(&longest);
        client.outcome(&json!("long")).expect_err("there is no such method");

        // The complaint comes before the line has ended: nothing is kept of it.
        client.send_raw(longest.as_bytes());
        client.send_raw(b"y");
        let (code, message) = client.complaint();
        assert_eq!(code, MALFORMED, "{message}");
        client.send_raw(b"and on and on\n");
        assert_alive(&client);
        assert_eq!(client.look(|seen| seen.messages.len()), 3, "one complaint for one line");
    }
}

#[test]
fn a_websocket_message_that_is_too_long_closes_with_1009() {
    let server = Server::start();
    let client = server.client();
    // A text frame that announces one byte too many, of which only the head is sent.
    let len = u64::try_from(MAX_MESSAGE_LEN + 1).unwrap();
    client.send_raw(&[&[0x81, 0xff][..], &len.to_be_bytes(), &[1, 2, 3, 4]].concat());
    let end = client.wait_end();
    assert_eq!(end.close.map(|(code, _)| code), Some(1009));
}

#[test]
fn a_fragmented_websocket_message_over_the_limit_closes_with_1009() {
    let server = Server::start();
    let client = server.client();
    let len = u64::try_from(MAX_MESSAGE_LEN).unwrap();
    client.send_raw(&[&[0x01, 0xff][..], &len.to_be_bytes(), &[0; 4]].concat());
    client.send_raw(&vec![b' '; MAX_MESSAGE_LEN]);
    // The last fragment: one byte more.
    client.send_raw(&[0x80, 0x81, 0, 0, 0, 0, b' ']);
    let end = client.wait_end();
    assert_eq!(end.close.map(|(code, _)| code), Some(1009));
}

#[test]
fn twenty_mebibytes_in_one_frame_reach_the_child() {
    const LEN: usize = 15 << 20;
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        client.start("wc", &["wc", "-c"], json!({"pipeStdin": true}));
        let chunk = encode(vec![b'a'; LEN]);
        assert_eq!(chunk.len(), 20 << 20);
        let answer = client.call("process/write", json!({"processId": "wc", "chunk": chunk, "writeId": "1"}));
        assert_eq!(answer.unwrap()["status"], "accepted", "{transport}");
        client.call("process/closeStdin", json!({"processId": "wc"})).unwrap();
        assert_eq!(client.collect("wc").text().trim(), LEN.to_string(), "{transport}");
    }
}

#[test]
fn ten_thousand_garbage_messages_are_answered_and_then_a_request() {
    const GARBAGE: usize = 10_000;
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        for n in 0..GARBAGE {
            client.send_text(&format!("garbage {n}"));
        }
        client.shell("p", "echo fine");
        assert_eq!(client.collect("p").text(), "fine\n", "{transport}");
        for _ in 0..GARBAGE {
            assert_eq!(client.complaint().0, MALFORMED, "{transport}");
        }
    }
}

#[test]
fn thousands_of_pipelined_requests_are_all_answered() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        client.start("cat", &["cat"], json!({"pipeStdin": true}));
        let writes: Vec<_> = (0..5_000)
            .map(|n| {
                let chunk = encode(format!("{n}\n"));
                client.send(
                    "process/write",
                    json!({"processId": "cat", "chunk": chunk, "writeId": n.to_string()}),
                )
            })
            .collect();
        let close = client.send("process/closeStdin", json!({"processId": "cat"}));
        for id in writes {
            assert_eq!(client.outcome(&id).unwrap()["status"], "accepted", "{transport}");
        }
        client.outcome(&close).unwrap();
        let expected: String = (0..5_000).map(|n| format!("{n}\n")).collect();
        assert!(
            client.collect("cat").text() == expected,
            "{transport}: effects come in the order of the requests"
        );
    }
}

#[test]
fn requests_are_read_while_the_client_reads_nothing_and_answered_when_it_does() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        client.stop_reading();
        let ids: Vec<_> =
            (0..20_000).map(|n| client.send("process/read", json!({"processId": n.to_string()}))).collect();
        client.read_on();
        for id in ids {
            let error = client.outcome(&id).expect_err("there is no such process");
            assert_eq!(error["code"], -32600, "{transport}");
        }
    }
}

#[test]
fn a_request_id_is_echoed_verbatim() {
    let ids = [
        json!(0),
        json!(-7),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("7"),
        json!("-1"),
        json!("ä \"\\\n\u{0} \u{1f980}"),
        json!("x".repeat(1024)),
    ];
    for (transport, _server, client) in Server::on_every_transport() {
        // Twice each: an id may be used again.
        for id in ids.iter().chain(&ids) {
            client.send_json(&json!({"id": id, "method": "no/such"}));
            let reply = client.reply(id);
            assert_eq!(reply["id"], *id, "{transport}");
            assert_eq!(reply.get("jsonrpc"), None, "{transport}");
        }
    }
}

#[test]
fn jsonrpc_trace_and_unknown_members_are_accepted() {
    let server = Server::start();
    let client = server.client();
    for extra in [
        json!({"jsonrpc": "2.0"}),
        json!({"jsonrpc": 5}),
        json!({"trace": null}),
        json!({"trace": {"traceparent": "00-00000000000000000000000000000001-0000000000000001-01"}}),
        json!({"trace": {}}),
        json!({"unknown": [1, {"a": null}]}),
        json!({"params": null}),
        json!({"params": {}}),
        json!({"params": {"unknown": true, "scope": "session"}}),
    ] {
        client.send_json(&with(json!({"id": "x", "method": "process/list"}), extra.clone()));
        client.outcome(&json!("x")).unwrap_or_else(|error| panic!("{extra} is refused: {error}"));
    }
}

#[test]
fn an_unknown_method_is_named_before_anything_else_is_checked() {
    for (transport, _server, client) in Server::on_every_transport() {
        for params in [json!(null), json!({}), json!([]), json!(5)] {
            for method in ["no/such", "process/", "Process/start", "initialized", "", "process/output"] {
                let (code, message) = client.refusal(method, params.clone());
                assert_eq!(code, UNKNOWN_METHOD, "{transport} {method}");
                assert!(message.contains(method), "{message}");
            }
        }
    }
}

#[test]
fn parameters_are_checked_before_the_handshake() {
    let server = Server::start();
    let client = server.connect();
    let (code, message) = client.refusal("process/read", json!({}));
    assert_eq!(code, BAD_PARAMS);
    assert!(message.contains("missing field `processId`"), "{message}");
    assert_eq!(client.refusal("process/read", json!([])).0, BAD_PARAMS);
    assert_eq!(client.refusal("process/read", json!("p")).0, BAD_PARAMS);
}

#[test]
fn requests_before_the_handshake_are_refused_with_the_missing_step() {
    let server = Server::start();
    let client = server.connect();
    let requests = [
        ("process/start", start_params("p", &["true"])),
        ("process/read", json!({"processId": "p"})),
        ("process/write", json!({"processId": "p", "chunk": "", "writeId": "1"})),
        ("process/signal", json!({"processId": "p", "signal": "interrupt"})),
        ("process/terminate", json!({"processId": "p"})),
    ];
    for (method, params) in &requests {
        let refusal = client.refusal(method, params.clone());
        assert_eq!(refusal.0, -32600, "{method}");
        assert!(
            refusal.1.starts_with("client must call initialize before using exec methods"),
            "{refusal:?}"
        );
    }
    let (code, message) = client.refusal("initialize", json!({}));
    assert_eq!(code, BAD_PARAMS, "a failed handshake does not count");
    assert!(message.contains("missing field `clientName`"), "{message}");
    client.call("initialize", json!({"clientName": "", "resumeSessionId": null})).unwrap();
    for (method, params) in &requests {
        let refusal = client.refusal(method, params.clone());
        assert_eq!(refusal.0, -32600, "{method}");
        assert!(
            refusal.1.starts_with("client must send initialized before using exec methods"),
            "{refusal:?}"
        );
    }
    client.notify("initialized", json!({"any": "thing"}));
    client.notify("initialized", json!(null));
    client.call("process/start", start_params("p", &["true"])).unwrap();

    let refusal = client.refusal("initialize", json!({"clientName": "", "resumeSessionId": null}));
    assert_eq!(refusal.0, -32600);
    assert!(refusal.1.starts_with("initialize may only be sent once per connection"), "{refusal:?}");
}

#[test]
fn the_handshake_may_be_pipelined_and_each_request_is_checked_in_order() {
    for (transport, _server, client) in Server::on_every_transport() {
        let early = client.send("process/list", json!({}));
        let hello = client.send("initialize", json!({"clientName": "x", "resumeSessionId": null}));
        let between = client.send("process/read", json!({"processId": "p"}));
        client.notify("initialized", json!({}));
        let start = client.send("process/start", start_params("p", &["true"]));
        assert_eq!(client.outcome(&early).unwrap_err()["code"], -32600, "{transport}");
        client.outcome(&hello).unwrap();
        let error = client.outcome(&between).unwrap_err();
        assert!(error["message"].as_str().unwrap().contains("must send initialized"), "{transport} {error}");
        client.outcome(&start).unwrap();
        client.collect("p");
    }
}

#[test]
fn a_protocol_violation_closes_the_connection_but_the_session_can_be_resumed() {
    for text in [
        r#"{"method":"no/such"}"#,
        r#"{"method":"process/list","params":{}}"#,
        r#"{"method":"initialize","params":{"clientName":"x","resumeSessionId":null}}"#,
        r#"{"id":77,"result":{}}"#,
        r#"{"id":"x","error":{"code":1,"message":"no"}}"#,
    ] {
        let server = Server::start();
        let client = server.connect();
        let session = client.initialize()["sessionId"].clone();
        client.start("p", &["cat"], json!({"pipeStdin": true}));
        let replies = client.look(|seen| seen.messages.len());
        client.send_text(text);
        client.wait_end();
        assert_eq!(client.look(|seen| seen.messages.len()), replies, "no reply to {text}");

        let again = server.connect();
        assert_eq!(again.resume(session.as_str().unwrap())["resumed"], true, "{text}");
        let read = again.call("process/read", json!({"processId": "p"})).unwrap();
        assert_eq!(read["exited"], false, "{text}");
    }
}

#[test]
fn initialized_before_initialize_closes_the_connection() {
    for (_, _server, client) in Server::on_every_transport() {
        client.notify("initialized", json!({}));
        client.wait_end();
        assert_eq!(client.look(|seen| seen.messages.clone()), Vec::<Value>::new());
    }
}

#[test]
fn base64_is_parsed_strictly() {
    let server = Server::start();
    let client = server.client();
    client.start("cat", &["cat"], json!({"pipeStdin": true}));
    for chunk in ["aGk", "aGk=\n", " aGk=", "aGk==", "a", "_-8=", "aGk=aGk=", "ä", "a===", "===="] {
        let params = json!({"processId": "cat", "chunk": chunk, "writeId": chunk});
        assert_eq!(client.refusal("process/write", params).0, BAD_PARAMS, "{chunk:?}");
    }
    for (chunk, id) in [("aGk=", "1"), ("", "2"), ("/+8=", "3")] {
        let params = json!({"processId": "cat", "chunk": chunk, "writeId": id});
        assert_eq!(client.call("process/write", params).unwrap()["status"], "accepted");
    }
    client.call("process/closeStdin", json!({"processId": "cat"})).unwrap();
    assert_eq!(client.collect("cat").stdout, b"hi\xff\xef", "refused bytes never reach the child");
}

#[test]
fn invalid_parameters_are_refused_with_the_reason() {
    let server = Server::start();
    let client = server.client();
    let start = || start_params("p", &["true"]);
    for (method, params, part) in [
        ("process/start", json!({}), "missing field `processId`"),
        ("process/start", with(start(), json!({"argv": "true"})), ""),
        ("process/start", with(start(), json!({"argv": []})), "argv must not be empty"),
        ("process/start", with(start(), json!({"argv": [1]})), ""),
        ("process/start", with(start(), json!({"tty": null})), ""),
        ("process/start", with(start(), json!({"pipeStdin": null})), ""),
        ("process/start", with(start(), json!({"env": {"A": 1}})), ""),
        ("process/start", with(start(), json!({"env": null})), ""),
        ("process/start", with(start(), json!({"envPolicy": {"inherit": "all"}})), "missing field"),
        ("process/start", with(start(), json!({"cwd": "relative"})), "relative"),
        ("process/start", with(start(), json!({"cwd": "http://x/"})), "unsupported path URI scheme `http`"),
        (
            "process/start",
            with(start(), json!({"cwd": "file:///?q"})),
            "query parameters are not allowed in path URIs",
        ),
        (
            "process/start",
            with(start(), json!({"cwd": "file:///#f"})),
            "fragments are not allowed in path URIs",
        ),
        ("process/start", with(start(), json!({"cwd": "file:///%00"})), ""),
        (
            "process/start",
            with(start(), json!({"cwd": "file://server/x"})),
            "is not valid on this exec-server host",
        ),
        ("process/start", with(start(), json!({"rows": 65536, "cols": 80, "tty": true})), ""),
        ("process/read", json!({"processId": 5}), ""),
        ("process/read", json!({"processId": "p", "afterSeq": -1}), ""),
        ("process/read", json!({"processId": "p", "waitMs": 0.5}), ""),
        ("process/read", json!({"processId": "p", "maxBytes": "1"}), ""),
        ("process/write", json!({"processId": "p", "chunk": "", "writeId": ""}), "writeId must not be empty"),
        ("process/write", json!({"processId": "p", "writeId": "1"}), "missing field `chunk`"),
        ("process/signal", json!({"processId": "p", "signal": "NOPE"}), "NOPE"),
        ("process/signal", json!({"processId": "p"}), "missing field `signal`"),
        ("process/resize", json!({"processId": "p", "rows": 65536, "cols": 1}), ""),
        ("process/resize", json!({"processId": "p", "rows": -1, "cols": 1}), ""),
        ("process/terminate", json!({"processId": "p", "mode": "gently"}), ""),
        ("process/list", json!([]), ""),
        ("session/end", json!({}), "missing field `sessionId`"),
    ] {
        let (code, message) = client.refusal(method, params.clone());
        assert_eq!(code, BAD_PARAMS, "{method} {params}: {message}");
        assert!(message.contains(part), "{method} {params}: {message}");
    }
    assert_eq!(client.call("process/list", json!({})).unwrap()["processes"], json!([]));

    client.start("p", &["cat"], json!({"pipeStdin": true}));
    let unfinished = json!({"processId": "p", "until": {"output": {"regex": "("}}});
    assert_eq!(client.refusal("process/wait", unfinished).0, BAD_PARAMS);
    let on_pipes = json!({"processId": "p", "rows": 1, "cols": 1});
    client.call("process/resize", on_pipes).expect_err("only a terminal has a size");
}

#[test]
fn an_error_has_a_stable_code_for_programs() {
    let server = Server::start();
    let client = server.client();
    for method in ["process/read", "process/wait", "process/snapshot", "process/closeStdin"] {
        let error = client.call(method, json!({"processId": "nobody"})).unwrap_err();
        assert_eq!(error["code"], -32600, "{method}");
        assert_eq!(error["data"]["kind"], "unknownProcess", "{method} {error}");
        assert!(
            error["message"].as_str().unwrap().starts_with("unknown process id nobody"),
            "{method} {error}"
        );
    }
}
