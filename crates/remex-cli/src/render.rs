//! Formats output for users and scripts: errors, findings, tables, JSON, times and sizes.
//!
//! Start at [`print`](mod@print) and [`failure::Failure`].

pub(crate) mod confirm;
pub(crate) mod failure;
pub(crate) mod finding;
pub(crate) mod line_state;
pub(crate) mod local_time;
pub(crate) mod print;
pub(crate) mod similar;
pub(crate) mod text;
