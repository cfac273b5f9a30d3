//! The terminal with its keys and signals, and a process shown on it.
//!
//! Start at [`Console`].

mod disconnection;
mod end;
pub(crate) mod escape;
mod input;
pub(crate) mod interrupt;
mod keyboard;
mod modes;
mod output;
mod presses;
mod process;
pub(crate) mod redraw;
mod status;
mod stopping;
pub(crate) mod terminal;
mod view;

pub(crate) use self::{
    end::{ConfinedBy, EndNotices, LOST_NOTICE, code},
    output::gap_notice,
    process::ShownProcess,
    status::say,
    stopping::Grace,
    view::{Console, Ending, Interrupts, WhenEnded},
};
