//! The remex server: sessions that own processes, for clients over any transport.
//!
//! In reading order: [`Server`] accepts connections and keeps sessions. A connection reads requests and answers
//! them. A session owns processes. A process is one task that writes one log, and an outbox holds what waits to
//! be sent. The server never reads configuration itself: the program passes a [`Config`].

// From bottom to top: each room uses only those above it in this list. `tests/architecture.rs` in the package `remex`
// checks that, and has the order of the modules in each room.
mod config;

mod peers;

mod shared;

mod outbox;

mod areas;

mod sessions;

mod calls;

mod edge;

#[cfg(test)]
mod tests;

pub use config::{Config, HostInfo, MetricsAccess, Proxies, Trust};
pub use edge::server::{CreateError, Server};
pub use peers::socket_owner::check_unconfined;
pub use remex_access::audit::AuditConfig;
pub use remex_access::confinement::{CredentialRecord, SandboxFloor, StartPolicy};
pub use remex_access::grants::{Auth, CertificateGrant, CertificatePolicy, UserGrant};
pub use remex_access::scope::{FileAccess, Floor, Permission, ScopeError, Scopes};
pub use remex_access::token::{self, TokenGrant};
pub use remex_base::limits::{InvalidLimit, Limit, LimitValue, Limits, Reload};
pub use remex_base::trace::SetParent;
pub use remex_engine::{CgroupUse, StateConfig};
