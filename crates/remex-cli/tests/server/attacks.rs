//! Attacks on the real program: wrong and narrow credentials, sessions of others, paths outside, certificates, floods.
//!
//! Each is refused, nothing happens, and the audit file has a line about it. SECURITY.md lists what is shown where.

mod certificates;
mod credentials;
mod floods;
mod http;
mod methods;
mod paths;
mod scopes;
mod sessions;
mod set_id;
