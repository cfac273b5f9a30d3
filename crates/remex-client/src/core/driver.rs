//! The connection task of a client: it owns the connection, and reconnects after a disconnect.
//!
//! Start at [`start`].

mod handshake;
mod traffic;

use std::{sync::Arc, time::Duration};

use remex_base::clock::millis;
use remex_proto::{
    ErrorKind, RpcError,
    error::SESSION_ATTACHED,
    initialize::{Initialize, PROTOCOL_VERSION, Reply as Welcome, Resume},
};
use remex_rpc::memory::ClientEnd;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    ConnectionState, Error, Prompts, Session, SessionLost,
    base::error::{self, CONNECTING, is_unknown_session, usage},
    core::shared::Core,
    transport::{
        dial::dial,
        link::{Link, Transport},
        program::Child,
    },
};
use handshake::{HandshakeError, capabilities};
use traffic::{close, disconnected, drop_link, keep_alive, receive, receive_values, send, send_values};

/// The first and the longest backoff between attempts; after a connection that lasted longer, the client reconnects at
/// once.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The backoff after a program could not log in without the user: the host counts failed logins, and may lock the user out.
const LOGIN_BACKOFF: Duration = Duration::from_secs(60);

/// Makes the first connection, and starts the task that owns it.
pub(crate) async fn start(core: &Arc<Core>, closing: watch::Receiver<bool>) -> Result<JoinHandle<()>, Error> {
    let (link, welcome) = first_connection(core).await?;
    core.on_connected(&welcome, link.mode())?;
    let driver =
        Driver { core: Arc::clone(core), session: welcome.session_id, closing, backoff: Duration::ZERO };
    Ok(tokio::spawn(driver.run(link)))
}

/// Makes the first connection, with retries if the options enable them.
async fn first_connection(core: &Core) -> Result<(Link, Welcome), Error> {
    let (began, mut backoff) = (Instant::now(), FIRST_BACKOFF);
    loop {
        let error = match connect_session(core).await {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let left = core.options.connect_retry.saturating_sub(began.elapsed());
        if !error.is_retryable() || left.is_zero() {
            return Err(error);
        }
        tracing::debug!(target = %core.target, error = %error, "connecting failed, trying again");
        // The last attempt begins at the end of the time.
        sleep(jittered(backoff).min(left)).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Makes a connection to the session selected by the options.
async fn connect_session(core: &Core) -> Result<(Link, Welcome), Error> {
    let Session::Named(name) = &core.options.session else {
        let (link, welcome) = connect(core, &core.options.session, core.options.prompts).await?;
        return match &core.options.session {
            Session::Resume { id, .. } if !welcome.has_sessions() => {
                drop_link(link).await;
                Err(no_session(id))
            }
            _ => Ok((link, welcome)),
        };
    };
    // Between a resume and a start another client may create the session, so one of them may be needed twice.
    let resumed = resume(core, name).await?;
    if let Some(connected) = resumed {
        return Ok(connected);
    }
    match connect(core, &core.options.session, core.options.prompts).await {
        Err(error) if error.kind() == Some(ErrorKind::SessionNameTaken) => {
            resume(core, name).await?.ok_or(error)
        }
        connected => connected,
    }
}

fn no_session(id: &str) -> Error {
    usage(
        format!("cannot resume session `{id}`: a server of the oldest dialect has no sessions"),
        "start a new session, or use `remex serve` there",
    )
}

/// Resumes the session with this name; `None` if there is none.
async fn resume(core: &Core, name: &str) -> Result<Option<(Link, Welcome)>, Error> {
    let session = Session::Resume { id: name.to_owned(), takeover: false };
    match connect(core, &session, core.options.prompts).await {
        Ok(connected) => Ok(Some(connected)),
        Err(error) if is_unknown_session(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

struct Driver {
    core: Arc<Core>,
    session: String,
    closing: watch::Receiver<bool>,
    /// The backoff before the next attempt: doubled after each one, and reduced by the time that a connection lasted.
    backoff: Duration,
}

/// However the task ends, pending calls fail instead of waiting forever.
impl Drop for Driver {
    fn drop(&mut self) {
        if !matches!(*self.core.connection_state.borrow(), ConnectionState::Lost(_)) {
            self.core.on_lost(&SessionLost::Stopped);
        }
    }
}

/// Why a connection ended.
enum Ending {
    /// The owner disconnected.
    Closing,
    Disconnected(Error),
}

impl Driver {
    async fn run(mut self, mut link: Link) {
        let lost = loop {
            let connected = Instant::now();
            let end = self.run_connection(&mut link).await;
            self.backoff = self.backoff.saturating_sub(connected.elapsed());
            let error = match end {
                Ending::Closing => {
                    close(link, &self.core).await;
                    break SessionLost::Closed;
                }
                Ending::Disconnected(error) => error,
            };
            if self.core.has_ended() {
                drop_link(link).await;
                break SessionLost::Closed;
            }
            if let Error::Lost(lost) = error {
                drop_link(link).await;
                break lost;
            }
            if !self.core.welcome().has_sessions() {
                drop_link(link).await;
                break SessionLost::NotResumable { reason: error.what() };
            }
            tracing::debug!(session = %self.session, error = %error, "connection lost");
            self.core.on_disconnected(Instant::now(), &error);
            drop_link(link).await;
            let mut closing = self.closing.clone();
            let reconnected = tokio::select! {
                biased;
                reconnected = self.reconnect(error) => reconnected,
                _ = closing.wait_for(|closing| *closing) => Err(SessionLost::Closed),
            };
            match reconnected {
                Ok(reconnected) => link = reconnected,
                Err(lost) => break lost,
            }
        };
        tracing::debug!(session = %self.session, error = %lost, "session left");
        self.core.on_lost(&lost);
    }

    /// Sends and receives until the connection ends.
    async fn run_connection(&mut self, link: &mut Link) -> Ending {
        let core = &self.core;
        let disconnected = async {
            match &mut link.transport {
                Transport::Wire { reader, writer, framing } => tokio::select! {
                    biased;
                    error = receive(core, reader) => error,
                    error = send(core, writer, *framing) => error,
                    error = keep_alive(core) => error,
                },
                Transport::Memory(ClientEnd { sender, receiver }) => tokio::select! {
                    biased;
                    error = receive_values(core, receiver) => error,
                    error = send_values(core, sender) => error,
                },
            }
        };
        tokio::select! {
            biased;
            error = disconnected => Ending::Disconnected(error),
            _ = self.closing.wait_for(|closing| *closing) => Ending::Closing,
        }
    }

    /// Reconnects and resumes the session, with retries.
    async fn reconnect(&mut self, cause: Error) -> Result<Link, SessionLost> {
        let began = Instant::now();
        let limit = self.core.options.reconnect_timeout;
        let mut last = cause;
        let mut permit = self.core.prompt_permit.subscribe();
        self.core.prompt_permit.send_replace(false);
        loop {
            // There is time for an attempt afterwards, however little is left.
            let left = limit.saturating_sub(began.elapsed());
            let backoff = if needs_login(&last) { LOGIN_BACKOFF } else { self.backoff };
            // By now the terminal belongs to the running process, unless its owner gives it away.
            let prompts = tokio::select! {
                biased;
                Ok(_) = permit.wait_for(|permitted| *permitted) => Prompts::Allow,
                () = sleep(jittered(backoff).min(left / 2)) => Prompts::Refuse,
            };
            self.core.prompt_permit.send_replace(false);
            self.backoff = (self.backoff * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
            let left = limit.saturating_sub(began.elapsed());
            let session = Session::Resume { id: self.session.clone(), takeover: false };
            match timeout(left, connect(&self.core, &session, prompts)).await {
                Err(_) => return Err(SessionLost::ReconnectTimedOut { after: limit, last: Box::new(last) }),
                Ok(Ok((link, welcome))) if welcome.session_id == self.session => {
                    return match self.core.on_connected(&welcome, link.mode()) {
                        Ok(()) => Ok(link),
                        Err(error) => Err(SessionLost::Rejected(Box::new(error))),
                    };
                }
                Ok(Ok(_)) => {
                    return Err(SessionLost::Forgotten {
                        message: "the server started another session".to_owned(),
                    });
                }
                Ok(Err(error)) => last = retryable(error)?,
            }
            self.core.on_attempt_failed(&last);
            tracing::debug!(session = %self.session, error = %last, elapsed = ?began.elapsed(), "reconnecting failed");
            if began.elapsed() + FIRST_BACKOFF >= limit {
                return Err(SessionLost::ReconnectTimedOut { after: limit, last: Box::new(last) });
            }
        }
    }
}

/// Returns the error if another attempt may succeed.
fn retryable(error: Error) -> Result<Error, SessionLost> {
    match error {
        error if is_unknown_session(&error) => Err(SessionLost::Forgotten { message: error.what() }),
        // The server has not detected the disconnect yet.
        Error::Refused(RpcError { code: SESSION_ATTACHED, .. }) => Ok(error),
        Error::Refused(_) | Error::Unauthorized { .. } | Error::Address { .. } | Error::Protocol { .. } => {
            Err(SessionLost::Rejected(Box::new(error)))
        }
        other => Ok(other),
    }
}

/// Returns whether the program of a connection cannot log in before the user has done something.
fn needs_login(error: &Error) -> bool {
    match error {
        Error::PromptRefused { .. } => true,
        Error::ProgramEnded { stderr, .. } => {
            stderr.contains("Permission denied (") || stderr.contains("Host key verification failed")
        }
        _ => false,
    }
}

/// Returns between half of the backoff and all of it, so that the clients of one server do not reconnect at once.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 4];
    // Without random bytes they reconnect at once, which is acceptable.
    let _ = getrandom::fill(&mut random);
    let share = f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}

/// Connects and performs the handshake, each within its timeout.
async fn connect(core: &Core, session: &Session, prompts: Prompts) -> Result<(Link, Welcome), Error> {
    let options = &core.options;
    let too_long = |what, after| Error::TimedOut { what, after };
    let mut link = timeout(options.connect_timeout, dial(&core.target, prompts))
        .await
        .map_err(|_| too_long(CONNECTING, options.connect_timeout))??;
    let (resume_session_id, takeover) = match session {
        Session::New | Session::Create(_) | Session::Named(_) => (Resume::New, None),
        Session::Resume { id, takeover } => (Resume::Session(id.clone()), takeover.then_some(true)),
    };
    let initialize = Initialize {
        client_name: options.name.clone(),
        resume_session_id,
        capabilities: Some(capabilities(&link)),
        takeover,
        detach_ttl_ms: options.detach_ttl.map(millis),
        session_name: match session {
            Session::Create(name) | Session::Named(name) => Some(name.clone()),
            Session::New | Session::Resume { .. } => None,
        },
    };
    let limit = options.handshake_timeout;
    let prompt = link.child.as_ref().map(Child::prompt);
    let overdue = async {
        match prompt {
            Some(prompt) => prompt.handshake_overdue(limit).await,
            None => {
                sleep(limit).await;
                too_long(error::HANDSHAKE, limit)
            }
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = link.handshake(initialize, core.options.trace.as_ref()) => outcome,
        error = overdue => Err(HandshakeError::Failed(error)),
    };
    match outcome {
        Ok(mut welcome) => {
            if !welcome.has_sessions() {
                on_oldest_dialect(&mut welcome)?;
            }
            if let Some(child) = &mut link.child {
                child.connected().await;
            }
            Ok((link, welcome))
        }
        Err(HandshakeError::Closed(reason)) => Err(match &mut link.child {
            Some(child) => child.exit_error().await,
            None => disconnected(core, reason),
        }),
        Err(HandshakeError::Malformed { what, line }) => Err(match &link.child {
            Some(child) => child.unexpected_output_error(&line),
            None => Error::Protocol { what },
        }),
        Err(HandshakeError::Failed(error)) => Err(error),
    }
}

/// Checks the reply of a server without sessions: only the oldest dialect has none.
fn on_oldest_dialect(welcome: &mut Welcome) -> Result<(), Error> {
    if welcome.protocol_version != PROTOCOL_VERSION {
        let what = "cannot decode the response to `initialize`: missing field `sessionId`".to_owned();
        return Err(Error::Protocol { what });
    }
    // Processes end with the connection.
    welcome.detach_ttl_ms = Some(0);
    Ok(())
}
