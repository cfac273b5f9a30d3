//! `remex completions`: a script for a shell.
//!
//! Those for bash, zsh and fish ask `remex complete` whenever somebody wants to know what may follow; the others are
//! made of the flags as they are.

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Outcome;
use crate::{arguments::Arguments, print};

/// Flags of `remex completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Which shell reads the script
    shell: Shell,
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

pub(crate) fn run(flags: &Flags) -> Outcome {
    let asking = match flags.shell {
        Shell::Bash => Some(include_str!("completions/remex.bash")),
        Shell::Zsh => Some(include_str!("completions/_remex")),
        Shell::Fish => Some(include_str!("completions/remex.fish")),
        _ => None,
    };
    if let Some(asking) = asking {
        print::out(asking)?;
        return Ok(0);
    }
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut offered(Arguments::command()), "remex", &mut script);
    print::out(script)?;
    Ok(0)
}

/// Takes away what nobody is to type.
fn offered(command: Command) -> Command {
    ["serve", "cp"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |whole| {
            let shown = whole.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
            let about = whole.get_about().cloned().unwrap_or_default();
            Command::new(name).about(about).args(shown)
        })
    })
}
