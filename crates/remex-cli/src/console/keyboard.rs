//! Forwards standard input to a process, and finds escape sequences and answers in it.
//!
//! Start at [`forward`].

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_client::{Client, ConnectionState, Error};
use tokio::sync::mpsc;

use super::{
    escape::{Character, Escape, InputMode, Key},
    input::Input,
    process::InputSink,
    status::say,
    terminal::{self, EscapeModes},
};

/// How long earlier input may take to arrive before the process is detached.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Ctrl-C, as a terminal in raw mode sends it.
const INTERRUPT: u8 = 3;

/// How many keys are held back while an earlier one cannot be sent.
const HELD_KEYS: usize = 1024;

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
    pub(super) client: Client,
}

/// Forwards input until it ends or the process closes it.
pub(super) async fn forward(mut input: Input, mut sink: InputSink, keyboard: Keyboard) -> Result<(), Error> {
    let Keyboard { orders, leaves, terminal, character, modes, question, client } = keyboard;
    let mut escape = Escape::new(character, if terminal { InputMode::Keys } else { InputMode::Lines });
    let (mut last, mut wanted) = (b'\n', true);
    let mut held = VecDeque::new();
    loop {
        let Some(key) = held.pop_front() else {
            let bytes = match input.next().await {
                Some(Ok(bytes)) => bytes,
                None => break,
                Some(Err(_)) if orders.is_some() => break,
                Some(Err(error)) => {
                    say(false, &format!("cannot read standard input: {error}"));
                    break;
                }
            };
            last = bytes.last().copied().unwrap_or(last);
            if orders.is_none() {
                sink.write(&bytes).await?;
            } else {
                held.extend(taken(&mut escape, modes.as_ref(), &bytes));
            }
            continue;
        };
        let Some(orders) = &orders else { continue };
        match key {
            // Any other line is for the process.
            Key::Bytes(answer) if question.swap(false, Ordering::Relaxed) && is_answer(&answer) => {
                let _ = orders.send(Key::Bytes(answer)).await;
            }
            // Without a connection it would reach the process too late.
            Key::Bytes(bytes) if terminal && bytes.contains(&INTERRUPT) && is_disconnected(&client) => {
                let _ = orders.send(Key::Interrupt).await;
                if let Some(rest) = without_interrupt(&bytes) {
                    held.push_front(rest);
                }
            }
            // A process that accepts no input can still be detached.
            Key::Bytes(_) if !wanted => {}
            Key::Bytes(bytes) => {
                let mut write = std::pin::pin!(sink.write(&bytes));
                wanted = loop {
                    tokio::select! {
                        biased;
                        written = &mut write => break written.is_ok(),
                        // During a disconnect, Ctrl-C must work even if earlier keys have not been sent.
                        read = input.next(), if is_disconnected(&client) && held.len() < HELD_KEYS => {
                            let Some(Ok(bytes)) = read else { break (&mut write).await.is_ok() };
                            last = bytes.last().copied().unwrap_or(last);
                            for key in taken(&mut escape, modes.as_ref(), &bytes) {
                                match key {
                                    Key::Bytes(bytes) if terminal && bytes.contains(&INTERRUPT) => {
                                        let _ = orders.send(Key::Interrupt).await;
                                        held.extend(without_interrupt(&bytes));
                                    }
                                    Key::Bytes(_) => held.push_back(key),
                                    Key::Detach if leaves => {
                                        let _ = orders.send(Key::Detach).await;
                                        return std::future::pending().await;
                                    }
                                    order => drop(orders.send(order).await),
                                }
                            }
                        }
                    }
                };
            }
            Key::Detach if leaves => {
                // Earlier input is in flight, and arrives unless the process reads nothing.
                let _ = tokio::time::timeout(FLUSH_TIMEOUT, sink.flush()).await;
                let _ = orders.send(Key::Detach).await;
                // Stop forwarding, but keep the input open.
                return std::future::pending().await;
            }
            order => drop(orders.send(order).await),
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

/// Returns the input typed or pasted together with Ctrl-C, which is for the process.
fn without_interrupt(bytes: &[u8]) -> Option<Key> {
    let rest: Vec<_> = bytes.iter().copied().filter(|byte| *byte != INTERRUPT).collect();
    (!rest.is_empty()).then_some(Key::Bytes(rest))
}

/// Returns whether a line is an answer to the question what Ctrl-C means.
fn is_answer(line: &[u8]) -> bool {
    matches!(line.trim_ascii(), b"" | b"d" | b"D" | b"i" | b"I")
}

/// Finds the keys in input; the one after an escape character is read by itself.
fn taken(escape: &mut Escape, modes: Option<&EscapeModes>, bytes: &[u8]) -> Vec<Key> {
    let was_pending = escape.is_pending();
    let keys = escape.take(bytes);
    if let Some(modes) = modes.filter(|_| was_pending || escape.is_pending()) {
        modes.follow(if was_pending { bytes } else { &[] }, escape.is_pending());
    }
    keys
}

fn is_disconnected(client: &Client) -> bool {
    matches!(client.connection_state(), ConnectionState::Reconnecting { .. })
}
