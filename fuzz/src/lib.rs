//! What every decoder promises, as functions of arbitrary bytes.
//!
//! A target panics when the promise is broken and returns otherwise; it has no state and no randomness, so an
//! input that fails once fails always. `tests/bounded` runs them all as ordinary tests, `libfuzzer/` runs each
//! for as long as one likes. Start at [`message()`].

#![allow(clippy::unwrap_used, reason = "a panic is how a target reports")]

mod binary;
mod log;
mod message;
mod sandbox;
mod stream;
mod text;
mod token;

pub use binary::binary;
pub use log::log;
pub use message::message;
pub use sandbox::{sandbox, sandbox_pattern};
pub use stream::{frame_reader, lines, websocket};
pub use text::{blob, env_policy, environments, host_path, listen_address, server_config};
pub use token::{jwks, jwt, scopes, token_file};
