//! What every room of the client uses: errors, options, events, and the differences between platforms.

pub(crate) mod connection_state;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod options;
pub(crate) mod platform;
pub(crate) mod refusal;
pub(crate) mod trace;
pub(crate) mod url;
