//! Files that may be trusted, opened without waiting and without links, and the errors of the file system.

pub mod io_error;
pub mod nofollow;
pub mod regular_file;
pub mod writers;
