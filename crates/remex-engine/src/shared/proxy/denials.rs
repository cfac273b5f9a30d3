//! Denied hosts of a jail, for its client and for the log.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use remex_base::lock;
use remex_proto::process::DeniedHost;
use remex_sandbox::HostName;

/// Different hosts and ports that are counted; a process may ask for any number.
const MAX_HOSTS: usize = 64;

/// Bytes that the names of all of them have together; they are kept as long as the process.
const MAX_NAMES: usize = 4 << 10;

/// Stands for all hosts that are not counted one by one, with the port 0.
const OTHERS: &str = "*";

/// Is called with each host and port that is refused for the first time, and the reason.
pub(crate) type OnDenial = Box<dyn Fn(&str, u16, &str) + Send + Sync>;

/// The hosts that one process was refused.
pub struct Denials {
    /// A leaf, held briefly.
    counts: Mutex<BTreeMap<(String, u16), u64>>,
    /// Refusals of hosts that are not counted one by one.
    others: AtomicU64,
    on_first: OnDenial,
}

impl Denials {
    /// Calls a function with the first refusal of each host.
    pub fn new(on_first: OnDenial) -> Self {
        Self { counts: Mutex::default(), others: AtomicU64::new(0), on_first }
    }

    /// Counts a refusal.
    pub(super) fn add(&self, host: &HostName, port: u16, why: &str) {
        let key = (host.to_string(), port);
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if counts.len() < MAX_HOSTS
            && counts.keys().map(|(name, _)| name.len()).sum::<usize>() + key.0.len() <= MAX_NAMES
        {
            counts.insert(key.clone(), 1);
            drop(counts);
            (self.on_first)(&key.0, port, why);
        } else if self.others.fetch_add(1, Ordering::Relaxed) == 0 {
            drop(counts);
            (self.on_first)(OTHERS, 0, "there are too many different hosts to name each");
        }
    }

    /// Returns whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        lock(&self.counts).is_empty()
    }

    /// Returns the hosts that a process was refused so far, if it reaches any.
    pub fn list_of(denials: Option<&Self>) -> Vec<DeniedHost> {
        denials.map(Self::list).unwrap_or_default()
    }

    /// Returns the hosts that were refused so far.
    pub(super) fn list(&self) -> Vec<DeniedHost> {
        let counts = lock(&self.counts);
        let denied = |((host, port), count): (&(String, u16), &u64)| DeniedHost::new(host, *port, *count);
        let mut list: Vec<_> = counts.iter().map(denied).collect();
        let others = self.others.load(Ordering::Relaxed);
        if others > 0 {
            list.push(DeniedHost::new(OTHERS, 0, others));
        }
        list
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials").field("counts", &self.counts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn each_denied_host_is_reported_once_and_their_number_is_bounded() {
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        let denials = Denials::new(Box::new(move |_, _, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        for round in 0..3 {
            for number in 0..1000 {
                let host: HostName = format!("h{number:04}.example").parse().unwrap();
                denials.add(&host, 443, "why");
            }
            assert_eq!(told.load(Ordering::Relaxed), MAX_HOSTS + 1, "in round {round}");
        }
        let list = denials.list();
        assert_eq!((list.len(), list[0].count, &*list[0].host), (MAX_HOSTS + 1, 3, "h0000.example"));
        let others = DeniedHost::new("*", 0, 3 * (1000 - MAX_HOSTS as u64));
        assert_eq!(list.last(), Some(&others));
    }
}
