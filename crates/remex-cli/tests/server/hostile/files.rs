//! File requests and watches under attack.

mod answers;
mod endless;
mod order;
mod races;
mod shares;
mod watches;
