//! What outlives the server: its directory, the link to the keeper, records of durable processes.

pub(crate) mod durable;
pub(crate) mod keeper_link;
pub(crate) mod state_dir;
