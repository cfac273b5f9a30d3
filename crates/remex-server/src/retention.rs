//! Accounts of retained output: each process is charged to its session, each session to the server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts retained bytes against a limit, and against its parent account.
#[derive(Debug)]
pub(crate) struct RetentionAccount {
    limit: usize,
    used: AtomicUsize,
    parent: Option<Arc<RetentionAccount>>,
}

impl RetentionAccount {
    /// Creates the account of a server.
    pub(crate) fn new(limit: usize) -> Self {
        RetentionAccount { limit, used: AtomicUsize::new(0), parent: None }
    }

    /// Creates an account within `parent`.
    pub(crate) fn within(parent: &Arc<Self>, limit: usize) -> Self {
        RetentionAccount { limit, used: AtomicUsize::new(0), parent: Some(Arc::clone(parent)) }
    }

    /// Returns how many more bytes may be retained.
    pub(crate) fn left(&self) -> usize {
        let own = self.limit.saturating_sub(self.used.load(Ordering::Relaxed));
        self.parent.as_ref().map_or(own, |parent| own.min(parent.left()))
    }

    /// Changes the charge of one log from `before` to `after` bytes.
    pub(crate) fn charge(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
        if let (Some(parent), false) = (&self.parent, after == before) {
            parent.charge(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_bounded_by_its_own_account_and_by_that_of_the_server() {
        let server = Arc::new(RetentionAccount::new(100));
        let [one, other] = [(); 2].map(|()| RetentionAccount::within(&server, 80));
        one.charge(0, 70);
        assert_eq!((one.left(), other.left(), server.left()), (10, 30, 30));
        other.charge(0, 30);
        assert_eq!((one.left(), other.left()), (0, 0));
        one.charge(70, 20);
        assert_eq!((one.left(), other.left(), server.left()), (50, 50, 50));
    }
}
