//! Hands on any machine: the `remex` program.
fn main() {}
