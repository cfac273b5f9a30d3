//! What a line of the audit file says.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use remex_proto::{Call, HostPath, fs::OpenMode};
use serde::Serialize;

/// Longer command lines are truncated, in bytes.
const MAX_ARGV: usize = 16 << 10;

/// Where a connection comes from, as lines show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    pub(crate) connection: u64,
    /// The address of the peer, `unix`, `stdio` or `memory`.
    pub(crate) peer: Arc<str>,
    pub(crate) identity: Arc<str>,
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// Written before the action, where recording is required.
    Begun,
    Ok,
    /// The kind of the error.
    Failed(&'a str),
}

impl Outcome<'_> {
    fn word(&self) -> &str {
        match self {
            Outcome::Begun => "begun",
            Outcome::Ok => "ok",
            Outcome::Failed(kind) => kind,
        }
    }
}

/// One line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    at: String,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(flatten)]
    subject: Option<&'a Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl<'a> Line<'a> {
    fn new(event: &'a str) -> Self {
        Line {
            at: timestamp(SystemTime::now()),
            event,
            connection: None,
            identity: None,
            peer: None,
            method: None,
            subject: None,
            outcome: None,
            duration_ms: None,
            request_bytes: None,
            answer_bytes: None,
            count: None,
        }
    }

    fn about(self, peer: &'a PeerInfo) -> Self {
        Line {
            connection: Some(peer.connection),
            identity: Some(&peer.identity),
            peer: Some(&peer.peer),
            ..self
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// What an action is about.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    argv: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// An action in progress.
#[derive(Debug)]
pub(crate) struct Entry {
    event: &'static str,
    method: &'static str,
    subject: Subject,
    peer: Arc<PeerInfo>,
    started: Instant,
}

impl Entry {
    /// Returns the entry of a call, if calls like it are recorded.
    pub(crate) fn of(call: &Call, peer: &Arc<PeerInfo>) -> Option<Self> {
        let (event, subject) = describe(call)?;
        Some(Entry { event, method: call.method(), subject, peer: Arc::clone(peer), started: Instant::now() })
    }

    /// Returns the entry of a call that was refused because the credential does not allow it.
    pub(crate) fn refusal(call: &Call, peer: &Arc<PeerInfo>) -> Self {
        let subject = describe(call).map(|(_, subject)| subject).unwrap_or_default();
        let peer = Arc::clone(peer);
        Entry { event: "refusal", method: call.method(), subject, peer, started: Instant::now() }
    }

    /// Returns the line.
    pub(crate) fn line(&self, outcome: Outcome<'_>, request_bytes: usize, answer_bytes: usize) -> Vec<u8> {
        let is_over = outcome != Outcome::Begun;
        let line = Line {
            method: Some(self.method),
            subject: Some(&self.subject),
            outcome: Some(outcome.word()),
            duration_ms: is_over.then(|| milliseconds(self.started.elapsed())),
            request_bytes: Some(request_bytes as u64),
            answer_bytes: is_over.then_some(answer_bytes as u64),
            ..Line::new(self.event).about(&self.peer)
        };
        line.encode()
    }
}

/// An attempt to authenticate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Login<'a> {
    pub(crate) peer: &'a str,
    /// Who it is, if it succeeded.
    pub(crate) identity: Option<&'a str>,
    /// `ok`, or why it failed.
    pub(crate) outcome: &'a str,
}

impl Login<'_> {
    pub(crate) fn line(&self) -> Vec<u8> {
        let line = Line {
            peer: Some(self.peer),
            identity: self.identity,
            outcome: Some(self.outcome),
            ..Line::new("login")
        };
        line.encode()
    }
}

/// Returns the line of a connection that has ended.
pub(crate) fn connection(peer: &PeerInfo, duration: Duration, sent_bytes: u64) -> Vec<u8> {
    let line = Line {
        duration_ms: Some(milliseconds(duration)),
        answer_bytes: Some(sent_bytes),
        ..Line::new("connection").about(peer)
    };
    line.encode()
}

/// Returns the line that says how many others were discarded.
pub(super) fn dropped(count: u64) -> Vec<u8> {
    Line { count: Some(count), ..Line::new("dropped") }.encode()
}

/// Returns the event and the subject of a call that is recorded.
fn describe(call: &Call) -> Option<(&'static str, Subject)> {
    let of_process = |process: &str, session: &Option<String>| Subject {
        process: Some(process.to_owned()),
        session: session.clone(),
        ..Subject::default()
    };
    let of_paths = |paths: &[&HostPath]| Subject {
        paths: paths.iter().map(|path| shown(path)).collect(),
        ..Subject::default()
    };
    Some(match call {
        Call::ProcessStart(start) => {
            let subject = Subject {
                process: Some(start.process_id.clone()),
                argv: Some(truncated(&start.argv)),
                cwd: Some(shown(&start.cwd)),
                ..Subject::default()
            };
            ("start", subject)
        }
        Call::ProcessSignal(signal) => {
            let subject = of_process(&signal.process_id, &signal.session_id);
            ("signal", Subject { signal: Some(signal.signal.to_string()), ..subject })
        }
        Call::ProcessTerminate(request) => {
            ("terminate", of_process(&request.process_id, &request.session_id))
        }
        Call::SessionEnd(request) => {
            ("terminate", Subject { session: Some(request.session_id.clone()), ..Subject::default() })
        }
        Call::FsReadFile(request) => ("read", of_paths(&[&request.path])),
        Call::FsOpen(request) if request.mode == OpenMode::Read => ("read", of_paths(&[&request.path])),
        Call::FsOpen(request) => ("write", of_paths(&[&request.path])),
        Call::FsWriteFile(request) => ("write", of_paths(&[&request.path])),
        Call::FsCreateDirectory(request) => ("write", of_paths(&[&request.path])),
        Call::FsSetPermissions(request) => ("write", of_paths(&[&request.path])),
        Call::FsSetTimes(request) => ("write", of_paths(&[&request.path])),
        Call::FsSymlink(request) => ("write", of_paths(&[&request.path])),
        Call::FsCopy(request) => ("write", of_paths(&[&request.source_path, &request.destination_path])),
        Call::FsRename(request) => ("write", of_paths(&[&request.source_path, &request.destination_path])),
        Call::FsRemove(request) => ("remove", of_paths(&[&request.path])),
        Call::HttpRequest(request) => {
            ("http", Subject { url: Some(without_secrets(&request.url)), ..Subject::default() })
        }
        _ => return None,
    })
}

fn shown(path: &HostPath) -> String {
    path.native().map_or_else(|_| path.to_uri(), |native| native.to_string_lossy().into_owned())
}

/// Truncates a command line, argument by argument.
fn truncated(argv: &[String]) -> Vec<String> {
    let mut left = MAX_ARGV;
    let mut kept = Vec::new();
    for argument in argv {
        if argument.len() > left {
            let end = (0..=left).rev().find(|at| argument.is_char_boundary(*at)).unwrap_or(0);
            kept.push(format!("{}…", &argument[..end]));
            break;
        }
        left -= argument.len();
        kept.push(argument.clone());
    }
    kept
}

/// Removes user, password, query and fragment of a URL.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority_len = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_len);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

fn milliseconds(duration: Duration) -> f64 {
    // Microseconds are precise enough, and shorter.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Formats a time as RFC 3339 in UTC with milliseconds.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

/// Returns the date of a day since 1970-01-01, by counting years of 365.2425 days that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds, millis: u32| {
            timestamp(SystemTime::UNIX_EPOCH + Duration::new(seconds, millis * 1_000_000))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_827_696, 7), "2000-02-29T12:34:56.007Z");
        assert_eq!(at(4_107_542_400, 999), "2100-03-01T00:00:00.999Z");
    }

    #[test]
    fn a_url_is_recorded_without_what_may_be_secret() {
        for (url, recorded) in [
            ("https://user:pass@example.com/a?token=x#y", "https://example.com/a"),
            ("http://example.com", "http://example.com"),
            ("http://example.com?key=1", "http://example.com"),
            ("http://a@b@c/d@e", "http://c/d@e"),
            ("nonsense?x", "nonsense"),
        ] {
            assert_eq!(without_secrets(url), recorded);
        }
    }

    #[test]
    fn a_huge_command_line_is_truncated() {
        let argv = vec!["x".to_owned(), "é".repeat(MAX_ARGV), "never shown".to_owned()];
        let kept = truncated(&argv);
        assert_eq!(kept.len(), 2);
        assert!(kept[1].len() <= MAX_ARGV + 3 && kept[1].ends_with('…'));
    }

    #[test]
    fn neither_input_nor_environment_is_recorded() {
        let peer = Arc::new(PeerInfo { connection: 1, peer: "unix".into(), identity: "owner".into() });
        let params =
            r#"{"processId":"p","argv":["env"],"cwd":"/","tty":false,"env":{"KEY":"hidden"},"arg0":null}"#;
        let start = Call::parse("process/start", Some(params)).unwrap();
        let line = Entry::of(&start, &peer).unwrap().line(Outcome::Ok, 3, 4);
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["event"], "start");
        assert_eq!(line["argv"], serde_json::json!(["env"]));
        assert_eq!((&line["identity"], &line["outcome"]), (&"owner".into(), &"ok".into()));
        assert!(!line.to_string().contains("hidden"), "{line}");
        let write = Call::parse("process/write", Some(r#"{"processId":"p","chunk":"aGk="}"#)).unwrap();
        assert!(Entry::of(&write, &peer).is_none());
    }
}
