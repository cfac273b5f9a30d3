//! What is said between a remex client and server, and what each side remembers of it.
//!
//! Pure: no I/O, no clock, no tokio, no environment. Start at [`Call`] for what is said and at
//! [`state`] for what is remembered.

pub mod state;
