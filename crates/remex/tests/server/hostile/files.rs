//! File requests and watches under attack.

mod order;
mod races;
