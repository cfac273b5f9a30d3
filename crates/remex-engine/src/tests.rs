//! A keeper as a server sees it, and a state directory after a power failure.

mod keeper_messages;
mod power;

use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> crate::EngineConfig {
    crate::EngineConfig {
        limits: remex_base::limits::Limits::default(),
        env: Vec::new(),
        sandbox: Default::default(),
        hidden: Default::default(),
        starts: Default::default(),
        supervisor: Vec::new(),
    }
}
