//! The sandbox of a command, from its flags.

use std::ffi::OsString;

use remex_client::process::Sandbox;

use crate::{
    args::sandbox::{Confine, Net, Profile},
    render::failure::Failure,
};

/// Returns the sandbox that the flags ask for; `absolute` completes relative paths.
pub(super) fn sandbox(
    flags: &Confine,
    absolute: impl Fn(&str) -> Result<OsString, Failure>,
) -> Result<Option<Sandbox>, Failure> {
    let mut sandbox = match (flags.sandbox, flags.net) {
        (Some(Profile::ReadOnly), _) => Sandbox::read_only(),
        (Some(Profile::WorkspaceWrite), _) => Sandbox::workspace_write(),
        (Some(Profile::Minimal), _) => Sandbox::minimal(),
        (None, Some(Net::Off)) => Sandbox::no_network(),
        (None, None | Some(Net::On)) => return Ok(None),
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
    Ok(Some(sandbox.network(flags.net == Some(Net::On))))
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
        assert_eq!(confine(&Confine { net: Some(Net::On), ..Confine::default() }), None);
        let offline = Confine { net: Some(Net::Off), ..Confine::default() };
        assert_eq!(confine(&offline), Some(Sandbox::no_network()));
        let flags = Confine {
            sandbox: Some(Profile::Minimal),
            net: Some(Net::On),
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
    }
}
