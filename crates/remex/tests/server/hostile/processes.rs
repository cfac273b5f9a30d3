//! Processes, their input and their logs under attack.

mod input;
mod sessions;
mod snapshots;
