//! The command line as people and scripts see it: the real program, its streams, its exit codes, its screen.
//!
//! Start at [`home::Home`]; [`screen::Screen`] is a terminal with the program on it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "../support/mod.rs"]
mod support;

mod activation;
mod attach;
mod background_processes;
mod basics;
mod cert;
mod cleaned;
mod commands;
mod completion;
mod default;
mod doctor;
mod env;
mod examples;
mod files;
mod generated;
mod help;
mod home;
mod http;
mod jailed_clients;
mod json;
mod logs;
mod lost;
mod manage_processes;
mod mcp;
mod newer_server;
mod orphans;
mod packages;
mod proxy;
mod reconnect;
mod restart;
mod restart_policy;
mod run;
mod runtime_directory;
mod sandbox_hints;
mod screen;
mod selected_processes;
mod shell;
mod silent_keeper;
mod snapshots;
mod ssh;
mod ssh_host;
mod ssh_login;
mod stop_server;
mod stopping;
mod terminal;
mod top;
mod user;
mod variables;
mod writable_roots;
