//! Connections through `ssh`: hosts, command lines and what their failures mean.
//!
//! Start at `Program::ssh_proxy` and [`Program::ssh_login`].

use std::path::Path;

use crate::Program;

/// The flags of OpenSSH's `ssh` that are followed by a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";

/// The exit status of ssh when it cannot log in; other codes are those of the remote command.
#[cfg(unix)]
const LOGIN_FAILED: &str = "exit code 255";

/// The exit status of a shell that does not find a command.
#[cfg(unix)]
const NO_SUCH_COMMAND: &str = "exit code 127";

impl Program {
    /// Returns the command line that reaches the user's own server on `user@host:port`, of which user and port are
    /// optional.
    pub(crate) fn ssh_proxy(host: &str) -> Result<Self, &'static str> {
        let host = host.strip_suffix('/').unwrap_or(host);
        if host.contains('/') {
            return Err("a path is not allowed");
        }
        let (user, address) = match host.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, host),
        };
        if user.is_some_and(|user| user.is_empty() || user.contains(':')) {
            return Err("the user is empty or includes a password; ssh prompts for passwords itself");
        }
        let (name, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, port)) => (name, Some(port.strip_prefix(':').ok_or("only a port may follow `]`")?)),
            None => match address.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (address, None),
            },
        };
        let is_plain =
            |text: &str| text.chars().all(|letter| !letter.is_whitespace() && !letter.is_control());
        // ssh would parse a host that starts with `-` as a flag.
        if name.is_empty() || host.starts_with('-') || name.starts_with('-') || !is_plain(host) {
            return Err("the host is missing or invalid");
        }
        let mut args = Vec::new();
        if let Some(port) = port {
            let number: u16 = port.parse().ok().filter(|port| *port != 0).ok_or("invalid port")?;
            args.extend(["-p".to_owned(), number.to_string()]);
        }
        args.push(user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}")));
        args.extend(["remex", "proxy"].map(str::to_owned));
        Ok(Self::new("ssh").args(args))
    }

    /// Returns the part of an `ssh` command line that logs in, without the command to run there; `None` for other
    /// programs.
    ///
    /// ```
    /// use remex_client::{Program, Target};
    ///
    /// let Target::Program(program) = Target::program("ssh", ["-p", "2222", "far", "remex", "proxy"]) else {
    ///     unreachable!()
    /// };
    /// assert_eq!(program.ssh_login().unwrap().to_string(), "`ssh -p 2222 far`");
    /// ```
    pub fn ssh_login(&self) -> Option<Self> {
        if Path::new(&self.program).file_name()? != "ssh" {
            return None;
        }
        Some(Self { args: login(&self.args)?.map(str::to_owned).collect(), ..self.clone() })
    }
}

/// Returns what to do about an ssh command that has ended before it connected; `login` logs in and does nothing.
#[cfg(unix)]
pub(super) fn exit_hint(login: &str, status: &str) -> Option<String> {
    match status {
        LOGIN_FAILED => Some(format!(
            "run {login} at a terminal; when that works without a prompt, try again (remex must be installed there as \
             well)"
        )),
        NO_SUCH_COMMAND => Some(
            "install remex there, so that `remex` is in the PATH of commands that ssh runs, or name its path in the command \
             line"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns the arguments before the command; `None` if they contain no destination.
fn login(args: &[String]) -> Option<impl Iterator<Item = &str>> {
    let mut words = args.iter().map(String::as_str);
    let mut count = 0;
    let mut destination = false;
    // As in ssh itself, flags may also follow the destination, up to the first word of the command.
    while let Some(word) = words.next() {
        let value_follows = match word.strip_prefix('-') {
            Some("-") if destination => break,
            Some("-") => {
                destination = true;
                true
            }
            Some(flags) if !flags.is_empty() => {
                flags.find(|flag| WITH_VALUE.contains(flag)) == Some(flags.len() - 1)
            }
            _ if destination => break,
            _ => {
                destination = true;
                false
            }
        };
        count += 1;
        if value_follows {
            words.next()?;
            count += 1;
        }
    }
    destination.then(|| args[..count].iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remote_command_is_left_out() {
        let login_of = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let program = Program::new(words.next().unwrap()).args(words);
            program.ssh_login().map(|login| login.to_string())
        };
        for (line, expected) in [
            ("ssh far remex proxy", Some("`ssh far`")),
            (
                "/usr/bin/ssh -p 22 -oBatchMode=yes me@far remex proxy",
                Some("`/usr/bin/ssh -p 22 -oBatchMode=yes me@far`"),
            ),
            ("ssh -Tp 22 far -i key remex -v", Some("`ssh -Tp 22 far -i key`")),
            ("ssh -p22 -- far remex", Some("`ssh -p22 -- far`")),
            ("ssh far", Some("`ssh far`")),
            ("ssh -v", None),
            ("docker exec -i box remex proxy", None),
        ] {
            assert_eq!(login_of(line).as_deref(), expected, "{line}");
        }
    }
}
