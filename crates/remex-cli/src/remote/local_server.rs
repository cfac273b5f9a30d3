//! The server of this machine, which only Linux can have.
//!
//! Elsewhere the program is a client of other hosts, and everything that needs a server here fails with one sentence.

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{check, in_process, login_shell};
#[cfg(target_os = "linux")]
pub(crate) use linux::{check, in_process, login_shell, supervisor};

#[cfg(any(test, not(target_os = "linux")))]
use crate::render::failure::Failure;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsString;

    use remex::Local;
    use remex_client::Target;
    use remex_server::Config;

    use crate::render::failure::Failure;

    /// Fails where this machine cannot have a server.
    #[expect(clippy::unnecessary_wraps, reason = "it fails on other platforms")]
    pub(crate) fn check() -> Result<(), Failure> {
        Ok(())
    }

    /// Creates a server in this process; must be called within a runtime.
    pub(crate) fn in_process() -> Result<Target, Failure> {
        let config = Config { supervisor: supervisor(), ..remex::config_from_env() };
        let local = Local::new(config).map_err(|error| Failure::new(error.message(), error.hint()))?;
        Ok(local.target())
    }

    /// Returns the command that runs another one again when it ends: this program; empty if it cannot be found.
    pub(crate) fn supervisor() -> Vec<OsString> {
        let program = std::env::current_exe().ok();
        program.map(|program| vec![program.into(), "supervise".into()]).unwrap_or_default()
    }

    /// Returns the login shell of this user, as `/etc/passwd` has it.
    pub(crate) fn login_shell() -> Option<String> {
        Some(remex::config_from_env().host.info.shell.path)
    }
}

#[cfg(not(target_os = "linux"))]
mod absent {
    use remex_client::Target;

    use crate::render::failure::Failure;

    pub(crate) fn check() -> Result<(), Failure> {
        Err(super::unavailable(std::env::consts::OS))
    }

    pub(crate) fn in_process() -> Result<Target, Failure> {
        Err(super::unavailable(std::env::consts::OS))
    }

    pub(crate) fn login_shell() -> Option<String> {
        None
    }
}

/// Returns the failure of everything that needs a server on this machine.
#[cfg(any(test, not(target_os = "linux")))]
fn unavailable(system: &str) -> Failure {
    Failure::new(
        "this machine cannot run a remex server",
        "choose a host with `--on ENV`, or `ENV:path` for files; `remex env add` defines one",
    )
    .because(format!("servers need Linux, and this is {system}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_states_why_no_local_server_can_run() {
        let failure = unavailable("macos");
        assert_eq!(
            failure.message(),
            "this machine cannot run a remex server: servers need Linux, and this is macos"
        );
    }
}
