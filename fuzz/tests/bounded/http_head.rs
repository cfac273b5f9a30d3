//! The head of an HTTP request, which only a real socket can bring.

use remex_rpc::{HandshakeConfig, NotUpgraded, Received, Refusal, receive};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::yield_now,
};

/// Every answer there is to a peer that does not take its time.
const STATUSES: [u16; 8] = [101, 200, 400, 401, 403, 404, 405, 431];

/// Small enough to be passed.
const MAX_HEAD_LEN: usize = 512;

/// A port that answers one request at a time.
pub(crate) struct Port {
    runtime: Runtime,
    listener: TcpListener,
}

impl Port {
    pub(crate) fn open() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        Self { runtime, listener }
    }

    /// Checks that `request` is answered in the same way whole and in two pieces, and as it should be.
    ///
    /// The first byte says where the pieces part.
    pub(crate) fn check(&self, input: &[u8]) {
        let Some((&cut, request)) = input.split_first() else { return };
        let pieces = request.split_at(usize::from(cut).min(request.len()));
        let answer = self.runtime.block_on(self.exchange(&[request]));
        assert_eq!(self.runtime.block_on(self.exchange(&[pieces.0, pieces.1])), answer);
        let Some((status, answer)) = answer else { return };

        assert!(STATUSES.contains(&status), "answered {answer}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}, but answered {answer}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let is_headless = status == 101 || request.starts_with(b"HEAD ") || body.is_empty();
        assert!(is_headless || head.contains(&format!("\r\nContent-Length: {}", body.len())), "{answer}");
        if matches!(status, 101 | 200) {
            assert!(!has_origin(request), "a browser was let in");
        }
    }

    /// Returns the status and the answer, or `None` when the request was not complete.
    async fn exchange(&self, pieces: &[&[u8]]) -> Option<(u16, String)> {
        let client = async {
            let mut stream = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in pieces {
                stream.write_all(piece).await.unwrap();
                yield_now().await;
            }
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let is_upgraded =
                |answer: &[u8]| answer.starts_with(b"HTTP/1.1 101") && answer.ends_with(b"\r\n\r\n");
            while stream.read_buf(&mut answer).await.unwrap() > 0 && !is_upgraded(&answer) {}
            String::from_utf8(answer).unwrap()
        };
        let server = async {
            let (stream, _) = self.listener.accept().await.unwrap();
            let config = HandshakeConfig { max_head_len: MAX_HEAD_LEN, ..HandshakeConfig::default() };
            match receive(stream, &config).await? {
                Received::Upgrade(upgrade) if matches!(upgrade.bearer(), None | Some("secret")) => {
                    upgrade.accept().await
                }
                Received::Upgrade(upgrade) => Err(upgrade.refuse(Refusal::Unauthenticated).await),
                Received::Page(page) => Err(page.refuse(Refusal::Forbidden).await),
            }
        };
        // The outcome lives until the client is done: dropping it would reset a connection with unread bytes.
        let (answer, outcome) = tokio::join!(client, server);
        match outcome {
            Ok(_) => Some((101, answer)),
            Err(NotUpgraded::Answered { status }) => Some((status, answer)),
            Err(NotUpgraded::Tls) => Some((400, answer)),
            Err(NotUpgraded::Closed) => {
                assert_eq!(answer, "");
                None
            }
            Err(NotUpgraded::Failed(error)) => panic!("the connection broke: {error}"),
        }
    }
}

fn has_origin(request: &[u8]) -> bool {
    let lines = request.split(|byte| *byte == b'\n');
    let head = lines.skip(1).take_while(|line| !line.trim_ascii().is_empty());
    head.map(<[u8]>::to_ascii_lowercase).any(|line| line.starts_with(b"origin:"))
}
