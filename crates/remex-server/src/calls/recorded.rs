//! The entry of a call in the audit file.

use remex_access::audit::{self, Attached, Audited, Entry, Outcome, Target};
use remex_proto::{Call, RpcError};

use super::{Calls, target::ProcessTarget};
use crate::{outbox::Responder, sessions::session::OpenedSession, shared::host::Host};

/// Whose sessions a call affects.
enum Affected {
    /// One of its own identity, or none.
    Own,
    /// One of the identity with this name.
    Foreign(std::sync::Arc<str>),
    /// Those of all identities.
    Everyone,
}

impl Calls {
    /// Returns the entry of a call for the audit file.
    pub(super) fn entry(&self, call: &Call, is_allowed: &Result<(), RpcError>) -> Entry {
        let entry = match self.event(call) {
            Some(word) if is_allowed.is_ok() => Entry::action(word, call, &self.peer),
            _ => Entry::refusal(call, &self.peer),
        };
        let entry = match self.affected(call) {
            Affected::Foreign(owner) => entry.owned_by(&owner),
            Affected::Own | Affected::Everyone => entry,
        };
        let Some(ready) = self.handshake.ready() else { return entry };
        let entry = entry.within(&ready.session.id);
        let Call::ProcessRestart(restart) = call else { return entry };
        match self.find(&ready.session, ProcessTarget::of(restart)) {
            Ok(process) => {
                let spec = process.spec();
                entry.starting(&spec.argv, spec.cwd(), spec.user.as_deref())
            }
            Err(_) => entry,
        }
    }

    /// Returns the event of a call that is recorded even if it succeeds.
    fn event(&self, call: &Call) -> Option<&'static str> {
        if audit::target(call) == Target::Everyone && !self.credential.is_admin() {
            return None;
        }
        let is_foreign = || !matches!(self.affected(call), Affected::Own);
        match audit::audited(call) {
            Audited::Always(word) => Some(word),
            Audited::First(word) => (is_foreign() || self.is_first_input(call)).then_some(word),
            Audited::WhenForeign(word) => is_foreign().then_some(word),
            Audited::Never => None,
        }
    }

    fn affected(&self, call: &Call) -> Affected {
        match audit::target(call) {
            Target::Own => Affected::Own,
            Target::Everyone => Affected::Everyone,
            Target::Session(named) => {
                let foreign = self.sessions.foreign_session(named, &self.credential);
                foreign.map_or(Affected::Own, |session| Affected::Foreign(session.owner.identity.clone()))
            }
        }
    }

    /// Returns whether a call is input for a process whose last input came on another connection.
    fn is_first_input(&self, call: &Call) -> bool {
        let (Call::ProcessWrite(write), Some(ready)) = (call, self.handshake.ready()) else { return false };
        let process = self.find(&ready.session, ProcessTarget::of(write));
        process.is_ok_and(|process| !process.has_input_of(self.context.connection()))
    }
}

/// Writes the entry of a call before the call is carried out, where that is required.
///
/// # Errors
///
/// If the entry cannot be written.
pub(super) async fn record_first(host: &Host, responder: &Responder) -> Result<(), RpcError> {
    if host.audit().is_required()
        && let Some(entry) = responder.entry()
        && let Some(line) = entry.line(Outcome::Begun, responder.request_bytes(), 0)
    {
        return host.audit().record_first(line).await;
    }
    Ok(())
}

/// Adds to the entry of `initialize` which session it led to.
pub(super) fn on_opened(responder: &mut Responder, opened: &OpenedSession) {
    if let Some(entry) = responder.entry_mut() {
        entry.set_attached(Attached {
            session: &opened.session.id,
            is_resumed: opened.resumed,
            previous: opened.previous,
        });
    }
}
