//! Sockets that listened before this program began, as systemd passes them.
//!
//! Start at [`take`].

use listenfd::ListenFd;
use remex_rpc::Inherited;

use crate::render::failure::{Failure, Kind};

/// What tells about them; nothing of it concerns the commands that run here.
pub(super) const VARIABLES: [&str; 3] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Takes all of them; must be called before there are other threads, because it changes the environment.
pub(super) fn take() -> Result<Vec<Inherited>, Failure> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Err(Failure::new(
            "cannot listen on `systemd`: no socket was passed to this process",
            "start it through a socket unit, see packaging/systemd",
        ));
    }
    (0..passed.len()).map(|index| socket(&mut passed, index)).collect()
}

fn socket(passed: &mut ListenFd, index: usize) -> Result<Inherited, Failure> {
    // Whichever does not fit leaves the socket where it is.
    if let Ok(Some(socket)) = passed.take_unix_listener(index) {
        return Ok(Inherited::Unix(socket));
    }
    match passed.take_tcp_listener(index) {
        Ok(Some(socket)) => Ok(Inherited::Tcp(socket)),
        Ok(None) => Err(Failure::bare(Kind::Failed, format!("socket {index} from systemd is missing"))),
        Err(error) => Err(Failure::bare(
            Kind::Failed,
            format!(
                "cannot listen on socket {index} from systemd: it is neither a unix nor a TCP stream: {error}"
            ),
        )),
    }
}
