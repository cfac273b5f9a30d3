//! Killing when there is no thread, process slot or descriptor left.
