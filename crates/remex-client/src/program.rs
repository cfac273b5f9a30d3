//! A server that is started for one connection, and lives and dies with it.
//!
//! A thread of its own keeps each: it outlives the runtime, so the program is ended whatever becomes of the
//! future, the task or the runtime that started it. Start at [`start`] and [`Child`].

mod keeper;
mod pidfd;
mod stderr;
#[cfg(test)]
mod tests;
mod tree;

use std::{
    io::{self, PipeWriter},
    os::unix::process::CommandExt,
    process::{self, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use remex_rpc::{ReadHalf, WriteHalf};
use tokio::{
    net::unix::pipe,
    sync::{oneshot, watch},
    time::timeout,
};

use self::{keeper::Streams, stderr::Tail};
use crate::{
    Error, Program,
    error::{said, unreachable},
};

/// How long the end of a program and its last words may take to arrive here.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running program, with whatever it starts.
///
/// Dropped, it is ended in the background, without a runtime: its standard input is closed already, so it has a
/// moment to end by itself; then its whole tree is asked with TERM, and killed after another moment.
#[derive(Debug)]
pub(crate) struct Child {
    target: String,
    /// Dropped, it tells the keeper to end the program.
    order: PipeWriter,
    /// Closed when the program is ended and reaped.
    life: watch::Receiver<Life>,
}

/// What the keeper knows of a program.
#[derive(Debug, Default)]
struct Life {
    /// How it ended, once it did.
    status: Option<String>,
    stderr: Tail,
    /// Nobody can say more on standard error.
    silent: bool,
}

/// How many programs have a keeper that has not finished.
static KEPT: Mutex<usize> = Mutex::new(0);

/// Told whenever one has finished.
static FINISHED: Condvar = Condvar::new();

/// Counts as one program until it is dropped.
struct Kept(());

impl Kept {
    fn new() -> Self {
        *kept() += 1;
        Self(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        *kept() -= 1;
        FINISHED.notify_all();
    }
}

fn kept() -> MutexGuard<'static, usize> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every program that clients of this process have started is ended, and tells whether it is.
///
/// Programs are ended in the background when nobody uses them any more, which takes some seconds with one that does
/// not want to. Whoever returns from `main` before leaves such a program running; so call this last, when no client is
/// left. It blocks, so call it outside of a runtime.
///
/// ```
/// use std::time::Duration;
///
/// // No program was started.
/// assert!(remex_client::programs_ended(Duration::from_secs(5)));
/// ```
pub fn programs_ended(limit: Duration) -> bool {
    let waited = FINISHED.wait_timeout_while(kept(), limit, |kept| *kept > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

/// Starts a program; it answers on the two halves, which are its standard output and input.
///
/// Dropping the future leaves nothing behind.
pub(crate) async fn start(program: &Program) -> Result<(ReadHalf, WriteHalf, Child), Error> {
    let target = program.to_string();
    let failed = |error| unreachable(&target, reason(program, &error));
    let command = command(program);
    let (hangup, order) = io::pipe().map_err(failed)?;
    let (news, life) = watch::channel(Life::default());
    let (born, birth) = oneshot::channel();
    thread::Builder::new()
        .name("remex-program".to_owned())
        .spawn({
            let kept = Kept::new();
            move || {
                let _kept = kept;
                keeper::keep(command, &hangup, news, born);
            }
        })
        .map_err(failed)?;
    let Streams { stdin, stdout } = birth
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that was to start it panicked")))
        .map_err(failed)?;
    let reader = pipe::Receiver::from_owned_fd(stdout.into()).map_err(failed)?;
    let writer = pipe::Sender::from_owned_fd(stdin.into()).map_err(failed)?;
    Ok((Box::new(reader), Box::new(writer), Child { target, order, life }))
}

impl Child {
    /// Says why there was no answer, when the program's output has ended before one.
    pub(crate) async fn obituary(&mut self) -> Error {
        // Standard error may be held open by others, so that an end without silence is an end, too.
        let _ = timeout(LAST_WORDS, self.life.wait_for(|life| life.status.is_some() && life.silent)).await;
        let life = self.life.borrow();
        let stderr = life.stderr.to_string();
        match &life.status {
            Some(status) => {
                Error::ProgramEnded { program: self.target.clone(), status: status.clone(), stderr }
            }
            None => unreachable(
                &self.target,
                format!(
                    "it closed its output without an answer; check that it is a server on its standard streams, \
                     such as `remex serve --listen stdio`{}",
                    said(&stderr)
                ),
            ),
        }
    }

    /// Ends the program and its tree, and waits for that.
    ///
    /// The half that writes has to be dropped before, for the end of its input is what a server ends by.
    pub(crate) async fn end(self) {
        let Self { order, mut life, .. } = self;
        drop(order);
        while life.changed().await.is_ok() {}
    }
}

fn command(program: &Program) -> process::Command {
    let mut command = process::Command::new(&program.program);
    command
        .args(&program.args)
        .envs(&program.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(cwd) = &program.cwd {
        command.current_dir(cwd);
    }
    command
}

/// Says why a program did not start, and what to do.
fn reason(program: &Program, error: &io::Error) -> String {
    let name = &program.program;
    if let Some(cwd) = program.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return format!("there is no directory `{}` to start it in; make it, or name another", cwd.display());
    }
    match error.kind() {
        io::ErrorKind::NotFound if name.contains('/') => {
            format!("there is no program `{name}`, or not the interpreter that it names; check the path")
        }
        io::ErrorKind::NotFound => {
            format!("there is no program `{name}` in the PATH; install it, or give its whole path")
        }
        io::ErrorKind::PermissionDenied => {
            format!("`{name}` may not be run; make it executable, or check who owns it")
        }
        _ => format!("`{name}` did not start: {error}; check that it runs by hand"),
    }
}
