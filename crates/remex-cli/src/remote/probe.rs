//! What works at a place and what does not: a few seconds of trying the real thing.
//!
//! Leaves nothing behind. Start at [`probe`].

use std::{num::NonZeroU16, time::Duration};

use remex_client::{Client, Error, ErrorKind, Options, Session, Target};
use remex_proto::{
    environment::{GetInfo, Info},
    error::METHOD_NOT_FOUND,
    process::{List, Scope},
};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    remote::endpoint::Endpoint,
    render::{
        failure::{Failure, Kind},
        finding::{Finding, Verdict, short},
        text,
    },
};

/// How often the round trip is measured.
const ROUND_TRIPS: usize = 9;

/// Clocks that are further apart make times in listings look odd.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// How long the session of a probe may outlive it.
const DETACH_TTL: Duration = Duration::from_secs(10);

/// More than a person may take to answer a question on the way to a place.
const ANSWER: Duration = Duration::from_secs(600);

/// What a probe has found, and the connection for those who want to know more.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// `None` where the server cannot be reached.
    pub(crate) client: Option<Client>,
    /// When there is no more time.
    pub(crate) deadline: Instant,
}

impl Report {
    /// Ends the session if there is time; otherwise the server ends it, some seconds after the connection.
    pub(crate) async fn end(self) -> Vec<Finding> {
        if let Some(client) = self.client {
            // Whether it ends in order is nobody's question here.
            let _ = timeout_at(self.deadline, client.end()).await;
        }
        self.findings
    }
}

/// One kind of trial: its name, and what to do when it fails and nobody knows better.
struct Trial {
    name: &'static str,
    todo: &'static str,
}

/// What a trial that worked has to say.
struct Said {
    verdict: Verdict,
    what: String,
    todo: Option<String>,
    /// What was measured, if it is not simply how long the trial took.
    measured: Option<Duration>,
}

type Tried = Result<Said, Failure>;

/// Tries everything at a place, within `limit`.
///
/// # Errors
///
/// Only when a person does not want it any more.
pub(crate) async fn probe(endpoint: &Endpoint, limit: Duration) -> Result<Report, Failure> {
    let begun = Instant::now();
    let dialled = dial(endpoint, limit, |options| options.detach_ttl = Some(DETACH_TTL)).await;
    let took = begun.elapsed();
    // What a person took to answer a question does not count, so the limit begins anew.
    let begun = if asks(endpoint) { Instant::now() } else { begun };
    let deadline = begun + limit;
    let mut report = Report { findings: Vec::new(), client: None, deadline };
    let client = match dialled {
        Ok(client) => client,
        Err(error) => {
            let failure = endpoint.failure(error.clone());
            if matches!(failure.kind(), Kind::Signalled(_)) {
                return Err(failure);
            }
            report.findings = not_connected(&error, &failure);
            return Ok(report);
        }
    };
    report.findings.push(Finding::ok("reachable", endpoint.target.to_string()).took(took));
    report.findings.push(handshake(&client));
    let trials = Trials { client: &client, deadline, findings: &mut report.findings };
    trials.run().await;
    report.client = Some(resume(endpoint, client, deadline, &mut report.findings).await);
    Ok(report)
}

/// Tells whether the way to a place may ask a person something.
fn asks(endpoint: &Endpoint) -> bool {
    matches!(endpoint.target, Target::Program(_))
}

/// Connects within `limit`, in which the answers of a person do not count.
async fn dial(
    endpoint: &Endpoint,
    limit: Duration,
    adapt: impl FnOnce(&mut Options),
) -> Result<Client, Error> {
    let connecting = endpoint.dial(|options| {
        adapt(options);
        if asks(endpoint) {
            options.connect_timeout = options.connect_timeout.min(limit);
            options.initialize_timeout = options.initialize_timeout.min(limit);
        }
    });
    if asks(endpoint) {
        return connecting.await;
    }
    timeout(limit, connecting).await.unwrap_or(Err(Error::TimedOut { what: "connecting", after: limit }))
}

fn not_connected(error: &Error, failure: &Failure) -> Vec<Finding> {
    let spoke = matches!(
        error,
        Error::Unauthorized { .. }
            | Error::Protocol { .. }
            | Error::Refused(_)
            | Error::TimedOut { what: "the handshake", .. }
    );
    let token = matches!(error, Error::Unauthorized { .. });
    let todo = if token {
        "give the environment the token of the server: `remex env add NAME URL --token-file PATH`"
    } else if spoke {
        "check that a remex server listens there, and its version"
    } else {
        "check that the server runs, its address and the way to it; `remex serve` starts one"
    };
    let name = if spoke { "handshake" } else { "reachable" };
    let failed = Finding { todo: None, ..Finding::failed(name, failure) };
    let failed = failed.todo(failure.todo().filter(|_| !token).unwrap_or(todo));
    if spoke { vec![Finding::ok("reachable", ""), failed] } else { vec![failed] }
}

fn handshake(client: &Client) -> Finding {
    let server = &client.welcome().server;
    let ours = env!("CARGO_PKG_VERSION");
    if server.name.is_empty() {
        return Finding::ok("handshake", "a server that does not tell its version");
    }
    let what = format!("{} {}", server.name, server.version);
    if server.name == "remex" && server.version != ours {
        return Finding::new("handshake", Verdict::Warning, format!("{what}, and this program is {ours}"))
            .todo("install the same version on both sides; what both know works");
    }
    Finding::ok("handshake", what)
}

struct Trials<'a> {
    client: &'a Client,
    deadline: Instant,
    findings: &'a mut Vec<Finding>,
}

impl Trials<'_> {
    async fn run(mut self) {
        let client = self.client;
        let trial = |name, todo| Trial { name, todo };
        self.try_out(trial("round trip", "look at the network between here and there"), round_trip(client))
            .await;
        self.try_out(trial("command", "check the PATH and the limits of the server's user"), command(client))
            .await;
        self.try_out(
            trial("terminal", "mount devpts at /dev/pts there, and check /proc/sys/kernel/pty/max"),
            terminal(client),
        )
        .await;
        self.try_out(
            trial("files", "check the temporary directory there: space and permissions"),
            files(client),
        )
        .await;
        self.try_out(trial("http", "install remex there to make requests from that host"), http(client))
            .await;
        self.try_out(trial("clock", "look at the clocks of both machines"), clock(client)).await;
    }

    async fn try_out(&mut self, trial: Trial, tried: impl Future<Output = Tried>) {
        let finding = judge(trial, self.deadline, tried).await;
        self.findings.push(finding);
    }
}

async fn judge(trial: Trial, deadline: Instant, tried: impl Future<Output = Tried>) -> Finding {
    let begun = Instant::now();
    if begun >= deadline {
        return Finding::new(trial.name, Verdict::Failed, "no time was left for it")
            .todo("allow more with `--timeout`");
    }
    match timeout_at(deadline, tried).await {
        Err(_) => Finding::new(trial.name, Verdict::Failed, "no answer in time")
            .took(begun.elapsed())
            .todo("allow more with `--timeout`, or look at what holds the server up"),
        Ok(Err(failure)) => {
            let finding = Finding::failed(trial.name, &failure).took(begun.elapsed());
            if finding.todo.is_some() { finding } else { finding.todo(trial.todo) }
        }
        Ok(Ok(said)) => {
            let took = (said.verdict != Verdict::Skipped).then(|| said.measured.unwrap_or(begun.elapsed()));
            Finding { name: trial.name, verdict: said.verdict, took, what: said.what, todo: said.todo }
        }
    }
}

fn works(what: impl Into<String>) -> Tried {
    Ok(Said { verdict: Verdict::Ok, what: what.into(), todo: None, measured: None })
}

fn skipped(what: impl Into<String>) -> Tried {
    Ok(Said { verdict: Verdict::Skipped, what: what.into(), todo: None, measured: None })
}

fn failed(what: impl Into<String>) -> Tried {
    Err(Failure::bare(Kind::Failed, what))
}

/// Measures the median of a few empty calls.
async fn round_trip(client: &Client) -> Tried {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        client.call(GetInfo {}).await?;
        times.push(begun.elapsed());
    }
    times.sort();
    let (median, worst) = (times[ROUND_TRIPS / 2], times[ROUND_TRIPS - 1]);
    Ok(Said {
        verdict: Verdict::Ok,
        what: format!("median of {ROUND_TRIPS}; the slowest took {}", short(worst)),
        todo: None,
        measured: Some(median),
    })
}

async fn command(client: &Client) -> Tried {
    let output = client.command("true").output().await?;
    if output.exit.is_success() {
        works("`true` ran")
    } else {
        failed(format!("`true` ended with {:?}", output.exit))
    }
}

async fn terminal(client: &Client) -> Tried {
    const ROWS: NonZeroU16 = NonZeroU16::new(7).expect("7 is not 0");
    const COLS: NonZeroU16 = NonZeroU16::new(77).expect("77 is not 0");
    let output = client.shell("test -t 0 && stty size").terminal(ROWS, COLS).output().await?;
    let said = String::from_utf8_lossy(&output.terminal).into_owned();
    match (output.exit.is_success(), said.trim()) {
        (true, "7 77") => works("a shell on a terminal of 7 × 77 sees its size"),
        // There may be no `stty`, or not this one.
        (true, _) => works("a shell runs on a terminal"),
        (false, said) => failed(format!("a shell on a terminal ended with {:?}: {said}", output.exit)),
    }
}

/// Writes a file, reads it back, compares its hash, and removes it.
async fn files(client: &Client) -> Tried {
    let info = client.info().await?;
    let directory = temporary(&info);
    let directory = directory.trim_end_matches('/');
    let path = format!("{directory}/remex-test-{}", client.session_id());
    let content = path.as_bytes();
    let fs = client.fs();
    fs.write(path.as_str(), content).await?;
    let read = fs.read(path.as_str()).await;
    let hash = fs.hash(path.as_str()).await;
    fs.remove(path.as_str()).await?;
    if read? != content {
        return failed(format!("`{path}` came back with other content"));
    }
    let hash = match hash {
        Ok(hash) => hash.hash.to_string(),
        Err(error) if is_unknown_method(&error) => {
            return works("a file was written, read and removed; the server makes no hashes");
        }
        Err(error) => return Err(error.into()),
    };
    let expected =
        Sha256::digest(content).iter().fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}"));
    if hash == expected {
        works(format!("a file in `{directory}` was written, read, hashed and removed"))
    } else {
        failed(format!("the hash of `{path}` is {hash} there and {expected} here"))
    }
}

/// Returns the directory for temporary files there, as people write it.
pub(crate) fn temporary(info: &Info) -> String {
    let path = info.temp_dir.as_ref().and_then(|path| path.native().ok());
    path.map_or_else(|| "/tmp".to_owned(), |path| path.display().to_string())
}

/// Asks for something that nobody serves: a refusal by the host shows that requests are made.
async fn http(client: &Client) -> Tried {
    let nobody = client.http().get("http://127.0.0.1:1/").timeout(Duration::from_secs(2)).send().await;
    match nobody {
        Err(error) if is_unknown_method(&error) => skipped("the server makes no HTTP requests"),
        Ok(_) | Err(Error::Refused(_)) => works("requests are made there; the network was not tried"),
        Err(error) => Err(error.into()),
    }
}

async fn clock(client: &Client) -> Tried {
    let before = text::now_ms();
    let begun = Instant::now();
    let process = client.command("true").start().await?;
    let uncertain = begun.elapsed();
    let listing = client.call(List { session_id: None, scope: Scope::default() }).await;
    let started = match listing {
        Ok(listing) => listing.processes.into_iter().find(|entry| entry.process_id == process.id()),
        Err(error) if is_unknown_method(&error) => return skipped("the server does not tell the time"),
        Err(error) => return Err(error.into()),
    };
    process.wait().await?;
    let Some(started) = started else { return skipped("the server has forgotten the process already") };
    let middle = before + u64::try_from(uncertain.as_millis() / 2).unwrap_or_default();
    let apart = Duration::from_millis(started.started_at_ms.abs_diff(middle));
    let direction = if started.started_at_ms > middle { "ahead" } else { "behind" };
    if apart <= CLOCK_TOLERANCE + uncertain {
        return works(format!("no more than {} apart", short(apart.max(uncertain))));
    }
    Ok(Said {
        verdict: Verdict::Warning,
        what: format!("its clock is {} {direction}", text::age(apart)),
        todo: Some("let both machines keep time with NTP; times in listings are the server's".to_owned()),
        measured: None,
    })
}

/// Leaves, comes back, and returns the client that came back.
async fn resume(
    endpoint: &Endpoint,
    client: Client,
    deadline: Instant,
    findings: &mut Vec<Finding>,
) -> Client {
    let trial = Trial { name: "resume", todo: "raise `--max-detach-ttl` of the server" };
    if client.welcome().detach_ttl_ms == Some(0) {
        let what = "a session ends with its connection there, so a disconnect ends its processes";
        findings.push(judge(trial, deadline, std::future::ready(skipped(what))).await);
        return client;
    }
    let session = client.session_id().to_owned();
    let left = deadline.saturating_duration_since(Instant::now());
    // The limit is kept where a person is not asked.
    let deadline = if asks(endpoint) && !left.is_zero() { Instant::now() + ANSWER } else { deadline };
    let mut came_back = None;
    let tried = async {
        client.clone().disconnect().await;
        let again =
            dial(endpoint, left, |options| options.session = Session::Resume(session.clone())).await?;
        let resumed = again.session_id() == session;
        came_back = Some(again);
        if resumed {
            works("the session went on over a new connection")
        } else {
            failed("it gave a new session instead")
        }
    };
    findings.push(judge(trial, deadline, tried).await);
    came_back.unwrap_or(client)
}

fn is_unknown_method(error: &Error) -> bool {
    error.refusal() == Some(ErrorKind::UnknownMethod)
        || matches!(error, Error::Refused(refusal) if refusal.code == METHOD_NOT_FOUND)
}
