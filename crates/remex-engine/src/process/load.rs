//! Reads output from the files of a log, off the threads of the runtime and without the lock of the process.
//!
//! Errors that may pass, such as a lack of descriptors, are retried and logged at a bounded rate. Start at
//! [`ServerProcess::load`].

use std::{
    io,
    time::{Duration, Instant},
};

use remex_base::{log_limit::LogLimit, supervise::Panicked, threads::ClientThreads};
use remex_proto::state::output_log::Cursor;

use super::{Audience, Core, Owner as _, ServerAudience, ServerProcess, log::Loaded};
use crate::process::LOG_TARGET;
use crate::shared::host::{Host, Phase};

/// The delays between attempts to read files.
#[derive(Debug, Default)]
pub struct Backoff {
    attempts: u32,
}

/// The attempts after which a request is answered with the error: less than a second.
const BRIEF_ATTEMPTS: u32 = 4;

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);

    /// Returns how long to wait before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = Self::FIRST.saturating_mul(1 << self.attempts.min(10)).min(Self::LONGEST);
        self.attempts += 1;
        delay
    }

    /// Waits before the next attempt; returns false at once if there were enough for a request.
    pub async fn brief(&mut self) -> bool {
        if self.attempts >= BRIEF_ATTEMPTS {
            return false;
        }
        tokio::time::sleep(self.next_delay()).await;
        true
    }
}

impl<A: Audience> Core<A> {
    /// Returns the threads that read the files of its log: those of the identity that it belongs to.
    pub(super) fn log_threads(&self) -> ClientThreads {
        let owner = self.owner();
        let identity = owner.map(|owner| owner.identity().to_string()).unwrap_or_default();
        self.host.threads_of(&identity.into())
    }
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Reads the output after `cursor` from the files, once. `None` for a log that is not on disk.
    pub(crate) async fn load(&self, cursor: Cursor) -> Option<io::Result<Loaded>> {
        let load = self.state().kind.log_mut().disk()?.load(cursor);
        let loaded = self.log_threads().run(move || load.run()).await;
        let loaded = loaded.unwrap_or_else(|_| Err(io::Error::other(Panicked)));
        if let Err(error) = &loaded {
            warn_unreadable(&self.id, error);
        }
        Some(loaded)
    }

    /// Reads the output after `cursor` from the files, again and again until that works; `None` once `is_wanted` says so,
    /// or when the server stops.
    pub async fn load_patiently(&self, cursor: Cursor, is_wanted: impl Fn() -> bool) -> Option<Loaded> {
        let mut backoff = Backoff::default();
        while is_wanted() {
            match self.load(cursor).await? {
                Ok(loaded) => return Some(loaded),
                Err(_) => pause(self.host(), backoff.next_delay()).await?,
            }
        }
        None
    }
}

/// Waits; returns `None` at once when the server disconnects its clients.
pub(super) async fn pause(host: &Host, delay: Duration) -> Option<()> {
    let mut phase = host.phase().subscribe();
    tokio::select! {
        () = tokio::time::sleep(delay) => Some(()),
        _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => None,
    }
}

/// Reports that a log cannot be read, once a second at most.
pub(super) fn warn_unreadable(process: &str, error: &io::Error) {
    static LIMIT: LogLimit = LogLimit::new(1, Duration::from_secs(1));
    if let Some(suppressed) = LIMIT.count(Instant::now()) {
        let suppressed = Some(suppressed).filter(|count| *count > 0);
        tracing::warn!(target: LOG_TARGET, process, %error, suppressed, "cannot read the log of a process, trying again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_up_to_two_seconds() {
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..40).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays[..7], [50, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!(delays[39], 2000);
    }
}
