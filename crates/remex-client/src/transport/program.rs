//! A program that is started for one connection and ends with it.
//!
//! Without the feature `program`, and where processes have no groups and signals, [`Child`] has no values.
//! Start at [`Program`], [`start`] and [`Child`].

#[cfg(not(all(unix, feature = "program")))]
mod absent;
#[cfg(all(unix, feature = "program"))]
mod child;
#[cfg(feature = "program")]
mod command_line;
#[cfg(feature = "program")]
mod ssh;

#[cfg(all(unix, feature = "program"))]
use self::child as running;

#[cfg(not(all(unix, feature = "program")))]
use self::absent as running;

pub(crate) use running::Child;
#[cfg(feature = "program")]
pub(crate) use running::start;
#[cfg(feature = "program")]
pub use {command_line::Program, running::wait_for_programs};
