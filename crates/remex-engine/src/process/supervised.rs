//! Commands that are run again when they end.
//!
//! The server starts a supervisor, which runs the command in its own process group: so a restart needs no server, and all
//! runs have one pid, one output and one end. Start at [`Supervisor`].

use std::{
    ffi::OsString,
    mem,
    path::{Path, PathBuf},
};

use remex_process::{Rlimit, Start};
use remex_proto::{
    ErrorKind, RpcError,
    process::{Restart, RestartPolicy},
};
use remex_sandbox::{Access, Policy};

use crate::shared::host::Host;

/// What the supervisor needs of the limits for each process by itself: one below that is set for the command alone.
const NEEDS: [(Rlimit, &str, u64); 2] =
    [(Rlimit::AddressSpace, "--address-space", 256 << 20), (Rlimit::OpenFiles, "--open-files", 64)];

/// What runs a command again when it ends.
#[derive(Debug)]
pub(super) struct Supervisor {
    program: OsString,
    /// All up to the command.
    args: Vec<OsString>,
}

impl Supervisor {
    /// Returns the supervisor for a command that asks to be run again.
    ///
    /// # Errors
    ///
    /// If the server has none.
    pub(super) fn find(restart: Option<&Restart>, host: &Host) -> Result<Option<Self>, RpcError> {
        let Some(restart) = restart else { return Ok(None) };
        let Some((program, first)) = host.supervisor().split_first() else {
            let message = "this server cannot run a command again when it ends";
            return Err(RpcError::new(ErrorKind::NotSupported, message)
                .with_hint("omit `restart`, or use a server of the program `remex`"));
        };
        let mut args = first.to_vec();
        args.extend(["--policy".into(), policy(restart).into()]);
        Ok(Some(Supervisor { program: program.clone(), args }))
    }

    /// Returns where its program is.
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.program)
    }

    /// Checks that a confined process can execute the program of the supervisor.
    pub(super) fn check_visible(&self, policy: &Policy, hidden: &[PathBuf]) -> Result<(), RpcError> {
        // One that cannot be found is reported by the start.
        let Ok(program) = self.path().canonicalize() else { return Ok(()) };
        let is_hidden = hidden.iter().any(|path| program.starts_with(path));
        if !is_hidden && policy.access(&program) != Access::Deny {
            return Ok(());
        }
        let path = program.display();
        let message = format!(
            "cannot run this command again when it ends: its sandbox hides `{path}`, which would do that"
        );
        let hint = if is_hidden {
            format!("omit `restart`, or install `{path}` outside of the directories of the server")
        } else {
            format!("let the sandbox read it (`remex run --read {path}`), or omit `restart`")
        };
        Err(RpcError::new(ErrorKind::SandboxUnavailable, message).with_hint(hint))
    }

    /// Starts the supervisor of a command in place of the command.
    pub(super) fn wrap(self, mut start: Start) -> Start {
        let Supervisor { program, mut args } = self;
        if let Some(name) = start.arg0.take() {
            // It may begin with a dash, as that of a login shell does.
            let mut flag = OsString::from("--arg0=");
            flag.push(name);
            args.push(flag);
        }
        for (limit, flag, need) in NEEDS {
            if let Some(value) = start.rlimits.get(limit).filter(|value| *value < need) {
                args.push(format!("{flag}={value}").into());
                start.rlimits = start.rlimits.with(limit, need.min(limit.most()));
            }
        }
        args.extend(["--".into(), mem::replace(&mut start.program, program)]);
        args.append(&mut start.args);
        start.args = args;
        start
    }
}

/// Returns a policy as the supervisor takes it.
fn policy(restart: &Restart) -> String {
    let word = match restart.policy {
        RestartPolicy::Always => "always",
        _ => "on-failure",
    };
    restart.max_restarts.map_or_else(|| word.to_owned(), |most| format!("{word}:{most}"))
}
