//! Pure state machines: time is an argument, effects are return values.
//!
//! None of them does I/O or reads a clock, so each has property tests, and all of them are tested
//! together over a simulated link.

pub mod line_framer;
pub mod matcher;
pub mod output;
pub mod output_log;
pub mod pending;
pub mod replay;
pub mod session_table;
pub mod stdin_ledger;
