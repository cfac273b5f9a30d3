//! HTTP requests on connections that the web server has closed: repeated where that is safe, and never done twice where
//! it is not.

use std::{
    collections::HashSet,
    io::Write as _,
    net::{Shutdown, TcpStream},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::{fs::fstat, net::sockopt::set_socket_linger};
use serde_json::{Value, json};

use crate::support::{Client, Server, Web, WebRequest, decode, encode, web_answer, with};

/// How a web server gets rid of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// Right behind the answer, without having said so.
    AtOnce,
    /// A moment after the answer.
    Later,
    /// As it has said in the answer.
    Announced,
    /// By a reset right behind the answer.
    Reset,
    /// Instead of the second answer, as if the next request had crossed the end on its way.
    InsteadOfAnAnswer,
    /// The same with a reset.
    ResetInsteadOfAnAnswer,
}

impl Closing {
    const ALL: [Self; 6] = [
        Self::AtOnce,
        Self::Later,
        Self::Announced,
        Self::Reset,
        Self::InsteadOfAnAnswer,
        Self::ResetInsteadOfAnAnswer,
    ];
}

/// Starts a web server that redirects `/CODE` to `/end`, answers everything else with `ok`, and closes connections.
fn web(closing: Closing) -> Web {
    // Sockets by their inodes: the port of a connection that was reset may be that of the next one.
    let used: Mutex<HashSet<u64>> = Mutex::default();
    Web::start(move |request, stream| {
        // What arrives behind the end of a connection is read, and not answered.
        if stream.peer_addr().is_err() {
            return;
        }
        let socket = fstat(&*stream).expect("it is open").st_ino;
        let is_first = used.lock().unwrap_or_else(PoisonError::into_inner).insert(socket);
        match closing {
            Closing::InsteadOfAnAnswer if !is_first => return hang_up(stream),
            Closing::ResetInsteadOfAnAnswer if !is_first => return reset(stream),
            _ => {}
        }
        let _ = stream.write_all(&answer(request, closing));
        match closing {
            Closing::AtOnce | Closing::Announced => hang_up(stream),
            Closing::Later => {
                thread::sleep(Duration::from_millis(1));
                hang_up(stream);
            }
            Closing::Reset => reset(stream),
            Closing::InsteadOfAnAnswer | Closing::ResetInsteadOfAnAnswer => {}
        }
    })
}

fn answer(request: &WebRequest, closing: Closing) -> Vec<u8> {
    let connection =
        if closing == Closing::Announced { "connection: close" } else { "connection: keep-alive" };
    match request.target()[1..].parse() {
        Ok(code) => web_answer(code, &["location: /end", connection], ""),
        Err(_) => web_answer(200, &[connection], "ok"),
    }
}

fn hang_up(stream: &TcpStream) {
    // Fails when the other side was faster.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Lets the connection end with a reset as soon as the web server drops it.
fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).expect("a socket need not linger");
    let _ = stream.shutdown(Shutdown::Read);
}

fn params(url: &str, more: Value) -> Value {
    with(json!({"method": "GET", "url": url, "requestId": "r"}), more)
}

fn fetch(client: &Client, url: &str, more: Value) -> String {
    let answer = client.call("http/request", params(url, more)).expect("the request is answered");
    String::from_utf8(decode(&answer["bodyBase64"])).expect("the answer is text")
}

/// Returns the requests that have come, in order.
fn seen(web: &Web) -> Vec<String> {
    std::iter::from_fn(|| web.next_if_any())
        .map(|request| format!("{} {}", request.method(), request.target()))
        .collect()
}

#[test]
fn redirects_survive_connections_closed_by_the_web_server() {
    let server = Server::start();
    let client = server.client();
    for closing in Closing::ALL {
        let web = web(closing);
        for round in 0..20 {
            for method in ["GET", "HEAD", "PUT", "DELETE"] {
                let more = json!({"method": method});
                let expected = if method == "HEAD" { "" } else { "ok" };
                assert_eq!(fetch(&client, &web.url("/307"), more), expected, "{closing:?} {method} {round}");
            }
        }
    }
}

#[test]
fn a_streamed_request_is_retried_like_any_other() {
    let server = Server::start();
    let client = server.client();
    for closing in Closing::ALL {
        let web = web(closing);
        for round in 0..20 {
            let id = format!("{closing:?} {round}");
            let more = json!({"requestId": id, "streamResponse": true});
            let answer = client.call("http/request", params(&web.url("/302"), more));
            assert_eq!(answer.expect("the stream is answered")["status"], 200, "{id}");
            let last = client.wait(&format!("the last frame of `{id}`"), |seen| {
                let mut frames =
                    seen.notifications().filter(|note| note["params"]["requestId"] == id.as_str());
                frames.find(|frame| frame["params"]["done"] == true).cloned()
            });
            assert_eq!(last["params"]["error"], Value::Null, "{id}");
        }
    }
}

#[test]
fn a_redirected_post_is_sent_once_even_if_the_web_server_closes_connections() {
    let server = Server::start();
    let client = server.client();
    for closing in Closing::ALL {
        for round in 0..20 {
            // A web server of its own, so that the first request has a new connection.
            let web = web(closing);
            let more = json!({"method": "POST", "bodyBase64": encode("once")});
            assert_eq!(fetch(&client, &web.url("/307"), more), "ok", "{closing:?} {round}");
            assert_eq!(seen(&web), ["POST /307", "POST /end"], "{closing:?} {round}");
        }
    }
}

#[test]
fn a_post_that_may_have_taken_effect_is_not_retried_and_the_error_says_so() {
    let server = Server::start();
    let client = server.client();
    for closing in [Closing::InsteadOfAnAnswer, Closing::ResetInsteadOfAnAnswer] {
        let web = web(closing);
        assert_eq!(fetch(&client, &web.url("/first"), json!({})), "ok");
        let more = json!({"method": "POST", "bodyBase64": encode("once")});
        let error =
            client.call("http/request", params(&web.url("/second"), more)).expect_err("no answer came");
        assert_eq!(error["data"]["kind"], "httpFailed", "{error}");
        let hint = error["data"]["hint"].as_str().expect("the error says what to do");
        assert!(hint.contains("may have been carried out"), "{hint}");
        assert_eq!(seen(&web), ["GET /first", "POST /second"], "{closing:?}");
    }
}

#[test]
fn an_unresponsive_web_server_is_tried_twice_at_most() {
    let server = Server::start();
    let client = server.client();
    let web = Web::start(|_, stream| hang_up(stream));
    client.refusal("http/request", params(&web.url("/"), json!({})));
    assert_eq!(seen(&web), ["GET /", "GET /"]);
}
