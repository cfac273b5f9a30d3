//! The sandbox of a command, from its flags.

use std::ffi::OsString;

use remex_client::process::Sandbox;

use crate::{
    args::sandbox::{Confine, NetworkAccess, Profile},
    render::failure::Failure,
};

/// Returns the sandbox that the flags ask for; `absolute` completes relative paths.
pub(in crate::commands) fn sandbox(
    flags: &Confine,
    absolute: impl Fn(&str) -> Result<OsString, Failure>,
) -> Result<Option<Sandbox>, Failure> {
    let net = network(&flags.net)?;
    let mut sandbox = match (flags.sandbox, &net) {
        (Some(Profile::ReadOnly), _) => Sandbox::read_only(),
        (Some(Profile::WorkspaceWrite), _) => Sandbox::workspace_write(),
        (Some(Profile::Minimal), _) => Sandbox::minimal(),
        (None, Some(NetworkAccess::Off | NetworkAccess::Allow(_))) => Sandbox::no_network(),
        (None, None | Some(NetworkAccess::On)) => return Ok(None),
    };
    for path in &flags.read {
        sandbox = sandbox.read(absolute(path)?);
    }
    for path in &flags.write {
        sandbox = sandbox.write(absolute(path)?);
    }
    for path in &flags.deny {
        sandbox = match path.contains(['*', '?', '[']) {
            true => sandbox.deny_pattern(path),
            false => sandbox.deny(absolute(path)?),
        };
    }
    Ok(Some(match net {
        Some(NetworkAccess::On) => sandbox.network(true),
        Some(NetworkAccess::Allow(hosts)) => hosts.into_iter().fold(sandbox, Sandbox::allow_host),
        Some(NetworkAccess::Off) | None => sandbox,
    }))
}

/// Returns the combination of all `--net` flags.
fn network(flags: &[NetworkAccess]) -> Result<Option<NetworkAccess>, Failure> {
    let mut all: Option<NetworkAccess> = None;
    for flag in flags {
        all = Some(match (all, flag) {
            (None, flag) => flag.clone(),
            (Some(NetworkAccess::Allow(mut hosts)), NetworkAccess::Allow(more)) => {
                hosts.extend(more.iter().cloned());
                NetworkAccess::Allow(hosts)
            }
            (Some(known), flag) if known == *flag => known,
            (Some(_), _) => {
                return Err(Failure::usage(
                    "the flags `--net` contradict each other",
                    "use `--net on`, `--net off`, or one or more `--net allow=HOST,…`",
                ));
            }
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_sandbox() {
        let absolute = |path: &str| Ok(OsString::from(format!("/here/{path}")));
        let confine = |flags: &Confine| sandbox(flags, absolute).unwrap();
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(confine(&Confine::default()), None);
        assert_eq!(confine(&Confine { net: vec![NetworkAccess::On], ..Confine::default() }), None);
        let offline = Confine { net: vec![NetworkAccess::Off], ..Confine::default() };
        assert_eq!(confine(&offline), Some(Sandbox::no_network()));
        let flags = Confine {
            sandbox: Some(Profile::Minimal),
            net: vec![NetworkAccess::On],
            read: text(&["in"]),
            write: text(&["out"]),
            deny: text(&["keys", "**/.env"]),
        };
        let expected = Sandbox::minimal()
            .read("/here/in")
            .write("/here/out")
            .deny("/here/keys")
            .deny_pattern("**/.env")
            .network(true);
        assert_eq!(confine(&flags), Some(expected));
        let allow = |hosts: &[&str]| NetworkAccess::Allow(text(hosts));
        let flags =
            Confine { net: vec![allow(&["a.org", "*.b.org"]), allow(&["c.org:1"])], ..Confine::default() };
        let expected = Sandbox::no_network().allow_host("a.org").allow_host("*.b.org").allow_host("c.org:1");
        assert_eq!(confine(&flags), Some(expected));
        let flags = Confine { net: vec![allow(&["a.org"]), NetworkAccess::On], ..Confine::default() };
        assert!(sandbox(&flags, absolute).is_err());
    }
}
