//! The ssh login behind a connection on a unix socket, as with `ssh HOST remex proxy`.
//!
//! A server that an ssh login has started keeps the variables of that login. Processes started through another login get
//! the variables of that one: `SSH_CONNECTION` then names the host of its user, and `SSH_AUTH_SOCK` a reachable agent.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    sync::Arc,
};

use remex_proto::{
    environment::{Inherit, passes},
    process::Start,
};
use rustix::process::getuid;
use tokio::net::UnixStream;

/// The variables that sshd sets for a login.
const NAMES: [&str; 4] = ["SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"];

/// The variable that every login through ssh has.
const MARK: &str = "SSH_CONNECTION";

/// The longest environment that is read.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// The variables of one ssh login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SshLogin(BTreeMap<&'static str, String>);

impl SshLogin {
    /// Returns the login in which the process at the other end runs; `None` if it is none, or belongs to another user.
    pub(crate) fn of(stream: &UnixStream) -> Option<Arc<Self>> {
        let peer = stream.peer_cred().ok().filter(|peer| peer.uid() == getuid().as_raw())?;
        let environment = environment_of(peer.pid()?).ok()?;
        Self::parse(&environment).map(Arc::new)
    }

    fn parse(environment: &[u8]) -> Option<Self> {
        let mut variables = BTreeMap::new();
        for pair in environment.split(|byte| *byte == 0) {
            let Some((name, value)) = std::str::from_utf8(pair).ok().and_then(|pair| pair.split_once('='))
            else {
                continue;
            };
            if let Some(name) = NAMES.iter().find(|known| **known == name) {
                variables.insert(*name, value.to_owned());
            }
        }
        variables.contains_key(MARK).then_some(Self(variables))
    }

    /// Replaces what a process would inherit of the login that started the server; what its client sets stays.
    pub(crate) fn apply(&self, request: &mut Start) {
        let Some(policy) = request.env_policy.as_mut().filter(|policy| policy.inherit == Inherit::All) else {
            return;
        };
        for name in NAMES {
            if request.env.contains_key(name) || policy.set.contains_key(name) {
                continue;
            }
            match self.0.get(name) {
                Some(value) if passes(Some(&*policy), name.as_ref()) => {
                    request.env.insert(name.to_owned(), value.clone());
                }
                Some(_) => {}
                None => policy.exclude.push(name.to_owned()),
            }
        }
    }
}

fn environment_of(pid: i32) -> io::Result<Vec<u8>> {
    let mut environment = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(MAX_ENVIRONMENT).read_to_end(&mut environment)?;
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn start(policy: &serde_json::Value, env: &serde_json::Value) -> Start {
        serde_json::from_value(json!({
            "processId": "p", "argv": ["true"], "cwd": "/", "env": env, "envPolicy": policy, "tty": false,
        }))
        .unwrap()
    }

    fn policy(inherit: &str, exclude: &[&str]) -> serde_json::Value {
        json!({"inherit": inherit, "ignoreDefaultExcludes": true, "exclude": exclude, "set": {}, "includeOnly": []})
    }

    #[test]
    fn only_an_environment_of_a_login_through_ssh_is_one() {
        assert_eq!(SshLogin::parse(b"HOME=/root\0SSH_AUTH_SOCK=/tmp/agent\0"), None);
        let login =
            SshLogin::parse(b"HOME=/root\0SSH_CONNECTION=a 1 b 2\0SSH_AUTH_SOCK=/tmp/agent\0").unwrap();
        let expected = [("SSH_AUTH_SOCK", "/tmp/agent"), ("SSH_CONNECTION", "a 1 b 2")];
        let found: Vec<_> = login.0.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_login_variables_replace_inherited_ones_and_nothing_else_changes() {
        let login = SshLogin::parse(b"SSH_CONNECTION=a 1 b 2\0SSH_CLIENT=a 1 2\0").unwrap();
        let mut request = start(&policy("all", &["SSH_CLIENT"]), &json!({"SSH_TTY": "/dev/mine"}));
        login.apply(&mut request);
        let env: Vec<_> = request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("SSH_CONNECTION", "a 1 b 2"), ("SSH_TTY", "/dev/mine")]);
        assert_eq!(request.env_policy.unwrap().exclude, ["SSH_CLIENT", "SSH_AUTH_SOCK"]);
        for policy in [policy("none", &[]), policy("core", &[]), serde_json::Value::Null] {
            let before = start(&policy, &json!({}));
            let mut request = before.clone();
            login.apply(&mut request);
            assert_eq!(request, before);
        }
    }
}
