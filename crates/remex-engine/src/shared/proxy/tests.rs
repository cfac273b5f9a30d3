mod lookups;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use remex_proto::process::DeniedHost;
use remex_sandbox::HostList;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use super::{outgoing::is_of_this_host, *};

const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy for one jail, which looks up names in a table.
struct Setup {
    proxy: Arc<Proxy>,
    exits: Arc<Exits>,
}

fn setup(allow: &[&str], names: &[(&str, &[&str])]) -> Setup {
    let addresses = |list: &[&str]| list.iter().map(|address| address.parse::<IpAddr>().unwrap()).collect();
    let table: BTreeMap<_, Vec<_>> =
        names.iter().map(|(name, list)| ((*name).to_owned(), addresses(list))).collect();
    let look_up = move |name: &str| table.get(name).cloned().ok_or_else(|| io::Error::other("it is unknown"));
    let proxy = Arc::new(Proxy::with_resolver(Resolver::new(look_up)).unwrap());
    Setup { proxy, exits: Arc::new(exits(allow, "owner")) }
}

/// A jail of an identity that may reach some hosts.
fn exits(allow: &[&str], identity: &str) -> Exits {
    let hosts = HostList::parse(allow.iter().copied(), []).unwrap().into();
    Exits::new(hosts, Arc::new(Denials::new(Box::new(|_, _, _| {}))), identity.into())
}

impl Setup {
    /// Connects as a process of the jail does.
    async fn connect(&self) -> TcpStream {
        self.connect_with_task().await.0
    }

    /// Connects, and returns the task that holds a slot for it.
    async fn connect_with_task(&self) -> (TcpStream, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (proxy, exits, stream) = (Arc::clone(&self.proxy), Arc::clone(&self.exits), accepted.unwrap().0);
        let task = tokio::spawn(async move { proxy.connection(stream, &exits).await });
        (client.unwrap(), task)
    }

    /// Sends bytes and returns everything that comes back.
    async fn talk(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect().await;
        client.write_all(bytes.as_ref()).await.unwrap();
        String::from_utf8_lossy(&read_all(&mut client).await).into_owned()
    }

    fn denied(&self) -> Vec<(String, u16, u64)> {
        let tuple = |DeniedHost { host, port, count, .. }| (host, port, count);
        self.exits.denials.list().into_iter().map(tuple).collect()
    }
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection ends").unwrap();
    bytes
}

/// A host that answers one connection with what it heard, once it has heard this much.
async fn host(heard_end: &'static [u8], answer: &'static str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(heard_end) {
            assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0, "{}", String::from_utf8_lossy(&heard));
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        // Whatever else the proxy would send.
        stream.read_to_end(&mut heard).await.unwrap();
        String::from_utf8(heard).unwrap()
    });
    (address, task)
}

async fn heard(task: JoinHandle<String>) -> String {
    timeout(PATIENCE, task).await.expect("the host is done").unwrap()
}

#[tokio::test]
async fn a_plain_request_reaches_its_host_and_nothing_that_follows_it() {
    let (address, task) = host(b"body", "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nanswer").await;
    let port = address.port();
    let setup = setup(&["127.0.0.1"], &[]);
    let answer = setup
        .talk(format!(
            "POST http://127.0.0.1:{port}/x HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 4\r\n\r\nbody\
             GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        ))
        .await;
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nanswer");
    assert_eq!(
        heard(task).await,
        format!(
            "POST /x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
        )
    );
    assert_eq!(setup.denied(), []);
}

#[tokio::test]
async fn interim_responses_come_before_the_final_one() {
    let answers = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
    let (address, task) = host(b"\r\n\r\n", answers).await;
    let setup = setup(&["127.0.0.1"], &[]);
    let answer = setup.talk(format!("GET http://{address}/ HTTP/1.1\r\nExpect: 100-continue\r\n\r\n")).await;
    assert_eq!(
        answer,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\
         Connection: close\r\n\r\n"
    );
    assert!(heard(task).await.contains("\r\nExpect: 100-continue\r\n"));
}

#[tokio::test]
async fn a_host_that_is_not_listed_is_refused_with_the_reason_and_counted() {
    let setup = setup(&["good.example", "*.example.org"], &[]);
    let answer = setup.talk("GET http://Evil.Example:8080/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        answer.ends_with(
            "\r\n\r\nremex: network: evil.example:8080 is not in the allow-list of this sandbox; if it should be \
             reachable, allow it (with the remex program: `--net allow=evil.example:8080`)\n"
        ),
        "{answer}"
    );
    let answer = setup.talk("CONNECT evil.example:8080 HTTP/1.1\r\nHost: good.example:8080\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    let socks = setup.talk(b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbb").await;
    assert_eq!(socks.as_bytes()[2..4], [5, 2], "{socks:?}");
    assert_eq!(setup.denied(), [("evil.example".to_owned(), 8080, 2), ("example.org".to_owned(), 443, 1)]);
}

#[tokio::test]
async fn names_lead_only_where_their_entries_allow() {
    let (address, _task) = host(b"never", "").await;
    let port = address.port();
    let names: [(&str, &[&str]); 6] = [
        ("rebind.example.org", &["127.0.0.1"]),
        ("meta.example.org", &["169.254.169.254"]),
        ("mapped.example.org", &["::ffff:127.0.0.1"]),
        ("private.example.org", &["10.0.0.1"]),
        ("exact.example", &["127.0.0.1"]),
        ("mixed.example.org", &["10.0.0.1", "127.0.0.1"]),
    ];
    let setup = setup(&["*.example.org", "exact.example", "*"], &names);
    for (name, _) in names {
        let answer = setup.talk(format!("CONNECT {name}:{port} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{name}: {answer}");
        let is_private = name == "private.example.org";
        let why = if is_private { "10.0.0.1 is private" } else { "is local to the server" };
        assert!(answer.contains(why), "{name}: {answer}");
    }
    for literal in
        ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "[fe80::1]"]
    {
        let answer = setup.talk(format!("CONNECT {literal}:{port} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{literal}: {answer}");
    }
    assert!(setup.denied().len() >= 12, "{:?}", setup.denied());
    let answer = setup.talk(format!("CONNECT unknown.example.org:{port} HTTP/1.1\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
}

#[tokio::test]
async fn a_name_that_leads_to_a_listed_address_is_connected() {
    let (address, task) = host(b"ping", "pong").await;
    let setup = setup(&["**.example.org", "127.0.0.1"], &[("example.org", &["192.168.7.7", "127.0.0.1"])]);
    let answer = setup.talk(format!("CONNECT Example.ORG.:{} HTTP/1.1\r\n\r\nping", address.port())).await;
    assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\npong");
    assert_eq!(heard(task).await, "ping");
}

#[tokio::test]
async fn the_ports_of_the_server_are_never_reached() {
    let (address, _task) = host(b"never", "").await;
    let port = address.port();
    let setup = setup(&["127.0.0.1", "127.0.0.2", "localhost"], &[("localhost", &["127.0.0.1"])]);
    setup.proxy.own_ports().add(port);
    for name in ["127.0.0.1", "127.0.0.2", "localhost", "[::ffff:127.0.0.1]"] {
        let answer = setup.talk(format!("CONNECT {name}:{port} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.contains("it is a port of this server"), "{answer}");
    }
    assert!(!is_own(&setup, "192.0.2.1", port) && is_own(&setup, "127.3.4.5", port));
    assert!(!is_own(&setup, "127.0.0.1", port ^ 1));
}

fn is_own(setup: &Setup, address: &str, port: u16) -> bool {
    is_of_this_host(address.parse().unwrap()) && setup.proxy.own_ports().contain(port)
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let setup = setup(&["*"], &[]);
    for request in [
        "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
        "GET https://a.org/ HTTP/1.1\r\n\r\n",
        "GET http://0x7f000001/ HTTP/1.1\r\n\r\n",
        "CONNECT a.org HTTP/1.1\r\n\r\n",
        "POST http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\n\n",
    ] {
        let answer = setup.talk(request).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request}: {answer}");
        assert!(answer.contains("\r\n\r\nremex: network: "), "{answer}");
    }
    let huge = format!("GET http://a.org/ HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
    let mut client = setup.connect().await;
    // The proxy stops reading, and may reset the connection then.
    let _ = client.write_all(huge.as_bytes()).await;
    let mut answer = vec![0; 64];
    if let Ok(Ok(len)) = timeout(PATIENCE, client.read(&mut answer)).await {
        assert!(answer[..len].starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    }
    let many: String = (0..300).map(|number| format!("H{number}: x\r\n")).collect();
    let answer = setup.talk(format!("GET http://a.org/ HTTP/1.1\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(setup.denied(), []);
}

#[tokio::test]
async fn socks_connects_and_refuses_by_the_right_code() {
    let setup = setup(&["127.0.0.1", "gone.example"], &[]);
    let socks = |request: Vec<u8>| {
        let setup = &setup;
        async move { setup.talk([b"\x05\x02\x02\x00".to_vec(), request].concat()).await.into_bytes() }
    };
    let (address, task) = host(b"ping", "pong").await;
    let port = address.port().to_be_bytes();
    let by_address = [b"\x05\x01\x00\x01\x7f\x00\x00\x01".to_vec(), port.to_vec(), b"ping".to_vec()].concat();
    assert_eq!(socks(by_address).await, b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0pong");
    assert_eq!(heard(task).await, "ping");
    let (address, task) = host(b"ping", "pong").await;
    let port = address.port().to_be_bytes();
    let by_name = [b"\x05\x01\x00\x03\x09127.0.0.1".to_vec(), port.to_vec(), b"ping".to_vec()].concat();
    assert_eq!(socks(by_name).await, b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0pong");
    assert_eq!(heard(task).await, "ping");
    for (request, code) in [
        // An address that is not listed, and a name for one.
        (&b"\x05\x01\x00\x01\x7f\x00\x00\x02\x00\x50"[..], 2),
        (b"\x05\x01\x00\x03\x03::1\x00\x50", 2),
        (b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50", 2),
        (b"\x05\x01\x00\x03\x0a0x7f000001\x00\x50", 1),
        (b"\x05\x01\x00\x03\x0cgone.example\x00\x50", 4),
        // Port 1 of the host itself.
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x01", 5),
        // BIND and UDP ASSOCIATE.
        (b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", 7),
        (b"\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", 7),
        (b"\x05\x01\x00\x02\x00", 8),
        // Port 0.
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", 1),
        (b"\x05\x01\x00\x03\x09127.0.0.1\x00\x00", 1),
    ] {
        assert_eq!(socks(request.to_vec()).await[2..4], [5, code], "{request:?}");
    }
    assert_eq!(setup.talk(b"\x05\x01\x02").await.as_bytes(), "\u{5}\u{fffd}".as_bytes());
}

#[tokio::test]
async fn socks4_is_refused_with_a_socks4_reply() {
    let setup = setup(&["127.0.0.1"], &[]);
    let request = b"\x04\x01\x00\x01\x7f\x00\x00\x01\0";
    assert_eq!(setup.talk(request).await.as_bytes(), b"\0\x5b\0\0\0\0\0\0");
    let free = u32::try_from(setup.proxy.connections.available_permits()).unwrap();
    let _all = setup.proxy.connections.acquire_many(free).await.unwrap();
    assert_eq!(setup.talk(request).await.as_bytes(), b"\0\x5b\0\0\0\0\0\0");
}

#[tokio::test]
async fn a_large_upload_to_a_refused_host_sees_the_reason() {
    const LEN: usize = 8 << 20;
    let setup = setup(&["good.example"], &[]);
    let mut client = setup.connect().await;
    let head = format!("POST http://evil.example/ HTTP/1.1\r\nContent-Length: {LEN}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let upload = timeout(PATIENCE, client.write_all(&vec![0; LEN])).await.expect("the upload is read");
    upload.unwrap();
    let answer = read_all(&mut client).await;
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn malformed_chunks_are_answered_unless_a_response_has_begun() {
    let setup = setup(&["127.0.0.1"], &[]);
    let request =
        |address| format!("POST http://{address}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    let mut pair = Pair::open(&setup, request, "").await;
    // An interim response is not one.
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    pair.host.write_all(interim.as_bytes()).await.unwrap();
    let mut bytes = vec![0; interim.len()];
    timeout(PATIENCE, pair.client.read_exact(&mut bytes)).await.expect("it arrives").unwrap();
    pair.client.write_all(b"what?\r\n").await.unwrap();
    let answer = String::from_utf8(read_all(&mut pair.client).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(
        answer.ends_with("\r\n\r\nremex: network: the body of the request has malformed chunks\n"),
        "{answer}"
    );
    let mut heard = Vec::new();
    let reading = timeout(PATIENCE, pair.host.read_to_end(&mut heard));
    let error = reading.await.expect("the host is not left waiting").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "the request is not complete");

    let mut pair = Pair::open(&setup, request, "").await;
    pair.host.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let mut bytes = vec![0; "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".len()];
    timeout(PATIENCE, pair.client.read_exact(&mut bytes)).await.expect("it arrives").unwrap();
    pair.client.write_all(b"what?\r\n").await.unwrap();
    let error = timeout(PATIENCE, pair.client.read(&mut bytes)).await.expect("it breaks").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn errors_in_the_head_of_a_response_are_explained() {
    let setup = setup(&["127.0.0.1"], &[]);
    let many: String = (0..300).map(|number| format!("H{number}: x\r\n")).collect();
    for (head, why) in [
        ("SSH-2.0-x\r\n".to_owned(), "is not HTTP/1"),
        ("HTTP/2.0 200 OK\r\n".to_owned(), "is not HTTP/1"),
        ("HTTP/1.1 200 OK\r\nX : a\r\n".to_owned(), "has a malformed head, or more than 256 headers"),
        ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n".to_owned(), "has a malformed head, or more than 256 headers"),
        (format!("HTTP/1.1 200 OK\r\n{many}"), "has a malformed head, or more than 256 headers"),
    ] {
        let mut pair = Pair::plain(&setup, "GET").await;
        pair.host.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_all(&mut pair.client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
        assert!(answer.ends_with(&format!(" {why}\n")), "{head}: {answer}");
    }
}

#[tokio::test]
async fn a_tunnel_carries_everything_in_both_directions_past_a_half_close() {
    const LEN: usize = 8 << 20;
    let bytes = |seed: usize| (0..LEN).map(move |at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let setup = setup(&["127.0.0.1"], &[]);
    let host = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // Says something only after the other side has said everything.
        let heard = read_all(&mut stream).await;
        stream.write_all(&bytes(2).collect::<Vec<_>>()).await.unwrap();
        stream.shutdown().await.unwrap();
        heard
    });
    let mut client = setup.connect().await;
    client.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    client.write_all(&bytes(1).collect::<Vec<_>>()).await.unwrap();
    client.shutdown().await.unwrap();
    let back = read_all(&mut client).await;
    let head = b"HTTP/1.1 200 Connection established\r\n\r\n";
    assert!(back.starts_with(head) && back[head.len()..].iter().copied().eq(bytes(2)));
    assert!(timeout(PATIENCE, host).await.unwrap().unwrap().into_iter().eq(bytes(1)));
}

/// How a client goes away.
#[derive(Debug, Clone, Copy)]
enum Disconnect {
    Close,
    Reset,
}

impl Disconnect {
    const ALL: [Self; 2] = [Self::Close, Self::Reset];

    fn apply(self, client: TcpStream) {
        if let Self::Reset = self {
            client.set_zero_linger().unwrap();
        }
        drop(client);
    }
}

/// A client with a connection to a host through the proxy, both silent from now on.
struct Pair {
    client: TcpStream,
    host: TcpStream,
    task: JoinHandle<()>,
}

impl Pair {
    async fn open(setup: &Setup, request: impl FnOnce(SocketAddr) -> String, heard: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut client, task) = setup.connect_with_task().await;
        client.write_all(request(listener.local_addr().unwrap()).as_bytes()).await.unwrap();
        let (host, _) = timeout(PATIENCE, listener.accept()).await.expect("the host is connected").unwrap();
        let mut bytes = vec![0; heard.len()];
        timeout(PATIENCE, client.read_exact(&mut bytes)).await.expect("an answer comes").unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), heard);
        Self { client, host, task }
    }

    async fn tunnel(setup: &Setup) -> Self {
        let heard = "HTTP/1.1 200 Connection established\r\n\r\n";
        Self::open(setup, |address| format!("CONNECT {address} HTTP/1.1\r\n\r\n"), heard).await
    }

    async fn plain(setup: &Setup, method: &str) -> Self {
        let mut pair =
            Self::open(setup, |address| format!("{method} http://{address}/ HTTP/1.1\r\n\r\n"), "").await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let reading = timeout(PATIENCE, pair.host.read_buf(&mut head));
            assert_ne!(reading.await.expect("the request arrives").unwrap(), 0);
        }
        pair
    }
}

async fn ended(task: JoinHandle<()>) {
    timeout(PATIENCE, task).await.expect("the connection has given its slot back").unwrap();
}

#[tokio::test]
async fn a_disconnect_before_the_response_frees_the_slot() {
    let setup = setup(&["127.0.0.1"], &[]);
    for disconnect in Disconnect::ALL {
        let mut pair = Pair::plain(&setup, "GET").await;
        // A further request does not hide the end that follows it.
        pair.client.write_all(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n").await.unwrap();
        disconnect.apply(pair.client);
        ended(pair.task).await;
        assert_eq!(read_all(&mut pair.host).await, b"", "{disconnect:?}: an end, as the request has arrived");
    }
}

#[tokio::test]
async fn a_reset_during_the_response_frees_the_slot() {
    let setup = setup(&["127.0.0.1"], &[]);
    let mut pair = Pair::plain(&setup, "GET").await;
    pair.host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n";
    let mut bytes = vec![0; head.len() + 4];
    timeout(PATIENCE, pair.client.read_exact(&mut bytes)).await.expect("half of it").unwrap();
    // A half-close within the response loses nothing.
    pair.client.shutdown().await.unwrap();
    pair.host.write_all(b"more").await.unwrap();
    timeout(PATIENCE, pair.client.read_exact(&mut bytes[..4])).await.expect("more of it").unwrap();
    assert!(!pair.task.is_finished());
    Disconnect::Reset.apply(pair.client);
    ended(pair.task).await;
}

#[tokio::test]
async fn a_response_ends_where_its_head_says_on_a_kept_alive_connection() {
    let setup = setup(&["127.0.0.1"], &[]);
    for (method, head, body) in [
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", "body"),
        ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\nA: b\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n", ""),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", ""),
    ] {
        let mut pair = Pair::plain(&setup, method).await;
        pair.host
            .write_all(format!("{head}\r\n{body}HTTP/1.1 200 OK\r\n\r\nother").as_bytes())
            .await
            .unwrap();
        let answer = read_all(&mut pair.client).await;
        assert_eq!(String::from_utf8_lossy(&answer), format!("{head}Connection: close\r\n\r\n{body}"));
        drop(pair.client);
        ended(pair.task).await;
    }
}

#[tokio::test]
async fn an_early_response_does_not_cut_the_request() {
    let setup = setup(&["127.0.0.1"], &[]);
    let request = |address| format!("POST http://{address}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo");
    let mut pair = Pair::open(&setup, request, "").await;
    pair.host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").await.unwrap();
    let answer = read_all(&mut pair.client).await;
    assert!(answer.ends_with(b"early"), "{}", String::from_utf8_lossy(&answer));
    pair.client.write_all(b"dy").await.unwrap();
    let heard = read_all(&mut pair.host).await;
    assert!(heard.ends_with(b"\r\n\r\nbody"), "{}", String::from_utf8_lossy(&heard));
    drop(pair.client);
    ended(pair.task).await;
}

#[tokio::test]
async fn a_half_closed_tunnel_ends_with_a_reset_of_its_client() {
    let setup = setup(&["127.0.0.1"], &[]);
    let mut pair = Pair::tunnel(&setup).await;
    pair.client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut pair.host).await, b"");
    Disconnect::Reset.apply(pair.client);
    ended(pair.task).await;
}

#[tokio::test]
async fn a_half_closed_tunnel_has_a_shorter_idle_timeout() {
    let setup = setup(&["127.0.0.1"], &[]);
    for side in ["client", "host"] {
        let Pair { mut client, mut host, task } = Pair::tunnel(&setup).await;
        let (ending, other) =
            if side == "client" { (&mut client, &mut host) } else { (&mut host, &mut client) };
        ending.shutdown().await.unwrap();
        // Once its end has arrived, the proxy waits for the other side only.
        assert_eq!(read_all(other).await, b"");
        tokio::time::pause();
        let start = Instant::now();
        tokio::time::sleep(HALF_CLOSED_TIMEOUT / 2).await;
        assert!(!task.is_finished(), "{side}: an answer may take its time");
        task.await.unwrap();
        assert!(start.elapsed() < IDLE_TIMEOUT / 2, "{side}: {:?}", start.elapsed());
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_connection_that_breaks_does_not_end_as_if_it_were_complete() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let setup = setup(&["127.0.0.1"], &[]);
    let mut client = setup.connect().await;
    client.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let (mut host, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    host.write_all(b"part").await.unwrap();
    let mut heard = vec![0; 43];
    timeout(PATIENCE, client.read_exact(&mut heard)).await.unwrap().unwrap();
    assert!(heard.ends_with(b"\r\n\r\npart"));
    host.set_zero_linger().unwrap();
    drop(host);
    let error = timeout(PATIENCE, client.read(&mut heard)).await.expect("it breaks here too").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn more_connections_than_the_server_allows_are_refused_at_once() {
    let setup = setup(&["127.0.0.1"], &[]);
    let free = u32::try_from(setup.proxy.connections.available_permits()).unwrap();
    let _all = setup.proxy.connections.acquire_many(free).await.unwrap();
    let answer = setup.talk("GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    let socks = setup.talk(b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x01").await;
    assert_eq!(socks.as_bytes(), b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0");
}

#[test]
fn connections_take_a_quarter_of_the_descriptors_at_most() {
    let expected = [
        (None, 1024),
        (Some(1 << 20), 1024),
        (Some(8192), 1024),
        (Some(1024), 128),
        (Some(256), 32),
        (Some(4), 1),
    ];
    for (open_files, connections) in expected {
        assert_eq!(max_of_server(open_files), connections, "{open_files:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_or_slow_client_times_out() {
    let setup = setup(&["127.0.0.1"], &[]);
    let mut silent = setup.connect().await;
    let mut slow = setup.connect().await;
    slow.write_all(b"GET http://127.0.0.1/ HTTP/1.1\r\n").await.unwrap();
    let mut socks = setup.connect().await;
    socks.write_all(b"\x05\x01").await.unwrap();
    assert_eq!(read_all_late(&mut silent).await, b"");
    assert_eq!(read_all_late(&mut socks).await, b"");
    let answer = read_all_late(&mut slow).await;
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
}

/// Reads to the end in a time that may pass faster than bytes.
async fn read_all_late(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(HANDSHAKE_TIMEOUT * 100, stream.read_to_end(&mut bytes)).await.expect("it ends").unwrap();
    bytes
}
