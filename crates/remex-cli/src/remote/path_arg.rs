//! Path arguments: `ENV:path`, `:path`, `[URL]:path`, or a path on this machine.
//!
//! Start at [`PathArg`]; [`Connections::reach`] resolves it to a [`RemotePath`].

mod entry;

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::entry::EntryKind;
use remex_client::{Client, ConnectionState, Error, fs::Fs};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    remote::{
        endpoint::{self, Endpoint, Selected, SelectedBy},
        probe::is_unknown_method,
        reconnect,
    },
    render::{
        failure::{Failure, InvalidArg, Kind},
        print, text,
    },
};

/// Disconnects shorter than this are not reported.
const NOTICE_DELAY: Duration = Duration::from_millis(500);

/// How long ending a session may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A path and its host, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathArg {
    pub(crate) typed: OsString,
    host: HostArg,
    /// Bytes, because names need not be UTF-8.
    path: OsString,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostArg {
    Local,
    /// The environment selected for all commands.
    Selected,
    /// The name of an environment, or an address.
    Named(String),
}

impl PathArg {
    pub(crate) fn parse(typed: OsString) -> Result<Self, InvalidArg> {
        let (host, path) = split(&typed)?;
        Ok(Self { path: path.to_owned(), host, typed })
    }

    /// Returns the host, with the selected environment resolved, and what selected it.
    fn host(&self) -> Result<(HostArg, SelectedBy), Failure> {
        if self.host != HostArg::Selected {
            return Ok((self.host.clone(), SelectedBy::Argument));
        }
        match endpoint::selected()? {
            Some(Selected { word, by: SelectedBy::Variable }) => {
                Ok((HostArg::Named(word), SelectedBy::VariableForPath))
            }
            Some(Selected { word, by }) => Ok((HostArg::Named(word), by)),
            None => Err(Failure::usage(
                format!("cannot use `{}`: no environment is selected", text::plain(&self.shown())),
                format!(
                    "select one with `remex env default` or REMEX_ON, write `ENV:path`, or `./{}` for a file on this machine",
                    text::plain(&self.shown())
                ),
            )),
        }
    }

    /// Returns whether it is a plain path, which is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.host == HostArg::Local
    }

    /// Formats it for messages.
    pub(crate) fn shown(&self) -> String {
        self.typed.to_string_lossy().into_owned()
    }
}

/// Splits an argument into host and path.
fn split(typed: &OsStr) -> Result<(HostArg, &OsStr), InvalidArg> {
    if typed.is_empty() {
        return Err(InvalidArg::new(
            "it is empty",
            "use `.` for the current directory, or `ENV:` for the home directory of an environment",
        ));
    }
    let bytes = typed.as_bytes();
    let there = |name: &[u8]| HostArg::Named(String::from_utf8_lossy(name).into_owned());
    if let Some(bracketed) = bytes.strip_prefix(b"[")
        && let Some(at) = bracketed.windows(2).position(|pair| pair == b"]:")
    {
        return Ok((there(&bracketed[..at]), OsStr::from_bytes(&bracketed[at + 2..])));
    }
    let colon = bytes.iter().position(|byte| *byte == b':');
    match colon.map(|at| (&bytes[..at], &bytes[at + 1..])) {
        Some((scheme, rest)) if rest.starts_with(b"//") && !scheme.contains(&b'/') => {
            let typed = typed.to_string_lossy();
            let (address, path) = suggested(&typed);
            Err(InvalidArg::new("an address needs brackets", format!("write `[{address}]:{path}`")))
        }
        Some((b"", path)) => Ok((HostArg::Selected, OsStr::from_bytes(path))),
        // A slash before the colon makes it a path, as in `./a:b`.
        Some((name, path)) if !name.contains(&b'/') => Ok((there(name), OsStr::from_bytes(path))),
        _ => Ok((HostArg::Local, typed)),
    }
}

/// Splits an address with a path behind it, as in `ws://host:7070:src`, at the colon before the path.
fn suggested(typed: &str) -> (&str, &str) {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let authority = typed.find("://").map_or(0, |at| at + 3);
    // The colons in an IPv6 address are not separators.
    let start = typed[authority..].find(']').map_or(authority, |at| authority + at + 1);
    let colons = typed[start..].match_indices(':').map(|(at, _)| start + at);
    let mut pieces = colons.map(|at| (&typed[..at], &typed[at + 1..]));
    let is_path = |(_, rest): &(&str, &str)| !is_port(rest.split([':', '/']).next().unwrap_or_default());
    pieces.find(is_path).unwrap_or((typed, "path"))
}

/// Prints a note if all paths are on this machine although an environment is selected, which other commands would use.
pub(crate) fn note_local_paths<'a>(args: impl IntoIterator<Item = &'a PathArg>) {
    let mut first = None;
    for arg in args {
        if arg.host != HostArg::Local {
            return;
        }
        first = first.or(Some(arg));
    }
    // Ignore errors in the environments file, which local paths do not need.
    let (Some(arg), Ok(Some(selected))) = (first, endpoint::selected()) else { return };
    if selected.word != "local" {
        let typed = text::plain(&arg.shown());
        let there = if typed == "." { ":".to_owned() } else { format!(":{typed}") };
        print::note(format!(
            "`{typed}` is on this machine; write `{there}` for {}, which {} selects",
            text::plain(&selected.word),
            if selected.by == SelectedBy::Default { "`remex env default`" } else { "REMEX_ON" }
        ));
    }
}

/// Prints a note if the destination is a new local file with the name of an environment: the colon may be missing.
pub(crate) fn note_new_file(arg: &PathArg) {
    let name = arg.shown();
    let is_plain = arg.host == HostArg::Local && !name.contains(['/', ':']);
    if is_plain && std::fs::symlink_metadata(&arg.typed).is_err() && endpoint::is_environment(&name) {
        print::note(format!("`{name}` is a new file on this machine; write `{name}:` for the environment"));
    }
}

/// The hosts that a command uses, each with one connection.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    connected: Vec<(HostArg, Arc<ConnectedHost>)>,
    /// Tasks that report lost connections.
    watchers: JoinSet<()>,
}

/// A connected host and its files.
#[derive(Debug)]
pub(crate) struct ConnectedHost {
    pub(crate) client: Client,
    pub(crate) fs: Fs,
    /// Its name for messages.
    pub(crate) name: String,
    /// Whether it is this machine, served in this process.
    pub(crate) is_here: bool,
    /// The base of relative paths.
    base: Option<PathBuf>,
}

/// A path on a connected host.
#[derive(Clone, Debug)]
pub(crate) struct RemotePath {
    pub(crate) at: Arc<ConnectedHost>,
    /// Absolute, without trailing slashes.
    pub(crate) path: PathBuf,
    /// As typed, for messages.
    pub(crate) shown: String,
    /// Whether it was typed with a trailing slash, so it must be a directory.
    pub(crate) is_directory: bool,
    /// Whether it was typed as `.` or with a trailing `/.`: the contents of the directory are meant.
    pub(crate) is_content: bool,
}

impl Connections {
    /// Connects and resolves a path; `say` is called with a message when the connection is lost or re-established.
    pub(crate) async fn reach(
        &mut self,
        arg: &PathArg,
        say: impl Fn(&str) + Send + 'static,
    ) -> Result<RemotePath, Failure> {
        let (host, selected_by) = arg.host()?;
        let known = self.connected.iter().find(|(connected, _)| *connected == host);
        let at = match known {
            Some((_, at)) => Arc::clone(at),
            None => {
                let at = Arc::new(ConnectedHost::connect(&host, selected_by).await?);
                self.watchers.spawn(report_disconnects(at.client.connection_states(), at.name.clone(), say));
                self.connected.push((host, Arc::clone(&at)));
                at
            }
        };
        Ok(RemotePath::new(at, arg)?.without_parents().await)
    }

    /// Ends the sessions.
    pub(crate) async fn close(mut self) {
        self.watchers.shutdown().await;
        for (_, at) in self.connected {
            // The session is empty; if the request does not arrive, it expires.
            let _ = tokio::time::timeout(END_TIMEOUT, at.client.clone().end()).await;
        }
    }
}

impl ConnectedHost {
    async fn connect(host: &HostArg, selected_by: SelectedBy) -> Result<Self, Failure> {
        let (host, is_here) = match host {
            HostArg::Named(word) => {
                let selected = Selected { word: word.clone(), by: selected_by };
                (Endpoint::selected(&selected, None)?, false)
            }
            HostArg::Local | HostArg::Selected => (Endpoint::in_process()?, true),
        };
        let client = host.connect(reconnect::keep_session).await?;
        let base = if is_here {
            let directory = std::env::current_dir()
                .map_err(|error| Failure::io("determine the current directory", &error))?;
            Some(directory)
        } else {
            let home = match client.info().await {
                Ok(info) => info.user_home_dir,
                // The oldest dialect has no host information.
                Err(error) if is_unknown_method(&error) => None,
                Err(error) => return Err(error.into()),
            };
            home.and_then(|home| home.native().ok().map(Path::to_owned))
        };
        Ok(Self { fs: client.fs(), client, name: host.name, is_here, base })
    }
}

impl RemotePath {
    fn new(at: Arc<ConnectedHost>, arg: &PathArg) -> Result<Self, Failure> {
        let mut path = arg.path.as_bytes();
        if arg.host != HostArg::Local {
            path = match path.strip_prefix(b"~") {
                Some(b"") => b"",
                Some([b'/', rest @ ..]) => trim_start(rest),
                _ => path,
            };
        }
        if path.contains(&0) {
            return Err(Failure::usage(
                format!("`{}` contains a NUL byte", text::plain(&arg.shown())),
                "give a valid path",
            ));
        }
        let is_absolute = path.starts_with(b"/");
        let is_content = path == b"." || path.ends_with(b"/.");
        let bare = if is_content { &path[..path.len() - 1] } else { path };
        let trimmed = trim_end(bare);
        let path = if is_absolute {
            PathBuf::from(OsStr::from_bytes(if trimmed.is_empty() { b"/" } else { trimmed }))
        } else {
            let base = at.base.as_ref().ok_or_else(|| {
                Failure::of(
                    Kind::Failed,
                    format!("cannot resolve `{}`", arg.shown()),
                    "give an absolute path",
                )
                .because("the server does not report its home directory")
            })?;
            if trimmed.is_empty() { base.clone() } else { base.join(OsStr::from_bytes(trimmed)) }
        };
        let is_directory = is_content || bare != trimmed || trimmed.is_empty();
        Ok(Self { at, path, shown: arg.shown(), is_directory, is_content })
    }

    /// Resolves every `..`, relative to the target of links. A missing path is returned unchanged; using it fails later.
    async fn without_parents(mut self) -> Self {
        let mut path = PathBuf::new();
        for component in self.path.components() {
            if component != Component::ParentDir {
                path.push(component);
                continue;
            }
            match self.at.fs.canonicalize(&path).await {
                Ok(real) => path = real.native().map(Path::to_owned).unwrap_or(path),
                Err(_) => return self,
            }
            path.pop();
        }
        self.path = path;
        self
    }

    /// Returns the failure of an action; hints at a missing colon after the name of an environment.
    pub(crate) fn failed(&self, action: &str, error: Error) -> Failure {
        let failure =
            Failure::from(error).context(&format!("cannot {action} `{}`", text::plain(&self.shown)));
        let is_plain = self.at.is_here && !self.shown.contains(['/', ':']);
        if failure.kind() == Kind::NotFound && is_plain && endpoint::is_environment(&self.shown) {
            let hint = format!("`{0}` is an environment; did you mean `{0}:`?", self.shown);
            return failure.with_hint(hint);
        }
        failure
    }

    /// Returns the path of an entry of this directory.
    pub(crate) fn join(&self, name: &OsStr) -> Self {
        Self {
            at: Arc::clone(&self.at),
            path: self.path.join(name),
            shown: joined(&self.shown, name),
            is_directory: false,
            is_content: false,
        }
    }
}

fn trim_start(path: &[u8]) -> &[u8] {
    &path[path.iter().position(|byte| *byte != b'/').unwrap_or(path.len())..]
}

fn trim_end(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1)]
}

/// Formats an entry of a directory for messages.
fn joined(directory: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let directory = directory.strip_suffix("/.").unwrap_or(directory);
    if directory.ends_with(['/', ':']) { format!("{directory}{name}") } else { format!("{directory}/{name}") }
}

async fn report_disconnects(
    mut conditions: watch::Receiver<ConnectionState>,
    name: String,
    say: impl Fn(&str),
) {
    loop {
        let is_disconnected =
            |condition: &ConnectionState| matches!(condition, ConnectionState::Reconnecting { .. });
        if conditions.wait_for(is_disconnected).await.is_err() {
            return;
        }
        let lost_at = Instant::now();
        let back = conditions.wait_for(|condition| !is_disconnected(condition));
        let is_told = tokio::time::timeout(NOTICE_DELAY, back).await.is_err();
        if is_told {
            say(&format!("connection to {name} lost; reconnecting"));
        }
        match conditions.wait_for(|condition| !is_disconnected(condition)).await.as_deref() {
            Ok(ConnectionState::Connected) if is_told => {
                say(&format!("reconnected to {name} after {}", text::span(lost_at.elapsed())));
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_names_an_environment_unless_a_slash_precedes_it() {
        let there = |name: &str| HostArg::Named(name.to_owned());
        for (typed, host, path) in [
            ("a", HostArg::Local, "a"),
            ("./a:b", HostArg::Local, "./a:b"),
            ("/a:b", HostArg::Local, "/a:b"),
            ("./:a", HostArg::Local, "./:a"),
            (":", HostArg::Selected, ""),
            (":a", HostArg::Selected, "a"),
            (":a:b", HostArg::Selected, "a:b"),
            ("build:", there("build"), ""),
            ("build:src/app", there("build"), "src/app"),
            ("build:a:b", there("build"), "a:b"),
            ("[ws://127.0.0.1:7070]:/a", there("ws://127.0.0.1:7070"), "/a"),
            ("[a", HostArg::Local, "[a"),
        ] {
            let arg = PathArg::parse(typed.into()).unwrap();
            assert_eq!((arg.host, arg.path.to_str()), (host, Some(path)), "{typed}");
        }
        for wrong in ["", "ws://host:1", "unix:///a"] {
            assert!(PathArg::parse(wrong.into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_hint_puts_brackets_around_the_address_only() {
        for (typed, hint) in [
            ("ws://127.0.0.1:39141:x", "[ws://127.0.0.1:39141]:x"),
            ("ws://127.0.0.1:39141:/a/b:c", "[ws://127.0.0.1:39141]:/a/b:c"),
            ("ws://127.0.0.1:39141:", "[ws://127.0.0.1:39141]:"),
            ("ws://127.0.0.1:39141", "[ws://127.0.0.1:39141]:path"),
            ("ws://[::1]:7070:x", "[ws://[::1]:7070]:x"),
            ("ws://[::1]:7070", "[ws://[::1]:7070]:path"),
            ("ssh://you@far.example:src", "[ssh://you@far.example]:src"),
            ("ssh://you@far.example", "[ssh://you@far.example]:path"),
            ("unix:///run/own.sock:~/a", "[unix:///run/own.sock]:~/a"),
            ("unix:///run/own.sock", "[unix:///run/own.sock]:path"),
        ] {
            let error = PathArg::parse(typed.into()).unwrap_err();
            assert_eq!(error.hint, format!("write `{hint}`"), "{typed}");
        }
    }

    #[test]
    fn a_path_need_not_be_utf_8() {
        for (typed, host, path) in [
            (&b"\xff"[..], HostArg::Local, &b"\xff"[..]),
            (b"build:a/\xff", HostArg::Named("build".to_owned()), b"a/\xff"),
            (b"[ws://h:1]:\xff", HostArg::Named("ws://h:1".to_owned()), b"\xff"),
        ] {
            let arg = PathArg::parse(OsStr::from_bytes(typed).to_owned()).unwrap();
            assert_eq!((arg.host, arg.path.as_bytes()), (host, path));
        }
        assert_eq!((trim_start(b"//a"), trim_end(b"a//"), trim_end(b"//")), (&b"a"[..], &b"a"[..], &b""[..]));
    }
}
