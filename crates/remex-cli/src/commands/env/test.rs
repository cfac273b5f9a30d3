//! `remex env test`: checks environments.

use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use super::Outcome;
use crate::{
    args::env::test::Flags,
    remote::{endpoint::Endpoint, probe::probe},
    render::{
        failure::{Failure, Kind},
        finding::{self, Finding},
        print::{self, Colour, Tone},
        text::plain,
    },
};

#[derive(Serialize)]
struct Listing {
    environments: Vec<Tested>,
}

#[derive(Serialize)]
struct Tested {
    id: String,
    #[serde(rename = "where")]
    endpoint: String,
    reached: bool,
    ok: bool,
    checks: Vec<Finding>,
}

pub(super) async fn run(flags: &Flags) -> Outcome {
    let names = if flags.all { all()? } else { flags.names.clone() };
    let endpoints = endpoints(&names)?;
    let limit = flags.timeout;
    let mut tests = JoinSet::new();
    for (index, (name, endpoint)) in endpoints.into_iter().enumerate() {
        tests.spawn(async move { (index, Box::pin(test(name, endpoint, limit)).await) });
    }
    let mut tested = Vec::new();
    // Results are printed as they arrive, so that a hanging server does not delay the others.
    while let Some(finished) = tests.join_next().await {
        let (index, environment) = finished.map_err(|error| {
            Failure::new("a test ended early", "report this as a defect").because(error.to_string())
        })?;
        let environment = environment?;
        if !flags.format.json {
            print::out(text(&environment))?;
        }
        tested.push((index, environment));
    }
    tested.sort_by_key(|(index, _)| *index);
    let tested: Vec<_> = tested.into_iter().map(|(_, environment)| environment).collect();
    let code = match () {
        () if tested.iter().all(|environment| environment.ok) => 0,
        () if tested.iter().any(|environment| !environment.reached) => 4,
        () => 1,
    };
    if flags.format.json {
        print::json(&Listing { environments: tested })?;
    }
    Ok(code)
}

fn all() -> Result<Vec<String>, Failure> {
    Ok(super::entries()?.into_iter().map(|entry| entry.id).collect())
}

/// The name of an environment, and its endpoint or why it is invalid.
type Named = (String, Result<Endpoint, Failure>);

/// Finds the endpoints; an unreadable token is a result like any other.
fn endpoints(names: &[String]) -> Result<Vec<Named>, Failure> {
    let named = |name: &String| match Endpoint::named(name) {
        Err(failure) if failure.kind() != Kind::Failed => Err(failure),
        found => Ok((name.clone(), found)),
    };
    names.iter().map(named).collect()
}

async fn test(name: String, endpoint: Result<Endpoint, Failure>, limit: Duration) -> Result<Tested, Failure> {
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(failure) => {
            let checks = vec![Finding::failed("configuration", &failure)];
            return Ok(Tested { endpoint: name.clone(), id: name, reached: false, ok: false, checks });
        }
    };
    let report = probe(&endpoint, limit).await?;
    let reached = report.client.is_some();
    let checks = report.end().await;
    let ok = !finding::any_failed(&checks);
    Ok(Tested { id: endpoint.name, endpoint: super::bare(&endpoint.target), reached, ok, checks })
}

fn text(tested: &Tested) -> String {
    let name = Colour::of_stdout().paint(Tone::Bold, &plain(&tested.id));
    let endpoint = plain(&tested.endpoint);
    let heading = if tested.id == tested.endpoint { name } else { format!("{name}: {endpoint}") };
    format!("{heading}\n{}", finding::text(&tested.checks, "failed"))
}
