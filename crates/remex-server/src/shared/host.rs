//! Everything that modules share about the host: what processes need, and HTTP clients, watches, memory and accounts.
//!
//! Passed down as one [`Arc`]; knows no connection, session or process. Start at [`Host`].

use std::{
    any::Any,
    io,
    ops::Deref,
    sync::{Arc, Mutex},
};

use remex_access::{
    account::{Accounts, Kind},
    audit::Audit,
    budget::Budget,
    confinement::StartPolicy,
};
use remex_base::{lock, trace::SetParent};
use remex_engine::{Durable, LimitEnforcer};
use remex_files::SharedWatcher;
use remex_process::{Tags, can_switch_user};

use crate::{
    config::{Config, HostInfo},
    shared::{jail_support::SupportProbe, web::WebClient},
};

/// Everything that modules share about the host.
#[derive(Debug)]
pub(crate) struct Host {
    /// The part that processes need.
    engine: Arc<remex_engine::Host>,
    info: HostInfo,
    support: SupportProbe,
    web: WebClient,
    watcher: Arc<SharedWatcher>,
    /// Memory for long answers, from building them until they are sent.
    answers: Arc<Budget>,
    /// Memory for long messages, from their second MiB until they are parsed.
    incoming: Arc<Budget>,
    /// Everything that clients make the server keep, by identity.
    accounts: Accounts,
    /// Requests that the next server will answer.
    left: Mutex<Vec<Box<dyn Any + Send>>>,
    set_parent: Option<SetParent>,
}

impl Deref for Host {
    type Target = Arc<remex_engine::Host>;

    fn deref(&self) -> &Arc<remex_engine::Host> {
        &self.engine
    }
}

impl Host {
    /// Starts the first thread of each pool.
    ///
    /// # Errors
    ///
    /// If the host cannot create these threads.
    pub(crate) fn new(
        mut config: Config,
        audit: Audit,
        tags: Tags,
        enforcer: LimitEnforcer,
        durable: Option<Arc<Durable>>,
    ) -> io::Result<Self> {
        config.host.info.process_limits = Some(enforcer.methods().clone());
        config.host.info.starts = config.starts.told();
        config.host.info.capabilities.process_restart = !config.supervisor.is_empty();
        config.host.info.capabilities.process_user =
            config.starts == StartPolicy::Any && can_switch_user().is_ok();
        let engine = remex_engine::Host::new(config.engine(), audit, tags, enforcer, durable)?;
        let limits = engine.limits();
        Ok(Host {
            engine: Arc::new(engine),
            web: WebClient::new(config.proxies, config.trust),
            watcher: Arc::default(),
            answers: Arc::new(Budget::new(Kind::Answers, limits.answer_bytes as u64)),
            incoming: Arc::new(Budget::new(Kind::Incoming, limits.incoming_bytes as u64)),
            accounts: Accounts::new(&limits),
            left: Mutex::default(),
            set_parent: config.set_parent,
            support: SupportProbe::default(),
            info: config.host,
        })
    }

    /// Returns the facts about the host that clients may see.
    pub(crate) fn info(&self) -> &HostInfo {
        &self.info
    }

    /// Returns the exporter that connects spans with the traces of clients, if there is one.
    pub(crate) fn set_parent(&self) -> Option<SetParent> {
        self.set_parent
    }

    /// Returns the probe of what this host can enforce for processes.
    pub(crate) fn support(&self) -> &SupportProbe {
        &self.support
    }

    pub(crate) fn web(&self) -> &WebClient {
        &self.web
    }

    pub(crate) fn watcher(&self) -> &Arc<SharedWatcher> {
        &self.watcher
    }

    pub(crate) fn answers(&self) -> &Arc<Budget> {
        &self.answers
    }

    pub(crate) fn incoming(&self) -> &Arc<Budget> {
        &self.incoming
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Keeps a request without an answer until the server is gone: its client reconnects and repeats it.
    pub(crate) fn leave_to_next(&self, request: impl Any + Send) {
        lock(&self.left).push(Box::new(request));
    }

    /// Drops the requests left to the next server, after all connections are closed.
    pub(crate) fn drop_left(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        drop(left);
    }
}
