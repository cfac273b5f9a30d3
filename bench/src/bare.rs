//! What the machine allows: the same work done with nothing between us and the kernel.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, waitpid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use crate::{
    Stdio,
    spawn::{Wiring, spawn},
};

/// What a plain loop around `read` would use.
const READ_LEN: usize = 64 * 1024;

/// Runs `argv` to its end and returns how many bytes it wrote to stdout or to its terminal.
pub(crate) fn run(argv: &[&str], stdio: Stdio) -> Result<u64> {
    match stdio {
        Stdio::Pipe => run_on_pipes(argv),
        Stdio::Pty => {
            let mut terminal = Terminal::start(argv)?;
            let produced = count(&mut terminal.master)?;
            terminal.wait()?;
            Ok(produced)
        }
    }
}

fn run_on_pipes(argv: &[&str]) -> Result<u64> {
    let (stdout, child_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, child_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let pid = spawn(argv, &Wiring::Pipes { stdout: child_stdout.as_fd(), stderr: child_stderr.as_fd() })
        .with_context(|| format!("cannot start `{}`", argv[0]))?;
    drop((child_stdout, child_stderr));
    let produced = count(&mut File::from(stdout))?;
    count(&mut File::from(stderr))?;
    wait(pid)?;
    Ok(produced)
}

/// A child on a pseudo-terminal, seen from the side of the master.
pub(crate) struct Terminal {
    master: File,
    pid: Pid,
}

impl Terminal {
    /// Starts `argv` as the leader of a session with a terminal of its own.
    pub(crate) fn start(argv: &[&str]) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?;
        let pid = spawn(argv, &Wiring::Terminal(&path))
            .with_context(|| format!("cannot start `{}` on a terminal", argv[0]))?;
        Ok(Self { master: master.into(), pid })
    }

    /// Writes one byte to the child.
    pub(crate) fn write_byte(&mut self, byte: u8) -> io::Result<()> {
        self.master.write_all(&[byte])
    }

    /// Waits for one byte from the child.
    pub(crate) fn read_byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.master.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Hangs up, which ends an idle child, and reaps it.
    pub(crate) fn hang_up(self) -> Result<()> {
        drop(self.master);
        waitpid(Some(self.pid), WaitOptions::empty())?;
        Ok(())
    }

    fn wait(self) -> Result<()> {
        wait(self.pid)
    }
}

fn wait(pid: Pid) -> Result<()> {
    let (_, status) = waitpid(Some(pid), WaitOptions::empty())?.context("the child is still running")?;
    ensure!(status.exit_status() == Some(0), "a bare child failed with {status:?}");
    Ok(())
}

/// Reads to the end and counts; a terminal whose last user is gone reports an I/O error instead of an end.
fn count(source: &mut File) -> io::Result<u64> {
    let mut buffer = vec![0; READ_LEN];
    let mut total = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(len) => total += len as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(total),
            Err(error) => return Err(error),
        }
    }
}
