//! The flags of `remex keeper`.

use std::path::PathBuf;

use clap::Args;

use crate::args::shared::absolute;

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The descriptor with what the program before this one has left
    #[arg(long, value_name = "FD")]
    pub(crate) tables: Option<i32>,
    /// Only tell, by the exit code, whether tables of this version are understood
    #[arg(long, value_name = "VERSION")]
    pub(crate) check_tables: Option<u32>,
    /// The state directory
    #[arg(value_name = "DIR", value_parser = absolute())]
    pub(crate) state: PathBuf,
}
