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

/// What follows a mark if the shell is about to read a file for interactive shells.
const READING: &str = "-reading";

/// The files that a shell reads before its state is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// The files of a login shell.
    Login,
    /// The files of a login shell, and then the file of an interactive shell.
    Interactive,
}

/// Returns what a shell prints before it reads a file for interactive shells.
pub(super) fn reading(mark: &str) -> String {
    format!("\n{mark}{READING}\n")
}

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

    /// Returns whether it parses all lines of `-c` before it runs the first, so that aliases do not reach the others.
    pub(super) fn parses_ahead(&self) -> bool {
        self.kind == Kind::Zsh
    }

    /// Returns the command that prints what `args` of `printf` say, whatever functions there are.
    pub(super) fn print(&self, args: &str) -> String {
        let builtin = match self.kind {
            Kind::Bash | Kind::Zsh => "builtin",
            Kind::Sh => "command",
        };
        format!("{builtin} printf {args}")
    }

    /// Returns the command that prints `mark`, the variables, `mark`, a script, and `mark`.
    ///
    /// The script is what restores the shell: options that change how functions are read, functions, aliases, and
    /// options that would show or change how the rest is restored.
    ///
    /// It is one line, which the shell parses before it reads a file, so that no alias changes what it means.
    pub(super) fn dump(&self, mark: &str, files: Files) -> String {
        let bash =
            "builtin shopt -p; builtin declare -f; builtin declare -Fx; builtin alias -p; builtin set +o";
        let state = match self.kind {
            Kind::Bash => bash.to_owned(),
            Kind::Sh => {
                format!("if [ -n \"${{BASH_VERSION-}}\" ]; then {bash}; else command alias | command sed \"s/^\\([A-Za-z_][^=']*=\\)/alias \\1/\"; set +o; fi")
            }
            Kind::Zsh => "builtin set +o; builtin print -r -- \"fpath=(${(qq)fpath})\"; builtin typeset -f; builtin alias -L"
                .to_owned(),
        };
        let read = match files {
            Files::Interactive => self.read(mark),
            Files::Login => String::new(),
        };
        let print = self.print(&format!("'\\n%s\\n' {mark}"));
        // The variables are those that a program sees: `env` prints them exactly.
        format!("{read}{{ {print}; /usr/bin/env -0 || exit 1; {print}; {state}; {print}; }} 2>/dev/null")
    }

    /// Returns the command that reads the file of an interactive shell, after it has printed [`reading`].
    ///
    /// What the file prints, now or later from the background, must not get between the marks.
    fn read(&self, mark: &str) -> String {
        let (condition, file) = match self.kind {
            Kind::Bash => ("[ -z \"${BASH_ENV-}\" ] && [ -r ~/.bashrc ]", "~/.bashrc"),
            Kind::Zsh => ("[[ -r \"${ZDOTDIR:-$HOME}/.zshrc\" ]]", "\"${ZDOTDIR:-$HOME}/.zshrc\""),
            // A file without a slash would be looked for in `PATH`.
            Kind::Sh => ("case ${ENV-} in /*) [ -r \"$ENV\" ];; *) false;; esac", "\"$ENV\""),
        };
        let print = self.print(&format!("'\\n%s\\n' {mark}{READING}"));
        format!("if {condition}; then {print}; . {file} >/dev/null 2>&1; fi; ")
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
