//! The shells whose state can be captured, and how each prints it.

use remex_proto::{ErrorKind, RpcError, environment};

/// Shell options that no command may change.
const FIXED: [&str; 12] = [
    "login_shell",
    "restricted_shell",
    "interactive",
    "login",
    "monitor",
    "privileged",
    "restricted",
    "shinstdin",
    "singlecommand",
    "zle",
    "emacs",
    "vi",
];

/// A shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shell {
    kind: Kind,
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bash,
    Zsh,
    /// Prints no functions, unless it is bash.
    Sh,
}

impl Shell {
    pub(super) fn named(shell: &environment::Shell) -> Result<Self, RpcError> {
        let kind = match shell.name.as_str() {
            "bash" => Kind::Bash,
            "zsh" => Kind::Zsh,
            "sh" => Kind::Sh,
            other => {
                let message = format!("shell snapshots are not supported for `{other}`");
                return Err(RpcError::new(ErrorKind::InvalidParams, message)
                    .with_hint("start the process without `shellSnapshot`, or with bash, zsh or sh"));
            }
        };
        Ok(Shell { kind, path: shell.path.clone() })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the flag for a command that runs no profile files.
    pub(super) fn flag(&self) -> &'static str {
        match self.kind {
            Kind::Bash | Kind::Sh => "-c",
            Kind::Zsh => "-fc",
        }
    }

    /// Returns the command that prints `mark`, the variables, `mark`, a script, and `mark`.
    ///
    /// The script is what restores the shell: options that change how functions are read, functions, aliases, and
    /// options that would show or change how the rest is restored.
    pub(super) fn dump(&self, mark: &str) -> String {
        let bash = "shopt -p; declare -f; declare -Fx; alias -p; set +o";
        let state = match self.kind {
            Kind::Bash => bash.to_owned(),
            Kind::Sh => {
                format!("if [ -n \"${{BASH_VERSION-}}\" ]; then {bash}; else alias | sed \"s/^\\([A-Za-z_][^=']*=\\)/alias \\1/\"; set +o; fi")
            }
            Kind::Zsh => "builtin set +o; builtin print -r -- \"fpath=(${(qq)fpath})\"; builtin typeset -f; builtin alias -L"
                .to_owned(),
        };
        // The variables are those that a program sees: `env` prints them exactly.
        format!(
            "{{ printf '\\n%s\\n' {mark}; /usr/bin/env -0 || exit 1; printf '\\n%s\\n' {mark}; {state}; printf '\\n%s\\n' {mark}; }} 2>/dev/null"
        )
    }

    /// Removes from a script what cannot be restored, and moves what must be last.
    pub(super) fn script(&self, printed: &[u8]) -> Vec<u8> {
        let (mut script, mut last) = (Vec::new(), Vec::<u8>::new());
        if self.kind == Kind::Zsh {
            // What `-f` has switched off.
            script.extend(b"setopt rcs\n");
        }
        for line in printed.split_inclusive(|byte| *byte == b'\n') {
            match option(line) {
                Some(name) if FIXED.contains(&name) => {}
                Some("xtrace" | "verbose") => last.extend(line),
                Some("rcs" | "norcs") if self.kind == Kind::Zsh => {}
                _ => script.extend(line),
            }
        }
        script.extend(last);
        script
    }
}

/// Returns the name of the option that a line sets, if it is such a line.
fn option(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let prefixes = ["set -o ", "set +o ", "shopt -s ", "shopt -u "];
    prefixes.iter().find_map(|prefix| line.strip_prefix(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_change_are_left_out_and_tracing_is_last() {
        let shell = environment::Shell::new("bash", "/bin/bash");
        let shell = Shell::named(&shell).unwrap();
        let printed =
            b"shopt -u login_shell\nset -o xtrace\nshopt -s extglob\nf () \n{ \n    :\n}\nset +o vi\n";
        let script = b"shopt -s extglob\nf () \n{ \n    :\n}\nset -o xtrace\n";
        assert_eq!(shell.script(printed), script);
    }

    #[test]
    fn other_shells_are_refused() {
        let shell = environment::Shell::new("fish", "/bin/fish");
        assert_eq!(Shell::named(&shell).unwrap_err().kind, ErrorKind::InvalidParams);
    }
}
