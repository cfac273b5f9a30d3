//! The pure machines: time is an argument, effects are return values.
//!
//! None of them does I/O or looks at a clock, so each is tested with properties and all of them
//! together over a simulated link.

pub mod line_framer;
pub mod matcher;
pub mod output_log;
pub mod pending;
pub mod replay;
pub mod session_table;
pub mod stdin_ledger;
