//! Listening sockets passed by systemd.
//!
//! Start at [`take`].

use listenfd::ListenFd;
use remex_rpc::Inherited;

use crate::render::failure::{Failure, Kind};

/// The variables that describe them, which are hidden from the processes of the server.
pub(super) const VARIABLES: [&str; 3] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Takes all sockets; must be called before other threads exist, because it changes the environment.
pub(super) fn take() -> Result<Vec<Inherited>, Failure> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Err(Failure::new(
            "cannot listen on `systemd`",
            "start it through a socket unit, see packaging/systemd",
        )
        .because("no socket was passed to this process"));
    }
    (0..passed.len()).map(|index| socket(&mut passed, index)).collect()
}

fn socket(passed: &mut ListenFd, index: usize) -> Result<Inherited, Failure> {
    // A call for the wrong type leaves the socket in place.
    if let Ok(Some(socket)) = passed.take_unix_listener(index) {
        return Ok(Inherited::Unix(socket));
    }
    match passed.take_tcp_listener(index) {
        Ok(Some(socket)) => Ok(Inherited::Tcp(socket)),
        Ok(None) => Err(Failure::bare(Kind::Failed, format!("socket {index} from systemd is missing"))),
        Err(error) => {
            Err(Failure::bare(Kind::Failed, format!("cannot listen on socket {index} from systemd"))
                .because(format!("it is neither a unix nor a TCP stream: {error}")))
        }
    }
}
