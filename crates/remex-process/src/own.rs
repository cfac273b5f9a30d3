//! What a program does about its own process: signals, its end, its terminal, the handover to a new version.

pub(crate) mod early_signals;
pub(crate) mod exit_by_signal;
pub(crate) mod handover;
pub(crate) mod terminal_state;
