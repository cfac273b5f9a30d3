//! Facts about the host, and the environment variables of children.
//!
//! Start at [`Info`] for the host, at [`resolve`] for children.

mod config;
mod info;
mod policy;
mod state;

pub use config::{ConfigLayer, ConfigLayers, ConfigReply, ReadConfig};
pub use info::{
    Confinement, Features, GetInfo, GetStatus, Info, LimitMethod, ProcessConfinement, ProcessLimits, Shell,
    Starts, Status, StatusReply,
};
pub use policy::{EnvPolicy, Inherit, passes, resolve};
pub use state::{Keeper, State};
