//! The terminal with its keys and signals, and a process shown on it.
//!
//! Start at [`Console`].

pub(crate) mod escape;
mod input;
pub(crate) mod interrupt;
mod output;
mod process;
pub(crate) mod terminal;
mod view;

pub(crate) use self::{
    process::ShownProcess,
    view::{Console, Ending, Interrupts, TIMED_OUT, WhenEnded, code, gap_notice, say},
};
