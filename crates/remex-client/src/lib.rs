//! The remex client: run processes, access files and make HTTP requests on a remote host.
//!
//! In reading order: a [`Target`] is the address of a server; a [`Client`] holds a session with it that survives
//! disconnects; a [`Command`] starts a [`Process`]; [`fs`] accesses the files of the remote host, and [`http`] makes
//! requests from there; [`environment`] manages named hosts; [`agent`] serves the tool calls of a language model.
//! The crate never reads configuration files or environment variables: the program passes plain values.
//!
//! ```
//! use remex_client::{Client, process::Input};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server in this process; use `Target::parse("ws://host:4000")?` for a remote one. The rest is the same.
//! let client = Client::connect(remex::Local::here()?.target()).await?;
//!
//! let output = client.command("uname").arg("-s").output().await?;
//! assert_eq!(output.stdout, b"Linux\n");
//!
//! let process = client.shell("read name; echo hello, $name").input(Input::Piped).start().await?;
//! let output = process.communicate(b"world\n").await?;
//! assert_eq!((output.exit.code, &output.stdout[..]), (0, &b"hello, world\n"[..]));
//!
//! assert!(client.fs().metadata("/").await?.is_directory);
//! client.end().await?;
//! # Ok(())
//! # }
//! ```

mod client;
mod connection_state;
mod error;
mod options;
mod target;

pub mod fs;
pub mod http;
pub mod process;

pub mod agent;
pub mod environment;
pub mod tls;

mod core;
mod dial;
mod engine;
mod event;
mod event_queue;
mod link;
mod program;
mod refusal;
mod shell_word;
mod trace;
mod url;

pub use client::Client;
pub use connection_state::ConnectionState;
pub use error::{Error, SessionLost};
pub use link::Link;
pub use options::{Options, Prompts, Session};
pub use process::{Command, Process};
pub use program::{Program, wait_for_programs};
pub use remex_proto::{ErrorKind, InvalidTrace, TraceContext};
pub use target::{Custom, Dial, Target, WebSocket};
pub use trace::with_trace;
