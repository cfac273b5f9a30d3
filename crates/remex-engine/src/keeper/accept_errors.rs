//! How often the log says why no server can be accepted. Start at [`AcceptErrors`].

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

/// How often the same reason is logged.
const ACCEPT_ERROR_PERIOD: Duration = Duration::from_secs(60);

/// When each reason why no server can be accepted was logged last.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    logged: HashMap<Option<i32>, Instant>,
}

impl AcceptErrors {
    /// Returns whether to log an error: once in a while for each cause.
    pub(super) fn is_new(&mut self, error: &io::Error, now: Instant) -> bool {
        let is_recent = |logged: &Instant| now.duration_since(*logged) < ACCEPT_ERROR_PERIOD;
        let cause = error.raw_os_error();
        if self.logged.get(&cause).is_some_and(is_recent) {
            return false;
        }
        self.logged.insert(cause, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_reason_why_no_server_is_accepted_is_logged_once_a_minute() {
        let (mut errors, now) = (AcceptErrors::default(), Instant::now());
        let [files, memory] = [24, 12].map(io::Error::from_raw_os_error);
        assert!(errors.is_new(&files, now));
        assert!(!errors.is_new(&files, now + Duration::from_secs(59)));
        assert!(errors.is_new(&memory, now + Duration::from_secs(59)));
        assert!(errors.is_new(&files, now + Duration::from_secs(60)));
    }
}
