//! File requests and watches under attack.

mod answers;
mod order;
mod races;
mod watches;
