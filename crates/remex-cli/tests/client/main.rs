//! The client library on real servers, in this process and in others.
//!
//! These are one test program, because each would compile and link the harness again.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod agent;
mod behaviour;
mod compiled;
mod configured;
mod described;
mod durable;
mod examples;
mod faults;
mod fs;
mod http;
mod in_process;
mod languages;
mod limits;
mod mcp;
mod oldest;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod tls;
