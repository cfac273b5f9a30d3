//! `remex shell`: a login shell that survives disconnects and can be detached; without a terminal, one that reads
//! commands from standard input, as with ssh.

use std::io::IsTerminal as _;

use remex_client::process::{ResourceLimits, Stdio};

use super::{
    Outcome,
    run::{ConsoleOptions, show},
};
use crate::{
    args::{run::DEFAULT_GRACE, sandbox::Confine, shell::Flags},
    commands::launch::{CommandLine, Launch, RunMode},
    console::{ConfinedBy, EndNotices, Grace, WhenEnded},
    remote::{
        endpoint::{DefaultEndpoint, EndpointKind},
        local_server,
    },
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let mut endpoint = flags.on.endpoint(DefaultEndpoint::UserServer).await?;
    if flags.forward_agent {
        endpoint.forward_agent()?;
    }
    let command = match endpoint.kind {
        _ if flags.as_user.user.is_some() => CommandLine::ShellOfUser,
        EndpointKind::Remote => CommandLine::LoginShell,
        EndpointKind::InProcess | EndpointKind::UserServer => {
            let shell = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
            let shell = shell.or_else(local_server::login_shell).unwrap_or_else(|| "/bin/sh".to_owned());
            CommandLine::Given(vec![shell.into(), "-l".into()])
        }
    };
    // On a terminal of its own, a shell would not notice the end of such input, and would be left behind.
    let terminal = std::io::stdin().is_terminal();
    let launch = Launch {
        endpoint: &endpoint,
        command,
        cwd: flags.cwd.clone(),
        user: flags.as_user.user.clone(),
        env: Vec::new(),
        terminal,
        input: Stdio::Piped,
        timeout: None,
        grace: DEFAULT_GRACE,
        limits: ResourceLimits::default(),
        restart: None,
        confine: Confine::default(),
        name: flags.name.clone(),
        labels: Vec::new(),
        mode: if terminal { RunMode::Reattachable } else { RunMode::Foreground },
        reconnect: flags.reconnect.reconnect,
    };
    let launched = Box::pin(launch.start()).await?;
    let shown = ConsoleOptions {
        terminal,
        forward: true,
        when_ended: if terminal { WhenEnded::Leave } else { WhenEnded::End },
        escape: flags.escape.escape,
        end_notices: EndNotices { confined_by: ConfinedBy::Server, ..EndNotices::default() },
        grace: Grace { time: DEFAULT_GRACE, flag: None },
        reconnect: flags.reconnect.reconnect,
    };
    show(&endpoint, launched, shown).await
}
