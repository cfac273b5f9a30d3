//! Which connection holds which session, and when a detached session expires.
//!
//! Pure: it owns no processes and reads no clock; `now_ms` is an argument that never decreases.
//! Start at [`SessionTable`].

use std::collections::HashMap;

/// What happens to a session when its client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDetach {
    /// It ends at once: clients of the oldest dialect and clients on stdio cannot resume.
    End,
    /// It waits this many milliseconds for a resume.
    ExpireAfterMs(u64),
    /// It waits until the server ends.
    Keep,
}

/// A session to create, attached to the connection that requests it.
#[derive(Clone, Debug)]
pub struct NewSession<I, C> {
    /// An id that was never used before.
    pub id: String,
    /// The owner.
    pub identity: I,
    /// Unique among the live sessions of the identity.
    pub name: Option<String>,
    /// The name that the client gave itself.
    pub client_name: String,
    /// What happens when the client disconnects.
    pub on_detach: OnDetach,
    /// The controller.
    pub connection: C,
}

/// One live session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session<I, C> {
    /// The id that the caller chose.
    pub id: String,
    /// The owner.
    pub identity: I,
    /// The name for people.
    pub name: Option<String>,
    /// The name of the client that attached last.
    pub client_name: String,
    /// When it was created.
    pub created_at_ms: u64,
    /// What happens when its client disconnects.
    pub on_detach: OnDetach,
    /// Whether a connection holds it.
    pub attachment: Attachment<C>,
}

/// Whether a connection holds a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment<C> {
    /// One connection controls it.
    Attached {
        /// The controller.
        connection: C,
        /// When it attached.
        since_ms: u64,
    },
    /// No connection controls it.
    Detached {
        /// When the last controller disconnected.
        since_ms: u64,
    },
}

impl<I, C: Copy> Session<I, C> {
    /// Returns when the session expires, if it does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        match (self.attachment, self.on_detach) {
            (Attachment::Detached { since_ms }, OnDetach::ExpireAfterMs(ttl_ms)) => {
                Some(since_ms.saturating_add(ttl_ms))
            }
            _ => None,
        }
    }

    /// Returns the connection that controls the session.
    pub fn controller(&self) -> Option<C> {
        match self.attachment {
            Attachment::Attached { connection, .. } => Some(connection),
            Attachment::Detached { .. } => None,
        }
    }

    fn is_live(&self, now_ms: u64) -> bool {
        self.expires_at_ms().is_none_or(|at| now_ms < at)
    }
}

/// Why a new session conflicts with an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// Another session has the id.
    #[error("the session id is in use")]
    Id,
    /// Another live session of the identity has the name.
    #[error("the session name is in use")]
    Name,
}

/// A request to attach to an existing session.
#[derive(Clone, Copy, Debug)]
pub struct ResumeRequest<'a, I, C> {
    /// The identity of the client; only the owner finds the session.
    pub identity: &'a I,
    /// The name that the client gave itself.
    pub client_name: &'a str,
    /// The connection that requests control.
    pub connection: C,
    /// What to do if another connection holds the session.
    pub takeover: Takeover,
    /// A new name for the session; `None` leaves it as it is.
    pub name: Option<&'a str>,
    /// A new rule for the next detach; `None` leaves it as it is.
    pub on_detach: Option<OnDetach>,
}

/// What to do if another connection holds the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Leave it to that connection.
    No,
    /// Take it over.
    Yes,
}

/// The outcome of a [`ResumeRequest`]; the session is changed only if it was attached or taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ResumeOutcome<C> {
    /// The connection controls the session.
    Attached,
    /// The connection controls the session; close the previous controller with a reason.
    TookOver {
        /// The previous controller.
        previous: C,
    },
    /// Another connection controls the session. If it turns out to be dead, detach it and claim again.
    Held {
        /// The current controller.
        holder: C,
    },
    /// The new name belongs to another live session of the identity.
    NameTaken,
    /// The identity has no such live session.
    Unknown,
}

/// The outcome of a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the processes of a session that has ended must be ended"]
pub enum Detached {
    /// The session waits for a resume.
    Waiting {
        /// When it expires; `None` when it waits until the server ends.
        expires_at_ms: Option<u64>,
    },
    /// The session is removed; the caller must end its processes.
    Ended,
    /// The connection does not control the session, and nothing happened.
    NotController,
}

/// The outcome of ending a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the processes of a session that has ended must be ended"]
pub enum EndOutcome<C> {
    /// The session is removed; the caller must end its processes.
    Ended {
        /// The connection that controlled it.
        controller: Option<C>,
    },
    /// The identity has no such live session.
    Unknown,
}

/// The live sessions of a server.
///
/// Each session has at most one controller and is removed exactly once: by
/// [`detach`](Self::detach), [`expire`](Self::expire) or [`end`](Self::end). A session past its
/// deadline cannot be found, even before [`expire`](Self::expire) removes it.
///
/// ```
/// use remex_proto::state::session_table::{Detached, NewSession, OnDetach, SessionTable};
///
/// let mut table = SessionTable::new();
/// let session = NewSession {
///     id: "s1".into(),
///     identity: "me",
///     name: None,
///     client_name: "test".into(),
///     on_detach: OnDetach::ExpireAfterMs(30_000),
///     connection: 1,
/// };
/// table.create(session, 0)?;
/// assert_eq!(table.detach("s1", 1, 500), Detached::Waiting { expires_at_ms: Some(30_500) });
/// assert_eq!(table.next_deadline(), Some(30_500));
/// assert_eq!(table.expire(30_500), ["s1"]);
/// # Ok::<(), remex_proto::state::session_table::CreateError>(())
/// ```
#[derive(Debug)]
pub struct SessionTable<I, C> {
    sessions: HashMap<String, Session<I, C>>,
}

impl<I, C> Default for SessionTable<I, C> {
    /// Returns a table without sessions.
    fn default() -> Self {
        Self { sessions: HashMap::new() }
    }
}

impl<I: Eq + Clone, C: Copy + Eq> SessionTable<I, C> {
    /// Returns a table without sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a session, attached to the connection that requests it.
    pub fn create(&mut self, new: NewSession<I, C>, now_ms: u64) -> Result<(), CreateError> {
        if self.sessions.contains_key(&new.id) {
            return Err(CreateError::Id);
        }
        if new.name.as_deref().is_some_and(|name| self.by_name(&new.identity, name, now_ms).is_some()) {
            return Err(CreateError::Name);
        }
        let session = Session {
            id: new.id.clone(),
            identity: new.identity,
            name: new.name,
            client_name: new.client_name,
            created_at_ms: now_ms,
            on_detach: new.on_detach,
            attachment: Attachment::Attached { connection: new.connection, since_ms: now_ms },
        };
        self.sessions.insert(new.id, session);
        Ok(())
    }

    /// Attaches a connection to an existing session.
    pub fn resume(&mut self, id: &str, claim: &ResumeRequest<'_, I, C>, now_ms: u64) -> ResumeOutcome<C> {
        let Some(session) = self.session(id, claim.identity, now_ms) else { return ResumeOutcome::Unknown };
        let previous = session.controller().filter(|&holder| holder != claim.connection);
        if let (Some(holder), Takeover::No) = (previous, claim.takeover) {
            return ResumeOutcome::Held { holder };
        }
        let owner = claim.name.and_then(|name| self.by_name(claim.identity, name, now_ms));
        if owner.is_some_and(|owner| owner.id != id) {
            return ResumeOutcome::NameTaken;
        }
        let Some(session) = self.sessions.get_mut(id) else { return ResumeOutcome::Unknown };
        session.attachment = Attachment::Attached { connection: claim.connection, since_ms: now_ms };
        claim.client_name.clone_into(&mut session.client_name);
        if let Some(name) = claim.name {
            session.name = Some(name.to_owned());
        }
        if let Some(on_detach) = claim.on_detach {
            session.on_detach = on_detach;
        }
        match previous {
            Some(previous) => ResumeOutcome::TookOver { previous },
            None => ResumeOutcome::Attached,
        }
    }

    /// Records that a connection has closed. Has no effect if it no longer controls the session.
    pub fn detach(&mut self, id: &str, connection: C, now_ms: u64) -> Detached {
        let Some(session) = self.sessions.get_mut(id) else { return Detached::NotController };
        if session.controller() != Some(connection) {
            return Detached::NotController;
        }
        if session.on_detach == OnDetach::End {
            self.sessions.remove(id);
            return Detached::Ended;
        }
        session.attachment = Attachment::Detached { since_ms: now_ms };
        Detached::Waiting { expires_at_ms: session.expires_at_ms() }
    }

    /// Extends the life of a session without a connection to that of this rule, counted from now, and keeps the rule
    /// for its next detach. Has no effect while a connection controls the session, or if it would end sooner.
    pub fn prolong(&mut self, id: &str, on_detach: OnDetach, now_ms: u64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(ends_at) = session.expires_at_ms().filter(|at| now_ms < *at) else { return };
        let is_longer = match on_detach {
            OnDetach::End => false,
            OnDetach::ExpireAfterMs(ttl_ms) => ends_at < now_ms.saturating_add(ttl_ms),
            OnDetach::Keep => true,
        };
        if is_longer {
            session.on_detach = on_detach;
            session.attachment = Attachment::Detached { since_ms: now_ms };
        }
    }

    /// Removes the sessions past their deadline and returns their ids.
    #[must_use = "the processes of these sessions must be ended"]
    pub fn expire(&mut self, now_ms: u64) -> Vec<String> {
        self.sessions.extract_if(|_, session| !session.is_live(now_ms)).map(|(id, _)| id).collect()
    }

    /// Returns when the next session expires.
    pub fn next_deadline(&self) -> Option<u64> {
        self.sessions.values().filter_map(Session::expires_at_ms).min()
    }

    /// Removes a session at the request of its owner.
    pub fn end(&mut self, id: &str, identity: &I, now_ms: u64) -> EndOutcome<C> {
        let Some(session) = self.session(id, identity, now_ms) else { return EndOutcome::Unknown };
        let controller = session.controller();
        self.sessions.remove(id);
        EndOutcome::Ended { controller }
    }

    /// Returns a live session of the identity.
    pub fn session(&self, id: &str, identity: &I, now_ms: u64) -> Option<&Session<I, C>> {
        self.sessions.get(id).filter(|session| session.identity == *identity && session.is_live(now_ms))
    }

    /// Returns a live session of any identity.
    pub fn any_session(&self, id: &str, now_ms: u64) -> Option<&Session<I, C>> {
        self.sessions.get(id).filter(|session| session.is_live(now_ms))
    }

    /// Returns the connection that controls a session.
    pub fn controller(&self, id: &str) -> Option<C> {
        self.sessions.get(id)?.controller()
    }

    /// Returns the live session of the identity that has this name.
    pub fn by_name(&self, identity: &I, name: &str, now_ms: u64) -> Option<&Session<I, C>> {
        self.live(identity, now_ms).find(|session| session.name.as_deref() == Some(name))
    }

    /// Returns the live sessions of the identity, oldest first.
    pub fn list(&self, identity: &I, now_ms: u64) -> Vec<&Session<I, C>> {
        sorted(self.live(identity, now_ms))
    }

    /// Returns the live sessions of all identities, oldest first.
    pub fn list_all(&self, now_ms: u64) -> Vec<&Session<I, C>> {
        sorted(self.sessions.values().filter(|session| session.is_live(now_ms)))
    }

    fn live(&self, identity: &I, now_ms: u64) -> impl Iterator<Item = &Session<I, C>> {
        self.sessions.values().filter(move |session| session.identity == *identity && session.is_live(now_ms))
    }
}

/// Sorts sessions, oldest first.
fn sorted<'a, I, C>(sessions: impl Iterator<Item = &'a Session<I, C>>) -> Vec<&'a Session<I, C>> {
    let mut sessions: Vec<_> = sessions.collect();
    sessions.sort_by_key(|session| (session.created_at_ms, &session.id));
    sessions
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    type Table = SessionTable<u8, u32>;

    fn new_session(id: u8, identity: u8) -> NewSession<u8, u32> {
        NewSession {
            id: id.to_string(),
            identity,
            name: None,
            client_name: "creator".into(),
            on_detach: OnDetach::ExpireAfterMs(100),
            connection: 1,
        }
    }

    fn claim(identity: &u8, connection: u32) -> ResumeRequest<'_, u8, u32> {
        ResumeRequest {
            identity,
            client_name: "resumer",
            connection,
            takeover: Takeover::No,
            name: None,
            on_detach: None,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Create { id: u8, identity: u8, name: Option<u8>, on_detach: OnDetach },
        Resume { id: u8, identity: u8, takeover: Takeover, name: Option<u8> },
        Detach { id: u8, connection: u32 },
        Expire,
        End { id: u8, identity: u8 },
        Pass { ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let (id, identity) = (|| 0..5u8, || 0..2u8);
        let name = || prop::option::of(0..3u8);
        let on_detach = prop_oneof![
            Just(OnDetach::End),
            (0..50u64).prop_map(OnDetach::ExpireAfterMs),
            Just(OnDetach::Keep)
        ];
        let takeover = prop_oneof![Just(Takeover::No), Just(Takeover::Yes)];
        prop_oneof![
            3 => (id(), identity(), name(), on_detach)
                .prop_map(|(id, identity, name, on_detach)| Step::Create { id, identity, name, on_detach }),
            4 => (id(), identity(), takeover, name())
                .prop_map(|(id, identity, takeover, name)| Step::Resume { id, identity, takeover, name }),
            4 => (id(), 0..40u32).prop_map(|(id, connection)| Step::Detach { id, connection }),
            1 => Just(Step::Expire),
            1 => (id(), identity()).prop_map(|(id, identity)| Step::End { id, identity }),
            3 => (0..30u64).prop_map(|ms| Step::Pass { ms }),
        ]
    }

    /// What the return values alone reveal.
    #[derive(Default)]
    struct Observed {
        owner: HashMap<String, u8>,
        controller: HashMap<String, u32>,
        given_up: HashSet<String>,
    }

    impl Observed {
        fn attached(&mut self, id: String, connection: u32) {
            assert!(!self.given_up.contains(&id), "a session that was given up is attached again");
            self.controller.insert(id, connection);
        }

        fn gave_up(&mut self, id: String) {
            self.controller.remove(&id);
            assert!(self.owner.contains_key(&id), "a session that never was is given up");
            assert!(self.given_up.insert(id), "a session is given up twice");
        }
    }

    fn play(steps: Vec<Step>) {
        let mut table = Table::new();
        let mut observed = Observed::default();
        let mut now_ms = 0;
        for (connection, step) in (0..).zip(steps) {
            match step {
                Step::Create { id, identity, name, on_detach } => {
                    let name = name.map(|name| format!("name {name}"));
                    let session = NewSession { name, on_detach, connection, ..new_session(id, identity) };
                    let id = session.id.clone();
                    // The caller guarantees that an id is used once.
                    if !observed.owner.contains_key(&id) && table.create(session, now_ms).is_ok() {
                        observed.owner.insert(id.clone(), identity);
                        observed.attached(id, connection);
                    }
                }
                Step::Resume { id, identity, takeover, name } => {
                    let (id, name) = (id.to_string(), name.map(|name| format!("name {name}")));
                    let claim =
                        ResumeRequest { takeover, name: name.as_deref(), ..claim(&identity, connection) };
                    let holder = observed.controller.get(&id).copied();
                    match table.resume(&id, &claim, now_ms) {
                        ResumeOutcome::Attached => {
                            assert_eq!(holder, None);
                            observed.attached(id.clone(), connection);
                        }
                        ResumeOutcome::TookOver { previous } => {
                            assert_eq!((holder, takeover), (Some(previous), Takeover::Yes));
                            observed.attached(id.clone(), connection);
                        }
                        ResumeOutcome::Held { holder: reported } => {
                            assert_eq!((holder, takeover), (Some(reported), Takeover::No));
                            continue;
                        }
                        ResumeOutcome::NameTaken | ResumeOutcome::Unknown => continue,
                    }
                    assert_eq!(observed.owner[&id], identity);
                }
                Step::Detach { id, connection } => {
                    let id = id.to_string();
                    let controls = observed.controller.get(&id) == Some(&connection);
                    match table.detach(&id, connection, now_ms) {
                        Detached::Waiting { expires_at_ms } => {
                            assert!(controls && expires_at_ms.is_none_or(|at| at >= now_ms));
                            observed.controller.remove(&id);
                        }
                        Detached::Ended => {
                            assert!(controls);
                            observed.gave_up(id);
                        }
                        Detached::NotController => assert!(!controls),
                    }
                }
                Step::Expire => {
                    for id in table.expire(now_ms) {
                        assert!(!observed.controller.contains_key(&id), "an attached session expires");
                        observed.gave_up(id);
                    }
                    assert!(table.next_deadline().is_none_or(|at| at > now_ms));
                }
                Step::End { id, identity } => {
                    let id = id.to_string();
                    if let EndOutcome::Ended { controller } = table.end(&id, &identity, now_ms) {
                        assert_eq!(observed.owner[&id], identity);
                        assert_eq!(observed.controller.get(&id).copied(), controller);
                        observed.gave_up(id);
                    }
                }
                Step::Pass { ms } => now_ms += ms,
            }
            for identity in 0..2 {
                let sessions = table.list(&identity, now_ms);
                let names: Vec<_> = sessions.iter().filter_map(|session| session.name.as_ref()).collect();
                assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "a name is used twice");
                for session in sessions {
                    assert_eq!(observed.controller.get(&session.id).copied(), session.controller());
                    assert_eq!(observed.owner[&session.id], identity);
                }
            }
        }
        let mut left = table.expire(u64::MAX);
        left.extend(table.list(&0, now_ms).iter().chain(&table.list(&1, now_ms)).map(|s| s.id.clone()));
        left.into_iter().for_each(|id| observed.gave_up(id));
        assert_eq!(observed.given_up.len(), observed.owner.len(), "a session is lost");
    }

    proptest! {
        #[test]
        fn a_session_has_one_controller_and_is_removed_exactly_once(steps in vec(step(), 0..150)) {
            play(steps);
        }
    }

    #[test]
    fn an_expired_session_is_unknown_before_it_is_removed() {
        let mut table = Table::new();
        table.create(NewSession { name: Some("mine".into()), ..new_session(1, 0) }, 0).unwrap();
        assert_eq!(table.detach("1", 1, 10), Detached::Waiting { expires_at_ms: Some(110) });
        assert_eq!(table.resume("1", &claim(&0, 2), 110), ResumeOutcome::Unknown);
        assert_eq!(table.end("1", &0, 110), EndOutcome::Unknown);
        assert_eq!(table.list(&0, 110), Vec::<&Session<u8, u32>>::new());
        let heir = NewSession { name: Some("mine".into()), ..new_session(2, 0) };
        assert_eq!(table.create(heir, 110), Ok(()));
        assert_eq!(table.expire(110), ["1"]);
        assert_eq!(table.expire(110), Vec::<String>::new());
    }

    #[test]
    fn a_resume_cancels_the_deadline_for_good() {
        let mut table = Table::new();
        table.create(new_session(1, 0), 0).unwrap();
        assert_eq!(table.detach("1", 1, 10), Detached::Waiting { expires_at_ms: Some(110) });
        assert_eq!(table.resume("1", &claim(&0, 2), 109), ResumeOutcome::Attached);
        assert_eq!(table.next_deadline(), None);
        assert_eq!(table.expire(u64::MAX), Vec::<String>::new());
        assert_eq!(table.session("1", &0, u64::MAX).unwrap().client_name, "resumer");
    }

    #[test]
    fn another_identity_sees_nothing() {
        let mut table = Table::new();
        table.create(NewSession { name: Some("mine".into()), ..new_session(1, 0) }, 0).unwrap();
        let thief = ResumeRequest { takeover: Takeover::Yes, ..claim(&7, 2) };
        assert_eq!(table.resume("1", &thief, 0), ResumeOutcome::Unknown);
        assert_eq!(table.end("1", &7, 0), EndOutcome::Unknown);
        assert_eq!(table.by_name(&7, "mine", 0), None);
        assert_eq!(table.list(&7, 0), Vec::<&Session<u8, u32>>::new());
    }

    #[test]
    fn after_a_takeover_the_previous_controller_detaches_nothing() {
        let mut table = Table::new();
        table.create(new_session(1, 0), 0).unwrap();
        assert_eq!(table.resume("1", &claim(&0, 2), 0), ResumeOutcome::Held { holder: 1 });
        let taker = ResumeRequest { takeover: Takeover::Yes, ..claim(&0, 2) };
        assert_eq!(table.resume("1", &taker, 0), ResumeOutcome::TookOver { previous: 1 });
        assert_eq!(table.detach("1", 1, 0), Detached::NotController);
        assert_eq!(table.session("1", &0, 0).unwrap().controller(), Some(2));
    }

    #[test]
    fn a_resume_whose_new_name_is_taken_changes_nothing() {
        let mut table = Table::new();
        table.create(NewSession { name: Some("mine".into()), ..new_session(1, 0) }, 0).unwrap();
        table.create(new_session(2, 0), 0).unwrap();
        let before = table.session("2", &0, 0).unwrap().clone();
        let claim = ResumeRequest { takeover: Takeover::Yes, name: Some("mine"), ..claim(&0, 3) };
        assert_eq!(table.resume("2", &claim, 0), ResumeOutcome::NameTaken);
        assert_eq!(table.session("2", &0, 0), Some(&before));
        assert_eq!(table.resume("1", &claim, 0), ResumeOutcome::TookOver { previous: 1 });
    }
}
