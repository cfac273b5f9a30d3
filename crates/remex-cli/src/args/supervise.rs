//! The flags of `remex supervise`.

use std::ffi::OsString;

use clap::Args;
use remex_client::process::Restart;

use crate::args::restart::restart;

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// When to run the command again
    #[arg(long, value_parser = restart)]
    pub(crate) policy: Restart,

    /// What the command sees as its own name
    #[arg(long, value_name = "NAME")]
    pub(crate) arg0: Option<OsString>,

    /// The address space of the command, if that is too little for this program
    #[arg(long, value_name = "BYTES")]
    pub(crate) address_space: Option<u64>,

    /// The open files of the command, if those are too few for this program
    #[arg(long, value_name = "COUNT")]
    pub(crate) open_files: Option<u64>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
