//! The replacement of a server by the program that is now on disk, without a refused connection.
//!
//! SIGUSR2 asks for it. The server ends its connections, and executes the new program as the same process, with its
//! listening sockets open: who connects meanwhile waits in their backlogs. Start at [`wanted`] and [`take`].

use std::{
    cell::RefCell,
    ffi::OsString,
    fmt::Write as _,
    io,
    os::fd::{AsFd, AsRawFd as _, RawFd},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use remex_base::lock;
use remex_rpc::{HandoverSocket, Inherited, ListenAddress, Listener};
use remex_server::Server;
use rustix::net::{AddressFamily, sockopt::socket_domain};
use tokio::signal::unix::Signal;

use super::{SYSTEMD, cannot};
use crate::render::failure::{Failure, Kind};

/// The variable with what is passed: the pid of the program it is meant for, and then a line for each socket with its
/// descriptor and its URL.
pub(super) const VARIABLE: &str = "REMEX_HANDOVER";

/// How a server is, in its lock file: it works.
pub(crate) const SERVING: &str = "serving";

/// The same: it was not replaced, and why.
pub(crate) const REFUSED: &str = "not replaced: ";

/// How long a program may take to print its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// The sockets and descriptors for the next program.
#[derive(Debug)]
pub(super) struct Handover {
    /// Where this program was when it started; that file may be another one now.
    program: PathBuf,
    urls: Vec<String>,
    sockets: Vec<PassedSocket>,
    /// Where unix sockets are, for commands that look for the server.
    paths: Vec<PathBuf>,
}

/// A listening socket that is passed to the next program; shared with what serves it, which may replace it.
#[derive(Clone, Debug)]
pub(super) struct PassedSocket(Arc<Mutex<HandoverSocket>>);

impl PassedSocket {
    /// Passes this socket instead.
    pub(super) fn replace(&self, listener: &Listener) -> io::Result<()> {
        let kept = listener.for_handover()?;
        let earlier = std::mem::replace(&mut *self.lock(), kept);
        drop(earlier);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HandoverSocket> {
        lock(&self.0)
    }
}

/// The sockets and descriptors passed to this program.
#[derive(Debug)]
pub(super) struct HandedOver {
    sockets: RefCell<Vec<(String, Option<Inherited>)>>,
}

impl Handover {
    pub(super) fn new() -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(cannot("find this program"))?;
        Ok(Handover { program, urls: Vec::new(), sockets: Vec::new(), paths: Vec::new() })
    }

    /// Adds a listener.
    pub(super) fn add(&mut self, url: &str, listener: &Listener) -> Result<PassedSocket, Failure> {
        let kept = listener.for_handover().map_err(cannot("keep a listening socket"))?;
        let passed = PassedSocket(Arc::new(Mutex::new(kept)));
        self.sockets.push(passed.clone());
        self.urls.push(url.to_owned());
        if let ListenAddress::Unix(path) = listener.address() {
            self.paths.push(path.clone());
        }
        Ok(passed)
    }

    /// Replaces this program; returns only if that fails.
    pub(super) fn exec(self) -> Failure {
        let mut command = Command::new(&self.program);
        let mut passed = std::process::id().to_string();
        let sockets: Vec<_> = self.sockets.iter().map(PassedSocket::lock).collect();
        for (url, socket) in self.urls.iter().zip(&sockets) {
            let _ = write!(passed, "\n{} {url}", socket.as_fd().as_raw_fd());
        }
        command.args(std::env::args_os().skip(1)).env(VARIABLE, passed);
        let sockets: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let error = remex_process::exec_command_with_fds(command, &sockets);
        cannot(&format!("execute `{}`", self.program.display()))(error)
    }

    /// Records that the server works, for commands that look for it.
    pub(super) fn say_serving(&self, server: &Server) {
        server.say_status(&self.program, SERVING, &self.paths);
    }
}

/// Waits for a request to replace the server that can be granted; logs why others cannot.
pub(super) async fn wanted(signal: &mut Signal, handover: &Handover, server: &Server) {
    loop {
        if signal.recv().await.is_none() {
            return std::future::pending().await;
        }
        if !server.is_durable() {
            tracing::error!(
                "cannot upgrade in place: processes and sessions would be lost without a state directory; restart the server, or start it with `--state`"
            );
            continue;
        }
        let program = handover.program.clone();
        let checked = server.run_blocking(move || version_of(&program)).await;
        let reason = match checked {
            Some(Ok(version)) => {
                tracing::info!(version, "upgrading");
                return;
            }
            Some(Err(reason)) => reason,
            None => "checking it failed, which is a defect of the server".to_owned(),
        };
        tracing::error!(reason, "cannot upgrade: the program on disk does not run");
        server.say_status(&handover.program, &format!("{REFUSED}{reason}"), &handover.paths);
    }
}

/// Takes the sockets and descriptors from the previous program, if this one replaces it.
pub(super) fn take() -> Result<Option<HandedOver>, Failure> {
    let Some(passed) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let passed = OsString::into_string(passed)
        .map_err(|_| Failure::bare(Kind::Failed, format!("{VARIABLE} is not text")))?;
    let mut lines = passed.lines();
    // Programs that this one starts inherit the variable, and not the sockets.
    if lines.next() != Some(std::process::id().to_string().as_str()) {
        return Ok(None);
    }
    let sockets = lines.map(|line| {
        let (number, url) = line.split_once(' ').unwrap_or((line, ""));
        let taken = number.parse().map_err(io::Error::other).and_then(take_socket);
        let socket = taken.map_err(cannot(&format!("go on with the socket of `{url}`")))?;
        Ok((url.to_owned(), Some(socket)))
    });
    Ok(Some(HandedOver { sockets: RefCell::new(sockets.collect::<Result<_, Failure>>()?) }))
}

fn take_socket(number: RawFd) -> io::Result<Inherited> {
    let socket = remex_process::take_inherited_fd(number)?;
    Ok(match socket_domain(&socket)? {
        AddressFamily::UNIX => Inherited::Unix(socket.into()),
        _ => Inherited::Tcp(socket.into()),
    })
}

impl HandedOver {
    /// Takes the sockets that came from systemd in the first place.
    pub(super) fn take_activated(&mut self) -> Vec<Inherited> {
        let sockets = self.sockets.get_mut().iter_mut();
        sockets.filter(|(url, _)| url == SYSTEMD).filter_map(|(_, socket)| socket.take()).collect()
    }

    /// Takes the socket for a URL.
    pub(super) fn find(&self, wanted: &str) -> Option<Inherited> {
        let mut sockets = self.sockets.borrow_mut();
        let (_, socket) = sockets.iter_mut().find(|(url, socket)| url == wanted && socket.is_some())?;
        socket.take()
    }
}

/// Returns what a program says about its version, if it is this one. Blocks.
pub(crate) fn version_of(program: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--version");
    match remex_process::run_with_timeout(command, VERSION_PATIENCE) {
        Ok((status, said)) if status.success() && said.starts_with("remex ") => Ok(said.trim().to_owned()),
        Ok((status, _)) if status.success() => Err(format!("`{}` is not remex", program.display())),
        Ok((status, _)) => Err(format!("`{} --version` ended with {status}", program.display())),
        Err(error) => Err(format!("cannot run `{}`: {error}", program.display())),
    }
}
