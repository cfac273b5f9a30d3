//! The arguments of `remex complete`.

use clap::{Args, ValueEnum};

/// Flags of `remex complete`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The shell that asks for completions
    pub(crate) shell: Shell,

    /// The characters at which bash splits words (`COMP_WORDBREAKS`)
    #[arg(long, value_name = "CHARACTERS", default_value = "", allow_hyphen_values = true)]
    pub(crate) word_breaks: String,

    /// The words up to the cursor, the last of which is completed; for bash the whole line
    #[arg(last = true)]
    pub(crate) words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
