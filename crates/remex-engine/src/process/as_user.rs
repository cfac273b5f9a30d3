//! Commands that run as another user of the host.
//!
//! What needs no lookup is checked with the request; the account is looked up where that may block. Start at [`AsUser`].

use std::{path::PathBuf, sync::Arc};

use remex_process::{CannotSwitchUser, Start, can_switch_user};
use remex_proto::{ErrorKind, HostPath, RpcError, process as wire};

use super::{Engine, Owner as _, ServedKind, ServerAudience};
use crate::{shared::host::Host, shared::user_account::UserAccount};

/// The user as whom a command is to run.
#[derive(Clone, Debug)]
pub(super) struct AsUser {
    name: String,
    /// Variables about the account that the request sets itself.
    explicit: Vec<String>,
    /// Whether it starts in the home of the account.
    in_home: bool,
}

impl AsUser {
    /// Returns the user that a request names.
    ///
    /// # Errors
    ///
    /// If this server can run nothing as another user, or not what this request asks for.
    pub(super) fn of(request: &wire::Start, host: &Host) -> Result<Option<Self>, RpcError> {
        let in_home = request.cwd.is_empty();
        let Some(name) = &request.user else {
            if in_home {
                return Err(RpcError::new(ErrorKind::InvalidParams, "missing field `cwd`"));
            }
            return Ok(None);
        };
        host.limits().check_id("user", name)?;
        can_switch_user().map_err(|why| cannot_switch(name, &why))?;
        if request.isolate_pids {
            return Err(not_combined(name, "`isolatePids`", "leave out `isolatePids`, or `user`"));
        }
        if request.shell_snapshot.is_some() {
            return Err(not_combined(name, "`shellSnapshot`", "leave out `shellSnapshot`, or `user`"));
        }
        let set = request.env_policy.iter().flat_map(|policy| policy.set.keys());
        let explicit = request.env.keys().chain(set).cloned().collect();
        Ok(Some(Self { name: name.clone(), explicit, in_home }))
    }

    /// Looks the account up; may block.
    fn find(&self) -> Result<UserAccount, RpcError> {
        UserAccount::find(&self.name)
    }

    /// Lets a command run as this account; returns its working directory if the request names none.
    fn apply(&self, start: &mut Start, account: UserAccount) -> Option<HostPath> {
        let UserAccount { name, ids, home, shell } = account;
        let name = PathBuf::from(name);
        for (variable, value) in [("HOME", &home), ("LOGNAME", &name), ("SHELL", &shell), ("USER", &name)] {
            if !self.explicit.iter().any(|explicit| explicit == variable) {
                start.env.retain(|(known, _)| known != variable);
                start.env.push((variable.into(), value.into()));
            }
        }
        start.user = Some(ids);
        self.in_home.then(|| {
            start.cwd.clone_from(&home);
            HostPath::from(home)
        })
    }

    /// Refuses to start a process again that is to be confined now.
    pub(super) fn check_restart(request: &wire::Start) -> Result<(), RpcError> {
        request.user.as_deref().map_or(Ok(()), |name| Err(confined(name)))
    }

    /// Refuses to start a process again as a user who is gone, or as whom this server can no longer run anything.
    pub(super) async fn check_account(
        request: &wire::Start,
        host: &Arc<Host>,
        identity: &Arc<str>,
    ) -> Result<(), RpcError> {
        match Self::of(request, host)? {
            Some(user) => host.threads_of(identity).run(move || user.find()).await?.map(drop),
            None => Ok(()),
        }
    }

    /// Refuses a command that is to be confined: a jail knows the user of the server only.
    pub(super) fn check_unconfined(&self, start: &Start) -> Result<(), RpcError> {
        if start.jail.is_none() { Ok(()) } else { Err(confined(&self.name)) }
    }
}

impl<A: ServerAudience, K: ServedKind<A>> Engine<A, K> {
    /// Lets a command run as another user, whom it looks up on a thread that may block.
    pub(super) async fn apply_user(
        &self,
        owner: &A::Owner,
        user: &AsUser,
        start: &mut Start,
    ) -> Result<(), RpcError> {
        let wanted = user.clone();
        let looking_up = self.host.threads_of(&owner.identity().into()).run(move || wanted.find());
        if let Some(home) = user.apply(start, looking_up.await??) {
            _ = self.kind.served().spec.home.set(home);
        }
        Ok(())
    }
}

/// Returns the working directory until that of the account is known.
pub(super) fn shown_cwd(request: &wire::Start) -> HostPath {
    if request.cwd.is_empty() { HostPath::from(PathBuf::from("/")) } else { request.cwd.clone() }
}

fn confined(name: &str) -> RpcError {
    let hint =
        "leave out `user`, or start it without a sandbox, where the server and the credential allow that";
    not_combined(name, "a sandbox", hint)
}

fn cannot_switch(name: &str, why: &CannotSwitchUser) -> RpcError {
    let (why, hint) = match why {
        CannotSwitchUser::NotRoot(uid) => (
            format!("this server runs as uid {uid}, and only one that runs as root can do that"),
            "leave out `user`, or connect to a server that runs as root or as that user",
        ),
        CannotSwitchUser::Without(capability) => (
            format!("this server runs as root without the capability {capability}"),
            "give the server that capability, or leave out `user`",
        ),
    };
    refusal(name, &why, hint)
}

fn not_combined(name: &str, with: &str, hint: &str) -> RpcError {
    refusal(name, &format!("`user` and {with} cannot be combined"), hint)
}

/// Returns the error for a user as whom the process is not started.
fn refusal(name: &str, why: &str, hint: &str) -> RpcError {
    let message = format!("cannot start a process as user `{}`: {why}", name.escape_debug());
    RpcError::new(ErrorKind::UserUnavailable, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_why_users_cannot_be_switched_is_named_with_a_hint() {
        let error = cannot_switch("ann", &CannotSwitchUser::NotRoot(1000));
        assert_eq!(
            error.to_string(),
            "cannot start a process as user `ann`: this server runs as uid 1000, and only one that runs as root can do \
             that; leave out `user`, or connect to a server that runs as root or as that user"
        );
        let error = cannot_switch("ann", &CannotSwitchUser::Without("CAP_SETUID"));
        assert!(error.message.ends_with("as root without the capability CAP_SETUID"), "{error}");
        assert_eq!(error.kind.word(), "userUnavailable");
    }
}
