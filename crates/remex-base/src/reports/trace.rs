//! The spans of requests and of processes.
//!
//! A log line carries the fields of the spans it is written in. Requests are logged at `debug`, and so are their
//! spans; but a client that sends a trace context finds its trace id at every level. Start at [`request`].

use remex_proto::{Call, RequestId, TraceContext};
use tracing::{Span, field};

/// Makes a span the child of the client's span, for a subscriber that exports spans.
pub type SetParent = fn(&Span, &TraceContext);

/// The target of what the server logs, whichever of its crates the line is from: `remex serve --log
/// remex_server=debug`.
pub const LOG_TARGET: &str = "remex_server";

/// The trace of one request.
#[derive(Debug)]
pub struct RequestTrace {
    /// The span, which is open until the answer.
    pub span: Span,
    /// What the client sent.
    pub context: Option<Box<TraceContext>>,
}

/// What the span of a request says about it.
pub struct RequestFacts<'a> {
    /// What is called.
    pub call: &'a Call,
    /// The id that the client chose.
    pub id: &'a RequestId,
    /// The number of the connection.
    pub connection: u64,
    /// On whose behalf, as logs show it.
    pub identity: &'a str,
    /// The session of the connection, once there is one.
    pub session: Option<&'a str>,
}

/// Creates a span with common fields at `debug`, or with the ids of a trace at every level.
macro_rules! span {
    ($name:literal, $context:expr, $set_parent:expr, $($fields:tt)*) => {
        match $context {
            None => tracing::debug_span!(target: LOG_TARGET, parent: None, $name, $($fields)*),
            Some(context) => {
                let span = tracing::error_span!(
                    target: LOG_TARGET,
                    parent: None,
                    $name,
                    trace_id = %format_args!("{:032x}", context.trace_id()),
                    parent_id = %format_args!("{:016x}", context.parent_id()),
                    $($fields)*
                );
                if let Some(set_parent) = $set_parent && !span.is_disabled() {
                    set_parent(&span, context);
                }
                span
            }
        }
    };
}

/// Creates the span of a request, which lasts until the answer.
pub fn request(
    facts: &RequestFacts<'_>,
    context: Option<&TraceContext>,
    set_parent: Option<SetParent>,
) -> Span {
    span!(
        "request",
        context,
        set_parent,
        method = facts.call.method(),
        request = %facts.id,
        connection = facts.connection,
        identity = %facts.identity,
        session = facts.session,
        process = process_of(facts.call),
        outcome = field::Empty,
    )
}

/// Creates the span of a process, which lasts until its output has ended.
pub fn process(
    id: &str,
    session: &str,
    identity: &str,
    started_by: Option<&RequestTrace>,
    set_parent: Option<SetParent>,
) -> Span {
    let context = started_by.and_then(|request| request.context.as_deref());
    let span = span!(
        "process",
        context,
        set_parent,
        process = id,
        session,
        identity = %identity,
        pid = field::Empty,
        code = field::Empty,
        error = field::Empty,
    );
    // Not its child: the span of the request ends with the answer, and a child would keep it open.
    if let Some(request) = started_by.filter(|_| !span.is_disabled()) {
        span.follows_from(&request.span);
    }
    span
}

fn process_of(call: &Call) -> Option<&str> {
    match call {
        Call::ProcessStart(call) => Some(&call.process_id),
        Call::ProcessRead(call) => Some(&call.process_id),
        Call::ProcessWrite(call) => Some(&call.process_id),
        Call::ProcessSignal(call) => Some(&call.process_id),
        Call::ProcessTerminate(call) => Some(&call.process_id),
        Call::ProcessRestart(call) => Some(&call.process_id),
        Call::ProcessCloseStdin(call) => Some(&call.process_id),
        Call::ProcessRelease(call) => Some(&call.process_id),
        Call::ProcessForget(call) => Some(&call.process_id),
        Call::ProcessResize(call) => Some(&call.process_id),
        Call::ProcessWait(call) => Some(&call.process_id),
        Call::ProcessSnapshot(call) => Some(&call.process_id),
        Call::ProcessSeek(call) => Some(&call.process_id),
        _ => None,
    }
}
