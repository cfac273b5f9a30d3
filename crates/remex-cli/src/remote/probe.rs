//! Checks what works on a server by trying it.
//!
//! Leaves nothing behind. Start at [`probe`].

use std::time::Duration;

use remex_client::{Client, Command, Error, ErrorKind, Options, Session, Target, process::TerminalSize};
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

/// How many round trips are measured.
const ROUND_TRIPS: usize = 9;

/// A larger clock difference makes times in listings confusing.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// How long the session of a probe survives without a connection.
const DETACH_TTL: Duration = Duration::from_secs(10);

/// Longer than a user may take to answer the prompts of a connection program.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(600);

/// The findings of a probe, and the connection for further checks.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// `None` if the server is unreachable.
    pub(crate) client: Option<Client>,
    /// The end of the time limit.
    pub(crate) deadline: Instant,
}

impl Report {
    /// Ends the session if there is time; otherwise the server ends it, some seconds after the connection.
    pub(crate) async fn end(self) -> Vec<Finding> {
        if let Some(client) = self.client {
            // The result does not matter.
            let _ = timeout_at(self.deadline, client.end()).await;
        }
        self.findings
    }
}

/// A check, and the hint if its failure has none.
struct Check {
    name: &'static str,
    hint: &'static str,
}

/// The result of a check that did not fail.
struct CheckResult {
    verdict: Verdict,
    what: String,
    hint: Option<String>,
    /// The measured time, if it is not the duration of the check.
    measured: Option<Duration>,
}

type CheckOutcome = Result<CheckResult, Failure>;

/// Runs all checks on a server, within `limit`.
///
/// # Errors
///
/// Only when the user interrupts it.
pub(crate) async fn probe(endpoint: &Endpoint, limit: Duration) -> Result<Report, Failure> {
    let start = Instant::now();
    let dialled = dial(endpoint, limit, |options| options.detach_ttl = Some(DETACH_TTL)).await;
    let took = start.elapsed();
    // The time that the user took to answer prompts does not count, so the limit starts again.
    let start = if may_prompt(endpoint) { Instant::now() } else { start };
    let deadline = start + limit;
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
    let checks = Checks { client: &client, deadline, findings: &mut report.findings };
    checks.run().await;
    report.client = Some(resume(endpoint, client, deadline, &mut report.findings).await);
    Ok(report)
}

/// Returns whether connecting may prompt the user.
fn may_prompt(endpoint: &Endpoint) -> bool {
    matches!(endpoint.target, Target::Program(_))
}

/// Connects within `limit`, not counting the time that the user takes to answer prompts.
async fn dial(
    endpoint: &Endpoint,
    limit: Duration,
    adapt: impl FnOnce(&mut Options),
) -> Result<Client, Error> {
    let connecting = endpoint.dial(|options| {
        adapt(options);
        if may_prompt(endpoint) {
            options.connect_timeout = options.connect_timeout.min(limit);
            options.handshake_timeout = options.handshake_timeout.min(limit);
        }
    });
    if may_prompt(endpoint) {
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
    let hint = if spoke {
        "check that a remex server listens there, and its version"
    } else {
        "check the address and the network, and that the server is running; `remex serve` starts one"
    };
    let name = if spoke { "handshake" } else { "reachable" };
    let hint = failure.hint().unwrap_or(hint);
    let failed = Finding::failed(name, failure).with_hint(hint);
    if spoke { vec![Finding::ok("reachable", ""), failed] } else { vec![failed] }
}

fn handshake(client: &Client) -> Finding {
    let server = &client.welcome().server;
    let ours = env!("CARGO_PKG_VERSION");
    if server.name.is_empty() {
        return Finding::ok("handshake", "the server does not report its version");
    }
    let what = format!("{} {}", server.name, server.version);
    if server.name == "remex" && server.version != ours {
        return Finding::new("handshake", Verdict::Warning, format!("{what}, but this program is {ours}"))
            .with_hint("install the same version on both sides; only common features work");
    }
    Finding::ok("handshake", what)
}

struct Checks<'a> {
    client: &'a Client,
    deadline: Instant,
    findings: &'a mut Vec<Finding>,
}

impl Checks<'_> {
    async fn run(mut self) {
        let client = self.client;
        let check = |name, hint| Check { name, hint };
        self.run_check(check("round trip", "check the network"), round_trip(client)).await;
        self.run_check(
            check("command", "check the PATH and the limits of the server's user"),
            command(client),
        )
        .await;
        self.run_check(
            check("terminal", "mount devpts at /dev/pts on that host, and check /proc/sys/kernel/pty/max"),
            terminal(client),
        )
        .await;
        self.run_check(
            check("files", "check the free space and permissions of its temporary directory"),
            files(client),
        )
        .await;
        self.run_check(check("http", "install remex on that host to make requests from there"), http(client))
            .await;
        self.run_check(check("clock offset", "check the clocks of both machines"), clock(client)).await;
    }

    async fn run_check(&mut self, check: Check, outcome: impl Future<Output = CheckOutcome>) {
        let finding = evaluate(check, self.deadline, outcome).await;
        self.findings.push(finding);
    }
}

async fn evaluate(check: Check, deadline: Instant, outcome: impl Future<Output = CheckOutcome>) -> Finding {
    let start = Instant::now();
    if start >= deadline {
        return Finding::new(check.name, Verdict::Failed, "no time left").with_hint("raise `--timeout`");
    }
    match timeout_at(deadline, outcome).await {
        Err(_) => Finding::new(check.name, Verdict::Failed, "timed out")
            .took(start.elapsed())
            .with_hint("raise `--timeout`, or find out what blocks the server"),
        Ok(Err(failure)) => {
            let finding = Finding::failed(check.name, &failure).took(start.elapsed());
            if finding.hint.is_some() { finding } else { finding.with_hint(check.hint) }
        }
        Ok(Ok(result)) => {
            let took =
                (result.verdict != Verdict::Skipped).then(|| result.measured.unwrap_or(start.elapsed()));
            Finding { name: check.name, verdict: result.verdict, took, what: result.what, hint: result.hint }
        }
    }
}

fn works(what: impl Into<String>) -> CheckOutcome {
    Ok(CheckResult { verdict: Verdict::Ok, what: what.into(), hint: None, measured: None })
}

fn skipped(what: impl Into<String>) -> CheckOutcome {
    Ok(CheckResult { verdict: Verdict::Skipped, what: what.into(), hint: None, measured: None })
}

fn failed(what: impl Into<String>) -> CheckOutcome {
    Err(Failure::bare(Kind::Failed, what))
}

/// Measures the median of a few empty calls.
async fn round_trip(client: &Client) -> CheckOutcome {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        client.call(GetInfo {}).await?;
        times.push(start.elapsed());
    }
    times.sort();
    let (median, worst) = (times[ROUND_TRIPS / 2], times[ROUND_TRIPS - 1]);
    Ok(CheckResult {
        verdict: Verdict::Ok,
        what: format!("median of {ROUND_TRIPS}; the slowest took {}", short(worst)),
        hint: None,
        measured: Some(median),
    })
}

async fn command(client: &Client) -> CheckOutcome {
    let output = probe_command("true").output(client).await?;
    if output.exit.success() {
        works("`true` ran")
    } else {
        failed(format!("`true` failed with {:?}", output.exit))
    }
}

async fn terminal(client: &Client) -> CheckOutcome {
    let output = Command::shell("test -t 0 && stty size")
        .durable(false)
        .terminal(TerminalSize::new(7, 77)?)
        .output(client)
        .await?;
    let said = String::from_utf8_lossy(&output.terminal).into_owned();
    match (output.exit.success(), said.trim()) {
        (true, "7 77") => works("a shell on a 7 × 77 terminal sees its size"),
        // `stty` may be missing or different.
        (true, _) => works("a shell runs on a terminal"),
        (false, said) => failed(format!("a shell on a terminal failed with {:?}: {said}", output.exit)),
    }
}

/// Writes a file, reads it back, compares its hash, and removes it.
async fn files(client: &Client) -> CheckOutcome {
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
        return failed(format!("`{path}` has other content than was written"));
    }
    let hash = match hash {
        Ok(hash) => hash.hash.to_string(),
        Err(error) if is_unknown_method(&error) => {
            return works("a file was written, read and removed; the server does not support hashes");
        }
        Err(error) => return Err(error.into()),
    };
    let expected =
        Sha256::digest(content).iter().fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}"));
    if hash == expected {
        works(format!("a file in `{directory}` was written, read, hashed and removed"))
    } else {
        failed(format!("the hash of `{path}` is {hash} instead of {expected}"))
    }
}

/// Creates a command that is not among the durable processes that the server counts.
fn probe_command(program: &str) -> Command {
    Command::new(program).durable(false)
}

/// Returns the directory for temporary files on the remote host.
pub(crate) fn temporary(info: &Info) -> String {
    let path = info.temp_dir.as_ref().and_then(|path| path.native().ok());
    path.map_or_else(|| "/tmp".to_owned(), |path| path.display().to_string())
}

/// Requests a closed port: a refused connection shows that the server makes requests.
async fn http(client: &Client) -> CheckOutcome {
    let refused = client.http().get("http://127.0.0.1:1/").timeout(Duration::from_secs(2)).send().await;
    match refused {
        Err(error) if is_unknown_method(&error) => skipped("the server does not make HTTP requests"),
        Ok(_) => works("the server makes requests; its network was not tested"),
        // Servers of the base dialect have one kind for everything.
        Err(Error::Refused(error)) if matches!(error.kind, ErrorKind::HttpFailed | ErrorKind::Internal) => {
            works("the server makes requests; its network was not tested")
        }
        Err(error) => Err(error.into()),
    }
}

async fn clock(client: &Client) -> CheckOutcome {
    let before = text::now_ms();
    let start = Instant::now();
    let process = probe_command("true").start(client).await?;
    let uncertain = start.elapsed();
    let listing = client.call(List { session_id: None, scope: Scope::default() }).await;
    let started = match listing {
        Ok(listing) => listing.processes.into_iter().find(|entry| entry.process_id == process.id()),
        Err(error) if is_unknown_method(&error) => return skipped("the server does not report times"),
        Err(error) => return Err(error.into()),
    };
    process.wait().await?;
    let Some(started) = started else { return skipped("the server has already removed the process") };
    let middle = before + u64::try_from(uncertain.as_millis() / 2).unwrap_or_default();
    let apart = Duration::from_millis(started.started_at_ms.abs_diff(middle));
    let direction = if started.started_at_ms > middle { "ahead" } else { "behind" };
    if apart <= CLOCK_TOLERANCE + uncertain {
        let most = farthest(apart, uncertain);
        return Ok(CheckResult {
            verdict: Verdict::Ok,
            what: format!("at most {} from this machine's clock", short(most)),
            hint: None,
            measured: Some(most),
        });
    }
    Ok(CheckResult {
        verdict: Verdict::Warning,
        what: format!("its clock is {} {direction}", text::age(apart)),
        hint: Some("use NTP on both machines; times in listings are those of the server".to_owned()),
        measured: None,
    })
}

/// Returns how far apart two clocks are at most, if one was read at an unknown moment of a call that took `uncertain`.
fn farthest(apart: Duration, uncertain: Duration) -> Duration {
    // Both clocks are read in whole milliseconds.
    apart + uncertain / 2 + Duration::from_millis(1)
}

/// Disconnects, resumes the session, and returns the new client.
async fn resume(
    endpoint: &Endpoint,
    client: Client,
    deadline: Instant,
    findings: &mut Vec<Finding>,
) -> Client {
    let check = Check { name: "resume", hint: "raise `--max-detach-ttl` of the server" };
    if client.welcome().detach_ttl_ms == Some(0) {
        let what = "sessions end with their connection, so a disconnect ends their processes";
        findings.push(evaluate(check, deadline, std::future::ready(skipped(what))).await);
        return client;
    }
    let session = client.session_id().to_owned();
    let left = deadline.saturating_duration_since(Instant::now());
    // Keep the limit unless connecting may prompt.
    let deadline =
        if may_prompt(endpoint) && !left.is_zero() { Instant::now() + PROMPT_TIMEOUT } else { deadline };
    let mut resumed_client = None;
    let outcome = async {
        client.clone().close().await;
        let again = dial(endpoint, left, |options| {
            options.session = Session::Resume { id: session.clone(), takeover: false }
        })
        .await?;
        let resumed = again.session_id() == session;
        resumed_client = Some(again);
        if resumed {
            works("the session was resumed on a new connection")
        } else {
            failed("the server started a new session instead")
        }
    };
    findings.push(evaluate(check, deadline, outcome).await);
    resumed_client.unwrap_or(client)
}

/// Returns whether a server refused a method that it does not have.
pub(crate) fn is_unknown_method(error: &Error) -> bool {
    error.kind() == Some(ErrorKind::UnknownMethod)
        || matches!(error, Error::Refused(refusal) if refusal.code == METHOD_NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_no_farther_apart_than_reported() {
        let ms = Duration::from_millis;
        let (before, took) = (ms(1000), ms(40));
        for offset in [0, 5, 30, 500] {
            for within in [0, 13, 40] {
                let started = before + ms(within + offset);
                let apart = started.abs_diff(before + took / 2);
                assert!(farthest(apart, took) >= ms(offset), "{offset} ms apart, read after {within} ms");
            }
        }
    }
}
