//! Where a path of a request leads, and how to get there without being redirected: limits and sandboxes, opening,
//! walking, reading names, replacing files.

pub(crate) mod descent;
pub(crate) mod entry_lock;
pub(crate) mod guard;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod replace;

use std::path::Path;

use remex_base::io_error::{create_error, io_error};
use remex_proto::{ErrorKind, HostPath, RpcError};

/// Returns the native form of a path on this host.
///
/// # Errors
///
/// If no path of this host is meant.
pub fn native(path: &HostPath) -> Result<&Path, RpcError> {
    path.native().map_err(|error| RpcError::new(ErrorKind::InvalidInput, error.to_string()))
}
