//! The library part of the `remex` program: what other programs of ours may share with it.

pub mod environments;
