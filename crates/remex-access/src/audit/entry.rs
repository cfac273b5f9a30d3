//! The lines of the audit file.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use remex_proto::{Call, ErrorKind, HostPath};
use serde::Serialize;

use super::{
    subject::{Subject, cut},
    timestamp::timestamp,
    visible,
};

/// Where a connection comes from, as lines show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The number of the connection.
    pub connection: u64,
    /// The address of the peer, `unix`, `stdio` or `memory`.
    pub peer: Arc<str>,
    /// On whose behalf it acts.
    pub identity: Arc<str>,
    /// Who issued a signed token, and about whom.
    pub claims: Option<Claims>,
}

/// What a signed token says about its bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Who issued it.
    pub issuer: Arc<str>,
    /// Whom it is about.
    pub subject: Arc<str>,
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Written before the action, where recording is required.
    Begun,
    /// It succeeded.
    Ok,
    /// It failed in this way.
    Failed(ErrorKind),
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Begun => "begun",
            Outcome::Ok => "ok",
            Outcome::Failed(kind) => kind.word(),
        }
    }

    /// Returns whether the request was refused for lack of permission.
    fn is_refusal(self) -> bool {
        matches!(self, Outcome::Failed(ErrorKind::PermissionDenied | ErrorKind::UnknownSession))
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
    identity: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "subject")]
    claimed_subject: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(flatten)]
    subject: Option<&'a Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Cow<'a, str>>,
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
            issuer: None,
            claimed_subject: None,
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
            identity: Some(cut(&peer.identity)),
            peer: Some(cut(&peer.peer)),
            ..self.claimed(peer.claims.as_ref())
        }
    }

    fn claimed(self, claims: Option<&'a Claims>) -> Self {
        Line {
            issuer: claims.map(|claims| cut(&claims.issuer)),
            claimed_subject: claims.map(|claims| cut(&claims.subject)),
            ..self
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut line = visible::to_json(self);
        line.push(b'\n');
        line
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct Entry {
    event: Event,
    method: &'static str,
    subject: Subject,
    peer: Arc<PeerInfo>,
    started: Instant,
}

/// Which line a request results in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Always a line, with this word.
    Action(&'static str),
    /// A line only if it is refused.
    Refusal,
}

/// A session that a client has attached to.
#[derive(Clone, Copy, Debug)]
pub struct Attached<'a> {
    /// The session.
    pub session: &'a str,
    /// Whether it existed before.
    pub is_resumed: bool,
    /// The connection that lost it.
    pub previous: Option<u64>,
}

impl Entry {
    /// Returns the entry of a call that is recorded with this word.
    pub fn action(word: &'static str, call: &Call, peer: &Arc<PeerInfo>) -> Self {
        Entry { event: Event::Action(word), ..Entry::refusal(call, peer) }
    }

    /// Returns the entry of a call that is recorded only if it is refused.
    pub fn refusal(call: &Call, peer: &Arc<PeerInfo>) -> Self {
        let (subject, peer) = (Subject::of(call), Arc::clone(peer));
        Entry { event: Event::Refusal, method: call.method(), subject, peer, started: Instant::now() }
    }

    /// Names the session of the connection, where the call is about a process and names none.
    pub fn within(mut self, session: &str) -> Self {
        if self.subject.process.is_some() && self.subject.session.is_none() {
            self.subject.session = Some(cut(session).into_owned());
        }
        self
    }

    /// Names the identity that the session belongs to.
    pub fn owned_by(mut self, identity: &str) -> Self {
        self.subject.owner = Some(cut(identity).into_owned());
        self
    }

    /// Adds the command that a restart starts again.
    pub fn starting(mut self, argv: &[String], cwd: &HostPath, user: Option<&str>) -> Self {
        self.subject.starts(argv, cwd, user);
        self
    }

    /// Adds the session that the client has attached to.
    pub fn set_attached(&mut self, attached: Attached<'_>) {
        self.subject.session = Some(cut(attached.session).into_owned());
        self.subject.resumed = Some(attached.is_resumed);
        self.subject.previous_connection = attached.previous;
    }

    /// Returns the line, if an entry with this outcome becomes one.
    pub fn line(&self, outcome: Outcome, request_bytes: usize, answer_bytes: usize) -> Option<Vec<u8>> {
        let event = match self.event {
            Event::Action(word) => word,
            Event::Refusal if outcome.is_refusal() => "refusal",
            Event::Refusal => return None,
        };
        let is_over = outcome != Outcome::Begun;
        let line = Line {
            method: Some(self.method),
            subject: Some(&self.subject),
            outcome: Some(outcome.word().into()),
            duration_ms: is_over.then(|| milliseconds(self.started.elapsed())),
            request_bytes: Some(request_bytes as u64),
            answer_bytes: is_over.then_some(answer_bytes as u64),
            ..Line::new(event).about(&self.peer)
        };
        Some(line.encode())
    }
}

/// An attempt to authenticate.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    /// The address of the peer, as in [`PeerInfo`].
    pub peer: &'a str,
    /// Who it is, if it succeeded.
    pub identity: Option<&'a str>,
    /// What a signed token says about that.
    pub claims: Option<&'a Claims>,
    /// `ok`, or why it failed.
    pub outcome: &'a str,
}

impl Login<'_> {
    /// Returns the line.
    pub fn line(&self) -> Vec<u8> {
        let line = Line {
            peer: Some(cut(self.peer)),
            identity: self.identity.map(cut),
            outcome: Some(cut(self.outcome)),
            ..Line::new("login").claimed(self.claims)
        };
        line.encode()
    }
}

/// A host that the sandbox of a process has refused.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    /// The session of the process.
    pub session: &'a str,
    /// Whom the session belongs to.
    pub identity: &'a str,
    /// The process.
    pub process: &'a str,
    /// The host that it asked for.
    pub host: &'a str,
    /// The port there.
    pub port: u16,
}

impl Denial<'_> {
    /// Returns the line.
    pub fn line(&self) -> Vec<u8> {
        let subject = Subject {
            process: Some(cut(self.process).into_owned()),
            host: Some(format!("{}:{}", cut(self.host), self.port)),
            ..Subject::session(Some(self.session))
        };
        let line = Line {
            identity: Some(cut(self.identity)),
            subject: Some(&subject),
            outcome: Some(ErrorKind::PermissionDenied.word().into()),
            ..Line::new("network")
        };
        line.encode()
    }
}

/// Returns the line of a connection that has ended.
pub fn connection(peer: &PeerInfo, duration: Duration, sent_bytes: u64) -> Vec<u8> {
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

fn milliseconds(duration: Duration) -> f64 {
    // Microseconds are precise enough, and shorter.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(identity: &str) -> Arc<PeerInfo> {
        Arc::new(PeerInfo { connection: 1, peer: "unix".into(), identity: identity.into(), claims: None })
    }

    #[test]
    fn no_request_makes_a_long_line() {
        let peer = peer(&"i".repeat(1 << 20));
        let long = "x".repeat(1 << 20);
        let paths = vec![format!("/{}", &long[..8 << 10]); 100];
        let short = vec!["/a"; 100];
        for (method, params, omitted) in [
            ("fs/readFile", serde_json::json!({"path": format!("/{long}")}), None),
            ("fs/watchMissing", serde_json::json!({"watchId": 1, "missing": paths}), Some(96)),
            ("fs/watchMissing", serde_json::json!({"watchId": 1, "missing": short}), Some(36)),
            ("process/read", serde_json::json!({"processId": long, "sessionId": long}), None),
            ("session/end", serde_json::json!({"sessionId": long}), None),
            (
                "http/request",
                serde_json::json!({"method": "GET", "url": format!("http://a/{long}"), "requestId": "r", "headers": []}),
                None,
            ),
        ] {
            let call = Call::parse(method, Some(&params.to_string())).expect(method);
            let line = Entry::refusal(&call, &peer)
                .line(Outcome::Failed(ErrorKind::PermissionDenied), 3, 4)
                .unwrap();
            assert!(line.len() < 32 << 10, "{method}: {} bytes", line.len());
            let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(line["omitted"].as_u64(), omitted, "{method}");
            assert!(line["identity"].as_str().unwrap().ends_with("…[1048576 bytes]"));
        }
    }

    #[test]
    fn the_recorded_command_is_the_one_that_runs() {
        let peer = peer("owner");
        let params = r#"{"processId":"p","argv":["/bin/true"],"argvBase64":["L2Jpbi9ybQ==","/w=="],"cwd":"/","tty":false,"env":{},"arg0":null}"#;
        let start = Call::parse("process/start", Some(params)).unwrap();
        let line = Entry::action("start", &start, &peer).line(Outcome::Ok, 3, 4).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["argv"], serde_json::json!(["/bin/rm", "\u{fffd}"]));
    }

    #[test]
    fn neither_input_nor_environment_is_recorded() {
        let peer = peer("owner");
        let params =
            r#"{"processId":"p","argv":["env"],"cwd":"/","tty":false,"env":{"KEY":"hidden"},"arg0":null}"#;
        let start = Call::parse("process/start", Some(params)).unwrap();
        let line = Entry::action("start", &start, &peer).line(Outcome::Ok, 3, 4).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["event"], "start");
        assert_eq!(line["argv"], serde_json::json!(["env"]));
        assert_eq!((&line["identity"], &line["outcome"]), (&"owner".into(), &"ok".into()));
        assert!(!line.to_string().contains("hidden"), "{line}");
        let write = Call::parse("process/write", Some(r#"{"processId":"p","chunk":"aGk="}"#)).unwrap();
        assert_eq!(Entry::refusal(&write, &peer).line(Outcome::Ok, 3, 4), None);
        let refused = Outcome::Failed(ErrorKind::UnknownSession);
        let line = String::from_utf8(Entry::refusal(&write, &peer).line(refused, 3, 4).unwrap()).unwrap();
        assert!(line.contains("\"event\":\"refusal\"") && !line.contains("aGk="), "{line}");
    }

    #[test]
    fn a_line_names_the_issuer_and_the_subject_of_a_token_separately() {
        let claims = Claims { issuer: "https://id.example".into(), subject: "ann@\u{202e}x".into() };
        let login =
            Login { peer: "unix:0", identity: Some("subject:…"), claims: Some(&claims), outcome: "ok" };
        let line = String::from_utf8(login.line()).unwrap();
        assert!(line.contains(r#""issuer":"https://id.example","subject":"ann@\u202ex""#), "{line}");
    }

    #[test]
    fn a_line_about_a_process_names_its_session() {
        let read = Call::parse("process/read", Some(r#"{"processId":"p"}"#)).unwrap();
        let entry = Entry::action("observe", &read, &peer("admin")).within("s-1").owned_by("token:ci");
        let line: serde_json::Value =
            serde_json::from_slice(&entry.line(Outcome::Ok, 1, 1).unwrap()).unwrap();
        assert_eq!((&line["session"], &line["owner"]), (&"s-1".into(), &"token:ci".into()));
    }
}
