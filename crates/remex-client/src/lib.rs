//! The remex client: run processes, access files and make HTTP requests on a remote host.
//!
//! In reading order: a [`Target`] is the address of a server; a [`Client`] holds a session with it that survives
//! disconnects; a [`Command`] starts a [`Process`]; [`fs`] accesses the files of the remote host, and [`http`] makes
//! requests from there; [`environment`] manages named hosts; [`agent`] serves the tool calls of a language model.
//! The crate never reads configuration files or environment variables: the program passes plain values.
//!
//! ```
//! use remex_client::{Client, Command, process::Stdio};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server in this process; use `Target::parse("ws://host:4000")?` for a remote one. The rest is the same.
//! let client = Client::connect(remex::Local::here()?.target()).await?;
//!
//! let output = Command::new("uname").arg("-s").output(&client).await?;
//! assert_eq!(output.stdout, b"Linux\n");
//!
//! let process = Command::shell("read name; echo hello, $name").stdin(Stdio::Piped).start(&client).await?;
//! let output = process.communicate(b"world\n").await?;
//! assert_eq!((output.exit.code, &output.stdout[..]), (0, &b"hello, world\n"[..]));
//!
//! assert!(client.fs().metadata("/").await?.is_directory);
//! client.end().await?;
//! # Ok(())
//! # }
//! ```
//!
//! All features but one are on by default. Without them the crate keeps processes, files, HTTP requests and `ws://`:
//!
//! - `agent`: the module [`agent`].
//! - `environments`: the module [`environment`], which reads TOML; includes `program` and `tls`.
//! - `stream`, off by default: `into_stream` of events, lines, watches and bodies, for the combinators of `futures`.
//! - `program`: [`Target::Program`], connections over the standard streams of a program such as ssh.
//! - `tls`: `wss://`, with [`tls`].
//! - `trees`: copies of directory trees, [`fs::TreeCopy`] and [`fs::copy_trees`].
//!
//! The crate runs on Linux and compiles for macOS and Windows. On Windows there are no unix sockets, programs and local
//! symbolic links; all paths on the remote host have slashes, wherever the client runs.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod connection_state;
mod error;
mod options;
mod target;

pub mod fs;
pub mod http;
pub mod process;
pub mod session;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "environments")]
pub mod environment;
#[cfg(feature = "tls")]
pub mod tls;

mod core;
mod dial;
mod engine;
mod event;
mod event_queue;
mod link;
mod platform;
mod program;
mod refusal;
mod shell_word;
#[cfg(feature = "stream")]
mod stream;
mod trace;
mod url;

pub use client::Client;
pub use connection_state::ConnectionState;
pub use error::{Cause, Error, SessionLost};
pub use link::Link;
pub use options::{Options, Prompts, Session};
pub use process::{Command, Process};
#[cfg(feature = "program")]
pub use program::{Program, wait_for_programs};
pub use remex_proto::{ErrorKind, InvalidTrace, TraceContext};
pub use target::{Custom, Dial, Target, WebSocket};
pub use trace::with_trace;
