//! Dispatches the messages of the server.

use bytes::Bytes;
use remex_proto::{
    Message, MessageLimits, RequestId, RpcError, ServerNote, attachment,
    binary::{self, Binary},
    call::{Note as _, Request as _},
    flow, fs,
    message::OutputFrame,
    network, process, session,
};
use remex_rpc::memory::ToClient;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Core, RawReply, RouteEvent, RouteKey, SessionEnd};
use crate::{
    Error, SessionLost,
    core::event_queue::{AFTER_EVERYTHING, ProcessEvent},
};

/// The subject of a notification that cannot be decoded.
enum Subject {
    Process(String, Option<u64>),
    Route(RouteKey),
    /// A process of another session.
    Observed {
        session_id: String,
        process_id: String,
        incarnation: Option<u64>,
    },
}

/// The ids in parameters that may be invalid otherwise.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ids<'a> {
    #[serde(borrow, default)]
    process_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    incarnation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    watch_id: Option<&'a RawValue>,
}

impl Subject {
    /// Finds an id in parameters that are otherwise invalid.
    fn of(params: &str) -> Option<Self> {
        fn decoded<T: DeserializeOwned>(id: Option<&RawValue>) -> Option<T> {
            serde_json::from_str(id?.get()).ok()
        }
        let ids: Ids<'_> = serde_json::from_str(params).ok()?;
        if let Some(process_id) = decoded(ids.process_id) {
            let incarnation = decoded(ids.incarnation);
            return Some(match ids.session_id {
                Some(id) => {
                    let session_id = decoded(Some(id)).unwrap_or_default();
                    Self::Observed { session_id, process_id, incarnation }
                }
                None => Self::Process(process_id, incarnation),
            });
        }
        let http = decoded(ids.request_id).map(RouteKey::Http);
        let watch = || decoded(ids.watch_id).map(RouteKey::Watch);
        http.or_else(watch).map(Self::Route)
    }
}

/// Notifications that this client does not use: one that it cannot decode concerns nothing.
const UNUSED: [&str; 4] = [
    process::StartedNote::METHOD,
    process::Failed::METHOD,
    fs::MissingChanged::METHOD,
    network::PolicyDecision::METHOD,
];

impl Core {
    /// Handles a message from the wire.
    ///
    /// Fails with [`Error::Protocol`] if the message cannot be attributed; the caller counts these.
    pub(crate) fn on_message(&self, bytes: &Bytes) -> Result<(), Error> {
        let output = if self.is_binary() && binary::is_binary(bytes) {
            match Binary::parse(bytes) {
                Ok(Binary::Output(output)) => output,
                Ok(Binary::Message { json, attached }) => return self.on_json(&json, Some(&attached)),
                Err(malformed) => return Err(Error::Protocol { what: malformed.to_string() }),
            }
        } else {
            match OutputFrame::read(bytes) {
                Some(output) => output,
                None => return self.on_json(bytes, None),
            }
        };
        self.on_notification(ServerNote::ProcessOutput(output));
        Ok(())
    }

    /// Handles a message in JSON, and the bytes beside it.
    fn on_json(&self, json: &Bytes, attached: Option<&Bytes>) -> Result<(), Error> {
        let nonsense = |what: String| Error::Protocol { what };
        match Message::parse(json, MessageLimits::FROM_SERVER) {
            Err(malformed) => Err(nonsense(malformed.to_string())),
            Ok(Message::Response { id, outcome }) => {
                let outcome = match outcome {
                    Ok(result) => {
                        let result = json.slice_ref(result.as_bytes());
                        Ok(match attached {
                            Some(attached) => RawReply::Attached(result, attached.clone()),
                            None => RawReply::Json(result),
                        })
                    }
                    Err(error) => match serde_json::from_str::<RpcError>(error) {
                        Ok(error) => Err(Error::Refused(error)),
                        Err(error) => Err(nonsense(format!("cannot decode an error response: {error}"))),
                    },
                };
                // On line transports the server has no other way to say why it closes the connection.
                if let Err(Error::Refused(error)) = &outcome
                    && id == RequestId::MALFORMED
                    && error.message == session::TAKEN_OVER
                {
                    return Err(SessionLost::TakenOver.into());
                }
                self.answer(&id, outcome);
                Ok(())
            }
            Ok(Message::Notification { method, params }) => {
                let parsed = match attached {
                    Some(attached) => {
                        attachment::with(attached.clone(), || ServerNote::parse(&method, params))
                    }
                    None => ServerNote::parse(&method, params),
                };
                match parsed {
                    Ok(note) => self.on_notification(note),
                    // A newer server may send notifications that this client does not know.
                    Err(remex_proto::ParseError::UnknownMethod { .. }) => {
                        tracing::debug!(method = %method, "unknown notification");
                    }
                    Err(error) if UNUSED.contains(&&*method) => {
                        tracing::debug!(method = %method, error = %error, "invalid notification");
                    }
                    Err(error) => {
                        return self
                            .on_invalid_notification(params, &format!("cannot decode `{method}`: {error}"));
                    }
                }
                Ok(())
            }
            Ok(Message::Request { id, method, .. }) => {
                tracing::debug!(method = %method, "request from the server refused");
                self.refuse(id);
                Ok(())
            }
        }
    }

    /// Handles a message from a server in this process.
    pub(crate) fn on_value(&self, value: ToClient) -> Result<(), Error> {
        match value {
            ToClient::Answer { id, outcome } => {
                self.answer(&id, outcome.map(RawReply::Value).map_err(Error::Refused));
            }
            ToClient::Note(note) => self.on_notification(note),
            ToClient::Close { reason } => {
                return Err(Error::unreachable(self.target.to_string(), reason));
            }
        }
        Ok(())
    }

    fn answer(&self, id: &RequestId, outcome: Result<RawReply, Error>) {
        let RequestId::Integer(id) = id else { return };
        let waiting = {
            let mut state = self.lock();
            state.answers += 1;
            let waiting = state.pending.complete(id.cast_unsigned());
            let ends = waiting.as_ref().is_some_and(|waiting| waiting.method == session::End::METHOD);
            if ends && state.end == SessionEnd::Requested && outcome.is_ok() {
                state.end = SessionEnd::Done;
            }
            waiting
        };
        // A reply without a pending call arrived after its caller was dropped.
        if let Some(waiting) = waiting {
            self.room.notify_waiters();
            waiting.complete(self, outcome);
        }
    }

    fn on_notification(&self, note: ServerNote) {
        let event = match note {
            ServerNote::FlowMark(flow::Mark { mark }) => {
                self.lock().outgoing.ack = Some(mark);
                return self.bell.notify_one();
            }
            ServerNote::HttpBodyDelta(delta) => {
                return self.route(&RouteKey::Http(delta.request_id.clone()), RouteEvent::Body(delta));
            }
            ServerNote::FsChanged(changed) => {
                return self.route(&RouteKey::Watch(changed.watch_id), RouteEvent::Changed(changed));
            }
            ServerNote::SessionEnded(note) => {
                return self.route(&RouteKey::Session(note.session_id), RouteEvent::SessionEnded);
            }
            ServerNote::ProcessOutput(note) => ProcessEvent::Output(note),
            ServerNote::ProcessExited(note) => ProcessEvent::Exited(note),
            ServerNote::ProcessClosed(note) => ProcessEvent::Closed(note),
            ServerNote::ProcessGap(note) => ProcessEvent::Gap(note),
            ServerNote::ProcessStarted(_)
            | ServerNote::ProcessFailed(_)
            | ServerNote::FsMissingChanged(_)
            | ServerNote::NetworkPolicyDecision(_) => return,
        };
        if let Some(session_id) = event.observed_session() {
            let (key, incarnation) = (RouteKey::Session(session_id.to_owned()), event.incarnation());
            let (process_id, event) = event.into_event();
            return self.route(&key, RouteEvent::Process { process_id, incarnation, event: Ok(event) });
        }
        self.on_process_event(event);
    }

    /// Counts a protocol error; fails when the limit is reached.
    pub(crate) fn on_protocol_error(&self, what: &str) -> Result<(), SessionLost> {
        tracing::warn!(error = %what, "protocol error");
        let is_too_many = self.lock().protocol_errors.add(Instant::now());
        if is_too_many { Err(SessionLost::Protocol { what: what.to_owned() }) } else { Ok(()) }
    }

    /// Ends the stream, watch or process that an undecodable notification belongs to, and nothing else: the server may
    /// be newer, and everything else of it may be as expected.
    ///
    /// Fails if the subject is unknown: then any stream may have lost data.
    fn on_invalid_notification(&self, params: Option<&str>, what: &str) -> Result<(), Error> {
        let error = Error::Protocol { what: what.to_owned() };
        let Some(subject) = params.and_then(Subject::of) else { return Err(error) };
        tracing::warn!(error = %what, "invalid notification");
        match subject {
            Subject::Process(process_id, incarnation) => {
                let queue = self.receiver(&process_id, incarnation);
                match queue {
                    Some(queue) => {
                        let action = queue.on_protocol_error(error);
                        self.perform(&queue, action);
                    }
                    None => self.discarded(&process_id, incarnation, AFTER_EVERYTHING),
                }
            }
            Subject::Route(key) => {
                let route = self.lock().routes.get(&key).cloned();
                if let Some(route) = route {
                    route.end(RouteEvent::Broken(error));
                }
            }
            Subject::Observed { session_id, process_id, incarnation } => {
                let event = RouteEvent::Process { process_id, incarnation, event: Err(error) };
                self.route(&RouteKey::Session(session_id), event);
            }
        }
        Ok(())
    }

    fn route(&self, key: &RouteKey, what: RouteEvent) {
        let route = self.lock().routes.get(key).cloned();
        if let Some(route) = route {
            route.push(what);
        }
    }
}
