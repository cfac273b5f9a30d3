//! `remex doctor`: diagnoses problems on this machine or with a server.
//!
//! Start at [`run`]; [`host`] has checks for any host, [`here`] those for this machine only.

mod certificates;
mod durability;
mod here;
mod host;

use std::time::Duration;

use serde::Serialize;

use super::Outcome;
use crate::{
    args::doctor::Flags,
    remote::{
        endpoint::{self, Endpoint},
        probe::probe,
    },
    render::{
        failure::Failure,
        finding::{self, Finding, Verdict},
        print,
    },
};
use host::Host;

#[derive(Serialize)]
struct Listing {
    ok: bool,
    checks: Vec<Finding>,
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let checks = match flags.on.as_deref().filter(|word| !word.is_empty() && !flags.here) {
        None => {
            if let (false, Ok(Some(default))) =
                (flags.format.json || flags.here, endpoint::default_environment())
            {
                print::note(format!(
                    "checking this machine; `remex doctor --on {default}` checks your default environment"
                ));
            }
            Box::pin(here::check(flags.timeout)).await
        }
        Some(word) => {
            let endpoint = Endpoint::selected(&flags.origin.selected(word), flags.token_file.as_deref())?;
            check_server(&endpoint, flags.timeout).await?
        }
    };
    let ok = !finding::any_failed(&checks);
    if flags.format.json {
        print::json(&Listing { ok, checks })?;
    } else {
        let count = |verdict| checks.iter().filter(|finding| finding.verdict == verdict).count();
        let summary = match (count(Verdict::Failed), count(Verdict::Warning)) {
            (0, 0) => "no problems found".to_owned(),
            (problems, warnings) => format!("problems: {problems}, warnings: {warnings}"),
        };
        print::out(format!("{}{summary}\n", finding::text(&checks, "problem")))?;
    }
    Ok(u8::from(!ok))
}

/// Checks a server, and its host as far as possible.
async fn check_server(endpoint: &Endpoint, limit: Duration) -> Result<Vec<Finding>, Failure> {
    let mut report = probe(endpoint, limit).await?;
    if let Some(client) = &report.client {
        report.findings.extend(durability::check(client, limit).await);
        match tokio::time::timeout_at(report.deadline, host::check(&Host::There(client))).await {
            Ok(found) => report.findings.extend(found),
            Err(_) => report.findings.push(
                Finding::new("host", Verdict::Failed, "timed out")
                    .with_hint("raise `--timeout`, or find out what blocks the server"),
            ),
        }
    }
    Ok(report.end().await)
}
