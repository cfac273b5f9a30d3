//! Checks of this machine: terminals, ports, the runtime directory, your local remex server, your environments.
//!
//! Leaves nothing running. Start at [`check`].

use std::{
    net::{TcpListener, TcpStream},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use remex::environments::{Error, Source, configured};
use remex_client::environment::DefinitionError;

use super::{
    certificates, durability,
    host::{self, Host},
};
use crate::{
    remote::{
        endpoint::Endpoint,
        local_server,
        probe::probe,
        user_server::{self, ServerStatus},
    },
    render::{
        failure::Failure,
        finding::{Finding, Verdict, short},
        text::plain,
    },
};

/// A clock before this was never set: 2024-01-01, in seconds since 1970.
const NEVER_SET: u64 = 1_704_067_200;

/// The maximum length of the path of a unix socket.
const MAX_SOCKET_PATH_LEN: usize = 107;

/// How far the two clocks may drift apart during the checks.
const DRIFT: Duration = Duration::from_millis(100);

pub(super) async fn check(limit: Duration) -> Vec<Finding> {
    let clocks = Clocks::read();
    let mut findings = vec![Finding::ok("version", format!("remex {}", env!("CARGO_PKG_VERSION")))];
    match local_server::check() {
        Ok(()) => {
            findings.extend(host::check(&Host::Here).await);
            findings.push(terminals());
            findings.push(loopback());
            findings.extend(directories());
            findings.push(runtime_directory());
            findings.extend(Box::pin(user_server_findings(limit)).await);
        }
        Err(failure) => {
            findings.push(Finding::new("local server", Verdict::Warning, failure.message()));
            findings.extend(directories());
        }
    }
    findings.extend(environments());
    findings.push(clocks.finding());
    findings
}

fn terminals() -> Finding {
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
    const NAME: &str = "terminals";
    let opened = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).and_then(|side| {
        grantpt(&side)?;
        unlockpt(&side)
    });
    match opened {
        Ok(()) => Finding::ok(NAME, "can be opened"),
        Err(error) => Finding::new(NAME, Verdict::Failed, format!("cannot be opened: {error}"))
            .with_hint("mount devpts at /dev/pts, and check /proc/sys/kernel/pty/max"),
    }
}

fn loopback() -> Finding {
    const NAME: &str = "loopback ports";
    let tried =
        TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| TcpStream::connect(listener.local_addr()?));
    match tried {
        Ok(_) => Finding::ok(NAME, "can be bound and reached"),
        Err(error) => Finding::new(NAME, Verdict::Failed, format!("cannot be used: {error}"))
            .with_hint("bring up the interface `lo`, or use unix sockets"),
    }
}

fn runtime_directory() -> Finding {
    const NAME: &str = "runtime directory";
    if let Err(failure) = user_server::check_runtime_directory() {
        return Finding::failed(NAME, &failure);
    }
    let socket = user_server::Socket::default_path();
    let directory = socket.directory();
    if socket.path.as_os_str().len() > MAX_SOCKET_PATH_LEN {
        let what = format!("the socket path is too long: `{}`", socket.path.display());
        return Finding::new(NAME, Verdict::Failed, what).with_hint("set XDG_RUNTIME_DIR to a shorter path");
    }
    match std::fs::symlink_metadata(directory) {
        Err(_) if !directory.exists() => missing_directory(NAME, directory),
        Err(error) => {
            Finding::failed(NAME, &Failure::io(&format!("inspect `{}`", directory.display()), &error))
        }
        Ok(metadata) => match socket.check() {
            Ok(()) => Finding::ok(NAME, format!("`{}` is private", directory.display())),
            Err(failure) => {
                let mode = metadata.permissions().mode() & 0o7777;
                let mut finding = Finding::failed(NAME, &failure);
                finding.what = format!("{} (owner {}, mode {mode:03o})", finding.what, metadata.uid());
                finding
            }
        },
    }
}

/// Checks whether a missing directory can be created.
fn missing_directory(name: &'static str, directory: &Path) -> Finding {
    use rustix::fs::{Access, access};
    let above = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let can_make = above.is_dir() && access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    if can_make {
        return Finding::ok(name, format!("`{}` is created on demand", directory.display()));
    }
    let what = format!("cannot create `{}`: no write access to `{}`", directory.display(), above.display());
    Finding::new(name, Verdict::Failed, what)
        .with_hint("set XDG_RUNTIME_DIR to your own directory, or unset it")
}

/// Checks the directories that variables name and that commands expect to exist.
fn directories() -> Vec<Finding> {
    let mut findings = Vec::new();
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match named("HOME") {
        Some(home) if home.is_dir() => {}
        Some(home) => findings.push(
            Finding::new(
                "home",
                Verdict::Warning,
                format!("HOME is `{}`, which is not a directory", home.display()),
            )
            .with_hint("set HOME to your home directory"),
        ),
        None => findings.push(
            Finding::new("home", Verdict::Warning, "HOME is not set, so your environments may not be found")
                .with_hint("set HOME, or XDG_CONFIG_HOME"),
        ),
    }
    if let Some(path) = named("TMPDIR").filter(|path| !path.is_dir()) {
        let what = format!("TMPDIR is `{}`, which is not a directory", path.display());
        findings.push(
            Finding::new("temporary files", Verdict::Warning, what)
                .with_hint("create it, or set TMPDIR to another directory"),
        );
    }
    findings
}

/// Checks the user's local remex server, if it is running.
async fn user_server_findings(limit: Duration) -> Vec<Finding> {
    const NAME: &str = "local server";
    let endpoint = match user_server::find().await {
        Ok(ServerStatus::Running(socket)) => Endpoint::user_server(socket),
        Ok(ServerStatus::Nothing) => {
            return vec![Finding::ok(NAME, "not running; started on demand"), will_keep()];
        }
        Ok(ServerStatus::Died) => {
            let hint = format!("see the log `{}`", user_server::Socket::default_path().log().display());
            return vec![
                Finding::new(NAME, Verdict::Warning, user_server::explain_stale_socket()).with_hint(hint),
            ];
        }
        Err(failure) => return vec![Finding::failed(NAME, &failure)],
    };
    let report = match probe(&endpoint, limit).await {
        Ok(report) => report,
        Err(failure) => return vec![Finding::failed(NAME, &failure)],
    };
    let mut findings = vec![Finding::ok(NAME, format!("running at {}", endpoint.target))];
    let mut kept = Vec::new();
    if let Some(client) = &report.client {
        kept = durability::check(client, limit).await;
    }
    findings.extend(report.end().await.into_iter().filter(|finding| {
        let interesting = ["handshake", "round trip", "clock offset", "resume"].contains(&finding.name);
        interesting || finding.verdict == Verdict::Failed
    }));
    findings.extend(kept);
    findings
}

/// Reports where the local server keeps processes when it runs.
fn will_keep() -> Finding {
    const NAME: &str = "durable processes";
    match user_server::Socket::default_path().state() {
        Some(state) => {
            Finding::ok(NAME, format!("kept in `{}` while and after the server runs", state.display()))
        }
        None => Finding::new(
            NAME,
            Verdict::Warning,
            "processes end with the local server: you have no home directory",
        )
        .with_hint("set HOME, or XDG_STATE_HOME, to a directory of yours"),
    }
}

fn environments() -> Vec<Finding> {
    const NAME: &str = "environments";
    match configured(|name| std::env::var_os(name)) {
        Err(Error::Invalid(errors)) => {
            let failed = |error: DefinitionError| {
                let finding = Finding::new(NAME, Verdict::Failed, plain(&error.message()));
                Finding { hint: error.hint(), ..finding }
            };
            errors.0.into_iter().map(failed).collect()
        }
        Err(error) => {
            let finding = Finding::new(NAME, Verdict::Failed, error.message());
            vec![Finding { hint: error.hint(), ..finding }]
        }
        Ok(found) => {
            let count = found.definitions.environments.len();
            let what = match &found.source {
                Source::File(path) => format!("{count} in `{}`", path.display()),
                Source::Variable(name) => format!("{count} from {name}"),
                Source::BuiltIn => "none besides `local`".to_owned(),
            };
            let warnings = found.warnings.into_iter().map(|warning| {
                let finding = Finding::new(NAME, Verdict::Warning, plain(&warning.message()));
                Finding { hint: warning.hint(), ..finding }
            });
            let certificates = certificates::check(&found.definitions);
            std::iter::once(Finding::ok(NAME, what)).chain(warnings).chain(certificates).collect()
        }
    }
}

/// The wall clock and the monotonic clock at one moment.
struct Clocks {
    steady: Instant,
    wall: SystemTime,
}

impl Clocks {
    fn read() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// Compares how far both clocks have advanced since.
    fn finding(&self) -> Finding {
        const NAME: &str = "local clock";
        let now = Self::read();
        let since = now.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() < NEVER_SET {
            return Finding::new(NAME, Verdict::Failed, "the time is far in the past")
                .with_hint("set the clock, or use NTP: certificates and listings depend on it");
        }
        let steady = now.steady.duration_since(self.steady);
        let drift = match now.wall.duration_since(self.wall) {
            Ok(wall) => wall.abs_diff(steady),
            Err(backwards) => backwards.duration() + steady,
        };
        if drift > DRIFT {
            let what = format!("it jumped by {} during the checks", short(drift));
            return Finding::new(NAME, Verdict::Warning, what)
                .with_hint("do not set the clock manually; use NTP");
        }
        Finding::ok(NAME, "steady")
    }
}
