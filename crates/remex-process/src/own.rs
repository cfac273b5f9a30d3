//! Functions for the program's own process: its signals, exit and terminal, and the handover to a new version.

pub(crate) mod early_signals;
pub(crate) mod exit_by_signal;
pub(crate) mod handover;
pub(crate) mod terminal_state;
