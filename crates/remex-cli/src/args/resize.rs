//! The arguments of `remex resize`.

use std::num::NonZeroU16;

use clap::Args;

use crate::{args::shared::On, render::failure::InvalidArg};

/// Flags of `remex resize`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The process, by its name or an unambiguous prefix
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The new height of the terminal, in lines of text
    #[arg(long, value_name = "N", value_parser = rows_or_cols)]
    pub(crate) rows: NonZeroU16,

    /// The new width of the terminal, in characters
    #[arg(long, value_name = "N", value_parser = rows_or_cols)]
    pub(crate) cols: NonZeroU16,

    /// Rejects `40x120`, whose order differs between programs
    #[arg(hide = true, value_name = "SIZE", value_parser = reject_size)]
    size: Option<String>,

    #[command(flatten)]
    pub(crate) on: On,
}

const EXAMPLES: &str = "\
Examples:
  40 rows of 120 columns:
    remex resize build --rows 40 --cols 120
";

fn rows_or_cols(text: &str) -> Result<NonZeroU16, InvalidArg> {
    text.parse()
        .map_err(|_| InvalidArg::new("it is not a number from 1 to 65535", "write a number such as `40`"))
}

/// Explains what to write instead of a size such as `40x120`.
fn reject_size(text: &str) -> Result<String, InvalidArg> {
    let hint = "write `--rows N --cols N`";
    Err(match text.split_once(['x', 'X', '×']) {
        Some(_) => InvalidArg::new("it does not say which number is the rows and which the columns", hint),
        None => InvalidArg::new("the size is given by two options", hint),
    })
}
