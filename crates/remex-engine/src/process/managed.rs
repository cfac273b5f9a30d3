//! A network that is limited to some hosts: what a start asks for, the proxy that its process gets, and the client that
//! decides about further hosts.

use std::{ffi::OsString, sync::Arc, time::Duration};

use remex_access::{audit::Denial, confinement::unavailable};
use remex_process::{PROXY_PORT, ProxySocket};
use remex_proto::{
    ErrorKind, RpcError,
    network::{Decision, MAX_PROCESS_ID, PolicyRequest, Target},
    process::{self as wire, DomainAccess, NetworkMode, NetworkProxy},
    sandbox::{self, Network, Permissions, Sandbox},
};
use remex_sandbox::{HostList, Hosts};

use super::{LocalProcess, Owner as _, ServerAudience};
use crate::process::LOG_TARGET;
use crate::shared::{
    host::Phase,
    proxy::{Ask, Decider, Denials, Exits, OnDenial, Review, Socks, Tell},
};

/// Where programs look for a proxy; some in lower case, some in upper case.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// Where programs look for hosts to reach without it.
const DIRECT_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Hosts to reach without the proxy: those in the jail.
const DIRECT: &str = "localhost,127.0.0.1,::1";

/// How long a question and its answer may be in transit, besides the time that the client has to decide.
const TRAVEL_TIME: Duration = Duration::from_secs(5);

/// The rules of the proxy of a process.
#[derive(Debug)]
pub struct ProxyRules {
    pub(super) hosts: Hosts,
    pub(super) managed: Option<Managed>,
}

/// A network that the client manages, besides its list of hosts.
#[derive(Debug)]
pub(super) struct Managed {
    mode: NetworkMode,
    socks: Socks,
    /// How long the client may take to decide; `None` if it is not asked.
    decision_time: Option<Duration>,
    /// The list of the client.
    own: HostList,
    /// What the server allows at most.
    floors: Option<Hosts>,
}

impl Managed {
    /// Keeps the client from allowing more than this.
    pub(super) fn within(self, floors: Option<Hosts>) -> Self {
        Self { floors, ..self }
    }
}

/// Returns the sandbox of a start, with the hosts of its `networkProxy`, and the other rules of that.
pub(super) fn sandbox(request: &wire::Start) -> Result<(Sandbox, Option<Managed>), RpcError> {
    check(request)?;
    let mut sandbox = request.sandbox.clone();
    let Sandbox::Confined(context) = &mut sandbox else { return Ok((sandbox, None)) };
    let network = match &mut context.permissions {
        Permissions::External { network } | Permissions::Managed { network, .. } => network,
        Permissions::Disabled => return Ok((sandbox, None)),
    };
    // A closed network needs no limits.
    if !request.enforce_managed_network || *network == Network::Restricted {
        return Ok((sandbox, None));
    }
    if context.hosts.is_some() {
        return Err(unavailable("send either `hosts` in the sandbox or `networkProxy`, not both"));
    }
    let Some(proxy) = &request.network_proxy else {
        return Err(unavailable(format!("a proxy at the client cannot be used; {NOT_SAID}")));
    };
    let proxy = NetworkProxy::decode(proxy).map_err(|error| {
        unavailable(format!("this server does not know how to enforce this `networkProxy`: {error}"))
    })?;
    *network = Network::Restricted;
    let hosts = hosts(&proxy)?;
    let (allow, deny) = (hosts.allow.iter().map(String::as_str), hosts.deny.iter().map(String::as_str));
    let own = HostList::parse(allow, deny);
    context.hosts = Some(hosts);
    // An entry that means nothing is reported when the sandbox is resolved.
    let managed = own.ok().map(|own| Managed {
        mode: proxy.proxy.mode.unwrap_or_default(),
        socks: if proxy.proxy.enable_socks5 == Some(false) { Socks::Refused } else { Socks::Offered },
        decision_time: proxy.policy_decision_timeout_ms.map(Duration::from_millis),
        own,
        floors: None,
    });
    Ok((sandbox, managed))
}

/// Why a managed network cannot be enforced that nothing describes.
const NOT_SAID: &str = "`enforceManagedNetwork` without a `networkProxy` does not say which hosts can be reached; ask for \
                        network `restricted`, or send `hosts` in the sandbox";

/// Refuses what no sandbox makes right.
fn check(request: &wire::Start) -> Result<(), RpcError> {
    if request.enforce_managed_network && request.managed_network.is_none() && request.network_proxy.is_none()
    {
        return Err(unavailable(NOT_SAID));
    }
    let timeout = request.network_proxy.as_ref().and_then(|proxy| proxy.get("policyDecisionTimeoutMs"));
    let Some(timeout) = timeout.filter(|timeout| !timeout.is_null()) else { return Ok(()) };
    let refuse = |message: &str, hint| Err(RpcError::new(ErrorKind::InvalidParams, message).with_hint(hint));
    if timeout.as_u64() == Some(0) {
        let message = "`policyDecisionTimeoutMs` of `networkProxy` must not be 0";
        return refuse(message, "leave it out if the client decides nothing");
    }
    if !(1..=MAX_PROCESS_ID).contains(&request.process_id.len()) {
        let message =
            format!("`processId` must have 1 to {MAX_PROCESS_ID} bytes if the client decides about hosts");
        return refuse(&message, "choose another `processId`");
    }
    Ok(())
}

fn hosts(proxy: &NetworkProxy) -> Result<sandbox::Hosts, RpcError> {
    let config = &proxy.proxy;
    if !config.enabled {
        return Err(unavailable("its `networkProxy` is not enabled; ask for network `restricted`"));
    }
    let with = |wanted: DomainAccess| {
        let domains = config.domains.iter().flatten().filter(move |(_, access)| **access == wanted);
        domains.map(|(domain, _)| domain.clone()).collect()
    };
    Ok(sandbox::Hosts { allow: with(DomainAccess::Allow), deny: with(DomainAccess::Deny) })
}

/// Tells programs where the proxy is, whatever their environment said.
///
/// If the server's own host is listed, it is reached through the proxy as well, so that no host bypasses the proxy.
pub(super) fn point_to_proxy(env: &mut Vec<(OsString, OsString)>, hosts: &Hosts) {
    env.retain(|(name, _)| !PROXY_VARIABLES.iter().chain(&DIRECT_VARIABLES).any(|variable| name == variable));
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    env.extend(PROXY_VARIABLES.map(|name| (name.into(), (&*proxy).into())));
    let direct = if hosts.name_loopback() { "" } else { DIRECT };
    env.extend(DIRECT_VARIABLES.map(|name| (name.into(), direct.into())));
}

impl<A: ServerAudience> LocalProcess<A> {
    /// Serves the jail of the process until it has ended.
    pub(super) fn serve_proxy(self: &Arc<Self>, owner: &A::Owner, socket: ProxySocket, rules: ProxyRules) {
        let ProxyRules { hosts, managed } = rules;
        let review = managed.map(|managed| self.review(managed));
        let denials = Arc::new(Denials::new(self.on_denial(owner)));
        self.state().kind.denials = Some(Arc::clone(&denials));
        let exits = Exits::new(hosts, denials, owner.identity().into()).with_review(review);
        let (proxy, mut phase) = (Arc::clone(self.host.proxy()), self.host.phase().subscribe());
        self.host.spawn(async move {
            tokio::select! {
                () = proxy.serve(socket, exits) => {}
                // By now, all processes were killed; one that could not be must not delay the shutdown.
                _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => {}
            }
        });
    }

    /// Returns what decides besides the lists.
    fn review(self: &Arc<Self>, managed: Managed) -> Review {
        let Managed { mode, socks, decision_time, own, floors } = managed;
        let decider = decision_time.map(|time| Decider::new(own, floors, self.ask(time)));
        Review { process: self.id.to_string(), mode, socks, decider, tell: self.tell() }
    }

    fn ask(self: &Arc<Self>, time: Duration) -> Ask {
        let process = Arc::downgrade(self);
        Box::new(move |target| {
            let process = process.upgrade();
            Box::pin(async move {
                match process {
                    Some(process) => process.decision(target, time).await,
                    None => Decision::not_allowed(),
                }
            })
        })
    }

    /// Asks the client that holds the session now, until the process has closed.
    async fn decision(&self, target: Target, time: Duration) -> Decision {
        if !target.is_valid() || self.is_closed() {
            return Decision::not_allowed();
        }
        let request = PolicyRequest { process_id: self.id.to_string(), request: target };
        let Some(pending) = self.owner().and_then(|owner| owner.ask(&request)) else {
            return Decision::not_allowed();
        };
        let decided = tokio::select! {
            decided = tokio::time::timeout(time.saturating_add(TRAVEL_TIME), pending) => decided.ok().flatten(),
            () = self.closed() => None,
        };
        decided.map_or_else(Decision::not_allowed, Decision::checked)
    }

    fn tell(&self) -> Tell {
        let owner = self.owner.clone();
        Box::new(move |decision| {
            if let Some(owner) = owner.upgrade() {
                owner.tell(decision);
            }
        })
    }

    fn on_denial(&self, owner: &A::Owner) -> OnDenial {
        let (session, identity) = (owner.id().to_owned(), owner.identity().to_owned());
        let (process, host) = (self.id.clone(), Arc::clone(&self.host));
        Box::new(move |name, port, why| {
            tracing::info!(target: LOG_TARGET, session, identity, process = %process, host = name, port, why, "the sandbox refused a host");
            if host.audit().is_on() {
                let denial =
                    Denial { session: &session, identity: &identity, process: &process, host: name, port };
                host.audit().record(denial.line());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use remex_sandbox::HostList;

    use super::*;

    #[test]
    fn the_variables_of_the_proxy_replace_those_that_were_there() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut env = vec![
            pair("HTTP_PROXY", "http://corporate:3128"),
            pair("no_proxy", "*"),
            pair("PATH", "/bin"),
            pair("all_proxy", "socks5://x"),
        ];
        let hosts = |entry| Hosts::from(HostList::parse([entry], []).unwrap());
        point_to_proxy(&mut env, &hosts("127.0.0.1:80"));
        assert!(env.contains(&pair("NO_PROXY", "")), "what is listed is reached through the proxy");
        point_to_proxy(&mut env, &hosts("*"));
        assert_eq!(env.len(), 9);
        for name in PROXY_VARIABLES {
            assert!(env.contains(&pair(name, "http://127.0.0.1:28282")), "{name}");
        }
        for name in DIRECT_VARIABLES {
            assert!(env.contains(&pair(name, DIRECT)), "{name}");
        }
        assert!(env.contains(&pair("PATH", "/bin")));
    }
}
