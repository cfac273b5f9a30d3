//! Connections that this program made itself, with its HTTP client: they say nothing about who asked for them.
//!
//! A program that serves and connects to itself, such as a test, uses no HTTP request for it, and stays the owner.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt as _,
    sync::atomic::{AtomicU64, Ordering},
};

use super::OwnedSocket;

/// The ports to which HTTP requests have gone, one bit each, of all servers of this program.
static PORTS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Notes, before the connection is made, that an HTTP request of a client goes to this port.
pub(crate) fn will_connect_to(port: u16) {
    let (word, bit) = place(port);
    word.fetch_or(bit, Ordering::SeqCst);
}

/// Returns the peer's socket unless it may be one of the HTTP client of this program.
///
/// `found` is the result of `look_up` and `port` that of the listener.
pub(super) fn unless_own(
    found: Option<OwnedSocket>,
    port: u16,
    look_up: impl Fn() -> io::Result<Option<OwnedSocket>>,
) -> io::Result<Option<OwnedSocket>> {
    let (word, bit) = place(port);
    let own_uid = rustix::process::geteuid().as_raw();
    let Some(socket) = found.filter(|socket| socket.uid == own_uid) else { return Ok(found) };
    if word.load(Ordering::SeqCst) & bit == 0 {
        return Ok(found);
    }
    if is_open_here(socket.inode)? {
        return Ok(None);
    }
    // One that was closed meanwhile may have been ours.
    Ok(look_up()?.filter(|again| *again == socket))
}

fn place(port: u16) -> (&'static AtomicU64, u64) {
    (&PORTS[usize::from(port / 64)], 1 << (port % 64))
}

/// Returns whether this process has the socket open.
fn is_open_here(inode: u64) -> io::Result<bool> {
    let wanted = format!("socket:[{inode}]");
    // Not of `self`, which shows nothing once the first thread has ended.
    for entry in fs::read_dir("/proc/thread-self/fd")? {
        // A descriptor may be closed at any time.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        if target.as_os_str().as_bytes() == wanted.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}
