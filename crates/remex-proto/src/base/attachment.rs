//! Bytes that travel beside the JSON of a message, instead of as base64 within it.
//!
//! Serde has no room for them: while a message is written or parsed, they belong to the thread that does it.

use std::{cell::RefCell, thread::LocalKey};

use bytes::Bytes;

thread_local! {
    static WRITTEN: RefCell<Option<Attached>> = const { RefCell::new(None) };
    static READ: RefCell<Option<Unread>> = const { RefCell::new(None) };
}

/// The bytes beside the JSON of a message, in the order of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// The pieces, none of them empty.
    pub pieces: Vec<Bytes>,
    /// Their total length.
    pub len: usize,
}

struct Unread {
    bytes: Bytes,
    /// No byte belongs to two members, so that a short message never turns into a long one.
    from: usize,
}

/// Puts back what was there before, also after a panic.
struct Restore<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);

impl<T> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1.take());
    }
}

/// Collects the bytes of all blobs that `write` serializes; in their place it writes where they are.
pub fn collect<T>(write: impl FnOnce() -> T) -> (T, Attached) {
    let _restore = Restore(&WRITTEN, WRITTEN.replace(Some(Attached::default())));
    let written = write();
    (written, WRITTEN.take().unwrap_or_default())
}

/// Runs `parse` with the bytes that arrived beside the JSON that it parses.
pub fn with<T>(bytes: Bytes, parse: impl FnOnce() -> T) -> T {
    let _restore = Restore(&READ, READ.replace(Some(Unread { bytes, from: 0 })));
    parse()
}

/// Adds bytes to those that are being collected; returns their offset, or `None` if nothing collects them.
pub(super) fn attach(bytes: &Bytes) -> Option<usize> {
    WRITTEN.with_borrow_mut(|attached| {
        let attached = attached.as_mut()?;
        let offset = attached.len;
        attached.pieces.push(bytes.clone());
        attached.len += bytes.len();
        Some(offset)
    })
}

/// Returns whether bytes have arrived beside the JSON that is being parsed.
pub(super) fn is_present() -> bool {
    READ.with_borrow(Option::is_some)
}

/// Takes bytes that arrived beside the JSON.
pub(super) fn take(offset: usize, len: usize) -> Result<Bytes, InvalidReference> {
    READ.with_borrow_mut(|unread| {
        let Some(unread) = unread else { return Err(InvalidReference::Nothing) };
        let end = offset.checked_add(len).filter(|end| *end <= unread.bytes.len());
        let Some(end) = end else {
            return Err(InvalidReference::Beyond { offset, len, attached: unread.bytes.len() });
        };
        if offset < unread.from {
            return Err(InvalidReference::Again { offset, from: unread.from });
        }
        unread.from = end;
        // A small member must not keep a large message alive.
        Ok(if len < unread.bytes.len() / 2 {
            Bytes::copy_from_slice(&unread.bytes[offset..end])
        } else {
            unread.bytes.slice(offset..end)
        })
    })
}

/// Why a member of a message names no bytes beside it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidReference {
    #[error("no bytes are attached to this message")]
    Nothing,
    #[error("{len} bytes at {offset} exceed the {attached} bytes attached to this message")]
    Beyond { offset: usize, len: usize, attached: usize },
    #[error("the attached bytes at {offset} belong to an earlier member; the next begin at {from} or later")]
    Again { offset: usize, from: usize },
}
