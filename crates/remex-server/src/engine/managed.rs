//! A network that is limited to some hosts: what a start asks for, and the proxy that its process gets.

use std::{ffi::OsString, sync::Arc};

use remex_process::{PROXY_PORT, ProxySocket};
use remex_proto::{
    RpcError,
    process::{self as wire, DomainAccess, NetworkProxy},
    sandbox::{self, Network, Permissions, Sandbox},
};
use remex_sandbox::Hosts;

use super::{Audience, Engine, Owner as _};
use crate::{
    audit::Denial,
    confinement::unavailable,
    host::Phase,
    proxy::{Denials, Exits, OnDenial},
};

/// Where programs look for a proxy; some in lower case, some in upper case.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// Where programs look for hosts to reach without it.
const DIRECT_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Hosts to reach without the proxy: those in the jail.
const DIRECT: &str = "localhost,127.0.0.1,::1";

/// Returns the sandbox of a start, with the hosts of its `networkProxy`.
pub(super) fn sandbox(request: &wire::Start) -> Result<Sandbox, RpcError> {
    let mut sandbox = request.sandbox.clone();
    let Sandbox::Confined(context) = &mut sandbox else { return Ok(sandbox) };
    let network = match &mut context.permissions {
        Permissions::External { network } | Permissions::Managed { network, .. } => network,
        Permissions::Disabled => return Ok(sandbox),
    };
    // A closed network needs no limits.
    if !request.enforce_managed_network || *network == Network::Restricted {
        return Ok(sandbox);
    }
    if context.hosts.is_some() {
        return Err(unavailable("send either `hosts` in the sandbox or `networkProxy`, not both"));
    }
    let Some(proxy) = &request.network_proxy else {
        return Err(unavailable(
            "`enforceManagedNetwork` without a `networkProxy` does not say which hosts can be reached; ask for network \
             `restricted`, or send `hosts` in the sandbox",
        ));
    };
    let proxy = NetworkProxy::decode(proxy).map_err(|error| {
        unavailable(format!("this server does not know how to enforce this `networkProxy`: {error}"))
    })?;
    *network = Network::Restricted;
    context.hosts = Some(hosts(&proxy)?);
    Ok(sandbox)
}

fn hosts(proxy: &NetworkProxy) -> Result<sandbox::Hosts, RpcError> {
    let config = &proxy.proxy;
    if !config.enabled {
        return Err(unavailable("its `networkProxy` is not enabled; ask for network `restricted`"));
    }
    if config.mode.as_deref().is_some_and(|mode| mode != "full") {
        return Err(unavailable(
            "this server cannot limit the methods of HTTP requests; use the network mode `full`",
        ));
    }
    let with = |wanted: DomainAccess| {
        let domains = config.domains.iter().flatten().filter(move |(_, access)| **access == wanted);
        domains.map(|(domain, _)| domain.clone()).collect()
    };
    Ok(sandbox::Hosts { allow: with(DomainAccess::Allow), deny: with(DomainAccess::Deny) })
}

/// Tells programs where the proxy is, whatever their environment said.
///
/// What is listed of the server's own host is reached through the proxy as well, so then nothing is left out.
pub(super) fn point_to_proxy(env: &mut Vec<(OsString, OsString)>, hosts: &Hosts) {
    env.retain(|(name, _)| !PROXY_VARIABLES.iter().chain(&DIRECT_VARIABLES).any(|variable| name == variable));
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    env.extend(PROXY_VARIABLES.map(|name| (name.into(), (&*proxy).into())));
    let direct = if hosts.name_loopback() { "" } else { DIRECT };
    env.extend(DIRECT_VARIABLES.map(|name| (name.into(), direct.into())));
}

impl<A: Audience> Engine<A> {
    /// Serves the jail of the process until it has ended.
    pub(super) fn serve_proxy(&self, owner: &A::Owner, socket: ProxySocket, hosts: Hosts) {
        let denials = Arc::new(Denials::new(self.on_denial(owner)));
        self.state().denials = Some(Arc::clone(&denials));
        let exits = Exits::new(hosts, denials, owner.identity().into());
        let (proxy, mut phase) = (Arc::clone(self.host.proxy()), self.host.phase().subscribe());
        self.host.spawn(async move {
            tokio::select! {
                () = proxy.serve(socket, exits) => {}
                // By now, all processes were killed; one that could not be must not delay the shutdown.
                _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => {}
            }
        });
    }

    fn on_denial(&self, owner: &A::Owner) -> OnDenial {
        let (session, identity) = (owner.id().to_owned(), owner.identity().to_owned());
        let (process, host) = (self.id.clone(), Arc::clone(&self.host));
        Box::new(move |name, port, why| {
            tracing::info!(session, identity, process = %process, host = name, port, why, "the sandbox refused a host");
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
