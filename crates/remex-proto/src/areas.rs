//! The parameters and answers of each area of calls.

pub mod discovery;
pub mod environment;
pub mod fs;
pub mod http;
pub mod initialize;
pub mod network;
pub mod process;
pub mod sandbox;
pub mod session;
