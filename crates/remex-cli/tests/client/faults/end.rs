//! A server that hears the end of a session late: after the cut, and after the client is back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use remex_client::{Client, Link, Target};
use remex_proto::{ErrorKind, RpcError};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

/// Ends a session whose server has it for one more handshake, and not for the second end.
pub(crate) async fn run() {
    let was_told = Arc::new(AtomicBool::new(false));
    let target = Target::custom("a late server", move || {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(serve(theirs, Arc::clone(&was_told)));
        let (reader, writer) = tokio::io::split(ours);
        async move { Ok(Link::lines(Box::new(reader), Box::new(writer))) }
    });
    let client = Client::connect(target).await.unwrap();
    assert_eq!(client.end().await, Ok(()));
}

async fn serve(stream: DuplexStream, was_told: Arc<AtomicBool>) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).unwrap();
        let outcome = match request["method"].as_str() {
            Some("initialize") => ("result", json!({"sessionId": "s-1"})),
            Some("session/end") if !was_told.swap(true, Ordering::Relaxed) => return,
            Some("session/end") => {
                ("error", json!(RpcError::new(ErrorKind::UnknownSession, "unknown session id s-1")))
            }
            _ => continue,
        };
        let answer = json!({"id": request["id"], outcome.0: outcome.1});
        writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }
}
