//! Explains why a server did not start a command, in the words of the command line.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use remex_client::{Error, ErrorKind};

use crate::{
    remote::endpoint::EndpointKind,
    render::{
        failure::{Failure, Kind},
        text,
    },
};

/// The limits: in the protocol, and of `--limit`.
const LIMITS: [(&str, &str); 5] = [
    ("`limits.cpuSeconds`", "`--limit cpu`"),
    ("`limits.memoryBytes`", "`--limit memory`"),
    ("`limits.openFiles`", "`--limit files`"),
    ("`limits.processes`", "`--limit processes`"),
    ("`limits.fileBytes`", "`--limit file-size`"),
];

/// Explains why the command was not started.
pub(super) fn explain(error: Error, server: EndpointKind, program: &OsStr, args: &[OsString]) -> Failure {
    let failure = Failure::from(limits_as_typed(error, server));
    match program.to_str() {
        Some(line) if failure.kind() == Kind::ProgramNotFound && is_line(line, args) => {
            failure.with_hint(format!(
                "it is not run through a shell: remove the quotes, or use `sh -c {}`",
                text::quoted(line)
            ))
        }
        _ if failure.kind() == Kind::ProgramNotFound && program.as_bytes().contains(&b'/') => {
            failure.with_hint("check the path; if it is a script, check its first line (`#!`)")
        }
        _ => failure,
    }
}

/// Names limits as they were typed, and this process if it is the one that cannot enforce them.
fn limits_as_typed(error: Error, server: EndpointKind) -> Error {
    let Error::Refused(mut refusal) = error else { return error };
    let Some((member, typed)) = LIMITS.into_iter().find(|(member, _)| refusal.message.contains(member))
    else {
        return Error::Refused(refusal);
    };
    refusal.message = refusal.message.replace(member, typed);
    if server == EndpointKind::InProcess {
        refusal.message = refusal
            .message
            .replace("the hard limit of the server itself", "the hard limit of this process")
            .replace("the server runs as root", "this process runs as root");
        refusal.hint = match refusal.kind {
            ErrorKind::LimitExceeded => refusal.hint.map(|hint| {
                let flag = match typed {
                    "`--limit cpu`" => "t",
                    "`--limit memory`" => "v",
                    "`--limit files`" => "n",
                    "`--limit processes`" => "u",
                    _ => "f",
                };
                hint.replace("start the server with a higher limit", &format!("raise `ulimit -H{flag}`"))
            }),
            ErrorKind::NotSupported => Some(
                "omit the limit, run remex as another user, or use a server that has a cgroup (`--on`)"
                    .to_owned(),
            ),
            _ => refusal.hint,
        };
    }
    Error::Refused(refusal)
}

/// Returns whether a whole command line was given as the program.
fn is_line(program: &str, args: &[OsString]) -> bool {
    args.is_empty() && program.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use remex_proto::RpcError;

    use super::*;

    fn explained(error: RpcError, server: EndpointKind, program: &str) -> (String, String) {
        let failure = explain(error.into(), server, OsStr::new(program), &[]);
        (failure.message(), failure.hint().unwrap_or_default().to_owned())
    }

    #[test]
    fn limits_have_the_names_that_were_typed() {
        let too_high = || {
            let message = "`limits.openFiles` is 30000, but the hard limit of the server itself is 20000";
            RpcError::new(ErrorKind::LimitExceeded, message)
                .with_hint("ask for at most 20000, or start the server with a higher limit")
        };
        let (message, hint) = explained(too_high(), EndpointKind::Remote, "true");
        assert_eq!(message, "`--limit files` is 30000, but the hard limit of the server itself is 20000");
        assert_eq!(hint, "ask for at most 20000, or start the server with a higher limit");
        let (message, hint) = explained(too_high(), EndpointKind::InProcess, "true");
        assert_eq!(message, "`--limit files` is 30000, but the hard limit of this process is 20000");
        assert_eq!(hint, "ask for at most 20000, or raise `ulimit -Hn`");
    }

    #[test]
    fn a_path_is_not_searched_for() {
        let missing =
            || RpcError::new(ErrorKind::ProgramNotFound, "not found").with_hint("check the variable PATH");
        let hint = |program| explained(missing(), EndpointKind::Remote, program).1;
        assert_eq!(hint("prog"), "check the variable PATH");
        assert_eq!(hint("/nosuch/prog"), "check the path; if it is a script, check its first line (`#!`)");
        assert!(hint("a/prog x").contains("`sh -c 'a/prog x'`"));
    }

    #[test]
    fn without_a_server_no_hint_is_about_one() {
        let message = "cannot enforce `limits.processes`: the server runs as root, which the kernel exempts, and has no \
                       cgroup for it: it uses none";
        let error = RpcError::new(ErrorKind::NotSupported, message).with_hint("give it a cgroup");
        let (message, hint) = explained(error, EndpointKind::InProcess, "true");
        assert!(
            message.starts_with("cannot enforce `--limit processes`: this process runs as root"),
            "{message}"
        );
        assert!(hint.contains("run remex as another user") && hint.contains("`--on`"), "{hint}");
    }
}
