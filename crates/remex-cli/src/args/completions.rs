//! The arguments of `remex completions`, and the scripts that it prints.
//!
//! Those for bash, zsh and fish ask `remex complete` for candidates; the others list the flags.

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Arguments;

/// Flags of `remex completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The shell
    pub(crate) shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  For bash:
    echo '. <(remex completions bash)' >> ~/.bashrc
  For zsh, in a directory that `~/.zshrc` adds to `fpath` before `compinit`:
    remex completions zsh | install -Dm644 /dev/stdin ~/.zfunc/_remex
  For fish:
    remex completions fish | install -Dm644 /dev/stdin ~/.config/fish/completions/remex.fish

Shells that are started afterwards have them.
For zsh, `~/.zshrc` needs `fpath=(~/.zfunc $fpath)` and then `autoload -U compinit; compinit`.";

/// Returns the script for a shell.
pub(crate) fn script(shell: Shell) -> Vec<u8> {
    match shell {
        Shell::Bash => include_bytes!("completions/remex.bash").to_vec(),
        Shell::Zsh => include_bytes!("completions/_remex").to_vec(),
        Shell::Fish => include_bytes!("completions/remex.fish").to_vec(),
        _ => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut offered(Arguments::command()), "remex", &mut script);
            script
        }
    }
}

/// Hides compatibility flags from completions.
fn offered(command: Command) -> Command {
    ["serve", "cp"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |whole| {
            let shown = whole.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
            let about = whole.get_about().cloned().unwrap_or_default();
            Command::new(name).about(about).args(shown)
        })
    })
}
