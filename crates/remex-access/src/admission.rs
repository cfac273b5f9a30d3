//! Admission control: how many connections each origin and identity may have, how many of them half-open, and
//! how long the answer to a wrong token is delayed.
//!
//! Pure apart from its lock: no I/O, and time is an argument. No origin but the server's own user can keep others out.
//! Start at [`AdmissionControl`].

mod reports;

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use remex_base::{limits::Limits, lock};
use tokio_util::sync::CancellationToken;

use crate::{auth::SocketOwner, identity::Identity};
pub use reports::Refused;
use reports::Reports;

/// Origins whose wrong tokens are remembered.
const FAILED_ORIGINS: usize = 4096;

/// Where a TCP connection comes from, as far as limits are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The server's own user, counted apart from other users so that they cannot exhaust its share.
    Own(IpAddr),
    /// Another user of this host, whatever loopback address it uses.
    User(u32),
    /// An IPv4 address, or the loopback address of an unknown user.
    Address(IpAddr),
    /// The first 64 bits of an IPv6 address: one host may use all addresses of such a network.
    Network(Ipv6Addr),
}

impl Origin {
    /// Returns the origin of a peer whose socket has this owner.
    pub fn new(peer: IpAddr, owner: SocketOwner, own_uid: u32) -> Self {
        match (owner, peer.to_canonical()) {
            (SocketOwner::User(uid), peer) if uid == own_uid => Origin::Own(peer),
            (SocketOwner::User(uid), _) => Origin::User(uid),
            (_, IpAddr::V6(peer)) if !peer.is_loopback() => {
                Origin::Network(Ipv6Addr::from_bits(peer.to_bits() & !u128::from(u64::MAX)))
            }
            (_, peer) => Origin::Address(peer),
        }
    }
}

/// Why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason().trim_end())]
pub enum LimitReached {
    /// The server has too many connections.
    Server,
    /// The identity has too many.
    Identity,
    /// The origin has too many.
    Address,
    /// Too many half-open connections from one address.
    HalfOpenAddress,
    /// Too many half-open connections in all.
    HalfOpen,
}

impl LimitReached {
    /// Returns the limit that was reached and what to do, as a line.
    pub fn reason(self) -> &'static str {
        match self {
            LimitReached::Server => {
                "the server has too many connections (limit `connections`); try again later\n"
            }
            LimitReached::Identity => {
                "too many connections with this credential (limit `connections_per_identity`); close some first\n"
            }
            LimitReached::Address => {
                "too many connections from this address, network or user (limit `connections_per_address`); close some first\n"
            }
            LimitReached::HalfOpen => {
                "the server has too many unfinished connections (limit `half_open`); try again later\n"
            }
            LimitReached::HalfOpenAddress => {
                "too many unfinished connections from this address, network or user (limit `half_open_per_address`); try again later\n"
            }
        }
    }
}

/// Decides which connections are admitted.
#[derive(Debug, Default)]
pub struct AdmissionControl {
    /// Shared by all connections; held briefly.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The half-open connections of each origin, the oldest first.
    half_open: HashMap<Origin, VecDeque<HalfOpen>>,
    half_open_count: usize,
    next_number: u64,
    connections: usize,
    by_identity: HashMap<Identity, usize>,
    by_origin: HashMap<Origin, usize>,
    failures: HashMap<Origin, Failures>,
    reports: Reports,
}

#[derive(Debug)]
struct HalfOpen {
    number: u64,
    evicted: CancellationToken,
}

/// The wrong tokens of one origin.
#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl AdmissionControl {
    /// Admits a TCP connection to its handshake.
    ///
    /// If the server has too many half-open connections, the origin with the most of them loses its oldest one,
    /// unless this origin has as many.
    pub fn begin(self: &Arc<Self>, origin: Origin, limits: &Limits) -> Result<HalfOpenPermit, LimitReached> {
        let mut state = self.state();
        let of_origin = state.half_open.get(&origin).map_or(0, VecDeque::len);
        if of_origin >= limits.half_open_per_address {
            return Err(LimitReached::HalfOpenAddress);
        }
        if state.half_open_count >= limits.half_open {
            state.evict_for(of_origin)?;
        }
        let (number, evicted) = (state.next_number, CancellationToken::new());
        state.next_number += 1;
        state.half_open_count += 1;
        state.half_open.entry(origin).or_default().push_back(HalfOpen { number, evicted: evicted.clone() });
        drop(state);
        Ok(HalfOpenPermit { admission: Arc::clone(self), origin, number, evicted })
    }

    /// Admits an authenticated connection; `origin` is where it comes from if that is a TCP connection.
    pub fn admit(
        self: &Arc<Self>,
        identity: &Identity,
        origin: Option<Origin>,
        limits: &Limits,
    ) -> Result<Permit, LimitReached> {
        // The owner of the server cannot be locked out by address.
        let origin = origin.filter(|origin| !matches!(origin, Origin::Own(_)));
        let mut state = self.state();
        if state.connections >= limits.connections {
            return Err(LimitReached::Server);
        }
        if state.by_identity.get(identity).is_some_and(|count| *count >= limits.connections_per_identity) {
            return Err(LimitReached::Identity);
        }
        let of_origin = origin.and_then(|origin| state.by_origin.get(&origin));
        if of_origin.is_some_and(|count| *count >= limits.connections_per_address) {
            return Err(LimitReached::Address);
        }
        state.connections += 1;
        *state.by_identity.entry(identity.clone()).or_default() += 1;
        if let Some(origin) = origin {
            *state.by_origin.entry(origin).or_default() += 1;
        }
        drop(state);
        Ok(Permit { admission: Arc::clone(self), identity: identity.clone(), origin })
    }

    /// Records a wrong token and returns how long to delay its answer.
    pub fn on_failed_login(&self, origin: Origin, limits: &Limits, now: Instant) -> Duration {
        let mut state = self.state();
        let is_over = |failures: &Failures| now.duration_since(failures.last) >= limits.failed_login_ttl;
        if state.failures.len() >= FAILED_ORIGINS && !state.failures.contains_key(&origin) {
            state.failures.retain(|_, failures| !is_over(failures));
            if state.failures.len() >= FAILED_ORIGINS {
                let oldest = state.failures.iter().min_by_key(|(_, failures)| failures.last);
                let oldest = oldest.map(|(origin, _)| *origin);
                oldest.and_then(|oldest| state.failures.remove(&oldest));
            }
        }
        let failures = state.failures.entry(origin).or_insert(Failures { count: 0, last: now });
        if is_over(failures) {
            failures.count = 0;
        }
        failures.last = now;
        let factor = 1_u32.checked_shl(failures.count).unwrap_or(u32::MAX);
        failures.count = failures.count.saturating_add(1);
        limits.failed_login_delay.saturating_mul(factor).min(limits.failed_login_delay_max)
    }

    /// Counts a refusal. If it is to be logged, returns how many of its kind were not logged before it.
    pub fn report(&self, kind: Refused, now: Instant) -> Option<u64> {
        self.state().reports.count(kind, now)
    }

    /// Returns whether there is any connection, including half-open ones.
    pub fn has_connections(&self) -> bool {
        let state = self.state();
        state.connections > 0 || state.half_open_count > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Makes room for an origin that has `of_origin` half-open connections.
    fn evict_for(&mut self, of_origin: usize) -> Result<(), LimitReached> {
        let largest = self.half_open.values_mut().max_by_key(|connections| connections.len());
        let largest = largest.filter(|connections| connections.len() > of_origin);
        let oldest = largest.and_then(VecDeque::pop_front).ok_or(LimitReached::HalfOpen)?;
        self.half_open_count -= 1;
        oldest.evicted.cancel();
        Ok(())
    }
}

/// The right to complete a handshake.
#[derive(Debug)]
pub struct HalfOpenPermit {
    admission: Arc<AdmissionControl>,
    origin: Origin,
    number: u64,
    evicted: CancellationToken,
}

impl HalfOpenPermit {
    /// Returns where the connection comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Waits until the connection has to make room for that of another origin.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for HalfOpenPermit {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        let Entry::Occupied(mut connections) = state.half_open.entry(self.origin) else { return };
        let before = connections.get().len();
        connections.get_mut().retain(|connection| connection.number != self.number);
        let is_removed = connections.get().len() < before;
        if connections.get().is_empty() {
            connections.remove();
        }
        state.half_open_count -= usize::from(is_removed);
    }
}

/// The right to be connected.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<AdmissionControl>,
    identity: Identity,
    origin: Option<Origin>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        state.connections -= 1;
        release(&mut state.by_identity, &self.identity);
        if let Some(origin) = &self.origin {
            release(&mut state.by_origin, origin);
        }
    }
}

/// Counts one less, and forgets what has reached 0.
fn release<K: Clone + Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Entry::Occupied(mut count) = counts.entry(key.clone()) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Origin {
        Origin::new(text.parse().unwrap(), SocketOwner::Remote, 1000)
    }

    fn limits() -> Limits {
        Limits {
            connections: 4,
            connections_per_identity: 2,
            connections_per_address: 2,
            half_open: 4,
            half_open_per_address: 3,
            ..Limits::default()
        }
    }

    fn token(digit: u8) -> Identity {
        Identity::Token { digest: Some([digit; 32]), name: "t".into() }
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together_and_users_of_this_host_apart() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        let local = |text: &str, uid| Origin::new(text.parse().unwrap(), SocketOwner::User(uid), 1000);
        assert_eq!(local("127.0.0.1", 7), local("127.0.0.2", 7));
        assert_ne!(local("127.0.0.1", 7), local("127.0.0.1", 8));
        assert_ne!(local("127.0.0.1", 1000), local("127.0.0.1", 7));
        assert_ne!(local("127.0.0.1", 1000), local("127.0.0.2", 1000));
    }

    #[test]
    fn an_address_with_too_many_half_open_connections_does_not_lock_out_others() {
        let (admission, limits) = (Arc::new(AdmissionControl::default()), limits());
        let begin = |origin| admission.begin(origin, &limits);
        let (bad, good, other) = (address("192.0.2.1"), address("192.0.2.2"), address("192.0.2.3"));
        let mut held: Vec<_> = (0..3).map(|_| begin(bad).unwrap()).collect();
        assert_eq!(begin(bad).unwrap_err(), LimitReached::HalfOpenAddress);
        let first = begin(good).unwrap();
        // The server is full now: the newcomers take the place of the oldest of the largest.
        let second = begin(other).unwrap();
        assert!(held[0].evicted.is_cancelled() && !held[1].evicted.is_cancelled());
        assert!(!first.evicted.is_cancelled() && !second.evicted.is_cancelled());
        assert_eq!(admission.state().half_open_count, 4);
        held.clear();
        drop((first, second));
        assert!(!admission.has_connections());
        assert!(admission.state().half_open.is_empty());
    }

    #[test]
    fn an_origin_does_not_evict_itself() {
        let limits = Limits { half_open: 2, ..limits() };
        let admission = Arc::new(AdmissionControl::default());
        let origin = address("192.0.2.1");
        let _held = [admission.begin(origin, &limits).unwrap(), admission.begin(origin, &limits).unwrap()];
        assert_eq!(admission.begin(origin, &limits).unwrap_err(), LimitReached::HalfOpen);
    }

    #[test]
    fn identities_and_addresses_have_limits_of_their_own() {
        let (admission, limits) = (Arc::new(AdmissionControl::default()), limits());
        let (here, there) = (Some(address("192.0.2.1")), Some(address("192.0.2.2")));
        let first = admission.admit(&token(1), here, &limits).unwrap();
        let _second = admission.admit(&token(1), there, &limits).unwrap();
        assert_eq!(admission.admit(&token(1), None, &limits).unwrap_err(), LimitReached::Identity);
        let _third = admission.admit(&token(2), here, &limits).unwrap();
        assert_eq!(admission.admit(&token(2), here, &limits).unwrap_err(), LimitReached::Address);
        let fourth = admission.admit(&token(3), None, &limits).unwrap();
        assert_eq!(admission.admit(&token(4), None, &limits).unwrap_err(), LimitReached::Server);
        drop((first, fourth));
        let _first = admission.admit(&token(1), here, &limits).unwrap();
        assert_eq!(admission.state().by_identity.len(), 2, "what ended is forgotten");
    }

    #[test]
    fn the_owner_is_not_locked_out_by_address() {
        let (admission, limits) = (Arc::new(AdmissionControl::default()), limits());
        let own = Origin::new("127.0.0.1".parse().unwrap(), SocketOwner::User(1000), 1000);
        let permits: Result<Vec<_>, _> =
            (1..=4).map(|digit| admission.admit(&token(digit), Some(own), &limits)).collect();
        assert_eq!(permits.unwrap().len(), 4);
    }

    #[test]
    fn wrong_tokens_of_one_address_wait_longer_and_longer_until_they_are_forgotten() {
        let (admission, limits, start) = (AdmissionControl::default(), Limits::default(), Instant::now());
        let (bad, good) = (address("192.0.2.1"), address("192.0.2.2"));
        let delays: Vec<_> =
            (0..40).map(|_| admission.on_failed_login(bad, &limits, start).as_millis()).collect();
        assert_eq!(delays[..8], [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(delays[8..].iter().all(|delay| *delay == 10_000));
        assert_eq!(admission.on_failed_login(good, &limits, start).as_millis(), 100);
        let later = start + limits.failed_login_ttl;
        assert_eq!(admission.on_failed_login(bad, &limits, later).as_millis(), 100);
    }

    #[test]
    fn the_table_of_wrong_tokens_is_bounded() {
        let (admission, limits, start) = (AdmissionControl::default(), Limits::default(), Instant::now());
        for number in 0..2 * u32::try_from(FAILED_ORIGINS).unwrap() {
            let origin = Origin::Address(IpAddr::from(number.to_be_bytes()));
            admission.on_failed_login(origin, &limits, start + Duration::from_millis(number.into()));
        }
        assert_eq!(admission.state().failures.len(), FAILED_ORIGINS);
    }
}
