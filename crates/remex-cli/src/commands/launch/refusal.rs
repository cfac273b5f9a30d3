//! Explains why a server did not start a command, in the words of the command line.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use remex_base::quote::shell_word;
use remex_client::{Error, ErrorKind};

use crate::render::failure::{Failure, Kind};

/// Explains why the command was not started; `hidden` is its directory, as it was typed, if its sandbox may hide that.
pub(super) fn explain(error: Error, program: &OsStr, args: &[OsString], hidden: Option<&str>) -> Failure {
    let failure = Failure::from(error);
    // Only a sandbox hides a directory that is there.
    if let Some(directory) = hidden.map(shell_word)
        && failure.refusal() == Some(ErrorKind::BadCwd)
        && failure.message().contains("the sandbox")
    {
        return failure.with_hint(format!(
            "add `--read {directory}` to let the command read this directory, `--write {directory}` to let it write there as \
             well, or choose another one with `--cwd`"
        ));
    }
    match program.to_str() {
        Some(line) if failure.kind() == Kind::ProgramNotFound && is_line(line, args) => failure.with_hint(
            format!("it is not run through a shell: remove the quotes, or use `sh -c {}`", shell_word(line)),
        ),
        _ if failure.kind() == Kind::ProgramNotFound && program.as_bytes().contains(&b'/') => {
            failure.with_hint("check the path; if it is a script, check its first line (`#!`)")
        }
        _ => failure,
    }
}

/// Returns whether a whole command line was given as the program.
fn is_line(program: &str, args: &[OsString]) -> bool {
    args.is_empty() && program.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use remex_proto::RpcError;

    use super::*;

    #[test]
    fn a_path_is_not_searched_for() {
        let hint = |program| {
            let missing =
                RpcError::new(ErrorKind::ProgramNotFound, "not found").with_hint("check the variable PATH");
            let failure = explain(missing.into(), OsStr::new(program), &[], None);
            failure.hint().unwrap_or_default().to_owned()
        };
        assert_eq!(hint("prog"), "check the variable PATH");
        assert_eq!(hint("/nosuch/prog"), "check the path; if it is a script, check its first line (`#!`)");
        assert!(hint("a/prog x").contains("`sh -c 'a/prog x'`"));
    }
}
