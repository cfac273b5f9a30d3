//! The agent's view: what a model's tool call needs.
//!
//! Start at [`Cut`].

mod cut;

pub use cut::{Cut, CutText};
