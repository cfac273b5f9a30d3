//! Where the remex servers of this user keep their sockets, logs and state.

use std::{env, path::PathBuf};

use rustix::process::geteuid;

use crate::host;

/// Returns the directories of remex itself, whether they exist or not.
///
/// Servers of one user may have been started with different variables, so the usual places are there as well.
pub(crate) fn own_directories() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = geteuid().as_raw();
    let logged_in = PathBuf::from(format!("/run/user/{user}"));
    let homes = variable("HOME").into_iter().chain(host::home()).filter(|home| home.is_dir());
    let runtime = variable("XDG_RUNTIME_DIR").into_iter().chain(Some(logged_in).filter(|path| path.is_dir()));
    let states = variable("XDG_STATE_HOME").into_iter().chain(homes.map(|home| home.join(".local/state")));
    let mut directories: Vec<_> = runtime.chain(states).map(|directory| directory.join("remex")).collect();
    directories.push(format!("/tmp/remex-{user}").into());
    directories.sort();
    directories.dedup();
    directories
}
