//! `environment/info`: what the host is, and what it can enforce.

use std::sync::Arc;

use remex_proto::{
    RequestId,
    environment::{Confinement, Info},
};

use crate::{context::CallContext, outbox::Responder};

/// Answers `environment/info`, on a thread that may block if what the host can enforce is not known yet.
pub(crate) fn describe(context: &mut CallContext, id: RequestId, responder: Responder) {
    let host = Arc::clone(context.host());
    if let Some(confinement) = host.support().known() {
        return responder.ok(with_confinement(&host.info().info, Some(confinement)));
    }
    context.spawn_call(id, async move {
        let probing = Arc::clone(&host);
        // Without a free thread the client learns everything else.
        let confinement = host.file_threads().run(move || probing.support().probe()).await.ok();
        responder.ok(with_confinement(&host.info().info, confinement));
    });
}

fn with_confinement(info: &Info, confinement: Option<Confinement>) -> Info {
    let mut info = info.clone();
    info.confinement = confinement;
    info
}
