//! `environment/info`: what the host is, what it can enforce, and what the server keeps.

use std::sync::Arc;

use remex_access::scope::{Permission, Scopes};
use remex_base::threads::ServerWork;
use remex_engine::Durable;
use remex_proto::{
    RequestId,
    environment::{Info, State},
};

use crate::{areas::context::CallContext, outbox::Responder, shared::host::Host};

/// Answers `environment/info`; not at once if the keeper has to be asked, or if what the host can enforce is not known
/// yet.
pub(crate) fn describe(context: &mut CallContext, id: RequestId, scopes: &Scopes, responder: Responder) {
    let host = Arc::clone(context.host());
    let mut info = host.info().info.clone();
    info.confinement = host.support().known();
    // Numbers about all clients are for those who may read them in the metrics, too.
    let asked = host.durable().filter(|_| scopes.allow(Permission::Metrics)).cloned();
    info.state = host.durable().map(|_| State::default());
    if info.confinement.is_some() && asked.is_none() {
        return responder.ok(info);
    }
    context.spawn_call(id, async move { responder.ok(completed(info, &host, asked).await) });
}

/// Adds what takes time to find out.
async fn completed(mut info: Info, host: &Arc<Host>, durable: Option<Arc<Durable>>) -> Info {
    if info.confinement.is_none() {
        let probing = Arc::clone(host);
        // Without a free thread the client learns everything else.
        info.confinement =
            host.own_threads().run(ServerWork::Probe, move || probing.support().probe()).await.ok();
    }
    if let Some(durable) = durable {
        info.state = Some(durable.describe().await);
    }
    info
}
