//! Who may do what on a server, and how much of it: tokens, scopes, identities, admission, rates, memory, sandboxes, and the
//! record of what was done.
//!
//! Nothing here knows a session, a process or a connection. Start at [`auth::Authenticator`].

pub mod account;
pub mod admission;
pub mod audit;
pub mod auth;
pub mod budget;
pub mod confinement;
pub mod grants;
pub mod identity;
pub mod rate;
pub mod scope;
pub mod token;
