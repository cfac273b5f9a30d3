//! The command line as people and scripts see it: the real program, its streams, its exit codes, its screen.
//!
//! Start at [`home::Home`]; [`screen::Screen`] is a terminal with the program on it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "../support/mod.rs"]
mod support;

mod activation;
mod attach;
mod basics;
mod cert;
mod commands;
mod completion;
mod default;
mod doctor;
mod env;
mod examples;
mod far;
mod files;
mod generated;
mod home;
mod left;
mod logs;
mod look;
mod proxy;
mod run;
mod screen;
mod snapshots;
mod ssh;
mod terminal;
mod top;
