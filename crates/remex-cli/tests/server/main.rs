//! The server as clients see it: the real program, and messages that are written down by hand.
//!
//! These are one test program, because each would compile and link the harness again.

mod admission;
mod attacks;
mod audit;
mod binary_messages;
mod caps;
mod configuration;
mod confined_files;
mod confinement;
mod consumed;
mod dialects;
mod discovery;
mod endings;
mod environment;
mod examples;
mod flow;
mod fs_copy;
mod fs_directories;
mod fs_entries;
mod fs_files;
mod fs_handles;
mod fs_search;
mod fs_walk;
mod hostile;
mod http;
mod http_pool;
mod http_requests;
mod http_streams;
mod identities;
mod ledger;
mod leftovers;
mod lifecycle;
mod managed_network;
mod messages;
mod observers;
mod process_limits;
mod processes;
mod reading;
mod secrets;
mod sessions;
mod shell_snapshots;
mod start_policy;
#[path = "../support/mod.rs"]
mod support;
mod terminals;
mod tls;
mod tokens;
mod traces;
mod transcripts;
mod transports;
mod users;
mod watching;
mod without_namespaces;
