//! The process at the other end of a link: whether it still runs when the link has ended.

use std::{os::fd::OwnedFd, time::Duration};

use remex_process::register_fd;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
};
use tokio::io::{Interest, unix::AsyncFd};

/// How often a process is looked at that cannot be watched.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A process that was there when this was created.
#[derive(Debug)]
pub(crate) struct Peer {
    pid: Option<Pid>,
    /// Readable once it has ended; `None` if the host has no room for that.
    watched: Option<AsyncFd<OwnedFd>>,
}

impl Peer {
    /// Must be called within a runtime.
    pub(crate) fn new(pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        Peer { pid, watched: pidfd.and_then(|pidfd| register_fd(pidfd, Interest::READABLE).ok()) }
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        if let Some(watched) = &self.watched
            && let Ok(mut ended) = watched.readable().await
        {
            return ended.retain_ready();
        }
        while self.pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH)) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_peer_has_ended_only_once_its_process_exits() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let peer = Peer::new(child.id());
        assert!(tokio::time::timeout(Duration::from_millis(50), peer.ended()).await.is_err());
        child.kill().unwrap();
        for _ in 0..2 {
            tokio::time::timeout(Duration::from_secs(60), peer.ended()).await.unwrap();
        }
        child.wait().unwrap();
        tokio::time::timeout(Duration::from_secs(60), Peer::new(child.id()).ended()).await.unwrap();
    }
}
