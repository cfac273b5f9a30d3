//! `remex shell`: a login shell that survives disconnects and can be detached; without a terminal, one that reads
//! commands from standard input, as with ssh.

use std::io::IsTerminal as _;

use remex_client::process::{Input, ResourceLimits};

use super::{
    Outcome,
    run::{ConsoleOptions, show},
};
use crate::{
    args::{run::DEFAULT_GRACE, sandbox::Confine, shell::Flags},
    commands::launch::{Launch, RunMode},
    console::{EndNotices, WhenEnded},
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
    let shell = match endpoint.kind {
        EndpointKind::Remote => {
            let client = endpoint.connect(|_| {}).await?;
            let shell = client.info().await?.shell.path;
            client.end().await?;
            Some(shell)
        }
        EndpointKind::InProcess | EndpointKind::UserServer => {
            std::env::var("SHELL").ok().filter(|shell| !shell.is_empty()).or_else(local_server::login_shell)
        }
    };
    // On a terminal of its own, a shell would not notice the end of such input, and would be left behind.
    let terminal = std::io::stdin().is_terminal();
    let launch = Launch {
        endpoint: &endpoint,
        argv: vec![shell.unwrap_or_else(|| "/bin/sh".to_owned()).into(), "-l".into()],
        cwd: flags.cwd.clone(),
        env: Vec::new(),
        terminal,
        input: Input::Piped,
        timeout: None,
        grace: DEFAULT_GRACE,
        limits: ResourceLimits::default(),
        confine: Confine::default(),
        name: flags.name.clone(),
        labels: Vec::new(),
        mode: if terminal { RunMode::Reattachable } else { RunMode::Foreground },
    };
    let launched = Box::pin(launch.start()).await?;
    let shown = ConsoleOptions {
        terminal,
        forward: true,
        when_ended: if terminal { WhenEnded::Leave } else { WhenEnded::End },
        escape: flags.escape.escape,
        end_notices: EndNotices::default(),
        grace: DEFAULT_GRACE,
    };
    show(&endpoint, launched, shown).await
}
