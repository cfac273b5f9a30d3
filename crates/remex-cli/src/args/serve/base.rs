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

    #[command(flatten)]
    registration: Registration,
}

/// Hidden flags that register the server with a service, all of them refused.
#[derive(Clone, Debug, Args)]
struct Registration {
    /// Register with a remote service instead of listening
    #[arg(long, value_name = "URL", hide = true)]
    remote: Option<String>,

    /// The transport to that service
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    remote_transport: Option<String>,

    /// The id of this server at that service
    #[arg(long, value_name = "ID", hide = true)]
    environment_id: Option<String>,

    /// The name of this server at that service
    #[arg(long, value_name = "NAME", hide = true)]
    name: Option<String>,

    /// Authenticate with an agent identity
    #[arg(long, hide = true)]
    use_agent_identity_auth: bool,

    /// Authenticate with a bearer from standard input
    #[arg(long, hide = true)]
    registration_bearer_stdin: bool,

    /// Authenticate with credentials that rotate on standard input
    #[arg(long, hide = true)]
    executor_credential_stdin: bool,

    /// Authenticate with an access token from standard input
    #[arg(long, hide = true)]
    chatgpt_token_stdin: bool,

    /// The account of that access token
    #[arg(long, value_name = "ID", hide = true)]
    chatgpt_account_id: Option<String>,

    /// Sign the registration
    #[arg(long, hide = true)]
    aws_sigv4: bool,

    /// The profile of that signature
    #[arg(long, value_name = "PROFILE", hide = true)]
    aws_profile: Option<String>,

    /// The region of that signature
    #[arg(long, value_name = "REGION", hide = true)]
    aws_region: Option<String>,

    /// The service of that signature
    #[arg(long, value_name = "SERVICE", hide = true)]
    aws_service: Option<String>,
}

impl Registration {
    /// Returns the first of these flags that is given.
    fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--remote", self.remote.is_some()),
            ("--remote-transport", self.remote_transport.is_some()),
            ("--environment-id", self.environment_id.is_some()),
            ("--name", self.name.is_some()),
            ("--use-agent-identity-auth", self.use_agent_identity_auth),
            ("--registration-bearer-stdin", self.registration_bearer_stdin),
            ("--executor-credential-stdin", self.executor_credential_stdin),
            ("--chatgpt-token-stdin", self.chatgpt_token_stdin),
            ("--chatgpt-account-id", self.chatgpt_account_id.is_some()),
            ("--aws-sigv4", self.aws_sigv4),
            ("--aws-profile", self.aws_profile.is_some()),
            ("--aws-region", self.aws_region.is_some()),
            ("--aws-service", self.aws_service.is_some()),
        ];
        flags.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PidNamespace {
    Isolate,
    Inherit,
}

impl BaseFlags {
    /// Rejects unsupported flags, and logs ignored ones.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if let Some(flag) = self.registration.given() {
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
