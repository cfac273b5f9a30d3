//! The commands of a server, where there can be none: each fails with the reason.

pub(crate) mod serve {
    use crate::{args::serve::Flags, remote::local_server, render::failure::Failure};

    pub(crate) fn run(_: &Flags, _: u8) -> Result<(), Failure> {
        local_server::check()
    }
}

pub(crate) mod keeper {
    use crate::{args::keeper::Flags, commands::Outcome, remote::local_server};

    pub(crate) fn run(_: &Flags) -> Outcome {
        local_server::check().map(|()| 0)
    }
}

pub(crate) mod supervise {
    use crate::{args::supervise::Flags, commands::Outcome, remote::local_server};

    pub(crate) fn run(_: &Flags) -> Outcome {
        local_server::check().map(|()| 0)
    }
}

pub(crate) mod token {
    use crate::{args::token::Flags, commands::Outcome, remote::local_server};

    pub(crate) fn run(_: &Flags) -> Outcome {
        local_server::check().map(|()| 0)
    }
}

pub(crate) mod server {
    use crate::{args::server::Flags, commands::Outcome, remote::local_server};

    pub(crate) async fn run(_: &Flags) -> Outcome {
        local_server::check().map(|()| 0)
    }
}

pub(crate) mod proxy {
    use crate::{args::proxy::Flags, commands::Outcome, remote::local_server};

    pub(crate) async fn run(_: &Flags) -> Outcome {
        local_server::check().map(|()| 0)
    }
}

pub(crate) mod upgrade {
    use crate::{
        args::upgrade::Flags,
        commands::{Outcome, there},
        remote::{endpoint::Endpoint, local_server},
    };

    pub(crate) async fn run(flags: &Flags) -> Outcome {
        if let Some(environment) = &flags.on {
            return there::upgrade(&Endpoint::named(environment)?).await;
        }
        local_server::check().map(|()| 0)
    }
}
