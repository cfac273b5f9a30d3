//! Which directories to watch for changes in a tree, and for missing paths to appear.

pub mod missing;
pub mod tree;
