//! `remex shell`: a login shell that survives disconnects and can be detached.

use remex_client::process::{Input, ResourceLimits};

use super::{
    Outcome,
    run::{ConsoleOptions, show},
};
use crate::{
    args::{sandbox::Confine, shell::Flags},
    commands::launch::{Launch, RunMode},
    console::{TIMED_OUT, WhenEnded},
    remote::endpoint::{DefaultEndpoint, EndpointKind},
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
            std::env::var("SHELL").ok().filter(|shell| !shell.is_empty())
        }
    };
    let launch = Launch {
        endpoint: &endpoint,
        argv: vec![shell.unwrap_or_else(|| "/bin/sh".to_owned()).into(), "-l".into()],
        cwd: flags.cwd.clone(),
        env: Vec::new(),
        terminal: true,
        input: Input::Piped,
        timeout: None,
        limits: ResourceLimits::default(),
        confine: Confine::default(),
        name: flags.name.clone(),
        labels: Vec::new(),
        mode: RunMode::Reattachable,
    };
    let launched = Box::pin(launch.start()).await?;
    let shown = ConsoleOptions {
        terminal: true,
        forward: true,
        when_ended: WhenEnded::Leave,
        escape: flags.escape.escape,
        timeout_notice: TIMED_OUT.to_owned(),
        cpu_notice: None,
        sandbox_notice: None,
    };
    show(&endpoint, launched, shown).await
}
