//! What a sandbox profile allows on this host.
//!
//! Turns the profile of a client, with its directories and environment, into a [`Policy`] that says for every path
//! whether it may be read, written or neither. Pure: it decides, and others enforce. The only view of the file system
//! is the trait [`Host`]. Start at [`resolve`].

mod base;
mod policy;
mod protect;
mod resolve;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "serde")]
pub use base::os_bytes;

pub use base::access::{Access, Action};
pub use base::error::{PolicyError, Reason};
pub use base::host::{Host, Kind, Node, SystemHost};
pub use base::hosts::{HostDenial, HostList, HostName, HostPattern, HostPatternError, Hosts, NameError};
pub use base::pattern::Pattern;
pub use policy::{Link, Policy, Rule, UnenforceableRule};
pub use remex_proto::sandbox::{Network, Preset};
pub use resolve::{Request, resolve};
