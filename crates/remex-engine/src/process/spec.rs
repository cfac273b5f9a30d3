//! The specification of a process, as its client requested it. Start at [`Spec`].

use std::{
    borrow::Cow, collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStringExt as _, sync::OnceLock,
    time::Duration,
};

use remex_access::scope::Floor;
use remex_base::{clock::now_ms, limits::Limits};
use remex_proto::{ErrorKind, HostPath, RpcError, process as wire};

use super::{Runner, as_user, footprint::Texts, incarnation, start_request::StartRequest};

/// The total length of all labels of a process.
const LABEL_BYTES: usize = 64 << 10;

/// How much of a command line is kept for lists.
const SHOWN_ARGV_BYTES: usize = 32 << 10;

/// The log needs some room for output to pass through, even if it is not read later.
const SMALLEST_RETENTION: usize = 4 << 10;

/// The limits of a running child.
#[derive(Clone, Debug)]
pub struct ChildRules {
    /// Whether it has a terminal.
    pub tty: bool,
    /// What happens when the log is full.
    pub overflow: wire::Overflow,
    /// How long descendants may hold the output open after the child has exited.
    pub linger: Option<Duration>,
    /// When it is ended.
    pub timeout: Option<Duration>,
    /// When it is ended if it prints nothing.
    pub idle_timeout: Option<Duration>,
    /// How long the tree may take to end after a timeout; without it, the tree is killed at once.
    pub timeout_grace: Option<Duration>,
    /// How much output is kept.
    pub retain_bytes: usize,
}

/// The request of the client.
#[derive(Debug)]
pub struct Spec {
    pub rules: ChildRules,
    pub argv: Vec<String>,
    pub(crate) cwd: HostPath,
    /// The working directory of a start that names none, once it is known.
    pub(crate) home: OnceLock<HostPath>,
    /// The user as whom it runs, if not that of the server.
    pub user: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) asked_at_ms: u64,
    /// How long the output stays readable after close.
    pub closed_ttl: Duration,
    pub start_id: Option<String>,
    /// Tells this start of the process from all others under its id; `None` for one of a server that gave it none.
    pub incarnation: Option<u64>,
    /// What starts it again, if that is kept.
    pub request: Option<StartRequest>,
    /// Whether output is on the disk before it is announced.
    pub sync: bool,
    /// Bytes that the client sent and that are kept with the process.
    pub weight: usize,
}

impl Spec {
    /// Returns what a request asks for, within the limits of the server.
    pub(super) fn of(request: &wire::Start, floor: Floor, limits: &Limits, runner: &Runner) -> Self {
        let bytes = |wanted: u64| usize::try_from(wanted).unwrap_or(usize::MAX);
        let output = request.output;
        let (retain_bytes, retain_bytes_max, closed_ttl_max) = match runner {
            Runner::Local => (limits.retain_bytes, limits.retain_bytes_max, limits.closed_ttl_max),
            Runner::Keeper { .. } => {
                (limits.durable_retain_bytes, limits.durable_retain_bytes_max, limits.durable_ttl_max)
            }
        };
        let argv = shown(&words(request));
        let texts = Texts {
            id: &request.process_id,
            start_id: request.start_id.as_deref(),
            argv: &argv,
            cwd: &request.cwd,
            user: request.user.as_deref(),
            labels: &request.labels,
        };
        let kept = StartRequest::of(request, floor);
        Spec {
            weight: texts.weight() + kept.as_ref().map_or(0, StartRequest::weight),
            start_id: request.start_id.clone(),
            incarnation: incarnation::new(),
            request: kept,
            sync: request.sync,
            argv,
            cwd: as_user::shown_cwd(request),
            home: OnceLock::new(),
            user: request.user.clone(),
            labels: request.labels.clone(),
            asked_at_ms: now_ms(),
            closed_ttl: output
                .retain_ms
                .map_or(limits.closed_ttl, |ms| Duration::from_millis(ms).min(closed_ttl_max)),
            rules: ChildRules {
                tty: request.tty,
                overflow: output.overflow,
                linger: request.linger_ms.map(Duration::from_millis),
                timeout: request.timeout_ms.map(Duration::from_millis),
                idle_timeout: request.idle_timeout_ms.map(Duration::from_millis),
                timeout_grace: request.timeout_grace_ms.filter(|ms| *ms > 0).map(Duration::from_millis),
                retain_bytes: output
                    .retain_bytes
                    .map_or(retain_bytes, |wanted| bytes(wanted).clamp(SMALLEST_RETENTION, retain_bytes_max)),
            },
        }
    }

    /// Returns the working directory, as far as it is known.
    pub fn cwd(&self) -> &HostPath {
        self.home.get().unwrap_or(&self.cwd)
    }
}

/// Returns the program and its arguments.
pub(super) fn words(request: &wire::Start) -> Vec<OsString> {
    request.words().map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Returns the part of a command line that is kept for lists; bytes that are not UTF-8 are replaced.
fn shown(argv: &[OsString]) -> Vec<String> {
    let mut left = SHOWN_ARGV_BYTES;
    let fits = |argument: &Cow<'_, str>| {
        let fits = argument.len() <= left;
        left = left.saturating_sub(argument.len());
        fits
    };
    argv.iter().map(|argument| argument.to_string_lossy()).take_while(fits).map(Cow::into_owned).collect()
}

/// Rejects texts that are too long to be kept with the process.
pub(super) fn check_lengths(request: &wire::Start, limits: &Limits) -> Result<(), RpcError> {
    limits.check_id("processId", &request.process_id)?;
    limits.check_id("startId", request.start_id.as_deref().unwrap_or_default())?;
    for (name, value) in &request.labels {
        limits.check_id("the name of a label", name)?;
        limits.check_id("the value of a label", value)?;
    }
    let labels: usize = request.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if labels > LABEL_BYTES {
        let message = format!("labels have {labels} bytes together; at most {LABEL_BYTES} are allowed");
        return Err(RpcError::new(ErrorKind::InvalidParams, message));
    }
    Ok(())
}
