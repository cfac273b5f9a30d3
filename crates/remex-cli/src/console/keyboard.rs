//! Forwards standard input to a process, and finds escape sequences and answers in it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use remex_client::Error;
use tokio::sync::mpsc;

use super::{
    escape::{Character, Escape, InputMode, Key},
    input::Input,
    process::InputSink,
    terminal::{self, EscapeModes},
    view::{KILL_TIMEOUT, say},
};

/// How input is interpreted.
pub(super) struct Keyboard {
    /// Receives escape sequences; only for input from a terminal.
    pub(super) orders: Option<mpsc::Sender<Key>>,
    /// Whether the process can be detached.
    pub(super) leaves: bool,
    /// Whether it has a terminal.
    pub(super) terminal: bool,
    pub(super) character: Character,
    /// The modes of a terminal that delivers lines.
    pub(super) modes: Option<EscapeModes>,
    /// Whether the next input answers a question.
    pub(super) question: Arc<AtomicBool>,
}

/// Forwards input until it ends or the process closes it.
pub(super) async fn forward(mut input: Input, mut sink: InputSink, keyboard: Keyboard) -> Result<(), Error> {
    let Keyboard { orders, leaves, terminal, character, modes, question } = keyboard;
    let mut escape = Escape::new(character, if terminal { InputMode::Keys } else { InputMode::Lines });
    let (mut last, mut wanted) = (b'\n', true);
    while let Some(read) = input.next().await {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(_) if orders.is_some() => break,
            Err(error) => {
                say(false, &format!("cannot read standard input: {error}"));
                break;
            }
        };
        last = bytes.last().copied().unwrap_or(last);
        let Some(orders) = &orders else {
            sink.write(&bytes).await?;
            continue;
        };
        let was_pending = escape.is_pending();
        let keys = escape.take(&bytes);
        if let Some(modes) = modes.as_ref().filter(|_| was_pending || escape.is_pending()) {
            modes.follow(if was_pending { &bytes } else { &[] }, escape.is_pending());
        }
        for key in keys {
            match key {
                Key::Bytes(answer) if question.swap(false, Ordering::Relaxed) => {
                    let _ = orders.send(Key::Bytes(answer)).await;
                }
                // A process that accepts no input can still be detached.
                Key::Bytes(bytes) => wanted = wanted && sink.write(&bytes).await.is_ok(),
                Key::Detach if leaves => {
                    // Earlier input is in flight, and arrives unless the process reads nothing.
                    let _ = tokio::time::timeout(KILL_TIMEOUT, sink.flush()).await;
                    let _ = orders.send(Key::Detach).await;
                    // Stop forwarding, but keep the input open.
                    return std::future::pending().await;
                }
                order => drop(orders.send(order).await),
            }
        }
    }
    if let Some(orders) = &orders
        && terminal::is_gone()
    {
        // The terminal was closed, which is not an end of file for the process.
        let _ = orders.send(Key::HangUp).await;
        return std::future::pending().await;
    }
    if let Some(Key::Bytes(held)) = escape.end() {
        sink.write(&held).await?;
    }
    match (terminal, last) {
        (false, _) => sink.close().await,
        // On a terminal, Ctrl-D signals end of file; within a line it only ends the line.
        (true, b'\n' | b'\r') => sink.write(b"\x04").await,
        (true, _) => sink.write(b"\x04\x04").await,
    }
}
