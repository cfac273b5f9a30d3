//! The command line as people and scripts see it: the real program, its streams, its exit codes, its screen.
//!
//! Start at [`home::Home`]; [`screen::Screen`] is a terminal with the program on it.

#[path = "../support/mod.rs"]
mod support;

mod home;
mod left;
mod screen;

mod attach;
mod basics;
mod logs;
mod look;
