//! Processes, their input and their logs under attack.

mod chatter;
mod input;
mod sessions;
mod snapshots;
