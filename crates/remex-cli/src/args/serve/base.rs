//! Flags of the server that `remex exec-server` replaces, for whoever starts it with them.
//!
//! They concern what this server does not have: a configuration of its own, a sandbox, a proxy, a registry of servers.
//! Those that would only change such things are accepted. Start at [`BaseFlags`].

use clap::{Args, ValueEnum};

use crate::render::failure::Failure;

/// What is understood, and not listed.
#[derive(Debug, Args)]
pub(crate) struct BaseFlags {
    /// A value of its configuration; this server reads none
    #[arg(short, long, value_name = "KEY=VALUE", hide = true)]
    config: Vec<String>,

    /// A feature to switch on; there is none
    #[arg(long, value_name = "FEATURE", hide = true)]
    enable: Vec<String>,

    /// A feature to switch off; there is none
    #[arg(long, value_name = "FEATURE", hide = true)]
    disable: Vec<String>,

    /// Refuse unknown fields of its configuration; this server reads none
    #[arg(long, hide = true)]
    strict_config: bool,

    /// The PID namespace of its sandbox; requests for a sandbox are refused here
    #[arg(long, value_name = "MODE", hide = true)]
    linux_sandbox_pid_namespace: Option<PidNamespace>,

    /// Which addresses its proxy reaches through another one; there is none here
    #[arg(long, hide = true)]
    proxy_private_ips_via_upstream: bool,

    /// Register with a service elsewhere instead of listening
    #[arg(long, value_name = "URL", hide = true)]
    remote: Option<String>,

    /// How to speak to that service
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    remote_transport: Option<String>,

    /// What that service calls this server
    #[arg(long, value_name = "ID", hide = true)]
    environment_id: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PidNamespace {
    Isolate,
    Inherit,
}

impl BaseFlags {
    /// Refuses what cannot be done here, and logs what is of no consequence.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let registration = [
            ("--remote", &self.remote),
            ("--remote-transport", &self.remote_transport),
            ("--environment-id", &self.environment_id),
        ];
        if let Some((flag, _)) = registration.iter().find(|(_, value)| value.is_some()) {
            return Err(Failure::usage(
                format!("cannot use `{flag}`: remex registers with no service, clients connect to it"),
                "give an address with `--listen`, and connect to that; through ssh with `remex proxy`",
            ));
        }
        let ignored = [
            ("--config", !self.config.is_empty()),
            ("--enable", !self.enable.is_empty()),
            ("--disable", !self.disable.is_empty()),
            ("--strict-config", self.strict_config),
            ("--linux-sandbox-pid-namespace", self.linux_sandbox_pid_namespace.is_some()),
            ("--proxy-private-ips-via-upstream", self.proxy_private_ips_via_upstream),
        ];
        for (flag, _) in ignored.iter().filter(|(_, is_given)| *is_given) {
            tracing::info!(flag, "flag has no effect here");
        }
        Ok(())
    }
}
