//! Programs that do nothing useful without a terminal.

use std::ffi::OsString;

/// Shells and interpreters: without arguments they are interactive.
const READ_KEYBOARD: [&str; 17] = [
    "bash",
    "csh",
    "dash",
    "fish",
    "ghci",
    "irb",
    "ksh",
    "mysql",
    "node",
    "psql",
    "python",
    "python3",
    "redis-cli",
    "sh",
    "sqlite3",
    "tcsh",
    "zsh",
];

/// Programs that use the whole screen, whatever their arguments are.
const USE_SCREEN: [&str; 11] =
    ["emacs", "htop", "less", "mc", "more", "nano", "nvim", "screen", "tmux", "vi", "vim"];

/// Returns what is missing for a command that needs a terminal and is run without one.
pub(super) fn lack(command: &[OsString]) -> Option<String> {
    let (program, args) = command.split_first()?;
    let program = program.to_str()?;
    let name = program.rsplit('/').next().unwrap_or(program);
    let needs_terminal = USE_SCREEN.contains(&name) || (args.is_empty() && READ_KEYBOARD.contains(&name));
    needs_terminal.then(|| {
        format!("`{name}` has neither a terminal nor your keyboard; for both, use `remex run -t -- {name}`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_without_a_script_and_editors_need_a_terminal() {
        let lack = |words: &[&str]| lack(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(lack(&["bash"]).unwrap().ends_with("`remex run -t -- bash`"));
        for needy in [&["/bin/sh"][..], &["vim", "notes"], &["python3"]] {
            assert!(lack(needy).is_some(), "{needy:?}");
        }
        for content in [&["bash", "-c", "true"][..], &["python3", "script"], &["make"], &[]] {
            assert_eq!(lack(content), None, "{content:?}");
        }
    }
}
