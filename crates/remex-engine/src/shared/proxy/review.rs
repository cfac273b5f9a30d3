//! What decides about a connection besides the lists: the mode of a managed network, and its client.
//!
//! Start at [`Review`].

use std::{borrow::Cow, fmt, pin::Pin, time::SystemTime};

use remex_access::audit::timestamp;
use remex_proto::{
    network::{Decision, NOT_ALLOWED, PolicyDecision, Protocol, Target},
    process::NetworkMode,
};
use remex_sandbox::{HostDenial, HostList, HostName, Hosts};
use tokio::sync::Semaphore;

use super::{Exits, outgoing::Refusal};

/// Connections of one process that wait for a decision of its client; further ones are refused.
const MAX_ASKED: usize = 32;

/// Methods that the mode `limited` lets through.
const LIMITED_METHODS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// Asks the client.
pub(crate) type Ask = Box<dyn Fn(Target) -> Pin<Box<dyn Future<Output = Decision> + Send>> + Send + Sync>;

/// Tells the client what was decided.
pub(crate) type Tell = Box<dyn Fn(PolicyDecision) + Send + Sync>;

/// The rules of a managed network, and its client.
pub(crate) struct Review {
    pub(crate) process: String,
    pub(crate) mode: NetworkMode,
    pub(crate) socks: Socks,
    pub(crate) decider: Option<Decider>,
    pub(crate) tell: Tell,
}

/// Whether SOCKS is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socks {
    Offered,
    Refused,
}

/// A client that decides about hosts which its own list neither allows nor denies.
pub(crate) struct Decider {
    /// The list of the client.
    own: HostList,
    /// The hosts that the server allows at most, whatever the client decides.
    floors: Option<Hosts>,
    ask: Ask,
    slots: Semaphore,
}

impl Decider {
    pub(crate) fn new(own: HostList, floors: Option<Hosts>, ask: Ask) -> Self {
        Self { own, floors, ask, slots: Semaphore::new(MAX_ASKED) }
    }

    /// Returns whether the client may decide about a host that the lists do not allow.
    fn may_decide(&self, host: &HostName, port: u16) -> bool {
        self.floors.as_ref().is_none_or(|floors| floors.check_name(host, port).is_ok())
    }

    async fn decide(&self, wanted: &Wanted<'_>) -> Decision {
        let Ok(_slot) = self.slots.try_acquire() else { return Decision::not_allowed() };
        (self.ask)(wanted.target()).await
    }

    /// Returns the lists as if the client's own had named exactly this host.
    fn approved(&self, host: &HostName, port: u16) -> Hosts {
        let own = Hosts::from(self.own.with(host, port));
        self.floors.as_ref().map_or_else(|| own.clone(), |floors| own.narrow(floors))
    }
}

impl fmt::Debug for Review {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Review").field("process", &self.process).finish_non_exhaustive()
    }
}

/// The host that a process wants to reach.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) protocol: Protocol,
    pub(super) host: &'a HostName,
    pub(super) port: u16,
    /// The method of an HTTP request.
    pub(super) method: Option<&'a str>,
}

impl Wanted<'_> {
    fn target(&self) -> Target {
        let host = match self.host {
            HostName::Address(address) => address.to_string(),
            HostName::Name(name) => name.clone(),
        };
        Target { protocol: self.protocol, host, port: self.port }
    }

    fn is_limited(&self) -> bool {
        self.protocol == Protocol::Http && self.method.is_some_and(|method| LIMITED_METHODS.contains(&method))
    }
}

/// The reason why a connection was allowed.
#[derive(Debug)]
pub(super) enum Allowed<'a> {
    /// The lists.
    Listed(&'a Hosts),
    /// The client.
    Approved(Hosts),
}

impl Allowed<'_> {
    /// Returns the lists that judge its addresses.
    pub(super) fn hosts(&self) -> &Hosts {
        match self {
            Self::Listed(hosts) => hosts,
            Self::Approved(hosts) => hosts,
        }
    }
}

impl Exits {
    /// Decides whether a host may be looked up, and asks the client if that is its decision.
    pub(super) async fn judge(&self, wanted: &Wanted<'_>) -> Result<Allowed<'_>, Refusal> {
        let (host, port) = (wanted.host, wanted.port);
        if let Some(review) = &self.review {
            let is_socks = matches!(wanted.protocol, Protocol::Socks5Tcp | Protocol::Socks5Udp);
            if review.mode == NetworkMode::Limited && !wanted.is_limited() {
                return Err(Refusal::Limited);
            }
            if review.socks == Socks::Refused && is_socks {
                return Err(Refusal::NoSocks);
            }
        }
        let why = match self.hosts.check_name(host, port) {
            Ok(()) => return Ok(Allowed::Listed(&self.hosts)),
            Err(why) => why,
        };
        let decider = self.review.as_ref().and_then(|review| review.decider.as_ref());
        let decider =
            decider.filter(|decider| why == HostDenial::NotListed && decider.may_decide(host, port));
        let Some(decider) = decider else { return Err(Refusal::Denied(why)) };
        match decider.decide(wanted).await {
            Decision::Allow => Ok(Allowed::Approved(decider.approved(host, port))),
            decision => Err(Refusal::Decided(decision)),
        }
    }

    /// Tells the client what was decided, if its network is managed.
    pub(super) fn tell(&self, wanted: &Wanted<'_>, is_approved: bool, refusal: Option<&Refusal>) {
        let Some(review) = &self.review else { return };
        let Verdict { scope, decision, source, reason } = Verdict::of(is_approved, refusal);
        let Target { protocol, host, port } = wanted.target();
        (review.tell)(PolicyDecision {
            process_id: review.process.as_str().into(),
            timestamp: timestamp(SystemTime::now()).into(),
            scope: scope.into(),
            decision: decision.into(),
            source: source.into(),
            reason: reason.into(),
            protocol,
            host: host.into(),
            port,
            method: wanted.method.map(Into::into),
            client: None,
            policy_override: is_approved && decision == "allow",
        });
    }
}

/// A decision in the words of the base dialect.
struct Verdict<'a> {
    scope: &'static str,
    decision: &'static str,
    source: &'static str,
    reason: Cow<'a, str>,
}

impl<'a> Verdict<'a> {
    fn of(is_approved: bool, refusal: Option<&'a Refusal>) -> Self {
        let by_rules = if is_approved { "decider" } else { "baseline_policy" };
        let new = |scope, decision, source, reason: &'static str| Verdict {
            scope,
            decision,
            source,
            reason: reason.into(),
        };
        match refusal {
            Some(Refusal::Denied(HostDenial::NotListed)) => {
                new("domain", "deny", "baseline_policy", NOT_ALLOWED)
            }
            Some(Refusal::Denied(HostDenial::Listed)) => new("domain", "deny", "baseline_policy", "denied"),
            Some(Refusal::Denied(HostDenial::Private(_) | HostDenial::Local(_)) | Refusal::Own) => {
                new("domain", "deny", "baseline_policy", "not_allowed_local")
            }
            Some(Refusal::Limited | Refusal::NoSocks) => {
                new("non_domain", "deny", "mode_guard", "method_not_allowed")
            }
            Some(Refusal::Decided(Decision::Ask { reason })) => {
                Verdict { scope: "domain", decision: "ask", source: "decider", reason: reason.into() }
            }
            Some(Refusal::Decided(Decision::Deny { reason })) => {
                Verdict { scope: "domain", decision: "deny", source: "decider", reason: reason.into() }
            }
            // What could not be connected was allowed nevertheless.
            Some(
                Refusal::Decided(Decision::Allow)
                | Refusal::Lookup(_)
                | Refusal::Connect(_)
                | Refusal::LookupTimedOut
                | Refusal::TimedOut,
            )
            | None => new("domain", "allow", by_rules, "allowed"),
        }
    }
}
