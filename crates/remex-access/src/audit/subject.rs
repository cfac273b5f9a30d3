//! The object of an action in the audit file. Start at [`Subject`].

use std::borrow::Cow;

use remex_proto::{Call, HostPath};
use serde::Serialize;

/// Longer texts are truncated, in bytes.
const MAX_TEXT: usize = 4 << 10;

/// Longer lists of words or paths are truncated, in bytes.
const MAX_LIST: usize = 16 << 10;

/// The overhead of a word or path in a list, in bytes.
const ITEM: usize = 4;

/// How many paths a line has at most.
const MAX_PATHS: usize = 64;

/// The session, process, paths and so on that an action concerns.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Subject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    /// The identity that the session belongs to, if it is not the client's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    /// Whether an attached session existed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resumed: Option<bool>,
    /// The connection that lost the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) previous_connection: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) argv: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
    /// The user as whom a process is to run, if not that of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<String>,
    /// How many words or paths are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) omitted: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
}

impl Subject {
    /// Returns what a call is about.
    pub(super) fn of(call: &Call) -> Self {
        match call {
            Call::Initialize(request) => Subject::session(request.resume_session_id.session()),
            Call::ProcessStart(start) => {
                let (argv, omitted) = truncated(start.words());
                Subject {
                    argv: Some(argv),
                    omitted,
                    cwd: Some(&start.cwd).filter(|cwd| !cwd.is_empty()).map(shown),
                    user: start.user.as_deref().map(|user| cut(user).into_owned()),
                    ..Subject::process(&start.process_id, &None)
                }
            }
            Call::ProcessSignal(request) => Subject {
                signal: Some(cut(&request.signal.to_string()).into_owned()),
                ..Subject::process(&request.process_id, &request.session_id)
            },
            Call::ProcessTerminate(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessRestart(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessRead(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessWrite(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessCloseStdin(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessRelease(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessForget(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessResize(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessWait(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessSnapshot(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessSeek(request) => Subject::process(&request.process_id, &request.session_id),
            Call::ProcessList(request) => Subject::session(request.session_id.as_deref()),
            Call::SessionEnd(request) => Subject::session(Some(&request.session_id)),
            Call::SessionObserve(request) => Subject::session(Some(&request.session_id)),
            Call::SessionUnobserve(request) => Subject::session(Some(&request.session_id)),
            Call::FsReadFile(request) => Subject::paths([&request.path]),
            Call::FsOpen(request) => Subject::paths([&request.path]),
            Call::FsWriteFile(request) => Subject::paths([&request.path]),
            Call::FsCreateDirectory(request) => Subject::paths([&request.path]),
            Call::FsSetPermissions(request) => Subject::paths([&request.path]),
            Call::FsSetTimes(request) => Subject::paths([&request.path]),
            Call::FsSymlink(request) => Subject::paths([&request.path]),
            Call::FsCopy(request) => Subject::paths([&request.source_path, &request.destination_path]),
            Call::FsRename(request) => Subject::paths([&request.source_path, &request.destination_path]),
            Call::FsRemove(request) => Subject::paths([&request.path]),
            Call::FsGetMetadata(request) => Subject::paths([&request.path]),
            Call::FsCanonicalize(request) => Subject::paths([&request.path]),
            Call::FsReadDirectory(request) => Subject::paths([&request.path]),
            Call::FsWalk(request) => Subject::paths([&request.path]),
            Call::FsReadLink(request) => Subject::paths([&request.path]),
            Call::FsHash(request) => Subject::paths([&request.path]),
            Call::FsSearch(request) => Subject::paths([&request.path]),
            Call::FsWatch(request) => Subject::paths([&request.path]),
            Call::FsWatchMissing(request) => Subject::paths(request.missing.iter().chain(&request.present)),
            Call::EnvironmentConfigRead(request) => Subject::paths([&request.cwd]),
            Call::CapabilityRootsDiscover(request) => {
                Subject::paths(request.roots.iter().map(|root| &root.path))
            }
            Call::CapabilitiesDiscover(request) => Subject::paths([&request.cwd]),
            Call::HttpRequest(request) => {
                Subject { url: Some(cut(&without_secrets(&request.url)).into_owned()), ..Subject::default() }
            }
            Call::ProcessCollect(_)
            | Call::SessionList(_)
            | Call::FsReadBlock(_)
            | Call::FsWriteBlock(_)
            | Call::FsClose(_)
            | Call::FsUnwatch(_)
            | Call::EnvironmentInfo(_)
            | Call::EnvironmentStatus(_) => Subject::default(),
        }
    }

    /// Adds the command that is started again.
    pub(super) fn starts(&mut self, argv: &[String], cwd: &HostPath, user: Option<&str>) {
        let (argv, omitted) = truncated(argv.iter().map(String::as_bytes));
        (self.argv, self.omitted) = (Some(argv), omitted);
        self.cwd = Some(cwd).filter(|cwd| !cwd.is_empty()).map(shown);
        self.user = user.map(|user| cut(user).into_owned());
    }

    fn process(process: &str, session: &Option<String>) -> Self {
        Subject { process: Some(cut(process).into_owned()), ..Subject::session(session.as_deref()) }
    }

    pub(super) fn session(session: Option<&str>) -> Self {
        Subject { session: session.map(|session| cut(session).into_owned()), ..Subject::default() }
    }

    fn paths<'a>(paths: impl IntoIterator<Item = &'a HostPath>) -> Self {
        let mut paths = paths.into_iter();
        let (mut kept, mut left) = (Vec::new(), MAX_LIST);
        while kept.len() < MAX_PATHS && left > 0 {
            let Some(path) = paths.next() else { break };
            let path = shown(path);
            left = left.saturating_sub(path.len() + ITEM);
            kept.push(path);
        }
        Subject { paths: kept, omitted: Some(paths.count()).filter(|count| *count > 0), ..Subject::default() }
    }
}

fn shown(path: &HostPath) -> String {
    let native = path.native();
    cut(&native.map_or_else(|_| path.to_uri().into(), |native| native.to_string_lossy())).into_owned()
}

/// Truncates a text that is too long for a line, and says how long it was.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return Cow::Borrowed(text);
    }
    let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…[{} bytes]", &text[..end], text.len()))
}

/// Returns the words of a command line up to its limit, and how many are left out; bytes that are not UTF-8 are
/// replaced.
fn truncated<'a>(argv: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, Option<usize>) {
    let (mut argv, mut left) = (argv.into_iter(), MAX_LIST);
    let mut kept = Vec::new();
    while left > 0
        && let Some(word) = argv.next()
    {
        let text = String::from_utf8_lossy(&word[..word.len().min(left)]);
        kept.push(if word.len() > left {
            format!("{text}…[{} bytes]", word.len())
        } else {
            text.into_owned()
        });
        left = left.saturating_sub(word.len() + ITEM);
    }
    (kept, Some(argv.count()).filter(|count| *count > 0))
}

/// The longest URL that is recorded; no request can have a longer one.
const MAX_URL_LEN: usize = 1 << 16;

/// Removes user, password, query and fragment of a URL.
fn without_secrets(url: &str) -> String {
    if url.len() > MAX_URL_LEN {
        return format!("…[{} bytes]", url.len());
    }
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority_len = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_len);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let argv = ["x".to_owned(), "é".repeat(MAX_LIST), "never shown".to_owned()];
        let (kept, omitted) = truncated(argv.iter().map(String::as_bytes));
        assert_eq!((kept.len(), omitted), (2, Some(1)));
        let mark = format!("…[{} bytes]", 2 * MAX_LIST);
        assert!(kept[1].len() <= MAX_LIST + 3 + mark.len() && kept[1].ends_with(&mark));

        let (kept, omitted) = truncated(std::iter::repeat_n(&b""[..], 1 << 20));
        assert_eq!((kept.len(), omitted), (MAX_LIST / ITEM, Some((1 << 20) - MAX_LIST / ITEM)));
    }
}
