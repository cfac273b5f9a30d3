//! From bytes to messages and back.

pub(crate) mod frame_reader;
pub(crate) mod framing;
pub(crate) mod http;
pub(crate) mod send_buffer;
pub mod websocket;
