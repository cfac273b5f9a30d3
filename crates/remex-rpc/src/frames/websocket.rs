//! The WebSocket protocol (RFC 6455) after its handshake: frames in, frames out.
//!
//! Pure: no I/O. Text is not checked for UTF-8 here, because the parser of the message does that anyway.
//! Start at [`Decoder`].

mod decoder;
mod frame;

pub use decoder::{Decoder, Event, Violation};
pub(crate) use frame::{
    BINARY, CLOSE, MAX_CONTROL_LEN, MAX_HEAD_LEN, PING, PONG, TEXT, head_len, mask, write_head,
};
