//! HTTP through the client library, on the real program.

use std::{
    io::{ErrorKind as Io, Read as _, Write as _},
    net::TcpStream,
    process::Stdio,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use remex_client::{Client, Error, ErrorKind, Target, http::Redirects};
use tokio::{io::AsyncReadExt as _, time::timeout};

use crate::support::{self, DisconnectingProxy, PATIENCE, Server, Web, web_answer};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// As much as the web server has sent when everything on the way is full: 16 parts of 64 KiB, and what the kernel
/// and the program keep for the connection to the web server.
const ALL_FULL: usize = 16 << 20;

async fn connect(address: &str) -> Client {
    Client::connect(Target::parse(address).unwrap()).await.unwrap()
}

/// Starts one server for each kind of socket.
fn servers() -> [Server; 2] {
    [Server::start(), Server::unix(&[])]
}

/// Returns byte `at` of every body here, so that a part in the wrong place shows.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).to_le_bytes()[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_arrives_complete() {
    for server in servers() {
        let web = Web::start(|request, stream| {
            let answer = match request.target() {
                "/moved" => web_answer(302, &["location: /there"], ""),
                _ => web_answer(201, &["X-Seen: yes"], [b"got ", &request.body[..]].concat()),
            };
            stream.write_all(&answer).unwrap();
        });
        let http = connect(server.address()).await.http();
        let request = http.request("PUT", web.url("/thing")).header("x-own", "1").body("a body");
        let response = request.timeout(PATIENCE).send().await.unwrap();
        assert_eq!((response.status, response.header("x-seen")), (201, Some("yes")));
        assert_eq!(&response.body[..], b"got a body");
        let seen = web.next();
        assert_eq!((seen.method(), seen.header("x-own")), ("PUT", Some("1")));

        let followed = http.get(web.url("/moved")).send().await.unwrap();
        assert_eq!(followed.status, 201);
        let stopped = http.get(web.url("/moved")).redirects(Redirects::Stop).send().await.unwrap();
        assert_eq!((stopped.status, stopped.header("location")), (302, Some("/there")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_host_becomes_a_header_without_reaching_the_client() {
    let mut command = support::program(&["serve"]);
    command.env("GREETING_TOKEN", "s3cret").stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let web = Web::answering(web_answer(200, &[], ""));
    let http = connect(server.address()).await.http();
    let request = http.get(web.url("/")).header_from_env("authorization", "Bearer ", "GREETING_TOKEN");
    request.clone().send().await.unwrap();
    assert_eq!(web.next().header("authorization"), Some("Bearer s3cret"));
    // A request can be sent again.
    request.stream().await.unwrap();
    assert_eq!(web.next().header("authorization"), Some("Bearer s3cret"));
    let refused =
        http.get(web.url("/")).header_from_env("a", "", "NO_SUCH_VARIABLE").send().await.unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::InvalidParams));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_exchange_states_the_cause() {
    let server = Server::unix(&[]);
    let http = connect(server.address()).await.http();
    // It is bound and closed, so that nothing listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for failed in [
        http.get(format!("http://{free}/")).send().await.map(drop),
        http.get(format!("http://{free}/")).stream().await.map(drop),
    ] {
        assert_eq!(failed.unwrap_err().kind(), Some(ErrorKind::HttpFailed));
    }
    let web = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nfew").unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let mut response = http.get(web.url("/")).stream().await.unwrap();
    assert_eq!(response.body.chunk().await.unwrap().as_deref(), Some(&b"few"[..]));
    for _ in 0..2 {
        let cut_short = response.body.chunk().await.unwrap_err();
        assert_eq!(cut_short.kind(), Some(ErrorKind::HttpFailed), "{cut_short}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_streamed_byte_exactly() {
    const LEN: usize = 30 << 20;
    let content: Arc<[u8]> = (0..LEN).map(byte).collect();
    for server in servers() {
        let sent = Arc::clone(&content);
        let web = Web::start(move |_, stream| {
            stream.write_all(HEAD).unwrap();
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let http = connect(server.address()).await.http();
        let mut response = http.get(web.url("/")).stream().await.unwrap();
        assert_eq!((response.status, response.header("content-type")), (200, Some("text/event-stream")));
        let mut body = Vec::new();
        response.body.read_to_end(&mut body).await.unwrap();
        assert!(body == *content);
    }
}

/// A web server that sends without end, and tells how much it could send before nobody took more.
fn endless() -> (Web, Receiver<usize>, Receiver<()>) {
    let (stuck, stuck_at) = channel();
    let (gone, is_gone) = channel();
    let web = Web::start(move |_, stream| {
        stream.write_all(HEAD).unwrap();
        send_without_end(stream, &stuck);
        let _ = gone.send(());
    });
    (web, stuck_at, is_gone)
}

fn send_without_end(stream: &mut TcpStream, stuck: &Sender<usize>) {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    loop {
        let block: Vec<u8> = (sent..sent + (64 << 10)).map(byte).collect();
        match stream.write(&block) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == Io::WouldBlock => drop(stuck.send(sent)),
            Err(_) => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_reader_delays_only_its_own_body() {
    for server in servers() {
        let (web, stuck_at, _gone) = endless();
        let client = connect(server.address()).await;
        let mut response = client.http().get(web.url("/")).stream().await.unwrap();
        let sent = stuck_at.recv_timeout(PATIENCE).unwrap();
        assert!(sent < ALL_FULL, "{sent} bytes were sent to a reader that reads nothing");
        // Everything else continues, including other bodies.
        let other = Web::answering(web_answer(200, &[], vec![b'x'; 4 << 20]));
        let mut neighbour = client.http().get(other.url("/")).stream().await.unwrap();
        let mut body = Vec::new();
        neighbour.body.read_to_end(&mut body).await.unwrap();
        assert_eq!(body.len(), 4 << 20);
        // And so does the body, when it is read.
        let mut body = vec![0; sent + ALL_FULL];
        response.body.read_exact(&mut body).await.unwrap();
        assert!(body.iter().enumerate().all(|(at, seen)| *seen == byte(at)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_body_ends_the_exchange() {
    for server in servers() {
        let (web, stuck_at, gone) = endless();
        let client = connect(server.address()).await;
        let response = client.http().get(web.url("/")).stream().await.unwrap();
        stuck_at.recv_timeout(PATIENCE).unwrap();
        drop(response);
        gone.recv_timeout(PATIENCE).expect("the web server is left");
        assert!(client.fs().exists("/").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_request_before_its_response_cancels_it() {
    let (gone, is_gone) = channel();
    let web = Web::start(move |_, stream| {
        // It has nothing to say, and hears when its client is gone.
        let _ = stream.read(&mut [0]);
        let _ = gone.send(());
    });
    let server = Server::unix(&[]);
    let http = connect(server.address()).await.http();
    let asking = http.get(web.url("/")).stream();
    tokio::select! {
        answer = asking => panic!("nobody answers: {answer:?}"),
        request = tokio::task::spawn_blocking(move || (web.next(), web)) => drop(request.unwrap()),
    }
    is_gone.recv_timeout(PATIENCE).expect("the web server is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_ends_only_the_body() {
    for server in servers() {
        let proxy = DisconnectingProxy::start(server.address(), &[]);
        let (web, _stuck, gone) = endless();
        let client = connect(proxy.address()).await;
        let mut response = client.http().get(web.url("/")).stream().await.unwrap();
        response.body.chunk().await.unwrap();
        proxy.cut();
        let ended = timeout(PATIENCE, async {
            loop {
                if let Err(error) = response.body.chunk().await {
                    return error;
                }
            }
        });
        assert_eq!(ended.await.unwrap(), Error::Interrupted { method: "http/request" });
        gone.recv_timeout(PATIENCE).expect("the web server is left");
        let web = Web::answering(web_answer(200, &[], "again"));
        assert_eq!(&client.http().get(web.url("/")).send().await.unwrap().body[..], b"again");
    }
}
