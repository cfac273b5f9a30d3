//! The flags of `remex keeper`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The state directory
    #[arg(value_name = "DIR")]
    pub(crate) state: PathBuf,
}
