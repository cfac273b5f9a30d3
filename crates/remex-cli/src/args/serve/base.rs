//! Flags of the server that `remex exec-server` replaces, accepted for compatibility.
//!
//! They configure what this server does differently (its sandbox, its proxy, its configuration file) or not at all
//! (registering with a service). Those that only change such a thing are ignored. Start at [`BaseFlags`].

use clap::{Args, ValueEnum};

use crate::render::failure::Failure;

/// Hidden flags for compatibility.
#[derive(Clone, Debug, Args)]
pub(crate) struct BaseFlags {
    /// A feature to enable; ignored
    #[arg(long, value_name = "FEATURE", hide = true)]
    enable: Vec<String>,

    /// A feature to disable; ignored
    #[arg(long, value_name = "FEATURE", hide = true)]
    disable: Vec<String>,

    /// Reject unknown configuration fields; ignored, this server always does
    #[arg(long, hide = true)]
    strict_config: bool,

    /// The PID namespace of the sandbox; ignored, every sandbox has its own
    #[arg(long, value_name = "MODE", hide = true)]
    linux_sandbox_pid_namespace: Option<PidNamespace>,

    /// Which addresses the proxy reaches through its upstream; ignored
    #[arg(long, hide = true)]
    proxy_private_ips_via_upstream: bool,

    /// Register with a remote service instead of listening; refused
    #[arg(long, value_name = "URL", hide = true)]
    remote: Option<String>,

    /// The transport to that service; refused
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    remote_transport: Option<String>,

    /// The id of this server at that service; refused
    #[arg(long, value_name = "ID", hide = true)]
    environment_id: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PidNamespace {
    Isolate,
    Inherit,
}

impl BaseFlags {
    /// Rejects unsupported flags, and logs ignored ones.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let registration = [
            ("--remote", &self.remote),
            ("--remote-transport", &self.remote_transport),
            ("--environment-id", &self.environment_id),
        ];
        if let Some((flag, _)) = registration.iter().find(|(_, value)| value.is_some()) {
            return Err(Failure::usage(
                format!("cannot use `{flag}`"),
                "listen on an address with `--listen`, or connect through ssh with `remex proxy`",
            )
            .because("remex does not register with a service; clients connect to it"));
        }
        let ignored = [
            ("--enable", !self.enable.is_empty()),
            ("--disable", !self.disable.is_empty()),
            ("--strict-config", self.strict_config),
            ("--linux-sandbox-pid-namespace", self.linux_sandbox_pid_namespace.is_some()),
            ("--proxy-private-ips-via-upstream", self.proxy_private_ips_via_upstream),
        ];
        for (flag, _) in ignored.iter().filter(|(_, is_given)| *is_given) {
            tracing::info!(flag, "flag ignored");
        }
        Ok(())
    }
}
