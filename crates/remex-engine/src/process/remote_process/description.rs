//! What a server stores about a process of the keeper, so that the next server finds it again. Start at [`Description`].

use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

use remex_proto::{HostPath, process as wire};
use serde::{Deserialize, Serialize};

use crate::{
    process::{
        ChildRules, Owner as _, RemoteProcess, ServerAudience, Spec,
        footprint::Texts,
        start::{ConfinementLevel, started_reply},
        start_request::StartRequest,
    },
    state::durable::{SavedOutcome, SavedStart},
};

/// The record by which a server finds a process again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// The id of its session.
    pub session: String,
    /// The id of the process.
    pub id: String,
    argv: Vec<String>,
    cwd: HostPath,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    tty: bool,
    labels: BTreeMap<String, String>,
    pub(super) asked_at_ms: u64,
    overflow: wire::Overflow,
    closed_ttl_ms: u64,
    retain_bytes: u64,
    /// The id of its start.
    pub start_id: Option<String>,
    /// Servers before this member gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<u64>,
    /// Its number in the tags of the session.
    pub number: u32,
    pub(super) confined: ConfinementLevel,
}

impl Description {
    /// Returns what answers a repeated start once the log is deleted; `None` if the start had no id.
    pub fn saved_start(&self, pid: u32, started_at_ms: u64) -> Option<SavedStart> {
        let started = started_reply(&self.id, pid, started_at_ms, self.confined, self.incarnation);
        let (start_id, process_id) = (self.start_id.clone()?, self.id.clone());
        Some(SavedStart { start_id, process_id, restarted: false, outcome: SavedOutcome::Started(started) })
    }

    pub(super) fn spec(&self, request: Option<StartRequest>) -> Spec {
        let texts = Texts {
            id: &self.id,
            start_id: self.start_id.as_deref(),
            argv: &self.argv,
            cwd: &self.cwd,
            user: self.user.as_deref(),
            labels: &self.labels,
        };
        Spec {
            weight: texts.weight() + request.as_ref().map_or(0, StartRequest::weight),
            request,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            home: OnceLock::new(),
            user: self.user.clone(),
            labels: self.labels.clone(),
            asked_at_ms: self.asked_at_ms,
            closed_ttl: Duration::from_millis(self.closed_ttl_ms),
            rules: ChildRules {
                tty: self.tty,
                overflow: self.overflow,
                // The keeper knows.
                linger: None,
                timeout: None,
                idle_timeout: None,
                timeout_grace: None,
                retain_bytes: usize::try_from(self.retain_bytes).unwrap_or(usize::MAX),
            },
            start_id: self.start_id.clone(),
            incarnation: self.incarnation,
            // The keeper knows.
            sync: false,
        }
    }
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Describes the process for a later server.
    pub(in crate::process) fn describe(&self, owner: &A::Owner, confined: ConfinementLevel) -> Description {
        let spec = &self.kind.served.spec;
        Description {
            session: owner.id().to_owned(),
            id: self.id.to_string(),
            argv: spec.argv.clone(),
            cwd: spec.cwd().clone(),
            user: spec.user.clone(),
            tty: spec.rules.tty,
            labels: spec.labels.clone(),
            asked_at_ms: spec.asked_at_ms,
            overflow: spec.rules.overflow,
            closed_ttl_ms: ms(spec.closed_ttl),
            retain_bytes: spec.rules.retain_bytes as u64,
            start_id: spec.start_id.clone(),
            incarnation: spec.incarnation,
            number: self.tag.process(),
            confined,
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
