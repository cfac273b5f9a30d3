//! Tools of the Model Context Protocol: a model runs commands and edits files on remote hosts, and on this one.
//!
//! In reading order: an [`Environment`] is a host with a name; [`Tools`] are what a model can do on some of them;
//! [`serve_stdio`] and [`http::Http`] offer them to MCP clients. A process has a name and belongs to the server that runs it,
//! so it survives the MCP client and this program, and is found again by its name.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use remex_client::{Client, Options, Target};
//! use remex_mcp::{Allow, Environment, Tools, serve_stdio};
//!
//! let build = Environment::new("build", |options: Options| async {
//!     let target = Target::parse("ws://build.example:7070").map_err(|error| error.to_string())?;
//!     Client::connect_with(target, options).await.map_err(|error| error.to_string())
//! });
//! serve_stdio(Tools::new(vec![build], Allow::everything())).await?;
//! # Ok(()) }
//! ```

mod answer;
mod call;
mod environment;
pub mod http;
mod output;
mod processes;
mod server;
mod tools;

pub use environment::{Absolute, Connected, Environment};
pub use server::serve_stdio;
pub use tools::{Allow, Tools};
