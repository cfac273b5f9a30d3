//! HTTP requests that the server makes for its client, answered in one piece.

mod proxies;

use std::{
    io::{BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::Stdio,
    sync::{Arc, mpsc::channel},
    thread,
};

use serde_json::{Value, json};

use crate::support::{
    Client, PATIENCE, Server, Web, WebRequest, decode, encode, program, read_web_request, web_answer, with,
};

/// The variables that configure proxies and certificates.
const SURROUNDINGS: [&str; 10] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Starts a server with these variables, and without others that configure proxies and certificates.
fn server(env: &[(&str, &str)]) -> Server {
    let mut command = program(&["serve"]);
    for name in SURROUNDINGS {
        command.env_remove(name);
    }
    command.envs(env.iter().copied()).stdin(Stdio::null());
    Server::launch(command, 1)
}

fn params(url: &str, more: Value) -> Value {
    with(json!({"method": "GET", "url": url, "requestId": "r", "headers": []}), more)
}

/// Makes a request and expects an answer.
fn fetch(client: &Client, url: &str, more: Value) -> Value {
    client.call("http/request", params(url, more)).expect("the request is answered")
}

/// Makes a request that fails, and returns code and message.
fn failure(client: &Client, url: &str, more: Value) -> (i64, String) {
    client.refusal("http/request", params(url, more))
}

fn header(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Answers `/CODE?to=LOCATION` with that redirect, and everything else with `ok`.
fn redirecting(request: &WebRequest, stream: &mut TcpStream) {
    let answer = match request.target().split_once("?to=") {
        Some((code, location)) => {
            let code = code[1..].parse().expect("the path is a status");
            web_answer(code, &[&format!("location: {location}")], "elsewhere")
        }
        None => web_answer(200, &[], "ok"),
    };
    let _ = stream.write_all(&answer);
}

#[test]
fn a_request_is_sent_verbatim() {
    let (server, web) = (server(&[]), Web::answering(web_answer(200, &[], "ok")));
    let client = server.client();
    let host = web.address().to_string();

    fetch(&client, &web.url("/a%20b?x=1&y#fragment"), json!({}));
    let plain = WebRequest {
        line: "GET /a%20b?x=1&y HTTP/1.1".to_owned(),
        headers: pairs(&[("accept", "*/*"), ("host", &host)]),
        body: Vec::new(),
    };
    assert_eq!(web.next(), plain, "nothing else is added, above all no accept-encoding");

    let headers =
        [("B", "1"), ("b", "2"), ("A", "é"), ("Accept", "x/y"), ("User-Agent", "me"), ("Empty", "")];
    let headers: Vec<Value> = headers.iter().map(|(name, value)| header(name, value)).collect();
    let more = json!({"method": "frob", "headers": headers, "bodyBase64": encode(b"\0body\xff")});
    fetch(&client, &web.url("/"), more);
    let sent = pairs(&[
        ("b", "1"),
        ("b", "2"),
        ("a", "é"),
        ("accept", "x/y"),
        ("user-agent", "me"),
        ("empty", ""),
        ("host", &host),
        ("content-length", "6"),
    ]);
    let given =
        WebRequest { line: "frob / HTTP/1.1".to_owned(), headers: sent, body: b"\0body\xff".to_vec() };
    assert_eq!(web.next(), given);

    let port = web.address().port();
    fetch(&client, &format!("http://localhost:{port}/named"), json!({}));
    assert_eq!(web.next().target(), "/named", "names are looked up");
}

#[test]
fn a_request_without_its_usual_body_sends_a_zero_content_length() {
    let (server, web) = (server(&[]), Web::answering(web_answer(200, &[], "ok")));
    let client = server.client();
    for (method, body, length) in [
        ("POST", Value::Null, Some("0")),
        ("POST", json!(""), Some("0")),
        ("PUT", Value::Null, Some("0")),
        ("PATCH", Value::Null, Some("0")),
        ("POST", json!(encode("four")), Some("4")),
        ("GET", Value::Null, None),
        ("DELETE", Value::Null, None),
    ] {
        fetch(&client, &web.url("/"), json!({"method": method, "bodyBase64": body}));
        assert_eq!(web.next().header("content-length"), length, "{method} {body}");
    }
}

#[test]
fn a_response_is_passed_on_verbatim() {
    let headers = b"HTTP/1.1 418 Teapot\r\nX-A: 1\r\nX-a: 2\r\nContent-Encoding: gzip\r\nTab: a\tb\r\nBinary: a\xffb\r\nEmpty:\r\nContent-Length: 4\r\n\r\n\x1f\x8b\0\xff";
    let (server, web) = (server(&[]), Web::answering(headers.as_slice()));
    let answer = fetch(&server.client(), &web.url("/"), json!({}));
    let headers = [
        header("x-a", "1"),
        header("x-a", "2"),
        header("content-encoding", "gzip"),
        header("tab", "a\tb"),
        header("empty", ""),
        header("content-length", "4"),
    ];
    assert_eq!(answer, json!({"status": 418, "headers": headers, "bodyBase64": encode(b"\x1f\x8b\0\xff")}));
}

#[test]
fn every_status_is_a_response() {
    let (server, web) = (server(&[]), Web::start(redirecting));
    let client = server.client();
    for status in [200, 201, 300, 304, 305, 400, 401, 404, 500, 503] {
        assert_eq!(fetch(&client, &web.url(&format!("/{status}?to=/x")), json!({}))["status"], status);
    }
    let head = fetch(&client, &web.url("/"), json!({"method": "HEAD"}));
    assert_eq!((&head["status"], &head["bodyBase64"]), (&json!(200), &json!("")));
}

#[test]
fn invalid_requests_are_refused_before_anything_is_sent() {
    let (server, web) = (server(&[]), Web::answering(web_answer(200, &[], "")));
    let client = server.client();
    let own = web.url("/");
    let bad_header = |name: &str, value: &str| json!({"headers": [header(name, value)]});
    let dots = format!("http://localhost/{}", "../".repeat(1 << 16));
    let long = web.url(&format!("/{}", "x".repeat(64 << 10)));
    let too_many: Vec<Value> = (0..=10_000).map(|number| header(&format!("x-{number}"), "")).collect();
    let refusals = [
        (own.as_str(), json!({"method": "a b"}), "http/request method is invalid: invalid HTTP method"),
        (&own, json!({"method": ""}), "http/request method is invalid: invalid HTTP method"),
        (
            &own,
            json!({"method": "CONNECT"}),
            "http/request method is invalid: CONNECT opens a tunnel, which is not supported",
        ),
        (&own, json!({"headers": too_many}), "http/request has 10001 headers; at most 10000 can be sent"),
        ("/x", json!({}), "http/request url is invalid: relative URL without a base"),
        (&long, json!({}), "http/request url is invalid: it does not fit into a request of 65534 bytes"),
        // Short once it is parsed, which would take long.
        (&dots, json!({}), "http/request url is invalid: it does not fit into a request of 65534 bytes"),
        ("http:///", json!({}), "http/request url is invalid: empty host"),
        ("ftp://x/", json!({}), "http/request only supports http and https URLs, got ftp"),
        ("file:///etc/passwd", json!({}), "http/request only supports http and https URLs, got file"),
        (&own, bad_header("a b", "1"), "http/request header name is invalid: invalid HTTP header name"),
        (&own, bad_header("", "1"), "http/request header name is invalid: invalid HTTP header name"),
        (
            &own,
            bad_header("X-A", "a\nb"),
            "http/request header value is invalid for X-A: failed to parse header value",
        ),
        (
            &own,
            bad_header("content-length", "5"),
            "http/request header value is invalid for content-length: the body has 0 bytes",
        ),
    ];
    for (url, more, message) in refusals {
        for stream in [false, true] {
            let more = with(more.clone(), json!({"streamResponse": stream}));
            assert_eq!(failure(&client, url, more), (-32602, message.to_owned()));
        }
    }
    assert_eq!(web.next_if_any(), None);

    let early = server.connect();
    let too_early = "client must call initialize before using http methods".to_owned();
    assert_eq!(failure(&early, &own, json!({})), (-32600, too_early));
}

#[test]
fn only_permitted_server_variables_can_become_header_values() {
    let (server, web) = (
        server(&[("TOKEN", "s3cret"), ("EMPTY", ""), ("BAD", "a\nb"), ("OPENAI_API_KEY", "k")]),
        Web::answering(web_answer(200, &[], "")),
    );
    let client = server.client();
    let from = |variable: &str| {
        let header = json!({"name": "X-Auth", "value": "Bearer ", "valueEnvVar": variable});
        json!({"headers": [header]})
    };
    fetch(&client, &web.url("/"), from("TOKEN"));
    assert_eq!(web.next().header("x-auth"), Some("Bearer s3cret"));

    let requires = |what: &str| format!("http/request header X-Auth requires {what}");
    for missing in ["MISSING", "", "token", "A=B"] {
        let message = requires(&format!("executor environment variable {missing}"));
        assert_eq!(failure(&client, &web.url("/"), from(missing)), (-32602, message));
    }
    let message = requires("a non-empty executor environment variable EMPTY");
    assert_eq!(failure(&client, &web.url("/"), from("EMPTY")), (-32602, message));
    let (code, message) = failure(&client, &web.url("/"), from("BAD"));
    assert_eq!(code, -32602);
    assert_eq!(message, "http/request header value is invalid for X-Auth: failed to parse header value");

    let withheld = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN OPENAI_FEDERATION_RULE_ID OPENAI_IDENTITY_TOKEN_FILE \
        OPENAI_WORKLOAD_IDENTITY_CONTEXT OPENAI_API_KEY CODEX_API_KEY CODEX_ACCESS_TOKEN CODEX_CONNECTORS_TOKEN \
        AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_FEDERATED_TOKEN_FILE \
        GOOGLE_APPLICATION_CREDENTIALS openai_api_key Aws_Session_Token";
    for variable in withheld.split_whitespace() {
        let message =
            format!("http/request header X-Auth cannot use executor environment variable {variable}");
        assert_eq!(failure(&client, &web.url("/"), from(variable)), (-32602, message));
    }
    assert_eq!(web.next_if_any(), None);
}

#[test]
fn redirects_change_the_method_as_browsers_do() {
    let (server, web) = (server(&[]), Web::start(redirecting));
    let client = server.client();
    let cases = [
        ("POST", 301, "GET"),
        ("POST", 302, "GET"),
        ("POST", 303, "GET"),
        ("POST", 307, "POST"),
        ("POST", 308, "POST"),
        ("PUT", 302, "PUT"),
        ("PUT", 303, "GET"),
        ("DELETE", 301, "DELETE"),
        ("GET", 302, "GET"),
    ];
    for (method, status, then) in cases {
        let body = if method == "GET" { Value::Null } else { json!(encode("body")) };
        let headers = [header("content-type", "text/plain"), header("x-kept", "1")];
        let more = json!({"method": method, "bodyBase64": body, "headers": headers});
        let first = web.url(&format!("/{status}?to=/end?q=1"));
        let answer = fetch(&client, &first, more);
        assert_eq!(decode(&answer["bodyBase64"]), b"ok");
        let (sent, followed) = (web.next(), web.next());
        assert_eq!(sent.header("referer"), None);
        assert_eq!((followed.method(), followed.target()), (then, "/end?q=1"), "{method} {status}");
        assert_eq!(followed.header("referer"), Some(first.as_str()));
        assert_eq!(followed.header("x-kept"), Some("1"));
        let keeps = method == then && method != "GET";
        assert_eq!(followed.body, if keeps { sent.body } else { Vec::new() }, "{method} {status}");
        let keeps_type = method == then;
        assert_eq!(followed.header("content-type").is_some(), keeps_type, "{method} {status}");
    }
}

#[test]
fn ten_redirects_are_followed_and_no_more() {
    let web = Web::start(|request, stream| {
        let left: u32 = request.target()[1..].parse().expect("the path is a number");
        let answer = match left {
            0 => web_answer(200, &[], "arrived"),
            left => web_answer(302, &[&format!("location: {}", left - 1)], ""),
        };
        stream.write_all(&answer).expect("the server reads");
    });
    let server = server(&[]);
    let client = server.client();
    assert_eq!(decode(&fetch(&client, &web.url("/10"), json!({}))["bodyBase64"]), b"arrived");
    let too_many = (-32603, "http/request failed: too many redirects".to_owned());
    assert_eq!(failure(&client, &web.url("/11"), json!({})), too_many);
}

#[test]
fn a_redirect_can_be_returned_instead_of_followed() {
    let (server, web) = (server(&[]), Web::start(redirecting));
    let client = server.client();
    let stopped = fetch(&client, &web.url("/302?to=/end"), json!({"redirectPolicy": "stop"}));
    assert_eq!(stopped["status"], 302);
    assert_eq!(stopped["headers"][0], header("location", "/end"));
    assert_eq!(decode(&stopped["bodyBase64"]), b"elsewhere");
    let unusable = fetch(&client, &web.url("/302?to=http://[x"), json!({}));
    assert_eq!(unusable["status"], 302, "a location that is none leads nowhere");
    let nowhere = Web::answering(web_answer(302, &[], ""));
    assert_eq!(fetch(&client, &nowhere.url("/"), json!({}))["status"], 302);
    let message = "http/request failed: redirect target uses unsupported URL scheme: file".to_owned();
    assert_eq!(failure(&client, &web.url("/302?to=file:///etc/passwd"), json!({})), (-32603, message));
}

#[test]
fn secrets_are_not_sent_to_other_hosts() {
    let server = server(&[("TOKEN", "s3cret")]);
    let (own, foreign) = (Web::start(redirecting), Web::start(redirecting));
    let client = server.client();
    let headers = json!([
        header("Authorization", "Bearer mine"),
        header("Cookie", "a=b"),
        header("Proxy-Authorization", "Basic x"),
        {"name": "X-Api-Key", "value": "", "valueEnvVar": "TOKEN"},
        header("X-Other", "1"),
    ]);
    let secrets = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
    let has = |request: &WebRequest| secrets.map(|name| request.header(name).is_some());

    fetch(&client, &own.url("/307?to=/end"), json!({"headers": headers}));
    assert_eq!([has(&own.next()), has(&own.next())], [[true; 4]; 2], "the same origin keeps them");

    // There, and back again: what is lost stays lost.
    let there = foreign.url(&format!("/302?to={}", own.url("/back")));
    fetch(&client, &own.url(&format!("/307?to={there}")), json!({"headers": headers}));
    assert_eq!(has(&own.next()), [true; 4]);
    let elsewhere = foreign.next();
    assert_eq!(has(&elsewhere), [false; 4], "{elsewhere:?}");
    assert_eq!(elsewhere.header("x-other"), Some("1"));
    assert_eq!(elsewhere.header("referer"), Some(own.url("/").as_str()), "others learn the origin only");
    assert_eq!(has(&own.next()), [false; 4]);
}

#[test]
fn credentials_in_a_url_become_a_header_for_that_host_only() {
    let (server, web) = (server(&[]), Web::start(redirecting));
    let client = server.client();
    let with_credentials = web.url("/302?to=/end").replace("http://", "http://user:pass%20word@");
    fetch(&client, &with_credentials, json!({}));
    let (sent, followed) = (web.next(), web.next());
    assert_eq!(sent.header("authorization"), Some(format!("Basic {}", encode("user:pass word")).as_str()));
    assert_eq!(sent.header("host"), Some(web.address().to_string().as_str()));
    assert_eq!(followed.header("referer"), Some(web.url("/302?to=/end").as_str()));

    let other = Web::answering(web_answer(200, &[], ""));
    let target = other.url("/").replace("http://", "http://a:b@");
    fetch(&client, &web.url(&format!("/302?to={target}")), json!({}));
    assert_eq!(
        other.next().header("authorization"),
        None,
        "a redirect does not change the credentials we send"
    );
}

#[test]
fn an_exchange_times_out() {
    let web = Web::start(|request, stream| match request.target() {
        "/body" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegin").expect("it is read");
        }
        _ => assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "nothing but the end comes"),
    });
    let server = server(&[]);
    let client = server.client();
    let late = |prefix: &str, ms: u64| (-32603, format!("{prefix}: timed out after {ms} ms"));
    assert_eq!(failure(&client, &web.url("/"), json!({"timeoutMs": 0})), late("http/request failed", 0));
    assert_eq!(web.next_if_any(), None, "nothing is sent when there is no time");
    assert_eq!(failure(&client, &web.url("/"), json!({"timeoutMs": 50})), late("http/request failed", 50));
    let in_body = late("failed to read http/request response body", 1000);
    assert_eq!(failure(&client, &web.url("/body"), json!({"timeoutMs": 1000})), in_body);
    let (_, message) = failure(&client, &web.url("/"), json!({"timeoutMs": 1, "streamResponse": true}));
    assert!(message.starts_with("http/request failed: timed out"), "{message}");
}

#[test]
fn failures_state_their_cause() {
    let free = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let nobody = format!("http://{}/", free.local_addr().expect("a listener has an address"));
    drop(free);
    let server = server(&[]);
    let client = server.client();
    let (code, message) = failure(&client, &nobody, json!({}));
    assert_eq!(code, -32603);
    assert!(message.starts_with("http/request failed: "), "{message}");
    assert!(message.ends_with("Connection refused (os error 111)"), "{message}");

    let scripted = |bytes: &'static [u8]| {
        Web::start(move |_, stream| {
            stream.write_all(bytes).expect("the server reads");
            stream.shutdown(Shutdown::Both).expect("a socket can be closed");
        })
    };
    let (code, message) = failure(&client, &scripted(b"what is this\r\n\r\n").url("/"), json!({}));
    assert_eq!((code, message.starts_with("http/request failed: ")), (-32603, true), "{message}");
    let cut = scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegin");
    let (code, message) = failure(&client, &cut.url("/?secret"), json!({}));
    assert_eq!((code, message.starts_with("failed to read http/request response body: ")), (-32603, true));
    assert!(!message.contains("secret"), "{message}");
    let lengthy: String = (0..101).map(|number| format!("x-{number}: y\r\n")).collect();
    let lengthy = Web::answering(format!("HTTP/1.1 200 OK\r\n{lengthy}\r\n"));
    let error =
        client.call("http/request", params(&lengthy.url("/"), json!({}))).expect_err("it is too long");
    assert_eq!(error["code"], -32603);
    let hint = error["data"]["hint"].as_str().expect("the error has a hint");
    assert!(hint.ends_with("; a response may have up to 100 header fields"), "{error}");
}

#[test]
fn a_body_too_large_for_a_message_is_refused_with_a_hint() {
    const MIB: usize = 1 << 20;
    let web = Web::start(|request, stream| {
        let len: usize = request.target()[1..].parse().unwrap_or(40 * MIB);
        let head = match request.target() {
            "/endless" => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
            _ => format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n"),
        };
        let _ = stream.write_all(head.as_bytes());
        let block = vec![b'x'; MIB];
        for _ in 0..len / MIB {
            if stream.write_all(&block).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    });
    let server = server(&[]);
    let client = server.client();
    let bodies: Vec<Value> = (0..6)
        .map(|_| client.send("http/request", params(&web.url(&format!("/{}", 32 * MIB)), json!({}))))
        .collect();
    for id in bodies {
        let answer = client.outcome(&id).expect("32 MiB fit, also several at once");
        assert_eq!(answer["bodyBase64"].as_str().map(str::len), Some((32 * MIB).div_ceil(3) * 4));
    }
    let message = "failed to read http/request response body: it is longer than 33554432 bytes";
    for path in ["/33554433", "/endless"] {
        let error =
            client.call("http/request", params(&web.url(path), json!({}))).expect_err("it is too long");
        let data = json!({"kind": "limitExceeded", "hint": "ask for it with `streamResponse: true`"});
        assert_eq!(error, json!({"code": -32603, "message": message, "data": data}));
    }
}

#[test]
fn a_request_ends_when_its_client_cancels_it_or_goes_away() {
    let (ended, ends) = channel();
    let web = Web::start(move |_, stream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        ended.send(rest.len()).expect("the test waits");
    });
    let server = server(&[]);
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let id = client.send("http/request", params(&web.url("/"), json!({})));
    web.next();
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(client.outcome(&id).expect_err("it was cancelled")["data"]["kind"], "cancelled");
    assert_eq!(ends.recv_timeout(PATIENCE), Ok(0));

    client.send("http/request", params(&web.url("/"), json!({})));
    web.next();
    client.cut();
    assert_eq!(ends.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn hundreds_of_waiting_requests_do_not_block_others() {
    let (go, gone) = channel::<()>();
    let gone = Arc::new(std::sync::Mutex::new(gone));
    let web = Web::start(move |_, stream| {
        let gone = gone.lock().expect("nobody panics");
        let _ = gone.recv_timeout(PATIENCE);
        let _ = stream.write_all(&web_answer(200, &[], "ok"));
    });
    let server = server(&[]);
    let client = server.client();
    let ids: Vec<Value> =
        (0..300).map(|_| client.send("http/request", params(&web.url("/"), json!({})))).collect();
    (0..128).for_each(|_| drop(web.next()));
    client.shell("p", "echo hi");
    assert_eq!(client.collect("p").text(), "hi\n");
    assert_eq!(web.next_if_any(), None, "128 run at once");
    drop(go);
    for id in ids {
        assert_eq!(client.outcome(&id).expect("every request is answered")["status"], 200);
    }
}
