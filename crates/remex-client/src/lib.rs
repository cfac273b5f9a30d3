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

mod api;
mod base;
mod core;
mod transport;

#[cfg(feature = "agent")]
pub use api::agent;
#[cfg(feature = "environments")]
pub use api::environment;
#[cfg(feature = "testing")]
pub use api::testing;
pub use api::{
    client::Client,
    fs, http,
    process::{self, Command, Process},
    session,
};
pub use base::{
    connection_state::ConnectionState,
    error::{Cause, Error, SessionLost},
    options::{Options, Prompts, Session},
    trace::with_trace,
};
pub use remex_proto::{ErrorKind, InvalidTrace, TraceContext};
#[cfg(feature = "program")]
pub use transport::program::{Program, wait_for_programs};
#[cfg(feature = "tls")]
pub use transport::tls;
pub use transport::{
    link::Link,
    target::{Custom, Dial, Target, WebSocket},
};
