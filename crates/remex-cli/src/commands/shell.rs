//! `remex shell`: a login shell that survives a cut and can be left.

use remex_client::process::Input;

use super::{
    Outcome,
    run::{Shown, show},
};
use crate::{
    args::shell::Flags,
    commands::launch::{Launch, Stay},
    console::WhenEnded,
    remote::endpoint::{Otherwise, PlaceKind},
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::Own).await?;
    let shell = match place.kind {
        PlaceKind::Elsewhere => {
            let client = place.connect(|_| {}).await?;
            let shell = client.info().await?.shell.path;
            client.end().await?;
            Some(shell)
        }
        PlaceKind::Here | PlaceKind::Own => std::env::var("SHELL").ok().filter(|shell| !shell.is_empty()),
    };
    let launch = Launch {
        place: &place,
        argv: vec![shell.unwrap_or_else(|| "/bin/sh".to_owned()).into(), "-l".into()],
        cwd: flags.cwd.clone(),
        env: Vec::new(),
        terminal: true,
        input: Input::Piped,
        timeout: None,
        name: flags.name.clone(),
        stay: Stay::Kept,
    };
    let launched = launch.start().await?;
    let shown =
        Shown { terminal: true, forward: true, when_ended: WhenEnded::Leave, escape: flags.escape.escape };
    show(&place, launched, shown).await
}
